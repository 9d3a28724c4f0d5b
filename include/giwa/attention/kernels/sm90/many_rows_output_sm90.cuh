// SPDX-License-Identifier: MIT
// Ends of work tiles of many rows: o and lse, or a partial.
#ifndef GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_OUTPUT_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_OUTPUT_SM90_CUH

#include <giwa/arch/wgmma.cuh>
#include <giwa/attention/kernels/sm90/forward_consumer_sm90.cuh>
#include <giwa/attention/kernels/sm90/many_rows_types_sm90.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/attention/sums/row_sums.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The rows of a thread over the splits before the current one, m in units of log2.
template <class QueryRows>
using earlier_splits = local_partial<typename QueryRows::output_registers::map>;

/// What a consumer does at the ends of splits. Scores of the first tile of a split are computed before O of the last one is
/// complete.
template <class QueryRows, class Block>
class sum_in_splits {
 public:
  using softmax_state = typename QueryRows::softmax_state;
  using map = typename QueryRows::output_registers::map;
  static constexpr int rows = softmax_state::rows;
  static constexpr bool at_once = false;

  GIWA_DEVICE sum_in_splits(const Block& block, earlier_splits<QueryRows>& earlier, int split_keys, float scale_log2)
      : block_(block), earlier_(earlier), split_keys_(split_keys), scale_log2_(scale_log2) {}

  /// Before the scores of a tile.
  GIWA_DEVICE void see_tile(int first_key) {
    const auto key = static_cast<uint32>(first_key), keys = static_cast<uint32>(split_keys_);
    begins_ = end_ > 0 && key >= end_;
    if (end_ == 0 || begins_) end_ = (key / keys + 1) * keys;
  }
  /// Before the softmax of that tile. Where the softmax overlaps the product with the tile before, it has no branch: ptxas waits
  /// for products at branches. Elsewhere the branch is here, not after the softmax, where it would part the softmax
  /// from what ptxas mixes with it: 262 us instead of 238 for 1024 queries and 8192 keys, causal (H200, 2026-11-23).
  GIWA_DEVICE void begin_softmax(QueryRows& q) {
    if constexpr (QueryRows::policy::overlaps) {
      GIWA_UNROLL
      for (int r = 0; r < rows; ++r) {
        float &m = q.softmax.m[r], &l = q.softmax.l[r];
        m_[r] = m, l_[r] = l;
        m = begins_ ? -infinity_of<float> : m, l = begins_ ? 0.f : l;
      }
    } else if (begins_) {
      arch::wgmma_wait<0>();
      arch::fence_operand(q.o.value);
      take_sums(q);
      save(q);
      q.softmax.reset();
    }
  }
  /// After the product with the tile before.
  GIWA_DEVICE void take_output(QueryRows& q) {
    if constexpr (QueryRows::policy::overlaps)
      if (begins_) save(q);
  }
  GIWA_DEVICE void wait_for_output(QueryRows&) const { arch::wgmma_wait<0>(); }
  /// Sets m, in units of log2, l and O to those of all splits.
  GIWA_DEVICE void finish(QueryRows& q, float (&m)[rows], float (&l)[rows]) {
    take_sums(q);
    complete();
    add_earlier(q);
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m[r] = m_[r], l[r] = l_[r];
  }

 private:
  GIWA_DEVICE void take_sums(const QueryRows& q) {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m_[r] = q.softmax.m[r], l_[r] = q.softmax.l[r];
  }
  /// Merges the split whose m and l were taken into the earlier ones. O begins at 0 again.
  GIWA_DEVICE void save(QueryRows& q) {
    complete();
    add_earlier(q);
    earlier_.save(m_, l_, q.o.value);
    q.o.fill(0);
    has_earlier_ = true;
  }
  /// Makes m_ and l_ those of whole rows, as merge_maxima() takes them.
  GIWA_DEVICE void complete() {
    reduce_over_lanes<typename QueryRows::score_map>(block_, l_, plus{});
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r)
      if (m_[r] != -infinity_of<float>) m_[r] = reference_of(m_[r], scale_log2_, 0);
  }
  GIWA_DEVICE void add_earlier(QueryRows& q) {
    if (has_earlier_) merge_rows<map>(earlier_, {m_, l_, q.o.value}, {m_, l_, q.o.value});
  }

  const Block& block_;
  earlier_splits<QueryRows>& earlier_;
  const int split_keys_;
  const float scale_log2_;
  uint32 end_ = 0;  // key after the current split; 0: none has begun
  bool begins_ = false, has_earlier_ = false;
  float m_[rows], l_[rows];  // of the last split
};

template <class Types, class Block>
struct many_rows_output {
  using consumer = sm90_consumer<Types, Block>;
  using query_rows = sm90_query_rows<Types, Block>;
  using map = typename query_rows::output_registers::map;
  using output = typename Types::output;
  static constexpr int row_slots = map::rows;

  /// m, in units of log2, l and O are those of all keys of the work tile.
  GIWA_DEVICE static void run(consumer& c, query_rows& q, const float (&m)[row_slots], const float (&l)[row_slots]) {
    const packed_rows rows = q.work.rows[c.index].get();
    if (q.work.slot >= 0)
      store_partial(c, q, rows, m, l);
    else
      store_rows(c, q, rows, m, l);
  }

