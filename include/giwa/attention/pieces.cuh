// SPDX-License-Identifier: MIT
// The pass before attention in fp32: numbers into pieces, and which heads have numbers that pieces do not reach.
#ifndef GIWA_ATTENTION_PIECES_CUH
#define GIWA_ATTENTION_PIECES_CUH

#include <giwa/attention/pieces.hpp>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A block makes the pieces of one group of rows of one head. What pieces have to reach, or the head is set apart:
///
/// A number x of a group whose largest is M < 2^e is 2^e (high + low) to max(2^-22 |x|, 2^-39 M). So all is finite, M is 0 or
/// from 2^-48 to 2^25, where no product of exponents leaves float's range, and every row, and every column of v, is 0 or has a
/// number of at least 2^-14 M: to each row's, and to each column of v's, largest number the error is 2^-22 then.
template <int Pieces>
struct piece_op {
  static constexpr int max_threads = 256, min_blocks = 4, warps = max_threads / 32;
  static constexpr int pairs = 4;  // of columns of a thread: 256 columns in all
  static constexpr int reach = 14, least_exponent = -48, most_exponent = 25;
  static constexpr int most_rows = 256;  // of a group

  struct job {
    tensor_view<const float, 4> from;  // (sequence, row, head, head size)
    const int* offsets;                // of packed sequences, or null
    piece_tensor to;
    int heads_per_flag;  // heads of queries for each of this tensor's
    bool columns_too;    // v
    int64 blocks;
  };
  struct params {
    job jobs[3];
    int64 batch;
    int* apart;
    int64 heads;  // of queries
  };
  struct shared_storage {
    uint32 row[most_rows], column[2 * pairs * 32];  // the bits of the largest magnitude
    uint32 all;
    bool apart;
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    int64 i = block.block_rank();
    const job* j = p.jobs;
    for (; i >= j->blocks; ++j) i -= j->blocks;
    const piece_tensor& to = j->to;
    const int head = static_cast<int>(i % to.heads);
    const int64 slot = i / to.heads;
    const auto clamp = [](int64 x, int64 most) { return x < 0 ? 0 : x > most ? most : x; };
    // Number p.batch is what packed tensors have behind the last sequence.
    const auto row_of = [&](int64 sequence) {
      if (j->offsets == nullptr) return sequence * to.length;
      return sequence > p.batch ? to.length : clamp(j->offsets[sequence], to.length);
    };
    int64 batch = 0;  // the last sequence whose slots begin at this one or before
    for (int64 end = p.batch + 1; end - batch > 1;) {
      const int64 middle = batch + (end - batch) / 2;
      (to.slot(row_of(middle), middle) <= slot ? batch : end) = middle;
    }
    const int64 first = row_of(batch), inside = (slot - to.slot(first, batch)) * to.group;
    const int64 left = row_of(batch + 1) - first - inside;
    if (left <= 0 || inside < 0 || (j->offsets == nullptr && batch == p.batch)) return;
    const int rows = static_cast<int>(left < to.group ? left : to.group);
    const int64 sequence = j->offsets == nullptr ? batch : 0;
    const int64 row = (j->offsets == nullptr ? 0 : first) + inside;  // in its sequence of the tensor
    const int width = static_cast<int>(j->from.extent(3));
    const float* const from =
        j->from.data() + sequence * j->from.stride(0) + row * j->from.stride(1) + head * j->from.stride(2);
    const int64 stride = j->from.stride(1);

