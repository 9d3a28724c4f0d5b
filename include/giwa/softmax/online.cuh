// SPDX-License-Identifier: MIT
// Online softmax on register tiles: rows whose scores come tile by tile (the inner step of flash attention).
#ifndef GIWA_SOFTMAX_ONLINE_CUH
#define GIWA_SOFTMAX_ONLINE_CUH

#include <giwa/numeric/multiply_add.hpp>
#include <giwa/softmax/device_exponential.cuh>
#include <giwa/softmax/state.hpp>
#include <giwa/tile/register_tile.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// 2^x: one instruction on the device; the host's library in an op that runs there.
GIWA_HOST_DEVICE inline float exp2_of(float x) {
#if defined(__CUDA_ARCH__)
  return arch::exp2_approximate(x);
#else
  return __builtin_exp2f(x);
#endif
}
/// a b - c, rounded up on the device, so that subtracting it from a b leaves at most c.
GIWA_HOST_DEVICE inline float reference_of(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  const float product = arch::multiply_up(a, b);
  return c == 0 ? product : arch::add_up(product, -c);
#else
  return a * b - c;
#endif
}

/// How scores of a row become exponents of its weights: score scale - shift. The largest score m has the exponent
/// Headroom or a little less. Where the last digit of m scale_log2 is 16 or more, the scale is the power of two below
/// it: then m times it is exact, and m has the exponent 0 or more however large it is; others of that size differ by at
/// least 8. H200, 2026-11-24, fp16, 64 and 256, causal:
/// it costs 0 to 1 % of a call.
struct row_exponents {
  float scale, shift;

  template <int Headroom>
  GIWA_HOST_DEVICE static row_exponents of(float m, float scale_log2) {
    const float size = m < 0 ? -m : m;
    const float power = __builtin_bit_cast(float, __builtin_bit_cast(uint32, scale_log2) & 0x7f800000u);
    const float scale = size * scale_log2 < 0x1p27f ? scale_log2 : power;
    return {scale, reference_of(m == -infinity_of<float> ? 0.f : m, scale, Headroom)};
  }
  GIWA_HOST_DEVICE float operator()(float score) const { return fused_multiply_add(score, scale, -shift); }
};

/// l, or an element of O, of two states of a row together: each is multiplied by its state's factor.
GIWA_HOST_DEVICE inline float merge_sums(float earlier, float of_earlier, float later, float of_later) {
  return fused_multiply_add(earlier, of_earlier, later * of_later);
}

/// The log-sum-exp of a row with keys, m in units of log2: NaN where the scaled scores exceed the range of fp32, so that l is 0.
GIWA_HOST_DEVICE inline float quick_lse(float m, float l) { return m * ln_2<float> + quick_log(l == 0 ? -1.f : l); }

}  // namespace detail

/// The softmax state of a thread's rows: m, the largest score so far (but see Slack), equal in all lanes that share the row,
/// and l, the sum of 2^((score - m) scale_log2) over this thread's scores. scale_log2 > 0 is the scale times log2(e): one
/// fused multiply-add scales a score and subtracts the maximum. Weights, and l with them, are multiplied by 2^Headroom, so
/// that small weights stay in fp16's range. (Milakov and Gimelshein 2018; Dao 2023, "FlashAttention-2", algorithm 1.)
///
/// With a Slack, m stays as it is until a weight would exceed 2^Slack. Then most tiles leave it, and earlier sums need no
/// multiplication (Zadouri et al. 2026, "FlashAttention-4", conditional rescaling). A row's m depends on its own scores only.
template <class Map, int Headroom = 0, int Slack = 0>
struct online_softmax {
  static constexpr int rows = Map::rows;  ///< rows of which a thread holds elements
  /// The state of each of these rows.
  ///@{
  float m[rows], l[rows];
  ///@}

  /// Sets the state of an empty row.
  GIWA_HOST_DEVICE void reset() {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m[r] = -detail::infinity_of<float>, l[r] = 0;
  }

