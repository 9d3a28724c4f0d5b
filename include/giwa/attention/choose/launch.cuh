// SPDX-License-Identifier: MIT
// The work tiles of a call on a grid: one block for each, in as many launches as the limits of a grid require.
#ifndef GIWA_ATTENTION_CHOOSE_LAUNCH_CUH
#define GIWA_ATTENTION_CHOOSE_LAUNCH_CUH

#include <giwa/attention/choose/candidates.cuh>
#include <giwa/attention/problem/params.hpp>
#include <giwa/attention/work/work_tiles.hpp>
#include <giwa/tile/tile_map.hpp>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Returns a tensor with its dimensions in the order of the tensor maps: (sequence, head, row, head size).
template <class T>
tensor_view<T, 4> heads_first(const tensor_view<T, 4>& v) {
  return v.transposed(1, 2);
}

/// Encodes the tensor map of a view of the order of heads_first(), for copies of `Tile`. Nothing happens where `state` has failed.
/// `how`: rows and promotion of make_tile_map().
template <class Tile>
void encode_map(tensor_map& to, const auto& view, const char* argument, tensor_map_encoder encoder, status& state,
                const auto&... how) {
  if (!state.ok()) return;
  const result<tensor_map> map = make_tile_map<Tile>(view, argument, encoder, how...);
  to = map.value, state = map.state;
}

/// Returns the work tiles of a call for an op with block_m queries per tile, Op's or fewer. The keys and values of the heads of a
/// section have up to `section_bytes` bytes. The tiles of clusters all have the same amount
/// of work, so none must come first: one head of k follows another, and neighbouring blocks read the same keys. 2026-11-27,
/// full, fp16, against sections of 24 MB, at 512 and 1024 tokens: 128 1.05 and 1.03 on an H100, 1.01 and 1.00 on an H200, 256
/// 1.07 and 1.01, 1.02 and 1.025; from 2048 on 0.98 to 1.01.
template <class Op, class T, class O, class Mask, class Score>
attention_schedule schedule_of(const attention_params<T, O, Mask, Score>& call, int slices, int cluster = 1,
                               int block_m = Op::block_m, int section_bytes = 24 << 20) {
  // No sequence is longer than all queries together, whatever max_q says.
  const int64 all = call.views.q.extent(1), said = call.views.packed.max_q, longest = said < all ? said : all;
  const attention_problem p = call.views.problem();
  const int bytes = static_cast<int>(p.head_size + p.head_size_v) * static_cast<int>(sizeof(T));
  if (cluster > 1) return attention_schedule::of(p, longest, block_m * cluster, slices, bytes, p.heads / p.kv_heads, 0);
  return attention_schedule::of(p, longest, block_m, slices, bytes, 1, section_bytes);
}

/// A kernel with one block for each work tile of `params.schedule`.
template <class Op>
struct prepared_tiles {
  typename Op::params params;

  const auto& call() const { return params.call; }
  static status make(void* to, const typename Op::params& params) {
    ::new (to) prepared_tiles{params};
    return allow_op<Op>({.grid = 1, .block = Op::max_threads});
  }

  /// One launch, or several if the grid would exceed its limit.
  status launch(cudaStream_t s) const {
    constexpr int64 most = launch_limits::grid_x;
    const int64 tiles = params.schedule.work_tiles;
    status state = launch_blocks(s, params, tiles < most ? tiles : most);
    if (tiles <= most) return state;
    typename Op::params p = params;
    for (p.schedule.first = most; state.ok() && p.schedule.first < tiles; p.schedule.first += most)
      state = launch_blocks(s, p, tiles - p.schedule.first < most ? tiles - p.schedule.first : most);
    return state;
  }

 private:
  static status launch_blocks(cudaStream_t s, const typename Op::params& p, int64 blocks) {
    return enqueue_op(s, {.grid = blocks, .block = Op::max_threads}, Op{}, p);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
