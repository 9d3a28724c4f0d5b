// SPDX-License-Identifier: MIT
// The pass before the gradients of fp32 attention: splits rows into hi and lo parts, each row by its own power of two.
#ifndef GIWA_ATTENTION_SPLIT_FP16_ROWS_PASS_CUH
#define GIWA_ATTENTION_SPLIT_FP16_ROWS_PASS_CUH

#include <giwa/arch/reduce_warp.cuh>
#include <giwa/attention/split_fp16/layout.hpp>
#include <giwa/attention/split_fp16/numbers.cuh>
#include <giwa/grid/op.hpp>
#include <giwa/grid/reduce.hpp>
#include <giwa/numeric/constants.hpp>
#include <giwa/numeric/fast_division.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Splits the rows of up to four tensors (sequence, row, head, head size); a warp takes a row, and has four of them in flight.
/// The largest number of a row comes to [2^14, 2^15), so a number is off by at most 2^-22 of itself, or 2^-39 of the largest.
/// Of rows below 2^-98 digits are lost.
template <int HeadSize>
struct split_rows_op {
  static constexpr int pairs = ceil_div(HeadSize, 64);  // of columns of a lane
  static constexpr int max_threads = 256, min_blocks = 4, at_once = 4, rows_of_block = max_threads / 32 * at_once;
  // Factors of two tensors, which are multiplied, are a normal number together.
  static constexpr int least_exponent = -95;
  struct job {
    tensor_view<const float, 4> from;  // (sequence, row, head, head size)
    split_rows to;
    fast_divisor heads, length;
    int64 rows = 0, first_block = 0;
  };
  struct params {
    job jobs[4];
  };
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage&) const {
    const auto block = with_threads<max_threads>(plain_block);
    int n = 0;
    while (n < 3 && block.block_rank() >= p.jobs[n + 1].first_block) ++n;
    const job& j = p.jobs[n];
    const int64 first = (block.block_rank() - j.first_block) * rows_of_block + block.warp() * at_once;
    const bool aligned = (j.from.stride(0) | j.from.stride(1) | j.from.stride(2) | j.from.extent(3)) % 2 == 0 &&
                         reinterpret_cast<uint64>(j.from.data()) % 8 == 0;
    float2 x[at_once][pairs];
    int64 target[at_once];
    GIWA_UNROLL
    for (int r = 0; r < at_once; ++r) {
      const int64 i = first + r < j.rows ? first + r : j.rows - 1;
      const int64 row = i / j.heads, sequence = row / j.length, head = i - row * j.to.heads;
      target[r] = j.to.row(sequence, head, row - sequence * j.to.length);
      split_numbers::read_row(
          block.lane(),
          j.from.data() + (sequence * j.from.stride(0) + (row - sequence * j.to.length) * j.from.stride(1) +
                           head * j.from.stride(2)),
          static_cast<int>(j.from.extent(3)), aligned, x[r]);
    }
    GIWA_UNROLL
    for (int r = 0; r < at_once; ++r)
      if (first + r < j.rows) write(block, x[r], j.to, target[r]);
  }

 private:
  template <class Block>
  GIWA_DEVICE static void write(const Block& block, const float2 (&x)[pairs], const split_rows& to, int64 row) {
    const uint32 largest = arch::largest_of_warp(split_numbers::largest_of(x));
    const bool finite = largest < 0x7f800000u;
    const int wanted = exponent_for(finite ? __uint_as_float(largest) : 0.f),
              exponent = wanted < least_exponent ? least_exponent : wanted;
    const float factor = power_of_two(-exponent);
    if (block.lane() == 0) to.factors[row] = finite ? power_of_two(exponent) : nan_of<float>;
    fp16* const parts = to.parts + row * to.width + 2 * block.lane();
    GIWA_UNROLL
    for (int k = 0; k < pairs; ++k) {
      if (64 * k >= to.width / 2) break;  // another tensor has wider rows
      const split_fp16_pair two = split(finite ? x[k].x * factor : 0.f, finite ? x[k].y * factor : 0.f);
      *reinterpret_cast<__half2*>(parts + 64 * k) = two.hi;
      *reinterpret_cast<__half2*>(parts + 64 * k + to.width / 2) = two.lo;
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
