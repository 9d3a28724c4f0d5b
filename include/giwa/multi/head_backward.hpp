// SPDX-License-Identifier: MIT
// head_parallel_attention_backward: the gradients of head_parallel_attention_forward, or of ring_attention_forward.
#ifndef GIWA_MULTI_HEAD_BACKWARD_HPP
#define GIWA_MULTI_HEAD_BACKWARD_HPP

#include <giwa/attention/call/backward.hpp>
#include <giwa/multi/head_forward.hpp>
#include <giwa/multi/ring_backward.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The tensors of a backward call by tokens and by heads, and the workspace of attention_backward.
template <class T, class O, class G>
struct head_backward_tensors {
  head_tensor<const T> q, k, v;
  head_tensor<const O> o, dout;
  head_tensor<const float> lse, dlse;
  head_tensor<G> dq, dk, dv;

  static constexpr head_backward_tensors take(workspace_layout& layout, const backward_views<T, O, G>& a,
                                              const tensor_view<const float, 4>& lse,
                                              const tensor_view<const float, 4>& dlse, int64 tokens, int ranks) {
    const auto heads = [&](const auto& own) { return take_heads(layout, own, tokens, ranks); };
    // A gradient that is not wanted has no heads, and takes no memory. In this order.
    return {heads(a.in.q), heads(a.in.k), heads(a.in.v), heads(a.in.o), heads(a.dout),
            heads(lse),    heads(dlse),   heads(a.dq),   heads(a.dk),   heads(a.dv)};
  }
};

/// What has a row for each head: 0 for the heads of other ranks.
struct zero_other_heads {
  tensor_view<float, 2> x;  // (heads, numbers)
  int64 first, count;
  GIWA_HOST_DEVICE void operator()(index<2> at) const {
    if (at[0] < first || at[0] >= first + count) x[at] = 0;
  }
};

/// A head_score that also receives gradients, as the modifier does, of `heads` heads.
template <class Score>
struct trained_head_score : head_score<Score> {
  int64 heads;
};
template <class Score>
struct gradient_of<trained_head_score<Score>> : gradient_of<Score> {
  using of_whole = gradient_of<Score>;
  using part = trained_head_score<Score>;

  template <class Real>
  GIWA_HOST_DEVICE static void give(const part& f, Real dy, float z, attention_coord c, Real* sums) {
    of_whole::give(f.score, dy, z, f.whole(c), sums);
  }
  GIWA_HOST_DEVICE static constexpr gradient_sharing shared(const part& f) { return of_whole::shared(f.score); }
  GIWA_HOST_DEVICE static float& output(const part& f, int i, int head) {
    return of_whole::output(f.score, i, f.first_head + head);
  }
  template <class Visit>
  GIWA_HOST_DEVICE static constexpr void for_each_output(const part& f, const Visit& visit) {
    of_whole::for_each_output(f.score, [&](const tensor_view<float, 2>& x, int parameters) {
      visit(tensor_view<float, 2>(x.data() + f.first_head * x.stride(0), {f.heads, x.extent(1)}, x.strides()),
            parameters);
    });
  }
};
template <class Score>
auto trained_score_of_heads(const Score& score, int first_head, [[maybe_unused]] int64 heads) {
  if constexpr (gradient_of<Score>::wanted)
    return trained_head_score<Score>{{score, first_head}, heads};
  else
    return score_of_heads(score, first_head);
}

}  // namespace detail

