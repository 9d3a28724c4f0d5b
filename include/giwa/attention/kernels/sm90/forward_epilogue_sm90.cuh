// SPDX-License-Identifier: MIT
// The epilogue of the Hopper kernel: normalizes O, stores it and lse, and adds scrubbed NaN and infinity back.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_EPILOGUE_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_EPILOGUE_SM90_CUH

#include <giwa/arch/elect.cuh>
#include <giwa/attention/kernels/sm90/forward_consumer_sm90.cuh>
#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/tile/operand_of_bytes.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// P is 0 for a masked key, but 0 times NaN is NaN. The epilogue adds the scrubbed values to the rows that see them.
template <class Types>
struct sm90_nan_scrubber {
  /// Scrubs all V tiles. Two warps call it, `part` 0 and 1.
  template <class Block>
  GIWA_DEVICE static void run(const Block& block, typename Types::shared_storage& s, int part) {
    auto values = s.v.consumer(block);
    for (;;) {
      const int stage = values.next();
      typename Types::v_tile& tile = values.wait();
      typename Types::v_note& note = s.v_notes[stage];
      if (note.end) break;
      if (note.needs_scrub) scrub(block, s, part, stage, tile, note);
      values.release();
    }
  }
  /// Scans the share of warp `part` in a tile of which some query does not see all. A warp that finds NaN or infinity scrubs the
  /// whole tile; both warps may do so.
  template <class Block>
  GIWA_DEVICE static void scrub(const Block& block, typename Types::shared_storage& s, int part, int stage,
                                typename Types::v_tile& tile, typename Types::v_note& note) {
    if (block.any(has_nonfinite<Types::scrubbers>(block.lane() + 32 * part, tile))) {
      scrub_nonfinite(one_warp<Block>(block), tile, note.has_nonfinite, note.keys());
      arch::fence_async_proxy();
    }
    block.sync_warp();
    if (block.lane() == 0) s.scrubbed[stage].arrive();
  }
};

/// The ends of a consumer's rows, found while the last product of the work tile runs: after it only 64 multiplications and the store
/// are left.
template <class Types, class Block>
struct sm90_row_ends : keys_at_once {
  using query_rows = sm90_query_rows<Types, Block>;
  static constexpr int row_count = query_rows::score_map::rows;
  float normalizer[row_count];
  float share[row_count];    // the sum of the normalized weights, for the mean of v in e4m3
  bool is_finished = false;  // normalizer is set and lse is stored; not of a chunk, which is merged with others first
  bool by_tma;               // TMA stores the rows
  static constexpr bool of_part = is_part<typename Types::score>;
  struct of_earlier_parts {
    float factor[row_count];
  };
  [[no_unique_address]] stdlib::conditional_t<of_part, of_earlier_parts, nothing> earlier;  // of their output

  /// Finishes the rows while the last product runs, and waits for it.
  GIWA_DEVICE void wait_for_output(query_rows& rows) {
    const auto& p = rows.c.p;
    auto softmax = rows.softmax;  // a copy: chunks are merged by the sums of threads
    if constexpr (of_part) {      // merged with earlier parts in place, so only once
      is_finished = !(Types::has_chunks && rows.c.block.any(p.chunked && rows.work.is_chunk()));
      normalizer[0] = normalizer[1] = 0;
      if (is_finished) finish(rows, softmax);
    } else {
      finish(rows, softmax);
      is_finished = !(Types::has_chunks && rows.c.block.any(p.chunked && rows.work.is_chunk()));
    }
    arch::wgmma_wait_after<0>(normalizer[0] + normalizer[1]);
  }
  template <class Softmax>
  GIWA_DEVICE void finish(query_rows& rows, Softmax& softmax) {
    auto& c = rows.c;
    const auto& call = c.p.call;
    const auto head = call.at(rows.work.head.get());
    if constexpr (of_part)
      finish_rows(c.block, c.thread, softmax, c.steps.scale_log2(), call, head, rows.first_query, true, normalizer,
                  &earlier.factor);
    else
      finish_rows(c.block, c.thread, softmax, c.steps.scale_log2(), call, head, rows.first_query, true, normalizer);
    if constexpr (Types::transposes_v) {
      GIWA_UNROLL
      for (int r = 0; r < row_count; ++r) share[r] = normalizer[r] == 0 ? 0.f : softmax.l[r] * normalizer[r];
    }
    // A tile may be clipped at the tensor's end, but must not reach into the next sequence.
    const int last_query = rows.first_query + (call.ragged ? 63 : 0);
    by_tma =
        Types::stores_tiles && !c.block.any(!c.p.stores_by_tma || rows.has_nonfinite || last_query >= head.queries());
  }
};

