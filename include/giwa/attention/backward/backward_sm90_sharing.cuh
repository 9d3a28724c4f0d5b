// SPDX-License-Identifier: MIT
// How blocks of the Hopper kernel of all gradients share a tile of keys: sums of dk and dv go to the last of them.
#ifndef GIWA_ATTENTION_BACKWARD_BACKWARD_SM90_SHARING_CUH
#define GIWA_ATTENTION_BACKWARD_BACKWARD_SM90_SHARING_CUH

#include <giwa/arch/acquire_release.cuh>
#include <giwa/attention/backward/params.hpp>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Leaves a warp's sums, NaN included, for the last sharer of its keys.
template <class Block, class Place, class Sums, class... Others>
GIWA_DEVICE void leave_sums(const Block& block, const Place& at, int share, const Sums& sums, const Others&... others) {
  float4* to = reinterpret_cast<float4*>(at.first + share * at.stride) + block.lane();
  const auto leave = [&](const auto& of) {
    constexpr int count = sizeof(of.value) / sizeof(float4);
    GIWA_UNROLL
    for (int i = 0; i < count; ++i, to += 32)
      *to = make_float4(of.value[4 * i], of.value[4 * i + 1], of.value[4 * i + 2], of.value[4 * i + 3]);
  };
  leave(sums);
  (leave(others), ...);
  block.sync_warp();
  if (block.lane() == 0) arch::add_release(at.arrived, 1);
}

/// Adds to a warp's sums those that `count` sharers leave, in their order. It does not wait forever: they are claimed before.
template <class Block, class Place, class Sums, class... Others>
GIWA_DEVICE void add_left_sums(const Block& block, const Place& at, int count, Sums& sums, Others&... others) {
#if defined(GIWA_RANDOM_DELAYS)
  arch::sleep_at_random();
#endif
  while (arch::load_acquire(at.arrived) < count) {
  }
  block.sync_warp();
#pragma unroll 1
  for (int share = 0; share < count; ++share) {
    const float4* from = reinterpret_cast<const float4*>(at.first + share * at.stride) + block.lane();
    const auto add = [&](auto& to) {
      constexpr int runs = sizeof(to.value) / sizeof(float4);
      GIWA_UNROLL
      for (int i = 0; i < runs; ++i, from += 32) {
        const float4 four = *from;
        to.value[4 * i] += four.x, to.value[4 * i + 1] += four.y;
        to.value[4 * i + 2] += four.z, to.value[4 * i + 3] += four.w;
      }
    };
    add(sums);
    (add(others), ...);
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
