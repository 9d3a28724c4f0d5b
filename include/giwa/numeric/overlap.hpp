// SPDX-License-Identifier: MIT
// Whether two views share memory, or two elements of one view do: exact for equal strides and nested dimensions.
#ifndef GIWA_NUMERIC_OVERLAP_HPP
#define GIWA_NUMERIC_OVERLAP_HPP

#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Returns whether a sum of i_d * step_d over the dimensions from `from` on, |i_d| < extent_d, comes within `width` of
/// `distance`, all in bytes. The steps are sorted, the largest first, and the view passes check(). The answer is exact
/// where each step is larger than half of what the dimensions after it reach, as in every array whose elements do not
/// overlap; it is true elsewhere, and for steps and sizes above 2^61, which no memory has.
template <int Rank>
GIWA_HOST_DEVICE constexpr bool steps_meet(const index<Rank>& extent, const index<Rank>& step, int from, int64 distance,
                                           int64 width) {
  if (from == Rank) return -width < distance && distance < width;
  int64 reach = width - 1;  // of the dimensions after this one
  for (int d = from + 1; d < Rank; ++d) reach += (extent[d] - 1) * step[d];
  if (step[from] == 0) return steps_meet(extent, step, from + 1, distance, width);
  constexpr int64 most = max_int64 / 4;  // sums of three such numbers fit
  if (step[from] > most || extent[from] > most || reach >= 2 * step[from]) return true;
  const int64 quotient = distance / step[from], remainder = distance % step[from];
  if (quotient > extent[from] + 2 || quotient < -extent[from] - 2) return false;
  for (int k = -2; k <= 2; ++k) {
    const int64 i = quotient + k, left = remainder - k * step[from];
    if (i < extent[from] && i > -extent[from] && -reach <= left && left <= reach &&
        steps_meet(extent, step, from + 1, left, width))
      return true;
  }
  return false;
}

/// The address range [first, last) of a view that has elements, in bytes.
struct byte_range {
  uint64 first, last;
};
template <class T, int Rank>
GIWA_HOST_DEVICE byte_range range_of(const tensor_view<T, Rank>& v) {
  byte_range r{reinterpret_cast<uint64>(v.data()), reinterpret_cast<uint64>(v.data()) + sizeof(T)};
  for (int d = 0; d < Rank; ++d) {
    const int64 reach = v.extent(d) == 1 ? 0 : (v.extent(d) - 1) * v.stride(d) * static_cast<int64>(sizeof(T));
    if (reach < 0)
      r.first += static_cast<uint64>(reach);
    else
      r.last += static_cast<uint64>(reach);
  }
  return r;
}

/// Whether two views of equal extents, both of which check() accepts, share a byte. Views with other strides, or
/// elements of another size, count as sharing where their ranges do.
template <class T, class U, int Rank>
GIWA_HOST_DEVICE bool overlap(const tensor_view<T, Rank>& a, const tensor_view<U, Rank>& b) {
  if (a.size() == 0) return false;
  const byte_range x = range_of(a), y = range_of(b);
  if (x.last <= y.first || y.last <= x.first) return false;
  index<Rank> extent = a.extents(), step{};
  bool alike = sizeof(T) == sizeof(U);
  for (int d = 0; d < Rank; ++d) {
    alike = alike && (extent[d] == 1 || a.stride(d) == b.stride(d));
    const int64 bytes = extent[d] == 1 ? 0 : a.stride(d) * static_cast<int64>(sizeof(T));
    step[d] = bytes < 0 ? -bytes : bytes;
  }
  if (!alike) return true;
  for (int i = 1; i < Rank; ++i)  // the largest step first
    for (int d = i; d > 0 && step[d - 1] < step[d]; --d) {
      const int64 s = step[d], e = extent[d];
      step[d] = step[d - 1];
      extent[d] = extent[d - 1];
      step[d - 1] = s;
      extent[d - 1] = e;
    }
  const auto distance = static_cast<int64>(reinterpret_cast<uint64>(a.data()) - reinterpret_cast<uint64>(b.data()));
  return steps_meet<Rank>(extent, step, 0, distance, sizeof(T));
}

/// Checks that no two indices of a view that is written share an element: in order of their strides, each dimension
/// steps past all that the dimensions before it reach.
template <class T, int Rank>
GIWA_HOST_DEVICE constexpr status check_written(const tensor_view<T, Rank>& v, const char* argument) {
  if (v.size() == 0) return {};
  bool done[stdlib::size_t{Rank}] = {};
  for (int64 round = 0, reach = 1; round < Rank; ++round) {
    int next = -1;
    int64 step = 0;
    for (int d = 0; d < Rank; ++d) {
      if (done[d] || v.extent(d) <= 1) continue;
      const int64 size = v.stride(d) < 0 ? -v.stride(d) : v.stride(d);
      if (next < 0 || size < step) next = d, step = size;
    }
    if (next < 0) break;
    if (step == 0)
      return status::invalid(
          argument, "the strides of an output must not be zero: several elements would be written to one address");
    if (step < reach)
      return status::invalid(
          argument, "the strides of an output must keep its elements apart: several may be written to one address",
          bound::at_least, reach, step);
    reach += (v.extent(next) - 1) * step;
    done[next] = true;
  }
  return {};
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
