// SPDX-License-Identifier: MIT
// Rows of gradients on the CPU: lse and delta of a query, a row that is stored, the gradient of a sink, sums.
#ifndef GIWA_ATTENTION_CPU_GRADIENT_ROWS_HPP
#define GIWA_ATTENTION_CPU_GRADIENT_ROWS_HPP

#include <giwa/attention/cpu/panels.hpp>
#include <giwa/attention/problem/backward_params.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The terms of a row of q whose dout is given as floats; line (head size of v) is overwritten. Sixteen chains of additions, as
/// vectors have lanes.
template <class Params, class Head>
row_terms host_row_terms(const Params& p, const host_loops& loops, const Head& h, int query, const float* dout,
                         float* line) {
  const auto o = p.query_rows(p.views.in.o, h);
  const int width = static_cast<int>(o.extent(1));
  host_widen(loops, o.data() + query * o.stride(0), line, width);
  float part[host_loops::sums] = {}, sum = 0;
  for (int i = 0; i < width; ++i) part[i % host_loops::sums] += dout[i] * line[i];
  for (const float x : part) sum += x;
  return p.terms_of(h.sequence, h.head, h.first_query_row + query, sum);
}

/// The gradient of one head's sink: minus the sum of P delta over all rows of q, P being the weight of the sink. Both lines (head
/// size of v) are overwritten.
template <class Params>
float host_sink_gradient(const Params& p, const host_loops& loops, int head_of_q, float* line, float* other_line) {
  const float sink = p.call.sinks[head_of_q * p.call.sink_stride];
  double sum = 0;
  for (int64 b = 0; b < p.views.in.sequence_count(); ++b) {
    const auto h = p.call.at(static_cast<int>(b), head_of_q);
    const auto dout = p.query_rows(p.views.dout, h);
    for (int query = 0; query < h.queries(); ++query) {
      host_widen(loops, dout.data() + query * dout.stride(0), line, static_cast<int>(dout.extent(1)));
      const row_terms t = host_row_terms(p, loops, h, query, line, other_line);
      sum -= static_cast<double>(exponential{}(sink - t.lse)) * static_cast<double>(t.delta);
    }
  }
  return static_cast<float>(sum);
}

/// Stores a row of a gradient, or adds it. + 0 turns a sum of -0 into +0, so that the result does not depend on masked scores.
template <class V>
void host_store_gradient(const tensor_view<V, 2>& to, int64 row, const float* sum, float factor, bool accumulate) {
  V* const at = to.data() + row * to.stride(0);
  for (int64 i = 0; i < to.extent(1); ++i) {
    const float x = sum[i] * factor + 0.0f;
    at[i] = convert<V>{}(accumulate ? convert<float>{}(at[i]) + x : x);
  }
}

/// sums (rows, padded) += weights (rows, Steps) times panels of Steps rows, of which `here` count; weights has rows of `width`. Where
/// the panels are not `finite`, kept(row, step) is asked unless all are kept; line (padded) is overwritten then.
template <int Steps, class Kept>
void host_add_strip(const host_loops& loops, int rows, int here, float* weights, int width, const float* panels,
                    int padded, bool finite, bool keeps_all, const Kept& kept, float* line, float* sums) {
  const int even = static_cast<int>(round_up(rows, int64{host_loops::rows}));
  if (!finite && (!keeps_all || (rows > 1 && even != rows))) {
    for (int r = 0; r < rows; ++r) {
      const auto of_row = [&](int j) { return kept(r, j); };
      host_add_kept_products(loops, here, of_row, {weights + r * width, width, 1}, panels, Steps, padded, line,
                             sums + int64{r} * padded);
    }
    return;
  }
  // Rows up to the next multiple of 6 are added to as well, and may belong to keys that another head sees.
  if (rows > 1)
    for (int i = rows * width; i < even * width; ++i) weights[i] = 0;
  host_add_products(loops, rows, Steps, {weights, width, 1}, panels, Steps, padded, sums);
}

/// The sums of dq of all queries of a head, where one thread computes all gradients: dq += dS^T k over strips of StripRows keys,
/// which lie in panels of a block of BlockRows keys. Its owner has the memory: `sums` (queries, padded), `keys` (BlockRows, padded).
template <int BlockRows, int StripRows>
class host_dq_sums {
 public:
  host_dq_sums(const host_loops& loops, int padded) : loops_(loops), padded_(padded) {}

  float *sums = nullptr, *keys = nullptr;

  float* row(int64 query) { return sums + query * padded_; }
  void clear(int64 queries) {
    for (int64 i = 0; i < queries * padded_; ++i) sums[i] = 0;
  }
  /// Takes the `count` keys of a block (count, size); line (padded) is overwritten, here and in add().
  void put_keys(const float* rows, int count, int size, float* line) {
    for (int first = 0; first < count; first += StripRows) {
      const int here = count - first < StripRows ? count - first : StripRows;
      host_put_rows<StripRows>(loops_, rows + int64{first} * size, here, size, padded_, line,
                               keys + int64{first} * padded_);
      finite_[first / StripRows] = loops_.finite(rows + int64{first} * size, here * size);
    }
  }
  /// Adds dS^T k of the keys [strip, strip + rows) of the block to `count` queries from `query` on; gradients are those of the first
  /// of both. kept(key, query), counted from these, is asked where a key is infinite or NaN.
  template <class Kept>
  void add(int strip, int rows, int query, int count, host_weights gradients, const Kept& kept, float* line) {
    const float* const panels = keys + int64{strip} * padded_;
    if (finite_[strip / StripRows])
      return host_add_products(loops_, count, rows, gradients, panels, StripRows, padded_, row(query));
    for (int j = 0; j < count; ++j) {
      const auto of_query = [&](int r) { return kept(r, j); };
      const host_weights own{gradients.first + j * gradients.row, gradients.row, gradients.step};
      host_add_kept_products(loops_, rows, of_query, own, panels, StripRows, padded_, line, row(query + j));
    }
  }

 private:
  const host_loops& loops_;
  const int padded_;
  bool finite_[stdlib::size_t{BlockRows / StripRows}];
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
