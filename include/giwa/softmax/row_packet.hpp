// SPDX-License-Identifier: MIT
// Packets of a row's elements in registers, read and written at any alignment of the row.
#ifndef GIWA_SOFTMAX_ROW_PACKET_HPP
#define GIWA_SOFTMAX_ROW_PACKET_HPP

#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/vector_access.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// How the elements of a row are laid out in memory. Results do not depend on it: every thread gets the same elements
/// in all three.
enum class row_access : int {
  aligned,  // contiguous, every row begins on a packet boundary
  shifted,  // contiguous, a row may begin anywhere
  strided,  // any stride between elements
};

/// `Bytes` of memory in registers; in memory one access.
template <int Bytes>
struct alignas(Bytes) packet_words {
  static constexpr int count = Bytes / 4;
  uint32 word[stdlib::size_t{count}];
};

template <class T, int Count>
struct packet_elements {
  T element[stdlib::size_t{Count}];
};

/// -inf as T: stands in for elements past a row's end, and has no weight.
template <class T>
GIWA_HOST_DEVICE T lowest_element() {
  return convert<T>{}(-__builtin_huge_valf());
}

/// Words that hold `Bytes` bytes beginning on any granule: one more than the bytes fill if a granule is smaller than a word.
template <int Granule, int Bytes>
struct spanning_words {
  static constexpr int count = Bytes / 4 + (Granule < 4 ? 1 : 0);
  uint32 word[stdlib::size_t{count}];
};

/// Where bytes begin within words and pairs of words. All packets of a row begin alike, so its threads take one path.
struct word_place {
  int bits;  // of the first word, before them
  bool odd;  // the first word is the second of a pair

  GIWA_HOST_DEVICE static word_place of(uint64 address) {
    return {static_cast<int>(address % 4) * 8, address / 4 % 2 != 0};
  }
};

/// Loads the spanning words from `begin`, a word boundary, in as few accesses as possible: for 16 bytes two pairs and a word.
template <bool Odd, int Granule, int Bytes>
GIWA_HOST_DEVICE spanning_words<Granule, Bytes> load_spanning(const char* begin) {
  spanning_words<Granule, Bytes> w;
#if defined(__CUDA_ARCH__)
  constexpr bool pairs = Bytes % 8 == 0;  // else pairs of neighbouring packets begin differently
  for (int i = pairs && Odd ? -1 : 0; i < w.count; i += pairs ? 2 : 1) {
    if (pairs && i >= 0 && i + 1 < w.count) {
      const uint2 pair = *reinterpret_cast<const uint2*>(begin + 4 * i);
      w.word[i] = pair.x;
      w.word[i + 1] = pair.y;
    } else {
      const int single = i < 0 ? 0 : i;
      w.word[single] = *reinterpret_cast<const uint32*>(begin + 4 * single);
    }
  }
#else
  __builtin_memcpy(&w, begin, sizeof w);
#endif
  return w;
}

/// Returns the bytes from bit `bits` of the first word on.
template <int Granule, int Bytes>
GIWA_HOST_DEVICE packet_words<Bytes> joined(const spanning_words<Granule, Bytes>& w, int bits) {
  packet_words<Bytes> out;
  for (int i = 0; i < out.count; ++i) {
    if constexpr (Granule >= 4)
      out.word[i] = w.word[i];
    else
      out.word[i] = static_cast<uint32>(((static_cast<uint64>(w.word[i + 1]) << 32) | w.word[i]) >> (bits & 31));
  }
  return out;
}

