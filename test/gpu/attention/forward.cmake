# SPDX-License-Identifier: MIT
# One source, a program for each part of the list in pairs.hpp: compiling all of it takes minutes.

option(GIWA_TEST_ALL_PAIRS "Compile the tests of attention for all pairs of types, not only for some" OFF)
set(parts 2)
if(GIWA_TEST_ALL_PAIRS)
  set(parts 9)
endif()
math(EXPR last "${parts} - 1")
foreach(part RANGE ${last})
  giwa_add_gpu_test(gpu.attention.forward_${part} ${CMAKE_CURRENT_LIST_DIR}/forward.cu)
  if(GIWA_TEST_BRIEF AND NOT part EQUAL 0)  # one of them for Hopper, whose kernel comes beside the other
    set_target_properties(gpu.attention.forward_${part} PROPERTIES CUDA_ARCHITECTURES 80-real)
  endif()
  target_compile_definitions(gpu.attention.forward_${part} PRIVATE GIWA_TEST_PART=${part} GIWA_TEST_PARTS=${parts})
endforeach()

if(GIWA_TEST_BRIEF AND NOT GIWA_TEST_ALL_PAIRS)  # where none of them runs: they compile
  foreach(name IN ITEMS delays fp32 forward_0 forward_1)
    target_compile_definitions(gpu.attention.${name} PRIVATE GIWA_TEST_FEW_SIZES)
  endforeach()
endif()

# So many types and head sizes are tested for what they answer; those that must not spill are in test/budget.
foreach(name IN ITEMS delays fp32 same_bits machine)
  set_target_properties(gpu.attention.${name} PROPERTIES GIWA_LOCAL_MEMORY ON)
endforeach()
foreach(part RANGE ${last})
  set_target_properties(gpu.attention.forward_${part} PROPERTIES GIWA_LOCAL_MEMORY ON)
endforeach()

# As PyTorch's extensions are compiled: without the operators and conversions of 16-bit types.
target_compile_definitions(gpu.attention.delays PRIVATE __CUDA_NO_HALF_OPERATORS__ __CUDA_NO_HALF_CONVERSIONS__
  __CUDA_NO_BFLOAT16_CONVERSIONS__ __CUDA_NO_HALF2_OPERATORS__)
