// SPDX-License-Identifier: MIT
// The first rule that a call of attention_backward breaks, found without touching memory.
#ifndef GIWA_ATTENTION_PROBLEM_BACKWARD_CHECKS_HPP
#define GIWA_ATTENTION_PROBLEM_BACKWARD_CHECKS_HPP

#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/problem/checks.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A tensor with the sizes of another one, whose rows are contiguous.
template <class V, class Like>
GIWA_HOST_DEVICE constexpr status check_like(const tensor_view<V, 4>& v, const tensor_view<Like, 4>& like,
                                             const char* argument, const char* message) {
  if (const status s = check_rows(v, argument); !s.ok()) return s;
  return v.check_extents(like.extents(), argument, message);
}

/// lse, or its gradient: one number for each row and head of q.
template <class T>
GIWA_HOST_DEVICE constexpr status check_row_numbers(const tensor_view<const float, 3>& v,
                                                    const tensor_view<const T, 4>& q, const char* argument) {
  if (const status s = v.check(argument); !s.ok()) return s;
  return v.check_extents({q.extent(0), q.extent(2), q.extent(1)}, argument,
                         "the sizes must be those of q as (batch, heads, queries), for packed sequences (1, heads, all "
                         "queries)");
}

/// A gradient shares no element with itself or with what the call reads.
template <class T, class O, class G, class V, int Rank>
GIWA_HOST_DEVICE status check_gradient(const backward_views<T, O, G>& a, const attention_backward_options& options,
                                       const tensor_view<V, Rank>& gradient, const char* argument) {
  if (const status s = check_written(gradient, argument); !s.ok()) return s;
  if (const status s = check_apart_from_inputs(
          a.in, gradient, argument,
          {"the output overlaps q", "the output overlaps k", "the output overlaps v", "the output overlaps q_offsets",
           "the output overlaps k_offsets", "the output overlaps q_lengths", "the output overlaps k_lengths",
           "the output overlaps k_batch_index"});
      !s.ok())
    return s;
  const char* const shared = may_share(a.in.o, gradient)              ? "the output overlaps o"
                             : may_share(a.dout, gradient)            ? "the output overlaps dout"
                             : may_share(a.lse, gradient)             ? "the output overlaps lse"
                             : may_share(options.dlse, gradient)      ? "the output overlaps dlse"
                             : may_share(options.sinks, gradient)     ? "the output overlaps sinks"
                             : may_share(options.workspace, gradient) ? "the output overlaps the workspace"
                                                                      : nullptr;
  return shared == nullptr ? status{} : status::invalid(argument, shared);
}

/// All gradients: sizes, and that no two share memory.
template <class T, class O, class G>
GIWA_HOST_DEVICE status check_gradients(const backward_views<T, O, G>& a, const attention_backward_options& options) {
  first_failure broken;
  const auto bad = [&](const tensor_view<G, 4>& g, const auto& like, const char* argument, const char* message) {
    return !is_absent(g) &&
           (broken(check_like(g, like, argument, message)) || broken(check_gradient(a, options, g, argument)));
  };
  if (bad(a.dq, a.in.q, "dq", "dq must have the sizes of q, or be an empty view") ||
      bad(a.dk, a.in.k, "dk", "dk must have the sizes of k, or be an empty view") ||
      bad(a.dv, a.in.v, "dv", "dv must have the sizes of v, or be an empty view") ||
      broken(check_apart(a.dk, a.dq, "dk", "dk overlaps dq")) ||
      broken(check_apart(a.dv, a.dq, "dv", "dv overlaps dq")) ||
      broken(check_apart(a.dv, a.dk, "dv", "dv overlaps dk")))
    return broken.state;
  const tensor_view<float, 1>& dsinks = options.dsinks;
  if (!is_absent(dsinks)) {
    if (is_absent(options.sinks))
      return status::invalid("dsinks", "dsinks receives the gradient of sinks, which the call does not have");
    if (broken(dsinks.check("dsinks")) ||
        broken(dsinks.check_extents({a.in.q.extent(2)}, "dsinks", "there must be one gradient for each head of q")) ||
        broken(check_gradient(a, options, dsinks, "dsinks")) ||
        broken(check_apart(dsinks, a.dq, "dsinks", "dsinks overlaps dq")) ||
        broken(check_apart(dsinks, a.dk, "dsinks", "dsinks overlaps dk")) ||
        broken(check_apart(dsinks, a.dv, "dsinks", "dsinks overlaps dv")))
      return broken.state;
  }
  if (options.accumulate && sizeof(G) < 4 && !(is_absent(a.dq) && is_absent(a.dk) && is_absent(a.dv)))
    return status::invalid("accumulate",
                           "dq, dk and dv must be fp32 to be added to: sums in 16 bits would be rounded in each call");
  return {};
}

