// SPDX-License-Identifier: MIT
// S and P of rows of 656 bytes.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_BYTE_SCORES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_BYTE_SCORES_SM90_CUH

#include <giwa/arch/reduce_warp.cuh>
#include <giwa/attention/kernels/sm80/few_rows_scaling_sm80.cuh>
#include <giwa/attention/kernels/sm90/latent_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Codes become fp16 in registers, exactly, as they come from shared memory: for S the left operand of wgmma. Scales of keys multiply the
/// sums of their 128 products each, and P, which has a tile for each of the four scales of a row. With products of
/// e4m3, which tensor cores add with 13 bits, calls took 0.94 of the time, and lse was off by up to 2e-2 for scores of 60.
template <class Types, class Score, class Block>
struct latent_byte_scores {
  using query = typename Types::query;
  using keys = row_bytes_tile<Types::leaf_keys>;
  static constexpr int groups = keys::groups;
  using scores_tile = warpgroup_tile<Types::rows>;  // (keys, rows)
  using map = transposed_output_map<Types::rows, 1>;

  const Block& block;
  const typename Types::params& p;
  typename Types::shared_storage& s;
  const int lane, warp;

  static constexpr int run = 4;  // columns of a lane for each scale, and of the rest
  using row_of_q = query[groups + 1][run];
  /// Loads the packed rows of q, zeros past their end. Those of a warp are read before the first is written, because each takes the latency
  /// of the memory.
  GIWA_DEVICE void load_q(const few_rows_work_tile& work, const packed_rows& rows, int rank) const {
    constexpr int warps = Types::score_groups * Types::score_warps, count = Types::rows / warps;
    alignas(8) row_of_q x[count];
    if constexpr (rotates_queries<Score>) {  // unrolled, it would spill
      GIWA_NO_UNROLL
      for (int row = rank; row < Types::rows; row += warps) read_row(work, rows, row, x[0]), write_row(row, x[0]);
    } else {
      GIWA_UNROLL
      for (int n = 0; n < count; ++n) read_row(work, rows, rank + warps * n, x[n]);
      GIWA_UNROLL
      for (int n = 0; n < count; ++n) write_row(rank + warps * n, x[n]);
    }
  }
  GIWA_DEVICE void read_row(const few_rows_work_tile& work, const packed_rows& rows, int row, row_of_q& x) const {
    const auto& call = p.splits.call;
    const auto& q = call.views.q;
    const query* from = nullptr;
    if (row < rows.rows)
      from = &q(work.sequence.q_batch, work.sequence.first_query_row + rows.query(row), rows.head(row), 0);
    GIWA_UNROLL
    for (int n = 0; n <= groups; ++n) {
      const int column = rows_656::group * n + run * lane;
      if (from == nullptr || column >= rows_656::head_size) {
        GIWA_UNROLL
        for (int i = 0; i < run; ++i) x[n][i] = convert<query>{}(0.f);
      } else if constexpr (rotates_queries<Score>) {
        read_rotated<run>(from, column, run, p.q_aligned, call.score.rotary,
                          position_of_query(call, work.sequence, rows.query(row)), x[n]);
      } else if (p.q_aligned) {
        *reinterpret_cast<uint2*>(x[n]) = *reinterpret_cast<const uint2*>(from + column);
      } else {
        for (int i = 0; i < run; ++i) x[n][i] = from[column + i];
      }
    }
  }
  /// Writes q in fp16, multiplied by a factor of its row, for the codes, and in bf16 for the rest.
  GIWA_DEVICE void write_row(int row, const row_of_q& x) const {
    const auto [up, down] = factors_of_row<groups>(block, x);
    GIWA_UNROLL
    for (int n = 0; n < groups; ++n) GIWA_UNROLL
    for (int i = 0; i < run; i += 2) {
      const auto two = pack<fp16>(convert<float>{}(x[n][i]) * up, convert<float>{}(x[n][i + 1]) * up);
      __builtin_memcpy(&s.q.codes[n](row, place_of_column<1>(run * lane + i)), &two, 4);
    }
    if (lane == 0) s.q.factor[row] = down;
    if (run * lane >= rows_656::rest) return;
    GIWA_UNROLL
    for (int i = 0; i < run; ++i) {
      float left = convert<float>{}(x[groups][i]);
      GIWA_UNROLL
      for (int n = 0; n < s.q.rests; ++n) {
        const bf16 part = convert<bf16>{}(left);
        s.q.rest[n](row, run * lane + i) = part;
        left -= convert<float>{}(part);
      }
    }
  }

