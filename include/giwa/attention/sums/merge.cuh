// SPDX-License-Identifier: MIT
// merge_attention on a stream: some lanes of a warp for each row, a vector of elements for each lane.
#ifndef GIWA_ATTENTION_SUMS_MERGE_CUH
#define GIWA_ATTENTION_SUMS_MERGE_CUH

#include <giwa/attention/call/merge.hpp>
#include <giwa/attention/sums/merge_parts.hpp>
#include <giwa/device/pointer.hpp>
#include <giwa/grid/launch.cuh>
#include <giwa/numeric/fast_division.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Merges rows of parts. A group of lanes has a row: they all read its lse before one of them writes it, so that o and
/// lse may be those of a part.
template <class T, class O, int Count>
struct merge_op {
  static constexpr int max_threads = 256, min_blocks = 4, warps = max_threads / 32;

  struct params {
    merge_views<T, O> m;
    int lanes;  // of a row: a power of two
    int64 rows;
    fast_divisor heads, queries;
  };
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block plain_block, const params& p, shared_storage&) const {
    const auto block = with_threads<max_threads>(plain_block);
    const merge_views<T, O>& m = p.m;
    const int rows_of_warp = 32 / p.lanes, lane = block.lane() % p.lanes;
    const int64 step = block.block_count() * warps * rows_of_warp;
    const int64 first = (block.block_rank() * warps + block.warp()) * rows_of_warp;
    // All lanes of a warp go round equally often: they meet in sync_warp.
    for (int64 begin = first; begin < p.rows; begin += step) {
      const int64 row = begin + block.lane() / p.lanes;
      const bool has_row = row < p.rows;
      const int64 at = has_row ? row : begin, token = at / p.heads, head = at - token * p.heads.divisor();
      const int64 batch = token / p.queries, query = token - batch * p.queries.divisor();
      const float* const lse = m.lse_of(batch, query, head);
      const softmax_state<float> all = m.state_of(lse);
      const T* const part = m.part_of(batch, query, head);
      O* const o = m.output_of(batch, query, head);
      const int64 size = has_row ? m.o.extent(3) : 0;
      for (int64 column = int64{lane} * Count; column < size; column += int64{p.lanes} * Count) {
        float sum[Count];
        merge_elements<Count>(all, m.parts(), part + column, m.parts_o.stride(0), lse, m.parts_lse.stride(0), sum);
        merge_packet<O, Count> out;
        for (int e = 0; e < Count; ++e) out.element[e] = convert<O>{}(sum[e]);
        store_vector(o + column, out);
      }
      block.sync_warp();
      if (has_row && lane == 0 && m.lse.data() != nullptr)
        m.lse.data()[batch * m.lse.stride(0) + head * m.lse.stride(1) + query * m.lse.stride(2)] = all.lse();
    }
  }
};

/// The params of an op, and the number of its blocks.
template <class Op, class T, class O>
typename Op::params merge_params(const merge_views<T, O>& m, int count) {
  int lanes = 1;
  while (lanes < 32 && int64{lanes} * count < m.o.extent(3)) lanes *= 2;
  return {m, lanes, m.o.extent(0) * m.o.extent(1) * m.o.extent(2), fast_divisor(m.o.extent(2)),
          fast_divisor(m.o.extent(1))};
}
template <class Op>
int64 merge_blocks(const typename Op::params& p) {
  constexpr int64 most = 1 << 20;  // blocks: the others are rounds of these
  const int64 blocks = ceil_div(p.rows, int64{Op::warps} * (32 / p.lanes));
  return blocks < most ? blocks : most;
}

inline namespace GIWA_ARCH_TAG {

template <class T>
struct stream_merge {
  template <class O>
  static status run(cudaStream_t s, const merge_views<T, O>& m) {
    const status bad =
        check_named_pointers({{m.parts_o, "parts_o"}, {m.parts_lse, "parts_lse"}, {m.o, "o"}, {m.lse, "lse"}});
    if (!bad.ok()) return bad;
    constexpr int count = 16 / static_cast<int>(sizeof(T) > sizeof(O) ? sizeof(T) : sizeof(O));
    if (rows_are_aligned(m.parts_o, count * int64{sizeof(T)}) && rows_are_aligned(m.o, count * int64{sizeof(O)}))
      return launch_op<merge_op<T, O, count>>(s, m, count);
    return launch_op<merge_op<T, O, 1>>(s, m, 1);
  }

 private:
  template <class Op, class O>
  static status launch_op(cudaStream_t s, const merge_views<T, O>& m, int count) {
    const auto p = merge_params<Op>(m, count);
    return launch(s, {.grid = merge_blocks<Op>(p), .block = Op::max_threads}, Op{}, p);
  }
};

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI::detail

#endif
