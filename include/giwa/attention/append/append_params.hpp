// SPDX-License-Identifier: MIT
// The parameters of append_to_cache, and where in the cache a new row belongs.
#ifndef GIWA_ATTENTION_APPEND_APPEND_PARAMS_HPP
#define GIWA_ATTENTION_APPEND_APPEND_PARAMS_HPP

#include <giwa/attention/append/append_options.hpp>
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

  GIWA_HOST_DEVICE constexpr bool is_paged() const { return cache.pages.indices != nullptr; }
  GIWA_HOST_DEVICE constexpr bool has_v() const { return v.data() != nullptr || v.extent(3) != 0; }
  GIWA_HOST_DEVICE constexpr bool has_q() const { return q.data() != nullptr || q.extent(3) != 0; }
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

}  // namespace giwa::inline GIWA_ABI::detail

#endif
