// SPDX-License-Identifier: MIT
// The first rule that an attention call breaks, found without touching memory.
#ifndef GIWA_ATTENTION_PROBLEM_CHECKS_HPP
#define GIWA_ATTENTION_PROBLEM_CHECKS_HPP

#include <giwa/attention/problem/score.hpp>
#include <giwa/attention/problem/views.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The diagonal of a call that check_alignment() accepts: bottom_right if the mask, the score modifier and the options
/// leave it unset, as in FlashAttention and in PyTorch's decoding.
template <class Mask, class Score>
GIWA_HOST_DEVICE constexpr alignment diagonal_of(const Mask& mask, const Score& score, alignment given) {
  const alignment asked = request_of(mask).with(request_of(score)).with({false, false, given}).align;
  return asked.is_set() ? asked : alignment(alignment::bottom_right);
}

/// Whether a call has one diagonal, and its numbers fit. An offset puts diagonals, and their distance to any key, at
/// most attention_limits::length from 0: so masks and score modifiers may subtract them as ints.
template <class Mask, class Score>
GIWA_HOST_DEVICE constexpr status check_alignment(const Mask& mask, const Score& score, alignment given,
                                                  bool lengths_agree, int64 queries, int64 keys) {
  const alignment_request own = request_of(mask).with(request_of(score)), all = own.with({false, false, given});
  if (all.conflict)
    return status::invalid("mask", "the mask, the score modifier and the options ask for different diagonals");
  if (own.needed && !all.align.is_set() && !lengths_agree)
    return status::invalid("mask",
                           "queries and keys may differ in number, so the diagonal must be chosen: "
                           "alignment::top_left, alignment::bottom_right or alignment::offset(n)");
  const int64 n = all.align.fixed_offset(), most = attention_limits::length - queries,
              least = keys - attention_limits::length;
  if (n > most)
    return status::invalid("align", "the diagonal of the last query is out of range", bound::at_most, most, n);
  if (n < least)
    return status::invalid("align", "the diagonal of the first query is out of range", bound::at_least, least, n);
  return {};
}

/// The scale that the caller gives, if any.
GIWA_HOST_DEVICE constexpr status check_scale(const attention_scale& scale) {
  constexpr float most = 1e38f;
  if (!scale.given || (scale.value >= -most && scale.value <= most)) return {};
  return status::invalid("scale", "scale must be finite and at most 1e38 in magnitude");
}

/// The lse that the call writes: (batch, heads, queries), without overlap with o. Empty means none.
template <class T, class O>
GIWA_HOST_DEVICE status check_lse_view(const tensor_view<float, 3>& lse, const tensor_view<const T, 4>& q,
                                       const tensor_view<O, 4>& o) {
  if (!is_given(lse)) return {};
  if (const status s = lse.check("lse"); !s.ok()) return s;
  if (const status s = check_written(lse, "lse"); !s.ok()) return s;
  const int64 sizes[3] = {q.extent(0), q.extent(2), q.extent(1)};
  constexpr const char* messages[3] = {"lse is (batch, heads, queries): its batch must be that of q, 1 if packed",
                                       "lse is (batch, heads, queries): it must have as many heads as q",
                                       "lse is (batch, heads, queries): it must have as many queries as q"};
  for (int d = 0; d < 3; ++d)
    if (lse.extent(d) != sizes[d]) return status::invalid("lse", messages[d], bound::exactly, sizes[d], lse.extent(d));
  return check_apart(lse, o, "lse", "lse overlaps o");
}
/// The same, and no overlap with an input.
template <class T, class O>
GIWA_HOST_DEVICE status check_lse(const tensor_view<float, 3>& lse, const attention_views<T, O>& a) {
  if (const status s = check_lse_view(lse, a.q, a.o); !s.ok()) return s;
  return check_apart_from_inputs(
      a, lse, "lse",
      {"lse overlaps q", "lse overlaps k", "lse overlaps v", "lse overlaps q_offsets", "lse overlaps k_offsets",
       "lse overlaps q_lengths", "lse overlaps k_lengths", "lse overlaps k_batch_index"});
}

