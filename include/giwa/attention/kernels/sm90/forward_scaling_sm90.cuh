// SPDX-License-Identifier: MIT
// Scales of e4m3 in the Hopper kernel.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_SCALING_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_SCALING_SM90_CUH

#include <giwa/attention/kernels/sm90/forward_consumer_state_sm90.cuh>
#include <giwa/tile/operand_of_bytes.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Scales of all rows of q and k go into the scale of the scores, which the softmax applies at no cost. Others multiply each score.
/// It is empty for kernels without scales.
template <class Types>
struct scaled_scores {
  template <class Consumer>
  GIWA_DEVICE scaled_scores(Consumer&, const typename Types::work_tile&) {}
};

template <class Types>
  requires(Types::transposes_v)
struct scaled_scores<Types> {
  using map = typename Types::score_map;
  static constexpr int group =
      32;             // columns of a tile that begin at a multiple of it share a scale of k: groups have 64 keys
  bool each = false;  // scores are multiplied

  /// Reads the scales of a consumer's queries of a work tile, and sets the scale of the scores.
  template <class Consumer>
  GIWA_DEVICE scaled_scores(Consumer& c, const typename Types::work_tile& work) {
    const auto& head = work.head.get();
    const head_scales scales = scales_of_head(c.p.call.scales, head);
    // As on other paths: the scale of the call times the product of the other two.
    c.steps.scale = c.p.call.scale * ((scales.q.is_one() ? scales.q[0] : 1) * (scales.k.is_one() ? scales.k[0] : 1));
    // Below 2^-126 it has no power of two for the -infinity of a row without keys, and multiplies each score.
    const bool tiny = c.steps.scale != 0 && arch::magnitude(c.steps.scale) < 0x1p-126f;
    const float of_all = tiny ? c.steps.scale : 1.f;
    if (tiny) c.steps.scale = 1;
    c.needs_scale = !Consumer::steps_of_scores::modified && c.steps.scale_first();
    each = c.block.any(tiny || !scales.q.is_one() || !scales.k.is_one());
    if (!each) return;
    const int first = Types::queries_of(work, c.index).first, last = head.queries() - 1;
    GIWA_UNROLL
    for (int r = 0; r < map::rows; ++r) {
      const int query = first + map::row(c.thread, r);
      of_row(c, r) = of_all * (scales.q.is_one() || last < 0 ? 1.f : scales.q[query < last ? query : last]);
    }
  }
  /// Multiplies the scores of the tile that begins at `first_key`.
  template <class Consumer, class Scores>
  GIWA_DEVICE void apply(Consumer& c, const typename Types::work_tile& work, int first_key, Scores& scores) const {
    if (!each) return;
    const auto& head = work.head.get();
    const row_scales k = scales_of_head(c.p.call.scales, head).k;
    const int last_key = head.keys() - 1;
    const float of_rows[map::rows] = {of_row(c, 0), of_row(c, 1)};
    GIWA_UNROLL
    for (int begin = 0; begin < Types::block_n; begin += group) {
      const int key = first_key + begin;
      const float of_keys = k.is_one() ? 1.f : k[key < last_key ? key : last_key];
      GIWA_UNROLL
      for (int i = 0; i < map::registers; ++i)
        if (map::column(0, i) / group == begin / group) scores.value[i] *= of_rows[map::slot(i)] * of_keys;
    }
  }

 private:
  // In shared memory: the main loop has no registers for them.
  template <class Consumer>
  GIWA_DEVICE static float& of_row(Consumer& c, int r) {
    return c.s.transposer.scale_of_row[c.index][r][c.thread];
  }
};

/// Multiplies normalized O by the scale of v, and by the numbers of its columns, which are in the order of transposed_column().
/// `share` is the sum of the normalized weights of each row, 0 for a row without keys, which stays 0 whatever the scales are.
template <class Rows>
GIWA_DEVICE void scale_output(int thread, const head_scales& scales, const float (&share)[2], Rows& rows) {
  using map = typename Rows::output_registers::map;
  const float of_v = scales.v[0], of_rows[2] = {share[0] == 0 ? 1.f : of_v, share[1] == 0 ? 1.f : of_v};
  rows.o.transform_rows(of_rows, [](float x, float f) { return x * f; });
  if (scales.channel.data == nullptr && scales.mean.data == nullptr) return;
  const int columns = static_cast<int>(rows.c.p.call.views.v.extent(3));
  GIWA_UNROLL
  for (int i = 0; i < map::registers; ++i) {
    const int column = Rows::k_major_v ? map::column(thread, i) : transposed_column(map::column(thread, i));
    if (column < columns) rows.o.value[i] = scales.finish(rows.o.value[i], share[map::slot(i)], column);
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
