// SPDX-License-Identifier: MIT
// Shared tiles by TMA: one thread starts the copy of a whole tile, in either direction.
#ifndef GIWA_TILE_COPY_SM90_CUH
#define GIWA_TILE_COPY_SM90_CUH

#include <giwa/arch/tensor_copy.cuh>
#include <giwa/base/assert.hpp>
#include <giwa/tile/tensor_box.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// TMA's coordinates of a tile's box that begins at `column` of the tile: innermost first, in 32 bits.
template <int Rank>
struct box_coordinates {
  int at[Rank];
  template <class T>
  GIWA_DEVICE box_coordinates(const giwa::index<Rank>& origin, int column, T) {
    GIWA_ASSERT(origin[Rank - 1] * static_cast<int64>(sizeof(T)) % 16 == 0,
                "a tile of TMA begins at a column that is a multiple of 16 bytes");
    for (int d = 0; d < Rank; ++d) at[d] = static_cast<int>(origin[Rank - 1 - d]);
    at[0] += column;
  }
};

}  // namespace detail

// `map` is the one that make_tile_map() makes for this kind of tile. The tile's rows and columns are the last two of the
// tensor's dimensions, and start at the last two of `origin`, which fits in 32 bits and whose last is a multiple of 16 bytes: TMA
// refuses others (cudaErrorIllegalInstruction). One thread calls.

/// Fills a tile; `full` counts Tile::bytes. What lies outside the tensor reads as zero.
template <class T, class Shape, class Layout, int Rank>
GIWA_DEVICE void load(const tensor_map& map, const giwa::index<Rank>& origin, shared_tile<T, Shape, Layout>& to,
                      arch::mbarrier& full, arch::l2_policy policy = arch::l2_policy::normal) {
  using box = tensor_box<shared_tile<T, Shape, Layout>>;
  GIWA_UNROLL
  for (int i = 0; i * box::columns < Shape::columns; ++i)
    arch::load_box(to.data() + i * box::elements, map, detail::box_coordinates<Rank>(origin, i * box::columns, T{}).at,
                   full, policy);
}

/// Block number `block`'s share of a tile that all `Blocks` blocks of a cluster get: as many of its slabs as there are for
/// each. The `full` of every block counts Tile::bytes, when all have called.
template <int Blocks, class T, class Shape, class Layout, int Rank>
GIWA_DEVICE void load_multicast(const tensor_map& map, const giwa::index<Rank>& origin,
                                shared_tile<T, Shape, Layout>& to, arch::mbarrier& full, int block,
                                arch::l2_policy policy = arch::l2_policy::normal) {
  using box = tensor_box<shared_tile<T, Shape, Layout>>;
  constexpr int slabs = Shape::columns / box::columns, share = slabs / Blocks;
  static_assert(share * Blocks == slabs, "giwa: a tile for all of a cluster has as many slabs for each block.");
  if constexpr (Blocks == 1) {
    load(map, origin, to, full, policy);  // there is no cluster to cast into
  } else {
    GIWA_UNROLL
    for (int i = 0; i < share; ++i) {
      const int slab = block * share + i;
      arch::load_box_multicast(to.data() + slab * box::elements, map,
                               detail::box_coordinates<Rank>(origin, slab * box::columns, T{}).at, full,
                               (1u << Blocks) - 1, policy);
    }
  }
}

/// Writes a tile to global memory, but for what lies outside the tensor, in the bulk group that commit_stores() closes. After
/// fence_async_proxy() by all who wrote the tile, and a barrier. `map` comes from make_store_map(), and no coordinate of
/// `origin` is negative: TMA refuses that for stores.
template <class T, class Shape, class Layout, int Rank>
GIWA_DEVICE void store(const shared_tile<T, Shape, Layout>& from, const tensor_map& map,
                       const giwa::index<Rank>& origin) {
  using box = tensor_box<shared_tile<T, Shape, Layout>>;
  for (int d = 0; d < Rank; ++d) GIWA_ASSERT(origin[d] >= 0, "a store by TMA begins inside or beyond the tensor");
  GIWA_UNROLL
  for (int i = 0; i * box::columns < Shape::columns; ++i)
    arch::store_box(map, detail::box_coordinates<Rank>(origin, i * box::columns, T{}).at,
                    from.data() + i * box::elements);
}

}  // namespace giwa::inline GIWA_ABI

#endif
