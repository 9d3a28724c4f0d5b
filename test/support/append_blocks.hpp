// SPDX-License-Identifier: MIT
// New rows for append_to_cache, and what it must make of them in blocks of q8_0 and q4_0.
#ifndef GIWA_TEST_SUPPORT_APPEND_BLOCKS_HPP
#define GIWA_TEST_SUPPORT_APPEND_BLOCKS_HPP

#include <giwa/host.hpp>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/random.hpp"

namespace giwa_test {

/// Three sequences with three new rows each, which are keys 2 to 4 of pages of 4 keys; row 1 of sequence 1 is past the pages.
template <class T, class Element>
struct new_blocks {
  static constexpr int sequences = 3, added = 3, heads = 2, q_heads = 3, pages = 7, page = 4, keys = 8;
  static constexpr int size = 96, size_v = 64, bytes = size / 32 * Element::block_bytes,
                       bytes_v = size_v / 32 * Element::block_bytes;
  std::vector<T> k_new, v_new, q, q_to;
  std::vector<Element> k, v;
  std::vector<int> table{4, 1, 0, 5, 3, 2}, lengths{5, 9, 5};

  new_blocks()
      : k_new(sequences * added * heads * size),
        v_new(sequences * added * heads * size_v),
        q(sequences * added * q_heads * size),
        q_to(q),
        k(pages * page * heads * bytes),
        v(pages * page * heads * bytes_v) {
    random_sequence random(9);
    for (auto* x : {&k_new, &v_new, &q})
      for (T& y : *x)
        y = giwa::convert<T>{}((static_cast<float>(random.below(2001)) - 1000.f) *
                               (random.below(50) == 0 ? 0.03f : 0.003f));
    std::fill_n(v_new.begin(), 32, giwa::convert<T>{}(0.f));
    for (int i = 0; i < 8; ++i) v_new[static_cast<std::size_t>(64 + i)] = giwa::convert<T>{}(i % 2 == 0 ? 4.f : -4.f);
    v_new[100] = giwa::convert<T>{}(HUGE_VALF), v_new[101] = giwa::convert<T>{}(-HUGE_VALF);  // not in the scale
    v_new[102] = giwa::convert<T>{}(NAN);
    for (std::size_t i = 128; i < 160; ++i) v_new[i] = giwa::convert<T>{}(giwa::convert<float>{}(v_new[i]) * 0x1p-20f);
    std::memset(static_cast<void*>(k.data()), 0xee, k.size()),
        std::memset(static_cast<void*>(v.data()), 0xee, v.size());
  }
  template <class Keys, class Elements>
  static giwa::kv_cache<Elements> cache_at(Elements* of_k, Elements* of_v, const Keys* table_at, const int* counts) {
    constexpr bool blocks = sizeof(Elements) == 1;
    const int width = blocks ? bytes : size, width_v = blocks ? bytes_v : size_v;
    return {.k = {of_k, {pages, page, heads, width}},
            .v = {of_v, {pages, page, heads, width_v}},
            .pages = {.indices = table_at, .stride = 2, .most = 2},
            .lengths = counts,
            .sequences = sequences};
  }
  static giwa::tensor_view<T, 4> rows_at(T* at, int of_heads, int width) {
    return {at, {sequences, added, of_heads, width}};
  }
  /// The call, with pointers to memory of the place.
  template <class Where, class Rotary>
  static giwa::status call(const Where& where, T* of_k, T* of_v, T* of_q, T* to, Element* cache_k, Element* cache_v,
                           const int* table_at, const int* counts, const Rotary& rotary) {
    giwa::append_options<T> options;
    options.q = rows_at(of_q, q_heads, size), options.q_to = rows_at(to, q_heads, size);
    return giwa::append_to_cache(where, cache_at(cache_k, cache_v, table_at, counts), rows_at(of_k, heads, size),
                                 rows_at(of_v, heads, size_v), rotary, options);
  }
  template <class Rotary>
  giwa::status call_on_host(const Rotary& rotary) {
    return call(giwa::host, k_new.data(), v_new.data(), q.data(), q_to.data(), k.data(), v.data(), table.data(),
                lengths.data(), rotary);
  }

  /// Empty, or what is wrong after the call. Numbers before they are rounded are those that a cache of fp32 gets.
  template <class Rotary>
  std::string fault(const Rotary& rotary) const {
    const auto in_fp32 = [](const std::vector<T>& x) {
      std::vector<float> to;
      for (const T& y : x) to.push_back(giwa::convert<float>{}(y));
      return to;
    };
    std::vector<float> plain_k(pages * page * heads * size, 1e9f), plain_v(pages * page * heads * size_v, 1e9f);
    std::vector<float> wide_k = in_fp32(k_new), wide_v = in_fp32(v_new);
    const auto like = cache_at(plain_k.data(), plain_v.data(), table.data(), lengths.data());
    if (!giwa::append_to_cache(giwa::host, like,
                               giwa::tensor_view<float, 4>(wide_k.data(), {sequences, added, heads, size}),
                               giwa::tensor_view<float, 4>(wide_v.data(), {sequences, added, heads, size_v}), rotary)
             .ok())
      return "the cache of fp32 was refused";
    const auto of = [](const std::vector<Element>& got, const std::vector<float>& want, int width) -> std::string {
      const int blocks = width / 32;
      for (std::size_t b = 0; b < want.size() / 32; ++b) {
        const Element* const block =
            got.data() +
            b / static_cast<std::size_t>(blocks) * static_cast<std::size_t>(blocks * Element::block_bytes) +
            b % static_cast<std::size_t>(blocks) * Element::block_bytes;
        const float* const x = want.data() + 32 * b;
        const std::string at = "block " + std::to_string(b) + ": ";
        if (x[0] == 1e9f) {  // not written
          for (int i = 0; i < Element::block_bytes; ++i)
            if (block[i].byte != 0xee) return at + "written";
          continue;
        }
        float largest = 0;
        for (int i = 0; i < 32; ++i)
          if (std::isfinite(x[i]) && std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
        unsigned short bits = 0;
        std::memcpy(&bits, block, 2);
        const float scale = giwa::convert<float>{}(__builtin_bit_cast(giwa::fp16, bits));
        const float exact = Element::block_bytes == 34 ? std::fabs(largest) / 127 : largest / -8;
        if (!(std::fabs(scale - exact) <= std::fabs(exact) * 0x1.01p-11f + 0x1p-25f) && std::fabs(exact) >= 0x1p-24f)
          return at + "scale " + std::to_string(scale) + " for " + std::to_string(exact);
        const float most = Element::block_bytes == 34 ? 127 : 7, least = Element::block_bytes == 34 ? -127 : -8;
        for (int i = 0; i < 32; ++i) {
          const float got_number = Element::number_at(block, i);
          const float code = std::isnan(x[i]) ? 0.f : std::fmin(most, std::fmax(least, x[i] / scale));
          if (!(std::fabs(got_number - code * scale) <= 0.5001f * std::fabs(scale)))
            return at + "number " + std::to_string(i) + " is " + std::to_string(got_number) + " for " +
                   std::to_string(x[i]) + ", scale " + std::to_string(scale);
        }
      }
      return "";
    };
    const std::string of_k = of(k, plain_k, size), of_v = of(v, plain_v, size_v);
    return !of_k.empty() ? "k, " + of_k : !of_v.empty() ? "v, " + of_v : "";
  }
};

}  // namespace giwa_test

#endif
