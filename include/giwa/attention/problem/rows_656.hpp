// SPDX-License-Identifier: MIT
// Latent rows of 656 bytes: e4m3 with scales, and bf16.
#ifndef GIWA_ATTENTION_PROBLEM_ROWS_656_HPP
#define GIWA_ATTENTION_PROBLEM_ROWS_656_HPP

#include <giwa/attention/problem/traits.hpp>

namespace giwa::inline GIWA_ABI {

/// A byte of a latent row of 656 bytes, as FlashMLA's FP8 cache has it: 512 numbers of e4m3, 4 scales of fp32 for 128 of them each,
/// 64 numbers of bf16. A cache of such rows has k of (sequences or pages, keys, kv heads, 656) and no v: the values are the first 512
/// numbers. A number of e4m3 stands for its product with its scale, rounded to fp32.
struct rows_656 {
  static constexpr int row_bytes = 656;    ///< of a row
  static constexpr int codes = 512;        ///< numbers of e4m3
  static constexpr int group = 128;        ///< numbers that share a scale
  static constexpr int rest = 64;          ///< numbers of bf16
  static constexpr int scales_at = 512;    ///< bytes before the scales
  static constexpr int rest_at = 528;      ///< bytes before the numbers of bf16
  static constexpr int head_size = 576;    ///< of k
  static constexpr int head_size_v = 512;  ///< of v
  unsigned char byte;                      ///< the byte

  /// Returns number i of a row.
  GIWA_HOST_DEVICE static float number_at(const rows_656* row, int64 i) {
    if (i >= codes) return __builtin_bit_cast(float, word(row + rest_at + 2 * (i - codes), 2) << 16);
    return static_cast<float>(e4m3::from_bits(row[i].byte)) *
           __builtin_bit_cast(float, word(row + scales_at + 4 * (i / group), 4));
  }
  /// Returns how many numbers so many bytes of a row have: those of k, or those of v, which end after the scales; -1 for other bytes.
  GIWA_HOST_DEVICE static constexpr int64 numbers_in(int64 bytes) {
    return bytes == row_bytes ? head_size : bytes == rest_at ? head_size_v : -1;
  }

 private:
  GIWA_HOST_DEVICE static constexpr uint32 word(const rows_656* from, int count) {
    uint32 bits = 0;
    for (int i = 0; i < count; ++i) bits |= uint32{from[i].byte} << 8 * i;
    return bits;
  }
};

namespace detail {

template <>
struct element_traits<rows_656> {
  static constexpr int bytes = 1;
  static constexpr bool on_tensor_cores = false, is_split = false, has_scales = false, reads_v_as_it_lies = true;
};

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
