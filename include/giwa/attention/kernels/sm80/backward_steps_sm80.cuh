// SPDX-License-Identifier: MIT
// The steps of the mma.sync kernels of attention_backward between their products: P and dS, and NaN in tiles that not every
// row sees.
#ifndef GIWA_ATTENTION_KERNELS_SM80_BACKWARD_STEPS_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_BACKWARD_STEPS_SM80_CUH

#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/problem/backward_options.hpp>
#include <giwa/attention/problem/score_gradient.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Turns scores into P, and dp into dS unless only dv is computed. Fixed rows begin at `first`, moving rows, the columns, at
/// `begin`. The terms are those of the queries: `own` of the thread's rows, with the lse in powers of two, or `of_columns`.
/// `careful`: in the second pass of a block that saw NaN; the first has given the modifier's gradients of kept pairs, and
/// summed those of its parameters.
template <gradient Of, bool Masked, class Block, class Map, class Mask, class Score, class Parameters>
GIWA_DEVICE void weigh(const Block& block, const score_steps<Mask, Score>& steps,
                       const typename score_steps<Mask, Score>::bounds& bounds, [[maybe_unused]] bool careful,
                       int first, int begin, register_tile<float, Map>& scores, register_tile<float, Map>& dp,
                       const row_terms (&own)[Map::rows], const row_terms* of_columns,
                       [[maybe_unused]] Parameters& parameters) {
  constexpr bool modified = score_steps<Mask, Score>::modified, rows_are_keys = Of != gradient::of_q;
  const float factor = modified ? log2_e<float> : steps.scale * log2_e<float>;
  const int lane = block.lane();
  [[maybe_unused]] kept_tile<Map, rows_are_keys> undropped;
  if constexpr (drops_weights<Score>)
    undropped.find(block, dropout_bits(steps.score, steps.random_key, bounds.batch, bounds.head), lane, first, begin);
  GIWA_UNROLL
  for (int c = 0; c < Map::period / 2; ++c) {  // a thread has two of every eight columns
    const int of_first = c / 2 * 4 + c % 2, column = Map::column(lane, of_first);
    row_terms t{};
    if constexpr (rows_are_keys) {
      t = of_columns[column];
      t.lse *= log2_e<float>;
    }
    GIWA_UNROLL
    for (int slot = 0; slot < Map::rows; ++slot) {
      const int i = slot / 2 * Map::period + of_first + slot % 2 * 2, row = Map::row(lane, slot);
      const int query = rows_are_keys ? begin + column : first + row,
                key = rows_are_keys ? first + row : begin + column;
      if constexpr (!rows_are_keys) t = own[slot];
      bool kept = true;
      if constexpr (modified) kept = bounds.contain(query, key);
      if constexpr (Masked) kept = steps.keeps(bounds, query, key);
      float y = scores.value[i], slope = 1;
      [[maybe_unused]] float z = 0;
      if constexpr (modified) {
        z = device_product(y, steps.scale);
        if (kept) {
          const dual<float> at = modified_score(steps.score, z, bounds.place(query, key));
          y = at.value, slope = at.slope;
        }
      }
      const float weight = exp2_of(fused_multiply_add(y, factor, -t.lse));
      float drop = 1;
      if constexpr (drops_weights<Score>) drop = undropped[i] ? kept_scale(steps.score) : 0;
      scores.value[i] = kept ? weight * drop : 0;
      if constexpr (Of != gradient::of_v) {
        const float dy = weight * (dp.value[i] * drop - t.delta);
        if constexpr (Of == gradient::of_q && gradient_of<Score>::wanted)
          if (kept && !careful)
            gradient_of<Score>::give(steps.score, dy, z, bounds.place(query, key), parameters.of(slot));
        dp.value[i] = kept ? dy * slope : 0;
      }
    }
  }
}

/// Fills each row of x with NaN where it, or y if WithY, has NaN or infinity: then P and dS are NaN wherever the pair is
/// kept. clear_marked() removes these rows from the next products, so that they reach no other pair. Written for small code:
/// few inputs have such values.
template <bool WithY, class Block, class TileX, class TileY>
GIWA_DEVICE void mark_nonfinite(const Block& block, TileX& x, const TileY& y) {
  for (int row = block.rank(); row < TileX::rows; row += block.size()) {
    bool any = false;
#pragma unroll 1
    for (int i = 0; i < TileX::columns; ++i) any = any || is_nonfinite(x(row, i));
#pragma unroll 1
    for (int i = 0; WithY && i < TileY::columns; ++i) any = any || is_nonfinite(y(row, i));
#pragma unroll 1
    for (int i = 0; any && i < TileX::columns; ++i) x(row, i) = convert<typename TileX::value_type>{}(nan_of<float>);
  }
}
/// Sets the marked rows of x, and of y if WithY, to 0.
template <bool WithY, class Block, class TileX, class TileY>
GIWA_DEVICE void clear_marked(const Block& block, TileX& x, TileY& y) {
  const auto zero = convert<typename TileX::value_type>{}(0.0f);
  for (int row = block.rank(); row < TileX::rows; row += block.size()) {
    const bool marked = is_nonfinite(x(row, 0));
#pragma unroll 1
    for (int i = 0; marked && i < TileX::columns; ++i) x(row, i) = zero;
#pragma unroll 1
    for (int i = 0; marked && WithY && i < TileY::columns; ++i) y(row, i) = zero;
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
