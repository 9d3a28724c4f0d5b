// SPDX-License-Identifier: MIT
// The rows of one head of a sequence whose keys are cached, for the CPU path and the reference.
#ifndef GIWA_ATTENTION_PROBLEM_CACHED_ROWS_HPP
#define GIWA_ATTENTION_PROBLEM_CACHED_ROWS_HPP

#include <giwa/attention/problem/cached_params.hpp>
#include <giwa/attention/problem/params.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A row of keys or values: each element times the scale. Without data it is a row of zeros.
template <class Element>
struct cached_row {
  const Element* data;
  float scale;
};
/// Element i of a row, exactly.
template <class Element>
GIWA_HOST_DEVICE double exact_element(const cached_row<Element>& row, int64 i) {
  return row.data == nullptr ? 0.0 : number_of_row<double>(row.data, i) * static_cast<double>(row.scale);
}

/// The keys or values of one head of one sequence, wherever they lie.
template <class Params, class Element>
class cached_rows {
 public:
  GIWA_HOST_DEVICE cached_rows(const Params& params, const cached_sequence& s,
                               const tensor_view<const Element, 4>& view, const tensor_view<const float, 3>& scales,
                               int kv_head)
      : params_(&params), sequence_(s), view_(view), scales_(scales), kv_head_(kv_head) {}

  GIWA_HOST_DEVICE int count() const { return sequence_.keys; }
  /// The row of a key, 0 <= key < count().
  GIWA_HOST_DEVICE cached_row<Element> operator[](int64 key) const {
    const cache_row row = params_->row_of(sequence_, static_cast<int>(key));
    if (row.element < 0) return {nullptr, 1};
    const Element* const data =
        view_.data() + (row.element * view_.stride(0) + row.row * view_.stride(1) + kv_head_ * view_.stride(2));
    if (scales_.data() == nullptr) return {data, 1};
    return {data, *scale_at(scales_, row, kv_head_)};
  }

 private:
  const Params* params_;
  cached_sequence sequence_;
  tensor_view<const Element, 4> view_;
  tensor_view<const float, 3> scales_;
  int kv_head_;
};

/// One head of one sequence. Refers to the parameters of the call.
template <class Params>
struct cached_head {
  const Params* params;
  cached_sequence sequence;
  int batch, head;
  int offset;  // diagonal - query
  float* lse;  // of the first query, or null
  int64 lse_stride;

  GIWA_HOST_DEVICE int queries() const { return sequence.queries; }
  GIWA_HOST_DEVICE int keys() const { return sequence.keys; }
};

/// The rows of a head of queries, (queries, head size), of a view (batch, queries, heads, head size).
template <class T>
GIWA_HOST_DEVICE strided_rows<T> query_rows(const tensor_view<T, 4>& v, const cached_sequence& s, int head) {
  return strided_rows<T>(
      tensor_view<T, 2>(v.data() + (s.q_batch * v.stride(0) + s.first_query_row * v.stride(1) + head * v.stride(2)),
                        {s.queries, v.extent(3)}, {v.stride(1), 1}));
}

/// What head_rows is for keys in tensors, and the prior.
template <class T, class Element, class O, class Params>
struct cached_head_rows {
  strided_rows<const T> q;
  cached_rows<Params, Element> k, v;
  strided_rows<O> o;
  static constexpr bool has_prior = true;
  strided_rows<const O> prior_o;
  const float* prior_lses;  // of the first query, or null
  int64 prior_stride;

  /// The lse of the prior of a query, -inf for none.
  GIWA_HOST_DEVICE float prior_lse(int query) const {
    return prior_lses == nullptr ? -infinity_of<float> : prior_lses[query * prior_stride];
  }
};

template <class T, class Element, class O, class Mask, class Score>
GIWA_HOST_DEVICE auto head_of(const cached_params<T, Element, O, Mask, Score>& p, int batch, int head) {
  using params = cached_params<T, Element, O, Mask, Score>;
  const cached_sequence s = p.at(batch);
  float* const lse =
      p.lse.data() == nullptr
          ? nullptr
          : p.lse.data() + (s.q_batch * p.lse.stride(0) + head * p.lse.stride(1) + s.first_query_row * p.lse.stride(2));
  return cached_head<params>{&p, s, batch, head, s.offset, lse, p.lse.stride(2)};
}

template <class T, class Element, class O, class Mask, class Score>
GIWA_HOST_DEVICE auto rows_of(const cached_head<cached_params<T, Element, O, Mask, Score>>& h) {
  using params = cached_params<T, Element, O, Mask, Score>;
  const params& p = *h.params;
  const cached_sequence& s = h.sequence;
  const kv_cache<const Element>& c = p.views.cache;
  const int kv_head = h.head / p.heads_per_kv;
  const auto& lse = p.prior_lse;
  return cached_head_rows<T, Element, O, params>{
      query_rows(p.views.q, s, h.head),
      {p, s, c.k, c.scales.k, kv_head},
      {p, s, c.v, c.scales.v, kv_head},
      query_rows(p.views.o, s, h.head),
      query_rows(p.prior_o, s, h.head),
      lse.data() == nullptr
          ? nullptr
          : lse.data() + (s.q_batch * lse.stride(0) + h.head * lse.stride(1) + s.first_query_row * lse.stride(2)),
      lse.stride(2)};
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
