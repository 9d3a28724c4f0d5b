// SPDX-License-Identifier: MIT
// What attention_backward computes of rows of q alone: lse and delta of each row, the gradient of the sinks, and the gradients
// of the parameters of a score modifier.
#ifndef GIWA_ATTENTION_KERNELS_SIMT_ROW_TERMS_CUH
#define GIWA_ATTENTION_KERNELS_SIMT_ROW_TERMS_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/random_delay.cuh>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/work/list_tiles.hpp>
#include <giwa/grid/op.hpp>
#include <giwa/grid/reduce.hpp>
#include <giwa/numeric/fast_division.hpp>
#include <giwa/softmax/device_exponential.cuh>
#include <giwa/tile/element_run.hpp>
#include <giwa/tile/register_tile.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Writes the terms of all rows of q to the workspace and resets its counters. A lane reads 16 bytes at once and a row takes as many
/// lanes as it fills; a group of lanes has four rows of a head that follow each other, so that a warp reads and writes lse and
/// terms of its rows together. H200, 2026-11-28, 128, fp16, 262144 rows: 40 us; rows of all heads one after the other 53.
/// Rows of no sequence get terms too, which no kernel reads.
template <class Params, int HeadSizeV>
struct row_terms_op {
  using element = stdlib::remove_const_t<typename decltype(Params::views.dout)::element_type>;
  static constexpr int run = 16 / static_cast<int>(sizeof(element)), rows_of_lane = 4;
  static constexpr int lanes = HeadSizeV <= 4 * run ? 4 : HeadSizeV <= 8 * run ? 8 : HeadSizeV <= 16 * run ? 16 : 32;
  static constexpr int rows_of_warp = rows_of_lane * 32 / lanes;
  static constexpr int max_threads = 128, rows_of_block = max_threads / 32 * rows_of_warp;
  static constexpr int min_blocks = 5;  // more would spill; two of 256 threads: calls of 512 tokens 0.1 to 0.4 % slower
  struct params {
    Params call;
    fast_divisor heads, row_blocks;

