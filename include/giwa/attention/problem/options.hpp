// SPDX-License-Identifier: MIT
// What the caller of attention chooses: the options, and where packed sequences begin.
#ifndef GIWA_ATTENTION_PROBLEM_OPTIONS_HPP
#define GIWA_ATTENTION_PROBLEM_OPTIONS_HPP

#include <giwa/attention/problem/coordinate.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI {

/// The factor of the scores. Without a value it is 1 / sqrt(head size). A value may be 0 or negative.
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
};

/// The options of attention_forward(): `{.scale = 0.09f, .lse = lse}`.
struct attention_options {
  attention_scale scale{};  ///< multiplies q k^T; 1 / sqrt(head size) where none is given
  /// Receives the natural logarithm of the sum of e^score over the keys that are kept, fp32, -inf for a row without keys.
  /// (batch, heads, queries), for packed sequences (1, heads, all queries). An empty view is not written.
  tensor_view<float, 3> lse{};
  /// (heads): the score of a virtual key of each head, which takes its share of the softmax and has the value 0. It counts in lse.
  /// (Xiao et al. 2023, "Efficient streaming language models with attention sinks".)
  tensor_view<const float, 1> sinks{};
  /// The diagonal of masks and score modifiers that leave theirs unset, and of user-defined ones. bottom_right if nobody sets one.
  alignment align{};
  /// Scratch memory of at least workspace_bytes() bytes for this call alone until it is done, or empty. Aligned to 4 bytes, for
  /// fp32 to 16. Its contents do not matter. With it, blocks of sm90 pull work tiles from a shared counter when work is uneven
  /// (under a mask, or with packed sequences), which does not change the bits; and fp32 runs on tensor cores.
  tensor_view<unsigned char, 1> workspace{};
};

/// Sequences of different lengths packed one after the other: sequence i has the rows [offsets[i], offsets[i + 1]) of the
/// packed tensors. The kernel reads the offsets, which must never decrease.
struct sequences {
  const int* q_offsets;  ///< (count + 1), readable by the kernel
  const int* k_offsets;  ///< (count + 1), readable by the kernel
  int64 count;           ///< number of sequences
  int64 max_q;           ///< about the longest query length: a launch hint; correctness does not depend on it
};

}  // namespace giwa::inline GIWA_ABI

#endif
