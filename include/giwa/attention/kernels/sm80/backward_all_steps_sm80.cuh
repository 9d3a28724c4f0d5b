// SPDX-License-Identifier: MIT
// The steps of the mma.sync kernel of all gradients between its products: P by one group of warps, dS by the other.
#ifndef GIWA_ATTENTION_KERNELS_SM80_BACKWARD_ALL_STEPS_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_BACKWARD_ALL_STEPS_SM80_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/matrix_load.cuh>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/score/score_steps.cuh>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// lse and delta of the moving queries, in shared memory.
template <int Queries>
struct moving_terms {
  alignas(16) float lse[Queries], delta[Queries];

  /// Starts the copy of those from query `first` on; those of a query that does not exist give P = 0.
  template <class Group, class Params, class Head>
  GIWA_DEVICE void load_async(const Group& group, const Params& p, const Head& h, int first) {
    for (int i = group.rank(); i < 2 * Queries; i += Group::size()) {
      const int query = i % Queries;
      float& to = i < Queries ? lse[query] : delta[query];
      if (first + query < h.queries()) {
        const row_terms& from = p.terms_at(h.sequence, h.head, h.first_query_row + first + query);
        arch::copy_async<4>(arch::shared_address(&to), i < Queries ? &from.lse : &from.delta);
      } else {
        to = i < Queries ? infinity_of<float> : 0.0f;
      }
    }
  }
};

/// Whether a run of Count elements of a tile's row holds NaN or infinity.
template <int Count, class Tile>
GIWA_DEVICE bool has_nonfinite_run(const Tile& tile, int row, int column) {
  using element = typename Tile::value_type;
  using two = decltype(pack<element>(0.f, 0.f));
  const two zero = pack<element>(0.f, 0.f);
  two sum = zero;
#pragma unroll 1  // its instructions come from memory for each item
  for (int i = 0; i < Count; i += 8) {
    two part[4];
    __builtin_memcpy(part, tile.chunk(row, column + i), sizeof part);
#if GIWA_ARCH_CAPABILITY >= 80
    GIWA_UNROLL
    for (int k = 0; k < 4; ++k) sum = __hfma2(part[k], zero, sum);
#endif
  }
  return __hneu(sum.x, sum.x) || __hneu(sum.y, sum.y);
}

/// Writes a left operand, as to_operand() makes it, to rows of a tile from `first_row` on.
template <int Words, class Tile>
GIWA_DEVICE void store_operand(int lane, const uint32 (&from)[Words], Tile& to, int first_row) {
  constexpr int per_row = Tile::columns / 4;  // words of 16 rows
  GIWA_UNROLL
  for (int i = 0; i < Words; i += 4) {
    const int row = first_row + i / per_row * 16, column = i % per_row * 4;
    if constexpr (GIWA_ARCH_CAPABILITY >= 90) {
      const uint32 matrices[4] = {from[i], from[i + 1], from[i + 2], from[i + 3]};
      arch::store_matrices(arch::shared_address(to.chunk(row + lane % 16, column + lane / 16 * 8)), matrices);
    } else {
      GIWA_UNROLL
      for (int k = 0; k < 4; ++k)
        *reinterpret_cast<uint32*>(&to(row + k % 2 * 8 + lane / 4, column + k / 2 * 8 + lane % 4 * 2)) = from[i + k];
    }
  }
}

/// What a warp does with its part of S, or of dP. Rows are keys from first_key on, columns queries from first_query on.
template <class Map, class T, class Mask, class Score>
struct sm80_all_steps {
  using steps_of_scores = score_steps<Mask, Score>;
  static constexpr bool modified = steps_of_scores::modified;
  static constexpr int words = Map::registers / 2;
  using handed = uint4[words / 4][32];  // in shared memory

  const attention_params<T, const T, Mask, Score>& call;
  const attention_head<T, const T>& head;
  const moving_terms<Map::shape::columns>& terms;
  int first_key, first_query;

