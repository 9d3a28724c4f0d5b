// SPDX-License-Identifier: MIT
// A position in N dimensions, the last one contiguous: (z, y, x), or (row, column).
#ifndef GIWA_NUMERIC_INDEX_HPP
#define GIWA_NUMERIC_INDEX_HPP

#include <giwa/base/assert.hpp>
#include <giwa/base/std.hpp>

#if defined(__CUDACC_RTC__)
#include <cuda/std/utility>  // declares std::tuple_size and std::tuple_element for NVRTC
#endif

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Types of coordinates and sizes: integers and what converts to them, but no floating-point types, which would lose
/// their fraction.
template <class T>
concept index_like = stdlib::convertible_to<T, int64> && !stdlib::is_floating_point_v<stdlib::remove_cvref_t<T>>;

}  // namespace detail

/// A position in Rank dimensions. Supports `i[0]` and `auto [row, column] = i;`. An index<1> converts to an integer.
template <int Rank>
struct index {
  static_assert(Rank >= 1, "giwa::index must have at least one dimension.");
  static constexpr int rank = Rank;        ///< the number of dimensions
  int64 coordinate[stdlib::size_t{Rank}];  ///< the last is contiguous in memory

  index() = default;  // uninitialised, like an int; index<2>{} is all zeros
  /// Takes one integer of any type for each dimension.
  template <detail::index_like... Coordinates>
    requires(sizeof...(Coordinates) == Rank)
  GIWA_HOST_DEVICE constexpr index(Coordinates... i) : coordinate{static_cast<int64>(i)...} {}

  /// Returns coordinate d, 0 <= d < Rank.
  ///@{
  GIWA_HOST_DEVICE constexpr int64& operator[](int d) {
    GIWA_ASSERT(0 <= d && d < Rank, "the index has no such dimension");
    return coordinate[d];
  }
  GIWA_HOST_DEVICE constexpr const int64& operator[](int d) const {
    GIWA_ASSERT(0 <= d && d < Rank, "the index has no such dimension");
    return coordinate[d];
  }
  ///@}
  /// Converts an index of one dimension to its coordinate.
  GIWA_HOST_DEVICE constexpr operator int64() const
    requires(Rank == 1)
  {
    return coordinate[0];
  }
  /// Returns whether all coordinates are equal.
  GIWA_HOST_DEVICE friend constexpr bool operator==(const index& a, const index& b) {
    for (int d = 0; d < Rank; ++d)
      if (a.coordinate[d] != b.coordinate[d]) return false;
    return true;
  }

  /// Returns coordinate Dim, for structured bindings.
  template <stdlib::size_t Dim>
  GIWA_HOST_DEVICE constexpr int64 get() const {
    static_assert(Dim < Rank);
    return coordinate[Dim];
  }
};

/// `index{row, column}` has two dimensions.
template <detail::index_like... Coordinates>
GIWA_HOST_DEVICE index(Coordinates...) -> index<static_cast<int>(sizeof...(Coordinates))>;

}  // namespace giwa::inline GIWA_ABI

#if !defined(GIWA_DOXYGEN)
template <int Rank>
struct std::tuple_size<giwa::index<Rank>>
    : giwa::stdlib::integral_constant<giwa::stdlib::size_t, giwa::stdlib::size_t{Rank}> {};
template <giwa::stdlib::size_t Dim, int Rank>
struct std::tuple_element<Dim, giwa::index<Rank>> {
  using type = giwa::int64;
};
#endif

#endif
