// SPDX-License-Identifier: MIT
// The gradients of attention by their definition, in fp64 on one thread of the CPU: what every other path is compared with.
#ifndef GIWA_ATTENTION_REFERENCE_BACKWARD_HPP
#define GIWA_ATTENTION_REFERENCE_BACKWARD_HPP

#include <giwa/attention/problem/backward_checks.hpp>
#include <giwa/attention/problem/last_arguments.hpp>
#include <giwa/attention/problem/params.hpp>
#include <giwa/attention/problem/score_gradient.hpp>
#include <giwa/device/host.hpp>
#include <giwa/softmax/state.hpp>

#include <memory>
#include <new>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Memory that starts as zeros; null where there is too little.
template <class T>
std::unique_ptr<T[]> reference_memory(int64 count) {
  return std::unique_ptr<T[]>(new (std::nothrow) T[static_cast<stdlib::size_t>(count > 0 ? count : 1)]());
}

/// The definition: P from q and k, o = P v, and the gradients by the chain rule. It uses neither o nor lse of the call.
template <class Params>
class backward_reference {
 public:
  explicit backward_reference(const Params& p)
      : p_(p),
        depth_(p.views.in.q.extent(3)),
        width_(p.views.in.v.extent(3)),
        kv_heads_(p.views.in.k.extent(2)),
        rows_(p.views.in.k.extent(1)),
        dk_(reference_memory<double>(key_rows() * depth_)),
        dv_(reference_memory<double>(key_rows() * width_)),
        read_(reference_memory<bool>(key_rows())),
        score_(reference_memory<dual<double>>(rows_)),
        dp_(reference_memory<double>(rows_)),
        dq_(reference_memory<double>(depth_)) {}

  bool has_memory() const { return dk_ && dv_ && read_ && score_ && dp_ && dq_; }

  void run() {
    const int64 heads = p_.views.in.q.extent(2);
    for (int64 head = 0; head < heads; ++head) {
      dsink_ = 0;
      for (double& sum : parameter_sums_) sum = 0;
      for (int64 batch = 0; batch < p_.views.in.sequence_count(); ++batch) {
        const auto h = p_.call.at(static_cast<int>(batch), static_cast<int>(head));
        for (int query = 0; query < h.queries(); ++query) row(h, query);
        for (int key = 0; key < h.keys(); ++key) read_[at(h, key)] = true;
      }
      if (!is_absent(p_.dsinks)) put(p_.dsinks.data()[head * p_.dsinks.stride(0)], dsink_);
      if constexpr (Params::parameters > 0)
        for (int i = 0; i < Params::parameters; ++i)
          put(gradient_of<modifier>::output(p_.call.score, i, static_cast<int>(head)), parameter_sums_[i]);
    }
    for (int64 n = 0; n < p_.views.in.k.extent(0); ++n)
      for (int64 key = 0; key < rows_; ++key)
        for (int64 head = 0; head < kv_heads_; ++head) store_key(n, key, head);
  }

 private:
  using head_t = typename Params::head;
  using modifier = stdlib::remove_cvref_t<decltype(stdlib::declval<const Params&>().call.score)>;

  int64 key_rows() const { return p_.views.in.k.extent(0) * rows_ * kv_heads_; }
  stdlib::size_t at(const head_t& h, int64 key) const { return at(h.key_sequence, h.first_key_row + key, h.kv_head); }
  stdlib::size_t at(int64 sequence, int64 row, int64 head) const {
    return static_cast<stdlib::size_t>((sequence * rows_ + row) * kv_heads_ + head);
  }
  template <class G>
  void put(G& to, double x) const {
    to = convert<G>{}(p_.accumulate ? convert<double>{}(to) + x : x);
  }

  /// The modified score with its slope. A modifier that only has value_and_slope() computes in fp32.
  dual<double> modified(double z, attention_coord c) const {
    if constexpr (takes_dual<modifier, double>) {
      return p_.call.score(dual<double>{z, 1.0}, c);
    } else {
      const dual<float> y = value_and_slope(p_.call.score, static_cast<float>(z), c);
      return {static_cast<double>(y.value), static_cast<double>(y.slope)};
    }
  }

