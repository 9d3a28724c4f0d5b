// SPDX-License-Identifier: MIT
// Checks of one attention tensor, or of a pair: strides, sizes, memory that two share.
#ifndef GIWA_ATTENTION_PROBLEM_VIEW_CHECKS_HPP
#define GIWA_ATTENTION_PROBLEM_VIEW_CHECKS_HPP

#include <giwa/attention/problem/problem.hpp>
#include <giwa/numeric/overlap.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A tensor (batch, length, heads, head size) whose last stride is 1 unless the head size is.
template <class T>
GIWA_HOST_DEVICE constexpr status check_rows(const tensor_view<T, 4>& v, const char* argument) {
  if (const status s = v.check(argument); !s.ok()) return s;
  if (v.extent(3) > 1 && v.size() > 0 && v.stride(3) != 1)
    return status::invalid(argument, "the last dimension must be contiguous (stride 1)", bound::exactly, 1,
                           v.stride(3));
  if (v.extent(1) > attention_limits::length)
    return status::invalid(argument, "the tensor has too many rows", bound::at_most, attention_limits::length,
                           v.extent(1));
  return {};
}

/// Whether dimension `d` of `v` has the size that it has in `like`. `message` names both tensors.
template <class First, class Second, int Rank>
GIWA_HOST_DEVICE constexpr status check_same(const tensor_view<First, Rank>& v, const tensor_view<Second, Rank>& like,
                                             int d, const char* argument, const char* message) {
  if (v.extent(d) == like.extent(d)) return {};
  return status::invalid(argument, message, bound::exactly, like.extent(d), v.extent(d));
}

/// Whether two views may share memory: exactly where sizes and strides are alike, else by the range of addresses.
template <class First, int RankOfA, class Second, int RankOfB>
GIWA_HOST_DEVICE bool may_share(const tensor_view<First, RankOfA>& a, const tensor_view<Second, RankOfB>& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const byte_range x = range_of(a), y = range_of(b);
  if (x.last <= y.first || y.last <= x.first) return false;
  if constexpr (RankOfA == RankOfB)
    if (a.extents() == b.extents()) return overlap(a, b);
  return true;
}
/// Fails where `a` and `b` may share memory. `message` names both.
template <class First, int RankOfA, class Second, int RankOfB>
GIWA_HOST_DEVICE status check_apart(const tensor_view<First, RankOfA>& a, const tensor_view<Second, RankOfB>& b,
                                    const char* argument, const char* message) {
  return may_share(a, b) ? status::invalid(argument, message) : status{};
}

/// Whether rows of a view begin at multiples of `bytes`, and are multiples of it.
template <class T, int Rank>
GIWA_HOST_DEVICE bool rows_are_aligned(const tensor_view<T, Rank>& v, int64 bytes) {
  const int64 element = sizeof(T);
  bool aligned =
      reinterpret_cast<uint64>(v.data()) % static_cast<uint64>(bytes) == 0 && v.extent(Rank - 1) * element % bytes == 0;
  for (int d = 0; d + 1 < Rank; ++d) aligned = aligned && (v.extent(d) == 1 || v.stride(d) * element % bytes == 0);
  return aligned;
}

/// Numbers that the device reads, one for each sequence or one more; null is none.
GIWA_HOST_DEVICE constexpr tensor_view<const int, 1> view_of(const int* numbers, int64 count) {
  return numbers == nullptr ? tensor_view<const int, 1>() : tensor_view<const int, 1>(numbers, {count});
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
