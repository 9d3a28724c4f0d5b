// SPDX-License-Identifier: MIT
// The part of a head that a thread appends: which elements, their rotation, rounding and writing.
#ifndef GIWA_ATTENTION_APPEND_APPEND_UNIT_HPP
#define GIWA_ATTENTION_APPEND_APPEND_UNIT_HPP

#include <giwa/attention/append/rotary.hpp>
#include <giwa/attention/problem/block_rows.hpp>
#include <giwa/attention/problem/rows_656.hpp>
#include <giwa/attention/quantize/codes.hpp>
#include <giwa/numeric/multiply_add.hpp>
#include <giwa/tile/element_run.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The two runs of `Count` elements of a head that a thread has; -1 for none. With whole runs neighbouring threads have
/// neighbouring runs, so that a warp reads and writes whole sectors.
struct append_unit {
  int first, second;  // columns
  int pair, step;     // numbers of the first pair, and of the pair halfway from there; -1: not rotated
};

/// Unit number `unit` of a head of `size` elements. Count is 1, or divides size and the columns where the rotated
/// elements begin, have their middle and end. Unit numbers past the head have no runs.
template <int Count>
GIWA_HOST_DEVICE constexpr append_unit append_unit_of(const rotary_layout& r, bool rotates, int size, int unit) {
  const int rotated = rotates ? r.size : 0, half = rotated / 2, units = half / Count, column = r.first + unit * Count;
  if (unit < units && r.interleaved)
    return Count == 1 ? append_unit{r.first + 2 * unit, r.first + 2 * unit + 1, unit, 0}
                      : append_unit{column, column + half, unit * Count / 2, half / 2};
  if (unit < units) return {column, column + half, unit * Count, Count / 2};
  const int runs = (size - rotated) / Count, middle = (runs + 1) / 2, run = unit - units;
  const auto column_of = [&](int i) { return i * Count < r.first ? i * Count : i * Count + rotated; };
  return {run < middle ? column_of(run) : -1, run < middle && run + middle < runs ? column_of(run + middle) : -1, -1,
          0};
}
/// How many units a head has.
template <int Count>
GIWA_HOST_DEVICE constexpr int append_units(const rotary_layout& r, bool rotates, int size) {
  const int rotated = rotates ? r.size : 0;
  return rotated / 2 / Count + ((size - rotated) / Count + 1) / 2;
}

/// Whether an embedding computes 4 neighbouring pairs at once: giwa's own types, and not those derived from them, which may
/// have another operator().
///@{
template <class Rotary>
inline constexpr bool has_fours = stdlib::same_as<Rotary, rotary_base>;
template <class T>
inline constexpr bool has_fours<rotary_table<T>> = true;
///@}

/// Rotates a pair.
GIWA_HOST_DEVICE inline void rotate_pair(const rotation& r, float& x, float& y) {
  const float old = x;
  x = fma_with_subnormals(x, r.cos, -fma_with_subnormals(y, r.sin, -0.0f));
  y = fma_with_subnormals(y, r.cos, fma_with_subnormals(old, r.sin, -0.0f));
}

/// Element `column` of a row, rotated and rounded once.
template <class To, class T, class Rotary>
GIWA_HOST_DEVICE To rotated_element_as(const T* row, int column, const Rotary& rotary, int64 position) {
  const rotary_layout& r = rotary;
  const int i = column - r.first, half = r.size / 2;
  if (i < 0 || i >= r.size) return convert<To>{}(row[column]);
  const bool second = r.interleaved ? i % 2 != 0 : i >= half;
  const int pair = r.interleaved ? i / 2 : second ? i - half : i, step = r.interleaved ? 1 : half;
  const T* const both = row + (second ? column - step : column);
  float x = convert<float>{}(both[0]), y = convert<float>{}(both[step]);
  rotate_pair(rotary(position, pair), x, y);
  return convert<To>{}(second ? y : x);
}
template <class T, class Rotary>
GIWA_HOST_DEVICE T rotated_element(const T* row, int column, const Rotary& rotary, int64 position) {
  return rotated_element_as<T>(row, column, rotary, position);
}

/// The rotations of the pairs of a unit.
template <int Count>
struct unit_rotations {
  float cos[stdlib::size_t{Count}], sin[stdlib::size_t{Count}];

  template <class Rotary>
  GIWA_HOST_DEVICE void fill(const Rotary& rotary, int64 position, const append_unit& unit) {
    constexpr int half = Count == 1 ? 1 : Count / 2;
    const auto set = [&](int i, const rotation& r) { cos[i] = r.cos, sin[i] = r.sin; };
    if constexpr (half == 4 && has_fours<Rotary>) {
      rotary.of_four_pairs(position, unit.pair, set);
      rotary.of_four_pairs(position, unit.pair + unit.step, [&](int i, const rotation& r) { set(half + i, r); });
    } else {
      GIWA_UNROLL
      for (int i = 0; i < Count; ++i) set(i, rotary(position, unit.pair + i / half * unit.step + i % half));
    }
  }
  /// Rotates pair i.
  GIWA_HOST_DEVICE void operator()(int i, float& x, float& y) const { rotate_pair({cos[i], sin[i]}, x, y); }
  /// Rotates a unit's two runs, one after the other in x. Pairs are across the runs, or neighbours.
  GIWA_HOST_DEVICE void rotate(float (&x)[stdlib::size_t{2 * Count}], bool neighbours) const {
    if (Count > 1 && neighbours) {
      GIWA_UNROLL
      for (int i = 0; i < Count; ++i) (*this)(i, x[2 * i], x[2 * i + 1]);
    } else {
      GIWA_UNROLL
      for (int i = 0; i < Count; ++i) (*this)(i, x[i], x[i + Count]);
    }
  }
};

