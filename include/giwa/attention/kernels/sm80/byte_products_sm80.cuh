// SPDX-License-Identifier: MIT
// Products of fp16 and tiles of 8 or 4 bits: bytes come from shared memory by ldmatrix, and become fp16 in registers.
#ifndef GIWA_ATTENTION_KERNELS_SM80_BYTE_PRODUCTS_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_BYTE_PRODUCTS_SM80_CUH

#include <giwa/arch/convert_fp8.cuh>
#include <giwa/arch/convert_int4.cuh>
#include <giwa/arch/convert_int8.cuh>
#include <giwa/attention/problem/traits.hpp>
#include <giwa/tile/mma_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

// ldmatrix gives a lane units of 16 bits, here two bytes. No data moves between lanes afterwards, so the lanes have
// elements in another order than mma expects, and the other operand or the result has that order too. The conversion is
// exact, and each element is converted once.

/// The column of the tile that multiply_keys() reads for d, one of q. A lane has 4 neighbouring bytes of 16 of a key:
/// mma takes them for elements 2 j, 2 j + 1, 2 j + 8 and 2 j + 9 of the 16. Of pairs of integers it has 8 of 32, i and i + 4 in a
/// register.
template <int Codes>
GIWA_HOST_DEVICE constexpr int place_of_column(int d) {
  const int all = 16 * Codes, j = d % all / (4 * Codes), i = d % (4 * Codes);
  const int slot = Codes == 1 ? i / 2 : i % 4, half = Codes == 1 ? i % 2 : i / 4;  // register of the lane, half of it
  return d - d % all + slot / 2 * 16 + slot % 2 * 8 + 2 * j + half;
}

/// The accumulator of multiply_values(): a lane has 4 neighbouring columns of 16, because a unit of 16 bits of a value has
/// two columns. The first ones of all lanes belong to one mma, the second ones to the next. With pairs of integers a unit has four
/// columns, and a lane 8 of 32; or two of the four and 4 of 32, if there are only 16 columns.
template <int Rows, int Columns, int Codes>
struct byte_map : warp_map<Rows, Columns> {
  static constexpr int parts = Columns < 16 * Codes ? 2 : 1, all = 16 * Codes;  // all: columns of 16 bytes
  static_assert(parts * Columns % all == 0);
  static constexpr int unit = 8 * Codes / parts,
                       next = unit / 2;  // registers of a unit's products, and of their second units
  GIWA_HOST_DEVICE static constexpr int column(int thread, int i) {
    return i % byte_map::fragment_row / unit * all + thread % 4 * (4 * Codes) + i % unit / next * (2 * Codes) +
           i % next / 4 * 2 + i % 2;
  }
  /// The first column of a warp.
  GIWA_HOST_DEVICE static constexpr int first_column(int warp) {
    return parts == 1 ? warp * Columns : warp / 2 * all + warp % 2 * 2;
  }
};

/// Converts four bytes to two pairs of fp16: Step 1 in their order, Step 2 bytes 0 and 2, then 1 and 3. Of eight integers pair i has
/// i and i + 4.
///@{
template <int Step>
GIWA_DEVICE void convert_bytes(e4m3, uint32 four, uint32 (&to)[2]) {
  arch::e4m3_to_fp16(Step == 1 ? four : __byte_perm(four, 0, 0x3120), to);
}
template <int Step>
GIWA_DEVICE void convert_bytes(int8_code, uint32 four, uint32 (&to)[2]) {
  arch::int8_to_fp16<Step>(four, to);
}
template <int Step>
GIWA_DEVICE void convert_bytes(int4_pair, uint32 four, uint32 (&to)[4]) {
  arch::int4_to_fp16(four, to);
}
///@}

/// Four registers of ldmatrix with 16 by 32 or 32 by 16 bytes of a tile, and the fp16 numbers in them.
template <class Element>
struct byte_fragment {
  static constexpr int pairs = 2 * codes_of<Element>;  // of fp16 in a register
  uint32 four[4];

