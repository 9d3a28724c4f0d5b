// SPDX-License-Identifier: MIT
// Where the loader of the Hopper kernel gets tiles of K and V.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_KEYS_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_KEYS_SM90_CUH

#include <giwa/arch/tensor_copy.cuh>
#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The source of the K and V tiles of a work tile: consecutive rows of one tensor. A cache is another key source with the
/// same members (kernels/sm90/many_rows_loader_sm90.cuh).
template <class Types>
struct sm90_contiguous_keys {
  int sequence, kv_head, first_row;

  GIWA_DEVICE sm90_contiguous_keys(const typename Types::params&, typename Types::shared_storage&,
                                   const typename Types::work_tile& work)
      : sequence(work.head.get().key_sequence),
        kv_head(work.head.get().kv_head),
        first_row(work.head.get().first_key_row) {}

  /// Called before the loader waits for a stage in which to load tile n of K, and tile `next` after it. The tile of V
  /// follows one tile later, and may need to be scrubbed.
  GIWA_DEVICE void look_up(int, int, bool) const {}

  /// Starts the copy of tile n with the tensor map `map`; `rank` is the block's rank in its cluster.
  template <class Copies, class Tile>
  GIWA_DEVICE void load(const tensor_map& map, int n, Tile& to, const Copies& copies, int rank) const {
    copies.multicast(map, giwa::index<4>{sequence, kv_head, first_row + n * Types::block_n, 0}, to, rank);
  }
};

/// The same where V is K-major: a tile of K has its keys in the order of warpgroup_quads_map, and the rows of a tile of V are columns.
template <class Types>
struct sm90_keys_of_columns : sm90_contiguous_keys<Types> {
  using contiguous = sm90_contiguous_keys<Types>;
  const typename Types::params& p;
  int keys;

  GIWA_DEVICE sm90_keys_of_columns(const typename Types::params& parameters, typename Types::shared_storage& s,
                                   const typename Types::work_tile& work)
      : contiguous(parameters, s, work), p(parameters), keys(work.head.get().keys()) {}

  /// Tile n of K.
  template <class Copies, class Tile>
  GIWA_DEVICE void load(const tensor_map& map, int n, Tile& to, const Copies& copies, int) const {
    using box = tensor_box<Tile>;
    constexpr int half = Types::block_n / 2, slabs = Tile::columns / box::columns;
    const int row = n * Types::block_n, left = keys - row;
    const auto start = [&](const auto& from, const auto& at, int to_row, int slab) {
      arch::load_box(to.data() + slab * box::elements + to_row * box::columns, from, at, copies.full, copies.policy);
    };
    if (((left < Types::block_n ? keys : row + Types::block_n) - 1) / 4 < p.keys.groups) {
      copies.bytes += Tile::bytes;
      GIWA_UNROLL
      for (int i = 0; i < 2 * slabs; ++i) {
        const int at[5] = {i / 2 * box::columns, i % 2 * 2, row / 4, this->kv_head, this->sequence};
        start(map, at, i % 2 * half, i / 2);
      }
      return;
    }
    // Rows past the last key stay as they were; their scores are masked.
    const int pairs = left < Types::block_n ? (left + 1) / 2 : half;
    copies.bytes += pairs * slabs * 2 * box::columns;
    GIWA_NO_UNROLL
    for (int i = 0; i < pairs * slabs; ++i) {
      const int pair = i / slabs, slab = i % slabs;
      const int at[4] = {slab * box::columns, row + 2 * pair, this->kv_head, this->sequence};
      start(p.keys.two_rows, at, pair % 2 * half + pair / 2 * 2, slab);
    }
  }
  /// Tile n of V.
  template <class Copies, class Tile>
  GIWA_DEVICE void load_columns(const tensor_map& map, int n, Tile& to, const Copies& copies) const {
    using box = tensor_box<Tile>;
    copies.bytes += Tile::bytes;
    GIWA_UNROLL
    for (int i = 0; i * box::columns < Tile::columns; ++i) {
      const int at[4] = {n * Types::block_n + i * box::columns, 0, this->kv_head, this->sequence};
      arch::load_box(to.data() + i * box::elements, map, at, copies.full, copies.policy);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
