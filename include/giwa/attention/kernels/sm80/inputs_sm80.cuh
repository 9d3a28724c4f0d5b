// SPDX-License-Identifier: MIT
// The inputs of the mma.sync kernel: Q, K and V of a head, their tiles in shared memory, and the copies from one to the other.
#ifndef GIWA_ATTENTION_KERNELS_SM80_INPUTS_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_INPUTS_SM80_CUH

#include <giwa/attention/problem/params.hpp>
#include <giwa/attention/split_fp16/exponents.cuh>
#include <giwa/attention/tuning/sm80.hpp>
#include <giwa/tile/copy.cuh>
#include <giwa/tile/whole_tiles.cuh>

namespace giwa::inline GIWA_ABI::detail {

template <class T, class O, class Policy>
struct sm80_inputs {
  // fp32 arrives as split fp16 (split_fp16/).
  static constexpr bool is_split = element_traits<T>::is_split;
  static constexpr int parts = Policy::parts;
  using element = typename element_traits<T>::operand;
  static_assert(element_traits<T>::reads_v_as_it_lies, "the kernel loads V as (keys, head size)");
  using head_type = attention_head<T, O>;

  template <int Rows, int Columns>
  using tile = shared_tile<element, tile_shape<Rows, Columns>, paired>;
  using q_tile = tile<Policy::block_m, Policy::head_size>;  // (queries, head size)
  using k_tile = tile<Policy::block_n, Policy::head_size>;  // (keys, head size)
  using v_tile = tile<Policy::block_n, Policy::slice>;      // (keys, columns of the output)
  struct tiles {
    q_tile q[parts];
    k_tile k[parts];
    v_tile v[parts];
  };

  /// The hi and lo parts of a tensor of the head, or the tensor itself.
  struct input {
    tensor_view<const element, 2> part[parts];  // (rows, head size)
  };
  template <class Params>
  GIWA_DEVICE static input q_of(const Params& p, const head_type& h) {
    if constexpr (is_split)
      return input_of(p.split.q, h, h.head, h.first_query_row, h.queries());
    else
      return {{h.q}};
  }
  template <class Params>
  GIWA_DEVICE static input k_of(const Params& p, const head_type& h) {
    if constexpr (is_split)
      return input_of(p.split.k, h, h.kv_head, h.first_key_row, h.keys());
    else
      return {{h.k}};
  }
  template <class Params>
  GIWA_DEVICE static input v_of(const Params& p, const head_type& h) {
    if constexpr (is_split)
      return input_of(p.split.v, h, h.kv_head, h.first_key_row, h.keys());
    else
      return {{h.v}};
  }

  /// Starts the copy of any tile. Not inlined: it is rare where rows are aligned to 16 bytes, and inlined it adds 91 moves
  /// of registers to the loop (128, full, code for 9.0).
  template <class Block, class Tile>
  __noinline__ GIWA_DEVICE static void load_any(const Block& block, const input& from, const giwa::index<2>& origin,
                                                Tile (&to)[parts]) {
    GIWA_UNROLL
    for (int i = 0; i < parts; ++i) load_async(block, from.part[i], origin, to[i]);
  }

  /// The tiles that are copied with few instructions: whole ones, with aligned rows.
  template <class Tile>
  class rows_of {
   public:
    template <class Block>
    GIWA_DEVICE rows_of(const Block& block, const input& from, int column)
        : rows_of(block, from, column, stdlib::make_integer_sequence<int, parts>{}) {}

    GIWA_DEVICE bool has(int n) const { return n < of_part_[0].count && n < of_part_[parts - 1].count; }
    template <class Block>
    GIWA_DEVICE void load(const Block& block, int n, Tile (&to)[parts]) const {
      GIWA_UNROLL
      for (int i = 0; i < parts; ++i) of_part_[i].start(block, n, to[i]);
    }

   private:
    template <class Block, int... Part>
    GIWA_DEVICE rows_of(const Block& block, const input& from, int column, stdlib::integer_sequence<int, Part...>)
        : of_part_{{block, from.part[Part], 0, column}...} {}

    whole_tiles<Tile> of_part_[parts];
  };
  using q_rows = rows_of<q_tile>;
  using k_rows = rows_of<k_tile>;
  using v_rows = rows_of<v_tile>;

 private:
  GIWA_DEVICE static input input_of(const split_tensor& t, const head_type& h, int head, int first_row, int64 length) {
    constexpr int largest = Policy::head_size > Policy::head_size_v ? Policy::head_size : Policy::head_size_v;
    input in;
    for (int i = 0; i < parts; ++i)
      in.part[i] = {
          t.row(h.sequence, head, first_row) + i * t.lo, {length, t.lo < largest ? t.lo : largest}, {t.width, 1}};
    return in;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
