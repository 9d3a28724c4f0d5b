// SPDX-License-Identifier: MIT
// The gradient of a bias against the reference: element types, masks, sizes that are shared, hostile numbers, bits of a second call,
// and which kernel writes it.
#include <giwa/attention_backward.cuh>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "gpu/attention/backward_gpu.cuh"
#include "support/catch.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;

constexpr float untouched = 7;  // in the gradient before the call

struct bias_options {
  int64 batch = 2, heads = 2, kv_heads = 1, queries = 200, keys = 264;
  int64 biases = 2, bias_heads = 2;  // the sizes of the bias: those above, or 1
  bool any_order = false, split_heads = false, least_workspace = false, hostile = false;
  std::vector<int> k_used{};
};

template <class T>
std::vector<T> drawn(std::size_t n, uint64 seed) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i)
    values[i] = giwa::convert<T>{}(static_cast<float>(normal_at(giwa::philox(seed), i)));
  return values;
}

/// A call with then(bias of each key, bias_with_gradient) or the second alone: empty, or what is wrong with its gradients. `masked`:
/// how many elements of masked pairs the call has set to 0.
template <int HeadSize, class T, class G, bool WithKeys, class Mask>
std::string fault_of(const bias_options& b, const Mask& mask, int64* masked = nullptr) {
  case_options o;
  o.batch = b.batch, o.heads = b.heads, o.kv_heads = b.kv_heads, o.seq_q = b.queries, o.seq_k = b.keys;
  o.head_size = o.head_size_v = HeadSize, o.k_used = b.k_used;
  const giwa::index<4> shape{b.biases, b.bias_heads, b.queries, b.keys}, key_shape{b.batch, 1, 1, b.keys};
  const std::size_t count = static_cast<std::size_t>(b.biases * b.bias_heads * b.queries * b.keys);
  std::vector<T> values = drawn<T>(count, 9);
  const std::vector<T> of_keys = drawn<T>(static_cast<std::size_t>(b.batch * b.keys), 10);
  const auto kept = [&](int64 query, int64 key) {
    const int64 diagonal = query + b.keys - b.queries;
    return mask(
        giwa::attention_coord{0, 0, static_cast<int>(query), static_cast<int>(key), static_cast<int>(diagonal)});
  };
  if (b.hostile)
    for (std::size_t i = 0; i < count; ++i) {
      const int64 key = static_cast<int64>(i) % b.keys, query = static_cast<int64>(i) / b.keys % b.queries;
      if (!kept(query, key)) values[i] = giwa::convert<T>{}(i % 3 == 0 ? HUGE_VALF : NAN);
      if (kept(query, key) && (key + query) % 5 == 1) values[i] = giwa::convert<T>{}(-HUGE_VALF);
    }
  const auto score = [&](const T* from, const T* keys, auto* to) {
    using gradient = std::remove_pointer_t<decltype(to)>;
    const giwa::bias_with_gradient pair(tensor_view<const T, 4>(from, shape), tensor_view<gradient, 4>(to, shape));
    if constexpr (WithKeys)
      return giwa::then(giwa::bias(tensor_view<const T, 4>(keys, key_shape)), pair);
    else
      return pair;
  };
  std::vector<float> expected(count, 0.0f);
  backward_case<T> c(o);
  c.any_order = b.any_order, c.split_heads = b.split_heads, c.has_least_workspace = b.least_workspace;
  const backward_answers a = answers_of(c, mask, score(values.data(), of_keys.data(), expected.data()));

  const gpu_array<T> bias(values), keys(of_keys);
  std::vector<G> first;
  std::string fault;
  for (int round = 0; round < 2 && fault.empty(); ++round) {
    // What is shared is added to.
    const bool adds = std::is_same_v<G, float> && (b.biases < b.batch || b.bias_heads < b.heads);
    const gpu_array<G> gradient(std::vector<G>(count, giwa::convert<G>{}(adds ? 0 : untouched)));
    c.clear_outputs();
    const auto modifier = score(bias.data(), keys.data(), gradient.data());
    const backward_on_gpu<T, T, T> gpu(c, modifier);
    const giwa::stream s = new_stream();
    const giwa::status state = backward_of<HeadSize, HeadSize>(s, gpu.views(), mask, modifier, gpu.call_options());
    if (!state.ok()) return giwa::format_status(state).c_str();
    gpu.read_back();
    fault = judge(c, a);
    const std::vector<G> got = gradient.to_host();
    if (round == 1 && !(adds && b.any_order) && !same_bits(first, got)) fault += " other bits in the second call";
    first = got;
    float largest = 0, worst = 0;
    int64 zeros = 0;
    for (const float x : expected) largest = std::max(largest, std::abs(x));
    for (std::size_t i = 0; i < count; ++i) {
      const int64 key = static_cast<int64>(i) % b.keys, query = static_cast<int64>(i) / b.keys % b.queries;
      const float x = giwa::convert<float>{}(got[i]);
      const bool past = !b.k_used.empty() && b.biases == b.batch &&
                        key >= b.k_used[i / static_cast<std::size_t>(b.bias_heads * b.queries * b.keys)];
      if (kept(query, key) && !past) {
        const float error = std::abs(x - expected[i]);
        worst = error <= worst ? worst : error;  // NaN too
      } else if (x == 0) {
        ++zeros;
      } else if (!(x == untouched)) {
        fault += " a masked pair has a gradient";
        break;
      }
    }
    if (masked != nullptr) *masked = zeros;
    const float limit = largest * (std::is_same_v<T, fp16> ? 4e-3f : 3e-2f);
    if (!(worst <= limit))
      fault += " bias gradient: error " + std::to_string(worst) + ", largest " + std::to_string(largest);
  }
  return fault;
}

