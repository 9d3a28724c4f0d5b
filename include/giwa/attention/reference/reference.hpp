// SPDX-License-Identifier: MIT
// Attention by its definition, one row at a time in fp64: every other path is compared with it.
#ifndef GIWA_ATTENTION_REFERENCE_REFERENCE_HPP
#define GIWA_ATTENTION_REFERENCE_REFERENCE_HPP

#include <giwa/attention/problem/last_arguments.hpp>
#include <giwa/attention/problem/params.hpp>
#include <giwa/attention/sums/row_end.hpp>
#include <giwa/device/host.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// A row of q: the memory itself, or its rotated elements.
template <class Params>
class reference_query {
 public:
  GIWA_HOST_DEVICE reference_query(const Params& p, const head_type<Params>& h, const rows_type<Params>& of, int query)
      : row_(of.q[query]) {
    if constexpr (rotates) {
      const int64 position = position_of_query(p, h.sequence, query);
      for (int i = 0; i < static_cast<int>(p.views.q.extent(3)); ++i)
        rotated_.element[i] = rotated_element(row_, i, p.score.rotary, position);
    }
  }
  GIWA_HOST_DEVICE double operator[](int64 i) const {
    if constexpr (rotates)
      return convert<double>{}(rotated_.element[i]);
    else
      return exact_element(row_, i);
  }

 private:
  static constexpr bool rotates = rotates_queries<stdlib::remove_cvref_t<decltype(stdlib::declval<Params>().score)>>;
  using row = stdlib::remove_cvref_t<decltype(stdlib::declval<rows_type<Params>>().q[0])>;
  struct elements {
    stdlib::remove_cvref_t<decltype(stdlib::declval<Params>().views.q(0, 0, 0, 0))>
        element[attention_limits::cached_head_size];
  };
  row row_;
  [[no_unique_address]] stdlib::conditional_t<rotates, elements, nothing> rotated_;
};

/// The score of a query and a key, scaled and modified. A score modifier is a function of a float, so it gets the rounded score.
template <class Params>
GIWA_HOST_DEVICE double reference_score(const Params& p, const reference_query<Params>& q,
                                        const rows_type<Params>& rows, attention_coord c) {
  const auto k = rows.k[c.key];
  double sum = 0;
  for (int64 i = 0; i < p.views.q.extent(3); ++i) sum += q[i] * exact_element(k, i);
  sum *= static_cast<double>(p.scale);
  if constexpr (is_plain_score<stdlib::remove_cvref_t<decltype(p.score)>>)
    return sum;
  else
    return static_cast<double>(p.score(static_cast<float>(sum), c));
}

/// Computes one row of o and its lse.
template <class Params>
GIWA_HOST_DEVICE void attention_reference_row(const Params& p, const head_type<Params>& h, int query) {
  const rows_type<Params> rows = rows_of(h);
  const reference_query<Params> q(p, h, rows, query);
  const auto at = [&](int key) { return attention_coord{h.batch, h.head, query, key, query + h.offset}; };
  softmax_state<double> state;
  for (int key = 0; key < h.keys(); ++key) {
    if (!p.mask(at(key))) continue;
    const double score = reference_score(p, q, rows, at(key));
    if (score > state.max) state.max = score;
  }

  weight_factors<stdlib::remove_cvref_t<decltype(p.score)>> dropped(p.score, h.batch, h.head);
  double sum[attention_limits::cached_head_size];
  const int64 width = p.views.o.extent(3);
  for (int64 i = 0; i < width; ++i) sum[i] = 0;
  for (int key = 0; key < h.keys(); ++key) {
    if (!p.mask(at(key))) continue;
    const double weight = exponential{}(reference_score(p, q, rows, at(key)) - state.reference());
    const auto v = rows.v[key];
    state.sum += weight;
    const double factor = dropped(query, key);
    for (int64 i = 0; i < width; ++i) sum[i] += weight * factor * exact_element(v, i);
  }

  const double sink = p.sinks == nullptr ? -infinity_of<double> : static_cast<double>(p.sinks[h.head * p.sink_stride]);
  double prior_lse = -infinity_of<double>;
  if constexpr (rows_type<Params>::has_prior) prior_lse = static_cast<double>(rows.prior_lse(query));
  const finished_softmax<double> end = finish_row(state, sink, prior_lse);
  for (int64 i = 0; i < width; ++i) sum[i] *= end.factor;
  if constexpr (rows_type<Params>::has_prior)
    for (int64 i = 0; i < width && prior_lse != -infinity_of<double>; ++i)
      sum[i] += end.prior_factor * exact_element(rows.prior_o[query], i);
  auto* const o = rows.o[query];
  for (int64 i = 0; i < width; ++i) o[i] = convert<stdlib::remove_cvref_t<decltype(*o)>>{}(sum[i]);
  if (h.lse != nullptr) h.lse[query * h.lse_stride] = static_cast<float>(end.lse);
}

