// SPDX-License-Identifier: MIT
// The products of a consumer warpgroup of the Hopper kernel, Q K^T and P V of one K tile, and three of its loops.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_PRODUCTS_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_PRODUCTS_SM90_CUH

#include <giwa/arch/wgmma.cuh>
#include <giwa/attention/kernels/sm90/forward_consumer_state_sm90.cuh>
#include <giwa/attention/split_fp16/exponents.cuh>
#include <giwa/softmax/online.cuh>
#include <giwa/tile/mma_sm90.cuh>
#include <giwa/tile/operand_of_bytes.cuh>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Products are issued and committed, not waited for.
template <class Types>
struct sm90_products {
  using policy = typename Types::policy;
  using score_map = typename Types::score_map;
  using score_tile = register_tile<float, score_map>;
  static constexpr int per_word = 4 / element_traits<typename Types::element>::bytes;
  using operand = uint32[policy::parts][score_map::registers / per_word];
  static constexpr bool two_parts = policy::parts == 2;
  static constexpr auto in_turn = descriptors::in_turn;

  /// S = Q K^T. With split fp16 the small products come first, because tensor-core accumulation truncates toward zero.
  template <class Consumer>
  GIWA_DEVICE static void multiply_qk(Consumer& c, int k_stage, score_tile& scores) {
    arch::wgmma_fence();
    // Hides that q stays where it is (k_stage >> 2 is 0): its descriptors would be computed before the loop, and spilled.
    int own_rows = policy::overlaps ? c.index : c.index + (k_stage >> 2);
    if constexpr (policy::overlaps) arch::fence_index(own_rows);
    const auto& q = c.s.rows[own_rows].q;
    const auto k = transposed(c.s.k.stage(k_stage));
    if constexpr (two_parts) {
      constexpr int lo = round_up(Types::head_size, 64);
      multiply_tiles<Types::head_size, in_turn, Types::block_n>(scores.value, q, 0, k, false, lo, 0, 0);
      multiply_tiles<Types::head_size, in_turn, Types::block_n>(scores.value, q, 0, k, true, 0, lo, 0);
    }
    multiply_tiles<Types::head_size, in_turn, Types::block_n>(scores.value, q, 0, k, two_parts, 0, 0, 0);
    arch::wgmma_commit();
  }

  /// Converts P to an operand in registers.
  GIWA_DEVICE static void make_p(const score_tile& scores, operand& p) {
    if constexpr (two_parts)
      to_operands(scores, power_of_two(-split_exponents::of_p), p[0], p[1]);
    else if constexpr (Types::transposes_v)
      to_operand_of_bytes(scores, p[0]);
    else
      to_operand<typename Types::element>(scores, p[0]);
  }
  /// Clears the weights that dropout does not keep, before they are rounded to bytes or after they are rounded.
  template <class Consumer, class Bounds, class RowMap>
  GIWA_DEVICE static void drop(Consumer& c, const Bounds& bounds, const RowMap& at, score_tile& weights, operand& p) {
    kept_tile<score_map, false> kept;
    c.steps.find_kept(c.block, c.thread, bounds, at, kept);
    if constexpr (Types::transposes_v) {
      GIWA_UNROLL
      for (int i = 0; i < score_map::registers; ++i)
        if (!kept[i]) weights.value[i] = 0;
      make_p(weights, p);
    } else {
      kept.clear(p);
    }
  }

  /// O += P V; with split fp16, partial O = P V of this tile and one slice.
  template <class Consumer, class Output>
  GIWA_DEVICE static void multiply_pv(Consumer& c, int v_stage, const operand& p, Output& o, int slice = 0,
                                      bool accumulate = true) {
    auto& v = c.s.v.stage(v_stage);
    arch::fence_operand(o.value);
    arch::wgmma_fence();
    if constexpr (two_parts) {
      constexpr int lo = round_up(Types::head_size_v, 64);
      multiply<in_turn>(o, p[1], v, false, slice * policy::slice);
      multiply<in_turn>(o, p[0], v, true, lo + slice * policy::slice);
      multiply<in_turn>(o, p[0], v, true, slice * policy::slice);
    } else if constexpr (Types::transposes_v) {
      multiply<in_turn>(o, p[0], transposed(v), accumulate);
    } else {
      multiply<in_turn>(o, p[0], v, true);
    }
    arch::wgmma_commit();
  }
};

/// Computes the weights of a tile without its maxima. If they are too large for a row, computes the tile again with maxima, and
/// leaves the tiles after it to the next loop, which finds the same m and bits. H200 and H100, 2026-11-27, relative to the loops
/// with maxima, 1024, 4096 and 16384 tokens: 64 1.04, 1.08, 1.10, 128 1.01, 1.04, 1.05, 256 1.01, 0.99, 1.02; 512 0.98 to 1.00.
template <class QueryRows>
GIWA_DEVICE void attend_without_maxima(QueryRows& q) {
  q.softmax.expose_empty_rows();
  while (q.next_tile()) {
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

/// The softmax also overlaps this consumer's own O += P V. Fully kept tiles have a separate body: it has no branch
/// from the first product to the last wait, because ptxas waits for all products at a branch.
template <bool FullyKept, class QueryRows, class KeySplits>
GIWA_DEVICE void attend_tile_with_overlap(QueryRows& q, KeySplits& key_splits) {
  q.multiply_both();
  q.release_k();
  key_splits.begin_softmax(q);
  float largest[QueryRows::score_map::rows];
  q.template begin_softmax<FullyKept>(tile_keep::some, largest);
  const bool rescales = q.softmax.exceeds_slack(largest);
  q.raise(largest);
  q.end_softmax();
  arch::wgmma_wait_after<0>(q.softmax.l[0] + q.softmax.l[1]);
  q.release_v();
  key_splits.take_output(q);
  q.sums.promote_before(q.c, q.own.first_key, q.o);
  if (QueryRows::slack == 0 || q.c.block.any(rescales)) q.rescale_o();
  q.make_p();
}
template <class QueryRows, class KeySplits>
GIWA_DEVICE void attend_with_overlap(QueryRows& q, KeySplits& key_splits) {
  while (q.next_tile()) {
    key_splits.see_tile(q.own.first_key);
    q.c.pingpong.acquire();
    if (q.c.needs_scale || q.own.keep() != tile_keep::all)
      attend_tile_with_overlap<false>(q, key_splits);
    else
      attend_tile_with_overlap<true>(q, key_splits);
  }
}

/// O += P V in slices of columns, each summed in separate registers.
template <class QueryRows>
GIWA_DEVICE void attend_in_slices(QueryRows& q) {
  while (q.next_tile()) {
    q.c.pingpong.acquire();
    q.multiply_qk();
    q.wait_v(q.scrubs_before);
    q.multiply_pv_and_wait();
    q.release_v();
    q.release_k();
    q.softmax_step(q.own.keep());
    q.make_p();
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
