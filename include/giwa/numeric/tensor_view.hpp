// SPDX-License-Identifier: MIT
// A view of an N-dimensional array that it does not own: a pointer, sizes, and 64-bit strides in elements.
#ifndef GIWA_NUMERIC_TENSOR_VIEW_HPP
#define GIWA_NUMERIC_TENSOR_VIEW_HPP

#include <giwa/base/status.hpp>
#include <giwa/numeric/index.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <class V, int Rank>
concept mdspan_like = requires(const V& v) {
  requires static_cast<int>(V::rank()) == Rank;
  v.data_handle();
  { v.extent(0) } -> stdlib::convertible_to<int64>;
  { v.stride(0) } -> stdlib::convertible_to<int64>;
};

template <class R>
concept contiguous_range_like = requires(R& r) {
  { *r.data() };
  { r.size() } -> stdlib::convertible_to<int64>;
};

/// Checks that the pointer is aligned to its element type, as every access on the host and on a GPU assumes. Constant
/// expressions have no addresses, and no misaligned pointers.
template <class T>
GIWA_HOST_DEVICE constexpr status check_alignment([[maybe_unused]] const T* pointer,
                                                  [[maybe_unused]] const char* argument) {
  if (!__builtin_is_constant_evaluated()) {
    const auto address = reinterpret_cast<uint64>(pointer);
    if (address % alignof(T) != 0)
      return status::invalid(argument, "the pointer must be aligned to its element type, in bytes", bound::at_least,
                             alignof(T), static_cast<int64>(address & (~address + 1)));  // its lowest set bit
  }
  return {};
}

/// The element type of an array, const or not.
template <class Array>
using element_of = stdlib::remove_reference_t<decltype(*stdlib::declval<Array&>().data())>;

}  // namespace detail

/// A view of an array: `tensor_view<const float, 2> a{pointer, {rows, columns}}` is contiguous in row-major order, and
/// a third argument gives other strides. Does not own the array. Trivially copyable, so that it can be a kernel
/// parameter. Converts from the mdspan of any library, and in one dimension from any type with data() and size().
template <class T, int Rank>
class tensor_view {
 public:
  static_assert(Rank >= 1, "giwa::tensor_view must have at least one dimension.");
  /// The element type with and without const, and the number of dimensions.
  ///@{
  using element_type = T;
  using value_type = stdlib::remove_cv_t<T>;
  static constexpr int rank = Rank;
  ///@}

  /// No elements.
  constexpr tensor_view() = default;

  /// A contiguous view in row-major order.
  GIWA_HOST_DEVICE constexpr tensor_view(T* data, const index<Rank>& extents) : data_(data), extents_(extents) {
    for (int64 d = Rank - 1, stride = 1; d >= 0; --d) {
      strides_[static_cast<int>(d)] = stride;
      // Wraps on overflow, which check() refuses; overflow itself would be undefined behaviour.
      stride = static_cast<int64>(static_cast<uint64>(stride) * static_cast<uint64>(extents[static_cast<int>(d)]));
    }
  }
  /// A view with strides in elements, of any sign and order.
  GIWA_HOST_DEVICE constexpr tensor_view(T* data, const index<Rank>& extents, const index<Rank>& strides)
      : data_(data), extents_(extents), strides_(strides) {}

#if !defined(GIWA_DOXYGEN)  // calls that do not compile, and the reason
  template <class R>
    requires(detail::contiguous_range_like<const R>)
  GIWA_HOST_DEVICE constexpr tensor_view(const R&, const index<Rank>&, const index<Rank>& = {}) {
    static_assert(detail::always_false<R>,
                  "giwa::tensor_view: with sizes, pass a pointer: giwa::tensor_view<float, 2> x(v.data(), {rows, "
                  "columns}).");
  }
#endif

  /// Converts a view of T to a view of const T.
  template <class U>
    requires(!stdlib::same_as<U, T> && stdlib::convertible_to<U (*)[], T (*)[]>)
  GIWA_HOST_DEVICE constexpr tensor_view(const tensor_view<U, Rank>& v)
      : tensor_view(v.data(), v.extents(), v.strides()) {}

  /// Converts from an mdspan.
  template <class V>
    requires(detail::mdspan_like<V, Rank> &&
             stdlib::convertible_to<decltype(stdlib::declval<const V&>().data_handle()), T*>)
  GIWA_HOST_DEVICE constexpr tensor_view(const V& v) : data_(v.data_handle()) {
    for (int d = 0; d < Rank; ++d) {
      const auto of = static_cast<decltype(V::rank())>(d);
      extents_[d] = static_cast<int64>(v.extent(of));
      strides_[d] = static_cast<int64>(v.stride(of));
    }
  }

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
  /// Converts from any type with data() and size().
  template <class R>
    requires(Rank == 1 && detail::contiguous_range_like<R> && !requires(R& r) { r.strides(); } &&
             !detail::mdspan_like<stdlib::remove_cv_t<R>, Rank> &&
             stdlib::convertible_to<stdlib::remove_reference_t<decltype(*stdlib::declval<R&>().data())> (*)[], T (*)[]>)
  constexpr tensor_view(R& range) : tensor_view(range.data(), {range.size()}) {}
#endif

  /// Returns a pointer to the element whose index is 0 in every dimension.
  GIWA_HOST_DEVICE constexpr T* data() const { return data_; }
  /// Returns the size of dimension d.
  GIWA_HOST_DEVICE constexpr int64 extent(int d) const { return extents_[d]; }
  /// Returns the stride of dimension d, in elements.
  GIWA_HOST_DEVICE constexpr int64 stride(int d) const { return strides_[d]; }
  /// Returns all sizes, and all strides in elements.
  ///@{
  GIWA_HOST_DEVICE constexpr const index<Rank>& extents() const { return extents_; }
  GIWA_HOST_DEVICE constexpr const index<Rank>& strides() const { return strides_; }
  ///@}

