// SPDX-License-Identifier: MIT
// Single rows of attention_backward on the CPU: lse and delta of a query, a row of a gradient, the gradient of a sink.
#ifndef GIWA_ATTENTION_CPU_GRADIENT_ROWS_HPP
#define GIWA_ATTENTION_CPU_GRADIENT_ROWS_HPP

#include <giwa/attention/backward/params.hpp>
#include <giwa/attention/cpu/product.hpp>

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

}  // namespace giwa::inline GIWA_ABI::detail

#endif
