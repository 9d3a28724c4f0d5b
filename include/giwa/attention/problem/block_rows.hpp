// SPDX-License-Identifier: MIT
// Rows of blocks: q8_0 and q4_0.
#ifndef GIWA_ATTENTION_PROBLEM_BLOCK_ROWS_HPP
#define GIWA_ATTENTION_PROBLEM_BLOCK_ROWS_HPP

#include <giwa/attention/problem/traits.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// A byte of a row of blocks of 32 numbers: a scale of fp16, then integers of `Bits` bits.
template <int Bits>
struct block_byte {
  static constexpr int block = 32, block_bytes = 2 + block * Bits / 8;
  unsigned char byte;

  GIWA_HOST_DEVICE static constexpr int64 numbers_in(int64 bytes) {
    return bytes % block_bytes == 0 ? bytes / block_bytes * block : -1;
  }
  /// A number divided by the scale as the bits of an integer: to the nearest, ties to even, limited to 127, or to -8 and 7; NaN is 0.
  GIWA_HOST_DEVICE static constexpr unsigned char code(float x) {
    if constexpr (Bits == 8) return int8_code(x).bits();
    return static_cast<unsigned char>((int8_code(x < -8 ? -8.f : x > 7 ? 7.f : x).bits() + 8) & 15);
  }

 protected:
  /// Number i of a row: the product of a scale and an integer, exact in fp32.
  GIWA_HOST_DEVICE static float number(const block_byte* row, int64 i) {
    const block_byte* const from = row + i / block * block_bytes;
    const int at = static_cast<int>(i % block);
    const auto scale = static_cast<unsigned short>(from[0].byte | from[1].byte << 8);
    const int code =
        Bits == 8 ? static_cast<signed char>(from[2 + at].byte) : (from[2 + at % 16].byte >> (at / 16 * 4) & 15) - 8;
    return convert<float>{}(__builtin_bit_cast(fp16, scale)) * static_cast<float>(code);
  }
};

}  // namespace detail

/// A byte of a row of blocks of 34 bytes, as llama.cpp's q8_0: a scale of fp16 and 32 integers of 8 bits. Rows of a cache have
/// head size / 32 * 34 bytes, and the cache has no other scales.
struct q8_0 : detail::block_byte<8> {
  /// Returns number i of a row.
  GIWA_HOST_DEVICE static float number_at(const q8_0* row, int64 i) { return number(row, i); }
};
/// The same of blocks of 18 bytes, as q4_0: a scale of fp16 and 32 integers of 4 bits plus 8, number i in the low and number i + 16 in the
/// high bits of a byte. Rows have head size / 32 * 18 bytes.
struct q4_0 : detail::block_byte<4> {
  /// Returns number i of a row.
  GIWA_HOST_DEVICE static float number_at(const q4_0* row, int64 i) { return number(row, i); }
};

namespace detail {

template <int Bits>
struct element_traits<block_byte<Bits>> {
  static constexpr int bytes = 1;
  static constexpr bool on_tensor_cores = false, is_split = false, has_scales = false, reads_v_as_it_lies = true;
};
/// Elements that are bytes of rows of blocks.
template <class T>
concept block_format = row_format<T> && requires { T::block_bytes; };

template <>
struct element_traits<q8_0> : element_traits<block_byte<8>> {};
template <>
struct element_traits<q4_0> : element_traits<block_byte<4>> {};

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
