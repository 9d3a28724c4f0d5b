// SPDX-License-Identifier: MIT
// The kernels of tensors of bf16.
#include "training_kernels.cuh"

giwa::status attend_bf16(const attention_call& call) { return attend<giwa::bf16>(call); }
giwa::status gradients_bf16(const training_call& call) { return gradients<giwa::bf16>(call); }
