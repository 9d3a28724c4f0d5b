// SPDX-License-Identifier: MIT
// Problems of attention in e4m3 for the tests of the CPU and of a GPU: hostile numbers, and the same numbers in fp32.
#ifndef GIWA_TEST_HOST_ATTENTION_E4M3_CASES_HPP
#define GIWA_TEST_HOST_ATTENTION_E4M3_CASES_HPP

#include <giwa/attention/reference/reference.hpp>

#include "support/attention.hpp"

namespace giwa_test {

using giwa::e4m3;

inline e4m3 e4m3_of(int bits) { return e4m3::from_bits(static_cast<unsigned char>(bits)); }

/// A case of so many heads of 64, 72 or 128, with lengths that are no multiples of a tile.
inline case_options e4m3_options(int64 queries, int64 keys, int64 head_size) {
  case_options c;
  c.batch = 2, c.heads = 4, c.kv_heads = 2, c.seq_q = queries, c.seq_k = keys;
  c.head_size = c.head_size_v = head_size;
  c.align = giwa::alignment::bottom_right;
  c.seed = static_cast<uint64>(queries + 7 * keys);
  return c;
}

/// What is done to a case.
enum class e4m3_numbers : int {
  normal,
  largest,    // 448 and -448, in q, k and v
  subnormal,  // multiples of 2^-9 below 2^-6, and both zeros
  all_bits,   // every number but NaN
  count
};
template <class O>
void change(attention_case<e4m3, O>& c, e4m3_numbers numbers) {
  if (numbers == e4m3_numbers::normal) return;
  const giwa::philox random(c.options.seed, 9);
  uint64 i = 0;
  for (auto* b : {&c.q, &c.k, &c.v})
    b->for_each([&](std::size_t at) {
      const auto word = static_cast<int>(random(i++).word[0] >> 8);
      const int sign = word & 0x80, magnitude = numbers == e4m3_numbers::largest     ? 0x7e
                                                : numbers == e4m3_numbers::subnormal ? word & 7
                                                                                     : (word & 0x7f) % 0x7f;
      b->memory[at] = e4m3_of(sign | magnitude);
    });
  // Scores of some units, whatever the numbers are.
  const double size = numbers == e4m3_numbers::largest ? 448 : numbers == e4m3_numbers::subnormal ? 0x1p-7 : 100;
  c.options.scale = giwa::attention_scale(1 / (size * size * std::sqrt(static_cast<double>(c.options.head_size))));
}

/// The same problem in fp32: e4m3 is widened exactly, so that the same arithmetic gives the same bits.
template <class O>
attention_case<float, O> widened(const attention_case<e4m3, O>& c) {
  attention_case<float, O> wide(c.options);
  const auto widen = [](const case_buffer<e4m3, 4>& from, case_buffer<float, 4>& to) {
    for (std::size_t i = 0; i < from.memory.size(); ++i) to.memory[i] = giwa::convert<float>{}(from.memory[i]);
  };
  widen(c.q, wide.q), widen(c.k, wide.k), widen(c.v, wide.v);
  return wide;
}

}  // namespace giwa_test

#endif