 private:
  /// Writes the partial of a split to the workspace.
  GIWA_DEVICE static void store_partial(consumer& c, query_rows& q, const packed_rows& rows,
                                        const float (&m)[row_slots], const float (&l)[row_slots]) {
    float* const to = c.p.slot_of(q.work.slot);
    const int first_row = 64 * c.index;
    const partial_slot slot{c.p.tile_rows, Types::columns};
    GIWA_UNROLL
    for (int i = 0; i < q.o.registers; i += 2)
      if (const int row = map::row(c.thread, map::slot(i)); row < rows.rows)
        *reinterpret_cast<float2*>(to + slot.output(first_row + row) + map::column(c.thread, i)) = {q.o.value[i],
                                                                                                    q.o.value[i + 1]};
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (const int row = map::row(c.thread, r); c.thread % 4 == 0 && row < rows.rows)
        *reinterpret_cast<float2*>(to + slot.sums(first_row + row)) = {m[r], l[r]};
    if (c.thread == 0) to[slot.sums(c.p.tile_rows) + c.index] = q.has_nonfinite ? 1.f : 0.f;
  }

  /// Normalizes and writes rows. A warp has whole rows of o.
  GIWA_DEVICE static void store_rows(consumer& c, query_rows& q, const packed_rows& rows, const float (&m)[row_slots],
                                     const float (&l)[row_slots]) {
    const auto& call = c.p.call;
    const auto& head = q.work.head.get();
    const cached_sequence& s = head.sequence;
    const bool staged = Types::stores_tiles && !q.has_nonfinite && !call.has_prior();
    float lse[row_slots], factor[row_slots];
    float* lse_of[row_slots];
    output* o_of[row_slots];
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r) {
      const int row = map::row(c.thread, r);
      lse_of[r] = nullptr, o_of[r] = nullptr, factor[r] = 0;
      if (row >= rows.rows) continue;
      const cached_row_end<output> to(call, s, rows.head(row), rows.query(row));
      const finished_softmax<float> end = to.finish(m[r], l[r]);
      lse[r] = end.lse, lse_of[r] = to.lse, o_of[r] = to.o, factor[r] = end.factor;
      if (staged) continue;  // one branch, because the instructions of the first work tile come from memory
      GIWA_UNROLL
      for (int i = 0; i < q.o.registers; i += 2) {
        const float sums[2] = {q.o.value[i], q.o.value[i + 1]};
        if (map::slot(i) == r) to.store(map::column(c.thread, i), sums, end);
      }
    }
    if constexpr (Types::stores_tiles)
      if (staged) {
        q.o.transform_rows(factor, [](float sum, float of_row) { return sum * of_row + 0.f; });
        if (c.p.o_by_tma && rows.rows == c.p.shape.tile.heads * c.p.shape.tile.queries)
          store_tile(c, q, rows, s);
        else
          store_chunks(c, q, o_of);
      }
    c.block.sync_warp();  // the prior's lse may be the one that is written: all lanes have read it
    GIWA_UNROLL
    for (int r = 0; r < row_slots; ++r)
      if (lse_of[r] != nullptr && c.thread % 4 == 0) *lse_of[r] = lse[r];
    const int warp_row = c.thread / 32 * 16;
    if (q.has_nonfinite)
      add_nonfinite(c.block, call, c.steps, s, head.kv_head, rows, q.work.keys.get(), warp_row, warp_row + 16);
  }

  /// Waits until the rows of the work tile before have been read.
  GIWA_DEVICE static void wait_for_stores(consumer& c) {
    if (c.thread == 0) arch::wait_stores_read<0>();
    arch::barrier_sync(Types::barrier_of(Types::named_barrier::of_consumer, c.index), 128);
  }
  /// Writes a whole tile of rows by TMA.
  GIWA_DEVICE static void store_tile(consumer& c, query_rows& q, const packed_rows& rows, const cached_sequence& s) {
    auto& tile = c.s.rows[c.index].o;
    using box = tensor_box<typename Types::o_tile>;
    wait_for_stores(c);
    giwa::store(c.thread, q.o, 0, tile);
    arch::fence_async_proxy();
    arch::barrier_sync(Types::barrier_of(Types::named_barrier::of_consumer, c.index), 128);
    if (c.thread != 0) return;
    for (int column = 0; column < Types::columns; column += box::columns) {
      const int origin[4] = {column, rows.first_head, s.first_query_row + rows.query(0), s.q_batch};
      arch::store_box(c.p.o, origin, tile.data() + column * 64);
    }
    arch::commit_stores();
  }

  /// Writes a warp's 16 rows from its part of a tile in shared memory, in chunks of 16 bytes. `o_of`: where this thread's rows
  /// go, null for none.
  GIWA_DEVICE static void store_chunks(consumer& c, query_rows& q, output* const (&o_of)[row_slots]) {
    auto& tile = c.s.rows[c.index].o;
    constexpr int run = 16 / static_cast<int>(sizeof(output)), chunks = Types::columns / run;
    const int first_row = c.thread / 32 * 16, width = static_cast<int>(c.p.call.views.o.extent(3));
    wait_for_stores(c);
    giwa::store(c.thread, q.o, 0, tile);
    c.block.sync_warp();
#pragma unroll 4
    for (int first = 0; first < 16 * chunks; first += 32) {
      const int i = first + c.block.lane(), of_warp = i / chunks, row = of_warp < 16 ? of_warp : 15;
      const int column = i % chunks * run;
      uint64 to_rows[row_slots];
      GIWA_UNROLL
      for (int r = 0; r < row_slots; ++r)
        to_rows[r] = c.block.shuffle(reinterpret_cast<uint64>(o_of[r]), row % 8 * map::lanes);
      output* const o = reinterpret_cast<output*>(row < 8 ? to_rows[0] : to_rows[1]);
      if (o == nullptr || of_warp > 15 || column >= width) continue;
      const output* const from = tile.chunk(first_row + row, column);
      if (c.p.o_aligned && column + run <= width)
        *reinterpret_cast<uint4*>(o + column) = *reinterpret_cast<const uint4*>(from);
      else
        for (int j = 0; j < run && column + j < width; ++j) o[column + j] = from[j];
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