  /// Returns the number of elements. Valid only if check() succeeds.
  GIWA_HOST_DEVICE constexpr int64 size() const {
    int64 product = 1;
    for (int d = 0; d < Rank; ++d) product = wrapping_product(product, extents_[d]);
    return product;
  }

  /// Returns whether the elements are contiguous in row-major order. A dimension of size 1 may have any stride.
  GIWA_HOST_DEVICE constexpr bool contiguous() const {
    for (int64 d = Rank - 1, stride = 1; d >= 0; --d) {
      const int i = static_cast<int>(d);
      if (extents_[i] != 1 && strides_[i] != stride) return size() == 0;
      stride = wrapping_product(stride, extents_[i]);
    }
    return true;
  }

  /// Returns the first rule that the view breaks: sizes are >= 0, and the number of elements and every offset in bytes
  /// fit in 64 bits. A view with elements has a pointer that is not null and is aligned to its element. `argument`
  /// names the view.
  GIWA_HOST_DEVICE constexpr status check(const char* argument) const {
    bool empty = false;
    for (int d = 0; d < Rank; ++d) {
      if (extents_[d] < 0)
        return status::invalid(argument, "sizes must not be negative", bound::at_least, 0, extents_[d]);
      empty = empty || extents_[d] == 0;
    }
    if (empty) return {};
    int64 product = 1, reach = sizeof(T);  // elements, and the bytes from the first of them to the end of the last
    for (int d = 0; d < Rank; ++d) {
      if (product_overflows(product, extents_[d]))
        return status::invalid(argument, "the product of the sizes must fit in 64 bits", bound::at_most,
                               max_int64 / product, extents_[d]);
      product *= extents_[d];
      const int64 stride = strides_[d] < -max_int64 ? -max_int64 : strides_[d];  // the smallest has no negative
      const int64 step = stride < 0 ? -stride : stride, steps = extents_[d] - 1;
      if (steps == 0) continue;
      if (product_overflows(steps, step) || product_overflows(steps * step, sizeof(T)) ||
          steps * step * static_cast<int64>(sizeof(T)) > max_int64 - reach)
        return status::invalid(argument, "the offsets in bytes must fit in 64 bits: the strides are too large");
      reach += steps * step * static_cast<int64>(sizeof(T));
    }
    if (data_ == nullptr) return status::invalid(argument, "the pointer must not be null if the view has elements");
    return detail::check_alignment<T>(data_, argument);
  }

  /// Returns a failure that names the view, with `message`, the expected size and this view's, unless all sizes are the
  /// expected ones: `c.check_extents(a.extents(), "c")`.
  GIWA_HOST_DEVICE constexpr status check_extents(const index<Rank>& expected, const char* argument,
                                                  const char* message = "a size differs from the expected one") const {
    for (int d = 0; d < Rank; ++d)
      if (extents_[d] != expected[d])
        return status::invalid(argument, message, bound::exactly, expected[d], extents_[d]);
    return {};
  }

  /// Returns the part whose coordinates in dimension d are begin to end - 1: `x.slice(0, 10, 20)` has rows 10 to 19.
  /// The range must be inside the view: 0 <= begin <= end <= extent(d). Checked builds check that.
  GIWA_HOST_DEVICE constexpr tensor_view slice(int d, int64 begin, int64 end) const {
    GIWA_ASSERT(0 <= begin && begin <= end && end <= extents_[d], "the slice is outside the view");
    tensor_view part = *this;
    if (begin < end) part.data_ += begin * strides_[d];
    part.extents_[d] = end - begin;
    return part;
  }
  /// Returns a view of the same elements with two dimensions exchanged, the last two unless others are given.
  GIWA_HOST_DEVICE constexpr tensor_view transposed(int a = Rank - 2, int b = Rank - 1) const
    requires(Rank >= 2)
  {
    tensor_view other = *this;
    other.extents_[a] = extents_[b], other.extents_[b] = extents_[a];
    other.strides_[a] = strides_[b], other.strides_[b] = strides_[a];
    return other;
  }

  /// Returns the element at index i, which must be inside the view. Checked builds check that.
  GIWA_HOST_DEVICE constexpr T& operator[](const index<Rank>& i) const {
    int64 offset = 0;
    for (int d = 0; d < Rank; ++d) {
      GIWA_ASSERT(0 <= i[d] && i[d] < extents_[d], "the index is outside the view");
      offset += i[d] * strides_[d];
    }
    return data_[offset];
  }
#if !defined(GIWA_DOXYGEN)  // an index that does not compile, and the reason
  template <detail::index_like Coordinate>
    requires(Rank > 1)
  GIWA_HOST_DEVICE constexpr T* operator[](const Coordinate&) const {
    static_assert(detail::always_false<Coordinate>,
                  "giwa::tensor_view: write x(i, j) or x[{i, j}], with all coordinates at once, not x[i][j].");
    return data_;
  }
#endif
  /// Returns the element at the given coordinates: `view(row, column)`.
  template <detail::index_like... Coordinates>
    requires(sizeof...(Coordinates) == Rank)
  GIWA_HOST_DEVICE constexpr T& operator()(Coordinates... i) const {
    return (*this)[index<Rank>{i...}];
  }

 private:
  T* data_ = nullptr;
  index<Rank> extents_{};
  index<Rank> strides_{};
};

}  // namespace giwa::inline GIWA_ABI

#endif
