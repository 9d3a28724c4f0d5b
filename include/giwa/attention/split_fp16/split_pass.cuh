// SPDX-License-Identifier: MIT
// The pass before attention in fp32: splits numbers into hi and lo parts, and finds the heads that need the fallback.
#ifndef GIWA_ATTENTION_SPLIT_FP16_SPLIT_PASS_CUH
#define GIWA_ATTENTION_SPLIT_FP16_SPLIT_PASS_CUH

#include <giwa/arch/reduce_warp.cuh>
#include <giwa/attention/split_fp16/layout.hpp>
#include <giwa/attention/split_fp16/numbers.cuh>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Splits one group of rows of one head into hi and lo parts; one block does this. M is the largest magnitude of the
/// group. For v each column is first divided by a power of two near the column's largest number in the first 16 rows of
/// the sequence. The head is left to the fallback kernel if in one of its groups
/// - a number is not finite,
/// - M is not 0 and not in [2^-40, 2^25): a sum of exponents, with that of the scale, could be out of float's range, or
/// - a row, or a column of v, is not 0 and has no number of at least 2^-14 M.
///
/// Otherwise the error of a number x is at most max(2^-22 |x|, 2^-39 M), which is at most 2^-22 of the largest number
/// of its row, and of its column of v.
template <int Parts, int HeadSize, int Group>
struct split_op {
  static constexpr int pairs = ceil_div(HeadSize, 64), columns = 64 * pairs;  // pairs of columns per lane
  // The sizes that came closest to the speed of a copy: as many bytes in flight as registers hold (H200, 2026-11-22).
  static constexpr int max_threads = Group > 64 && pairs > 1 ? 512 : 256, warps = max_threads / 32;
  static constexpr int own_rows = ceil_div(Group, warps);  // per warp, all in registers
  static constexpr int floats = 2 * pairs * own_rows;
  static constexpr int threads_at_once = floats > 48 ? 256 : floats > 32 ? 512 : floats > 16 ? 768 : 1024;
  static constexpr int min_blocks = ceil_div(threads_at_once, max_threads);
  static constexpr int first_rows = 16;

  struct job {
    tensor_view<const float, 4> from;  // (sequence, row, head, head size)
    const int* offsets;                // of packed sequences, or null
    const int* lengths;                // of sequences, or null
    split_tensor to;
    int heads_per_flag;  // heads of q for each head of this tensor
    uint32 blocks;
  };
  struct params {
    job jobs[3];
    int batch;
    int* fallback;  // (batch, heads)
    int* any_fallback;
    int64 heads;  // of q
  };
  struct shared_storage {
    uint32 row[Group], column[columns];  // the bits of the largest magnitude
    int column_exponent[columns];
    uint32 all;
    bool fallback;
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    uint32 i = static_cast<uint32>(block.block_rank());
    const job* j = p.jobs;
    for (; i >= j->blocks; ++j) i -= j->blocks;
    const split_tensor& to = j->to;
    const uint32 slot = i / static_cast<uint32>(to.heads), head = i - slot * static_cast<uint32>(to.heads);
    const slot_rows at = rows_of_slot(*j, static_cast<int>(slot), p.batch);
    if (at.rows <= 0) return;
    const rows_of from(*j, at, static_cast<int>(head));
    const bool by_columns = to.columns != nullptr;

