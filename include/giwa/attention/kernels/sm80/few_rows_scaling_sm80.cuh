// SPDX-License-Identifier: MIT
// 8-bit caches of few rows: q in fp16, scales of keys and values.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_SCALING_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_SCALING_SM80_CUH

#include <giwa/attention/kernels/sm80/byte_products_sm80.cuh>
#include <giwa/attention/kernels/sm80/few_rows_types_sm80.cuh>
#include <giwa/attention/nonfinite/nonfinite.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// 2^(exponent - 127), for exponents from 1 to 254.
GIWA_DEVICE inline float power_of_two(uint32 exponent) { return __uint_as_float(exponent << 23); }
/// The exponent of |x| as power_of_two() takes it, within [least, most]. NaN has 255.
GIWA_DEVICE inline uint32 exponent_of(float x, uint32 least, uint32 most) {
  const uint32 e = __float_as_uint(x) >> 23 & 0xff;
  return e < least ? least : e > most ? most : e;
}

/// What numbers of a row are multiplied by to be fp16, a power of two that makes the largest 2^14 to 2^15, and its inverse. fp16 stays as it is.
struct row_factors {
  float up = 1, down = 1;
};
/// Those of a row that the lanes of a warp share, of which each has `Count` runs and perhaps further ones, which do not count.
template <int Count, class Block, class T, int Runs, int Run>
GIWA_DEVICE row_factors factors_of_row(const Block& block, const T (&x)[Runs][Run]) {
  if constexpr (precision_of<T>::significand_bits == precision_of<fp16>::significand_bits) {
    return {};
  } else {
    float largest = 0;
    GIWA_UNROLL
    for (int n = 0; n < Count; ++n) GIWA_UNROLL
    for (int i = 0; i < Run; ++i) largest = larger_of(largest, arch::magnitude(convert<float>{}(x[n][i])));
    for (int distance = 16; distance > 0; distance /= 2)
      largest = larger_of(largest, block.shuffle_xor(largest, distance));
    const uint32 exponent = exponent_of(largest, 15, 255);
    return {power_of_two(127 + 14 + 127 - exponent), power_of_two(exponent - 14)};
  }
}

/// Scores of an 8-bit cache are q k times a factor of the row: the scale of the keys, and the power of two by which
/// bf16 was divided to become fp16. If each key has a scale, its scores are multiplied by that. The scale of all values
/// is a factor of the finished row. If each value has a scale, P is multiplied by that over the largest one that the
/// row sees in the leaf, rounded to a power of two, so that fp16 holds P; the power is the factor of O.
template <class Types, class Block, bool Converts = Types::converts>
struct few_rows_scaling {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;

  const Block& block;
  const params& p;
  shared_storage& s;
  const int lane, group, warp, first_key;  // of the score warp: its rank in the group, its first key of a leaf
  uint32 exponent[Types::rows / 8] = {};   // of the factors of this lane's rows of O, if values have several scales
  bool second[Types::rows / 8] = {};       // whether a row of this lane has the second head of a pair

  /// Where the scales of the values of a leaf are.
  GIWA_DEVICE static int slot_of(uint32 turn) {
    return static_cast<int>(turn % decltype(shared_storage::scales)::slots);
  }
  /// Whether P is multiplied by scales.
  GIWA_DEVICE bool has_weights() const { return p.v_scales; }

  /// Loads the packed rows of q in fp16, with the columns in the order of multiply_keys(), and the factors of their scores.
  GIWA_DEVICE void load_q(const few_rows_work_tile& work, const packed_rows& rows) {
    const auto& scales = p.splits.call.views.cache.scales;
    const bool one = !p.k_scales && scales.k.data() != nullptr;
    const auto k_scale_of = [&](int head) { return one ? *scale_at(scales.k, {work.sequence.batch, 0}, head) : 1.f; };
    float k_scale = 1;
    if constexpr (Types::heads == 1) k_scale = k_scale_of(work.head);
    if constexpr (rotates_queries<typename Types::score>) {  // unrolled, 32 rows would spill
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
      for (int row = warp; row < Types::rows; row += Types::score_warps) load_row(work, rows, row, k_scale);
    } else {
      GIWA_UNROLL
      for (int row = warp; row < Types::rows; row += Types::score_warps) {
        if constexpr (Types::heads == 2)
          k_scale = k_scale_of(2 * work.head + (row < rows.rows ? pairs_of_heads::head_of(rows, row) : 0));
        load_row(work, rows, row, k_scale);
      }
    }
  }

