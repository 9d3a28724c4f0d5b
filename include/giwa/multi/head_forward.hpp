// SPDX-License-Identifier: MIT
// head_parallel_attention_forward: each rank gets all tokens of some heads, computes them, and gives their tokens back.
#ifndef GIWA_MULTI_HEAD_FORWARD_HPP
#define GIWA_MULTI_HEAD_FORWARD_HPP

#include <giwa/attention/call/forward.hpp>
#include <giwa/multi/head_exchange.hpp>
#include <giwa/multi/ring_checks.hpp>
#include <giwa/multi/ring_forward.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The tensors of a forward call by tokens and by heads, and the workspace of attention_forward.
template <class T, class O>
struct head_forward_tensors {
  head_tensor<const T> q, k, v;
  head_tensor<O> o;
  head_tensor<float> lse;

  static constexpr head_forward_tensors take(workspace_layout& layout, const attention_views<T, O>& a,
                                             const tensor_view<float, 4>& lse, int64 tokens, int ranks) {
    const head_tensor<const T> q = take_heads(layout, a.q, tokens, ranks), k = take_heads(layout, a.k, tokens, ranks),
                               v = take_heads(layout, a.v, tokens, ranks);
    const head_tensor<O> o = take_heads(layout, a.o, tokens, ranks);
    return {q, k, v, o, take_heads(layout, lse, tokens, ranks)};
  }
};

/// The problem of one rank: the tokens of its group, and its share of the heads.
constexpr attention_problem problem_of_heads(attention_problem p, int64 tokens, int ranks) {
  p.seq_q = p.seq_k = tokens, p.heads /= ranks, p.kv_heads /= ranks;
  return p;
}

/// Whether the heads can be divided among ranks.
GIWA_HOST_DEVICE constexpr status check_heads(int64 kv_heads, int ranks) {
  if (kv_heads % ranks == 0) return {};
  return status::invalid("k", "the number of kv heads must be a multiple of the number of ranks", bound::multiple_of,
                         ranks, kv_heads);
}

}  // namespace detail

/// Returns the bytes of workspace that head_parallel_attention_forward() needs: twice q, k, v, o and lse of this rank.
///
/// Parameters:
///   - p, slices, rank, ranks: as in ring_workspace_bytes()
///   - output_bytes: of an element of o
///   - ring: the ranks of the ring of a mesh
constexpr int64 head_parallel_workspace_bytes(const attention_problem& p, const sequence_slices& slices, int rank,
                                              int ranks, int64 output_bytes = 2, int ring = 1) {
  if (!slices.check(ranks).ok() || rank < 0 || rank >= ranks || ring < 1 || ranks % ring != 0) return 0;
  const detail::head_group group{slices, rank / (ranks / ring), ranks / ring, ranks};
  if (p.heads % group.size != 0 || p.kv_heads % group.size != 0) return 0;
  const int64 tokens = group.tokens().count(), rows = slices.of(rank, ranks).count();
  const auto tensor = [&](int64 heads, int64 bytes) { return detail::bytes_of_rank(p.batch, rows, heads, bytes); };
  const auto k = tensor(p.kv_heads, p.head_size * p.element_bytes);
  const auto v = tensor(p.kv_heads, p.head_size_v * p.element_bytes);
  detail::workspace_layout layout;
  detail::head_forward_tensors<unsigned char, unsigned char>::take(
      layout, {tensor(p.heads, p.head_size * p.element_bytes), k, v, tensor(p.heads, p.head_size_v * output_bytes), {}},
      {nullptr, {p.batch, rows, p.heads, 1}, {0, 0, 0, 1}}, tokens, group.size);
  const attention_problem part = detail::problem_of_heads(p, tokens, group.size);
  layout.take<unsigned char>(ring == 1 ? workspace_bytes(part)
                                       : ring_workspace_bytes(part, slices.of_groups(group.size), group.number, ring));
  return layout.bytes;
}