    for (int c = block.rank(); c < columns; c += max_threads) s.column[c] = 0, s.column_exponent[c] = 0;
    if (block.rank() == 0) s.all = 0, s.fallback = false;
    block.sync();
    float2 x[own_rows][pairs];
    // Two ifs, not an else: with an else ptxas reads x less well (76 instead of 87 TFLOP/s, head size 256, 512 tokens,
    // H200).
    if (!by_columns) from.read(block, at.inside, at.used, x);
    if (by_columns) {
      float2 of_first[ceil_div(first_rows, warps)][pairs];
      from.read(block, 0, at.length < first_rows ? at.length : first_rows, of_first);
      find_maxima<false>(block, of_first, s);
      from.read(block, at.inside, at.used, x);
      block.sync();
      for (int c = block.rank(); c < columns; c += max_threads) {
        const uint32 bits = s.column[c];
        s.column_exponent[c] =
            bits >= split_range::least && bits < split_range::most ? static_cast<int>(bits >> 23) - 127 : 0;
        s.column[c] = 0;
        if (at.inside == 0 && at.sequence < p.batch && c < from.width)
          to.column_exponents(at.sequence, head)[c] = s.column_exponent[c];
      }
      block.sync();
      GIWA_UNROLL
      for (int k = 0; k < pairs; ++k) {
        const int column = 64 * k + 2 * block.lane();
        const float of_x = power_of_two(-s.column_exponent[column]),
                    of_y = power_of_two(-s.column_exponent[column + 1]);
        GIWA_UNROLL
        for (int r = 0; r < own_rows; ++r) x[r][k].x *= of_x, x[r][k].y *= of_y;
      }
    }
    find_maxima<true>(block, x, s);
    block.sync();
    const split_range group{s.all};
    bool fallback = !group.contains_group();
    if (block.rank() < at.rows) fallback = fallback || group.is_beyond(s.row[block.rank()]);
    if (by_columns)
      for (int c = block.rank(); c < columns; c += max_threads) fallback = fallback || group.is_beyond(s.column[c]);
    if (fallback) s.fallback = true;
    block.sync();
    // No kernel uses the parts of a head that falls back, but tiles of other sequences may extend into them. They are
    // zeros, because they must be finite.
    const bool nothing = s.fallback || at.sequence == p.batch;
    const int exponent = nothing ? 0 : exponent_for(__uint_as_float(group.largest));
    if (block.rank() == 0) to.exponents[head * to.slots + slot] = exponent;
    if (s.fallback && at.sequence < p.batch) {
      for (int h = block.rank(); h < j->heads_per_flag; h += max_threads)
        p.fallback[at.sequence * p.heads + int64{head} * j->heads_per_flag + h] = split_tensors::by_pass;
      if (block.rank() == 0) *p.any_fallback = 1;
    }
    const float factor = power_of_two(-exponent);
    fp16* const parts = to.row(from.sequence, head, from.first + at.inside) + 2 * block.lane();
    GIWA_UNROLL
    for (int r = 0; r < own_rows; ++r) {
      const int row = block.warp() + r * warps;
      if (row >= at.rows) break;
      GIWA_UNROLL
      for (int k = 0; k < pairs; ++k) {
        if (64 * k + 2 * block.lane() >= (Parts == 2 ? to.lo : to.width)) continue;
        const float a = nothing ? 0.f : x[r][k].x * factor, b = nothing ? 0.f : x[r][k].y * factor;
        const split_fp16_pair two = split(a, b);
        fp16* const here = parts + int64{row} * to.width + 64 * k;
        *reinterpret_cast<__half2*>(here) = two.hi;
        if constexpr (Parts == 2) *reinterpret_cast<__half2*>(here + to.lo) = two.lo;
      }
    }
  }

 private:
  using numbers = split_numbers;

