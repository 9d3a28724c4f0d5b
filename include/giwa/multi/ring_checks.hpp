// SPDX-License-Identifier: MIT
// The first rule that a call on a ring of ranks breaks.
#ifndef GIWA_MULTI_RING_CHECKS_HPP
#define GIWA_MULTI_RING_CHECKS_HPP

#include <giwa/attention/problem/backward_checks.hpp>
#include <giwa/multi/ring_plan.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A tensor that is sent from where it is: the rows of a sequence are contiguous.
template <class T>
GIWA_HOST_DEVICE constexpr status check_sent(const tensor_view<const T, 4>& x, const char* argument) {
  if (x.size() == 0) return {};
  const int64 heads = x.extent(2), size = x.extent(3);
  if ((heads > 1 && x.stride(2) != size) || (x.extent(1) > 1 && x.stride(1) != heads * size))
    return status::invalid(
        argument, "the rows of a sequence must be contiguous to be sent: (rows, heads, head size) without gaps",
        bound::exactly, heads * size, x.stride(1));
  return {};
}

/// The workspace of a call on several ranks: 16-byte aligned, contiguous, large enough, and no part of a tensor.
template <class T, class O, class Sum>
GIWA_HOST_DEVICE status check_ring_workspace(const tensor_view<unsigned char, 1>& w, int64 needed,
                                             const attention_views<T, O>& a, const tensor_view<Sum, 3>& lse) {
  if (const status s = w.check("workspace"); !s.ok()) return s;
  if (w.size() < needed)
    return status::invalid("workspace", "the workspace is smaller than this call needs", bound::at_least, needed,
                           w.size());
  if (w.size() == 0) return {};
  if (w.stride(0) != 1)
    return status::invalid("workspace", "the workspace must be contiguous (stride 1)", bound::exactly, 1, w.stride(0));
  if (reinterpret_cast<uint64>(w.data()) % workspace_layout::alignment != 0)
    return status::invalid("workspace", "the workspace must be 16-byte aligned");
  if (may_share(w, a.o)) return status::invalid("workspace", "the workspace overlaps o");
  if (may_share(w, lse)) return status::invalid("workspace", "the workspace overlaps lse");
  return check_apart_from_inputs(
      a, w, "workspace",
      {"the workspace overlaps q", "the workspace overlaps k", "the workspace overlaps v", "", "", "", "", ""});
}

/// On a ring the kernels of a causal mask begin at the diagonal of a slice.
template <class Mask, class Score>
GIWA_HOST_DEVICE constexpr status check_ring_diagonal(const Mask& mask, const Score& score, const alignment& align) {
  const int64 offset = diagonal_of(mask, score, align).fixed_offset();
  if (!mask_traits<Mask>::is_causal || offset == 0) return {};
  return status::invalid("mask", "causal on a ring has the offset 0; with another one write keys_ahead{0}",
                         bound::exactly, 0, offset);
}

/// The slices of a call, the rows that this rank gives, and the parts of the call that count in the whole sequence.
template <class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE status check_slices(const attention_views<T, O>& a, const sequence_slices& slices, int rank, int ranks,
                                     const Mask& mask, const Score& score, const alignment& align, bool sent) {
  if (const status s = slices.check(ranks); !s.ok()) return s;
  if (rank < 0 || rank >= ranks)
    return status::invalid("communicator", "the rank is out of range", bound::at_most, ranks - 1, rank);
  const int64 rows = slices.of(rank, ranks).count(), tokens = slices.tokens;
  if (a.q.extent(1) != rows)
    return status::invalid("q", "q must have as many rows as this rank's slice", bound::exactly, rows, a.q.extent(1));
  if (a.k.extent(1) != rows)
    return status::invalid("k", "k must have as many rows as this rank's slice", bound::exactly, rows, a.k.extent(1));
  if (sent && ranks > 1)
    if (const status s = check_sent(a.k, "k"); !s.ok()) return s;
  if (sent && ranks > 1)
    if (const status s = check_sent(a.v, "v"); !s.ok()) return s;
  if (const status s = check_both(mask, score, attention_sizes{a.q.extent(0), a.q.extent(2), tokens, tokens}); !s.ok())
    return s;
  if (const status s = check_alignment(mask, score, align, true, tokens, tokens); !s.ok()) return s;
  return sent ? check_ring_diagonal(mask, score, align) : status{};
}

/// Sequences of different lengths cannot be divided among ranks.
GIWA_HOST_DEVICE constexpr status check_no_sequences(const sequences& s) {
  if (!is_given(s)) return {};
  return status::invalid("sequences", "calls on several GPUs take no sequences of different lengths");
}

/// The first rule that a forward call on a ring breaks. The diagonal is that of the whole sequence, the workspace that of the
/// ring.
template <class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE status check_ring(const attention_views<T, O>& a, const sequence_slices& slices, int rank, int ranks,
                                   const Mask& mask, const Score& score, const attention_options& options,
                                   int64 head_size, int64 head_size_v, int64 workspace, bool sent = true) {
  attention_options rest = options;
  rest.align = {};
  rest.workspace = {};
  status s = check_no_sequences(options.sequences);
  if (s.ok()) s = check_slices(a, slices, rank, ranks, mask, score, options.align, sent);
  if (s.ok()) s = check_attention(a, full{}, plain_score{}, rest, head_size, head_size_v);
  return s.ok() ? check_ring_workspace(options.workspace, workspace, a, options.lse) : s;
}

/// The first rule that a backward call on a ring breaks.
template <class T, class O, class G, class Mask, class Score>
GIWA_HOST_DEVICE status check_ring_backward(const backward_views<T, O, G>& a, const sequence_slices& slices, int rank,
                                            int ranks, const Mask& mask, const Score& score,
                                            const attention_backward_options& options, int64 head_size,
                                            int64 head_size_v, int64 workspace, bool sent = true) {
  attention_backward_options rest = options;
  rest.align = {};
  rest.workspace = {};
  status s = check_no_sequences(options.sequences);
  if (s.ok()) s = check_slices(a.in, slices, rank, ranks, mask, score, options.align, sent);
  if (s.ok()) s = check_backward(a, full{}, plain_score{}, rest, head_size, head_size_v);
  if (s.ok()) s = check_parameter_gradients(a, score, rest);
  if (s.ok()) s = check_ring_workspace(options.workspace, workspace, a.in, a.lse);
  const tensor_view<unsigned char, 1>& w = options.workspace;
  if (s.ok() && (may_share(a.dq, w) || may_share(a.dk, w) || may_share(a.dv, w) || may_share(a.dout, w)))
    s = status::invalid("workspace", "the workspace overlaps dout or a gradient");
  return s;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
