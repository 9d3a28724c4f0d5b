// SPDX-License-Identifier: MIT
// Copies of shared tiles by TMA: one thread starts the load or store of a whole tile.
#ifndef GIWA_TILE_COPY_SM90_CUH
#define GIWA_TILE_COPY_SM90_CUH

#include <giwa/arch/tensor_copy.cuh>
#include <giwa/base/assert.hpp>
#include <giwa/tile/tensor_box.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The TMA coordinates of the box that begins at column `column` of a tile: innermost first, 32 bits.
template <int Rank>
struct box_coordinates {
  int at[Rank];
  template <class T>
  GIWA_DEVICE box_coordinates(const giwa::index<Rank>& origin, int column, T) {
    GIWA_ASSERT(origin[Rank - 1] * static_cast<int64>(sizeof(T)) % 16 == 0,
                "the first column of a tile that TMA copies must be a multiple of 16 bytes");
    for (int d = 0; d < Rank; ++d) at[d] = static_cast<int>(origin[Rank - 1 - d]);
    at[0] += column;
  }
};

}  // namespace detail

/// Starts the load of a tile by TMA; `full` counts Tile::bytes. Elements outside the tensor read as zero. One thread calls it.
///
/// Parameters:
///   - map: of make_tile_map() for this type of tile
///   - origin: where the tile begins; its rows and columns are the last two dimensions of the tensor. All coordinates fit in 32
///     bits; the last is a multiple of 16 bytes, otherwise TMA fails (cudaErrorIllegalInstruction)
///   - to: the tile; written
///   - full: the barrier that counts the bytes
///   - policy: what the L2 cache keeps
template <class T, class Shape, class Layout, int Rank>
GIWA_DEVICE void load(const tensor_map& map, const giwa::index<Rank>& origin, shared_tile<T, Shape, Layout>& to,
                      arch::mbarrier& full, arch::l2_policy policy = arch::l2_policy::normal) {
  using box = tensor_box<shared_tile<T, Shape, Layout>>;
  GIWA_UNROLL
  for (int i = 0; i * box::columns < Shape::columns; ++i)
    arch::load_box(to.data() + i * box::elements, map, detail::box_coordinates<Rank>(origin, i * box::columns, T{}).at,
                   full, policy);
}

/// Starts the load of this block's share of a tile that all `Blocks` blocks of a cluster receive. Each block loads slabs /
/// Blocks slabs of the tile into all blocks. After the calls of all blocks the `full` of each counts Tile::bytes.
///
/// Parameters:
///   - map, origin, to, full, policy: as for load()
///   - block: the rank of the block in the cluster
template <int Blocks, class T, class Shape, class Layout, int Rank>
GIWA_DEVICE void load_multicast(const tensor_map& map, const giwa::index<Rank>& origin,
                                shared_tile<T, Shape, Layout>& to, arch::mbarrier& full, int block,
                                arch::l2_policy policy = arch::l2_policy::normal) {
  using box = tensor_box<shared_tile<T, Shape, Layout>>;
  constexpr int slabs = Shape::columns / box::columns, share = slabs / Blocks;
  static_assert(share * Blocks == slabs,
                "giwa: the number of slabs of a multicast tile must be a multiple of the blocks of the cluster: choose "
                "more columns or fewer blocks.");
  if constexpr (Blocks == 1) {
    load(map, origin, to, full, policy);  // there is no cluster
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

/// Starts the store of a tile by TMA, in the bulk group that commit_stores() closes. Elements outside the tensor are not
/// written. All threads that wrote the tile first call fence_async_proxy(), then a barrier; then one thread calls store().
///
/// Parameters:
///   - from: the tile
///   - map: of make_store_map()
///   - origin: as for load(); no coordinate is negative, because TMA refuses that for stores
template <class T, class Shape, class Layout, int Rank>
GIWA_DEVICE void store(const shared_tile<T, Shape, Layout>& from, const tensor_map& map,
                       const giwa::index<Rank>& origin) {
  using box = tensor_box<shared_tile<T, Shape, Layout>>;
  for (int d = 0; d < Rank; ++d) GIWA_ASSERT(origin[d] >= 0, "the origin of a store by TMA must not be negative");
  GIWA_UNROLL
  for (int i = 0; i * box::columns < Shape::columns; ++i)
    arch::store_box(map, detail::box_coordinates<Rank>(origin, i * box::columns, T{}).at,
                    from.data() + i * box::elements);
}

}  // namespace giwa::inline GIWA_ABI

#endif