/// The gradients of the parameters of a score modifier: sizes, and that they share memory with nothing else.
template <class T, class O, class G, class Score>
GIWA_HOST_DEVICE status check_parameter_gradients(const backward_views<T, O, G>& a, const Score& score,
                                                  const attention_backward_options& options) {
  first_failure broken;
  constexpr const char* argument = "parameter_gradients";
  int number = 0;
  gradient_of<Score>::for_each_output(score, [&](const tensor_view<float, 2>& to, int64 parameters) {
    int other_number = 0;
    gradient_of<Score>::for_each_output(score, [&](const tensor_view<float, 2>& other, int64) {
      if (broken.state.ok() && other_number++ < number)
        broken(check_apart(to, other, argument,
                           "two parts of the score modifier write their gradients to the same memory"));
    });
    ++number;
    const auto overlapped = [&](const auto& other, const char* message) {
      return broken(check_apart(to, other, argument, message));
    };
    static_cast<void>(
        !broken.state.ok() || broken(to.check(argument)) ||
        broken(to.check_extents({a.in.q.extent(2), parameters}, argument,
                                "the sizes must be (heads of q, parameters of the score modifier)")) ||
        broken(check_gradient(a, options, to, argument)) || overlapped(a.dq, "parameter_gradients overlaps dq") ||
        overlapped(a.dk, "parameter_gradients overlaps dk") || overlapped(a.dv, "parameter_gradients overlaps dv") ||
        overlapped(options.dsinks, "parameter_gradients overlaps dsinks"));
  });
  return broken.state;
}

/// The workspace of a call on a stream: enough bytes, aligned, without overlap with what the call reads.
template <class T, class O, class G, class Score>
GIWA_HOST_DEVICE status check_backward_workspace(const backward_views<T, O, G>& a, const Score& score,
                                                 const attention_backward_options& options) {
  const tensor_view<unsigned char, 1>& w = options.workspace;
  const int64 needed = least_backward_workspace_bytes(a.in.problem(), score);
  if (const status s = w.check("workspace"); !s.ok()) return s;
  if (w.size() < needed)
    return status::invalid("workspace", "on a stream a workspace of least_workspace_bytes() bytes is required",
                           bound::at_least, needed, w.size());
  if (needed == 0) return {};
  if (w.stride(0) != 1)
    return status::invalid("workspace", "the workspace must be contiguous (stride 1)", bound::exactly, 1, w.stride(0));
  if (reinterpret_cast<uint64>(w.data()) % workspace_layout::alignment != 0)
    return status::invalid("workspace", "the workspace must be 16-byte aligned");
  const char* const shared = may_share(w, a.in.o)          ? "the workspace overlaps o"
                             : may_share(w, a.dout)        ? "the workspace overlaps dout"
                             : may_share(w, a.lse)         ? "the workspace overlaps lse"
                             : may_share(w, options.dlse)  ? "the workspace overlaps dlse"
                             : may_share(w, options.sinks) ? "the workspace overlaps sinks"
                                                           : nullptr;
  if (shared != nullptr) return status::invalid("workspace", shared);
  return check_apart_from_inputs(
      a.in, w, "workspace",
      {"the workspace overlaps q", "the workspace overlaps k", "the workspace overlaps v",
       "the workspace overlaps q_offsets", "the workspace overlaps k_offsets", "the workspace overlaps q_lengths",
       "the workspace overlaps k_lengths", "the workspace overlaps k_batch_index"});
}

/// The first rule that a backward call breaks, whatever runs it: all but the workspace.
template <class T, class O, class G, class Mask, class Score>
GIWA_HOST_DEVICE status check_backward(const backward_views<T, O, G>& a, const Mask& mask, const Score& score,
                                       const attention_backward_options& options, int64 head_size, int64 head_size_v) {
  first_failure broken;
  if (broken(check_shapes(a.in, head_size, head_size_v)) || broken(check_scale(options.scale)) ||
      broken(check_like(a.dout, a.in.o, "dout", "dout must have the sizes of o")))
    return broken.state;
  const attention_problem p = a.in.problem();
  if (p.heads == 0 && p.kv_heads > 0)
    return status::invalid("q", "k and v have heads but q has none", bound::at_least, 1, 0);
  if (is_absent(a.lse) && a.in.q.size() > 0)
    return status::invalid("lse",
                           "lse is required: pass the lse that attention_forward wrote (attention_options::lse)");
  if (!is_absent(a.lse) && broken(check_row_numbers(a.lse, a.in.q, "lse"))) return broken.state;
  if (!is_absent(options.dlse) && broken(check_row_numbers(options.dlse, a.in.q, "dlse"))) return broken.state;
  if (broken(check_sinks_view(options.sinks, p.heads)) || broken(check_gradients(a, options)) ||
      broken(check_both(mask, score, attention_sizes{p.batch, p.heads, p.seq_q, p.seq_k})) ||
      broken(check_parameter_gradients(a, score, options)))
    return broken.state;
  return check_alignment(mask, score, options.align, a.in.lengths_agree(), a.in.q.extent(1), a.in.k.extent(1));
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
