// SPDX-License-Identifier: MIT
// The kernels of caches of bf16.
#include "cached_kernels.cuh"

giwa::status attend_cached_bf16(const cached_call& call) { return attend_cached<giwa::bf16>(call); }
giwa::status append_bf16(const append_call& call) { return append<giwa::bf16>(call); }
