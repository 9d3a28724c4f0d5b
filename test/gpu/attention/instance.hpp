// SPDX-License-Identifier: MIT
// One choice of types: the call of giwa that a drawn problem asks for, on a stream or on the host.
#ifndef GIWA_TEST_GPU_ATTENTION_INSTANCE_HPP
#define GIWA_TEST_GPU_ATTENTION_INSTANCE_HPP

#include <giwa/attention/call/forward.hpp>

#include "gpu/attention/problem.hpp"
#include "support/call_options.hpp"

namespace giwa_test::attention {

struct scattered {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const {
    return scattered_keeps(c.batch, c.head, c.query, c.key);
  }
};

template <mask_kind Kind>
auto make_mask(const call_arguments& a) {
  const attention_draw& d = *a.draw;
  const giwa::alignment align = d.align_in_mask ? d.align : giwa::alignment::unset;
  if constexpr (Kind == mask_kind::full) return giwa::full{};
  if constexpr (Kind == mask_kind::causal) return giwa::causal{align};
  if constexpr (Kind == mask_kind::window) return giwa::keys_back{d.back, align} & giwa::keys_ahead{d.ahead};
  if constexpr (Kind == mask_kind::prefix)
    return giwa::prefix{d.prefix_count, a.prefix_counts} | giwa::sliding_window{d.back, align};
  if constexpr (Kind == mask_kind::segments)
    return giwa::segment_ids{a.q_segments, a.k_segments, a.segment_stride, a.segment_stride, d.ascending} &
           giwa::causal{align};
  if constexpr (Kind == mask_kind::scattered) return scattered{};
}

template <score_kind Kind, class T>
auto make_score(const call_arguments& a) {
  const attention_draw& d = *a.draw;
  const giwa::alignment align = d.align_in_mask ? d.align : giwa::alignment::unset;
  const auto bias_of = [&]<class E>(E) {
    const placement& p = d.bias;
    return giwa::bias(giwa::tensor_view<const E, 4>(static_cast<const E*>(a.bias) + p.first,
                                                    {p.extent[0], p.extent[1], p.extent[2], p.extent[3]},
                                                    {p.stride[0], p.stride[1], p.stride[2], p.stride[3]}));
  };
  if constexpr (Kind == score_kind::plain) return giwa::plain_score{};
  if constexpr (Kind == score_kind::softcap) return giwa::softcap{d.cap};
  if constexpr (Kind == score_kind::alibi) return giwa::alibi{a.slopes, 0, align};
  if constexpr (Kind == score_kind::bias) return bias_of(T{});
  if constexpr (Kind == score_kind::capped_bias) return giwa::then{giwa::softcap{d.cap}, bias_of(float{})};
}

template <class E, class Pointer>
giwa::tensor_view<E, 4> view_of(Pointer* buffer, const placement& p) {
  const auto* const all = static_cast<const std::remove_const_t<E>*>(buffer);
  return {const_cast<E*>(all) + p.first,
          {p.extent[0], p.extent[1], p.extent[2], p.extent[3]},
          {p.stride[0], p.stride[1], p.stride[2], p.stride[3]}};
}
template <class E>
giwa::tensor_view<E, 3> without_first(const giwa::tensor_view<E, 4>& v) {
  return {v.data(), {v.extent(1), v.extent(2), v.extent(3)}, {v.stride(1), v.stride(2), v.stride(3)}};
}

template <class T, class O, int HeadSize, int HeadSizeV, mask_kind Mask, score_kind Score,
          class Tile = giwa::automatic_tile>
struct instance {
  static constexpr compiled_types types{element_of<T>, element_of<O>, HeadSize, HeadSizeV, Mask, Score};
  using input = T;
  using output = O;

  static giwa::attention_options options(const call_arguments& a) {
    const attention_draw& d = *a.draw;
    giwa::attention_options options;
    if (d.has_scale) options.scale = d.scale;
    if (d.has_lse)
      options.lse = {a.lse + d.lse.first,
                     {d.lse.extent[0], d.lse.extent[1], d.lse.extent[2]},
                     {d.lse.stride[0], d.lse.stride[1], d.lse.stride[2]}};
    if (d.has_sinks) options.sinks = {a.sinks, {d.heads}};
    if (a.workspace != nullptr) options.workspace = {a.workspace, {a.workspace_bytes}};
    if (!d.align_in_mask) options.align = d.align;
    return options;
  }

  template <class Where>
  static giwa::status call(const Where& where, const call_arguments& a) {
    const attention_draw& d = *a.draw;
    const auto q = view_of<const T>(a.q, d.q), k = view_of<const T>(a.k, d.k), v = view_of<const T>(a.v, d.v);
    const auto o = view_of<O>(a.o, d.o);
    const auto mask = make_mask<Mask>(a);
    const auto score = make_score<Score, T>(a);
    if (!d.packed && !d.is_ragged())
      return giwa::attention_forward<giwa::head_sizes<HeadSize, HeadSizeV>, giwa_test::accuracy_of<Tile>,
                                     giwa_test::tile_of<Tile>>(where, q, k, v, o, mask, score, options(a));
    giwa::sequences rows{.q_lengths = a.q_lengths, .k_lengths = a.k_lengths, .k_batch_index = a.k_index};
    if (!d.packed)
      return giwa::attention_forward<giwa::head_sizes<HeadSize, HeadSizeV>, giwa_test::accuracy_of<Tile>,
                                     giwa_test::tile_of<Tile>>(where, q, k, v, o, mask, score,
                                                               giwa_test::with(options(a), rows));
    rows.q_offsets = a.q_offsets, rows.k_offsets = a.k_offsets, rows.count = d.batch, rows.max_q = d.max_q;
    return giwa::attention_forward<giwa::head_sizes<HeadSize, HeadSizeV>, giwa_test::accuracy_of<Tile>,
                                   giwa_test::tile_of<Tile>>(where, without_first(q), without_first(k),
                                                             without_first(v), without_first(o), mask, score,
                                                             giwa_test::with(options(a), rows));
  }
};

/// An instance without its types, for lists.
template <class Where>
struct callable {
  compiled_types types;
  giwa::status (*call)(const Where&, const call_arguments&);
};
template <class Where, class... Instances>
std::vector<callable<Where>> list_of() {
  return {callable<Where>{Instances::types, &Instances::template call<Where>}...};
}

}  // namespace giwa_test::attention

#endif