  /// Computes S. Codes come from shared memory and become fp16, exactly, while the products of those before are computed. Of 64 codes at
  /// once 170 instead of 74 bytes were spilled: 128 x 8192 keys, 16 heads, 236 instead of 233 us (H200, 2026-11-30).
  GIWA_DEVICE void multiply(scores_tile& scores, const keys& tile) const {
    constexpr int depth = 32, parts = rows_656::group / depth, steps = parts * groups;
    const fragment_addresses<decltype(keys::codes)> k_at(tile.codes, 16 * warp + lane % 16, lane / 16 * 16);
    const float* const scale_of_key[2] = {tile.scales(first_key()), tile.scales(first_key() + 8)};
    byte_fragment<e4m3> codes;
    uint32 operand[2][depth / 4];
    scores_tile sums[2];
    uint32 rest[rows_656::rest / 4];
    GIWA_UNROLL
    for (int n = 0; n < rows_656::rest / 16; ++n) {
      uint32 four[4];
      arch::load_matrices(four, k_at(0, rows_656::rest_at + 32 * n));
      GIWA_UNROLL
      for (int i = 0; i < 4; ++i) rest[4 * n + i] = four[i];
    }
    arch::load_matrices(codes.four, k_at(0, 0));
    arch::fence_operand(scores.value);
    arch::wgmma_fence();
    GIWA_UNROLL
    for (int n = 0; n < s.q.rests; ++n)
      giwa::multiply<descriptors::in_turn>(scores, rest, transposed(s.q.rest[n]), n > 0);
    arch::wgmma_commit();
    float factor[map::rows];
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r) factor[r] = s.q.factor[map::row(lane, r)];
    const auto add = [&](int g) {
      arch::fence_operand(sums[g % 2].value);
      if (g == 0) arch::fence_operand(scores.value);
      const float scale[2] = {scale_of_key[0][g], scale_of_key[1][g]};
      GIWA_UNROLL
      for (int i = 0; i < scores.registers; ++i)
        scores.value[i] =
            fused_multiply_add(sums[g % 2].value[i] * factor[map::slot(i)], scale[key_of(i)], scores.value[i]);
    };
    GIWA_UNROLL
    for (int t = 0; t < steps; ++t) {
      const int g = t / parts;
      GIWA_UNROLL
      for (int n = 0; n < depth / 16; ++n) {  // 16 codes of 16 keys each
        uint32 first[2], second[2];
        codes.rows(2 * n, first);
        codes.rows(2 * n + 1, second);
        uint32* const to = operand[t % 2] + 4 * n;
        to[0] = first[0], to[1] = second[0], to[2] = first[1], to[3] = second[1];
      }
      if (t + 1 < steps) arch::load_matrices(codes.four, k_at(0, depth * (t + 1)));
      arch::fence_operand(sums[g % 2].value);
      arch::wgmma_fence();
      giwa::multiply<descriptors::in_turn>(sums[g % 2], operand[t % 2], transposed(s.q.codes[g]), t % parts > 0, 0,
                                           t % parts * depth);
      arch::wgmma_commit();
      arch::wgmma_wait<1>();  // so that the next step may write the other operand
      if (t > 0 && t % parts == 0) add(g - 1);
    }
    arch::wgmma_wait<0>();
    add(groups - 1);
  }
  /// Register i of a lane is of its first key or of the one 8 later.
  GIWA_DEVICE int first_key() const { return map::column(32 * warp + lane, 0); }
  GIWA_DEVICE static constexpr int key_of(int i) { return i % 4 / 2; }
  struct key_scales {
    float of[2][groups];
    GIWA_DEVICE key_scales(const keys& tile, int first) {
      GIWA_UNROLL
      for (int k = 0; k < 2; ++k) {
        const float4 x = *reinterpret_cast<const float4*>(tile.scales(first + 8 * k));
        of[k][0] = x.x, of[k][1] = x.y, of[k][2] = x.z, of[k][3] = x.w;
      }
    }
  };
  /// Masks the keys from `end` of the tile on.
  GIWA_DEVICE void mask_end(scores_tile& scores, int end) const {
    if (end >= Types::leaf_keys) return;
    GIWA_UNROLL
    for (int i = 0; i < scores.registers; ++i)
      if (first_key() + 8 * key_of(i) >= end) scores.value[i] = -infinity_of<float>;
  }
  GIWA_DEVICE float scale_of(const keys& tile, int i, int group) const {
    return tile.scales(map::column(32 * warp + lane, i))[group];
  }

  GIWA_DEVICE static float largest_of(const float4& x) { return larger_of(larger_of(x.x, x.y), larger_of(x.z, x.w)); }
  /// As a power of two that makes it 2^14 to 2^15, which power_of_two() takes.
  GIWA_DEVICE static uint32 exponent_of_scale(float largest) { return exponent_of(largest, 15, 254); }
  GIWA_DEVICE static float counted(float scale) { return is_nonfinite(scale) ? 0.f : arch::magnitude(scale); }
  /// Writes the exponent of the largest scale of each group, of a tile of which each row sees every key: a warp for each group.
  GIWA_DEVICE void share_exponents(const keys& tile, int buffer) const {
    static_assert(groups == Types::score_warps && Types::leaf_keys == 64);
    const float largest = larger_of(counted(tile.scales(lane)[warp]), counted(tile.scales(lane + 32)[warp]));
    const uint32 exponent = exponent_of_scale(__uint_as_float(arch::largest_of_warp(__float_as_uint(largest))));
    if (lane == 0) s.p[buffer].exponent[warp] = exponent;
  }
  /// Writes the largest scales that each row sees among this warp's keys.
  template <class Reduce>
  GIWA_DEVICE void share_largest_scales(const scores_tile& scores, const keys& tile, int buffer, int row_of_lane,
                                        const Reduce& reduce) const {
    GIWA_NO_UNROLL
    for (int g = 0; g < groups; ++g) {
      float largest[map::rows];
      GIWA_UNROLL
      for (int r = 0; r < map::rows; ++r) largest[r] = 0;
      GIWA_UNROLL
      for (int i = 0; i < scores.registers; ++i)
        if (scores.value[i] != -infinity_of<float>)
          largest[map::slot(i)] = larger_of(largest[map::slot(i)], counted(scale_of(tile, i, g)));
      const float of_lane = reduce(largest);
      if (lane < 16) s.p[buffer].largest[g][row_of_lane][warp] = of_lane;
    }
  }

  static constexpr uint32 of_largest = 127 + 14;  // the exponent of the largest scale times `up`
  GIWA_DEVICE static float up(uint32 exponent) { return power_of_two(of_largest + 127 - exponent); }
  /// Writes P times the scales of a group, weight_of(i) for register i.
  template <class Weight>
  GIWA_DEVICE void store_weights(int buffer, int group, const Weight& weight_of) const {
    store_transposed<fp16>(lane, warp, s.p[buffer].of[group], weight_of);
  }
  GIWA_DEVICE void share_factor(int buffer, int group, int row, uint32 exponent) const {
    s.p[buffer].factor[group][row] = power_of_two(127 + exponent - of_largest);
  }
  /// What P is multiplied by for each group: the scales of a lane's keys, in units of a power of two.
  struct weights_of_keys {
    float of[2][groups];
    uint32 exponent[groups];
  };
  GIWA_DEVICE weights_of_keys weights_of(const keys& tile, int buffer) const {
    const key_scales scale_at(tile, first_key());
    const uint4 x = *reinterpret_cast<const uint4*>(s.p[buffer].exponent);
    weights_of_keys found{{}, {x.x, x.y, x.z, x.w}};
    GIWA_UNROLL
    for (int k = 0; k < 2; ++k) GIWA_UNROLL
    for (int g = 0; g < groups; ++g) found.of[k][g] = scale_at.of[k][g] * up(found.exponent[g]);
    return found;
  }
  /// Writes P times the scales of a group. NaN and infinity of a scale make the product so.
  GIWA_DEVICE void share_weights(const scores_tile& scores, const weights_of_keys& weights, int buffer, int g) const {
    store_weights(buffer, g, [&](int i) { return scores.value[i] * weights.of[key_of(i)][g]; });
    if (warp == g && lane < Types::rows) share_factor(buffer, g, lane, weights.exponent[g]);
  }
  /// The same of a tile of which some row does not see every key; sees(i) tells whether the row of register i sees its key.
  template <class Sees>
  GIWA_DEVICE void share_weights_that_rows_see(const scores_tile& scores, const keys& tile, int buffer,
                                               const Sees& sees) const {
    GIWA_NO_UNROLL
    for (int g = 0; g < groups; ++g) {
      float factor[map::rows];
      GIWA_UNROLL
      for (int r = 0; r < map::rows; ++r) {
        const float4 of_warps = *reinterpret_cast<const float4*>(s.p[buffer].largest[g][map::row(lane, r)]);
        const uint32 exponent = exponent_of_scale(largest_of(of_warps));
        factor[r] = up(exponent);
        if (warp == g && is_first_of_rows<map>(lane)) share_factor(buffer, g, map::row(lane, r), exponent);
      }
      store_weights(buffer, g, [&](int i) {
        const float scale = scale_of(tile, i, g), weight = scores.value[i];
        // A finite scale that no row's largest counts may overflow here: its weight is 0.
        const bool counts = is_nonfinite(scale) ? sees(i) : weight != 0;
        return counts ? weight * (scale * factor[map::slot(i)]) : 0.f;
      });
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
