// SPDX-License-Identifier: MIT
// The gradients of attention, and how the sums of dq lie in the workspace, with which the tiles of the kernels must agree.
#ifndef GIWA_ATTENTION_PROBLEM_GRADIENT_HPP
#define GIWA_ATTENTION_PROBLEM_GRADIENT_HPP

#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The gradient that a kernel computes. of_all_long: all of them for long sequences, by tiles of long_rows queries (dq_parts).
enum class gradient : int { of_q, of_k, of_v, of_k_and_v, of_all, of_all_long };
GIWA_HOST_DEVICE constexpr bool is_of_all(gradient of) { return of == gradient::of_all || of == gradient::of_all_long; }

/// dq as fp32 sums in the workspace, for the kernel that computes all gradients together. A tile has 128 queries where no
/// head size is above 64, otherwise 64, and consists of parts of (64, 64) in the order of a warpgroup's accumulator: two
/// of 64 queries each, or two or more of 64 columns. The kernel for long sequences has tiles of long_rows queries, and parts of
/// (64, long_rows): columns, queries.
struct dq_parts {
  static constexpr int floats = 64 * 64, long_rows = 80, long_floats = 64 * long_rows;
  GIWA_HOST_DEVICE static constexpr int rows_of_tile(int64 head_size, int64 head_size_v) {
    return head_size <= 64 && head_size_v <= 64 ? 128 : 64;
  }
  GIWA_HOST_DEVICE static constexpr int of_tile(int64 head_size) {
    return head_size <= 128 ? 2 : static_cast<int>(ceil_div(head_size, int64{64}));
  }
  /// The columns of dq that part `index` of a tile has, which are its first ones.
  GIWA_HOST_DEVICE static constexpr int columns_of(int head_size, int head_size_v, int index) {
    const int left = head_size - (rows_of_tile(head_size, head_size_v) == 128 ? 0 : 64 * index);
    return left < 64 ? left : 64;
  }
  /// Where registers [4 i, 4 i + 4) of a thread are, which are eight columns of all threads: a warp has 512 consecutive bytes.
  GIWA_HOST_DEVICE static constexpr int offset(int thread, int i) { return (i * 128 + thread) * 4; }
  /// The same of parts of long_rows queries: eight queries of all threads of a warp.
  GIWA_HOST_DEVICE static constexpr int long_offset(int thread, int i) {
    return ((thread / 32 * (long_rows / 8) + i) * 32 + thread % 32) * 4;
  }
};

/// The keys of a tile whose dk and dv blocks share (shared_key_sums).
inline constexpr int shared_key_rows = 128;

}  // namespace giwa::inline GIWA_ABI::detail

#endif