inline namespace GIWA_ARCH_TAG {

/// Computes what ring_attention_forward() computes, with the same arguments, in another way ("Ulysses"): an all-to-all exchange
/// gives each rank all tokens of its share of the heads, attention_forward() computes them, and a second exchange gives every
/// rank its tokens back. kv heads must be a multiple of the number of ranks. k and v may have any strides. Nothing overlaps
/// with the exchanges, which send (ranks - 1) / ranks of q, k, v and o once.
///
/// Parameters:
///   - where, slices, q, k, v, o, mask, score: as in ring_attention_forward(); the slices are those of all ranks
///   - comm: this rank's communicator, or a mesh{heads, ring}: then `heads` exchanges heads, and each rank of `ring` calls
///     ring_attention_forward() with the heads that it has and the tokens of its group. kv heads must be a multiple of the
///     ranks of `heads` then
///   - options: the workspace is required: head_parallel_workspace_bytes(), 16-byte aligned
///
/// A row has the bits that attention_forward()
/// over the whole sequence gives it with this rank's part of the heads. Errors and streams as in ring_attention_forward().
///
/// Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
template <int HeadSize, int HeadSizeV = HeadSize, detail::attention_place Where, communicator_or_mesh<Where> Comm,
          class Queries, class Keys, class Values, class O, class Mask = full, class Score = plain_score>
status head_parallel_attention_forward(const Where& where, const Comm& comm, const sequence_slices& slices,
                                       const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                                       const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o,
                                       const Mask& mask = {}, const Score& score = {},
                                       const attention_options& options = {}) {
  detail::require_mask_and_score<Mask, Score>();
  static_assert(!detail::drops_weights<Score>,
                "giwa::head_parallel_attention_forward: dropout on several GPUs is not supported.");
  static_assert(detail::attention_element<stdlib::remove_const_t<Queries>>,
                "giwa::head_parallel_attention_forward: elements of q, k and v must be giwa::fp16, bf16 or fp32.");
  detail::require_head_sizes<HeadSize, HeadSizeV>();
  const auto views = detail::views_of(q, k, v, o, {});
  using element = typename decltype(views.q)::value_type;
  const auto& heads_comm = detail::heads_of(comm);
  const int rank = comm.rank(), ranks = comm.size(), head_ranks = heads_comm.size(), ring = ranks / head_ranks;
  const int64 needed = head_parallel_workspace_bytes(views.problem(), slices, rank, ranks, int64{sizeof(O)}, ring);
  if (const status s = detail::check_heads(k.extent(2), head_ranks); !s.ok()) return s;
  if (const status s = detail::check_ring(views, slices, rank, ranks, mask, score, options, HeadSize, HeadSizeV, needed,
                                          /*sent=*/false);
      !s.ok())
    return s;
  if (ring > 1)  // before the ranks of `heads` exchange anything
    if (const status s = detail::check_ring_diagonal(mask, score, options.align); !s.ok()) return s;
  const auto group = detail::head_group::of(comm, slices);
  detail::workspace_layout layout{options.workspace.data()};
  const auto t = detail::head_forward_tensors<element, O>::take(layout, views, detail::tensor_of_lse(options.lse),
                                                                group.tokens().count(), head_ranks);
  const detail::head_exchange<Where, stdlib::remove_cvref_t<decltype(heads_comm)>> exchange{where, heads_comm, group};
  if (const status s = exchange.to_heads(t.q, t.k, t.v); !s.ok()) return s;

  const int64 heads = q.extent(2) / head_ranks;
  const int first_head = static_cast<int>(heads_comm.rank() * heads);
  attention_options call{};
  call.scale = options.scale;
  call.align = detail::diagonal_of(mask, score, options.align);
  if (t.lse.present()) call.lse = detail::lse_of_tensor(t.lse.all);
  if (options.sinks.size() > 0)
    call.sinks = {options.sinks.data() + first_head * options.sinks.stride(0), {heads}, options.sinks.strides()};
  call.workspace = detail::rest_of(options.workspace, layout);
  const auto mask_of_heads = detail::mask_of_heads(mask, first_head);
  const auto score_of_heads = detail::score_of_heads(score, first_head);
  status s;
  if (ring == 1) {
    const detail::attention_views<element, O> all{t.q.all, t.k.all, t.v.all, t.o.all, {}};
    s = detail::run_attention<HeadSize, HeadSizeV, automatic_tile>(where, all, mask_of_heads, score_of_heads, call);
  } else if constexpr (detail::is_mesh<Comm>) {
    s = ring_attention_forward<HeadSize, HeadSizeV>(where, comm.ring, slices.of_groups(head_ranks), t.q.all, t.k.all,
                                                    t.v.all, t.o.all, mask_of_heads, score_of_heads, call);
  }
  return s.ok() ? exchange.to_tokens(/*adds=*/false, t.o, t.lse) : s;
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