/// Concatenates `low` and `high` and returns Bytes of them, from byte `bytes` on; with Up, those that end `bytes` past
/// the end of `low`. 0 <= bytes < Bytes, a multiple of Granule.
template <int Granule, bool Up, int Bytes>
GIWA_HOST_DEVICE packet_words<Bytes> shift_packet(const packet_words<Bytes>& low, const packet_words<Bytes>& high,
                                                  int bytes) {
  constexpr int n = Bytes / 4;
  uint32 w[stdlib::size_t{2 * n}];
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

/// A thread's elements of one row, in packets of Count. A packet is named by its distance from the first in elements, a
/// constant, so all accesses go through one pointer.
template <class T, int Count>
struct row_memory {
  static constexpr int granule = static_cast<int>(sizeof(T)), bytes = Count * granule;
  using value = stdlib::remove_const_t<T>;
  using words = packet_words<bytes>;
  using spanning = spanning_words<granule, bytes>;
  using elements = packet_elements<value, Count>;

  T* first;      // the thread's first element
  int left;      // elements of the row from there to its end
  bool leads;    // the row begins there
  int shift;     // elements from the packet boundary in memory before `first` to `first`; 0 unless shifted
  int64 stride;  // between elements; 1 unless strided

  /// The part of a row of `columns` elements from `column` on, a multiple of Count.
  template <row_access Access>
  GIWA_HOST_DEVICE static row_memory at(T* row, int columns, int64 stride, int column) {
    const int64 step = Access == row_access::strided ? stride : 1;
    T* const first = row + column * step;
    const auto packet_place = static_cast<int>(reinterpret_cast<uint64>(first) / sizeof(T) % Count);
    return {first, columns - column, column == 0, Access == row_access::shifted ? packet_place : 0, step};
  }

  GIWA_HOST_DEVICE bool holds(int i) const { return i < left; }

  /// Whether the row has all elements of the packet at `i`.
  GIWA_HOST_DEVICE bool fills(int i) const { return i + Count <= left; }

  /// Loads the packet at `i`, which begins on a packet boundary and lies in the row.
  GIWA_HOST_DEVICE words whole(int i) const { return load_vector<words>(first + i); }

  /// The same part of the row, from the packet boundary before it on.
  GIWA_HOST_DEVICE row_memory from_boundary() const { return {first - shift, left + shift, false, 0, stride}; }
  /// Whether the row has all of the packets of memory from there to the one after the packet at `i`.
  GIWA_HOST_DEVICE bool inside(int i) const { return (!leads || shift == 0) && i + 2 * Count - shift <= left; }

  /// Whether all spanning words of the packet at `i`, which begins anywhere, lie in the row; around() loads them.
  GIWA_HOST_DEVICE bool spans(int i) const {
    constexpr int others = granule < 4 ? 4 / granule : 0;  // elements of the extra word
    // Otherwise the first word belongs in part to the row before.
    const bool begins = i > 0 || others == 0 || !leads || shift % 2 == 0;
    return begins && i + Count + others <= left;
  }
  GIWA_HOST_DEVICE word_place place() const { return word_place::of(reinterpret_cast<uint64>(first)); }
  template <bool Odd>
  GIWA_HOST_DEVICE spanning around(int i) const {
    const char* const begin = reinterpret_cast<const char*>(first) - reinterpret_cast<uint64>(first) % 4;
    return load_spanning<Odd, granule, bytes>(begin + i * granule);
  }

  /// Loads the elements at `i` one by one, at any stride; -inf for those outside the row, whose memory is not accessed.
  template <row_access Access>
  GIWA_HOST_DEVICE words gather(int i) const {
    elements e;
    for (int j = 0; j < Count; ++j)
      e.element[j] = holds(i + j) ? first[address<Access>(i + j)] : lowest_element<value>();
    words w;
    __builtin_memcpy(&w, &e, bytes);
    return w;
  }

  /// Stores the memory packet that begins on the packet boundary before the packet at `i`, as far as it lies in the
  /// row, except the elements before `from`, which another thread writes.
  template <row_access Access>
  GIWA_HOST_DEVICE void store(int i, const words& w, int from) const {
    const row_memory shifted = from_boundary();
    if (from == 0 && shifted.fills(i))
      shifted.write(i, w);
    else if (shifted.holds(i))
      shifted.template scatter<Access>(i, w, from);
  }
  /// Stores the elements at `i` that lie in the row one by one, except those before `from`.
  template <row_access Access>
  GIWA_HOST_DEVICE void scatter(int i, const words& w, int from) const {
    elements e;
    __builtin_memcpy(&e, &w, bytes);
    for (int j = 0; j < Count; ++j)
      if (j >= from && holds(i + j)) first[address<Access>(i + j)] = e.element[j];
  }

 private:
  template <row_access Access>
  GIWA_HOST_DEVICE int64 address(int i) const {
    return Access == row_access::strided ? i * stride : i;
  }
  GIWA_HOST_DEVICE void write(int i, const words& w) const { store_vector_streaming(first + i, w); }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
