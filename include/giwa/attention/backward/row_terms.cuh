// SPDX-License-Identifier: MIT
// What attention_backward computes of rows of q alone: lse and delta of each row, the gradient of the sinks, and the gradients
// of the parameters of a score modifier.
#ifndef GIWA_ATTENTION_BACKWARD_ROW_TERMS_CUH
#define GIWA_ATTENTION_BACKWARD_ROW_TERMS_CUH

#include <giwa/attention/backward/params.hpp>
#include <giwa/grid/op.hpp>
#include <giwa/grid/reduce.hpp>
#include <giwa/softmax/device_exponential.cuh>
#include <giwa/tile/register_tile.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Writes the terms of all rows of q to the workspace, a warp for four rows at once, whose loads overlap. Rows of no sequence
/// get terms too, which no kernel reads.
template <class Params>
struct row_terms_op {
  static constexpr int rows_of_warp = 4;
  static constexpr int max_threads = 256, min_blocks = 4, rows_of_block = max_threads / 32 * rows_of_warp;
  using params = Params;
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const Params& p, shared_storage&) const {
    const auto& o = p.views.in.o;
    const auto& dout = p.views.dout;
    const int64 heads = o.extent(2), rows = o.extent(1), width = o.extent(3);
    const int64 all = o.extent(0) * rows * heads, step = block.block_count() * rows_of_block;
    for (int64 first = block.block_rank() * rows_of_block + block.warp() * rows_of_warp; first < all; first += step) {
      int64 of_o[rows_of_warp], of_dout[rows_of_warp];
      float sum[rows_of_warp];
      GIWA_UNROLL
      for (int r = 0; r < rows_of_warp; ++r) {
        const int64 i = first + r < all ? first + r : all - 1, row = i / heads;
        const auto at = [&](const auto& v) {
          return row / rows * v.stride(0) + row % rows * v.stride(1) + i % heads * v.stride(2);
        };
        of_o[r] = at(o), of_dout[r] = at(dout), sum[r] = 0;
      }
      for (int64 d = block.lane(); d < width; d += 32) {
        GIWA_UNROLL
        for (int r = 0; r < rows_of_warp; ++r)
          sum[r] = multiply_add(convert<float>{}(dout.data()[of_dout[r] + d]), convert<float>{}(o.data()[of_o[r] + d]),
                                sum[r]);
      }
      float own = 0;
      GIWA_UNROLL
      for (int r = 0; r < rows_of_warp; ++r) {
        const float of_row = reduce_warp(block, sum[r]);
        if (block.lane() == r) own = of_row;
      }
      const int64 i = first + block.lane(), row = i / heads;
      if (block.lane() < rows_of_warp && i < all)
        p.terms_at(row / rows, i % heads, row % rows) = p.terms_of(row / rows, i % heads, row % rows, own);
    }
  }
};

/// Sums value(head, query) over all rows of a head, in a fixed order; all threads of the block get the sum. In fp64,
/// because it may be over millions of rows.
template <class Block, class Params, class Value>
GIWA_HOST_DEVICE double sum_of_rows(const Block& block, const Params& p, int head, block_partials<double>& partials,
                                    const Value& value) {
  double sum = 0;
  for (int64 b = 0; b < p.views.in.sequence_count(); ++b) {
    const auto h = p.call.at(static_cast<int>(b), head);
    for (int query = block.rank(); query < h.queries(); query += block.size()) sum += value(h, query);
  }
  return reduce_block(block, sum, partials);
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
    const double sum = sum_of_rows(block, p, head, s.partials, [&](const auto& h, int query) {
      const row_terms t = p.terms_at(h.sequence, head, h.first_query_row + query);
      return -(static_cast<double>(device_exponential{}(sink - t.lse)) * static_cast<double>(t.delta));
    });
    if (block.rank() != 0) return;
    float& to = p.dsinks.data()[head * p.dsinks.stride(0)];
    to = p.accumulate ? to + static_cast<float>(sum) : static_cast<float>(sum);
  }
};

/// What a thread sums of the gradients of Count parameters, for each of its rows of q. Map is that of the scores.
template <class Map, int Count>
struct parameter_sums {
  float value[Map::rows][Count] = {};

  GIWA_HOST_DEVICE float* of(int slot) { return value[slot]; }
  /// Writes the sums of whole rows to the workspace; row 0 of the map is query `first`. All lanes of the warp call it.
  template <class Block, class Params>
  GIWA_HOST_DEVICE void store(const Block& block, int thread, const Params& p, const typename Params::head& h,
                              int first) const {
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
  GIWA_HOST_DEVICE void store(const Block&, int, const Params&, const typename Params::head&, int) const {}
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
    for (int i = 0; i < Params::parameters; ++i) {
      const double sum = sum_of_rows(block, p, head, s.partials, [&](const auto& h, int query) {
        return static_cast<double>(p.parameter_sums_at(h, query)[i]);
      });
      if (block.rank() != 0) continue;
      float& to = gradients::output(p.call.score, i, head);
      to = p.accumulate ? to + static_cast<float>(sum) : static_cast<float>(sum);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
