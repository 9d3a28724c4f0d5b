// SPDX-License-Identifier: MIT
// What attention asks about a GPU: which instructions its kernels may use, and how much shared memory a block may have.
#ifndef GIWA_ATTENTION_PROBLEM_GPU_TRAITS_HPP
#define GIWA_ATTENTION_PROBLEM_GPU_TRAITS_HPP

#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The traits of a GPU. Those of the current one are current_gpu(); a compute capability says all but the multiprocessors.
struct gpu_traits {
  bool mma = false;           // mma.sync and cp.async: the kernels of kernels/sm80
  bool wgmma = false;         // wgmma and TMA: the kernels of kernels/sm90
  int64 shared_bytes = 0;     // the most that a block may have
  int64 multiprocessors = 0;  // 0: not known

  /// `capability` is 90 for 9.0. What a new GPU runs is a line here.
  GIWA_HOST_DEVICE static constexpr gpu_traits of(int capability) {
    constexpr int64 kib = 1 << 10;
    if (capability < 80) return {false, false, 64 * kib};
    if (capability == 80 || capability == 87) return {true, false, 163 * kib};
    if (capability < 90) return {true, false, 99 * kib};
    if (capability < 100) return {true, true, 227 * kib};
    if (capability < 120) return {true, false, 227 * kib};
    return {true, false, 99 * kib};
  }
};

/// The shared memory of a block on the GPUs of 8.0 and newer that have the least: 8.6, 8.9 and 12.x.
inline constexpr int64 least_shared_bytes = gpu_traits::of(120).shared_bytes;

}  // namespace giwa::inline GIWA_ABI::detail

#endif
