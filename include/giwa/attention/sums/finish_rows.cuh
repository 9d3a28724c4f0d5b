// SPDX-License-Identifier: MIT
// The end of rows in a kernel: sinks, priors, the factors of the output and the log-sum-exp.
#ifndef GIWA_ATTENTION_SUMS_FINISH_ROWS_CUH
#define GIWA_ATTENTION_SUMS_FINISH_ROWS_CUH

#include <giwa/attention/problem/cached_params.hpp>
#include <giwa/attention/problem/dropout.hpp>
#include <giwa/attention/problem/params.hpp>
#include <giwa/attention/sums/merge_parts.hpp>
#include <giwa/attention/sums/part_rows.cuh>
#include <giwa/attention/sums/row_end.hpp>
#include <giwa/softmax/online.cuh>

namespace giwa::inline GIWA_ABI::detail {

using quick_row_functions = row_functions<device_exponential, quick_logarithm, quick_inverse>;

/// Computes factor[row], which normalizes the output, and the log-sum-exp of each row. If `write`, the first thread of
/// each row stores the log-sum-exp. All lanes of the warp must call it. A sink is one more score, whose value is 0. Of a part of the
/// keys `of_earlier` receives the factors of the output of earlier parts.
template <class Map, int Headroom, int Slack, class Block, class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE void finish_rows(const Block& block, int thread, online_softmax<Map, Headroom, Slack>& softmax,
                                  float scale_log2, const attention_params<T, O, Mask, Score>& call,
                                  const attention_head<T, O>& h, int first_query, bool write,
                                  float (&factor)[Map::rows], float (*of_earlier)[Map::rows] = nullptr) {
  softmax.finish(block);
  // Read once: what is written may lie anywhere, for all that the compiler knows.
  float* const lse_of_rows = write && thread % Map::lanes == 0 ? h.lse : nullptr;
  const int64 lse_stride = h.lse_stride;
  const int rows_left = h.queries() - first_query;
  [[maybe_unused]] float earlier_lse[Map::rows];
  if constexpr (is_part<Score>)
    part_rows(call.score, h).template read_lse<Map>(block, thread, first_query, earlier_lse);
  GIWA_UNROLL
  for (int r = 0; r < Map::rows; ++r) {
    finished_softmax<float> end{};
    end.lse = softmax.lse(r, scale_log2);
    end.factor = softmax.normalizer(r);
    if (call.sinks != nullptr) {
      const float sink = call.sinks[h.head * call.sink_stride];
      end = with_prior(softmax.l[r], end.factor, end.lse, sink, quick_row_functions{});
    }
    const int row = Map::row(thread, r);
    if constexpr (is_part<Score>) {
      end = with_prior(softmax.l[r], end.factor, end.lse, earlier_lse[r], quick_row_functions{});
      (*of_earlier)[r] = end.prior_factor;
      if (write && thread % Map::lanes == 0 && row < rows_left) call.score.lse_of(h, first_query + row) = end.lse;
    }
    factor[r] = end.factor;
    if constexpr (drops_weights<Score>) factor[r] *= kept_scale(call.score);
    if (lse_of_rows != nullptr && row < rows_left) lse_of_rows[(first_query + row) * lse_stride] = end.lse;
  }
}

/// The end of a row: where its results go, and its sink and prior. Everything is looked up when it is made, so that a
/// kernel can do this while it waits for the sums.
template <class Output>
struct cached_row_end {
  Output* o;
  const Output* prior_o;  // or null
  float* lse;             // or null
  float sink, prior_lse;
  float v_scale;  // of all values of an 8-bit cache, or 1 if they have several
  int columns;
  bool has_sink;

