// SPDX-License-Identifier: MIT
// The first loop of a consumer of the Hopper kernel: a softmax without maxima, as long as no row needs another one.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_SPECULATION_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_SPECULATION_SM90_CUH

#include <giwa/arch/wgmma.cuh>
#include <giwa/softmax/online.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Computes the weights of a tile without its maxima. If they are too large for a row, computes the tile again with maxima, and
/// leaves the tiles after it to the next loop, which finds the same m and bits. H200 and H100, 2026-11-27, relative to the loops
/// with maxima, 1024, 4096 and 16384 tokens: 64 1.04, 1.08, 1.10, 128 1.01, 1.04, 1.05, 256 1.01, 0.99, 1.02; 512 0.98 to 1.00.
template <class QueryRows>
GIWA_DEVICE void attend_without_maxima(QueryRows& q) {
  q.softmax.expose_empty_rows();
  while (!q.is_last()) {
    q.wait_k();
    q.c.pingpong.acquire();
    q.multiply_both();
    arch::fence_operand(q.scores.value);
    q.apply_steps(q.own.keep());
    float sum[QueryRows::score_map::rows];
    q.softmax.weigh(q.scores, sum);
    arch::wgmma_wait_after<0>(sum[0] + sum[1]);
    q.release_v();
    const bool repeats = q.c.any_of_consumer(!q.softmax.within_slack(sum));
    if (repeats) {
      q.multiply_qk();
      arch::wgmma_wait<0>();
    }
    q.release_k();
    if (repeats) {
      float largest[QueryRows::score_map::rows];
      q.begin_softmax(q.own.keep(), largest);
      q.raise(largest);
      q.rescale_o();
      q.end_softmax();
      q.make_p();
      return;
    }
    q.softmax.add(sum);
    q.make_p();
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
