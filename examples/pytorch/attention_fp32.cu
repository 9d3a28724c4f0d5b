// SPDX-License-Identifier: MIT
// The kernels of tensors of fp32.
#include "attention_kernels.cuh"

giwa::status attend_fp32(const attention_call& call) { return attend<giwa::fp32>(call); }
