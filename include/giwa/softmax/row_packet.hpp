// SPDX-License-Identifier: MIT
// A thread's share of a row, in registers: some elements side by side, read and written wherever the row begins.
#ifndef GIWA_SOFTMAX_ROW_PACKET_HPP
#define GIWA_SOFTMAX_ROW_PACKET_HPP

#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// How the elements of a row lie. The access decides no bits: every thread gets the same elements in all of them.
enum class row_access : int {
  aligned,  // one after the other, every row beginning on a whole packet
  shifted,  // one after the other, a row may begin anywhere
  strided,  // apart
};

/// `Bytes` of memory in registers; in memory one access.
template <int Bytes>
struct alignas(Bytes) packet_words {
  static constexpr int count = Bytes / 4;
  uint32 word[count];
};

#if defined(__CUDA_ARCH__)
/// The word that a packet moves as: a structure of several would be stored piece by piece.
template <int Bytes>
using packet_access = stdlib::conditional_t<Bytes == 16, uint4, stdlib::conditional_t<Bytes == 8, uint2, uint32>>;
#endif

template <class T, int Count>
struct packet_elements {
  T element[Count];
};

/// The smallest T, which no softmax sees: what is read past a row's end.
template <class T>
GIWA_HOST_DEVICE T lowest_element() {
  return convert<T>{}(-__builtin_huge_valf());
}

/// Of the bytes of `low` and `high`, one after the other, those from `bytes` on, 0 <= bytes < Bytes; `bytes` is a multiple of
/// `Granule`. With Up, those that end `bytes` past the end of `low`.
template <int Granule, bool Up, int Bytes>
GIWA_HOST_DEVICE packet_words<Bytes> shift_packet(const packet_words<Bytes>& low, const packet_words<Bytes>& high,
                                                  int bytes) {
  constexpr int n = Bytes / 4;
  uint32 w[2 * n];
  for (int i = 0; i < n; ++i) {
    w[i] = low.word[i];
    w[n + i] = high.word[i];
  }
  // Powers of two of words by selects, then bits. Up counts from the far end: word 2n - 1 - i in the place of word i.
  for (int step = n / 2; step >= 1; step /= 2) {
    if (4 * step < Granule) continue;
    const bool move = (bytes & (4 * step)) != 0;
    if constexpr (Up) {
      for (int i = 2 * n - 1; i >= step; --i) w[i] = move ? w[i - step] : w[i];
    } else {
      for (int i = 0; i + step < 2 * n; ++i) w[i] = move ? w[i + step] : w[i];
    }
  }
  packet_words<Bytes> out;
  for (int i = 0; i < n; ++i) {
    if constexpr (Granule >= 4) {
      out.word[i] = Up ? w[n + i] : w[i];
    } else {
      const int bits = 8 * (bytes & 3);
      const uint64 pair =
          Up ? (static_cast<uint64>(w[n + i]) << 32) | w[n + i - 1] : (static_cast<uint64>(w[i + 1]) << 32) | w[i];
      out.word[i] = static_cast<uint32>(Up ? pair >> (32 - bits) : pair >> bits);
    }
  }
  return out;
}

/// Reading and writing packets of Count elements of one row. `row` is where it begins, `columns` the elements it has from
/// there; a packet is named by its first column, a multiple of Count, and may reach past the end.
template <class T, int Count>
struct row_memory {
  static constexpr int granule = static_cast<int>(sizeof(T)), bytes = Count * granule;
  using value = stdlib::remove_const_t<T>;
  using words = packet_words<bytes>;
  using elements = packet_elements<value, Count>;

  T* row;
  int columns;
  int shift;     // elements between the packet boundary before the row and the row; 0 unless shifted
  int64 stride;  // between elements; 1 unless strided

