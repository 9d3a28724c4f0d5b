// SPDX-License-Identifier: MIT
// A view of somebody else's array in N dimensions: a pointer, sizes, and 64-bit strides in elements.
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

/// Whether the pointer is aligned to its element, as every access assumes on the host and on a GPU. Constant expressions
/// have no addresses, and no misaligned pointers.
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

/// What an array holds, const or not.
template <class Array>
using element_of = stdlib::remove_reference_t<decltype(*stdlib::declval<Array&>().data())>;

}  // namespace detail

/// `tensor_view<const float, 2> a{pointer, {rows, columns}}`: contiguous, the last dimension fastest; a third argument
/// gives other strides. Does not own, is trivially copyable (a kernel parameter), and is made from an mdspan of any
/// library, or in one dimension from anything with data() and size().
template <class T, int Rank>
class tensor_view {
 public:
  static_assert(Rank >= 1, "giwa::tensor_view has at least one dimension.");
  /// The element, with its const and without, and the number of dimensions.
  ///@{
  using element_type = T;
  using value_type = stdlib::remove_cv_t<T>;
  static constexpr int rank = Rank;
  ///@}

  /// No elements.
  constexpr tensor_view() = default;

  /// Contiguous, the last dimension fastest.
  GIWA_HOST_DEVICE constexpr tensor_view(T* data, const index<Rank>& extents) : data_(data), extents_(extents) {
    for (int64 d = Rank - 1, stride = 1; d >= 0; --d) {
      strides_[static_cast<int>(d)] = stride;
      // Wraps where it would overflow (such a view is refused by check), instead of undefined behaviour.
      stride = static_cast<int64>(static_cast<uint64>(stride) * static_cast<uint64>(extents[static_cast<int>(d)]));
    }
  }
  /// Strides in elements, of any sign and order.
  GIWA_HOST_DEVICE constexpr tensor_view(T* data, const index<Rank>& extents, const index<Rank>& strides)
      : data_(data), extents_(extents), strides_(strides) {}

  /// A view of T serves where a view of const T is due.
  template <class U>
    requires(!stdlib::same_as<U, T> && stdlib::convertible_to<U (*)[], T (*)[]>)
  GIWA_HOST_DEVICE constexpr tensor_view(const tensor_view<U, Rank>& v)
      : tensor_view(v.data(), v.extents(), v.strides()) {}

  /// From an mdspan.
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
  /// From anything with data() and size().
  template <class R>
    requires(Rank == 1 && detail::contiguous_range_like<R> && !requires(R& r) { r.strides(); } &&
             !detail::mdspan_like<stdlib::remove_cv_t<R>, Rank> &&
             stdlib::convertible_to<stdlib::remove_reference_t<decltype(*stdlib::declval<R&>().data())> (*)[], T (*)[]>)
  constexpr tensor_view(R& range) : tensor_view(range.data(), {range.size()}) {}
#endif

  /// The element whose index is 0 in every dimension.
  GIWA_HOST_DEVICE constexpr T* data() const { return data_; }
  /// The size of dimension d.
  GIWA_HOST_DEVICE constexpr int64 extent(int d) const { return extents_[d]; }
  /// In elements.
  GIWA_HOST_DEVICE constexpr int64 stride(int d) const { return strides_[d]; }
  /// All sizes, and all strides in elements.
  ///@{
  GIWA_HOST_DEVICE constexpr const index<Rank>& extents() const { return extents_; }
  GIWA_HOST_DEVICE constexpr const index<Rank>& strides() const { return strides_; }
  ///@}

  /// The number of elements, of a view that check() accepts.
  GIWA_HOST_DEVICE constexpr int64 size() const {
    int64 product = 1;
    for (int d = 0; d < Rank; ++d) product = wrapping_product(product, extents_[d]);
    return product;
  }

  /// Whether the elements lie one after the other in row-major order; a dimension of size 1 may have any stride.
  GIWA_HOST_DEVICE constexpr bool contiguous() const {
    for (int64 d = Rank - 1, stride = 1; d >= 0; --d) {
      const int i = static_cast<int>(d);
      if (extents_[i] != 1 && strides_[i] != stride) return size() == 0;
      stride = wrapping_product(stride, extents_[i]);
    }
    return true;
  }

  /// Returns the first rule that the view breaks: sizes are >= 0, and the number of elements and every offset in bytes fit in
  /// 64 bits. A view with elements has a pointer that is not null and is aligned to its element. `argument` names the view.
  GIWA_HOST_DEVICE constexpr status check(const char* argument) const {
    bool empty = false;
    for (int d = 0; d < Rank; ++d) {
      if (extents_[d] < 0) return status::invalid(argument, "a size is negative", bound::at_least, 0, extents_[d]);
      empty = empty || extents_[d] == 0;
    }
    if (empty) return {};
    int64 product = 1, reach = sizeof(T);  // elements, and the bytes from the first of them to the end of the last
    for (int d = 0; d < Rank; ++d) {
      if (product_overflows(product, extents_[d]))
        return status::invalid(argument, "the product of the sizes is larger than any 64-bit index", bound::at_most,
                               max_int64 / product, extents_[d]);
      product *= extents_[d];
      const int64 stride = strides_[d] < -max_int64 ? -max_int64 : strides_[d];  // the smallest has no negative
      const int64 step = stride < 0 ? -stride : stride, steps = extents_[d] - 1;
      if (steps == 0) continue;
      if (product_overflows(steps, step) || product_overflows(steps * step, sizeof(T)) ||
          steps * step * static_cast<int64>(sizeof(T)) > max_int64 - reach)
        return status::invalid(argument, "the strides reach farther than any 64-bit offset");
      reach += steps * step * static_cast<int64>(sizeof(T));
    }
    if (data_ == nullptr) return status::invalid(argument, "the pointer is null, but the view has elements");
    return detail::check_alignment<T>(data_, argument);
  }

  /// The element at i, inside the sizes; checked in checked builds.
  GIWA_HOST_DEVICE constexpr T& operator[](const index<Rank>& i) const {
    int64 offset = 0;
    for (int d = 0; d < Rank; ++d) {
      GIWA_ASSERT(0 <= i[d] && i[d] < extents_[d], "the index is outside the view");
      offset += i[d] * strides_[d];
    }
    return data_[offset];
  }
  /// The same from numbers: `view(row, column)`.
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
