// SPDX-License-Identifier: MIT
// The second launch of the kernel for many rows: it merges the pieces of divided units.
#ifndef GIWA_ATTENTION_KERNELS_SM90_MERGE_PIECES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_MERGE_PIECES_SM90_CUH

#include <giwa/attention/kernels/sm80/merge_runs_sm80.cuh>
#include <giwa/attention/kernels/sm90/many_rows_output_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The blocks of all pieces of a unit share its rows, a warp for each row.
template <class Call, class Mask, class Score>
struct merge_pieces_op {
  struct params : many_rows_params<Call> {
    group_mask<Mask> mask;
  };
  using state = typename merge_runs_op<Call>::state;
  using output = typename merge_runs_op<Call>::output;
  using walk = many_rows_walk<Call>;
  static constexpr int max_threads = 256, min_blocks = 1, warps = max_threads / 32, batch = 8;
  static constexpr int lane_columns = 4, warp_columns = 32 * lane_columns;
  using shared_storage = no_shared_storage;

  /// A unit of which this block has a share.
  struct unit {
    typename walk::position at;
    int head, row_tile, share;
    /// The state of a piece.
    GIWA_DEVICE const float* state_of(const params& p, int piece) const {
      return p.state_of(at.first + number_of(p.shape, at.work, head, row_tile, piece));
    }
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage&) const {
    const auto block = with_threads<max_threads>(plain_block);
    walk items(p.call, p.shape);
    const bool divides = items.divides(block);
    arch::wait_for_previous_kernel();
    if (!divides) return;
    unit u;
    for (int64 item = block.block_rank(); items.find(block, item, u.at); item += block.block_count()) {
      if (u.at.work.pieces == 1) continue;
      const many_rows_item which = item_of(p.shape, u.at.work, u.at.sequence.keys, true, item - u.at.first);
      u.head = which.head, u.row_tile = which.row_tile, u.share = which.piece;
      for (int row = u.share + u.at.work.pieces * block.warp(); row < p.tile_rows; row += u.at.work.pieces * warps)
        merge_row(block, p, u, row);
    }
  }

 private:
  template <class Block>
  GIWA_DEVICE static void merge_row(const Block& block, const params& p, const unit& u, int tile_row) {
    const auto& call = p.call;
    const cached_sequence& s = u.at.sequence;
    const int consumer = tile_row / 64, row = tile_row % 64;
    const packed_rows rows = rows_of(call, p.shape, p.heads, s, u.head, u.row_tile, consumer);
    if (row >= rows.rows) return;
    const cached_row_end<output> to(call, s, rows.head(row), rows.query(row));
    float lse = 0;
    bool has_nonfinite = false;
    for (int first = 0; first < p.columns; first += warp_columns) {
      state all;
      all.reset();
      for (int piece = 0; piece < u.at.work.pieces; piece += batch)
        merge_pieces(block, p, u, tile_row, first, piece, all, has_nonfinite);
      const finished_softmax<float> end = to.finish(all.m[0], all.l[0]);
      to.store(first + lane_columns * block.lane(), all.o.value, end);
      lse = end.lse;
    }
    block.sync_warp();  // the prior's lse may be the one that is written: all lanes have read it
    if (to.lse != nullptr && block.lane() == 0) *to.lse = lse;
    if (!has_nonfinite) return;
    const head_of_keys h{s.batch, u.head * call.heads_per_kv, s.offset, s.queries, s.keys};
    const score_steps<Mask, Score> steps{call.mask, call.score, call.scale};
    const query_range queries = queries_of(p.shape, u.row_tile);
    const key_tiles<group_mask<Mask>> list(p.mask, h, queries.first, queries.count, p.shape.tile_keys);
    add_nonfinite(block, call, steps, s, u.head, rows, list, row, row + 1);
  }
  struct head_of_keys {
    int batch, head, offset, all_queries, all_keys;
    GIWA_DEVICE int queries() const { return all_queries; }
    GIWA_DEVICE int keys() const { return all_keys; }
  };

  /// Merges up to `batch` pieces of a row and some columns, whose loads do not wait for each other.
  template <class Block>
  GIWA_DEVICE static void merge_pieces(const Block& block, const params& p, const unit& u, int tile_row, int first,
                                       int piece, state& all, bool& has_nonfinite) {
    const int column = first + lane_columns * block.lane(), left = u.at.work.pieces - piece;
    state next[batch];
    GIWA_UNROLL
    for (int i = 0; i < batch; ++i) {
      next[i].reset();
      if (i >= left) continue;
      const float* const from = u.state_of(p, piece + i);
      const float* const sums = from + p.tile_rows * p.columns;
      const float2 ml = *reinterpret_cast<const float2*>(sums + 2 * tile_row);
      next[i].m[0] = ml.x, next[i].l[0] = ml.y;
      has_nonfinite = has_nonfinite || sums[2 * p.tile_rows + tile_row / 64] != 0;
      if (column >= p.columns) continue;
      const float4 o = *reinterpret_cast<const float4*>(from + tile_row * p.columns + column);
      next[i].o = {{o.x, o.y, o.z, o.w}};
    }
    GIWA_UNROLL
    for (int i = 0; i < batch; ++i) all.merge(next[i]);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
