# SPDX-License-Identifier: MIT
# One source, two programs: for sm_90, and for sm_90a with its additional instructions.

foreach(architecture IN ITEMS 90 90a)
  set(name gpu.device.which_body_${architecture})
  giwa_add_gpu_test(${name} ${CMAKE_CURRENT_LIST_DIR}/which_body.cu)
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES ${architecture}-real)
  string(COMPARE EQUAL ${architecture} 90a specific)
  target_compile_definitions(${name} PRIVATE GIWA_TEST_SPECIFIC=${specific})
endforeach()
