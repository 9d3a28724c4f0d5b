// SPDX-License-Identifier: MIT
// head_parallel_attention_backward: the gradients of head_parallel_attention_forward, or of ring_attention_forward.
#ifndef GIWA_MULTI_HEAD_BACKWARD_HPP
#define GIWA_MULTI_HEAD_BACKWARD_HPP

#include <giwa/attention/backward/backward.hpp>
#include <giwa/multi/head_forward.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The tensors of a backward call by tokens and by heads, and the workspace of attention_backward.
template <class T, class O, class G>
struct head_backward_tensors {
  head_tensor<const T> q, k, v;
  head_tensor<const O> o, dout;
  head_tensor<const float> lse, dlse;
  head_tensor<G> dq, dk, dv;
  unsigned char* call;
  int64 call_bytes;

  static head_backward_tensors take(workspace_layout& layout, const backward_views<T, O, G>& a,
                                    const tensor_view<const float, 3>& dlse, int64 tokens, int ranks) {
    const auto heads = [&](const auto& own) { return take_heads(layout, own, tokens, ranks); };
    // A gradient that is not wanted has no heads, and takes no memory. In this order.
    head_backward_tensors t{heads(a.in.q),
                            heads(a.in.k),
                            heads(a.in.v),
                            heads(a.in.o),
                            heads(a.dout),
                            heads(tensor_of_lse(a.lse)),
                            heads(tensor_of_lse(dlse)),
                            heads(a.dq),
                            heads(a.dk),
                            heads(a.dv),
                            nullptr,
                            0};
    attention_problem p = a.in.problem();
    p.seq_q = p.seq_k = tokens, p.heads /= ranks, p.kv_heads /= ranks;
    t.call_bytes = backward_workspace_bytes(p);
    t.call = layout.take<unsigned char>(t.call_bytes);
    return t;
  }
};

/// The gradients of the sinks: those of this rank's heads; 0 for the others.
struct zero_other_sinks {
  tensor_view<float, 1> dsinks;
  int64 first, count;
  GIWA_HOST_DEVICE void operator()(index<1> at) const {
    if (at[0] < first || at[0] >= first + count) dsinks[at] = 0;
  }
};

}  // namespace detail

/// Returns the bytes of workspace that head_parallel_attention_backward() needs on rank `rank` of `ranks`, with dlse and all
/// gradients: twice q, k, v, o, dout, lse, dlse and the gradients of this rank. `output_bytes`: of an element of o and dout,
/// `gradient_bytes`: of dq, dk and dv.
constexpr int64 head_parallel_backward_workspace_bytes(const attention_problem& p, const sequence_slices& slices,
                                                       int rank, int ranks, int64 output_bytes = 2,
                                                       int64 gradient_bytes = 2) {
  if (!slices.check(ranks).ok() || rank < 0 || rank >= ranks || p.heads % ranks != 0 || p.kv_heads % ranks != 0)
    return 0;
  detail::workspace_layout layout;
  const int64 rows = detail::saturated_product(p.batch, slices.of(rank, ranks).count()),
              tokens = detail::saturated_product(p.batch, slices.tokens);
  const auto take = [&](int64 heads, int64 bytes) {
    layout.take<unsigned char>(detail::saturated_product(tokens, heads / ranks * bytes));
    layout.take<unsigned char>(detail::saturated_product(rows, heads * bytes));
  };
  for (const int64 bytes : {p.element_bytes, gradient_bytes}) {
    take(p.heads, p.head_size * bytes);
    take(p.kv_heads, p.head_size * bytes);
    take(p.kv_heads, p.head_size_v * bytes);
  }
  for (int i = 0; i < 2; ++i) {
    take(p.heads, p.head_size_v * output_bytes);
    take(p.heads, sizeof(float));
  }
  attention_problem part = p;
  part.seq_q = part.seq_k = slices.tokens, part.heads /= ranks, part.kv_heads /= ranks;
  layout.take<unsigned char>(backward_workspace_bytes(part));
  return layout.bytes;
}

