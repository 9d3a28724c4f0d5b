// SPDX-License-Identifier: MIT
// The kernels of tensors of fp16.
#include "training_kernels.cuh"

giwa::status attend_fp16(const attention_call& call) { return attend<giwa::fp16>(call); }
giwa::status gradients_fp16(const training_call& call) { return gradients<giwa::fp16>(call); }