  /// P as a left operand; P times the slope of the score modifier goes to the warp that computes dS.
  template <bool Masked, class Block>
  GIWA_DEVICE void weigh(const Block& block, int lane, const register_tile<float, Map>& scores,
                         uint32 (&operand)[words], handed& to) const {
    const steps_of_scores steps{call.mask, call.score, call.scale};
    const typename steps_of_scores::bounds bounds(head);
    const float factor = modified ? log2_e<float> : call.scale * log2_e<float>;
    [[maybe_unused]] kept_tile<Map, true> undropped;
    find_kept(block, lane, steps, bounds, undropped);
    uint32 sent[words];
    for_each_pair(lane, [&](int i, int key, int query, int column) {
      float weight[2], dropped[2], sloped[2];
      const float2 lse = *reinterpret_cast<const float2*>(terms.lse + column);
      GIWA_UNROLL
      for (int j = 0; j < 2; ++j) {
        float y = scores.value[i + j], slope = 1;
        bool kept = true;
        if constexpr (modified) kept = bounds.contain(query + j, key);
        if constexpr (Masked) kept = steps.keeps(bounds, query + j, key);
        if constexpr (modified) {
          y = device_product(y, call.scale);
          if (kept) {
            const dual<float> at = modified_score(call.score, y, bounds.place(query + j, key));
            y = at.value, slope = at.slope;
          }
        }
        weight[j] = exp2_of(fused_multiply_add(y, factor, -(j == 0 ? lse.x : lse.y) * log2_e<float>));
        if (!kept) weight[j] = 0;
        sloped[j] = kept ? weight[j] * slope : 0;
        dropped[j] = weight[j];
        if constexpr (drops_weights<Score>) dropped[j] = undropped[i + j] ? weight[j] * kept_scale(call.score) : 0;
      }
      operand[i / 2] = packed_word<T>(dropped[0], dropped[1]);
      sent[i / 2] = modified || drops_weights<Score> ? packed_word<T>(sloped[0], sloped[1]) : operand[i / 2];
    });
    GIWA_UNROLL
    for (int i = 0; i < words; i += 4) to[i / 4][lane] = make_uint4(sent[i], sent[i + 1], sent[i + 2], sent[i + 3]);
  }

  /// dS as a left operand, from dP and what weigh() has handed over.
  template <bool Masked, class Block>
  GIWA_DEVICE void differentiate(const Block& block, int lane, const register_tile<float, Map>& dp,
                                 uint32 (&operand)[words], const handed& from) const {
    const steps_of_scores steps{call.mask, call.score, call.scale};
    const typename steps_of_scores::bounds bounds(head);
    [[maybe_unused]] kept_tile<Map, true> undropped;
    find_kept(block, lane, steps, bounds, undropped);
    GIWA_UNROLL
    for (int i = 0; i < words; i += 4) {
      const uint4 four = from[i / 4][lane];
      operand[i] = four.x, operand[i + 1] = four.y, operand[i + 2] = four.z, operand[i + 3] = four.w;
    }
    for_each_pair(lane, [&](int i, int key, int query, int column) {
      const float2 weights = unpacked_word<T>(operand[i / 2]);
      const float2 delta = *reinterpret_cast<const float2*>(terms.delta + column);
      float ds[2];
      GIWA_UNROLL
      for (int j = 0; j < 2; ++j) {
        float x = dp.value[i + j];
        if constexpr (drops_weights<Score>) x = undropped[i + j] ? x * kept_scale(call.score) : 0;
        ds[j] = (j == 0 ? weights.x : weights.y) * (x - (j == 0 ? delta.x : delta.y));
        if constexpr (Masked || modified) {
          const bool kept = Masked ? steps.keeps(bounds, query + j, key) : bounds.contain(query + j, key);
          if (!kept) ds[j] = 0;
        }
      }
      operand[i / 2] = packed_word<T>(ds[0], ds[1]);
    });
  }

 private:
  /// f(register, key, query, column of the tile) for each pair of neighbouring queries, column by column.
  template <class F>
  GIWA_DEVICE void for_each_pair(int lane, const F& f) const {
    GIWA_UNROLL
    for (int c = 0; c < Map::period; c += 4) {
      const int column = Map::column(lane, c);
      GIWA_UNROLL
      for (int slot = 0; slot < Map::rows; ++slot)
        f(slot / 2 * Map::period + c + slot % 2 * 2, first_key + Map::row(lane, slot), first_query + column, column);
    }
  }
  template <class Block, class Kept>
  GIWA_DEVICE void find_kept([[maybe_unused]] const Block& block, [[maybe_unused]] int lane,
                             [[maybe_unused]] const steps_of_scores& steps,
                             [[maybe_unused]] const typename steps_of_scores::bounds& bounds,
                             [[maybe_unused]] Kept& to) const {
    if constexpr (drops_weights<Score>)
      to.find(block, dropout_bits(call.score, steps.random_key, bounds.batch, bounds.head), lane, first_key,
              first_query);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
