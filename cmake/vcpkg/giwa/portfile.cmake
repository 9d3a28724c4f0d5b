# SPDX-License-Identifier: MIT
# The port of giwa for vcpkg, used as an overlay: vcpkg install giwa --overlay-ports=CHECKOUT/cmake/vcpkg. It installs the checkout that it is
# part of. A copy in a registry replaces the next line by vcpkg_from_git with the address and a commit.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

set(VCPKG_BUILD_TYPE release) # headers alone: there is nothing to debug
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DGIWA_BUILD_TESTS=OFF -DGIWA_BUILD_BENCH=OFF -DGIWA_BUILD_EXAMPLES=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/giwa)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib" "${CURRENT_PACKAGES_DIR}/share/licenses")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