    for (int c = block.rank(); c < 2 * pairs * 32; c += max_threads) s.column[c] = 0;
    if (block.rank() == 0) s.all = 0, s.apart = false;
    block.sync();
    uint32 of_columns[2 * pairs] = {};
    for (int r = block.warp(); r < rows; r += warps) {
      uint32 of_row = 0;
      for_each_pair(block.lane(), width, from + r * stride, [&](int pair, int, float x, float y) {
        const uint32 a = magnitude(x), b = magnitude(y);
        of_columns[2 * pair] = larger_of(of_columns[2 * pair], a);
        of_columns[2 * pair + 1] = larger_of(of_columns[2 * pair + 1], b);
        of_row = larger_of(of_row, larger_of(a, b));
      });
      GIWA_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) of_row = larger_of(of_row, block.shuffle_xor(of_row, mask));
      if (block.lane() == 0) s.row[r] = of_row;
    }
    GIWA_UNROLL
    for (int c = 0; c < 2 * pairs; ++c) {
      const int column = 2 * (c / 2 * 32 + block.lane()) + c % 2;
      if (of_columns[c] != 0) block.atomic_max(s.column[column], of_columns[c]), block.atomic_max(s.all, of_columns[c]);
    }
    block.sync();
    const uint32 all = s.all;
    const float largest = __uint_as_float(all);
    constexpr uint32 least = static_cast<uint32>(127 + least_exponent) << 23,
                     most = static_cast<uint32>(127 + most_exponent) << 23;
    bool apart = all != 0 && !(all >= least && all < most);  // infinity and NaN lie beyond
    const uint32 reached = all < least ? 0 : all - (static_cast<uint32>(reach) << 23);
    const auto is_beyond = [&](uint32 x) { return x != 0 && x < reached; };
    if (block.rank() < rows) apart = apart || is_beyond(s.row[block.rank()]);
    if (j->columns_too && block.rank() < 2 * pairs * 32) apart = apart || is_beyond(s.column[block.rank()]);
    if (apart) s.apart = true;
    block.sync();
    // What is set apart is not used, but other sequences' tiles reach into it: nothing of it may be infinite.
    const bool nothing = s.apart || batch == p.batch;
    const int exponent = nothing ? 0 : exponent_for(largest);
    const float factor = nothing ? 0.f : power_of_two(-exponent);
    if (block.rank() == 0) to.exponents[head * to.slots + slot] = exponent;
    if (s.apart && batch < p.batch)
      for (int h = block.rank(); h < j->heads_per_flag; h += max_threads)
        p.apart[batch * p.heads + int64{head} * j->heads_per_flag + h] = 1;
    fp16* const pieces = to.pieces + ((sequence * to.heads + head) * to.length + row) * to.width;
    for (int r = block.warp(); r < rows; r += warps)
      for_each_pair(block.lane(), width, from + r * stride, [&](int, int column, float x, float y) {
        const float a = nothing ? 0.f : x * factor, b = nothing ? 0.f : y * factor;
        fp16* const at = pieces + r * to.width + column;
        const __half2 high = pack<fp16>(a, b);
        *reinterpret_cast<__half2*>(at) = high;
        if constexpr (Pieces == 2)
          *reinterpret_cast<__half2*>(at + to.low) = pack<fp16>(a - __low2float(high), b - __high2float(high));
      });
    // The columns up to the next slab are multiplied too.
    const int end = Pieces == 2 ? to.low : to.width;
    for (int r = block.warp(); r < rows; r += warps)
      for (int column = round_up(width, 2) + block.lane(); column < end; column += 32) {
        fp16* const at = pieces + r * to.width + column;
        at[0] = __float2half_rn(0.f);
        if constexpr (Pieces == 2) at[to.low] = __float2half_rn(0.f);
      }
  }

 private:
  GIWA_DEVICE static uint32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
  GIWA_DEVICE static uint32 larger_of(uint32 a, uint32 b) { return a > b ? a : b; }

  /// Calls f(number of the pair, its first column, both elements) for this lane's pairs of a row; 0 behind the end.
  template <class F>
  GIWA_DEVICE static void for_each_pair(int lane, int width, const float* row, const F& f) {
    const bool whole = reinterpret_cast<uint64>(row) % 8 == 0;
    GIWA_UNROLL
    for (int i = 0; i < pairs; ++i) {
      const int column = 2 * (i * 32 + lane);
      if (column >= width) return;
      const bool both = column + 1 < width;
      float2 two;
      if (whole && both)
        two = *reinterpret_cast<const float2*>(row + column);
      else
        two = {row[column], both ? row[column + 1] : 0.f};
      f(i, column, two.x, two.y);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
