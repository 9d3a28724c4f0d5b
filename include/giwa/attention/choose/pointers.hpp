// SPDX-License-Identifier: MIT
// Checks that kernels may use the pointers of a call. A failure names the argument.
#ifndef GIWA_ATTENTION_CHOOSE_POINTERS_HPP
#define GIWA_ATTENTION_CHOOSE_POINTERS_HPP

#include <giwa/attention/append/rotated_queries.hpp>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/problem/cached_params.hpp>
#include <giwa/device/pointer.hpp>

namespace giwa::inline GIWA_ABI::detail {

template <class T, class O, class Mask, class Score>
status check_pointers(const attention_params<T, O, Mask, Score>& call) {
  const auto& a = call.views;
  pointer_checks pointers;
  const auto fails = [&](const auto& x, const char* argument) { return pointers.fails(x, argument); };
  static_cast<void>(fails(a.q, "q") || fails(a.k, "k") || fails(a.v, "v") || fails(a.o, "o") ||
                    fails(call.lse, "lse") || fails(call.sinks, "sinks") || fails(call.counter, "workspace") ||
                    fails(a.packed.q_offsets, "q_offsets") || fails(a.packed.k_offsets, "k_offsets") ||
                    fails(a.packed.q_lengths, "q_lengths") || fails(a.packed.k_lengths, "k_lengths") ||
                    fails(a.packed.k_batch_index, "k_batch_index"));
  if constexpr (element_traits<T>::has_scales)
    static_cast<void>(fails(call.scales.q, "scales.q") || fails(call.scales.k, "scales.k") ||
                      fails(call.scales.v, "scales.v") || fails(call.scales.v_channel, "scales.v_channel") ||
                      fails(call.scales.v_mean, "scales.v_mean"));
  if constexpr (drops_weights<Score>) static_cast<void>(fails(call.score.offset, "dropout"));
  return pointers.state();
}

template <class T, class O, class G, class Mask, class Score>
status check_pointers(const backward_params<T, O, G, Mask, Score>& p) {
  if (const status s = check_pointers(p.call); !s.ok()) return s;
  pointer_checks pointers;
  const auto fails = [&](const auto& x, const char* argument) { return pointers.fails(x, argument); };
  static_cast<void>(fails(p.views.lse, "lse") || fails(p.views.dout, "dout") || fails(p.views.dq, "dq") ||
                    fails(p.views.dk, "dk") || fails(p.views.dv, "dv") || fails(p.dlse, "dlse") ||
                    fails(p.dsinks, "dsinks") || fails(p.workspace.terms, "workspace"));
  using gradients = gradient_of<Score>;
  if constexpr (gradients::parameters > 0)
    for (int i = 0; i < gradients::parameters; ++i)
      static_cast<void>(fails(&gradients::output(p.call.score, i, 0), "parameter_gradients"));
  return pointers.state();
}

template <class T, class Element, class O, class Mask, class Score>
status check_pointers(const cached_params<T, Element, O, Mask, Score>& call) {
  const auto& a = call.views;
  pointer_checks pointers;
  const auto fails = [&](const auto& x, const char* argument) { return pointers.fails(x, argument); };
  static_cast<void>(fails(a.q, "q") || fails(a.cache.k, "k") || fails(a.cache.v, "v") || fails(a.o, "o") ||
                    fails(call.lse, "lse") || fails(call.sinks, "sinks") || fails(call.prior_o, "prior") ||
                    fails(call.prior_lse, "prior") || fails(call.workspace, "workspace") ||
                    fails(a.packed.offsets, "q_offsets") || fails(a.cache.scales.k, "scales") ||
                    fails(a.cache.scales.v, "scales") || fails(a.cache.lengths, "lengths") ||
                    fails(a.cache.pages.indices, "pages") || fails(a.cache.pages.offsets, "pages"));
  if constexpr (selects_keys<Mask>)
    static_cast<void>(fails(call.mask.indices, "indices") || fails(call.mask.counts, "counts"));
  if constexpr (rotates_queries<Score>) {
    const auto tables = tables_of(call.score.rotary);
    static_cast<void>(fails(call.score.positions.narrow(), "positions") ||
                      fails(call.score.positions.wide(), "positions") || fails(tables.cos, "cos") ||
                      fails(tables.sin, "sin"));
  }
  return pointers.state();
}

/// Of quantize().
template <class Problem>
  requires requires(const Problem& p) { p.codes; }
status check_pointers(const Problem& p) {
  pointer_checks pointers;
  static_cast<void>(pointers.fails(p.x, "x") || pointers.fails(p.codes, "codes") || pointers.fails(p.scales, "scales"));
  return pointers.state();
}

/// for_each(f) calls f(pointer or view, argument) for each.
template <class ForEach>
status check_each_pointer(const ForEach& for_each) {
  pointer_checks pointers;
  for_each([&](const auto& x, const char* argument) { static_cast<void>(pointers.fails(x, argument)); });
  return pointers.state();
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
