// SPDX-License-Identifier: MIT
// The powers of two in which scores and outputs of split fp16 are counted: the same on every path.
#ifndef GIWA_ATTENTION_SPLIT_FP16_EXPONENTS_CUH
#define GIWA_ATTENTION_SPLIT_FP16_EXPONENTS_CUH

#include <giwa/attention/score/score_steps.cuh>
#include <giwa/attention/split_fp16/layout.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The exponents in which scores, their running maxima and the partial output are counted. They change from tile to
/// tile, because each group of split fp16 numbers has an exponent. All conversions are exact.
struct split_exponents {
  // P is at most 1 (no Slack) and is multiplied by 2^14 before it is split, because the smallest fp16 number is 2^-24. With one
  // part the softmax applies the factor. With two parts to_operands() does, which keeps the last bits of the
  // exponential.
  static constexpr int of_p = -14;
  int scores = 0, values = 0;

  /// Called before a tile's scores, which are counted in 2^exponent, are scaled and masked. Converts the running
  /// maxima.
  template <class Mask, class Score, class Softmax>
  GIWA_DEVICE void begin_scores(int exponent, float scale, score_steps<Mask, Score>& steps, Softmax& softmax) {
    steps.scale = scale * power_of_two(exponent);
    if (!steps.scale_first()) {  // otherwise scores are scaled before their maxima are taken
      GIWA_UNROLL
      for (int r = 0; r < Softmax::rows; ++r) softmax.m[r] *= power_of_two(scores - exponent);
    }
    scores = exponent;
  }
  /// Called after the softmax. Multiplies the rescaling factors, so that they also convert the partial output to
  /// 2^exponent, in which this tile's V is counted.
  template <int Rows>
  GIWA_DEVICE void begin_values(int exponent, float (&factor)[Rows]) {
    GIWA_UNROLL
    for (int r = 0; r < Rows; ++r) factor[r] *= power_of_two(values - exponent);
    values = exponent;
  }
  /// Converts maxima and factors that were counted in `earlier` to the current exponents.
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
  /// Called at the end, for rows that have keys. Converts the output to plain numbers, before it is normalized.
  template <class Tile>
  GIWA_DEVICE void finish(int thread, Tile& o, const split_tensor& v, int batch, int kv_head, int columns,
                          bool two_parts) const {
    const int* const exponents = v.column_exponents(batch, kv_head);
    const int of_all = values + (two_parts ? of_p : 0);
    o.for_each(thread, [&](float& x, int, int column) {
      if (column < columns)
        x *= power_of_two(exponents[column] + of_all);  // in one factor: each alone may be out of float's range
    });
  }
};

/// Adds P V of one tile of keys, for the columns of slice number `slice`, to O, which is multiplied by the tile's factors. Each tile is
/// summed by itself, because tensor cores truncate where they add: the errors of one sum over all keys would add up.
template <class Output, class Part>
GIWA_DEVICE void add_tile_sum(Output& o, const float (&factor)[Output::map::rows], const Part& of_tile, int slice) {
  GIWA_UNROLL
  for (int i = 0; i < Part::registers; ++i) {
    float& sum = o.value[slice * Part::registers + i];
    sum = fused_multiply_add(sum, factor[Output::map::slot(i)], of_tile.value[i]);
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
