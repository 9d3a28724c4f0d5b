// SPDX-License-Identifier: MIT
// attention_cached on a GPU with rows of blocks, against the reference.
#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;
using giwa::q4_0;
using giwa::q8_0;

TEST_CASE("caches of q8_0 and q4_0") {
  CHECK(first_cached_fault<fp16, 128, 128, q8_0>(0, 1, 12, causal::bottom_right) == "");
  CHECK(first_cached_fault<bf16, 64, 64, q4_0>(3, 2, 12, causal::bottom_right) == "");
  CHECK(first_cached_fault<float, 96, 32, q8_0>(1, 5, 9, by_distance{}, own_score{}) == "");
}