template <class Types, class Block>
struct sm90_epilogue {
  using consumer = sm90_consumer<Types, Block>;
  using query_rows = sm90_query_rows<Types, Block>;
  using row_ends = sm90_row_ends<Types, Block>;

  GIWA_DEVICE static void run(consumer& c, query_rows& rows, row_ends& ends) {
    const auto& p = c.p;
    if (!ends.is_finished) ends.finish(rows, rows.softmax);
    if constexpr (Types::is_split)
      if (rows.work.has_keys()) {
        const auto head = p.call.at(rows.work.head.get());
        rows.exponents.finish(c.thread, rows.o, p.split.v, head.batch, head.kv_head, static_cast<int>(head.v.extent(1)),
                              query_rows::two_parts);
      }
    // + 0 makes -0 positive: a NaN in a row that is not seen could change its sign.
    rows.o.transform_rows(ends.normalizer, [](float x, float f) { return x * f + 0.f; });
    if constexpr (row_ends::of_part) {
      const auto head = p.call.at(rows.work.head.get());
      const part_rows part(p.call.score, head);
      const auto& list = rows.work.keys.get();
      const int warp_row = c.thread / 32 * 16;
      if (part.finish(c.block, c.thread, ends.earlier.factor, rows.o, rows.first_query, warp_row, 16,
                      c.block.any(part.has_open(rows.first_query + warp_row, 16)), rows.has_nonfinite, c.steps, list,
                      [&](int n) { return Types::needs_scrub(p, list, n, list.visible_by_mask(n)); }))
        return;
    }
    if constexpr (Types::stores_tiles)
      if (ends.by_tma) return store_by_tma(c, rows);
    const auto head = p.call.at(rows.work.head.get());
    if constexpr (Types::transposes_v) {
      scale_output(c.thread, head.scales, ends.share, rows);
      if constexpr (Types::k_major_v)
        store_rows(c.block, c.thread, rows.o, head.o, {rows.first_query, 0});
      else
        store_transposed_columns(c.thread, rows.o, head.o, rows.first_query);
    } else {
      store_rows(c.block, c.thread, rows.o, head.o, {rows.first_query, 0});
    }
    if (rows.has_nonfinite) {
      const auto& list = rows.work.keys.get();
      c.block.sync_warp();
      const int warp_row = c.thread / 32 * 16;
      add_nonfinite(one_warp<Block>(c.block), c.steps, head, list, rows.first_query + warp_row, 16, 0,
                    Types::head_size_v, [&](int n) { return Types::needs_scrub(p, list, n, list.visible_by_mask(n)); });
    }
  }

  /// Waits until the rows that the previous chunk stored are written, because this chunk overwrites them.
  GIWA_DEVICE static void wait_for_stores(consumer& c) {
    arch::wait_stores<0>();
    c.block.sync_warp();
  }

 private:
  /// Each warp stores its 16 rows. All its lanes wait, for which only the one that stores has a reason, because this needs no branch.
  GIWA_DEVICE static void store_by_tma(consumer& c, query_rows& rows) {
    using box = tensor_box<typename Types::o_rows>;
    using tile_box = tensor_box<typename Types::o_tile>;
    const auto& head = rows.work.head.get();
    const int warp_row = c.thread / 32 * 16;
    auto& tile = c.s.rows[c.index].o;
    arch::wait_stores_read<0>();  // of the previous work tile's store
    c.block.sync_warp();
    giwa::store(c.thread, rows.o, 0, tile);
    arch::fence_async_proxy();
    c.block.sync_warp();
    if (arch::elect_one()) {
      GIWA_UNROLL
      for (int column = 0; column < Types::head_size_v; column += box::columns) {
        const int origin[4] = {column, head.first_query_row + rows.first_query + warp_row, head.head, head.sequence};
        arch::store_box(c.p.o, origin,
                        tile.data() + column / box::columns * tile_box::elements + warp_row * box::columns);
      }
      arch::commit_stores();
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
