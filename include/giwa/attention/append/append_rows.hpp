// SPDX-License-Identifier: MIT
// A new row of append_to_cache: how it is read, rotated, rounded and written.
#ifndef GIWA_ATTENTION_APPEND_APPEND_ROWS_HPP
#define GIWA_ATTENTION_APPEND_APPEND_ROWS_HPP

#include <giwa/attention/append/append_unit.hpp>
#include <giwa/attention/append/rotary.hpp>
#include <giwa/attention/problem/cached_params.hpp>
#include <giwa/numeric/fast_division.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The tensors of a call. Packed rows have a batch of 1.
template <class T, class Element>
struct append_views {
  tensor_view<const T, 4> k, v;  // (batch, new rows, kv heads, head size); v may be empty
  tensor_view<const T, 4> q;     // (batch, new rows, heads, head size), or empty
  tensor_view<T, 4> q_to;        // as q
  kv_cache<Element> cache;
  bool is_packed = false;
  packed_queries packed{};  // without offsets, packed rows have slots
  row_numbers positions{}, slots{};
  tensor_view<float, 3> k_scales{}, v_scales{};  // (pages or sequences, keys, kv heads), found by the call, or empty
  tensor_view<const float, 2> k_mean{};          // (kv heads, head size), subtracted from k, or empty
  bool hadamard = false;

  GIWA_HOST_DEVICE constexpr bool is_paged() const { return cache.pages.indices != nullptr; }
  GIWA_HOST_DEVICE constexpr bool has_v() const { return v.data() != nullptr || v.extent(3) != 0; }
  GIWA_HOST_DEVICE constexpr bool has_q() const { return q.data() != nullptr || q.extent(3) != 0; }
  GIWA_HOST_DEVICE constexpr bool finds_scales() const { return is_given(k_scales); }
  GIWA_HOST_DEVICE constexpr int64 rows() const { return k.extent(0) * k.extent(1); }
  /// Whether places or positions of rows follow from their sequences.
  GIWA_HOST_DEVICE constexpr bool needs_sequences(bool rotates) const {
    return !slots.given() || (rotates && !positions.given());
  }
  GIWA_HOST_DEVICE constexpr int64 sequence_count() const { return is_packed ? packed.count : k.extent(0); }
};

/// A new row: its position, and where in the cache it belongs.
struct append_place {
  int64 position = 0;
  int64 element = -1;  // of the cache's first dimension, -1 for a row that is not written
  int64 row = 0;       // in that element
  bool known = true;   // whether the row belongs to a sequence; another one is left alone
};

/// The parameters of the kernel and of the CPU path, after the checks. What is read from the device's memory is not
/// checked: out of range, it leads to rows that are not written.
template <class T, class Element, class Rotary>
struct append_params {
  using element_type = T;
  using code_type = Element;
  append_views<T, Element> views;
  Rotary rotary;
  int64 rows;              // new rows of all sequences
  fast_divisor all_rows;   // the same
  fast_divisor new_rows;   // dimension 1 of k_new: of a sequence, or all packed ones
  fast_divisor page_size;  // dimension 1 of the cache
  // How the work on a row is shared: a unit is two runs of elements of a head, a slice is some heads.
  fast_divisor units, slices;
  int heads_of_slice, k_slices, v_slices;

  GIWA_HOST_DEVICE bool rotates() const { return rotary.size > 0; }

  /// Where a row belongs.
  GIWA_HOST_DEVICE append_place place_of(int64 row) const {
    append_place place;
    const bool has_slots = views.slots.given(), has_positions = views.positions.given();
    if (views.needs_sequences(rotates())) {
      const int64 sequence = sequence_of(row);
      place.known = sequence >= 0;
      if (!place.known) return place;
      place.position = key_of(sequence, row);
      if (!has_slots) find(place, sequence, place.position);
    }
    if (has_positions) place.position = views.positions[row];
    if (has_slots) {
      const int64 slot = views.slots[row], element = slot < 0 ? -1 : slot / page_size;
      if (element < views.cache.k.extent(0)) {
        place.element = element;
        place.row = slot - element * page_size.divisor();
      }
    }
    return place;
  }

 private:
  /// The sequence of a row, -1 for none. Packed rows of sequences of equal length are found at once, others by halving.
  GIWA_HOST_DEVICE int64 sequence_of(int64 row) const {
    if (!views.is_packed) return row / new_rows;
    const int* const offsets = views.packed.offsets;
    const int64 count = views.packed.count;
    if (count == 0) return -1;
    const int64 guess = row * count / all_rows;
    return offsets[guess] <= row && row < offsets[guess + 1] ? guess : sequence_of_row(views.packed, row);
  }

  /// The number of the key that a row of a sequence becomes. The length is taken as it is, so that keys past the capacity
  /// are left out, and no other row takes their place.
  GIWA_HOST_DEVICE int64 key_of(int64 sequence, int64 row) const {
    const int* const lengths = views.cache.lengths;
    const int64 length = lengths != nullptr ? lengths[sequence] : views.cache.k.extent(1);  // without pages
    const int64 end = views.is_packed ? views.packed.offsets[sequence + 1] : (sequence + 1) * new_rows.divisor();
    return length - (end - row);
  }

