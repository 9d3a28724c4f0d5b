# SPDX-License-Identifier: MIT
# Where the tests and the benchmarks get the two packages they need; the library itself needs none.

# Finds a package; with GIWA_FETCH_DEPS, takes a missing one from apt-get (root on a Debian-like system), else downloads the
# pinned archive. Says in one line what it does.
macro(giwa_need package apt_package option url sha256)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND AND GIWA_FETCH_DEPS)
    find_program(GIWA_APT_GET apt-get)
    mark_as_advanced(GIWA_APT_GET)
    execute_process(COMMAND id -u OUTPUT_VARIABLE giwa_user OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(GIWA_APT_GET AND giwa_user STREQUAL "0")
      message(STATUS "giwa: ${package} is missing: apt-get install ${apt_package}")
      execute_process(COMMAND ${GIWA_APT_GET} -qq update OUTPUT_QUIET ERROR_QUIET)
      execute_process(COMMAND ${CMAKE_COMMAND} -E env DEBIAN_FRONTEND=noninteractive
        ${GIWA_APT_GET} -qq install --yes --no-install-recommends ${apt_package} OUTPUT_QUIET ERROR_QUIET)
      find_package(${package} QUIET)
    endif()
    if(NOT ${package}_FOUND)
      message(STATUS "giwa: ${package} is missing: downloading ${url}")
      set(giwa_archive ${CMAKE_CURRENT_BINARY_DIR}/${package}.tar.gz)
      file(DOWNLOAD ${url} ${giwa_archive} STATUS giwa_download INACTIVITY_TIMEOUT 30)
      if(giwa_download MATCHES "^0;")
        include(FetchContent)
        FetchContent_Declare(${package} URL ${giwa_archive} URL_HASH SHA256=${sha256} DOWNLOAD_EXTRACT_TIMESTAMP OFF)
        FetchContent_MakeAvailable(${package})
        set(${package}_FOUND TRUE)
      endif()
    endif()
  endif()
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "giwa: ${package} is missing. Install it (Debian, Ubuntu: apt-get install ${apt_package}), or let "
      "giwa get it with -DGIWA_FETCH_DEPS=ON, or do without it with -D${option}=OFF.")
  endif()
endmacro()

if(GIWA_BUILD_TESTS)
  giwa_need(Catch2 catch2 GIWA_BUILD_TESTS
    https://github.com/catchorg/Catch2/archive/refs/tags/v3.7.1.tar.gz
    c991b247a1a0d7bb9c39aa35faf0fe9e19764213f28ffba3109388e62ee0269c)
endif()
if(GIWA_BUILD_BENCH)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  giwa_need(benchmark libbenchmark-dev GIWA_BUILD_BENCH
    https://github.com/google/benchmark/archive/refs/tags/v1.9.4.tar.gz
    b334658edd35efcf06a99d9be21e4e93e092bd5f95074c1673d5c8705d95c104)
endif()