/// Returns the bytes of workspace that head_parallel_attention_backward() needs with dlse and all gradients: twice q, k, v, o,
/// dout, lse, dlse and the gradients of this rank.
///
/// Parameters:
///   - p, slices, rank, ranks: as in ring_workspace_bytes()
///   - output_bytes: of an element of o and dout
///   - gradient_bytes: of an element of dq, dk and dv
///   - ring: the ranks of the ring of a mesh
///   - score: the score modifier of the call
template <score_modifier Score = plain_score>
constexpr int64 head_parallel_backward_workspace_bytes(const attention_problem& p, const sequence_slices& slices,
                                                       int rank, int ranks, int64 output_bytes = 2,
                                                       int64 gradient_bytes = 2, int ring = 1,
                                                       const Score& score = {}) {
  if (!slices.check(ranks).ok() || rank < 0 || rank >= ranks || ring < 1 || ranks % ring != 0) return 0;
  const detail::head_group group{slices, rank / (ranks / ring), ranks / ring, ranks};
  if (p.heads % group.size != 0 || p.kv_heads % group.size != 0) return 0;
  const int64 tokens = group.tokens().count(), rows = slices.of(rank, ranks).count();
  const auto tensor = [&](int64 heads, int64 bytes) { return detail::bytes_of_rank(p.batch, rows, heads, bytes); };
  const auto k_like = [&](int64 bytes) { return tensor(p.kv_heads, p.head_size * bytes); };
  const auto v_like = [&](int64 bytes) { return tensor(p.kv_heads, p.head_size_v * bytes); };
  const auto o = tensor(p.heads, p.head_size_v * output_bytes);
  const tensor_view<const float, 4> lse(nullptr, {p.batch, rows, p.heads, 1}, {0, 0, 0, 1});
  detail::workspace_layout layout;
  detail::head_backward_tensors<unsigned char, unsigned char, unsigned char>::take(
      layout,
      {{tensor(p.heads, p.head_size * p.element_bytes), k_like(p.element_bytes), v_like(p.element_bytes), o, {}},
       {},
       o,
       tensor(p.heads, p.head_size * gradient_bytes),
       k_like(gradient_bytes),
       v_like(gradient_bytes)},
      lse, lse, tokens, group.size);
  const attention_problem part = detail::problem_of_heads(p, tokens, group.size);
  layout.take<unsigned char>(
      ring == 1 ? detail::backward_workspace_bytes(part, score)
                : ring_backward_workspace_bytes(part, slices.of_groups(group.size), group.number, ring, score));
  return layout.bytes;
}