bool on_hopper() { return giwa::detail::path_here().value == giwa::attention_path::sm90; }

}  // namespace

TEST_CASE("the gradient of a bias in the type of q is stored by tiles") {
  CHECK(fault_of<128, fp16, fp16, false>({}, giwa::full{}) == "");
  int64 zeros = 0;
  CHECK(fault_of<128, fp16, fp16, false>({}, causal::bottom_right, &zeros) == "");
  if (on_hopper()) CHECK(zeros > 0);  // the kernel of all gradients writes whole tiles
  CHECK(fault_of<128, fp16, fp16, false>({.batch = 1, .biases = 1, .hostile = true}, causal::bottom_right) == "");
  CHECK(fault_of<128, fp16, fp16, false>({.least_workspace = true}, giwa::full{}) == "");
  CHECK(fault_of<128, fp16, fp16, false>({.queries = 70, .keys = 90}, giwa::full{}) ==
        "");  // rows that TMA does not store
  CHECK(fault_of<128, fp16, fp16, false>({.any_order = true}, giwa::full{}) == "");
  CHECK(fault_of<128, fp16, fp16, false>({.heads = 4, .queries = 1100, .keys = 136, .bias_heads = 4, .any_order = true},
                                         giwa::full{}) == "");
  CHECK(fault_of<128, fp16, fp16, false>({.k_used = {264, 131}}, giwa::full{}) == "");
#if !defined(GIWA_TEST_FEW_SIZES)
  CHECK(fault_of<64, bf16, bf16, false>({}, giwa::full{}) == "");
  CHECK(fault_of<64, bf16, bf16, false>({.queries = 520, .keys = 520, .hostile = true}, causal::bottom_right, &zeros) ==
        "");
  if (on_hopper()) CHECK(zeros > 0);
  CHECK(fault_of<32, fp16, fp16, true>({.kv_heads = 2, .hostile = true},
                                       causal::bottom_right & giwa::sliding_window{40}) == "");
  CHECK(fault_of<96, bf16, bf16, true>({.split_heads = true}, giwa::full{}) == "");
#endif
}

#if !defined(GIWA_TEST_FEW_SIZES)
TEST_CASE("the gradient of a bias in fp32 is added, where sequences or heads share it in any order") {
  for (const int64 biases : {2, 1})
    for (const int64 heads : {2, 1})
      for (const bool any : {true, false}) {
        const bias_options o{.biases = biases, .bias_heads = heads, .any_order = any};
        CHECK(fault_of<128, fp16, float, false>(o, giwa::full{}) == "");
        CHECK(fault_of<64, fp16, float, true>(o, causal::bottom_right) == "");
      }
  CHECK(fault_of<32, bf16, float, true>(
            {.batch = 5, .queries = 96, .keys = 96, .biases = 1, .any_order = true, .hostile = true},
            causal::bottom_right) == "");
  CHECK(fault_of<64, fp16, float, true>({.batch = 3, .biases = 1, .any_order = true, .k_used = {264, 70, 131}},
                                        giwa::full{}) == "");
}
#endif
