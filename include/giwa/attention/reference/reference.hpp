// SPDX-License-Identifier: MIT
// Attention as its definition says it, one row at a time and in double: what every other path is compared with.
#ifndef GIWA_ATTENTION_REFERENCE_REFERENCE_HPP
#define GIWA_ATTENTION_REFERENCE_REFERENCE_HPP

#include <giwa/attention/problem/params.hpp>
#include <giwa/device/host.hpp>
#include <giwa/softmax/state.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The score of a query and a key, scaled and modified. A modifier is a function of a float and gets one.
template <class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE double reference_score(const attention_params<T, O, Mask, Score>& p, const attention_head<T, O>& h,
                                        attention_coord c) {
  const T* const q = h.q.data() + c.query * h.q.stride(0);
  const T* const k = h.k.data() + c.key * h.k.stride(0);
  double sum = 0;
  for (int64 i = 0; i < h.q.extent(1); ++i) sum += convert<double>{}(q[i]) * convert<double>{}(k[i]);
  sum *= static_cast<double>(p.scale);
  if constexpr (stdlib::same_as<Score, plain_score>)
    return sum;
  else
    return static_cast<double>(p.score(static_cast<float>(sum), c));
}

/// One row of the output and its lse.
template <class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE void attention_reference_row(const attention_params<T, O, Mask, Score>& p,
                                              const attention_head<T, O>& h, int query) {
  const auto at = [&](int key) { return attention_coord{h.batch, h.head, query, key, query + h.offset}; };
  const double sink = p.sinks == nullptr ? -infinity_of<double> : static_cast<double>(p.sinks[h.head * p.sink_stride]);
  auto state = softmax_state<double>::of(sink);
  const double sink_sum = state.sum;  // 1, 0 without a sink, NaN for a sink that is none
  for (int key = 0; key < h.keys(); ++key) {
    if (!p.mask(at(key))) continue;
    const double score = reference_score(p, h, at(key));
    if (score > state.max) state.max = score;
  }

  double value[attention_limits::head_size];
  const int64 width = h.v.extent(1);
  for (int64 i = 0; i < width; ++i) value[i] = 0;
  state.sum = sink_sum == 0 ? 0 : sink_sum * exponential{}(sink - state.reference());
  for (int key = 0; key < h.keys(); ++key) {
    if (!p.mask(at(key))) continue;
    const double weight = exponential{}(reference_score(p, h, at(key)) - state.reference());
    const T* const v = h.v.data() + key * h.v.stride(0);
    state.sum += weight;
    for (int64 i = 0; i < width; ++i) value[i] += weight * convert<double>{}(v[i]);
  }

  O* const o = h.o.data() + query * h.o.stride(0);
  for (int64 i = 0; i < width; ++i) o[i] = convert<O>{}(value[i] * state.normalizer());
  if (h.lse != nullptr) h.lse[query * h.lse_stride] = static_cast<float>(state.lse());
}

/// Row `query` of a head of a sequence, for for_all over (sequences, heads, queries); queries that a packed sequence does not
/// have are passed over.
template <class T, class O, class Mask, class Score>
struct attention_reference_rows {
  attention_params<T, O, Mask, Score> params;
  GIWA_HOST_DEVICE void operator()(index<3> at) const {
    const attention_head<T, O> h = params.at(static_cast<int>(at[0]), static_cast<int>(at[1]));
    if (at[2] < h.queries()) attention_reference_row(params, h, static_cast<int>(at[2]));
  }
};

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
/// Checks the call, and hands run(params) its parameters.
template <class T, class O, class Mask, class Score, class Run>
status with_reference(const attention_views<T, O>& views, const Mask& mask, const Score& score,
                      const attention_options& options, const Run& run) {
  static_assert(
      attention_element<T> && floating_element<O>,
      "giwa::attention_reference: elements of q, k and v are giwa::fp16, bf16 or fp32; o's may be fp64 as well.");
  require_mask_and_score<Mask, Score>();
  const attention_problem sizes = views.problem();
  if (const status s = check_attention(views, mask, score, options, sizes.head_size, sizes.head_size_v); !s.ok())
    return s;
  if (views.o.size() == 0) return {};
  return run(params_of(views, mask, score, options));
}

struct host_reference {
  template <class Params>
  status operator()(const Params& params) const {
    const attention_problem sizes = params.views.problem();
    for (int64 batch = 0; batch < sizes.batch; ++batch)
      for (int64 head = 0; head < sizes.heads; ++head) {
        const auto h = params.at(static_cast<int>(batch), static_cast<int>(head));
        for (int query = 0; query < h.queries(); ++query) attention_reference_row(params, h, query);
      }
    return {};
  }
};
#endif

}  // namespace detail

#if !defined(__CUDACC_RTC__)
// attention_forward by its definition: three loops, on one thread of the CPU, everything in double but what a score modifier
// computes. The same arguments, conventions and errors as attention_forward (forward.hpp), but head sizes are those of the views,
// and o may be of fp64. For tests: it takes about 2 ns for each query, key and element of a head.

/// `attention_reference(giwa::host, q, k, v, o, causal{})`: (batch, length, heads, head size).
template <class Queries, class Keys, class Values, class O, class Mask = full, class Score = plain_score>
status attention_reference(host_t, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                           const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const Mask& mask = {},
                           const Score& score = {}, const attention_options& options = {}) {
  using views = detail::attention_views<stdlib::remove_const_t<Queries>, O>;
  return detail::with_reference(views{q, k, v, o}, mask, score, options, detail::host_reference{});
}
/// Packed sequences: (all rows, heads, head size).
template <class Queries, class Keys, class Values, class O, class Mask = full, class Score = plain_score>
status attention_reference(host_t, const sequences& packed, const tensor_view<Queries, 3>& q,
                           const tensor_view<Keys, 3>& k, const tensor_view<Values, 3>& v, const tensor_view<O, 3>& o,
                           const Mask& mask = {}, const Score& score = {}, const attention_options& options = {}) {
  using views = detail::attention_views<stdlib::remove_const_t<Queries>, O>;
  if (const status s = detail::check_sequences(packed); !s.ok()) return s;
  return detail::with_reference(
      views{detail::as_packed(q), detail::as_packed(k), detail::as_packed(v), detail::as_packed(o), packed}, mask,
      score, options, detail::host_reference{});
}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
