// SPDX-License-Identifier: MIT
// attention_cached on a GPU against the reference: head sizes, and types without tensor cores.
#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;
using giwa::fp16;

TEST_CASE("large head sizes, and a smaller one of v") {
  CHECK(first_cached_fault<fp16, 256>(0, 3, 12, causal::bottom_right) == "");
  CHECK(first_cached_fault<bf16, 512>(1, 4, 10) == "");
  CHECK(first_cached_fault<bf16, 192, 128>(2, 3, 12, causal::bottom_right) == "");
}

TEST_CASE("fp32") {
  CHECK(first_cached_fault<float, 64>(0, 1, 24, causal::bottom_right) == "");
  CHECK(first_cached_fault<float, 80, 33>(1, 4, 14, by_distance{}, own_score{}) == "");
}

TEST_CASE("8-bit caches with scales of every shape") {
  CHECK(first_cached_fault<bf16, 128, 128, e4m3>(0, 1, 24, causal::bottom_right) == "");
  CHECK(first_cached_fault<fp16, 64, 64, e4m3, float>(3, 2, 14, by_distance{}, own_score{}) == "");
  CHECK(first_cached_fault<fp16, 256, 256, e4m3>(2, 3, 9, causal::bottom_right) == "");
  CHECK(first_cached_fault<bf16, 512, 512, e4m3>(0, 5, 8) == "");
  CHECK(first_cached_fault<float, 512, 512, e4m3>(1, 4, 8) == "");
}
