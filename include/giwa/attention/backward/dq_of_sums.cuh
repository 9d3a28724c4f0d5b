// SPDX-License-Identifier: MIT
// dq from the sums that the kernel for all gradients leaves in the workspace.
#ifndef GIWA_ATTENTION_BACKWARD_DQ_OF_SUMS_CUH
#define GIWA_ATTENTION_BACKWARD_DQ_OF_SUMS_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/backward/params.hpp>
#include <giwa/attention/backward/store_gradient.cuh>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Writes dq from its sums, a block for each part (dq_parts) of a head.
template <class Params, int HeadSize, int Rows>
struct dq_of_sums_op {
  static constexpr int max_threads = 128, min_blocks = 4;
  static constexpr int rows_of_tile = Rows;
  static constexpr bool by_queries = rows_of_tile == 128;
  static constexpr int parts = dq_parts::of_tile(HeadSize);
  struct params {
    Params call;
    int64 tiles;  // of a sequence; a block takes every tiles-th tile of a sequence whose length only the device knows
  };
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    const int64 heads = p.call.views.in.q.extent(2), sequences = p.call.views.in.sequence_count();
    for (int64 i = block.block_rank(); i < parts * sequences * heads * p.tiles; i += block.block_count()) {
      const int64 tile = i / parts, row = tile / p.tiles;
      const auto h = p.call.call.at(static_cast<int>(row / heads), static_cast<int>(row % heads));
      for (int64 n = tile % p.tiles; n * rows_of_tile < h.queries(); n += p.tiles)
        write(block, p.call, h, static_cast<int>(n), static_cast<int>(i % parts));
    }
  }

 private:
  static constexpr int floats = dq_parts::floats(Rows);

  template <class Block>
  GIWA_DEVICE static void write(const Block& block, const Params& p, const typename Params::head& h, int n, int index) {
    const int first = p.dq_part_of(h, n, Rows);
    const float* const from =
        p.workspace.added[first] == 0 ? nullptr : p.workspace.dq + static_cast<int64>(first + index) * floats;
    const auto dq = p.query_rows(p.views.dq, h);
    const int column = by_queries ? 0 : 64 * index;
    if constexpr (dq_parts::are_transposed(Rows)) {
      write_transposed(block, p, dq, from, n * Rows, column);
    } else {
      register_tile<float, warpgroup_map<64>> sums;
      sums.fill(0);
      if (from != nullptr) {
        GIWA_UNROLL
        for (int i = 0; i < 8; ++i) {
          if (column + 8 * i >= HeadSize) break;  // dq_parts::used_floats
          const float4 four = *reinterpret_cast<const float4*>(from + dq_parts::offset(Rows, block.rank(), i));
          sums.value[4 * i] = four.x, sums.value[4 * i + 1] = four.y;
          sums.value[4 * i + 2] = four.z, sums.value[4 * i + 3] = four.w;
        }
      }
      store_gradient(block, block.rank(), sums, dq, n * Rows + (by_queries ? 64 * index : 0), p.call.scale,
                     p.accumulate, column);
    }
  }
  /// A part of (64 columns, Rows queries). A thread writes 16 bytes of a query, of which each element is in another thread's
  /// registers of the accumulator: eight lanes read 128 bytes together.
  template <class Block, class G>
  GIWA_DEVICE static void write_transposed(const Block& block, const Params& p, const tensor_view<G, 2>& dq,
                                           const float* from, int first_row, int first_column) {
    constexpr int run = 16 / static_cast<int>(sizeof(G)), runs = 64 / run;
    const bool aligned = reinterpret_cast<uint64>(dq.data()) % 16 == 0 && dq.stride(0) % run == 0;
    for (int i = block.rank(); i < Rows * runs; i += max_threads) {
      const int query = i / runs, row = first_row + query, of_part = i % runs * run, column = first_column + of_part;
      if (row >= dq.extent(0) || column >= dq.extent(1)) continue;
      const int thread = of_part / 16 * 32 + of_part % 8 * 4 + query % 8 / 2;
      const int at = dq_parts::offset(Rows, thread, query / 8) + of_part % 16 / 8 * 2 + query % 2;
      const int columns = dq.extent(1) - column < run ? static_cast<int>(dq.extent(1) - column) : run;
      G* const to = dq.data() + row * dq.stride(0) + column;
      element_run<G, run> values = element_run<G, run>::filled(convert<G>{}(0.0f));
      GIWA_UNROLL
      for (int k = 0; k < run; ++k) {
        float x = (from == nullptr ? 0.0f : from[at + dq_parts::offset(Rows, 4 * k, 0)]) * p.call.scale + 0.0f;
        if constexpr (sizeof(G) == 4)
          if (p.accumulate && k < columns) x += to[k];
        values.set(k, convert<G>{}(x));
      }
      if (aligned && columns == run)
        values.write(to);
      else
        for (int k = 0; k < columns; ++k) to[k] = values.get(k);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
