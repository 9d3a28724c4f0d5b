// SPDX-License-Identifier: MIT
// The state of a consumer warpgroup of the Hopper kernel across work tiles, its ping-pong, and its queries as split fp16.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_CONSUMER_STATE_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_CONSUMER_STATE_SM90_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/arch/reduce_warp.cuh>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/arch/wgmma.cuh>
#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>
#include <giwa/attention/score/score_steps.cuh>
#include <giwa/attention/split_fp16/numbers.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The keys of a work tile are summed at once. A kernel that sums splits of them separately
/// (kernels/sm90/many_rows_splits_sm90.cuh) has another type with these members.
struct keys_at_once {
  static constexpr bool at_once = true;
  GIWA_DEVICE void see_tile(int) const {}
  template <class QueryRows>
  GIWA_DEVICE void begin_softmax(QueryRows&) const {}
  template <class QueryRows>
  GIWA_DEVICE void take_output(QueryRows&) const {}
  /// Waits for the last product.
  template <class QueryRows>
  GIWA_DEVICE void wait_for_output(QueryRows&) const {
    arch::wgmma_wait<0>();
  }
};

/// Alternates the use of the tensor cores: the products of one consumer run while the others compute their softmax.
template <class Types>
struct sm90_pingpong {
  static constexpr int threads = 256;
  int own, next;  // named barriers of this consumer and of the next one

  GIWA_DEVICE explicit sm90_pingpong(int consumer)
      : own(Types::barrier_of(Types::named_barrier::pingpong, consumer)),
        next(consumer + 1 == Types::consumers ? Types::barrier_of(Types::named_barrier::pingpong, 0) : own + 1) {}
  GIWA_DEVICE void acquire() const {
    if constexpr (Types::policy::uses_pingpong) arch::barrier_sync(own, threads);
  }
  GIWA_DEVICE void release() const {
    if constexpr (Types::policy::uses_pingpong) arch::barrier_arrive(next, threads);
  }
};

/// The state of a consumer across work tiles.
template <class Types, class Block>
struct sm90_consumer {
  using policy = typename Types::policy;
  using shared_storage = typename Types::shared_storage;
  using steps_of_scores = score_steps<typename Types::mask, typename Types::score>;

  const Block& block;
  const typename Types::params& p;
  shared_storage& s;
  const int index, thread;
  steps_of_scores steps;
  const sm90_pingpong<Types> pingpong;
  decltype(s.k.consumer(block)) keys;
  decltype(s.v.consumer(block)) values;
  uint32 scrub_phases = 0;  // bit i: the phase of scrubbed[i]
  bool needs_scale;         // scores are multiplied by the scale before the softmax

  GIWA_DEVICE sm90_consumer(const Block& b, const typename Types::params& params, shared_storage& storage)
      : block(b),
        p(params),
        s(storage),
        index(index_of(b)),
        thread(b.rank() % 128),
        steps{params.call.mask, params.call.score, params.call.scale, dropout_key(b, params.call.score)},
        pingpong(index),
        keys(storage.k.consumer(b)),
        values(storage.v.consumer(b)),
        needs_scale(!steps_of_scores::modified && steps.scale_first()) {}

  /// Whether a condition holds in any thread of the consumer, for a branch that all its warps take. The vote tells the compiler that
  /// all threads of a warp agree.
  GIWA_DEVICE bool any_of_consumer(bool condition) const {
    return block.any(arch::barrier_any(Types::barrier_of(Types::named_barrier::of_consumer, index), 128, condition));
  }
  /// Lets the loader overwrite the queries.
  GIWA_DEVICE void release_q() const {
    block.sync_warp();
    if (block.lane() == 0) s.q_empty[index].arrive();
  }

 private:
  // Uses votes, because their results tell the compiler that all threads of a warp agree.
  GIWA_DEVICE static int index_of(const Block& block) {
    const int warpgroup = block.warp() / 4 - 1;
    return (block.any((warpgroup & 1) != 0) ? 1 : 0) + (block.any((warpgroup & 2) != 0) ? 2 : 0);
  }
};

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
