// SPDX-License-Identifier: MIT
// The state of a consumer warpgroup of the Hopper kernel across work tiles, and its ping-pong.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_CONSUMER_STATE_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_CONSUMER_STATE_SM90_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>
#include <giwa/attention/score/score_steps.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The keys of a work tile are summed at once. A kernel that sums splits of them separately
/// (kernels/sm90/many_rows_splits_sm90.cuh) has another type with these members.
struct keys_at_once {
  GIWA_DEVICE void see_tile(int) const {}
  template <class QueryRows>
  GIWA_DEVICE void begin_softmax(QueryRows&) const {}
  template <class QueryRows>
  GIWA_DEVICE void take_output(QueryRows&) const {}
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
  const bool needs_scale;   // scores are multiplied by the scale before the softmax

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

}  // namespace giwa::inline GIWA_ABI::detail

#endif
