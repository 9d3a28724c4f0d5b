# SPDX-License-Identifier: MIT
# A program with lambdas, which need a flag that no other test has.

giwa_add_gpu_test(gpu.grid.lambda ${CMAKE_CURRENT_LIST_DIR}/lambda.cu)
target_compile_options(gpu.grid.lambda PRIVATE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:--extended-lambda>)
