# SPDX-License-Identifier: MIT
# Runs the port file of cmake/vcpkg into FOLDER/packages, with stand-ins for vcpkg's functions that do what vcpkg does to a package of
# headers, and looks at what came. vcpkg itself is not needed, and not tested. No CUDA toolkit is found here, and none is needed.

file(REMOVE_RECURSE ${FOLDER})
set(PORT giwa)
set(CURRENT_PACKAGES_DIR ${FOLDER}/packages)

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" SOURCE_PATH OPTIONS)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${FOLDER}/build -DCMAKE_BUILD_TYPE=Release ${arg_OPTIONS}
    -DCMAKE_ERROR_ON_ABSOLUTE_INSTALL_DESTINATION=ON -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_install)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${FOLDER}/build --prefix ${CURRENT_PACKAGES_DIR} OUTPUT_QUIET
    COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_config_fixup) # moves the package to share/PORT, where its prefix is two folders up
  cmake_parse_arguments(PARSE_ARGV 0 arg "" CONFIG_PATH "")
  file(RENAME ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH} ${CURRENT_PACKAGES_DIR}/share/${PORT})
  file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/share/cmake)
  file(GLOB files ${CURRENT_PACKAGES_DIR}/share/${PORT}/*.cmake)
  set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
  foreach(file IN LISTS files)
    file(READ ${file} text)
    string(REPLACE "${up}${up}${up}" "${up}${up}" text "${text}")
    string(REPLACE "\${CMAKE_CURRENT_LIST_DIR}/../../../" "\${CMAKE_CURRENT_LIST_DIR}/../../" text "${text}")
    file(WRITE ${file} "${text}")
  endforeach()
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" FILE_LIST)
  file(INSTALL ${arg_FILE_LIST} DESTINATION ${CURRENT_PACKAGES_DIR}/share/${PORT} RENAME copyright)
endfunction()

include(${SOURCE}/cmake/vcpkg/giwa/portfile.cmake)

file(GLOB folders RELATIVE ${CURRENT_PACKAGES_DIR} ${CURRENT_PACKAGES_DIR}/* ${CURRENT_PACKAGES_DIR}/share/*)
if(NOT folders STREQUAL "include;share;share/giwa")
  message(FATAL_ERROR "the package contains ${folders}")
endif()
foreach(file IN ITEMS copyright usage giwa-config.cmake giwa-targets.cmake)
  if(NOT EXISTS ${CURRENT_PACKAGES_DIR}/share/giwa/${file})
    message(FATAL_ERROR "share/giwa/${file} is missing")
  endif()
endforeach()
file(READ ${SOURCE}/cmake/vcpkg/giwa/vcpkg.json manifest)
string(JSON version GET "${manifest}" version)
if(NOT version STREQUAL VERSION)
  message(FATAL_ERROR "vcpkg.json is of version ${version}, giwa of ${VERSION}")
endif()
