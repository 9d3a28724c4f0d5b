// SPDX-License-Identifier: MIT
// Runs: neighbouring elements of a row that are read, converted and written in one access of up to 16 bytes.
#ifndef GIWA_TILE_ELEMENT_RUN_HPP
#define GIWA_TILE_ELEMENT_RUN_HPP

#include <giwa/base/std.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/vector_access.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// `Count` elements in registers; Count is 1, or Count * sizeof(T) is 2, 4, 8 or 16. Memory is aligned to that size.
template <class T, int Count>
struct element_run {
  using word = typename vector_word<Count* static_cast<int>(sizeof(T))>::type;
  word bits;

  GIWA_HOST_DEVICE static element_run read(const T* from) { return {load_vector<word>(from)}; }
  GIWA_HOST_DEVICE void write(T* to) const { store_vector(to, bits); }

  GIWA_HOST_DEVICE T get(int i) const { return part<1>(i).element; }
  /// Sets element i, or several elements from i on if `part` is a run or a packed pair.
  template <class Part>
  GIWA_HOST_DEVICE void set(int i, const Part& part) {
    __builtin_memcpy(reinterpret_cast<char*>(&bits) + i * static_cast<int>(sizeof(T)), &part, sizeof part);
  }
  /// Returns `Length` elements from `first` on.
  template <int Length>
  GIWA_HOST_DEVICE element_run<T, Length> part(int first) const {
    element_run<T, Length> r;
    __builtin_memcpy(static_cast<void*>(&r), reinterpret_cast<const char*>(&bits) + first * static_cast<int>(sizeof(T)),
                     sizeof r);
    return r;
  }
  /// Returns a run whose elements all have this value.
  GIWA_HOST_DEVICE static element_run filled(const T& value) {
    element_run r;
    for (int i = 0; i < Count; ++i) r.set(i, value);
    return r;
  }
};

/// One element, of any type.
template <class T>
struct element_run<T, 1> {
  T element;

  GIWA_HOST_DEVICE static element_run read(const T* from) { return {*from}; }
  GIWA_HOST_DEVICE void write(T* to) const { *to = element; }
  GIWA_HOST_DEVICE T get(int) const { return element; }
  template <int Length>
  GIWA_HOST_DEVICE element_run part(int) const {
    return *this;
  }
  GIWA_HOST_DEVICE static element_run filled(const T& value) { return {value}; }
};

/// Converts a run with rounding to nearest, as convert<To> does; in pairs if an instruction packs two.
template <class To, class From, int Count>
GIWA_HOST_DEVICE element_run<To, Count> convert_run(const element_run<From, Count>& from) {
  if constexpr (stdlib::same_as<To, From>) {
    return from;
  } else {
    static_assert(floating_element<To> && floating_format<From>,
                  "giwa: a copy converts fp16, bf16, fp32, fp64, and from e4m3: give the tile and the view one element "
                  "type.");
    if constexpr (Count == 1) {
      return {convert<To>{}(from.get(0))};
    } else {
      element_run<To, Count> to;
      if constexpr (sizeof(To) == 2 && sizeof(From) <= 4) {
        for (int i = 0; i < Count; i += 2)
          to.set(i, pack<To>(convert<float>{}(from.get(i)), convert<float>{}(from.get(i + 1))));
      } else {
        for (int i = 0; i < Count; ++i) to.set(i, convert<To>{}(from.get(i)));
      }
      return to;
    }
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
