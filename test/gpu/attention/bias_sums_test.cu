// SPDX-License-Identifier: MIT
// Gradients that are sums against the reference: of a bias that sequences or heads share, and of parameters; and those of score
// modifiers in the kernel of dq.
#include "gpu/attention/bias_case.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

TEST_CASE("the gradient of a bias in fp32 is added, where sequences or heads share it in any order") {
  for (const int64 biases : {2, 1})
    for (const int64 heads : {2, 1})
      for (const bool any : {true, false}) {
        const bias_options o{.biases = biases, .bias_heads = heads, .any_order = any};
        CHECK(fault_of<128, fp16, float, before::nothing>(o, giwa::full{}) == "");
        CHECK(fault_of<64, fp16, float, before::bias_of_keys>(o, causal::bottom_right) == "");
      }
#if !defined(GIWA_TEST_FEW_SIZES)
  CHECK(fault_of<32, bf16, float, before::bias_of_keys>(
            {.batch = 5, .queries = 96, .keys = 96, .biases = 1, .any_order = true, .hostile = true},
            causal::bottom_right) == "");
#endif
  CHECK(fault_of<64, fp16, float, before::bias_of_keys>({.batch = 2, .any_order = true, .poisoned = true},
                                                        causal::bottom_right) == "");
}

TEST_CASE("sequences and heads that share the gradient of a bias add to it in turn") {
  // With few multiprocessors a block computes work tiles that wait for each other.
  for (const int processors : {0, 1, 3})
    for (const int64 heads : {2, 1}) {
      bias_options o{.batch = 5, .queries = 130, .keys = 136, .biases = 1, .bias_heads = heads, .hostile = true};
      o.kv_heads = processors == 3 ? 2 : 1, o.processors = processors;
      CHECK(fault_of<64, fp16, float, before::bias_of_keys>(o, causal::bottom_right) == "");
      if (processors == 1) continue;
      CHECK(fault_of<128, fp16, float, before::nothing>(o, giwa::full{}) == "");
#if !defined(GIWA_TEST_FEW_SIZES)
      CHECK(fault_of<32, fp16, float, before::bias_of_keys>(o, giwa::full{}) == "");
      CHECK(fault_of<128, fp16, float, before::nothing>(o, causal::bottom_right & giwa::sliding_window{90}) == "");
#endif
      o.keys = 160, o.biases = o.batch, o.bias_heads = 1, o.split_heads = true;
      CHECK(fault_of<64, fp16, float, before::bias_of_keys>(o, causal::bottom_right) == "");
    }
  // One sequence or head shares with none: its gradient is stored.
  CHECK(fault_of<64, fp16, float, before::bias_of_keys>({.batch = 1, .biases = 1}, causal::bottom_right) == "");
  CHECK(fault_of<128, fp16, float, before::nothing>(
            {.batch = 1, .heads = 1, .biases = 1, .bias_heads = 1, .any_order = true}, giwa::full{}) == "");
  // Lengths: tiles that not all sequences see.
  CHECK(fault_of<64, fp16, float, before::bias_of_keys>({.biases = 1, .k_used = {200, 131}}, causal::bottom_right) ==
        "");
  CHECK(fault_of<64, fp16, float, before::bias_of_keys>({.biases = 1, .poisoned = true}, causal::bottom_right) == "");
}

TEST_CASE("the kernel of dq gives the gradient of a bias after another modifier") {
  for (const int64 biases : {2, 1})
    CHECK(fault_of<64, fp16, float, before::softcap>({.biases = biases, .bias_heads = biases}, causal::bottom_right) ==
          "");
#if !defined(GIWA_TEST_FEW_SIZES)
  CHECK(fault_of<128, bf16, bf16, before::softcap>({.poisoned = true}, causal::bottom_right) == "");
  CHECK(fault_of<256, fp16, fp16, before::nothing>({}, giwa::full{}) == "");
#endif
}

TEST_CASE("the kernel of dq gives the gradients of parameters") {
  case_options o;
  o.batch = 2, o.heads = 3, o.kv_heads = 1, o.seq_q = 200, o.seq_k = 270, o.head_size = o.head_size_v = 64;
  std::vector<float> slopes{0.25f, 0.0625f, 0.5f}, expected(3), got[2];
  const auto score = [](const float* from, float* to) {
    return giwa::then(giwa::softcap{4}, giwa::alibi_with_gradient(from, giwa::tensor_view<float, 1>(to, {3}),
                                                                  giwa::alignment::bottom_right));
  };
  for (const int kind : {0, 1, 2}) {
    const bool poisoned = kind == 1;
    if (kind == 2) o.q_lengths = {130, 0, 70, 300}, o.k_lengths = {150, 9, 70, 260};
    backward_case<fp16> c(o);
    const backward_answers a = answers_of(c, causal::bottom_right, score(slopes.data(), expected.data()));
    if (poisoned) c.of.k.view()(1, 269, 0, 0) = giwa::convert<fp16>{}(NAN);  // only the last query sees it
    const gpu_array<float> from(slopes);
    for (std::vector<float>& gradients : got) {
      const gpu_array<float> to(std::vector<float>(3, NAN));
      c.clear_outputs();
      const auto modifier = score(from.data(), to.data());
      const backward_on_gpu<fp16, fp16, fp16> gpu(c, modifier);
      const giwa::stream s = new_stream();
      const giwa::status state =
          backward_of<64, 64>(s, gpu.views(), causal::bottom_right, modifier, gpu.call_options());
      REQUIRE(state.ok());
      gpu.read_back();
      gradients = to.to_host();
    }
    if (!poisoned) CHECK(judge(c, a) == "");
    for (std::size_t i = 0; i < 3; ++i) {
      if (poisoned) {
        CHECK(std::isnan(got[0][i]));
      } else {
        CHECK(std::abs(got[0][i] - expected[i]) < 5e-3f * (10 + std::abs(expected[i])));
        CHECK(got[0][i] == got[1][i]);
      }
    }
  }
}
