# SPDX-License-Identifier: MIT
# The warnings that giwa's own tests, benchmarks and examples are compiled with; never passed on to a consumer.

add_library(giwa_warnings INTERFACE)
target_compile_options(giwa_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wshadow>
  # Every launch names its stream; no kernel spills or keeps an array in local memory, but for targets whose property
  # GIWA_LOCAL_MEMORY is on. Not -Wmissing-launch-bounds: nvcc 13.0
  # does not see bounds that depend on a template parameter.
  $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow;-Wreorder;-Wdefault-stream-launch>
  $<$<AND:$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>,$<NOT:$<BOOL:$<TARGET_PROPERTY:GIWA_LOCAL_MEMORY>>>>:-Xptxas=-warn-spills,-warn-lmem-usage>)