    /// The blocks of rows of a head.
    GIWA_HOST_DEVICE static int64 row_blocks_of(const Params& call) {
      return ceil_div(call.views.in.o.extent(1), int64{rows_of_block});
    }
    GIWA_HOST_DEVICE static params of(const Params& call) {
      return {call, fast_divisor(call.views.in.o.extent(2)), fast_divisor(row_blocks_of(call))};
    }
    GIWA_HOST_DEVICE int64 work_tiles() const {
      const auto& o = call.views.in.o;
      return o.extent(0) * row_blocks_of(call) * o.extent(2);
    }
    /// The blocks to launch. A candidate that does not ask for the GPU has 0 multiprocessors: not known.
    GIWA_HOST_DEVICE int64 blocks(int64 multiprocessors) const {
      const int64 tiles = work_tiles(), most = min_blocks * (multiprocessors > 0 ? multiprocessors : int64{512});
      return tiles < most ? tiles : most;
    }
  };
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& all, shared_storage&) const {
    arch::launch_dependents();
    const Params& p = all.call;
    if (block.block_rank() == 0 && block.rank() < backward_workspace::counter_count)
      p.workspace.counters[block.rank()] = 0;
    reset_sums(block, p);
    const auto& o = p.views.in.o;
    const auto& dout = p.views.dout;
    if (has_runs(o) && has_runs(dout))
      write_terms<run>(block, all, o, dout);
    else
      write_terms<1>(block, all, o, dout);
    arch::wait_for_previous_kernel();  // list_tiles_op: a kernel is complete when those before it are
  }

 private:
  /// Makes the workspace ready for sums: the first part is stored, so only what says how many there are is reset.
  template <class Block>
  GIWA_HOST_DEVICE static void reset_sums(const Block& block, const Params& p) {
    const backward_workspace& w = p.workspace;
    if (w.dq == nullptr) return;
    const int64 parts = dq_parts::of_tile(p.views.in.q.extent(3)) * w.tiles * p.views.in.q.extent(2);
    for (const int64 i : grid_stride(block, parts)) w.added[i] = 0;
    for (const int64 i : grid_stride(block, w.of_keys.counters)) w.of_keys.arrived[i] = 0;
    if constexpr (Params::adds_bias)
      for (const int64 i : grid_stride(block, int64{p.order.count})) p.order.added[i] = 0;
  }
  /// Whether each row begins at a multiple of 16 bytes and consists of whole runs.
  template <class View>
  GIWA_HOST_DEVICE static bool has_runs(const View& v) {
    return (v.extent(3) | v.stride(0) | v.stride(1) | v.stride(2)) % run == 0 && v.stride(3) == 1 &&
           reinterpret_cast<uint64>(v.data()) % 16 == 0;
  }

  template <int Run, class Block, class View>
  GIWA_HOST_DEVICE static void write_terms(const Block& block, const params& p, const View& o, const View& dout) {
    using part = element_run<element, Run>;
    const int64 heads = o.extent(2), rows = o.extent(1), width = o.extent(3),
                row_blocks = params::row_blocks_of(p.call);
    const int lane = block.lane() % lanes, group = block.warp() * (32 / lanes) + block.lane() / lanes;
    // The row of the group whose sum this lane has in the end.
    const int own = (lane & lanes / 2) / (lanes / 4) + (lane & lanes / 4) / (lanes / 4);
    const int64 end = p.work_tiles(), step = block.block_count();
    for (int64 i = block.block_rank(); i < end; i += step) {
      // Heads of the same rows follow each other, as they do in memory.
      const int64 of_rows = i / p.heads, sequence = of_rows / p.row_blocks, head = i - of_rows * heads;
      const int64 first = (of_rows - sequence * row_blocks) * rows_of_block + group * rows_of_lane;
      const auto row_of = [&](int r) { return first + r < rows ? first + r : rows - 1; };
      const element *of_o[rows_of_lane], *of_dout[rows_of_lane];
      float sum[rows_of_lane] = {};
      GIWA_UNROLL
      for (int r = 0; r < rows_of_lane; ++r) {
        const auto at = [&](const View& v) {
          return v.data() + (sequence * v.stride(0) + row_of(r) * v.stride(1) + head * v.stride(2));
        };
        of_o[r] = at(o), of_dout[r] = at(dout);
      }
      const row_terms terms = p.call.terms_of(sequence, head, row_of(own), 0);
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // it runs once but for elements one by one; four times in a row take 128 registers and spill in fp32
#endif
      for (int64 d = lane * Run; d < width; d += lanes * Run) {
        part a[rows_of_lane], b[rows_of_lane];
        GIWA_UNROLL
        for (int r = 0; r < rows_of_lane; ++r) a[r] = part::read(of_o[r] + d), b[r] = part::read(of_dout[r] + d);
        GIWA_UNROLL
        for (int r = 0; r < rows_of_lane; ++r) {
          GIWA_UNROLL
          for (int k = 0; k < Run; ++k)
            sum[r] = multiply_add(convert<float>{}(b[r].get(k)), convert<float>{}(a[r].get(k)), sum[r]);
        }
      }
      // Half of the lanes go on with half of the rows, twice: five shuffles for four rows instead of sixteen.
      const float total = sum_of_lanes(block, lane, sum);
      if (lane % (lanes / 4) == 0 && first + own < rows)
        p.call.terms_at(sequence, head, first + own) = {terms.lse, total + terms.delta};
    }
  }
  template <class Block>
  GIWA_HOST_DEVICE static float sum_of_lanes(const Block& block, int lane, const float (&of)[rows_of_lane]) {
    const bool upper = (lane & lanes / 2) != 0, odd = (lane & lanes / 4) != 0;
    float two[2];
    GIWA_UNROLL
    for (int r = 0; r < 2; ++r)
      two[r] = (upper ? of[2 + r] : of[r]) + block.shuffle_xor(upper ? of[r] : of[2 + r], lanes / 2);
    float sum = (odd ? two[1] : two[0]) + block.shuffle_xor(odd ? two[0] : two[1], lanes / 4);
    GIWA_UNROLL
    for (int mask = lanes / 8; mask > 0; mask /= 2) sum += block.shuffle_xor(sum, mask);
    return sum;
  }
};

/// Lists the tiles of keys and of queries for the kernel of all gradients, a warp each for 32 sequences. The terms come meanwhile. In
/// row_terms_op this code, even unused, made short calls 1 % slower (H200, 2026-11-30).
template <class Params>
struct list_tiles_op {
  static constexpr int max_threads = 64, min_blocks = 1;
  using params = Params;
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const Params& p, shared_storage&) const {
    arch::launch_dependents();
#if defined(GIWA_RANDOM_DELAYS) && defined(__CUDA_ARCH__)
    arch::sleep_at_random();
#endif
    const auto& in = p.views.in;
    const auto list = [&](const tile_list& to, int together, int rows, const auto& rows_of) {
      list_tiles(
          block, block.block_rank(), block.block_count(), in.sequence_count(), together, to,
          [&](int n) { return ceil_div(rows_of(p.call.place_of(n, 0)), rows); },
          [&](int n, int tile) {
            const head_place h = p.call.place_of(n, 0);
            return listed_tile{n, tile, h.first_query_row, h.first_key_row, h.queries(), h.keys()};
          });
    };
    const backward_workspace& w = p.workspace;
    if (block.warp() == 0)
      list(w.keys, w.together, shared_key_rows, [](const head_place& h) { return h.keys(); });
    else
      list(w.queries, 1, static_cast<int>(dq_parts::rows_of_tile(in.q.extent(3), in.v.extent(3))),
           [](const head_place& h) { return h.queries(); });
  }
};

