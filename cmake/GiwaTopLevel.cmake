# SPDX-License-Identifier: MIT
# Defaults of giwa's own build, set before project(): a Release build, for the GPU that is here.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel")
endif()

set_property(GLOBAL PROPERTY TARGET_MESSAGES OFF) # make's "Built target demo" would stand below the demo's last lines

# CMAKE_CUDA_ARCHITECTURES=native is an error on a machine without a GPU. Here that machine gets the architectures giwa has
# code for.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    RESULT_VARIABLE failed OUTPUT_VARIABLE capabilities ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${capabilities}")
  list(REMOVE_DUPLICATES capabilities)
  list(TRANSFORM capabilities REPLACE "\\." "")
  list(TRANSFORM capabilities REPLACE "^90$" "90a") # compute_90 alone has no wgmma
  list(TRANSFORM capabilities APPEND "-real")
  if(NOT failed AND capabilities)
    message(STATUS "giwa: building for the GPU that is here: ${capabilities}")
  else()
    set(capabilities 80-real 90a-real)
    message(STATUS "giwa: no GPU found: building for ${capabilities}")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${capabilities} CACHE STRING "architectures to build for")
endif()
