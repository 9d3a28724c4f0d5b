// SPDX-License-Identifier: MIT
// dq from the sums that the kernel for all gradients leaves in the workspace.
#ifndef GIWA_ATTENTION_KERNELS_SIMT_DQ_OF_SUMS_CUH
#define GIWA_ATTENTION_KERNELS_SIMT_DQ_OF_SUMS_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/kernels/simt/store_gradient.cuh>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Writes dq from its sums, a block for each part (dq_parts) of a head.
template <class Params, int HeadSize, int HeadSizeV>
struct dq_of_sums_op {
  static constexpr int max_threads = 128, min_blocks = 4;
  static constexpr int rows_of_tile = dq_parts::rows_of_tile(HeadSize, HeadSizeV);
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
  template <class Block>
  GIWA_DEVICE static void write(const Block& block, const Params& p, const typename Params::head& h, int n, int index) {
    register_tile<float, warpgroup_map<64>> sums;
    sums.fill(0);
    const int first = p.dq_part_of(h, n), part = first + index;
    const float* const from = p.workspace.dq + static_cast<int64>(part) * dq_parts::floats;
    const int columns = dq_parts::columns_of(HeadSize, HeadSizeV, index);
    if (p.workspace.added[first] != 0) {
      GIWA_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (8 * i >= columns) break;
        const float4 four = *reinterpret_cast<const float4*>(from + dq_parts::offset(block.rank(), i));
        sums.value[4 * i] = four.x, sums.value[4 * i + 1] = four.y;
        sums.value[4 * i + 2] = four.z, sums.value[4 * i + 3] = four.w;
      }
    }
    store_gradient(block, block.rank(), sums, p.query_rows(p.views.dq, h),
                   n * rows_of_tile + (by_queries ? 64 * index : 0), p.call.scale, p.accumulate,
                   by_queries ? 0 : 64 * index);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
