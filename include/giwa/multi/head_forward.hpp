// SPDX-License-Identifier: MIT
// head_parallel_attention_forward: each rank gets all tokens of some heads, computes them, and gives their tokens back.
#ifndef GIWA_MULTI_HEAD_FORWARD_HPP
#define GIWA_MULTI_HEAD_FORWARD_HPP

#include <giwa/attention/forward/forward.hpp>
#include <giwa/multi/head_exchange.hpp>
#include <giwa/multi/ring_checks.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The tensors of a forward call by tokens and by heads, and the workspace of attention_forward.
template <class T, class O>
struct head_forward_tensors {
  head_tensor<const T> q, k, v;
  head_tensor<O> o;
  head_tensor<float> lse;
  unsigned char* call;
  int64 call_bytes;

  static head_forward_tensors take(workspace_layout& layout, const attention_views<T, O>& a,
                                   const tensor_view<float, 4>& lse, int64 tokens, int ranks) {
    const head_tensor<const T> q = take_heads(layout, a.q, tokens, ranks), k = take_heads(layout, a.k, tokens, ranks),
                               v = take_heads(layout, a.v, tokens, ranks);
    const head_tensor<O> o = take_heads(layout, a.o, tokens, ranks);
    const head_tensor<float> sums = take_heads(layout, lse, tokens, ranks);
    attention_problem p = a.problem();
    p.seq_q = p.seq_k = tokens, p.heads /= ranks, p.kv_heads /= ranks;
    const int64 bytes = workspace_bytes(p);
    return {q, k, v, o, sums, layout.take<unsigned char>(bytes), bytes};
  }
};

/// Whether the heads can be divided among ranks.
GIWA_HOST_DEVICE constexpr status check_heads(int64 kv_heads, int ranks) {
  if (kv_heads % ranks == 0) return {};
  return status::invalid("k", "the number of kv heads must be a multiple of the number of ranks", bound::exactly,
                         round_up(kv_heads, int64{ranks}), kv_heads);
}

}  // namespace detail

/// Returns the bytes of workspace that head_parallel_attention_forward() needs on rank `rank` of `ranks`: twice q, k, v, o
/// and lse of this rank. Arguments as for ring_workspace_bytes(); `output_bytes`: of an element of o.
constexpr int64 head_parallel_workspace_bytes(const attention_problem& p, const sequence_slices& slices, int rank,
                                              int ranks, int64 output_bytes = 2) {
  if (!slices.check(ranks).ok() || rank < 0 || rank >= ranks || p.heads % ranks != 0 || p.kv_heads % ranks != 0)
    return 0;
  detail::workspace_layout layout;
  const int64 rows = detail::saturated_product(p.batch, slices.of(rank, ranks).count()),
              tokens = detail::saturated_product(p.batch, slices.tokens);
  const auto take = [&](int64 heads, int64 bytes) {
    layout.take<unsigned char>(detail::saturated_product(tokens, heads / ranks * bytes));
    layout.take<unsigned char>(detail::saturated_product(rows, heads * bytes));
  };
  take(p.heads, p.head_size * p.element_bytes);
  take(p.kv_heads, p.head_size * p.element_bytes);
  take(p.kv_heads, p.head_size_v * p.element_bytes);
  take(p.heads, p.head_size_v * output_bytes);
  take(p.heads, sizeof(float));
  attention_problem part = p;
  part.seq_q = part.seq_k = slices.tokens, part.heads /= ranks, part.kv_heads /= ranks;
  layout.take<unsigned char>(workspace_bytes(part));
  return layout.bytes;
}

inline namespace GIWA_ARCH_TAG {

/// Computes what ring_attention_forward() computes, with the same arguments, in another way ("Ulysses"): an all-to-all exchange
/// gives each rank all tokens of its share of the heads, attention_forward() computes them, and a second exchange gives every
/// rank its tokens back. kv heads must be a multiple of the number of ranks. k and v may have any strides. Nothing overlaps
/// with the exchanges, which send (ranks - 1) / ranks of q, k, v and o once.
///
/// The workspace is required: head_parallel_workspace_bytes(), 16-byte aligned. A row has the bits that attention_forward()
/// over the whole sequence gives it with this rank's part of the heads. Errors and streams as in ring_attention_forward().
///
/// Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
template <int HeadSize, int HeadSizeV = HeadSize, detail::attention_place Where, communicator<Where> Comm,
          class Queries, class Keys, class Values, class O, class Mask = full, class Score = plain_score>
status head_parallel_attention_forward(const Where& where, const Comm& comm, const sequence_slices& slices,
                                       const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                                       const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o,
                                       const Mask& mask = {}, const Score& score = {},
                                       const attention_options& options = {}) {
  detail::require_mask_and_score<Mask, Score>();
  static_assert(!detail::drops_weights<Score>,
                "giwa::head_parallel_attention_forward: dropout on several GPUs is not supported.");
  detail::require_head_sizes<HeadSize, HeadSizeV>();
  const auto views = detail::views_of(q, k, v, o, {});
  using element = typename decltype(views.q)::value_type;
  const int rank = comm.rank(), ranks = comm.size();
  const int64 needed = head_parallel_workspace_bytes(views.problem(), slices, rank, ranks, int64{sizeof(O)});
  if (const status s = detail::check_heads(k.extent(2), ranks); !s.ok()) return s;
  if (const status s = detail::check_ring(views, slices, rank, ranks, mask, score, options, HeadSize, HeadSizeV, needed,
                                          /*sent=*/false);
      !s.ok())
    return s;
  detail::workspace_layout layout{options.workspace.data()};
  const auto t = detail::head_forward_tensors<element, O>::take(layout, views, detail::tensor_of_lse(options.lse),
                                                                slices.tokens, ranks);
  const detail::head_exchange<Where, Comm> exchange{where, comm, slices};
  if (const status s = exchange.to_heads(t.q, t.k, t.v); !s.ok()) return s;

  const int64 heads = q.extent(2) / ranks;
  const int first_head = static_cast<int>(rank * heads);
  attention_options call{};
  call.scale = options.scale;
  call.align = detail::diagonal_of(mask, score, options.align);
  if (t.lse.present()) call.lse = detail::lse_of_tensor(t.lse.all);
  if (options.sinks.size() > 0)
    call.sinks = {options.sinks.data() + first_head * options.sinks.stride(0), {heads}, options.sinks.strides()};
  call.workspace = {t.call, {t.call_bytes}};
  const detail::attention_views<element, O> all{t.q.all, t.k.all, t.v.all, t.o.all, {}};
  const status s = detail::run_attention<HeadSize, HeadSizeV, automatic_tile>(
      where, all, detail::mask_of_heads(mask, first_head), detail::score_of_heads(score, first_head), call);
  return s.ok() ? exchange.to_tokens(t.o, t.lse) : s;
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