  /// Multiplies the scores of this warp's keys by the factors of rows, and by the scales of keys if they have some.
  template <class Scores>
  GIWA_DEVICE void scale_scores(Scores& scores, int stage) const {
    using map = typename Scores::map;
    float factor[map::rows];
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r) factor[r] = s.scales.q_factor[group][map::row(lane, r)];
    scores.transform_rows(factor, [](float x, float of_row) { return x * of_row; });
    if (!p.k_scales) return;
    for_each_scale<map>(s.scales.k[stage], [&](int i, float scale) { scores.value[i] *= scale; });
  }

  /// Whether a leaf of which all rows see every key has one largest scale for all rows, which each warp finds alone. Larger tiles
  /// have no registers for this second way.
  static constexpr bool finds_alone = Types::rows == 8;

  /// Before the score warps meet: tells whether a row does not see one of this warp's keys (its score is -infinity), or writes the
  /// largest scale at once.
  template <class Scores>
  GIWA_DEVICE void share_largest(const Scores& scores, int slot, int buffer, tile_keep visible) const {
    if constexpr (finds_alone) {
      bool hidden = visible != tile_keep::all;
      GIWA_UNROLL
      for (int i = 0; i < Scores::registers; ++i) hidden = hidden || scores.value[i] == -infinity_of<float>;
      hidden = block.any(hidden);
      if (lane == 0) s.scales.hidden[buffer][warp] = hidden ? 1 : 0;
    } else {
      share_largest_of_rows(scores, slot, buffer);
    }
  }
  /// After that: finds the largest scale of all rows, if there is one.
  GIWA_DEVICE bool has_one_largest(int slot, int buffer) {
    if (!finds_alone || !p.v_scales) return false;
    int hidden = 0;
    GIWA_UNROLL
    for (int w = 0; w < Types::scores_in_use; ++w) hidden |= s.scales.hidden[buffer][w];
    if (hidden != 0) return false;
    GIWA_UNROLL
    for (int h = 0; h < Types::heads; ++h) {
      float largest = 0;
      GIWA_UNROLL
      for (int key = 0; key < Types::leaf_keys; key += 32) {
        const float scale = s.scales.v[slot][h][key + lane];
        largest = larger_of(largest, is_nonfinite(scale) ? 0.f : arch::magnitude(scale));
      }
      for (int distance = 16; distance > 0; distance /= 2)
        largest = larger_of(largest, block.shuffle_xor(largest, distance));
      GIWA_UNROLL
      for (int r = 0; r < Types::rows / 8; ++r)
        if (h == head_of(r)) exponent[r] = exponent_of(largest, 1, 253);
    }
    return true;
  }

  /// Writes the largest scale of the values that each row sees among this warp's keys.
  template <class Scores>
  GIWA_DEVICE void share_largest_of_rows(const Scores& scores, int slot, int buffer) const {
    using map = typename Scores::map;
    float largest[map::rows];
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r) largest[r] = 0;
    GIWA_UNROLL
    for (int i = 0; i < Scores::registers; ++i) {
      const float scale = s.scales.v[slot][head_of(map::slot(i))][first_key + map::column(lane, i)];
      const bool counts = scores.value[i] != -infinity_of<float> && !is_nonfinite(scale);
      largest[map::slot(i)] = larger_of(largest[map::slot(i)], counts ? arch::magnitude(scale) : 0.f);
    }
    reduce_over_lanes<map>(block, largest, larger{});
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r)
      if (lane % map::lanes == 0) s.scales.largest[buffer][map::row(lane, r)][warp] = largest[r];
  }

  /// Reads what all score warps have written. Until the output warps have met them, none of them writes the next ones.
  template <class Scores>
  GIWA_DEVICE void read_largest(const Scores&, int buffer) {
    using map = typename Scores::map;
    if (!p.v_scales) return;
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r) {
      const auto& of_row = s.scales.largest[buffer][map::row(lane, r)];
      float largest = of_row[0];
      GIWA_UNROLL
      for (int w = 1; w < Types::scores_in_use; ++w) largest = larger_of(largest, of_row[w]);
      exponent[r] = exponent_of(largest, 1, 253);
    }
  }

  /// Multiplies weights by the scales of their values, of which all rows see every one. NaN and infinity make the product so.
  template <class Scores>
  GIWA_DEVICE void weigh(Scores& weights, int slot) const {
    const float factor = power_of_two(254 - exponent[0]);
    for_each_scale<typename Scores::map>(s.scales.v[slot],
                                         [&](int i, float scale) { weights.value[i] *= scale * factor; });
  }
  /// The same where a row may not see some; sees(i) tells whether the row of register i sees its key.
  template <class Scores, class Sees>
  GIWA_DEVICE void weigh(Scores& weights, int slot, const Sees& sees) const {
    using map = typename Scores::map;
    GIWA_UNROLL
    for (int i = 0; i < Scores::registers; ++i) {
      const float scale = s.scales.v[slot][head_of(map::slot(i))][first_key + map::column(lane, i)];
      const float weight = weights.value[i], scaled = weight * (scale * power_of_two(254 - exponent[map::slot(i)]));
      // A finite scale that no row's largest counts may overflow here: its weight is 0.
      const bool counts = is_nonfinite(scale) ? sees(i) : weight != 0;
      weights.value[i] = counts ? scaled : 0.f;
    }
  }

  /// Writes the factor of a row's O.
  GIWA_DEVICE void share_factor(int buffer, int slot, int row) const {
    if (p.v_scales) s.scales.o_factor[buffer][row] = power_of_two(exponent[slot]);
  }

 private:
  /// Which head of a tile's keys the row of a slot has.
  GIWA_DEVICE int head_of([[maybe_unused]] int slot) const { return Types::heads == 2 && second[slot] ? 1 : 0; }
  /// Calls f(i, scale) for each register of a tile of scores, with the scale of its key. Registers 2 n and 2 n + 1 are of
  /// neighbouring keys.
  template <class Map, class F>
  GIWA_DEVICE void for_each_scale(const float (&scales)[Types::heads][Types::leaf_keys], const F& f) const {
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; i += 2) {
      const float2 two =
          *reinterpret_cast<const float2*>(&scales[head_of(Map::slot(i))][first_key + Map::column(lane, i)]);
      f(i, two.x), f(i + 1, two.y);
    }
  }
  /// Four columns of a lane at a time. A row of bf16 is multiplied by the power of two that makes its largest element
  /// 2^14 to 2^15, at most by 2^126; an element that is 2^-39 of that or less is lost.
  GIWA_DEVICE void load_row(const few_rows_work_tile& work, const packed_rows& rows, int row, float k_scale) const {
    using tile = typename Types::q_tile;
    using element = typename Types::query;
    constexpr int run = 4, runs = ceil_div(tile::columns, 32 * run);
    const auto& q = p.splits.call.views.q;
    const int width = row < rows.rows ? static_cast<int>(q.extent(3)) : 0;
    const int valid_row = row < rows.rows ? row : 0;
    const element* const from =
        &q(work.sequence.q_batch, work.sequence.first_query_row + rows.query(valid_row), rows.head(valid_row), 0);
    alignas(8) element x[runs][run];
    GIWA_UNROLL
    for (int n = 0; n < runs; ++n) {
      const int column = (32 * n + lane) * run;
      if constexpr (rotates_queries<typename Types::score>) {
        if (column < width) {
          read_rotated<run>(from, column, width - column < run ? width - column : run, p.q_aligned,
                            p.splits.call.score.rotary,
                            position_of_query(p.splits.call, work.sequence, rows.query(valid_row)), x[n]);
          continue;
        }
      }
      if (column + run <= width && p.q_aligned)
        *reinterpret_cast<uint2*>(x[n]) = *reinterpret_cast<const uint2*>(from + column);
      else
        for (int i = 0; i < run; ++i) x[n][i] = column + i < width ? from[column + i] : convert<element>{}(0.f);
    }
    const auto [up, down] = factors_of_row<runs>(block, x);
    GIWA_UNROLL
    for (int n = 0; n < runs; ++n) {
      const int column = (32 * n + lane) * run;
      if (column >= tile::columns) continue;
      fp16 y[run];
      GIWA_UNROLL
      for (int i = 0; i < run; ++i) y[i] = convert<fp16>{}(convert<float>{}(x[n][i]) * up);
      GIWA_UNROLL
      for (int i = 0; i < run; i += 2)
        if constexpr (Types::codes == 1)
          __builtin_memcpy(&s.q[group](row, place_of_column<1>(column + i)), y + i, 4);
        else
          for (int j = i; j < i + 2; ++j) s.q[group](row, place_of_column<Types::codes>(column + j)) = y[j];
    }
    if (lane == 0) s.scales.q_factor[group][row] = down * k_scale;
  }
};

/// Caches of 16 bits have no scales.
template <class Types, class Block>
struct few_rows_scaling<Types, Block, false> {
  const Block& block;
  const typename Types::params& p;
  typename Types::shared_storage& s;
  const int lane, group, warp, first_key;

  static constexpr bool finds_alone = false;
  GIWA_DEVICE static constexpr int slot_of(uint32) { return 0; }
  GIWA_DEVICE static constexpr bool has_weights() { return false; }
  GIWA_DEVICE static constexpr bool has_one_largest(int, int) { return false; }
  template <class... Arguments>
  GIWA_DEVICE void share_largest(const Arguments&...) const {}
  template <class... Arguments>
  GIWA_DEVICE void share_largest_of_rows(const Arguments&...) const {}
  template <class... Arguments>
  GIWA_DEVICE void read_largest(const Arguments&...) const {}
  template <class... Arguments>
  GIWA_DEVICE void weigh(const Arguments&...) const {}
  GIWA_DEVICE void share_factor(int, int, int) const {}
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