  template <row_access Access>
  GIWA_HOST_DEVICE static row_memory at(T* row, int columns, int64 stride) {
    const auto address = reinterpret_cast<uint64>(row);
    return {row, columns, Access == row_access::shifted ? static_cast<int>(address / sizeof(T) % Count) : 0,
            Access == row_access::strided ? stride : 1};
  }

  GIWA_HOST_DEVICE bool holds(int column) const { return 0 <= column && column < columns; }

  /// Whether the row has all elements of the packet from `column` on.
  GIWA_HOST_DEVICE bool fills(int column) const { return column >= 0 && column + Count <= columns; }

  /// The packet of memory from `column` on, a packet boundary there, all of it in the row.
  GIWA_HOST_DEVICE words whole(int column) const {
    words w;
#if defined(__CUDA_ARCH__)
    const auto raw = *reinterpret_cast<const packet_access<bytes>*>(row + column);
    __builtin_memcpy(&w, &raw, bytes);
#else
    __builtin_memcpy(&w, static_cast<const void*>(row + column), bytes);
#endif
    return w;
  }
  /// The packet of memory from `column` on, which is a packet boundary there; lowest_element outside the row, where nothing
  /// is touched.
  GIWA_HOST_DEVICE words boundary(int column) const {
    words w;
    if (fills(column)) return whole(column);
    elements e;
    for (int i = 0; i < Count; ++i) e.element[i] = holds(column + i) ? row[column + i] : lowest_element<value>();
    __builtin_memcpy(&w, &e, bytes);
    return w;
  }

  /// The elements of a packet, where they are apart.
  GIWA_HOST_DEVICE words gather(int column) const {
    elements e;
    for (int i = 0; i < Count; ++i)
      e.element[i] = holds(column + i) ? row[static_cast<int64>(column + i) * stride] : lowest_element<value>();
    words w;
    __builtin_memcpy(&w, &e, bytes);
    return w;
  }

  /// Writes the elements of a packet that lie inside the row. Shifted, it is made of two: whoever holds the packet `before`
  /// it writes, in one access, what lies in memory from the boundary in `before` to the boundary in `own`. That holds where
  /// the caller has `before`, and the owner of the packet after has this one (`has_before`, `has_after`); the other elements
  /// are written one by one.
  template <row_access Access>
  GIWA_HOST_DEVICE void store(int column, const words& own, const words& before, bool has_before,
                              bool has_after) const {
    if constexpr (Access == row_access::shifted) {
      const int begin = column - shift;
      const bool whole = (shift == 0 || has_before) && begin + Count <= columns;
      if (whole) write(begin, shift_packet<granule, true>(before, own, shift * granule));
      const bool next_whole = shift == 0 || (has_after && begin + 2 * Count <= columns);
      if ((whole && next_whole) || column >= columns) return;
      store_elements(
          own, [&](int i) { return !(i < Count - shift ? whole : next_whole) && column + i < columns; }, column);
    } else if constexpr (Access == row_access::aligned) {
      if (column + Count <= columns)
        write(column, own);
      else
        store_elements(
            own, [&](int i) { return column + i < columns; }, column);
    } else {
      store_elements(
          own, [&](int i) { return column + i < columns; }, column);
    }
  }

 private:
  template <class Wanted>
  GIWA_HOST_DEVICE void store_elements(const words& own, const Wanted& wanted, int column) const {
    elements e;
    __builtin_memcpy(&e, &own, bytes);
    for (int i = 0; i < Count; ++i)
      if (wanted(i)) row[static_cast<int64>(column + i) * stride] = e.element[i];
  }
  GIWA_HOST_DEVICE void write(int column, const words& w) const {
#if defined(__CUDA_ARCH__)
    packet_access<bytes> raw;
    __builtin_memcpy(&raw, &w, bytes);
    __stcs(reinterpret_cast<packet_access<bytes>*>(row + column),
           raw);  // an assignment may be split into 4-byte stores
#else
    __builtin_memcpy(static_cast<void*>(row + column), &w, bytes);
#endif
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