  /// Converts bytes 0 and 1 of register i, then bytes 2 and 3.
  GIWA_DEVICE void rows(int i, uint32 (&to)[pairs]) const { convert_bytes<1>(Element{}, four[i], to); }
  /// Converts bytes 0 and 2, which are of one column, then bytes 1 and 3; of the register shifted by so many bits.
  GIWA_DEVICE void columns(int i, uint32 (&to)[pairs], int shift) const {
    convert_bytes<2>(Element{}, four[i] >> shift, to);
  }
};

/// Addresses of fragments, each from that of the first one by operations on constants. If the compiler computed the swizzle of
/// each, it would keep all results in registers.
template <class Tile>
struct fragment_addresses {
  uint32 first;  // of the lane's row and column

  GIWA_DEVICE fragment_addresses(const Tile& tile, int row, int column)
      : first(fragment_loader<typename Tile::value_type>::address(tile, 0, 0, row, column)) {}
  /// The address `rows` further, a multiple of 8, and `columns` further, whose bits the first column does not have.
  GIWA_DEVICE uint32 operator()(int rows, int columns) const {
    using place = typename Tile::placement;
    constexpr int size = sizeof(typename Tile::value_type);
    if constexpr (!requires { place::slab_columns; })
      return first + static_cast<uint32>(place::offset(rows, columns) * size);
    else {
      const int slab = columns / place::slab_columns, in_slab = columns % place::slab_columns;
      return (first ^ static_cast<uint32>(in_slab * size)) +
             static_cast<uint32>((slab * place::slab_elements + rows * place::slab_columns) * size);
    }
  }
};

/// Computes d (Rows, Columns) += q k^T for Columns keys from first_key on. q (Rows, head size) in fp16 has its columns at
/// place_of_column(), k is (keys, head size) in 8 or 4 bits, from element first_column of a row on. All lanes of a warp call it.
template <int Rows, int Columns, class Queries, class Keys>
GIWA_DEVICE void multiply_keys(int lane, warp_tile<Rows, Columns>& d, const Queries& q, const Keys& k, int first_key,
                               int first_column = 0) {
  using fragment = byte_fragment<typename Keys::value_type>;
  constexpr int depth = 32, codes = fragment::pairs / 2, blocks = Columns / 16;  // depth: bytes of a step
  constexpr int steps = Queries::columns / (depth * codes), total = steps * blocks;
  constexpr int wanted = Rows == 16 ? 4 : 2, ahead = wanted < total ? wanted : total;
  constexpr int buffers = Rows == 16 && codes == 1 ? 2 : 1, row_registers = warp_map<Rows, Columns>::fragment_row;
  static_assert(Columns % 16 == 0 && Queries::columns % (depth * codes) == 0 && steps * depth <= Keys::columns);
  const fragment_addresses<Queries> q_at(q, lane % 16, lane / 16 * 8);
  const fragment_addresses<Keys> k_at(k, first_key + lane % 8 + lane / 16 * 8, first_column + lane / 8 % 2 * 16);
  uint32 of_q[buffers][2 * codes][Rows / 16][4];
  fragment of_k[ahead];
  const auto read_q = [&](int step) {
    GIWA_UNROLL
    for (int part = 0; part < 2 * codes; ++part) GIWA_UNROLL
    for (int i = 0; i < Rows / 16; ++i)
      arch::load_matrices(of_q[step % buffers][part][i], q_at(16 * i, (step * 2 * codes + part) * 16));
  };
  const auto read_k = [&](int t) {
    arch::load_matrices(of_k[t % ahead].four, k_at(t % blocks * 16, t / blocks * depth));
  };
  read_q(0);
  GIWA_UNROLL
  for (int t = 0; t < ahead; ++t) read_k(t);
  GIWA_UNROLL
  for (int t = 0; t < total; ++t) {
    const int step = t / blocks, block = t % blocks;
    if (buffers == 2 && block == 0 && step + 1 < steps) read_q(step + 1);
    GIWA_UNROLL
    for (int half = 0; half < 2; ++half) GIWA_UNROLL
    for (int keys = 0; keys < 2; ++keys) {
      uint32 pair[fragment::pairs];
      of_k[t % ahead].rows(2 * keys + half, pair);
      GIWA_UNROLL
      for (int n = 0; n < codes; ++n) GIWA_UNROLL
      for (int i = 0; i < Rows / 16; ++i) {
        auto& sum = reinterpret_cast<float(&)[4]>(d.value[i * row_registers + (2 * block + keys) * 4]);
        const uint32 b[2] = {pair[2 * n], pair[2 * n + 1]};
        arch::mma_16x8x16<fp16>(sum, of_q[step % buffers][codes * half + n][i], b);
      }
    }
    if (t + ahead < total) read_k(t + ahead);
    if (buffers == 1 && block + 1 == blocks && step + 1 < steps) read_q(step + 1);
  }
}

