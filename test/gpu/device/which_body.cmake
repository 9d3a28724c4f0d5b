# SPDX-License-Identifier: MIT
# One source, three programs: for sm_90, for sm_90a with its additional instructions, and for sm_75, which runs nowhere else.

if(GIWA_TEST_AS)
  return() # of other architectures
endif()
foreach(architecture IN ITEMS 75 90 90a)
  set(name gpu.device.which_body_${architecture})
  giwa_add_gpu_test(${name} ${CMAKE_CURRENT_LIST_DIR}/which_body.cu)
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES ${architecture}-real)
  string(COMPARE EQUAL ${architecture} 90a specific)
  string(REPLACE a "" capability ${architecture})
  target_compile_definitions(${name} PRIVATE GIWA_TEST_SPECIFIC=${specific} GIWA_TEST_CAPABILITY=${capability})
endforeach()
