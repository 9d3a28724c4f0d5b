// SPDX-License-Identifier: MIT
// The kernels of tensors of fp32.
#include "training_kernels.cuh"

giwa::status attend_fp32(const attention_call& call) { return attend<giwa::fp32>(call); }
giwa::status gradients_fp32(const training_call& call) { return gradients<giwa::fp32>(call); }
