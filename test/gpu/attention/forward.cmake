# SPDX-License-Identifier: MIT
# One source, a program for each part of the list in pairs.hpp: compiling all of it takes minutes, so it comes first.

option(GIWA_TEST_ALL_PAIRS "Compile the tests of attention for all pairs of types, not only for some" OFF)
set(parts 2)
if(GIWA_TEST_ALL_PAIRS)
  set(parts 9)
endif()
math(EXPR last "${parts} - 1")
foreach(part RANGE ${last})
  giwa_add_gpu_test(gpu.attention.forward_${part} ${CMAKE_CURRENT_LIST_DIR}/forward.cu)
  if(NOT GIWA_ON_GPU AND NOT part EQUAL 0) # one of them for Hopper, whose kernel comes beside the other
    set_target_properties(gpu.attention.forward_${part} PROPERTIES CUDA_ARCHITECTURES 80-real)
  endif()
  target_compile_definitions(gpu.attention.forward_${part} PRIVATE GIWA_TEST_PART=${part} GIWA_TEST_PARTS=${parts})
  list(APPEND attention_tests forward_${part})
endforeach()
