// SPDX-License-Identifier: MIT
// The sizes of N dimensions, each static or dynamic, and conversions between an index and its linear rank.
#ifndef GIWA_NUMERIC_EXTENTS_HPP
#define GIWA_NUMERIC_EXTENTS_HPP

#include <giwa/base/status.hpp>
#include <giwa/numeric/index.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI {

/// Marks a size that is known only at run time.
inline constexpr int64 dynamic = -1;

/// The sizes of an N-dimensional index space. `extents{height, width}` has two run-time sizes. In `extents<dynamic,
/// 128>{height}` the second is static: it takes no register, and the compiler divides by a constant. The last dimension
/// is contiguous. A negative size is stored, and checked_size() reports it.
template <int64... Sizes>
  requires(sizeof...(Sizes) >= 1)
class extents {
  static_assert(((Sizes >= 0 || Sizes == dynamic) && ...),
                "giwa::extents: a static size must be at least 0, or giwa::dynamic.");

 public:
  /// The number of dimensions, and the number of dynamic ones.
  ///@{
  static constexpr int rank = sizeof...(Sizes);
  static constexpr int dynamic_rank = (0 + ... + static_cast<int>(Sizes == dynamic));
  ///@}

  /// Sets the run-time sizes to zero.
  constexpr extents() = default;

  /// Returns the size of dimension d if it is static, else giwa::dynamic.
  GIWA_HOST_DEVICE static constexpr int64 static_size(int d) {
    int64 found = dynamic;
    int i = 0;
    ((found = i++ == d ? Sizes : found), ...);  // a fold, since a table would be placed in device memory
    return found;
  }

  /// Takes the run-time sizes, in order.
  template <detail::index_like... Values>
    requires(sizeof...(Values) == dynamic_rank && dynamic_rank > 0)
  GIWA_HOST_DEVICE constexpr extents(Values... values) : values_{static_cast<int64>(values)...} {}

  /// Makes extents from an index of sizes. A static size is taken from the type.
  GIWA_HOST_DEVICE static constexpr extents from(const index<rank>& sizes) {
    extents e;
    for (int d = 0, used = 0; d < rank; ++d)
      if (static_size(d) == dynamic) e.values_[used++] = sizes[d];
    return e;
  }

  /// Returns the size of dimension d.
  GIWA_HOST_DEVICE constexpr int64 operator[](int d) const {
    GIWA_ASSERT(0 <= d && d < rank, "the extents have no such dimension");
    int used = 0;
    for (int i = 0; i < d; ++i) used += static_size(i) == dynamic;
    return static_size(d) == dynamic ? values_[used] : static_size(d);
  }

  /// Returns the number of elements. Valid only if checked_size() succeeds.
  GIWA_HOST_DEVICE constexpr int64 size() const {
    int64 product = 1;
    for (int d = 0; d < rank; ++d) product = wrapping_product(product, (*this)[d]);
    return product;
  }

  /// Returns the number of elements. Errors: a negative size, or a product above the largest int64.
  GIWA_HOST_DEVICE constexpr result<int64> checked_size(const char* argument = "extents") const {
    bool empty = false;
    for (int d = 0; d < rank; ++d) {
      if ((*this)[d] < 0)
        return {0, status::invalid(argument, "sizes must not be negative", bound::at_least, 0, (*this)[d])};
      empty = empty || (*this)[d] == 0;
    }
    if (empty) return {0, {}};
    int64 product = 1;
    for (int d = 0; d < rank; ++d) {
      if (product_overflows(product, (*this)[d]))
        return {0, status::invalid(argument, "the product of the sizes must fit in 64 bits", bound::at_most,
                                   max_int64 / product, (*this)[d])};
      product *= (*this)[d];
    }
    return {product, {}};
  }

  /// Returns whether 0 <= i[d] < (*this)[d] in every dimension.
  GIWA_HOST_DEVICE constexpr bool contains(const index<rank>& i) const {
    bool inside = true;
    for (int d = 0; d < rank; ++d) inside = inside && 0 <= i[d] && i[d] < (*this)[d];
    return inside;
  }

  /// Returns whether all sizes are equal.
  GIWA_HOST_DEVICE friend constexpr bool operator==(const extents& a, const extents& b) {
    for (int d = 0; d < rank; ++d)
      if (a[d] != b[d]) return false;
    return true;
  }

 private:
  int64 values_[stdlib::size_t{dynamic_rank > 0 ? dynamic_rank : 1}] = {};
};

/// `extents{rows, columns}` has run-time sizes.
template <detail::index_like... Values>
GIWA_HOST_DEVICE extents(Values...) -> extents<(static_cast<void>(sizeof(Values)), dynamic)...>;

namespace detail {

/// Converts a count of any integer type to int64. Errors: it is negative or too large.
template <stdlib::integral Size>
GIWA_HOST_DEVICE constexpr result<int64> checked_count(Size n, const char* argument = "n") {
  if constexpr (stdlib::is_signed_v<Size>) {
    if (n < 0)
      return {0, status::invalid(argument, "a count must not be negative", bound::at_least, 0, static_cast<int64>(n))};
  } else if constexpr (sizeof(Size) >= sizeof(int64)) {
    if (n > static_cast<Size>(max_int64))
      return {0, status::invalid(argument, "a count must fit in a signed 64-bit integer; got is modulo 2^64",
                                 bound::at_most, max_int64, static_cast<int64>(n))};
  }
  return {static_cast<int64>(n), {}};
}

}  // namespace detail

/// Returns the linear rank of an index in row-major order. All arithmetic is 64-bit.
template <int64... Sizes>
GIWA_HOST_DEVICE constexpr int64 linearize(const extents<Sizes...>& e, const index<sizeof...(Sizes)>& i) {
  int64 linear = 0;
  for (int d = 0; d < e.rank; ++d) linear = linear * e[d] + i[d];
  return linear;
}

/// Returns the index with this linear rank: the inverse of linearize(). Each dimension but the first costs a 64-bit
/// division, which for_all avoids.
template <int64... Sizes>
GIWA_HOST_DEVICE constexpr index<sizeof...(Sizes)> delinearize(const extents<Sizes...>& e, int64 linear) {
  index<sizeof...(Sizes)> i{};
  for (int d = e.rank - 1; d > 0; --d) {
    i[d] = linear % e[d];
    linear /= e[d];
  }
  i[0] = linear;
  return i;
}

}  // namespace giwa::inline GIWA_ABI

#endif