  /// Sets where a key of a sequence is, if it is in the cache.
  GIWA_HOST_DEVICE void find(append_place& place, int64 sequence, int64 key) const {
    if (key < 0) return;
    const page_table& pages = views.cache.pages;
    if (!views.is_paged()) {
      if (key < views.cache.k.extent(1)) place.element = sequence, place.row = key;
      return;
    }
    const int64 page = key / page_size;
    const page_entries own = entries_of(pages, sequence);
    if (page >= own.count) return;
    place.element = page_at(pages, own.first + page, views.cache.k.extent(0));
    place.row = key - page * page_size.divisor();
  }
};

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

/// The same of rows of a format, which are written as they are made.
template <int Count, class Params, class T>
GIWA_HOST_DEVICE void append_rows_of_format(const Params& p, int64 row, const append_unit& unit,
                                            const append_source<T>& from, int first, int end) {
  const append_place place = p.place_of(row);
  if (!place.known || place.element < 0) return;
  const int64 batch = row / p.new_rows, row_of_batch = row - batch * p.new_rows.divisor();
  unit_rotations<Count> rotations{};
  if (unit.pair >= 0) rotations.fill(p.rotary, place.position, unit);
  for (int head = first; head < end; ++head)
    append_head<Count>(from.data + batch * from.batch + row_of_batch * from.row + head * from.head, unit,
                       &p.views.cache.k(place.element, place.row, head, 0), rotations, p.rotary.interleaved);
}

/// The same of rows of blocks: block number `block` of each head, if a head has it. A head has more units than blocks.
template <class Params, class T, class Element>
GIWA_HOST_DEVICE void append_blocks(const Params& p, int64 row, int block, const append_source<T>& from,
                                    const tensor_view<Element, 4>& to, int first) {
  const append_place place = p.place_of(row);
  if (block >= from.size / Element::block || !place.known || place.element < 0) return;
  const int64 batch = row / p.new_rows, row_of_batch = row - batch * p.new_rows.divisor();
  for (int head = first; head < first + p.heads_of_slice && head < from.heads; ++head) {
    const T* const source = from.data + batch * from.batch + row_of_batch * from.row + head * from.head;
    append_block(&to(place.element, place.row, head, block * Element::block_bytes), [&](int i) {
      const int column = block * Element::block + i;
      return from.rotates ? rotated_element_as<float>(source, column, p.rotary, place.position)
                          : convert<float>{}(source[column]);
    });
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
  if constexpr (block_format<Element>)
    if (!of_q) return append_blocks(p, row, unit_number, from, of_k ? v.cache.k : v.cache.v, first);
  const append_unit unit = append_unit_of<Count>(p.rotary, from.rotates, from.size, unit_number);
  if (unit.first < 0) return;
  const int end = first + p.heads_of_slice < from.heads ? first + p.heads_of_slice : from.heads;
  const auto in_cache = [&] {
    return of_k ? append_target<Element>::of(v.cache.k, v.cache.scales.k)
                : append_target<Element>::of(v.cache.v, v.cache.scales.v);
  };
  if constexpr (block_format<Element>) {
    append_heads<Count>(p, row, unit, from, append_target<T>::of(v.q_to), first, end);
  } else if constexpr (row_format<Element>) {
    if (of_q)
      append_heads<Count>(p, row, unit, from, append_target<T>::of(v.q_to), first, end);
    else
      append_rows_of_format<Count>(p, row, unit, from, first, end);
  } else if constexpr (stdlib::same_as<T, Element>) {
    append_heads<Count>(p, row, unit, from, of_q ? append_target<T>::of(v.q_to) : in_cache(), first, end);
  } else {
    if (of_q)
      append_heads<Count>(p, row, unit, from, append_target<T>::of(v.q_to), first, end);
    else
      append_heads<Count>(p, row, unit, from, in_cache(), first, end);
  }
}

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
/// Whether runs of `Count` elements fit the call: they divide a head and the parts that are rotated, and are aligned.
template <int Count, class T, class Element>
bool append_fits(const append_views<T, Element>& a, const rotary_layout& r) {
  constexpr int64 bytes = Count * int64{sizeof(T)}, cache_bytes = Count * int64{sizeof(Element)} / codes_of<Element>;
  return (r.size == 0 || (r.size % (2 * Count) == 0 && r.first % Count == 0)) && rows_are_aligned(a.k, bytes) &&
         rows_are_aligned(a.cache.k, cache_bytes) &&
         (!a.has_v() || (rows_are_aligned(a.v, bytes) && rows_are_aligned(a.cache.v, cache_bytes))) &&
         (!a.has_q() || (rows_are_aligned(a.q, bytes) && rows_are_aligned(a.q_to, bytes)));
}

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