/// The workspace: enough bytes, aligned, without overlap with a tensor. Empty means none.
template <class T, class O>
GIWA_HOST_DEVICE status check_workspace(const tensor_view<unsigned char, 1>& w, int64 needed,
                                        const attention_views<T, O>& a, const tensor_view<float, 3>& lse) {
  if (w.extent(0) == 0) return {};
  if (const status s = w.check("workspace"); !s.ok()) return s;
  if (w.size() < needed)
    return status::invalid("workspace", "the workspace is smaller than workspace_bytes()", bound::at_least, needed,
                           w.size());
  if (w.stride(0) != 1)
    return status::invalid("workspace", "the workspace must be contiguous (stride 1)", bound::exactly, 1, w.stride(0));
  const auto address = reinterpret_cast<uint64>(w.data());
  if (address % alignof(work_counter) != 0) return status::invalid("workspace", "the workspace must be 8-byte aligned");
  if (element_traits<T>::is_split && address % workspace_layout::alignment != 0)
    return status::invalid("workspace", "the workspace of an fp32 call must be 16-byte aligned");
  if (may_share(w, a.o)) return status::invalid("workspace", "the workspace overlaps o");
  if (may_share(w, lse)) return status::invalid("workspace", "the workspace overlaps lse");
  return check_apart_from_inputs(
      a, w, "workspace",
      {"the workspace overlaps q", "the workspace overlaps k", "the workspace overlaps v",
       "the workspace overlaps q_offsets", "the workspace overlaps k_offsets", "the workspace overlaps q_lengths",
       "the workspace overlaps k_lengths", "the workspace overlaps k_batch_index"});
}

/// The sinks: one for each head of q. Empty means none.
GIWA_HOST_DEVICE constexpr status check_sinks_view(const tensor_view<const float, 1>& sinks, int64 heads) {
  if (!is_given(sinks)) return {};
  if (const status s = sinks.check("sinks"); !s.ok()) return s;
  if (sinks.extent(0) == heads) return {};
  return status::invalid("sinks", "there must be one sink for each head of q", bound::exactly, heads, sinks.extent(0));
}
/// The same, and no overlap with what the call writes.
template <class T, class O>
GIWA_HOST_DEVICE status check_sinks(const attention_options& options, const attention_views<T, O>& a) {
  const auto& sinks = options.sinks;
  if (const status s = check_sinks_view(sinks, a.q.extent(2)); !s.ok()) return s;
  if (may_share(sinks, a.o)) return status::invalid("sinks", "sinks overlaps o");
  if (may_share(sinks, options.lse)) return status::invalid("sinks", "sinks overlaps lse");
  if (may_share(sinks, options.workspace)) return status::invalid("sinks", "sinks overlaps the workspace");
  return {};
}

