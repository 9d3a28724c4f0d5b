// SPDX-License-Identifier: MIT
// The queries of the Hopper kernel in fp32: a consumer reads its rows and writes them as split fp16, in place of a pass and TMA.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_SPLIT_QUERIES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_SPLIT_QUERIES_SM90_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/arch/reduce_warp.cuh>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/attention/kernels/sm90/forward_consumer_state_sm90.cuh>
#include <giwa/attention/split_fp16/numbers.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Splits the queries of a consumer, each of its four warps 16 rows, and returns their exponent. A head that split fp16 does not
/// represent is left to the fallback kernel, and what this kernel computes for it is overwritten. All threads of the consumer call it,
/// when its products with the queries of the previous work tile are complete.
template <class Types, class Block>
GIWA_DEVICE int split_queries(const sm90_consumer<Types, Block>& c, const typename Types::work_tile& work) {
  using numbers = split_numbers;
  constexpr int rows = 16, pairs = ceil_div(Types::head_size, 64), parts = Types::policy::parts;
  const auto head = c.p.call.at(work.head.get());
  const int warp_row = c.thread / 32 * rows, first = Types::queries_of(work, c.index).first + warp_row,
            lane = c.block.lane(), left = head.queries() - first;
  // All threads agree, and the vote tells the compiler so: without it the loop has 20 to 40 instructions more (64 and 128), because
  // its uniform values move to the registers of each thread.
  if (!c.block.any(left + warp_row > 0)) return 0;

  const float* const from = head.q.data() + int64{first} * head.q.stride(0);
  const int width = static_cast<int>(head.q.extent(1));
  const bool aligned = reinterpret_cast<uint64>(head.q.data()) % 8 == 0 && head.q.stride(0) % 2 == 0 && width % 2 == 0;
  float2 x[rows][pairs];
  GIWA_UNROLL
  for (int r = 0; r < rows; ++r)
    numbers::read_row(lane, from + r * head.q.stride(0), r < left ? width : 0, aligned, x[r]);
  uint32 of_lane = 0, largest = 0;  // of the row that has the lane's number, and of all
  GIWA_UNROLL
  for (int r = 0; r < rows; ++r) {
    const uint32 of_row = arch::largest_of_warp(numbers::largest_of(x[r]));
    if (lane == r) of_lane = of_row;
    largest = numbers::larger_of(largest, of_row);
  }
  const int barrier = Types::barrier_of(Types::named_barrier::of_consumer, c.index);
  uint32(&of_warps)[4] = c.s.largest_of_q.of_warps[c.index];
  if (lane == 0) of_warps[c.thread / 32] = largest;
  arch::barrier_sync(barrier, 128);  // no warp still reads the previous queries
  largest = arch::largest_of_warp(of_warps[lane % 4]);

  const split_range group{largest};
  if (c.block.any(!group.contains_group() || group.is_beyond(of_lane)) && lane == 0) {
    c.p.split.fallback[int64{head.batch} * c.p.call.views.q.extent(2) + head.head] = split_tensors::by_kernel;
    *c.p.split.any_fallback = 1;
  }
  const int exponent = group.contains_group() ? exponent_for(__uint_as_float(largest)) : 0;
  const float factor = power_of_two(-exponent);
  auto& to = c.s.rows[c.index].q;
  GIWA_UNROLL
  for (int r = 0; r < rows; ++r) {
    GIWA_UNROLL
    for (int k = 0; k < pairs; ++k) {
      const split_fp16_pair two = split(x[r][k].x * factor, x[r][k].y * factor);
      const int column = 64 * k + 2 * lane;
      *reinterpret_cast<__half2*>(&to(warp_row + r, column)) = two.hi;
      if constexpr (parts == 2) *reinterpret_cast<__half2*>(&to(warp_row + r, column + 64 * pairs)) = two.lo;
    }
  }
  arch::fence_async_proxy();
  arch::barrier_sync(barrier, 128);
  return exponent;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
