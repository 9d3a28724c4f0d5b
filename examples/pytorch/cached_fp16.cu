// SPDX-License-Identifier: MIT
// The kernels of caches of fp16.
#include "cached_kernels.cuh"

giwa::status attend_cached_fp16(const cached_call& call) { return attend_cached<giwa::fp16>(call); }
giwa::status append_fp16(const append_call& call) { return append<giwa::fp16>(call); }
