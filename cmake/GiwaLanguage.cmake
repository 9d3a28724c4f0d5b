# SPDX-License-Identifier: MIT
# Asks for C++20 on a target, in host and in CUDA code, as the CMake that reads this file is able to.

# Decided by the CMake of the consumer and never exported: CMake < 3.25.2 does not know CUDA C++20 for nvcc.
function(giwa_require_language target)
  target_compile_features(${target} INTERFACE cxx_std_20)
  if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    target_compile_features(${target} INTERFACE cuda_std_20)
  else()
    target_compile_options(${target} INTERFACE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>)
  endif()
endfunction()
