// SPDX-License-Identifier: MIT
// The work of append_to_cache on some heads of a new row: read, rotate, round, write.
#ifndef GIWA_ATTENTION_APPEND_APPEND_ROWS_HPP
#define GIWA_ATTENTION_APPEND_APPEND_ROWS_HPP

#include <giwa/attention/append/append_params.hpp>
#include <giwa/attention/append/append_unit.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// New rows, or queries: heads in memory, and whether they are rotated.
template <class T>
struct append_source {
  const T* data;
  int64 batch, row, head;  // strides
  int heads, size;
  bool rotates;

  GIWA_HOST_DEVICE static append_source of(const tensor_view<const T, 4>& v, bool rotates) {
    return {
        v.data(), v.stride(0), v.stride(1), v.stride(2), static_cast<int>(v.extent(2)), static_cast<int>(v.extent(3)),
        rotates};
  }
};

/// Where they are written: k or v of the cache, or q_to, whose rows are those of the source.
template <class To>
struct append_target {
  To* data;
  int64 element, row, head;  // strides
  bool in_cache;
  const float* scales = nullptr;
  int64 scale_element = 0, scale_row = 0, scale_head = 0;  // strides, 0 for a dimension of size 1

  GIWA_HOST_DEVICE static append_target of(const tensor_view<To, 4>& v) {
    return {v.data(), v.stride(0), v.stride(1), v.stride(2), false};
  }
  GIWA_HOST_DEVICE static append_target of(const tensor_view<To, 4>& v, const tensor_view<const float, 3>& scales) {
    const auto stride = [&](int d) { return scales.extent(d) == 1 ? 0 : scales.stride(d); };
    return {v.data(), v.stride(0), v.stride(1), v.stride(2), true, scales.data(), stride(0), stride(1), stride(2)};
  }
  GIWA_HOST_DEVICE scale_divisor divisor(const append_place& place, int64 head_number) const {
    if (!element_traits<To>::has_scales || scales == nullptr) return {};
    return scale_divisor::of(scales[place.element * scale_element + place.row * scale_row + head_number * scale_head]);
  }
};

/// Appends a unit of the heads [first, end) of a row. Several heads are read before the first is written, and the first of
/// them before the place of the row is known, which takes loads that depend on each other.
template <int Count, class Params, class T, class To>
GIWA_HOST_DEVICE void append_heads(const Params& p, int64 row, const append_unit& unit, const append_source<T>& from,
                                   const append_target<To>& to, int first, int end) {
  constexpr int at_once = Count == 1 ? 1 : 4;
  element_run<T, Count> run[stdlib::size_t{at_once}][2]{};
  const int64 batch = row / p.new_rows, row_of_batch = row - batch * p.new_rows.divisor();
  const T* const source = from.data + batch * from.batch + row_of_batch * from.row;
  const auto read = [&](int head) {
    GIWA_UNROLL
    for (int i = 0; i < at_once; ++i) {
      if (head + i >= end) break;
      run[i][0] = run[i][0].read(source + (head + i) * from.head + unit.first);
      if (unit.second >= 0) run[i][1] = run[i][1].read(source + (head + i) * from.head + unit.second);
    }
  };
  read(first);
  const append_place place = p.place_of(row);
  if (!place.known || (to.in_cache && place.element < 0)) return;
  To* const target =
      to.data + (to.in_cache ? place.element : batch) * to.element + (to.in_cache ? place.row : row_of_batch) * to.row;
  unit_rotations<Count> rotations{};
  if (unit.pair >= 0) rotations.fill(p.rotary, place.position, unit);
  for (int head = first;;) {
    GIWA_UNROLL
    for (int i = 0; i < at_once; ++i) {
      if (head + i >= end) break;
      append_head<Count>(run[i], unit, target + (head + i) * to.head, to.divisor(place, head + i), rotations,
                         p.rotary.interleaved);
    }
    head += at_once;
    if (head >= end) return;
    read(head);
  }
}

/// Appends a unit of a slice of a row: heads of k, of v, or queries.
template <int Count, class T, class Element, class Rotary>
GIWA_HOST_DEVICE void append_slice(const append_params<T, Element, Rotary>& p, int64 row, int slice, int unit_number) {
  const append_views<T, Element>& v = p.views;
  const bool of_k = slice < p.k_slices, of_q = slice >= p.k_slices + p.v_slices;
  const int first = (of_k ? slice : of_q ? slice - p.k_slices - p.v_slices : slice - p.k_slices) * p.heads_of_slice;
  const auto from = of_k   ? append_source<T>::of(v.k, p.rotates())
                    : of_q ? append_source<T>::of(v.q, p.rotates())
                           : append_source<T>::of(v.v, false);
  const append_unit unit = append_unit_of<Count>(p.rotary, from.rotates, from.size, unit_number);
  if (unit.first < 0) return;
  const int end = first + p.heads_of_slice < from.heads ? first + p.heads_of_slice : from.heads;
  const auto in_cache = [&] {
    return of_k ? append_target<Element>::of(v.cache.k, v.cache.scales.k)
                : append_target<Element>::of(v.cache.v, v.cache.scales.v);
  };
  if constexpr (stdlib::same_as<T, Element>) {
    append_heads<Count>(p, row, unit, from, of_q ? append_target<T>::of(v.q_to) : in_cache(), first, end);
  } else {
    if (of_q)
      append_heads<Count>(p, row, unit, from, append_target<T>::of(v.q_to), first, end);
    else
      append_heads<Count>(p, row, unit, from, in_cache(), first, end);
  }
}

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
/// The parameters of a call with rows, for runs of `Count` elements and slices of some heads.
template <int Count, class T, class Element, class Rotary>
append_params<T, Element, Rotary> append_params_of(const append_views<T, Element>& v, const Rotary& rotary,
                                                   int64 heads_of_slice) {
  const bool rotates = rotary.size > 0;
  const int of_k = append_units<Count>(rotary, rotates, static_cast<int>(v.k.extent(3))),
            of_v = append_units<Count>(rotary, false, static_cast<int>(v.v.extent(3)));
  const int64 k_slices = ceil_div(v.k.extent(2), heads_of_slice), v_slices = v.has_v() ? k_slices : 0,
              q_slices = ceil_div(v.q.extent(2), heads_of_slice);
  return {v,
          rotary,
          v.rows(),
          fast_divisor(v.rows()),
          fast_divisor(v.k.extent(1)),
          fast_divisor(v.cache.k.extent(1)),
          fast_divisor(of_k > of_v ? of_k : of_v),
          fast_divisor(k_slices + v_slices + q_slices),
          static_cast<int>(heads_of_slice),
          static_cast<int>(k_slices),
          static_cast<int>(v_slices)};
}
#endif

}  // namespace giwa::inline GIWA_ABI::detail

#endif
