// SPDX-License-Identifier: MIT
// Whether Hopper's own instructions can run here: that takes the GPU, and code for it in this program.
#ifndef GIWA_TEST_SUPPORT_HOPPER_CUH
#define GIWA_TEST_SUPPORT_HOPPER_CUH

#include <giwa/device/environment.cuh>
#include <giwa/grid/launch.cuh>

#include "support/catch.hpp"
#include "support/gpu.cuh"

namespace giwa_test {

/// TMA, clusters, remote barriers: code for compute capability 9.0 or newer. Says why a test is left out.
inline bool has_tensor_copies() {
  const bool has = giwa::throw_if_failed(giwa::code_for_current_device()).architecture >= 90;
  if (!has) WARN("skipped: needs a GPU of compute capability 9.0, and a program built for it");
  return has;
}

/// wgmma and setmaxnreg: code for sm_90a.
inline bool has_wgmma() {
  const bool has = giwa::throw_if_failed(giwa::code_for_current_device()).architecture_specific;
  if (!has) WARN("skipped: needs a GPU of compute capability 9.0, and a program built for sm_90a");
  return has;
}

/// Runs an op and waits for it. Throws what went wrong.
template <class Op>
void run_op(const giwa::launch_config& config, const typename Op::params& params) {
  const giwa::stream s = new_stream();
  giwa::throw_if_failed(giwa::launch(s, config, Op{}, params));
  giwa::throw_if_failed(giwa::synchronize(s));
}

/// Holds a thread up for 0 to `most` nanoseconds, as the clock and the thread have it: another order of events each time.
GIWA_DEVICE inline void sleep_at_random([[maybe_unused]] unsigned most) {
#if defined(__CUDA_ARCH__)
  unsigned x = static_cast<unsigned>(clock64()) ^ (threadIdx.x * 0x9e3779b9u) ^ (blockIdx.x * 0x85ebca6bu);
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
  if (x % 4 != 0) __nanosleep(x / 4 % (most + 1));  // every fourth time not at all
#endif
}

}  // namespace giwa_test

#endif