  /// The rows of a slot: rows [inside, inside + rows) of a sequence that is rows [first, first + length) of the tensor.
  /// The pass reads the first `used` of them. The others belong to no sequence, and zeros are written for them.
  struct slot_rows {
    int sequence, first, length, inside, rows, used;
  };
  GIWA_DEVICE static slot_rows rows_of_slot(const job& j, int slot, int batch) {
    const int group = j.to.group, all = static_cast<int>(j.to.length);
    slot_rows at{};
    if (j.offsets == nullptr) {
      at.sequence = slot / static_cast<int>(j.to.per_sequence);
      at.inside = (slot - at.sequence * static_cast<int>(j.to.per_sequence)) * group;
      at.length = at.sequence < batch ? all : 0;
    } else {
      // Finds the last sequence whose slots begin at or before this one. Number `batch` stands for the rows after all
      // sequences.
      const auto first_of = [&](int sequence) {
        const int row = sequence > batch ? all : j.offsets[sequence];
        return row < 0 ? 0 : row > all ? all : row;
      };
      for (int end = batch + 1; end - at.sequence > 1;) {
        const int middle = at.sequence + (end - at.sequence) / 2;
        (first_of(middle) / group + middle <= slot ? at.sequence : end) = middle;
      }
      at.first = first_of(at.sequence);
      at.length = first_of(at.sequence + 1) - at.first;
      at.inside = (slot - at.first / group - at.sequence) * group;
    }
    const int left = at.length - at.inside;
    at.rows = at.inside < 0 ? 0 : left < group ? left : group;
    at.used = at.rows;
    if (j.lengths != nullptr && at.sequence < batch) {
      const int given = j.lengths[at.sequence], length = given < 0 ? 0 : given < at.length ? given : at.length;
      at.length = length;
      const int left_of_own = length - at.inside;
      at.used = left_of_own < 0 ? 0 : left_of_own < at.rows ? left_of_own : at.rows;
    }
    return at;
  }

  /// The rows of one head of one sequence.
  struct rows_of {
    const float* at;
    int64 stride, sequence, first;  // sequence and first row in the tensor
    int width;
    bool aligned;

    GIWA_DEVICE rows_of(const job& j, const slot_rows& p, int head)
        : stride(j.from.stride(1)),
          sequence(j.offsets == nullptr ? p.sequence : 0),
          first(p.first),
          width(static_cast<int>(j.from.extent(3))) {
      at = j.from.data() + sequence * j.from.stride(0) + first * stride + head * j.from.stride(2);
      aligned = reinterpret_cast<uint64>(at) % 8 == 0 && stride % 2 == 0 && width % 2 == 0;
    }

    /// Reads this lane's pairs of columns of rows [begin, begin + count), every `warps`-th row from the warp's number
    /// on. Rows and columns past the end are read as 0.
    template <int Rows, class Block>
    GIWA_DEVICE void read(const Block& block, int begin, int count, float2 (&x)[Rows][pairs]) const {
      GIWA_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const int n = block.warp() + r * warps;
        numbers::read_row(block.lane(), at + (int64{begin} + n) * stride, n < count ? width : 0, aligned, x[r]);
      }
    }
  };

  /// Finds the largest magnitude of each column, and if `All` of each row and of the group.
  template <bool All, int Rows, class Block>
  GIWA_DEVICE static void find_maxima(const Block& block, const float2 (&x)[Rows][pairs], shared_storage& s) {
    uint32 all = 0;
    GIWA_UNROLL
    for (int k = 0; k < pairs; ++k) {
      uint32 of_x = 0, of_y = 0;
      GIWA_UNROLL
      for (int r = 0; r < Rows; ++r)
        of_x = numbers::larger_of(of_x, numbers::magnitude(x[r][k].x)),
        of_y = numbers::larger_of(of_y, numbers::magnitude(x[r][k].y));
      const int column = 64 * k + 2 * block.lane();
      if (of_x != 0) block.atomic_max(s.column[column], of_x);
      if (of_y != 0) block.atomic_max(s.column[column + 1], of_y);
      all = numbers::larger_of(all, numbers::larger_of(of_x, of_y));
    }
    if constexpr (All) {
      GIWA_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const uint32 of_row = arch::largest_of_warp(numbers::largest_of(x[r]));
        if (block.lane() == 0 && block.warp() + r * warps < Group) s.row[block.warp() + r * warps] = of_row;
      }
      all = arch::largest_of_warp(all);
      if (block.lane() == 0) block.atomic_max(s.all, all);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
