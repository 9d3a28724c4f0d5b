// SPDX-License-Identifier: MIT
// Where the pieces of fp32 tensors lie in a call's workspace, from which tensor cores multiply them.
#ifndef GIWA_ATTENTION_SPLIT_FP16_LAYOUT_HPP
#define GIWA_ATTENTION_SPLIT_FP16_LAYOUT_HPP

#include <giwa/numeric/integer.hpp>
#include <giwa/numeric/split.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A tensor of attention in fp16 pieces: (sequence, head, row, width) without gaps, a row its high pieces and, from `low` on, the
/// low ones. `group` rows of a sequence and a head have one exponent, v's columns have theirs besides: a number is a piece times
/// 2^exponent.
struct piece_tensor {
  fp16* pieces = nullptr;
  int* exponents = nullptr;  // (head, slot)
  int* columns = nullptr;    // (batch, head, width), or null
  // length: of a sequence; packed ones are one here. slots: of all; per_sequence: 0 where they are packed.
  int64 sequences = 0, length = 0, slots = 0, per_sequence = 0;
  int heads = 0, width = 0, low = 0, group = 1;

  /// Of the first group of a sequence, whose first row is number `row` in the tensor's; the others follow. No two sequences share
  /// one.
  GIWA_HOST_DEVICE int64 slot(int row, int batch) const {
    return per_sequence == 0 ? row / group + batch : batch * per_sequence;
  }
  /// Of group n of a head's rows, before which there are `first_row` of others.
  GIWA_HOST_DEVICE int exponent(int head, int first_row, int batch, int n) const {
    return exponents[head * slots + slot(first_row, batch) + n];
  }
  GIWA_HOST_DEVICE fp16* row(int64 sequence, int64 head, int64 n) const {
    return pieces + ((sequence * heads + head) * length + n) * width;
  }
  GIWA_HOST_DEVICE int* column_exponents(int64 batch, int64 head) const {
    return columns + (batch * heads + head) * width;
  }
  GIWA_HOST_DEVICE tensor_view<const fp16, 4> view() const { return {pieces, {sequences, heads, length, width}}; }
};

/// All that a call has in its workspace, behind the counter.
struct attention_pieces {
  piece_tensor q, k, v;
  int* apart = nullptr;      // (batch, heads): not 0 where pieces do not reach, and the kernel without them answers
  int* any_apart = nullptr;  // not 0 where one of them is not

  static constexpr int64 alignment = 16, first = 16;
  static constexpr int least_group = 16;

  /// A row of `count` pieces that wgmma and TMA take: low ones begin where a slab of 64 does.
  GIWA_HOST_DEVICE static constexpr int row_of(int64 head_size, int count) {
    return static_cast<int>(count == 1 ? round_up(head_size, 8) : round_up(head_size, 64) * count);
  }
  /// Groups of a head, and one more for what lies behind packed sequences.
  GIWA_HOST_DEVICE static constexpr int64 slots_of(int64 rows, int64 batch, int group) {
    return rows / group + batch + 1;
  }

  /// Bytes of the workspace, or the largest number where nobody has so many. `rows`: of all sequences together.
  GIWA_HOST_DEVICE static constexpr int64 bytes(int64 batch, int64 rows_q, int64 rows_k, int64 heads, int64 kv_heads,
                                                int64 head_size, int64 head_size_v) {
    const auto sum = [](int64 a, int64 b) { return a > max_int64 - b ? max_int64 : a + b; };
    const auto product = [](int64 a, int64 b) { return product_overflows(a, b) ? max_int64 : a * b; };
    const auto tensor = [&](int64 rows, int64 h, int64 size) {
      const int64 of_rows = product(product(rows, h), 2 * row_of(size, 2));
      const int64 of_slots = product(product(slots_of(rows, batch, least_group), h), 4);
      return sum(sum(of_rows, of_slots), 2 * alignment);
    };
    const int64 all = sum(tensor(rows_q, heads, head_size),
                          sum(tensor(rows_k, kv_heads, head_size), tensor(rows_k, kv_heads, head_size_v)));
    const int64 of_columns = product(product(batch, kv_heads), 4 * row_of(head_size_v, 2));
    return sum(sum(all, of_columns), sum(first + 3 * alignment, product(product(batch, heads), 4)));
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
