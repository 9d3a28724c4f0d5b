// SPDX-License-Identifier: MIT
// The layout of a workspace: one function both counts its bytes and carves its parts.
#ifndef GIWA_ATTENTION_PROBLEM_WORKSPACE_HPP
#define GIWA_ATTENTION_PROBLEM_WORKSPACE_HPP

#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// a b of two counts, or the largest number where that overflows; 0 for negative counts.
GIWA_HOST_DEVICE constexpr int64 saturated_product(int64 a, int64 b) {
  return a <= 0 || b <= 0 ? 0 : product_overflows(a, b) ? max_int64 : a * b;
}

/// Hands out parts of a caller's memory one after the other, or without memory counts `bytes` only: the
/// size that the workspace needs, or the largest number where that overflows.
struct workspace_layout {
  static constexpr int64 alignment = 16;
  unsigned char* memory = nullptr;
  int64 bytes = 0;

  /// `count` elements, aligned to 16 bytes; null while counting.
  template <class T>
  GIWA_HOST_DEVICE constexpr T* take(int64 count) {
    const int64 begin = bytes > max_int64 - alignment ? max_int64 : round_up(bytes, alignment);
    const int64 size = saturated_product(count, int64{sizeof(T)});
    bytes = begin > max_int64 - size ? max_int64 : begin + size;
    return memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + begin);
  }
};

/// How many work tiles of a launch blocks have claimed. What is there before the first launch does not matter, and each launch leaves a
/// count of 0 to the next one (forward/tile_scheduler_sm90.cuh).
struct work_counter {
  unsigned long long state;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
