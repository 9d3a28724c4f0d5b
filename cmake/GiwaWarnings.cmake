# SPDX-License-Identifier: MIT
# The warnings that giwa's own tests, benchmarks and examples are compiled with; never passed on to a consumer.

# g++ 12 and 13 call "text" + std::string a copy that may overlap, at some levels of optimisation (GCC bug 105651).
set(giwa_host_warnings -Wall -Wextra -Wconversion -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND giwa_host_warnings -Wno-restrict)
endif()
list(JOIN giwa_host_warnings "," giwa_host_warnings_of_nvcc)

add_library(giwa_warnings INTERFACE)
target_compile_options(giwa_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:${giwa_host_warnings}>
  # Every launch names its stream; no kernel spills or keeps an array in local memory, but for targets whose property
  # GIWA_LOCAL_MEMORY is on. Not -Wmissing-launch-bounds: nvcc 13.0
  # does not see bounds that depend on a template parameter.
  $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=${giwa_host_warnings_of_nvcc};-Wreorder;-Wdefault-stream-launch>
  $<$<AND:$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>,$<NOT:$<BOOL:$<TARGET_PROPERTY:GIWA_LOCAL_MEMORY>>>>:-Xptxas=-warn-spills,-warn-lmem-usage>)
