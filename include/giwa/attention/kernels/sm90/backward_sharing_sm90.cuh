// SPDX-License-Identifier: MIT
// How blocks of the Hopper kernel of all gradients share a tile of keys: the last one adds their sums of dk and dv.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_SHARING_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_SHARING_SM90_CUH

#include <giwa/arch/acquire_release.cuh>
#include <giwa/arch/mbarrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/problem/backward_params.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Which warp of the consumers a thread is in, computed where it is used: otherwise it is kept during the loop of
/// tiles, and spilled.
struct warp_of_sums {
  int warp, lane;
  GIWA_DEVICE static warp_of_sums here() {
    const int rank = arch::read_thread_rank();
    return {rank / 32 - 4, rank % 32};  // after the loader's warpgroup
  }
  template <class Place>
  GIWA_DEVICE float* at(const Place& place, int share) const {
    return place.first + (share * shared_key_sums::warps + warp) * place.floats + 4 * lane;
  }
};

/// Stores a warp's sums, NaN included, next to those of the other sharers of its keys. The warp that is last returns
/// true, with the sum of all in its registers, added in the order of the sharers: so none waits, and the bits do not
/// depend on which one is last.
template <class Place, class... Sums>
GIWA_DEVICE bool collect_sums(const Place& place, int share, int sharers, Sums&... sums) {
  const auto own = warp_of_sums::here();
  float* to = own.at(place, share);
  const auto leave = [&](auto& of) {
    GIWA_UNROLL
    for (int i = 0; i < static_cast<int>(sizeof(of.value) / 16); ++i, to += 128)
      *reinterpret_cast<float4*>(to) =
          make_float4(of.value[4 * i], of.value[4 * i + 1], of.value[4 * i + 2], of.value[4 * i + 3]);
    of.fill(0);
  };
  (leave(sums), ...);
#if defined(GIWA_RANDOM_DELAYS)
  arch::sleep_at_random();
#endif
  __syncwarp();
  int before = 0;
  if (own.lane == 0) before = arch::add_acquire_release(place.arrived + own.warp, 1);
  if (__shfl_sync(0xffffffff, before, 0) + 1 < sharers) return false;
#pragma unroll 1
  for (int other = 0; other < sharers; ++other) {
    const float* from = own.at(place, other);
    const auto add = [&](auto& of) {
      GIWA_UNROLL
      for (int i = 0; i < static_cast<int>(sizeof(of.value) / 16); ++i, from += 128) {
        float four[4];
        arch::load_relaxed(four, from);
        GIWA_UNROLL
        for (int k = 0; k < 4; ++k) of.value[4 * i + k] += four[k];
      }
    };
    (add(sums), ...);
  }
  return true;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