inline namespace GIWA_ARCH_TAG {

/// Computes what ring_attention_backward() computes, by an all-to-all exchange: all tokens of this rank's share of the heads.
/// kv heads must be a multiple of the number of ranks.
///
/// Parameters:
///   - where, slices, q, k, v, o, dout, dq, dk, dv, mask, score: as in ring_attention_backward()
///   - comm: a communicator or a mesh, as in head_parallel_attention_forward()
///   - options: the workspace is required: head_parallel_backward_workspace_bytes(), 16-byte aligned. dsinks receives the
///     gradients of this rank's heads, and 0 for the others: add it up over the ranks
///
/// The gradients of a score modifier's parameters are those of this rank's heads too; of bias_with_gradient a rank writes the
/// elements of its heads, or, where heads share them, adds to them if it does not have the first head.
template <int HeadSize, int HeadSizeV = HeadSize, detail::attention_place Where, communicator_or_mesh<Where> Comm,
          class Queries, class Keys, class Values, class O, class DO, class DQ, class DK, class DV, class Mask = full,
          class Score = plain_score>
status head_parallel_attention_backward(const Where& where, const Comm& comm, const sequence_slices& slices,
                                        const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                                        const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o,
                                        const tensor_view<DO, 4>& dout, const tensor_view<DQ, 4>& dq,
                                        const tensor_view<DK, 4>& dk, const tensor_view<DV, 4>& dv,
                                        const Mask& mask = {}, const Score& score = {},
                                        const attention_backward_options& options = {}) {
  detail::require_mask_and_score<Mask, Score>();
  static_assert(!detail::drops_weights<Score>,
                "giwa::head_parallel_attention_backward: dropout on several GPUs is not supported.");
  detail::require_head_sizes<HeadSize, HeadSizeV>();
  detail::require_parameter_slopes<Score>();
  using element = stdlib::remove_const_t<Queries>;
  using output = stdlib::remove_const_t<O>;
  const auto views = detail::views_of({}, q, k, v, o, options.lse, dout, dq, dk, dv);
  const auto& heads_comm = detail::heads_of(comm);
  const int rank = comm.rank(), ranks = comm.size(), head_ranks = heads_comm.size(), ring = ranks / head_ranks;
  if (const status s = detail::check_heads(k.extent(2), head_ranks); !s.ok()) return s;
  const int64 needed = head_parallel_backward_workspace_bytes(views.in.problem(), slices, rank, ranks,
                                                              int64{sizeof(output)}, int64{sizeof(DQ)}, ring, score);
  if (const status s = detail::check_ring_backward(views, slices, rank, ranks, mask, score, options, HeadSize,
                                                   HeadSizeV, needed, /*sent=*/false);
      !s.ok())
    return s;
  if (ring > 1)  // before the ranks of `heads` exchange anything
    if (const status s = detail::check_ring_diagonal(mask, score, options.align); !s.ok()) return s;
  const auto group = detail::head_group::of(comm, slices);
  detail::workspace_layout layout{options.workspace.data()};
  const auto t = detail::head_backward_tensors<element, output, DQ>::take(
      layout, views, detail::tensor_of_lse(views.lse), detail::tensor_of_lse(options.dlse), group.tokens().count(),
      head_ranks);
  const detail::head_exchange<Where, stdlib::remove_cvref_t<decltype(heads_comm)>> exchange{where, heads_comm, group};
  if (const status s = exchange.to_heads(t.q, t.k, t.v, t.o, t.dout, t.lse, t.dlse); !s.ok()) return s;

  const int64 heads = q.extent(2) / head_ranks;
  const int first_head = static_cast<int>(heads_comm.rank() * heads);
  attention_backward_options call{};
  call.scale = options.scale;
  call.align = detail::diagonal_of(mask, score, options.align);
  if (t.dlse.present()) call.dlse = detail::lse_of_tensor(tensor_view<const float, 4>(t.dlse.all));
  const auto own_heads = [&](const auto& x) {
    auto part = x;
    if (x.size() > 0) part = {x.data() + first_head * x.stride(0), {heads}, x.strides()};
    return part;
  };
  call.sinks = own_heads(options.sinks), call.dsinks = own_heads(options.dsinks);
  call.workspace = detail::rest_of(options.workspace, layout);
  call.accumulate = options.accumulate, call.any_order = options.any_order;
  call.split_heads = options.split_heads;
  // A gradient that is not wanted stays an empty view.
  const auto wanted = [](const auto& x) { return x.present() ? x.all : decltype(x.all){}; };
  call.lse = detail::lse_of_tensor(tensor_view<const float, 4>(t.lse.all));
  const auto mask_of_heads = detail::mask_of_heads(mask, first_head);
  const auto score_of_heads = detail::trained_score_of_heads(score, first_head, heads);
  status s;
  // The call adds to dsinks and to gradients of parameters; what it computes of the others is added to them at the end.
  if constexpr (stdlib::same_as<DQ, float>)
    for (const auto* const x : {&t.dq.all, &t.dk.all, &t.dv.all})
      if (s.ok() && options.accumulate) s = detail::set_to_zero(where, *x);
  if (!s.ok()) return s;
  if (ring == 1) {
    const detail::backward_views<element, output, DQ> all{
        {t.q.all, t.k.all, t.v.all, t.o.all, {}}, call.lse, t.dout.all, wanted(t.dq), wanted(t.dk), wanted(t.dv)};
    s = detail::run_backward<HeadSize, HeadSizeV>(where, all, mask_of_heads, score_of_heads, call);
  } else if constexpr (detail::is_mesh<Comm>) {
    s = ring_attention_backward<HeadSize, HeadSizeV>(where, comm.ring, slices.of_groups(head_ranks), t.q.all, t.k.all,
                                                     t.v.all, t.o.all, t.dout.all, wanted(t.dq), wanted(t.dk),
                                                     wanted(t.dv), mask_of_heads, score_of_heads, call);
  }
  const auto zero_others = [&](const tensor_view<float, 2>& x, int = 1) {
    if (s.ok() && x.size() > 0 && !options.accumulate)
      s = for_all(where, extents{x.extent(0), x.extent(1)}, detail::zero_other_heads{x, first_head, heads});
  };
  zero_others({options.dsinks.data(), {options.dsinks.extent(0), 1}, {options.dsinks.stride(0), 1}});
  detail::gradient_of<Score>::for_each_output(score, zero_others);
  return s.ok() ? exchange.to_tokens(options.accumulate, t.dq, t.dk, t.dv) : s;
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
