// SPDX-License-Identifier: MIT
// The options of attention_backward, and the workspace that it needs on a stream.
#ifndef GIWA_ATTENTION_BACKWARD_OPTIONS_HPP
#define GIWA_ATTENTION_BACKWARD_OPTIONS_HPP

#include <giwa/attention/backward/score_gradient.hpp>
#include <giwa/attention/problem/options.hpp>
#include <giwa/attention/problem/problem.hpp>
#include <giwa/attention/problem/workspace.hpp>

namespace giwa::inline GIWA_ABI {

/// The options of attention_backward(): `{.sinks = sinks, .dsinks = dsinks, .workspace = workspace}`. The scale, the
/// sinks and the alignment must be those of the forward call.
struct attention_backward_options {
  attention_scale scale{};  ///< multiplies q k^T; 1 / sqrt(head size) where none is given
  /// The gradient of the loss with respect to lse, shaped like lse, or empty: lse did not enter the loss.
  tensor_view<const float, 3> dlse{};
  tensor_view<const float, 1> sinks{};  ///< (heads), or empty; see attention_options
  tensor_view<float, 1> dsinks{};       ///< (heads): receives the gradient of the sinks; not computed where empty
  alignment align{};                    ///< of the diagonal; see attention_options
  /// Scratch memory for this call alone until it is done, 16-byte aligned: at least backward_workspace_bytes() bytes on
  /// a stream, not used on giwa::host. Its contents do not matter.
  tensor_view<unsigned char, 1> workspace{};
  /// Adds to dq, dk, dv and dsinks instead of overwriting them. dq, dk and dv must be fp32 then: sums in 16 bits would
  /// be rounded in each call.
  bool accumulate = false;
};

namespace detail {

/// What the backward pass needs of a row of q besides the tensors.
struct alignas(8) row_terms {
  float lse;    // natural logarithm; +inf where the row sees no key, so that e^(score - lse) is 0
  float delta;  // sum of dout * o over the row, minus dlse
};

/// The rows of q of all heads.
GIWA_HOST_DEVICE constexpr int64 rows_of_heads(const attention_problem& p) {
  return saturated_product(p.seq_q < 0 ? p.rows_q : saturated_product(p.batch, p.seq_q), p.heads);
}

/// The parts of the workspace.
struct backward_workspace {
  static constexpr int counter_count = 4;
  row_terms* terms;       // (batch, heads, rows of q)
  int* counters;          // of the work tiles that are claimed in each launch
  float* parameter_sums;  // (batch, heads, rows of q, parameters of the score modifier)

  GIWA_HOST_DEVICE static constexpr backward_workspace take(workspace_layout& layout, const attention_problem& p,
                                                            int64 parameters) {
    const int64 rows = rows_of_heads(p);
    row_terms* const terms_of_rows = layout.take<row_terms>(rows);
    int* const counters_of_launches = layout.take<int>(counter_count);
    return {terms_of_rows, counters_of_launches,
            parameters == 0 ? nullptr : layout.take<float>(saturated_product(rows, parameters))};
  }
};

}  // namespace detail

/// Returns the bytes of workspace that attention_backward needs on a stream: 8 for each row and head of q, rounded up to a
/// multiple of 16, and 16. The largest int64 where no 64-bit number holds the size, 0 for sizes that supports() refuses. Only
/// the sizes of q count.
GIWA_HOST_DEVICE constexpr int64 backward_workspace_bytes(const attention_problem& p) {
  if (!detail::check_sizes(p, 0).ok()) return 0;
  detail::workspace_layout layout;
  detail::backward_workspace::take(layout, p, 0);
  return layout.bytes;
}
/// The same for a call with this score modifier. Each of its parameters takes 4 bytes more for each row and head of q.
template <score_modifier Score>
GIWA_HOST_DEVICE constexpr int64 backward_workspace_bytes(const attention_problem& p, const Score&) {
  if (!detail::check_sizes(p, 0).ok()) return 0;
  detail::workspace_layout layout;
  detail::backward_workspace::take(layout, p, detail::gradient_of<Score>::parameters);
  return layout.bytes;
}

}  // namespace giwa::inline GIWA_ABI

#endif
