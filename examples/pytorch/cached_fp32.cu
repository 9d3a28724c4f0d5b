// SPDX-License-Identifier: MIT
// The kernels of caches of fp32.
#include "cached_kernels.cuh"

giwa::status attend_cached_fp32(const cached_call& call) { return attend_cached<giwa::fp32>(call); }
giwa::status append_fp32(const append_call& call) { return append<giwa::fp32>(call); }
