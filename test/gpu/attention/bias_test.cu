// SPDX-License-Identifier: MIT
// The gradient of a bias in the type of q against the reference, and which kernel writes it.
#include "gpu/attention/bias_case.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

TEST_CASE("the gradient of a bias in the type of q is stored by tiles") {
  CHECK(fault_of<128, fp16, fp16, before::nothing>({}, giwa::full{}) == "");
  int64 zeros = 0;
  CHECK(fault_of<128, fp16, fp16, before::nothing>({}, causal::bottom_right, &zeros) == "");
  if (on_hopper()) CHECK(zeros > 0);  // the kernel of all gradients writes whole tiles
  CHECK(fault_of<128, fp16, fp16, before::nothing>({.batch = 1, .biases = 1, .hostile = true}, causal::bottom_right) ==
        "");
  CHECK(fault_of<128, fp16, fp16, before::nothing>({.least_workspace = true}, giwa::full{}) == "");
  CHECK(fault_of<128, fp16, fp16, before::nothing>({.queries = 70, .keys = 90}, giwa::full{}) ==
        "");  // rows that TMA does not store
  CHECK(fault_of<128, fp16, fp16, before::nothing>({.any_order = true}, giwa::full{}) == "");
  CHECK(fault_of<128, fp16, fp16, before::nothing>(
            {.batch = 1, .heads = 4, .queries = 700, .keys = 136, .biases = 1, .bias_heads = 4, .any_order = true},
            giwa::full{}) == "");
  CHECK(fault_of<128, fp16, fp16, before::nothing>({.k_used = {200, 131}}, giwa::full{}) == "");
  CHECK(fault_of<128, fp16, fp16, before::nothing>({.poisoned = true}, causal::bottom_right) == "");
#if !defined(GIWA_TEST_FEW_SIZES)
  CHECK(fault_of<64, bf16, bf16, before::nothing>({}, giwa::full{}) == "");
  CHECK(fault_of<64, bf16, bf16, before::nothing>({.queries = 520, .keys = 520, .hostile = true}, causal::bottom_right,
                                                  &zeros) == "");
  if (on_hopper()) CHECK(zeros > 0);
  CHECK(fault_of<32, fp16, fp16, before::bias_of_keys>({.kv_heads = 2, .hostile = true},
                                                       causal::bottom_right & giwa::sliding_window{40}) == "");
  CHECK(fault_of<64, bf16, bf16, before::nothing>({.poisoned = true}, causal::bottom_right) == "");
  CHECK(fault_of<96, bf16, bf16, before::nothing>({.split_heads = true}, giwa::full{}) == "");
#endif
}
