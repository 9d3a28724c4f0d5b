// SPDX-License-Identifier: MIT
// The layout of split fp32 tensors in a call's workspace, from which the tensor cores read them as fp16: forward, and gradients.
#ifndef GIWA_ATTENTION_SPLIT_FP16_LAYOUT_HPP
#define GIWA_ATTENTION_SPLIT_FP16_LAYOUT_HPP

#include <giwa/attention/problem/workspace.hpp>
#include <giwa/numeric/index.hpp>
#include <giwa/numeric/split.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// An fp32 tensor of attention as split fp16: (sequence, head, row, width) without gaps. A row holds the hi parts, and
/// from column `lo` on the lo parts. `group` rows of a sequence and head share an exponent, and so does each column of
/// v. A number is the sum of its parts times 2^exponent.
struct split_tensor {
  fp16* parts = nullptr;
  int* exponents = nullptr;  // (head, slot)
  int* columns = nullptr;    // exponents of columns: (batch, head, width), or null
  // length: of a sequence; packed sequences count as one. slots: of all sequences; per_sequence: 0 if sequences are
  // packed.
  int64 sequences = 0, length = 0, slots = 0, per_sequence = 0;
  int heads = 0, width = 0, lo = 0, group = 1;

  /// Returns the slot of a sequence's first group. `row` is the row of the tensor at which the sequence begins. The
  /// slots of its other groups follow. No two sequences share a slot.
  GIWA_HOST_DEVICE int64 slot(int row, int batch) const {
    return per_sequence == 0 ? row / group + batch : batch * per_sequence;
  }
  /// Returns the exponent of group n of a sequence that begins at row `first_row` of the tensor.
  GIWA_HOST_DEVICE int exponent(int head, int first_row, int batch, int n) const {
    return exponents[head * slots + slot(first_row, batch) + n];
  }
  GIWA_HOST_DEVICE fp16* row(int64 sequence, int64 head, int64 n) const {
    return parts + ((sequence * heads + head) * length + n) * width;
  }
  GIWA_HOST_DEVICE int* column_exponents(int64 batch, int64 head) const {
    return columns + (batch * heads + head) * width;
  }
  GIWA_HOST_DEVICE tensor_view<const fp16, 4> view() const { return {parts, {sequences, heads, length, width}}; }
};

/// The sizes that determine the workspace. rows: of all sequences together.
struct split_sizes {
  int64 batch, rows_q, rows_k, heads, kv_heads, head_size, head_size_v;
};

/// All split tensors of a call, after the counter in its workspace.
struct split_tensors {
  split_tensor q, k, v;
  int* fallback = nullptr;  // (batch, heads): not 0 if the head is left to the fallback kernel: one of the two below
  int* any_fallback = nullptr;  // not 0 if one of them is not 0

  /// The pass flags a head before the kernel, which then skips it. The Hopper kernel splits q itself and flags a head while it runs.
  static constexpr int by_pass = 1, by_kernel = 2;
  static constexpr int least_group = 16;

  /// Returns the width of a row of `parts` parts that wgmma and TMA accept. The lo parts begin at a slab of 64 columns.
  GIWA_HOST_DEVICE static constexpr int width_of(int64 head_size, int parts) {
    return static_cast<int>(parts == 1 ? round_up(head_size, 8) : round_up(head_size, 64) * parts);
  }
  /// Returns an upper bound of a head's groups, plus one for the rows after the last packed sequence.
  GIWA_HOST_DEVICE static constexpr int64 slots_of(int64 rows, int64 batch, int group) {
    return rows / group + batch + 1;
  }

  /// Takes all tensors from a workspace, or counts their bytes. `group_q` rows of q share an exponent, and `group_k`
  /// rows of k and of v. The caller sets the sizes of each tensor. Sizes must not be negative.
  GIWA_HOST_DEVICE static constexpr split_tensors lay_out(workspace_layout& to, const split_sizes& p, int parts,
                                                          int group_q, int group_k) {
    split_tensors in;
    static_cast<void>(to.take<work_counter>(1));
    const int64 flags = saturated_product(p.batch, p.heads);
    in.fallback =
        to.take<int>(flags == max_int64 ? flags : flags + 1);  // any_fallback is the last: one memset clears all
    if (in.fallback != nullptr) in.any_fallback = in.fallback + flags;
    const auto place = [&](split_tensor& t, int64 rows, int64 heads, int64 head_size, int group) {
      t.group = group;
      t.width = width_of(head_size, parts);
      t.lo = t.width / parts;
      t.exponents = to.take<int>(saturated_product(slots_of(rows, p.batch, group), heads));
      t.parts = to.take_lines<fp16>(saturated_product(saturated_product(rows, heads), t.width));
    };
    place(in.q, p.rows_q, p.heads, p.head_size, group_q);
    place(in.k, p.rows_k, p.kv_heads, p.head_size, group_k);
    place(in.v, p.rows_k, p.kv_heads, p.head_size_v, group_k);
    in.v.columns = to.take<int>(saturated_product(saturated_product(p.batch, p.kv_heads), in.v.width));
    return in;
  }

  /// Returns a number of bytes that suffices for every kernel, or the largest number if that overflows.
  GIWA_HOST_DEVICE static constexpr int64 bytes(const split_sizes& p) {
    workspace_layout counted;
    static_cast<void>(lay_out(counted, p, 2, least_group, least_group));
    return counted.bytes;
  }
};

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
