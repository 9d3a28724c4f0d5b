// SPDX-License-Identifier: MIT
// What every call of attention_backward computes besides dq, dk and dv.
#ifndef GIWA_ATTENTION_CHOOSE_BACKWARD_STEPS_CUH
#define GIWA_ATTENTION_CHOOSE_BACKWARD_STEPS_CUH

#include <giwa/attention/choose/candidates.cuh>
#include <giwa/attention/kernels/simt/row_terms.cuh>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/split_fp16/rows_pass.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

template <class T, class O, class G, class Mask, class Score>
status check_pointers(const backward_params<T, O, G, Mask, Score>& p) {
  status s = check_pointers(p.call);
  if (s.ok())
    s = check_named_pointers({{p.views.lse, "lse"},
                              {p.views.dout, "dout"},
                              {p.views.dq, "dq"},
                              {p.views.dk, "dk"},
                              {p.views.dv, "dv"},
                              {p.dlse, "dlse"},
                              {p.dsinks, "dsinks"},
                              {p.workspace.terms, "workspace"}});
  using gradients = gradient_of<Score>;
  if constexpr (gradients::parameters > 0)
    for (int i = 0; s.ok() && i < gradients::parameters; ++i)
      s = check_named_pointers({{&gradients::output(p.call.score, i, 0), "parameter_gradients"}});
  return s;
}

/// Splits q, k, v and dout of a call that has elements of each.
template <int HeadSize, int HeadSizeV>
struct prepared_split_rows : prepared_kernel<split_rows_op<(HeadSize > HeadSizeV ? HeadSize : HeadSizeV)>> {
  using op = split_rows_op<(HeadSize > HeadSizeV ? HeadSize : HeadSizeV)>;

  template <class Params>
  static status make(void* to, const Params& call) {
    typename op::params p;
    int64 blocks = 0;
    int n = 0;
    const auto add = [&](const tensor_view<const float, 4>& from, const split_rows& rows) {
      p.jobs[n++] = {from,  rows, fast_divisor(rows.heads), fast_divisor(rows.length), from.size() / from.extent(3),
                     blocks};
      blocks += ceil_div(from.size() / from.extent(3), int64{op::rows_of_block});
    };
    const auto& in = call.views.in;
    add(in.q, call.split.q), add(in.k, call.split.k), add(in.v, call.split.v), add(call.views.dout, call.split.dout);
    const launch_config config{.grid = blocks, .block = op::max_threads};
    ::new (to) prepared_split_rows{{config, p}};
    return allow_op<op>(config);
  }
};

/// Split fp16 and the terms of the rows, before the kernels of dq, dk and dv; the gradients of the sinks and of the parameters of
/// a score modifier, after them.
template <class Params, int HeadSize, int HeadSizeV>
class backward_steps {
  using lists_op = list_tiles_op<Params>;
  using terms_op = row_terms_op<Params, HeadSizeV>;
  static constexpr bool is_split =
      element_traits<stdlib::remove_const_t<typename decltype(Params::views.in.q)::element_type>>::is_split;
  static constexpr bool has_parameters = Params::parameters > 0;

  stdlib::conditional_t<is_split, optional_kernel<prepared_split_rows<HeadSize, HeadSizeV>>, no_kernel> split_;
  optional_kernel<prepared_kernel<lists_op>> lists_;
  optional_kernel<prepared_kernel<terms_op>> terms_;
  optional_kernel<prepared_kernel<sink_gradient_op<Params>>> sinks_;
  stdlib::conditional_t<has_parameters, optional_kernel<prepared_kernel<parameter_gradient_op<Params>>>, no_kernel>
      parameters_;

 public:
  status make(const Params& p, const gpu_traits& gpu) {
    const auto& q = p.views.in.q;
    status state;
    if constexpr (is_split)
      if (p.split.q.parts != nullptr) state = split_.make(p);
    if (state.ok() && q.size() > 0) {
      const bool lists = p.workspace.dq != nullptr && p.call.ragged;
      const int64 blocks = ceil_div(p.views.in.sequence_count(), int64{32});
      if (lists)
        state = lists_.make(launch_config{.grid = blocks < 128 ? blocks : 128, .block = lists_op::max_threads}, p);
      const auto terms = terms_op::params::of(p);
      const launch_config config{
          .grid = terms.blocks(gpu.multiprocessors), .block = terms_op::max_threads, .dependent = gpu.wgmma && lists};
      if (state.ok()) state = terms_.make(config, terms);
    }
    // A block for each head.
    if (state.ok() && !is_absent(p.dsinks))
      state = sinks_.make(launch_config{.grid = q.extent(2), .block = sink_gradient_op<Params>::max_threads}, p);
    if constexpr (has_parameters)
      if (state.ok())
        state = parameters_.make(
            launch_config{.grid = q.extent(2), .block = parameter_gradient_op<Params>::max_threads}, p);
    return state;
  }
  /// `gradients` are the kernels between the steps.
  template <class... Kernels>
  status launch(cudaStream_t s, const Kernels&... gradients) const {
    return launch_all(s, split_, lists_, terms_, gradients..., sinks_, parameters_);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