/// Row `query` of a head of a sequence, for for_all over (sequences, heads, queries). Queries beyond the end of a packed sequence
/// are skipped.
template <class Params>
struct attention_reference_rows {
  Params params;
  GIWA_HOST_DEVICE void operator()(index<3> at) const {
    const auto h = head_of(params, static_cast<int>(at[0]), static_cast<int>(at[1]));
    if (at[2] < h.queries()) attention_reference_row(params, h, static_cast<int>(at[2]));
  }
};

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
/// Checks the call, then calls run(params).
template <class T, class O, class Mask, class Score, class Run>
status with_reference(const attention_views<T, O>& views, const Mask& mask, const Score& score,
                      const attention_options& options, const Run& run) {
  static_assert(attention_input<T> && floating_element<O>,
                "giwa::attention_reference: elements of q, k and v must be giwa::fp16, bf16, fp32 or e4m3; those of o "
                "giwa::fp16, bf16, fp32 or fp64.");
  require_mask_and_plain_queries<Mask, Score>();
  const attention_problem sizes = views.problem();
  if (const status s = check_attention(views, mask, score, options, sizes.head_size, sizes.head_size_v); !s.ok())
    return s;
  if (views.o.size() == 0) return {};
  return run(params_of(views, mask, score, options));
}

/// The call, whatever runs it.
template <class Queries, class Keys, class Values, class O, int Rank, class Mask, class Score, class Run>
status reference_call(const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                      const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o, const Mask& mask,
                      const Score& score, const attention_options& options, const Run& run) {
  using views = attention_views<stdlib::remove_const_t<Queries>, O>;
  const last_arguments last(mask, score, options);
  const sequences& packed = last.options().sequences;
  status s = last.check();
  if (s.ok()) s = check_sequences(packed, q);
  if (!s.ok()) return s;
  return with_reference(
      views{in_four_dimensions(q), in_four_dimensions(k), in_four_dimensions(v), in_four_dimensions(o), packed},
      last.mask(), last.score(), last.options(), run);
}

struct host_reference {
  template <class Params>
  status operator()(const Params& params) const {
    for (int64 batch = 0; batch < params.views.sequence_count(); ++batch)
      for (int64 head = 0; head < params.views.q.extent(2); ++head) {
        const auto h = head_of(params, static_cast<int>(batch), static_cast<int>(head));
        for (int query = 0; query < h.queries(); ++query) attention_reference_row(params, h, query);
      }
    return {};
  }
};
#endif

}  // namespace detail

#if !defined(__CUDACC_RTC__)
/// Computes attention by its definition, softmax(score(scale q k^T), masked) v, in three loops on one thread of the CPU. All
/// arithmetic is fp64, except that a score modifier computes in fp32. For tests: it takes about 2 ns for each query,
/// key and element of a head.
///
/// All memory is host memory. Head sizes are those of the views, 1 to 512. Conventions are those of attention_forward().
/// Parameters:
///   - q, k, v: (batch, queries, heads, head size), (batch, keys, kv heads, head size) and (batch, keys, kv heads, head size of
///     v): fp16, bf16 or fp32, one type for all three
///   - o: (batch, queries, heads, head size of v), of any of these types, or fp64; written
///   - mask, score, options: as for attention_forward(); options.workspace is checked but not used
///
/// Returns when o and options.lse are written. Errors: those of attention_forward, as a status with the argument, the
/// limit and the value seen; nothing is written then.
/// Example: `attention_reference(giwa::host, q, k, v, o, causal{})`.
template <class Queries, class Keys, class Values, class O, int Rank, class Mask = attention_options,
          class Score = attention_options>
status attention_reference(host_t, const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                           const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o, const Mask& mask = {},
                           const Score& score = {}, const attention_options& options = {}) {
  return detail::reference_call(q, k, v, o, mask, score, options, detail::host_reference{});
}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
