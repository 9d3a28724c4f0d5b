// SPDX-License-Identifier: MIT
// The gradient of a bias against the reference: a call of any element type and mask, of sizes that are shared, with hostile numbers,
// and the bits of a second call.
#ifndef GIWA_TEST_GPU_ATTENTION_BIAS_CASE_CUH
#define GIWA_TEST_GPU_ATTENTION_BIAS_CASE_CUH

#include <giwa/attention_backward.cuh>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "gpu/attention/backward_gpu.cuh"
#include "support/another_gpu.hpp"

namespace giwa_test::attention {

using giwa::bf16;
using giwa::causal;
using giwa::fp16;

constexpr float untouched = 7;  // in the gradient before the call

struct bias_options {
  int64 batch = 2, heads = 2, kv_heads = 1, queries = 136, keys = 200;
  int64 biases = 2, bias_heads = 2;  // the sizes of the bias: those above, or 1
  bool any_order = false, split_heads = false, least_workspace = false, hostile = false;
  bool poisoned = false;  // in the second call the last key and a row of dout are NaN
  int processors = 0;     // multiprocessors that the call finds; 0: all
  std::vector<int> k_used{};
};

template <class T>
std::vector<T> drawn(std::size_t n, uint64 seed) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i)
    values[i] = giwa::convert<T>{}(static_cast<float>(normal_at(giwa::philox(seed), i)));
  return values;
}

/// What comes before bias_with_gradient.
enum class before { nothing, bias_of_keys, softcap };

/// A call with a bias that has a gradient: empty, or what is wrong with its gradients. `masked`: how many elements of masked pairs
/// the call has set to 0.
template <int HeadSize, class T, class G, before Before, class Mask>
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
    if constexpr (Before == before::bias_of_keys)
      return giwa::then(giwa::bias(tensor_view<const T, 4>(keys, key_shape)), pair);
    else if constexpr (Before == before::softcap)
      return giwa::then(giwa::softcap{3}, pair);
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
    // What is shared is added to in any order; in fixed order the first one stores.
    const bool adds = std::is_same_v<G, float> && b.any_order && (b.biases < b.batch || b.bias_heads < b.heads);
    const gpu_array<G> gradient(std::vector<G>(count, giwa::convert<G>{}(adds ? 0 : untouched)));
    c.clear_outputs();
    const bool poisons = b.poisoned && round == 1;
    if (poisons) {
      const auto k = c.of.k.view();
      const auto dout = c.dout.view();
      for (int64 batch = 0; batch < b.batch; ++batch)
        for (int64 i = 0; i < HeadSize; ++i) {
          for (int64 head = 0; head < b.kv_heads; ++head) k(batch, b.keys - 1, head, i) = giwa::convert<T>{}(NAN);
          for (int64 head = 0; head < b.heads; ++head) dout(batch, 5, head, i) = giwa::convert<T>{}(NAN);
        }
    }
    const auto modifier = score(bias.data(), keys.data(), gradient.data());
    const backward_on_gpu<T, T, T> gpu(c, modifier);
    const giwa::stream s = new_stream();
    processors_of_test = b.processors;
    const giwa::status state = backward_of<HeadSize, HeadSize>(s, gpu.views(), mask, modifier, gpu.call_options());
    processors_of_test = 0;
    if (!state.ok()) return giwa::format_status(state).c_str();
    gpu.read_back();
    const std::vector<G> got = gradient.to_host();
    if (poisons) {
      for (std::size_t i = 0; i < count && fault.empty(); ++i) {
        const int64 key = static_cast<int64>(i) % b.keys, query = static_cast<int64>(i) / b.keys % b.queries;
        const bool is_bad = kept(query, key) && (query == 5 || key == b.keys - 1);
        if (is_bad != std::isnan(giwa::convert<float>{}(got[i])) ||
            (!is_bad && std::memcmp(&got[i], &first[i], sizeof(G)) != 0))
          fault = "NaN reaches other elements, or not its own: query " + std::to_string(query) + ", key " +
                  std::to_string(key);
      }
      break;
    }
    fault = judge(c, a);
    if (round == 1 && !adds && !same_bits(first, got)) fault += " other bits in the second call";
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

inline bool on_hopper() { return giwa::detail::path_here().value == giwa::attention_path::sm90; }

}  // namespace giwa_test::attention

#endif
