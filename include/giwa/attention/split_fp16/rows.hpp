// SPDX-License-Identifier: MIT
// The layout of fp32 tensors as split fp16 in which each row has a separate power of two.
#ifndef GIWA_ATTENTION_SPLIT_FP16_ROWS_HPP
#define GIWA_ATTENTION_SPLIT_FP16_ROWS_HPP

#include <giwa/attention/problem/workspace.hpp>
#include <giwa/numeric/index.hpp>
#include <giwa/numeric/split.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// An fp32 tensor of attention_backward as split fp16: (sequence, head, row, width) without gaps. A row has the hi parts of its
/// numbers, and from column width / 2 on the lo parts. A number is the sum of its parts times the factor of its row. A row with
/// NaN or infinity consists of zeros, and its factor is NaN. Gradients of one head may differ by more than fp16 can hold, which
/// one power of two for many rows could not represent.
struct split_rows {
  static constexpr int parts_per_number = 2;
  fp16* parts = nullptr;
  float* factors = nullptr;  // (sequence, head, row)
  int64 sequences = 0, heads = 0, length = 0;
  int width = 0;

  /// Takes the tensor from a workspace, or counts its bytes. The sizes must not be negative.
  GIWA_HOST_DEVICE static constexpr split_rows take(workspace_layout& layout, int64 sequences, int64 heads,
                                                    int64 length, int64 head_size) {
    split_rows to;
    to.sequences = sequences, to.heads = heads, to.length = length;
    to.width = static_cast<int>(round_up(head_size, int64{64}) * parts_per_number);
    const int64 rows = saturated_product(saturated_product(sequences, heads), length);
    to.parts = layout.take_lines<fp16>(saturated_product(rows, to.width));
    to.factors = layout.take<float>(rows);
    return to;
  }
  GIWA_HOST_DEVICE int64 row(int64 sequence, int64 head, int64 n) const {
    return (sequence * heads + head) * length + n;
  }
  GIWA_HOST_DEVICE tensor_view<const fp16, 4> view() const { return {parts, {sequences, heads, length, width}}; }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
