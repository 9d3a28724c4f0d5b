// SPDX-License-Identifier: MIT
// New latent rows for append_to_cache, and what it must make of them in rows of 656 bytes.
#ifndef GIWA_TEST_SUPPORT_APPEND_ROWS_HPP
#define GIWA_TEST_SUPPORT_APPEND_ROWS_HPP

#include <giwa/host.hpp>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/random.hpp"

namespace giwa_test {

/// Three sequences with two new rows each, which are keys 3 and 4 of pages of 4 keys.
template <class T>
struct new_rows {
  static constexpr int sequences = 3, added = 2, size = 576;
  std::vector<T> values;
  std::vector<giwa::rows_656> bytes;
  std::vector<int> table{4, 1, 0, 5, 3, 2}, lengths{5, 5, 5};
  int offset;

  explicit new_rows(int first) : values(sequences * added * size + 1), bytes(6 * 4 * 656 + 16), offset(first) {
    random_sequence random(9);
    for (T& x : values) x = giwa::convert<T>{}((static_cast<float>(random.below(2001)) - 1000.f) * 0.003f);
    values[static_cast<std::size_t>(offset + 5)] = giwa::convert<T>{}(HUGE_VALF);  // not finite: not in the scale
    for (int i = 128; i < 256; ++i) values[static_cast<std::size_t>(offset + i)] = giwa::convert<T>{}(0.f);
    std::memset(static_cast<void*>(bytes.data()), 0xee, bytes.size());
  }
  giwa::rows_656* first_byte() { return bytes.data() + (16 - reinterpret_cast<std::size_t>(bytes.data()) % 16) % 16; }
  giwa::tensor_view<T, 4> k() { return {values.data() + offset, {sequences, added, 1, size}}; }
  giwa::kv_cache<giwa::rows_656> cache() { return cache_at(first_byte(), table.data(), lengths.data()); }
  static giwa::kv_cache<giwa::rows_656> cache_at(giwa::rows_656* at, const int* pages, const int* counts) {
    return {.k = {at, {6, 4, 1, 656}},
            .pages = {.indices = pages, .stride = 2, .most = 2},
            .lengths = counts,
            .sequences = sequences};
  }

  /// Empty, or what is wrong with the rows. The last numbers are those that a cache of bf16 gets.
  template <class Rotary>
  std::string fault(const Rotary& rotary) {
    std::vector<giwa::bf16> plain(6 * 4 * size), new_ones;
    for (int i = 0; i < sequences * added * size; ++i)
      new_ones.push_back(giwa::convert<giwa::bf16>{}(values[static_cast<std::size_t>(offset + i)]));
    const giwa::kv_cache<giwa::bf16> like{.k = {plain.data(), {6, 4, 1, size}},
                                          .v = {},
                                          .pages = cache().pages,
                                          .lengths = lengths.data(),
                                          .sequences = sequences};
    const giwa::tensor_view<giwa::bf16, 4> added_rows(new_ones.data(), {sequences, added, 1, size});
    if (!giwa::append_to_cache(giwa::host, like, added_rows, giwa::tensor_view<giwa::bf16, 4>(), rotary).ok())
      return "the cache of bf16 was refused";
    const auto rows = cache().k;
    for (int b = 0; b < sequences; ++b)
      for (int i = 0; i < added; ++i) {
        const int key = 3 + i, page = table[static_cast<std::size_t>(2 * b + key / 4)];
        const giwa::rows_656* const row = &rows(page, key % 4, 0, 0);
        for (int d = 0; d < size; ++d) {
          const float got = giwa::rows_656::number_at(row, d), x = giwa::convert<float>{}(like.k(page, key % 4, 0, d));
          float scale = 0;
          if (d < 512) std::memcpy(&scale, row + 512 + d / 128 * 4, 4);
          const float limited = std::isinf(x) ? std::copysign(448 * scale, x) : x;
          const float error = d >= 512 ? 0.f : std::fmax(std::fabs(limited) / 16, scale / 512);
          if (!(std::fabs(got - limited) <= error * 1.0001f))
            return "row " + std::to_string(b) + " " + std::to_string(i) + ", number " + std::to_string(d) + ": " +
                   std::to_string(got) + " for " + std::to_string(x);
        }
      }
    return "";
  }
};

}  // namespace giwa_test

#endif
