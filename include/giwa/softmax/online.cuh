// SPDX-License-Identifier: MIT
// Online softmax on register tiles: rows whose scores come tile by tile, each seen once (flash attention's inner step).
#ifndef GIWA_SOFTMAX_ONLINE_CUH
#define GIWA_SOFTMAX_ONLINE_CUH

#include <giwa/numeric/multiply_add.hpp>
#include <giwa/softmax/device_exponential.cuh>
#include <giwa/softmax/state.hpp>
#include <giwa/tile/register_tile.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// 2^x: one instruction on the device; by the library of the host in an op that runs there.
GIWA_HOST_DEVICE inline float exp2_of(float x) {
#if defined(__CUDA_ARCH__)
  return arch::exp2_approximate(x);
#else
  return __builtin_exp2f(x);
#endif
}
/// a b - c, not below it on the device: what is taken from a b leaves no more than c.
GIWA_HOST_DEVICE inline float reference_of(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  const float product = arch::multiply_up(a, b);
  return c == 0 ? product : arch::add_up(product, -c);
#else
  return a * b - c;
#endif
}

}  // namespace detail

/// What a thread knows of its rows: m, the largest score so far, the same in all lanes that share the row, and l, the sum of
/// this thread's 2^((score - m) scale_log2). scale_log2 is the scale times log2(e), so that a score is scaled by the one
/// multiply-add that takes its maximum away; it is positive. Weights are at most 2^Headroom, and l counts in the same unit, so
/// that small ones do not leave fp16's range. (Milakov and Gimelshein 2018; Dao 2023, "FlashAttention-2",
/// algorithm 1.)
template <class Map, int Headroom = 0>
struct online_softmax {
  static constexpr int rows = Map::rows;  ///< of which a thread has elements
  /// Of each such row.
  ///@{
  float m[rows], l[rows];
  ///@}

  /// Nothing seen yet.
  GIWA_HOST_DEVICE void reset() {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m[r] = -detail::infinity_of<float>, l[r] = 0;
  }

  /// Takes in the next tile of scores, and turns them into weights, 2^((score - m) scale_log2). What was summed up with
  /// earlier weights is to be multiplied by factor[row], which is 0 in the first call. Rows may be empty (-inf throughout):
  /// their weights are 0. All lanes of the warp call it.
  template <class Block>
  GIWA_HOST_DEVICE void update(const Block& block, register_tile<float, Map>& scores, float scale_log2,
                               float (&factor)[rows]) {
    float before[rows], shift[rows], sum[rows];
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) before[r] = m[r], sum[r] = 0;
    reduce_rows_of_thread(scores, m, larger{});
    reduce_over_lanes<Map>(block, m, larger{});
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) {
      const float reference = m[r] == -detail::infinity_of<float> ? 0.f : m[r];
      // Rounded as it was when `before` was the maximum, and not fused with the difference: the same maximum gives exactly 1.
      shift[r] = detail::reference_of(reference, scale_log2, Headroom);
      factor[r] = detail::exp2_of(detail::reference_of(before[r], scale_log2, Headroom) - shift[r]);
    }
    scores.transform_rows(shift, [&](float s, float shift_of_row) {
      return detail::exp2_of(detail::fused_multiply_add(s, scale_log2, -shift_of_row));
    });
    // A tile is summed up by itself: next to a large l, weights too small for its last digit still count together.
    reduce_rows_of_thread(scores, sum, plus{});
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) l[r] = detail::fused_multiply_add(l[r], factor[r], sum[r]);
  }

  /// Sums l over the lanes of each row. Then l is the whole sum, normalizer() what to multiply the result by, and lse() the
  /// natural logarithm of the sum of e^(scale score): 0 and -inf for an empty row. NaN stays NaN. Where |score scale_log2|
  /// comes to 2^30 and more, a float has no digits left for differences: the row is then right, or infinite or NaN.
  template <class Block>
  GIWA_HOST_DEVICE void finish(const Block& block) {
    reduce_over_lanes<Map>(block, l, plus{});
  }
  /// Of a row, after finish().
  ///@{
  GIWA_HOST_DEVICE float normalizer(int row) const { return is_empty(row) ? 0.f : detail::quick_reciprocal(l[row]); }
  GIWA_HOST_DEVICE float lse(int row, float scale_log2) const {
    if (is_empty(row)) return -detail::infinity_of<float>;
    return detail::reference_of(m[row], scale_log2, Headroom) * detail::ln_2<float> +
           detail::quick_log(l[row] == 0 ? -1.f : l[row]);
  }
  ///@}

 private:
  // A sum of 0 alone does not say so: it is also what is left where the scaled scores have outgrown float.
  GIWA_HOST_DEVICE bool is_empty(int row) const { return l[row] == 0 && m[row] == -detail::infinity_of<float>; }
};

}  // namespace giwa::inline GIWA_ABI

#endif
