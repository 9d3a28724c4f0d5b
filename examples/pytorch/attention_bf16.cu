// SPDX-License-Identifier: MIT
// The kernels of tensors of bf16.
#include "attention_kernels.cuh"

giwa::status attend_bf16(const attention_call& call) { return attend<giwa::bf16>(call); }
