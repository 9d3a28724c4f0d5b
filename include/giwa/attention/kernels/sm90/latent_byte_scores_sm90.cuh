// SPDX-License-Identifier: MIT
// S and P of rows of 656 bytes.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_BYTE_SCORES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_BYTE_SCORES_SM90_CUH

#include <giwa/arch/reduce_warp.cuh>
#include <giwa/attention/kernels/sm80/few_rows_scaling_sm80.cuh>
#include <giwa/attention/kernels/sm90/latent_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Codes become fp16 in registers, exactly, as they come from shared memory: for S the left operand of wgmma. Scales of keys multiply the
/// sums of their 128 products each, and P, which has a tile for each of the four scales of a row.
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
  GIWA_DEVICE void load_q(const few_rows_work_tile& work, const packed_rows& rows) const {
    constexpr int count = Types::rows / Types::score_warps;
    alignas(8) row_of_q x[count];
    if constexpr (rotates_queries<Score>) {  // unrolled, it would spill
      GIWA_NO_UNROLL
      for (int row = warp; row < Types::rows; row += Types::score_warps)
        read_row(work, rows, row, x[0]), write_row(row, x[0]);
    } else {
      GIWA_UNROLL
      for (int n = 0; n < count; ++n) read_row(work, rows, warp + Types::score_warps * n, x[n]);
      GIWA_UNROLL
      for (int n = 0; n < count; ++n) write_row(warp + Types::score_warps * n, x[n]);
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

  /// Computes S. Each group of products waits for the one before, while its codes are converted.
  GIWA_DEVICE void multiply(scores_tile& scores, const keys& tile) const {
    using codes = decltype(keys::codes);
    constexpr int depth = 64, parts = rows_656::group / depth, steps = parts * groups;
    const fragment_addresses<codes> k_at(tile.codes, 16 * warp + lane % 16, lane / 16 * 16);
    byte_fragment<e4m3> of_k[2];
    uint32 operand[2][depth / 4];
    scores_tile sums[2];
    const auto read = [&](int t) {
      GIWA_UNROLL
      for (int n = 0; n < 2; ++n)
        arch::load_matrices(of_k[n].four, k_at(0, t / parts * rows_656::group + t % parts * depth + 32 * n));
    };
    read(0);
    arch::fence_operand(scores.value);
    arch::wgmma_fence();
    GIWA_UNROLL
    for (int n = 0; n < s.q.rests; ++n)
      giwa::multiply<0, descriptors::in_turn>(scores, tile.rest, 0, transposed(s.q.rest[n]), n > 0);
    arch::wgmma_commit();
    const auto add = [&](int g) {
      arch::fence_operand(sums[g % 2].value);
      arch::fence_operand(scores.value);
      GIWA_UNROLL
      for (int i = 0; i < scores.registers; ++i)
        scores.value[i] = fused_multiply_add(sums[g % 2].value[i] * s.q.factor[map::row(lane, map::slot(i))],
                                             scale_of(tile, i, g), scores.value[i]);
    };
    GIWA_UNROLL
    for (int t = 0; t < steps; ++t) {
      GIWA_UNROLL
      for (int n = 0; n < 4; ++n) {  // 16 codes of 16 keys each
        uint32 first[2], second[2];
        of_k[n / 2].rows(n % 2 * 2, first);
        of_k[n / 2].rows(n % 2 * 2 + 1, second);
        uint32* const to = operand[t % 2] + 4 * n;
        to[0] = first[0], to[1] = second[0], to[2] = first[1], to[3] = second[1];
      }
      if (t + 1 < steps) read(t + 1);
      arch::fence_operand(sums[t / parts % 2].value);
      arch::wgmma_fence();
      giwa::multiply<descriptors::in_turn>(sums[t / parts % 2], operand[t % 2], transposed(s.q.codes[t / parts]),
                                           t % parts > 0, 0, t % parts * depth);
      arch::wgmma_commit();
      if (t == 0) continue;
      arch::wgmma_wait<1>();
      if ((t - 1) % parts == parts - 1) add((t - 1) / parts);
    }
    arch::wgmma_wait<0>();
    add(groups - 1);
  }
  GIWA_DEVICE float scale_of(const keys& tile, int i, int group) const {
    return tile.scales[map::column(32 * warp + lane, i)][group];
  }

  GIWA_DEVICE static float largest_of(const float4& x) { return larger_of(larger_of(x.x, x.y), larger_of(x.z, x.w)); }
  /// As a power of two that makes it 2^14 to 2^15, which power_of_two() takes.
  GIWA_DEVICE static uint32 exponent_of_scale(float largest) { return exponent_of(largest, 15, 254); }
  GIWA_DEVICE static float counted(float scale) { return is_nonfinite(scale) ? 0.f : arch::magnitude(scale); }
  /// Of the largest scales of a tile, of which each row sees every key: a byte for each group.
  GIWA_DEVICE uint32 find_exponents(const keys& tile) const {
    static_assert(groups == 4 && Types::leaf_keys == 64);
    const float4 x = *reinterpret_cast<const float4*>(tile.scales[lane]),
                 y = *reinterpret_cast<const float4*>(tile.scales[lane + 32]);
    const float largest[groups] = {larger_of(counted(x.x), counted(y.x)), larger_of(counted(x.y), counted(y.y)),
                                   larger_of(counted(x.z), counted(y.z)), larger_of(counted(x.w), counted(y.w))};
    uint32 exponents = 0;
    GIWA_UNROLL
    for (int g = 0; g < groups; ++g)
      exponents |= exponent_of_scale(__uint_as_float(arch::largest_of_warp(__float_as_uint(largest[g])))) << 8 * g;
    return exponents;
  }
  /// Writes the largest scales that each row sees among this warp's keys.
  template <class Reduce>
  GIWA_DEVICE void share_largest_scales(const scores_tile& scores, const keys& tile, int buffer,
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
      reduce(largest);
      GIWA_UNROLL
      for (int r = 0; r < map::rows; ++r)
        if (is_first_of_rows<map>(lane)) s.p[buffer].largest[g][map::row(lane, r)][warp] = largest[r];
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
  /// Writes P times the scales. NaN and infinity of a scale make the product so.
  GIWA_DEVICE void share_weights(const scores_tile& scores, uint32 exponents, const keys& tile, int buffer) const {
    GIWA_UNROLL
    for (int g = 0; g < groups; ++g) {
      const uint32 exponent = exponents >> 8 * g & 255;
      const float factor = up(exponent);
      store_weights(buffer, g, [&](int i) { return scores.value[i] * (scale_of(tile, i, g) * factor); });
      if (warp == g && lane < Types::rows) share_factor(buffer, g, lane, exponent);
    }
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