  cached_row_end() = default;  // in shared memory
  template <class Params>
  GIWA_DEVICE cached_row_end(const Params& call, const cached_sequence& s, int head, int query)
      : o(nullptr), prior_o(nullptr), lse(nullptr), sink(0), prior_lse(0), v_scale(1), columns(0), has_sink(false) {
    const auto& to = call.views.o;
    const int64 row = s.first_query_row + query;
    o = to.data() + (s.q_batch * to.stride(0) + row * to.stride(1) + head * to.stride(2));
    columns = static_cast<int>(to.extent(3));
    if (call.lse.data() != nullptr) lse = &call.lse(s.q_batch, head, row);
    has_sink = call.sinks != nullptr;
    if (has_sink) sink = call.sinks[head * call.sink_stride];
    if constexpr (element_traits<stdlib::remove_cvref_t<decltype(*call.views.cache.v.data())>>::has_scales) {
      const tensor_view<const float, 3>& scales = call.views.cache.scales.v;
      if (scales.data() != nullptr && !call.views.differ_in_a_sequence(scales))
        v_scale = *scale_at(scales, {s.batch, 0}, head / call.heads_of_scale());
    }
    if (call.has_prior()) {
      prior_lse = call.prior_lse(s.q_batch, head, row);
      prior_o = &call.prior_o(s.q_batch, row, head, 0);
    }
  }

  /// The factors of the output, and the log-sum-exp, with the sink and the prior. m is in units of log2.
  GIWA_DEVICE finished_softmax<float> finish(float m, float l) const {
    const bool empty = l == 0 && m == -infinity_of<float>;
    finished_softmax<float> end{empty ? 0.f : quick_reciprocal(l), 0, empty ? -infinity_of<float> : quick_lse(m, l)};
    const auto add = [&](float more) { end = with_prior(l, end.factor, end.lse, more, quick_row_functions{}); };
    if (has_sink) add(sink);
    if (prior_o != nullptr) add(prior_lse);
    if (!empty) end.factor *= v_scale;
    return end;
  }

  /// Writes consecutive elements of o.
  template <int Count>
  GIWA_DEVICE void store(int column, const float (&sums)[Count], const finished_softmax<float>& end) const {
    float x[Count];
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) x[i] = sums[i] * end.factor;
    if (prior_o != nullptr && end.prior_factor != 0) {
      GIWA_UNROLL
      for (int i = 0; i < Count; ++i)
        if (column + i < columns)
          x[i] = fused_multiply_add(convert<float>{}(prior_o[column + i]), end.prior_factor, x[i]);
    }
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i)
      if (column + i < columns) o[column + i] = convert<Output>{}(x[i] + 0.f);  // + 0 makes -0 positive
  }
  /// Whether store_plain() may store the first `all` columns, `Count` at once.
  template <int Count>
  GIWA_DEVICE bool is_plain(int all) const {
    return prior_o == nullptr && columns >= all && is_aligned<Count>(o);
  }
  template <int Count>
  GIWA_DEVICE static void store_plain(Output* to, const float (&sums)[Count], float factor) {
    float x[Count];
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i)
      x[i] = __fmul_rn(sums[i], factor) + 0.f;  // not one operation: + 0 makes -0 positive
    write(to, x);
  }

 private:
  template <int Count>
  GIWA_DEVICE static bool is_aligned(const Output* at) {
    return reinterpret_cast<uint64>(at) % (Count * sizeof(Output)) == 0;
  }
  template <int Count>
  GIWA_DEVICE static void write(Output* to, const float (&x)[Count]) {
    merge_packet<Output, Count> all;
    static_assert(sizeof all <= 16);
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) all.element[i] = convert<Output>{}(x[i]);
    store_vector(to, all);
  }
};

/// A row whose sums are known: where it goes, and its factors. One thread works this out for all that write the row.
template <class Output>
struct ended_row {
  cached_row_end<Output> to;
  finished_softmax<float> end;

  /// Writes consecutive columns of `all`, the first of which is a multiple of Count.
  template <int Count>
  GIWA_DEVICE void store(int column, const float (&sums)[Count], int all) const {
    if (to.template is_plain<Count>(all))
      to.template store_plain<Count>(to.o + column, sums, end.factor);
    else
      to.store(column, sums, end);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