  /// Adds the next tile of scores and replaces each score by its weight 2^((score - m) scale_log2 + Headroom). The
  /// caller multiplies sums of earlier weights by factor[row], which is 0 in the first call. Rows of -inf are empty:
  /// their weights are 0. All lanes of the warp call it.
  template <class Block>
  GIWA_HOST_DEVICE void update(const Block& block, register_tile<float, Map>& scores, float scale_log2,
                               float (&factor)[rows]) {
    float largest[rows], sum[rows];
    find_maxima(block, scores, largest);
    raise(largest, scale_log2, factor);
    weigh(scores, sum);
    add(sum);
  }
  /// The steps of update(): the largest scores, those of the tile included; whether one of this thread's rows needs another m
  /// for them; such an m, with factor[row]; the weights, with this thread's sums of them; and their addition to l. If no row
  /// needs another m, raise() may be left out.
  ///@{
  template <class Block>
  GIWA_HOST_DEVICE void find_maxima(const Block& block, const register_tile<float, Map>& scores,
                                    float (&largest)[rows]) const {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) largest[r] = m[r];
    reduce_rows_of_thread(scores, largest, larger{});
    reduce_over_lanes<Map>(block, largest, larger{});
  }
  GIWA_HOST_DEVICE bool exceeds_slack(const float (&largest)[rows]) const {
    bool exceeds = false;
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) exceeds = exceeds || row_exceeds_slack(r, largest[r]);
    return exceeds;
  }
  GIWA_HOST_DEVICE void raise(const float (&largest)[rows], float scale_log2, float (&factor)[rows]) {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) {
      const float before = m[r];
      if (row_exceeds_slack(r, largest[r])) m[r] = largest[r];
      exponents_[r] = detail::row_exponents::of<Headroom>(m[r], scale_log2);
      // Rounded as it was when `before` was m, and not fused with the difference: an unchanged m gives exactly 1.
      factor[r] = detail::exp2_of(detail::reference_of(before, exponents_[r].scale, Headroom) - exponents_[r].shift);
      l[r] = detail::device_product(l[r], factor[r]);  // not fused with add() in some places and in others not
    }
  }
  GIWA_HOST_DEVICE void weigh(register_tile<float, Map>& scores, float (&sum)[rows]) const {
    scores.transform_rows(exponents_, [](float s, const detail::row_exponents& e) { return detail::exp2_of(e(s)); });
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) sum[r] = 0;
    reduce_rows_of_thread(scores, sum, plus{});
  }
  /// A tile is summed separately: weights that are too small for the last digit of a large l still count together.
  GIWA_HOST_DEVICE void add(const float (&sum)[rows]) {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) l[r] += sum[r];
  }
  ///@}

  /// What replaces find_maxima() and exceeds_slack(): after weigh(), true only if no row of this thread needs another m. Where it
  /// is false in a thread, all take the steps above instead, for which the caller needs the scores again. Before the first such
  /// weigh(), expose_empty_rows() gives rows without a score so far infinite weights, or NaN.
  ///@{
  GIWA_HOST_DEVICE static bool within_slack(const float (&sum)[rows]) {
    constexpr float most = (1 << Slack) * (1 - 0x1p-9f);  // a sum is no less than its largest weight, but for rounding
    bool within = true;
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) within = within && sum[r] <= most;
    return within;
  }
  GIWA_HOST_DEVICE void expose_empty_rows() {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r)
      if (m[r] == -detail::infinity_of<float>) exponents_[r].shift = -detail::infinity_of<float>;
  }
  ///@}

  /// Takes in the state of other keys of the same rows, before finish(). What was summed with that state is to be multiplied by
  /// of_other[row], and what was summed with this one by of_own[row].
  GIWA_HOST_DEVICE void merge(const float (&other_m)[rows], const float (&other_l)[rows], float scale_log2,
                              float (&of_other)[rows], float (&of_own)[rows]) {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) {
      const float largest = other_m[r] > m[r] ? other_m[r] : m[r];
      const auto e = detail::row_exponents::of<Headroom>(largest, scale_log2);
      of_other[r] = detail::exp2_of(detail::reference_of(other_m[r], e.scale, Headroom) - e.shift);
      of_own[r] = detail::exp2_of(detail::reference_of(m[r], e.scale, Headroom) - e.shift);
      m[r] = largest;
      l[r] = detail::merge_sums(other_l[r], of_other[r], l[r], of_own[r]);
    }
  }

  /// Sums l over the lanes of each row; all lanes of the warp call it. Afterwards l is the row's sum, normalizer() the
  /// factor of the output and lse() the natural logarithm of the sum of e^(scale score): 0 and -inf for an empty row.
  /// NaN stays NaN. From |score scale_log2| = 2^27 on, where fp32 has few digits left for differences, scores count as
  /// equal or very different.
  template <class Block>
  GIWA_HOST_DEVICE void finish(const Block& block) {
    reduce_over_lanes<Map>(block, l, plus{});
  }
  /// Returns the value for one row; call finish() first.
  ///@{
  GIWA_HOST_DEVICE float normalizer(int row) const { return is_empty(row) ? 0.f : detail::quick_reciprocal(l[row]); }
  GIWA_HOST_DEVICE float lse(int row, float scale_log2) const {
    if (is_empty(row)) return -detail::infinity_of<float>;
    return detail::quick_lse(detail::reference_of(m[row], scale_log2, Headroom), l[row]);
  }
  ///@}

 private:
  // By the exponent that the weight would have, as within_slack() sees it.
  GIWA_HOST_DEVICE bool row_exceeds_slack(int row, float largest) const {
    return Slack == 0 || m[row] == -detail::infinity_of<float> || !(exponents_[row](largest) <= Slack);
  }
  // l == 0 alone is not enough: see quick_lse().
  GIWA_HOST_DEVICE bool is_empty(int row) const { return l[row] == 0 && m[row] == -detail::infinity_of<float>; }

  detail::row_exponents exponents_[rows];  // of m
};

}  // namespace giwa::inline GIWA_ABI

#endif
