// SPDX-License-Identifier: MIT
// What the caller of attention chooses: the options, and which rows each sequence has.
#ifndef GIWA_ATTENTION_PROBLEM_OPTIONS_HPP
#define GIWA_ATTENTION_PROBLEM_OPTIONS_HPP

#include <giwa/attention/problem/coordinate.hpp>
#include <giwa/attention/problem/scales.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI {

/// The factor of the scores. Without a value it is 1 / sqrt(head size). A value may be 0 or negative; a subnormal one counts as 0.
struct attention_scale {
  /// Whether a value was given, and the value.
  ///@{
  bool given = false;
  float value = 0;
  ///@}

  /// No value: the call uses 1 / sqrt(head size).
  constexpr attention_scale() = default;
  /// The value as fp32: finite, and at most 1e38 in magnitude.
  template <class Number>
    requires(stdlib::is_arithmetic_v<Number>)
  GIWA_HOST_DEVICE constexpr attention_scale(Number scale) : given(true), value(static_cast<float>(scale)) {}

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
  /// Returns the factor for a head size.
  float of(int64 head_size) const {
    if (!given) return 1.0f / __builtin_sqrtf(static_cast<float>(head_size));
    return value < 0x1p-126f && value > -0x1p-126f ? 0.0f : value;
  }
#endif
};

/// Where the rows of each sequence are, if sequences differ in length: the member `sequences` of the options of every
/// call. Every array is read by the kernel when it runs.
///
/// Packed tensors of rank 3, (all rows, heads, head size): `{.q_offsets = q, .k_offsets = k, .count = n, .max_q = most}`.
/// Sequence i has the rows [offsets[i], offsets[i + 1]), or with lengths the first lengths[i] of them. Offsets must never
/// decrease. Tensors of rank 4, (batch, rows, heads, head size): `{.k_lengths = lengths}`, without offsets.
/// Sequence i has the first lengths[i] rows of element i of the batch.
///
/// attention_cached() and append_to_cache() take q_offsets, count and max_q: the keys of a cache have kv_cache::lengths.
/// Calls with another member are refused.
///
/// Rows that belong to no sequence do not affect the result, whatever they contain, and o and lse are not written
/// there. A length below 0 counts as 0, and a length beyond the rows that the offsets or the tensor give a sequence is
/// cut to them.
struct sequences {
  const int* q_offsets = nullptr;  ///< (count + 1), first rows of packed queries; null for rank 4
  const int* k_offsets = nullptr;  ///< (count + 1), first rows of packed keys; null for rank 4
  /// Number of packed sequences, at least 1 if q or k has rows; for rank 4 the batch of q, or 0.
  int64 count = 0;
  /// About the longest query length of packed sequences: a launch hint; correctness does not depend on it. few_queries
  /// requires it, and refuses more queries than it computes.
  int64 max_q = 0;
  const int* q_lengths =
      nullptr;  ///< (count), queries of each sequence, or null: all rows (seqused_q in FlashAttention)
  const int* k_lengths = nullptr;  ///< (count), keys that sequence i sees, or null: all rows (seqused_k, cache_seqlens)
  /// (count), or null: sequence i reads the keys and values of sequence k_batch_index[i] (cache_batch_idx). For rank 4
  /// that is an element of the batch of k and v, which may be larger or smaller than the batch of q. An index out of
  /// range is a sequence without keys. fp32 runs without tensor cores then.
  const int* k_batch_index = nullptr;
};

/// The options of attention_forward(): `{.scale = 0.09f, .lse = lse}`. Those of attention_cached() and
/// attention_backward() begin with the same members.
struct attention_options {
  attention_scale scale{};  ///< multiplies q k^T; 1 / sqrt(head size) where none is given
  /// Receives the natural logarithm of the sum of e^score over the keys that are kept, fp32, -inf for a row without
  /// keys. (batch, heads, queries), for packed sequences (1, heads, all queries). An empty view is not written.
  tensor_view<float, 3> lse{};
  /// (heads): the score of a virtual key of each head, which takes its share of the softmax and has the value 0. It
  /// counts in lse. (Xiao et al. 2023, "Efficient streaming language models with attention sinks".)
  tensor_view<const float, 1> sinks{};
  /// The diagonal of masks and score modifiers that leave theirs unset, and of user-defined ones. bottom_right if that
  /// is unset too.
  alignment align{};
  /// Scratch memory of at least workspace_bytes() bytes for this call alone until it is done, or empty. Aligned to 8
  /// bytes, for fp32 to 16. Its contents do not matter. With it, blocks of sm90 pull work tiles from a shared counter
  /// when work is uneven (under a mask, or with packed sequences), which does not change the bits; and fp32 runs on
  /// tensor cores.
  tensor_view<unsigned char, 1> workspace{};
  giwa::sequences sequences{};  ///< where the rows of each sequence are; required for tensors of rank 3
  attention_scales scales{};    ///< of q, k and v in e4m3
};

namespace detail {

GIWA_HOST_DEVICE constexpr bool is_given(const sequences& s) {
  return s.q_offsets != nullptr || s.k_offsets != nullptr || s.count != 0 || s.max_q != 0 || s.q_lengths != nullptr ||
         s.k_lengths != nullptr || s.k_batch_index != nullptr;
}
/// Whether some member of the options of a call differs from its default.
template <class Options>
GIWA_HOST_DEVICE constexpr bool has_values(const Options& o) {
  bool has = is_given(o.sequences);
  if constexpr (requires { o.scale; })
    has = has || o.scale.given || is_given(o.lse) || is_given(o.sinks) || o.align.is_set() || is_given(o.workspace);
  if constexpr (requires { o.scales; }) has = has || has_scales(o.scales);
  if constexpr (requires { o.prior; }) has = has || !o.prior.o.empty() || is_given(o.prior.lse);
  if constexpr (requires { o.dlse; })
    has = has || is_given(o.dlse) || is_given(o.dsinks) || o.accumulate || o.any_order || o.split_heads;
  if constexpr (requires { o.slots; })
    has = has || o.q.rank() != 0 || o.q_to.rank() != 0 || o.positions.given() || o.slots.given();
  return has;
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
