// SPDX-License-Identifier: MIT
// What scores and outputs are counted in while they are made of pieces: the same on every path.
#ifndef GIWA_ATTENTION_SPLIT_FP16_EXPONENTS_CUH
#define GIWA_ATTENTION_SPLIT_FP16_EXPONENTS_CUH

#include <giwa/attention/forward/score_steps.cuh>
#include <giwa/attention/split_fp16/layout.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Tiles of pieces have exponents of their own: scores, their maxima and the output so far are counted in powers of two that change
/// from tile to tile. All is exact.
struct split_exponents {
  // Weights of up to 1 become pieces of up to 2^14, as fp16 has no smaller ones than 2^-24; one piece has that headroom from the
  // softmax, two from a multiplication, which leaves the exponential its last digits.
  static constexpr int of_p = -14;
  int scores = 0, values = 0;

  /// Before a tile's scores, which are counted in 2^exponent, are scaled and masked.
  template <class Mask, class Score, class Softmax>
  GIWA_DEVICE void begin_scores(int exponent, float scale, score_steps<Mask, Score>& steps, Softmax& softmax) {
    steps.scale = scale * power_of_two(exponent);
    if (!steps.scale_first()) {  // else scores are scaled before their maxima are taken
      GIWA_UNROLL
      for (int r = 0; r < Softmax::rows; ++r) softmax.m[r] *= power_of_two(scores - exponent);
    }
    scores = exponent;
  }
  /// Behind the softmax: by which factors the output so far comes to what the tile's values are counted in.
  template <int Rows>
  GIWA_DEVICE void begin_values(int exponent, float (&factor)[Rows]) {
    GIWA_UNROLL
    for (int r = 0; r < Rows; ++r) factor[r] *= power_of_two(values - exponent);
    values = exponent;
  }
  /// Maxima and factors of what was counted in `earlier`, in the present exponents.
  ///@{
  template <class Mask, class Score, int Rows>
  GIWA_DEVICE void convert_scores(const split_exponents& earlier, const score_steps<Mask, Score>& steps,
                                  float (&m)[Rows]) const {
    if (steps.scale_first()) return;
    GIWA_UNROLL
    for (int r = 0; r < Rows; ++r) m[r] *= power_of_two(earlier.scores - scores);
  }
  template <int Rows>
  GIWA_DEVICE void convert_values(const split_exponents& earlier, float (&factor)[Rows]) const {
    GIWA_UNROLL
    for (int r = 0; r < Rows; ++r) factor[r] *= power_of_two(earlier.values - values);
  }
  ///@}
  /// At the end, of a row that has keys: the output, before it is normalized, to where it belongs.
  template <class Tile>
  GIWA_DEVICE void finish(int thread, Tile& o, const split_tensor& v, int batch, int kv_head, int columns,
                          bool two_parts) const {
    const int* const exponents = v.column_exponents(batch, kv_head);
    const int of_all = values + (two_parts ? of_p : 0);
    o.for_each(thread, [&](float& x, int, int column) {
      if (column < columns)
        x *= power_of_two(exponents[column] + of_all);  // in one: each alone may leave float's range
    });
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
