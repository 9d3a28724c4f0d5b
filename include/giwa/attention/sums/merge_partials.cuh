// SPDX-License-Identifier: MIT
// The second launch of attention_cached: merges partials and ends rows.
#ifndef GIWA_ATTENTION_SUMS_MERGE_PARTIALS_CUH
#define GIWA_ATTENTION_SUMS_MERGE_PARTIALS_CUH

#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/attention/sums/row_sums.cuh>
#include <giwa/attention/work/packed_rows.hpp>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A row of a work tile that is merged. It does not exist if it is past the end of the packed rows.
struct merged_row {
  packed_rows packed;
  int row;  // of these
};

/// A row's m, l and the columns of O that a lane merges.
inline constexpr int merged_columns = 4;
using merged_sums = row_sums<columns_of_row<merged_columns>>;

/// A warp merges a row at a time, some columns in each lane. Partials knows which work tiles are divided, which blocks share the
/// rows of one, and in which order its partials are merged (few_rows_partials.cuh, many_rows_partials.cuh):
///   for_each_tile(block, p, s, f)  calls f(tile) for each work tile of which this block has rows
///   tile.rank, tile.blocks         this block among those that share the tile's rows
///   tile.by_blocks()               with rows_by_blocks: the warps sum one row, and the one that stores(block) has its sum
///   tile.rows()                    rows of the tile, one past the last
///   tile.begin(row)                the row; after the previous one has ended
///   tile.sum(block, first)         its state, with the columns from `first` on
///   tile.end(block, merged_row)    after it is written
/// shares_columns: the blocks of the first dimension of the grid share the columns of a row, Partials::columns each, so end() does
/// nothing. With a prior one block has all, because the prior's lse may be the one that is written.
template <class Partials>
struct merge_partials_op {
  using params = typename Partials::params;
  using shared_storage = typename Partials::shared_storage;
  static constexpr int max_threads = Partials::max_threads, min_blocks = 1, warps = max_threads / 32;
  static constexpr bool rows_by_blocks = requires { requires Partials::rows_by_blocks; };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    Partials::for_each_tile(block, p, s, [&](auto& tile) {
      int row = tile.rank + tile.blocks * block.warp(), step = tile.blocks * warps;
      if constexpr (rows_by_blocks)
        if (tile.by_blocks()) row = tile.rank, step = tile.blocks;
      for (; row < tile.rows(); row += step) {
        if constexpr (Partials::shares_columns) {
          const int columns = p.call.has_prior() ? p.columns : Partials::columns;
          const int begin = static_cast<int>(block.block_index()[0]) * columns;
          merge_row(block, p, tile, row, begin, begin + columns);
        } else {
          merge_row(block, p, tile, row, 0, p.columns);
        }
      }
    });
  }

 private:
  /// Merges columns [begin, end) of a row.
  template <class Block, class Tile>
  GIWA_DEVICE static void merge_row(const Block& block, const params& p, Tile& tile, int number, int begin, int end) {
    using output = stdlib::remove_cvref_t<decltype(*p.call.views.o.data())>;
    const merged_row row = tile.begin(number);
    if (row.row >= row.packed.rows) return;
    const cached_row_end<output> to(p.call, tile.sequence(), row.packed.head(row.row), row.packed.query(row.row));
    float lse = 0;
    bool stores = true;
    for (int first = begin; first < end; first += 32 * merged_columns) {
      const merged_sums all = tile.sum(block, first);
      if constexpr (rows_by_blocks) stores = tile.stores(block);
      if (!stores) continue;
      const finished_softmax<float> ended = to.finish(all.m[0], all.l[0]);
      to.store(first + merged_columns * block.lane(), all.o.value, ended);
      lse = ended.lse;
    }
    block.sync_warp();  // the prior's lse may be the one that is written: all lanes have read it
    if (stores && to.lse != nullptr && begin == 0 && block.lane() == 0) *to.lse = lse;
    tile.end(block, row);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