/// Sets `to` to the sum of value(head, query) over all rows of a head, or adds it: a gradient of a number that the head has.
/// In a fixed order, and in fp64, because it may be over millions of rows. All threads of the block call it.
template <class Block, class Params, class Value>
GIWA_HOST_DEVICE void sum_rows(const Block& block, const Params& p, int head, block_partials<double>& partials,
                               float& to, const Value& value) {
  double sum = 0;
  for (int64 b = 0; b < p.views.in.sequence_count(); ++b) {
    const auto h = p.call.at(static_cast<int>(b), head);
    for (int query = block.rank(); query < h.queries(); query += block.size()) sum += value(h, query);
  }
  const auto of_block = static_cast<float>(reduce_block(block, sum, partials));
  if (block.rank() == 0) to = p.accumulate ? to + of_block : of_block;
}

/// Computes the gradient of the sinks from the terms, a block for each head: minus the sum of P delta over its rows, P being
/// the weight of the sink.
template <class Params>
struct sink_gradient_op {
  static constexpr int max_threads = 256, min_blocks = 1;
  using params = Params;
  struct shared_storage {
    block_partials<double> partials;
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const Params& p, shared_storage& s) const {
    const int head = static_cast<int>(block.block_rank());
    const float sink = p.call.sinks[head * p.call.sink_stride];
    sum_rows(block, p, head, s.partials, p.dsinks.data()[head * p.dsinks.stride(0)], [&](const auto& h, int query) {
      const row_terms t = p.terms_at(h.sequence, head, h.first_query_row + query);
      return -(static_cast<double>(device_exponential{}(sink - t.lse)) * static_cast<double>(t.delta));
    });
  }
};

/// What a thread sums of the gradients of Count parameters, for each of its rows of q. Map is that of the scores.
template <class Map, int Count>
struct parameter_sums {
  float value[Map::rows][Count] = {};

  GIWA_HOST_DEVICE float* of(int slot) { return value[slot]; }
  /// Writes the sums of whole rows to the workspace; row 0 of the map is query `first`. All lanes of the warp call it.
  template <class Block, class Params>
  GIWA_HOST_DEVICE void store(const Block& block, int thread, const Params& p, const head_place& h, int first) const {
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) {
      float of_rows[Map::rows];
      GIWA_UNROLL
      for (int slot = 0; slot < Map::rows; ++slot) of_rows[slot] = value[slot][i];
      reduce_over_lanes<Map>(block, of_rows, plus{});
      GIWA_UNROLL
      for (int slot = 0; slot < Map::rows; ++slot) {
        const int query = first + Map::row(thread, slot);
        if (thread % Map::lanes == 0 && query < h.queries()) p.parameter_sums_at(h, query)[i] = of_rows[slot];
      }
    }
  }
};
/// Of a modifier without parameters: nothing.
template <class Map>
struct parameter_sums<Map, 0> {
  GIWA_HOST_DEVICE float* of(int) { return nullptr; }
  template <class Block, class Params>
  GIWA_HOST_DEVICE void store(const Block&, int, const Params&, const head_place&, int) const {}
};

/// Computes the gradients of the parameters of a score modifier from the sums of the rows, a block for each head.
template <class Params>
struct parameter_gradient_op {
  static constexpr int max_threads = 256, min_blocks = 1;
  using params = Params;
  struct shared_storage {
    block_partials<double> partials;
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const Params& p, shared_storage& s) const {
    using gradients = gradient_of<stdlib::remove_cvref_t<decltype(p.call.score)>>;
    const int head = static_cast<int>(block.block_rank());
    for (int i = 0; i < Params::parameters; ++i)
      sum_rows(block, p, head, s.partials, gradients::output(p.call.score, i, head),
               [&](const auto& h, int query) { return static_cast<double>(p.parameter_sums_at(h, query)[i]); });
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
