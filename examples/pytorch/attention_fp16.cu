// SPDX-License-Identifier: MIT
// The kernels of tensors of fp16.
#include "attention_kernels.cuh"

giwa::status attend_fp16(const attention_call& call) { return attend<giwa::fp16>(call); }