/// Computes d (Rows, Columns) += p v for Columns columns of v from first_column on. p is (Rows, keys) in fp16, v is
/// (keys, columns) in 8 or 4 bits. All lanes of a warp call it.
template <int Rows, int Columns, int Codes, class Weights, class Values>
GIWA_DEVICE void multiply_values(int lane, register_tile<float, byte_map<Rows, Columns, Codes>>& d, const Weights& p,
                                 const Values& v, int first_column) {
  using map = byte_map<Rows, Columns, Codes>;
  using fragment = byte_fragment<typename Values::value_type>;
  constexpr int depth = 32, blocks = ceil_div(Columns, 16 * Codes), steps = Values::rows / depth;
  constexpr int total = steps * blocks, products = fragment::pairs / map::parts;
  constexpr int wanted = Rows == 16 ? 4 : 2, ahead = wanted < total ? wanted : total;
  static_assert(Values::rows % depth == 0 && Weights::columns == Values::rows);
  const fragment_addresses<Weights> p_at(p, lane % 16, lane / 16 * 8);
  const fragment_addresses<Values> v_at(v, lane, (first_column - first_column % map::all) / Codes);
  const int shift = map::parts == 1 ? 0 : first_column % map::all * 4;  // to the columns of this warp
  uint32 of_p[2][2][Rows / 16][4];
  fragment of_v[ahead];
  const auto read_p = [&](int step) {
    GIWA_UNROLL
    for (int half = 0; half < 2; ++half) GIWA_UNROLL
    for (int i = 0; i < Rows / 16; ++i)
      arch::load_matrices(of_p[step % 2][half][i], p_at(16 * i, step * depth + 16 * half));
  };
  const auto read_v = [&](int t) {
    arch::load_matrices<true>(of_v[t % ahead].four, v_at(t / blocks * depth, t % blocks * 16));
  };
  read_p(0);
  GIWA_UNROLL
  for (int t = 0; t < ahead; ++t) read_v(t);
  GIWA_UNROLL
  for (int t = 0; t < total; ++t) {
    const int step = t / blocks, block = t % blocks;
    if (block == 0 && step + 1 < steps) read_p(step + 1);
    GIWA_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32 first[fragment::pairs], second[fragment::pairs];  // of 8 keys each, a column of each unit
      of_v[t % ahead].columns(2 * half, first, shift);
      of_v[t % ahead].columns(2 * half + 1, second, shift);
      GIWA_UNROLL
      for (int n = 0; n < products; ++n) {
        const uint32 b[2] = {first[n], second[n]};
        GIWA_UNROLL
        for (int i = 0; i < Rows / 16; ++i) {
          float* const x = d.value + i * map::fragment_row + map::unit * block + n / 2 * 4 + n % 2;
          float sum[4] = {x[0], x[map::next], x[2],
                          x[map::next + 2]};  // columns n of two neighbouring units of two rows
          arch::mma_16x8x16<fp16>(sum, of_p[step % 2][half][i], b);
          x[0] = sum[0], x[map::next] = sum[1], x[2] = sum[2], x[map::next + 2] = sum[3];
        }
      }
    }
    if (t + ahead < total) read_v(t + ahead);
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
