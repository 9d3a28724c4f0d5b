// SPDX-License-Identifier: MIT
// Rows appended to caches of 4-bit and of 8-bit integers: the first are the second, limited to 7.
#ifndef GIWA_TEST_HOST_ATTENTION_APPEND_PAIRS_HPP
#define GIWA_TEST_HOST_ATTENTION_APPEND_PAIRS_HPP

#include <giwa/attention/call/append.hpp>
#include <giwa/host.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "support/attention.hpp"

namespace giwa_test {

/// New rows and scales, and caches with as many bytes as needed of either type. k has a scale for each key, v one for each head.
template <class T>
struct append_pairs {
  static constexpr int64 batch = 2, rows = 5, heads = 3, size = 64, keys = 11;
  std::vector<T> k_new, v_new;
  std::vector<float> k_scales, v_scales;
  std::vector<giwa::int4_pair> k4, v4;
  std::vector<giwa::int8_code> k8, v8;

  append_pairs()
      : k4(batch * keys * heads * size / 2, giwa::int4_pair::from_bits(0x5a)),
        v4(k4),
        k8(batch * keys * heads * size, giwa::int8_code::from_bits(3)),
        v8(k8) {
    random_sequence random(5);
    const auto number = [&] { return static_cast<float>(random.below(2001) - 1000) / 100; };
    for (int64 i = 0; i < batch * rows * heads * size; ++i) {
      k_new.push_back(giwa::convert<T>{}(number()));
      v_new.push_back(giwa::convert<T>{}(i % 97 == 0 ? NAN : i % 89 == 0 ? -INFINITY : number()));
    }
    for (int64 i = 0; i < batch * keys * heads; ++i) k_scales.push_back(0.5f + static_cast<float>(i % 7) * 0.37f);
    for (int64 i = 0; i < batch * heads; ++i) v_scales.push_back(1 + static_cast<float>(i) * 0.13f);
  }

  /// Appends from and to memory at these pointers.
  template <class Where, class Code, class Rotary>
  static giwa::status call(const Where& where, const T* k_from, const T* v_from, const float* of_k, const float* of_v,
                           Code* k, Code* v, const Rotary& rotary) {
    const giwa::index<4> from{batch, rows, heads, size}, to{batch, keys, heads, size / giwa::detail::codes_of<Code>};
    giwa::kv_cache<Code> cache{.k = {k, to}, .v = {v, to}};
    cache.scales = {.k = {of_k, {batch, keys, heads}}, .v = {of_v, {batch, 1, heads}}};
    return giwa::append_to_cache(where, cache, tensor_view<const T, 4>(k_from, from),
                                 tensor_view<const T, 4>(v_from, from), rotary);
  }

  /// The same into pairs, with scales that the call finds and writes, (batch, keys, heads).
  template <class Where>
  static giwa::status call_with_scales(const Where& where, const T* k_from, const T* v_from, float* of_k, float* of_v,
                                       giwa::int4_pair* k, giwa::int4_pair* v) {
    const giwa::index<4> from{batch, rows, heads, size}, to{batch, keys, heads, size / 2};
    const giwa::kv_cache<giwa::int4_pair> cache{.k = {k, to}, .v = {v, to}};
    giwa::append_options<T> options;
    options.k_scales = {of_k, {batch, keys, heads}}, options.v_scales = {of_v, {batch, keys, heads}};
    return giwa::append_to_cache(where, cache, tensor_view<const T, 4>(k_from, from),
                                 tensor_view<const T, 4>(v_from, from), giwa::no_rotary{}, options);
  }
  /// What is wrong with k and its scales then, or "".
  std::string fault_of_scales(const std::vector<giwa::int4_pair>& k, const std::vector<float>& of_k) const {
    std::vector<giwa::int4_pair> want(k_new.size() / 2);
    std::vector<float> scales(k_new.size() / size);
    giwa::throw_if_failed(giwa::quantize(giwa::host, tensor_view<const T, 4>(k_new.data(), {batch, rows, heads, size}),
                                         tensor_view<giwa::int4_pair, 4>(want.data(), {batch, rows, heads, size / 2}),
                                         tensor_view<float, 3>(scales.data(), {batch, rows, heads})));
    constexpr std::size_t row = heads * size / 2;
    for (std::size_t i = 0; i < k.size(); ++i) {
      const std::size_t b = i / (keys * row), key = i / row % keys, at = i % row;
      if (key < keys - rows) continue;
      const std::size_t of_row = b * rows + key - (keys - rows);
      if (k[i].bits() != want[of_row * row + at].bits() ||
          of_k[i / (size / 2)] != scales[of_row * heads + at / (size / 2)])
        return "pair " + std::to_string(i);
    }
    return "";
  }

  /// What is wrong, or "".
  std::string fault() const {
    const auto differ = [](const auto& pairs, const auto& codes) -> std::string {
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const std::size_t key = i / (heads * size) % keys;
        const float have = pairs[i / 2][static_cast<int>(i % 2)];
        const float want = key < keys - rows ? (i % 2 == 0 ? -6.0f : 5.0f)  // what was there: 0x5a
                                             : std::clamp(static_cast<float>(codes[i]), -7.0f, 7.0f);
        if (have != want)
          return std::to_string(i) + ": " + std::to_string(have) + " instead of " + std::to_string(want);
      }
      return "";
    };
    const std::string of_k = differ(k4, k8), of_v = differ(v4, v8);
    return !of_k.empty() ? "k " + of_k : !of_v.empty() ? "v " + of_v : "";
  }
};

}  // namespace giwa_test

#endif
