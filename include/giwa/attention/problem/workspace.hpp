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
  static constexpr int64 alignment = 16, line = 128;
  unsigned char* memory = nullptr;
  int64 bytes = 0;

  /// `count` elements, aligned to 16 bytes; null while counting.
  template <class T>
  GIWA_HOST_DEVICE constexpr T* take(int64 count) {
    unsigned char* const begin = take_bytes(saturated_product(count, int64{sizeof(T)}));
    return begin == nullptr ? nullptr : reinterpret_cast<T*>(begin);
  }
  /// The same from the next multiple of 128 bytes of the address space on, wherever the caller's memory begins: a bulk copy or
  /// reduction of 128 bytes then touches one line of the L2 cache instead of two. Takes 112 bytes more, or nothing.
  template <class T>
  GIWA_HOST_DEVICE constexpr T* take_lines(int64 count) {
    const int64 size = saturated_product(count, int64{sizeof(T)}), more = size == 0 ? 0 : line - alignment;
    unsigned char* const begin = take_bytes(size > max_int64 - more ? max_int64 : size + more);
    return begin == nullptr
               ? nullptr
               : reinterpret_cast<T*>(begin + (-reinterpret_cast<uint64>(begin) & static_cast<uint64>(line - 1)));
  }

 private:
  GIWA_HOST_DEVICE constexpr unsigned char* take_bytes(int64 size) {
    const int64 begin = bytes > max_int64 - alignment ? max_int64 : round_up(bytes, alignment);
    bytes = begin > max_int64 - size ? max_int64 : begin + size;
    return memory == nullptr ? nullptr : memory + begin;
  }
};

/// How many work tiles of a launch blocks have claimed (kernels/sm90/forward_scheduler_sm90.cuh). Nothing sets it to 0 before a launch: the last
/// claim of a launch sets it to 0 for the next one. So the word must tell whether it is a count, or something else that the memory held.
///
/// Count n is mark + n step (mod 2^64). A word is a count if its n is at most largest_count: one of 2^44. `step` spreads the counts over
/// all 64 bits, because whoever gets the memory next may overwrite a part of the word: a bool or a 16-bit number changes its
/// lowest bytes only, and must not turn a count into another one. Two counts never agree in their upper 3 bytes, nor in their
/// lower 3. From the first byte in which a count of 0 differs from another count to the last there are at least 6 bytes, so
/// overwriting 5 consecutive ones of what a launch left gives no other count.
struct work_counter {
  using word = unsigned long long;
  static constexpr word largest_count = word{1} << 20;
  // A count of 0, which a launch leaves, ends in a NaN of fp16, bf16, fp32 and fp64: no array of finite numbers holds it.
  static constexpr word mark = 0xfffd'6a5b'c7e1'd3b5, step = 0x9e37'79b9'7f4a'7c15,
                        inverse_of_step = 0xf1de'83e1'9937'733d;
  static_assert(step * inverse_of_step == 1);
  word state;

  GIWA_HOST_DEVICE static constexpr word state_of(word count) { return mark + count * step; }
  GIWA_HOST_DEVICE static constexpr word count_of(word state) { return (state - mark) * inverse_of_step; }
  GIWA_HOST_DEVICE static constexpr bool is_count(word state) { return count_of(state) <= largest_count; }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