  /// One row of q: its dq, and its part of dk, dv and dsinks.
  void row(const head_t& h, int query) {
    const auto& in = p_.views.in;
    const auto q_view = p_.query_rows(in.q, h);
    const auto dout_view = p_.query_rows(p_.views.dout, h);
    const strided_rows q(q_view);
    const strided_rows k(h.k), v(h.v);
    const strided_rows dout(dout_view);
    const auto coord = [&](int key) { return attention_coord{h.batch, h.head, query, key, query + h.offset}; };
    const double scale = static_cast<double>(p_.call.scale);
    weight_factors<modifier> dropped(p_.call.score, h.batch, h.head);
    softmax_state<double> state;
    for (int key = 0; key < h.keys(); ++key) {
      if (!p_.call.mask(coord(key))) continue;
      double z = 0, dp = 0;
      for (int64 i = 0; i < depth_; ++i) z += exact_element(q[query], i) * exact_element(k[key], i);
      for (int64 i = 0; i < width_; ++i) dp += exact_element(dout[query], i) * exact_element(v[key], i);
      score_[static_cast<stdlib::size_t>(key)] = modified(z * scale, coord(key));
      dp_[static_cast<stdlib::size_t>(key)] = dp * dropped(query, key);
      const double y = score_[static_cast<stdlib::size_t>(key)].value;
      if (y > state.max) state.max = y;
    }
    const double sink = p_.call.sinks == nullptr ? -infinity_of<double>
                                                 : static_cast<double>(p_.call.sinks[h.head * p_.call.sink_stride]);
    if (sink > state.max) state.max = sink;
    state.sum = exponential{}(sink - state.reference());
    for (int key = 0; key < h.keys(); ++key)
      if (p_.call.mask(coord(key)))
        state.sum += exponential{}(score_[static_cast<stdlib::size_t>(key)].value - state.reference());

    const auto weight = [&](double y) { return exponential{}(y - state.reference()) * state.normalizer(); };
    const auto& dlse = p_.dlse;
    double delta = 0;
    if (!is_absent(dlse)) delta -= static_cast<double>(dlse(h.sequence, h.head, h.first_query_row + query));
    for (int key = 0; key < h.keys(); ++key)
      if (p_.call.mask(coord(key)))
        delta += weight(score_[static_cast<stdlib::size_t>(key)].value) * dp_[static_cast<stdlib::size_t>(key)];
    if (sink != -infinity_of<double>) dsink_ -= weight(sink) * delta;

    for (int64 i = 0; i < depth_; ++i) dq_[static_cast<stdlib::size_t>(i)] = 0;
    for (int key = 0; key < h.keys(); ++key) {
      if (!p_.call.mask(coord(key))) continue;
      const dual<double> y = score_[static_cast<stdlib::size_t>(key)];
      const double p = weight(y.value), dy = p * (dp_[static_cast<stdlib::size_t>(key)] - delta),
                   dz = dy * y.slope * scale;
      double* const dk = dk_.get() + at(h, key) * static_cast<stdlib::size_t>(depth_);
      double* const dv = dv_.get() + at(h, key) * static_cast<stdlib::size_t>(width_);
      for (int64 i = 0; i < depth_; ++i) {
        dq_[static_cast<stdlib::size_t>(i)] += dz * exact_element(k[key], i);
        dk[i] += dz * exact_element(q[query], i);
      }
      const double factor = dropped(query, key);
      for (int64 i = 0; i < width_; ++i) dv[i] += p * factor * exact_element(dout[query], i);
      if constexpr (gradient_of<modifier>::wanted) {
        double z = 0;
        for (int64 i = 0; i < depth_; ++i) z += exact_element(q[query], i) * exact_element(k[key], i);
        gradient_of<modifier>::give(p_.call.score, dy, static_cast<float>(z * scale), coord(key), parameter_sums_);
      }
    }
    if (is_absent(p_.views.dq)) return;
    const auto dq_view = p_.query_rows(p_.views.dq, h);
    for (int64 i = 0; i < depth_; ++i)
      put(dq_view.data()[query * dq_view.stride(0) + i], dq_[static_cast<stdlib::size_t>(i)]);
  }

  /// dk and dv of a row that some sequence has.
  void store_key(int64 sequence, int64 key, int64 head) {
    const stdlib::size_t n = at(sequence, key, head);
    if (!read_[n]) return;
    const auto store = [&](const auto& to, const double* from, int64 size) {
      if (is_absent(to)) return;
      for (int64 i = 0; i < size; ++i)
        put(to.data()[sequence * to.stride(0) + key * to.stride(1) + head * to.stride(2) + i], from[i]);
    };
    store(p_.views.dk, dk_.get() + n * static_cast<stdlib::size_t>(depth_), depth_);
    store(p_.views.dv, dv_.get() + n * static_cast<stdlib::size_t>(width_), width_);
  }

