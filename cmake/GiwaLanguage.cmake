# SPDX-License-Identifier: MIT
# What giwa needs of the compilers: C++20, in host and in CUDA code, and CUDA 12.4.

# Says in `variable` why the toolkit that was found is too old; nothing if it is not. To be called after find_package(CUDAToolkit).
function(giwa_check_toolkit variable)
  set(found "")
  if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
    set(found "found nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${CMAKE_CUDA_COMPILER}")
  elseif(CUDAToolkit_VERSION VERSION_LESS 12.4)
    set(found "found ${CUDAToolkit_VERSION}, ${CUDAToolkit_BIN_DIR}")
  endif()
  if(found)
    string(PREPEND found "giwa needs the CUDA toolkit 12.4 or newer (")
    string(APPEND found "). Install a newer toolkit, put its bin/ first in PATH, or name it with CMAKE_CUDA_COMPILER or "
      "CUDAToolkit_ROOT, and use a new build folder.")
  endif()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# Decided by the CMake of the consumer and never exported: CMake < 3.25.2 does not know CUDA C++20 for nvcc.
function(giwa_require_language target)
  target_compile_features(${target} INTERFACE cxx_std_20)
  if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    target_compile_features(${target} INTERFACE cuda_std_20)
  else()
    target_compile_options(${target} INTERFACE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>)
  endif()
endfunction()