/// Scales of one tensor: (batch, groups of `rows` rows, heads). Empty means none.
template <class T>
GIWA_HOST_DEVICE constexpr status check_row_scales(const tensor_view<const float, 3>& s,
                                                   const tensor_view<const T, 4>& of, int rows, int multiple,
                                                   const char* argument, const char* rows_argument) {
  if (rows < 0 || rows % multiple != 0)
    return status::invalid(rows_argument,
                           multiple == 1 ? "the rows of a scale must be 0, for all of them, or more"
                                         : "the rows of a scale must be 0, for all of them, or a multiple of 64",
                           bound::at_least, 0, rows);
  if (!is_given(s))
    return rows == 0 ? status{}
                     : status::invalid(rows_argument, "rows of a scale are given, but the view of scales is empty");
  if (const status bad = s.check(argument); !bad.ok()) return bad;
  const int64 groups = rows == 0 ? 1 : ceil_div(of.extent(1), int64{rows});
  const int64 sizes[3] = {of.extent(0), groups, of.extent(2)};
  constexpr const char* messages[3] = {
      "scales are (batch, groups of rows, heads): the first size must be 1 or the batch of the tensor, 1 if packed",
      "scales are (batch, groups of rows, heads): there must be one for each group of rows",
      "scales are (batch, groups of rows, heads): there must be 1 or one for each head of the tensor"};
  for (int d = 0; d < 3; ++d)
    if (s.extent(d) != sizes[d] && (d == 1 || s.extent(d) != 1))
      return status::invalid(argument, messages[d], bound::exactly, sizes[d], s.extent(d));
  return {};
}
GIWA_HOST_DEVICE constexpr status check_column_numbers(const tensor_view<const float, 2>& s, int64 heads, int64 columns,
                                                       const char* argument) {
  if (!is_given(s)) return {};
  if (const status bad = s.check(argument); !bad.ok()) return bad;
  if (s.extent(0) != 1 && s.extent(0) != heads)
    return status::invalid(argument, "it is (kv heads, head size of v): there must be 1 or one row for each head of v",
                           bound::exactly, heads, s.extent(0));
  if (s.extent(1) != 1 && s.extent(1) != columns)
    return status::invalid(argument, "it is (kv heads, head size of v): there must be 1 or one for each column of v",
                           bound::exactly, columns, s.extent(1));
  return {};
}
/// The scales: sizes, and no overlap with what the call writes.
template <class Score, class T, class O>
GIWA_HOST_DEVICE status check_attention_scales(const attention_options& options, const attention_views<T, O>& a) {
  const attention_scales& s = options.scales;
  if (!has_scales(s)) return {};
  if constexpr (!element_traits<T>::has_scales)
    return status::invalid("scales", "only q, k and v of 8-bit elements have scales");
  first_failure broken;
  if (broken(check_row_scales(s.q, a.q, s.q_rows, 1, "scales.q", "scales.q_rows")) ||
      broken(check_row_scales(s.k, a.k, s.k_rows, 64, "scales.k", "scales.k_rows")) ||
      broken(check_row_scales(s.v, a.v, s.v_rows, 64, "scales.v", "scales.v_rows")) ||
      broken(check_column_numbers(s.v_channel, a.v.extent(2), a.v.extent(3), "scales.v_channel")) ||
      broken(check_column_numbers(s.v_mean, a.v.extent(2), a.v.extent(3), "scales.v_mean")))
    return broken.state;
  if (drops_weights<Score> && s.v_mean.data() != nullptr)
    return status::invalid("scales.v_mean",
                           "with dropout v has no mean: the sum of the weights that are kept is not known");
  const auto shares = [&](const auto& view, const char* argument) {
    if (may_share(view, a.o)) return status::invalid(argument, "the scales overlap o");
    if (may_share(view, options.lse)) return status::invalid(argument, "the scales overlap lse");
    if (may_share(view, options.workspace)) return status::invalid(argument, "the scales overlap the workspace");
    return status{};
  };
  static_cast<void>(broken(shares(s.q, "scales.q")) || broken(shares(s.k, "scales.k")) ||
                    broken(shares(s.v, "scales.v")) || broken(shares(s.v_channel, "scales.v_channel")) ||
                    broken(shares(s.v_mean, "scales.v_mean")));
  return broken.state;
}

/// The first rule that a forward call breaks. Whether the device can use the pointers is checked elsewhere.
template <class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE status check_attention(const attention_views<T, O>& a, const Mask& mask, const Score& score,
                                        const attention_options& options, int64 head_size, int64 head_size_v) {
  first_failure broken;
  if (broken(check_shapes(a, head_size, head_size_v)) || broken(check_written(a.o, "o")) ||
      broken(check_scale(options.scale)))
    return broken.state;
  const attention_problem p = a.problem();
  if (broken(check_apart_from_inputs(
          a, a.o, "o",
          {"o overlaps q", "o overlaps k", "o overlaps v", "o overlaps q_offsets", "o overlaps k_offsets",
           "o overlaps q_lengths", "o overlaps k_lengths", "o overlaps k_batch_index"})) ||
      broken(check_lse(options.lse, a)) ||
      broken(check_workspace(options.workspace, workspace_bytes(p), a, options.lse)) ||
      broken(check_sinks(options, a)) || broken(check_attention_scales<Score>(options, a)))
    return broken.state;
  if (broken(check_both(mask, score, attention_sizes{p.batch, p.heads, p.seq_q, p.seq_k}))) return broken.state;
  return check_alignment(mask, score, options.align, a.lengths_agree(), a.q.extent(1), a.k.extent(1));
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
