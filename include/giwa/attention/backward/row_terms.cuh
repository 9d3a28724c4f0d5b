// SPDX-License-Identifier: MIT
// The kernels of attention_backward that read rows of q alone: lse and delta of each row, and the gradient of the sinks.
#ifndef GIWA_ATTENTION_BACKWARD_ROW_TERMS_CUH
#define GIWA_ATTENTION_BACKWARD_ROW_TERMS_CUH

#include <giwa/attention/backward/params.hpp>
#include <giwa/grid/op.hpp>
#include <giwa/grid/reduce.hpp>
#include <giwa/softmax/device_exponential.cuh>

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

/// Computes the gradient of the sinks from the terms, a block for each head: minus the sum of P delta over its rows in a
/// fixed order, P being the weight of the sink. The sum is in fp64, because it may be over millions of rows.
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
    double sum = 0;
    for (int64 b = 0; b < p.views.in.sequence_count(); ++b) {
      const auto h = p.call.at(static_cast<int>(b), head);
      for (int query = block.rank(); query < h.queries(); query += block.size()) {
        const row_terms t = p.terms_at(h.sequence, head, h.first_query_row + query);
        sum -= static_cast<double>(device_exponential{}(sink - t.lse)) * static_cast<double>(t.delta);
      }
    }
    sum = reduce_block(block, sum, s.partials);
    if (block.rank() != 0) return;
    float& to = p.dsinks.data()[head * p.dsinks.stride(0)];
    to = p.accumulate ? to + static_cast<float>(sum) : static_cast<float>(sum);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
