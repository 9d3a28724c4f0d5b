// SPDX-License-Identifier: MIT
// attention_cached on a GPU with a cache of 4-bit integers, against the reference.
#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;
using giwa::int4_pair;

TEST_CASE("caches of 4-bit integers with scales of every shape") {
  CHECK(first_cached_fault<bf16, 128, 128, int4_pair>(0, 1, 24, causal::bottom_right) == "");
  CHECK(first_cached_fault<fp16, 64, 64, int4_pair, float>(3, 2, 14, by_distance{}, own_score{}) == "");
  CHECK(first_cached_fault<fp16, 256, 256, int4_pair>(2, 3, 9, causal::bottom_right) == "");
  CHECK(first_cached_fault<fp16, 96, 40, int4_pair>(1, 5, 9) == "");
  CHECK(first_cached_fault<float, 64, 64, int4_pair>(1, 4, 8) == "");
}