inline namespace GIWA_ARCH_TAG {

/// Computes what ring_attention_backward() computes, with the same arguments, by an all-to-all exchange: all tokens of this
/// rank's share of the heads. kv heads must be a multiple of the number of ranks. dsinks receives the gradients of this
/// rank's heads, and 0 for the others: add it up over the ranks. options.workspace is required:
/// head_parallel_backward_workspace_bytes(), 16-byte aligned. Otherwise as ring_attention_backward().
template <int HeadSize, int HeadSizeV = HeadSize, detail::attention_place Where, communicator<Where> Comm,
          class Queries, class Keys, class Values, class O, class Lse, class DO, class DQ, class DK, class DV,
          class Mask = full, class Score = plain_score>
  requires(stdlib::same_as<stdlib::remove_const_t<Lse>, float>)
status head_parallel_attention_backward(const Where& where, const Comm& comm, const sequence_slices& slices,
                                        const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                                        const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o,
                                        const tensor_view<Lse, 3>& lse, const tensor_view<DO, 4>& dout,
                                        const tensor_view<DQ, 4>& dq, const tensor_view<DK, 4>& dk,
                                        const tensor_view<DV, 4>& dv, const Mask& mask = {}, const Score& score = {},
                                        const attention_backward_options& options = {}) {
  detail::require_mask_and_score<Mask, Score>();
  static_assert(!detail::drops_weights<Score>,
                "giwa::head_parallel_attention_backward: dropout on several GPUs is not supported.");
  detail::require_head_sizes<HeadSize, HeadSizeV>();
  static_assert(!detail::gradient_of<Score>::wanted,
                "giwa::head_parallel_attention_backward: score modifiers that receive gradients are not supported.");
  using element = stdlib::remove_const_t<Queries>;
  using output = stdlib::remove_const_t<O>;
  const auto views = detail::views_of({}, q, k, v, o, lse, dout, dq, dk, dv);
  const int rank = comm.rank(), ranks = comm.size();
  if (const status s = detail::check_heads(k.extent(2), ranks); !s.ok()) return s;
  const int64 needed = head_parallel_backward_workspace_bytes(views.in.problem(), slices, rank, ranks,
                                                              int64{sizeof(output)}, int64{sizeof(DQ)});
  if (const status s = detail::check_ring_backward(views, slices, rank, ranks, mask, score, options, HeadSize,
                                                   HeadSizeV, needed, /*sent=*/false);
      !s.ok())
    return s;
  detail::workspace_layout layout{options.workspace.data()};
  const auto t =
      detail::head_backward_tensors<element, output, DQ>::take(layout, views, options.dlse, slices.tokens, ranks);
  const detail::head_exchange<Where, Comm> exchange{where, comm, slices};
  if (const status s = exchange.to_heads(t.q, t.k, t.v, t.o, t.dout, t.lse, t.dlse); !s.ok()) return s;

  const int64 heads = q.extent(2) / ranks;
  const int first_head = static_cast<int>(rank * heads);
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
  call.workspace = {t.call, {t.call_bytes}};
  // A gradient that is not wanted stays an empty view.
  const auto wanted = [](const auto& x) { return x.present() ? x.all : decltype(x.all){}; };
  const detail::backward_views<element, output, DQ> all{{t.q.all, t.k.all, t.v.all, t.o.all, {}},
                                                        detail::lse_of_tensor(tensor_view<const float, 4>(t.lse.all)),
                                                        t.dout.all,
                                                        wanted(t.dq),
                                                        wanted(t.dk),
                                                        wanted(t.dv)};
  status s = detail::run_backward<HeadSize, HeadSizeV>(where, all, detail::mask_of_heads(mask, first_head),
                                                       detail::score_of_heads(score, first_head), call);
  if (s.ok() && options.dsinks.size() > 0)
    s = for_all(where, extents{options.dsinks.extent(0)}, detail::zero_other_sinks{options.dsinks, first_head, heads});
  return s.ok() ? exchange.to_tokens(t.dq, t.dk, t.dv) : s;
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