  const Params p_;
  const int64 depth_, width_, kv_heads_, rows_;
  std::unique_ptr<double[]> dk_, dv_;      // (sequences of keys, rows, kv heads, head size)
  std::unique_ptr<bool[]> read_;           // rows of keys that belong to a sequence
  std::unique_ptr<dual<double>[]> score_;  // (keys) of one row of q
  std::unique_ptr<double[]> dp_, dq_;
  double dsink_ = 0, parameter_sums_[Params::parameters > 0 ? Params::parameters : 1] = {};
};

template <class T, class O, class G, class Mask, class Score>
status run_backward_reference(const backward_views<T, O, G>& views, const Mask& mask, const Score& score,
                              const attention_backward_options& options) {
  static_assert(attention_element<T> && floating_element<O> && floating_element<G>,
                "giwa::attention_backward_reference: elements of q, k and v must be giwa::fp16, bf16 or fp32; those of "
                "dout and of the gradients may also be fp64.");
  require_mask_and_score<Mask, Score>();
  static_assert(
      has_slope<Score> || takes_dual<Score, double>,
      "giwa::attention_backward_reference: this score modifier gives no slope: template its operator() on the "
      "number, or add dual<float> value_and_slope(float, giwa::attention_coord) const.");
  const attention_problem sizes = views.in.problem();
  status s = check_shapes(views.in, sizes.head_size, sizes.head_size_v);
  if (s.ok()) s = check_scale(options.scale);
  if (s.ok()) s = check_both(mask, score, attention_sizes{sizes.batch, sizes.heads, sizes.seq_q, sizes.seq_k});
  if (s.ok())
    s = check_alignment(mask, score, options.align, views.in.lengths_agree(), views.in.q.extent(1),
                        views.in.k.extent(1));
  if (s.ok())
    s = check_like(views.dout, views.in.o, "dout", "dout must have the rows and heads of q and the columns of v");
  if (s.ok() && !is_absent(options.dlse)) s = check_row_numbers(options.dlse, views.in.q, "dlse");
  if (s.ok()) s = check_sinks_view(options.sinks, sizes.heads);
  require_parameter_slopes<Score>();
  if (s.ok()) s = check_gradients(views, options);
  if (s.ok()) s = check_parameter_gradients(views, score, options);
  if (!s.ok()) return s;
  const auto params = params_of(views, mask, score, options);
  backward_reference<stdlib::remove_cv_t<decltype(params)>> reference(params);
  if (!reference.has_memory()) {
    s.code = status_code::out_of_memory;
    s.message = "out of host memory for the fp64 sums of dk and dv";
    return s;
  }
  reference.run();
  return {};
}

}  // namespace detail

/// Computes the gradients of attention by their definition, in fp64 on one thread of the CPU, from q, k, v and dout alone:
/// it computes P, o and lse itself, in fp64. For tests: it takes some nanoseconds for each query, key and element of a
/// head. A score modifier is called with a dual<double>; one that only has value_and_slope() computes in fp32.
///
/// Parameters:
///   - q, k, v, dout, dq, dk, dv, mask, score, options: as for attention_backward(), in host memory, without lse; the elements of
///     dout and of the gradients may also be fp64; the workspace is not used
///
/// Head sizes are those of the views, 1 to 512. Returns when everything is written. Errors: a status for sizes that do not match.
/// Example: `attention_backward_reference(giwa::host, q, k, v, dout, dq, dk, dv, causal{})`.
template <class Queries, class Keys, class Values, class DO, class G, int Rank, class Mask = attention_backward_options,
          class Score = attention_backward_options>
status attention_backward_reference(host_t, const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                                    const tensor_view<Values, Rank>& v, const tensor_view<DO, Rank>& dout,
                                    const tensor_view<G, Rank>& dq, const tensor_view<G, Rank>& dk,
                                    const tensor_view<G, Rank>& dv, const Mask& mask = {}, const Score& score = {},
                                    const attention_backward_options& options = {}) {
  using T = stdlib::remove_const_t<Queries>;
  using O = stdlib::remove_const_t<DO>;
  const detail::last_arguments last(mask, score, options);
  const sequences& packed = last.options().sequences;
  status s = last.check();
  if (s.ok()) s = detail::check_sequences(packed, q);
  if (!s.ok()) return s;
  const auto wide = [](const auto& x) { return detail::in_four_dimensions(x); };
  // dout stands for o, which has its sizes and is not read.
  return detail::run_backward_reference(
      detail::backward_views<T, O, G>{
          {wide(q), wide(k), wide(v), wide(dout), packed}, {}, wide(dout), wide(dq), wide(dk), wide(dv)},
      last.mask(), last.score(), last.options());
}

}  // namespace giwa::inline GIWA_ABI

#endif