/// Writes a unit of one head.
template <int Count, class T, class To>
GIWA_HOST_DEVICE void append_head(const element_run<T, Count> (&run)[2], const append_unit& unit, To* to,
                                  const scale_divisor& divide, const unit_rotations<Count>& rotations,
                                  bool neighbours) {
  if constexpr (stdlib::same_as<T, To>) {
    if (unit.pair < 0) {  // the bits as they are
      run[0].write(to + unit.first);
      if (unit.second >= 0) run[1].write(to + unit.second);
      return;
    }
  }
  float x[stdlib::size_t{2 * Count}];
  GIWA_UNROLL
  for (int i = 0; i < 2 * Count; ++i) x[i] = convert<float>{}(run[i / Count].get(i % Count));
  if (unit.pair >= 0) rotations.rotate(x, neighbours);
  const auto by_scale = [&](int, float y) { return divide(y); };
  round_run<To, Count>(to + unit.first / codes_of<To>, x, by_scale);
  if (unit.second >= 0) round_run<To, Count>(to + unit.second / codes_of<To>, x + Count, by_scale);
}

/// Rounds a run of numbers to bf16 among the last ones of a row of 656 bytes.
template <int Count>
GIWA_HOST_DEVICE void append_rest(const float* x, int column, rows_656* row) {
  rows_656* const to = row + rows_656::rest_at + 2 * (column - rows_656::codes);
  round_run<bf16, Count>(reinterpret_cast<bf16*>(to), x, [](int, float y) { return y; });
}
/// Writes 128 numbers of such a row, and their scale.
template <int Count, class T>
GIWA_HOST_DEVICE void append_group(const T* from, int column, rows_656* row) {
  using rows = rows_656;
  element_run<T, Count> run;
  float largest = 0;
  GIWA_NO_UNROLL
  for (int i = 0; i < rows::group; i += Count) largest = larger_finite(largest, run.read(from + column + i));
  const float scale = scale_of<e4m3>(largest);
  const scale_divisor divide = scale_divisor::of(scale);
  GIWA_NO_UNROLL
  for (int i = 0; i < rows::group; i += Count) {
    run = run.read(from + column + i);
    float x[stdlib::size_t{Count}];
    GIWA_UNROLL
    for (int j = 0; j < Count; ++j) x[j] = convert<float>{}(run.get(j));
    round_run<e4m3, Count>(reinterpret_cast<e4m3*>(row + column + i), x, [&](int, float y) { return divide(y); });
  }
  *reinterpret_cast<float*>(row + rows::scales_at + 4 * (column / rows::group)) = scale;
}
/// Writes what a thread has of such a row: the runs of a unit that are numbers of bf16, and the groups that begin with one.
template <int Count, class T>
GIWA_HOST_DEVICE void append_head(const T* from, const append_unit& unit, rows_656* to,
                                  const unit_rotations<Count>& rotations, bool neighbours) {
  float x[stdlib::size_t{2 * Count}] = {};
  const int columns[2] = {unit.first, unit.second};
  GIWA_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (columns[r] < 0) continue;
    element_run<T, Count> run;
    run = run.read(from + columns[r]);
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) x[r * Count + i] = convert<float>{}(run.get(i));
  }
  if (unit.pair >= 0) rotations.rotate(x, neighbours);
  GIWA_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (columns[r] >= rows_656::codes)
      append_rest<Count>(x + r * Count, columns[r], to);
    else if (columns[r] >= 0 && columns[r] % rows_656::group == 0)
      append_group<Count>(from, columns[r], to);
  }
}

/// Writes a block of a row of blocks, whose number i is number(i). The scale is that of the finite number of the largest magnitude, in
/// fp16, where it is 2^-24 to 65504: of 4 bits it has the other sign, so that this number is -8.
template <int Bits, class Number>
GIWA_HOST_DEVICE void append_block(block_byte<Bits>* to, const Number& number) {
  using block = block_byte<Bits>;
  float largest = 0;
  GIWA_NO_UNROLL
  for (int i = 0; i < block::block; ++i) {
    const float x = number(i);
    if (larger_finite(arch::magnitude(largest), x) > arch::magnitude(largest)) largest = x;
  }
  float scale = fma_with_subnormals(arch::magnitude(largest), Bits == 8 ? 1 / 127.f : 1 / 8.f, -0.0f);
  scale = scale < 0x1p-24f ? 0x1p-24f : scale > 65504.f ? 65504.f : scale;
  const fp16 rounded = convert<fp16>{}(Bits == 8 || largest < 0 ? scale : -scale);
  const scale_divisor divide = scale_divisor::of(convert<float>{}(rounded));
  const auto bits = __builtin_bit_cast(unsigned short, rounded);
  to[0].byte = static_cast<unsigned char>(bits), to[1].byte = static_cast<unsigned char>(bits >> 8);
  GIWA_NO_UNROLL
  for (int i = 0; i < block::block_bytes - 2; ++i)
    to[2 + i].byte =
        Bits == 8
            ? block::code(divide(number(i)))
            : static_cast<unsigned char>(block::code(divide(number(i))) | block::code(divide(number(i + 16))) << 4);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
