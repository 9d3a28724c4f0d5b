// SPDX-License-Identifier: MIT
// pinned_array: an array in page-locked host memory, for asynchronous copies.
#ifndef GIWA_DEVICE_PINNED_ARRAY_HPP
#define GIWA_DEVICE_PINNED_ARRAY_HPP

#include <giwa/device/array.hpp>
#include <giwa/device/host.hpp>

namespace giwa::inline GIWA_ABI {

/// An array of `size()` elements in page-locked ("pinned") host memory, which it owns. Movable, not copyable. Converts
/// to tensor_view<T, 1>, std::span, and other types that take data() and size(). Every GPU can access it.
///
/// Copies between it and a GPU are asynchronous, and do not pass through pinned memory of the driver. It must outlive
/// the copies that use it. Allocation is slow, and pinned memory is not available to the rest of the system: allocate
/// once and reuse.
template <class T>
class pinned_array {
 public:
  static_assert(goes_as_bytes<T> && !stdlib::is_const_v<T>,
                "giwa::pinned_array: elements are copied byte by byte, so T must be trivially copyable and not const.");
  using element_type = T;  ///< the element type

  /// An array without elements.
  pinned_array() = default;

  /// Allocates `size` uninitialised elements. May synchronise with the GPU. Errors: a size that is negative or too
  /// large; out_of_memory; no_driver and no_device, since the driver locks the pages. Without a driver use a
  /// std::vector.
  static result<pinned_array> allocate(int64 size) {
    result<pinned_array> r;
    r.state = detail::check_array_size(size, sizeof(T));
    if (!r.ok() || size == 0) return r;
    void* memory = nullptr;
    const auto bytes = static_cast<stdlib::size_t>(size) * sizeof(T);
    r.state = detail::consume(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "size");
    if (r.state.code == status_code::out_of_memory)
      r.state.message = "the bytes of the array must fit in the host memory that can be page-locked";
    if (!r.ok()) return r;
    r.value.data_ = static_cast<T*>(memory);
    r.value.size_ = size;
    return r;
  }

  /// Takes over the memory of the other array, which becomes empty.
  ///@{
  pinned_array(pinned_array&& other) noexcept { swap(other); }
  pinned_array& operator=(pinned_array&& other) noexcept {
    pinned_array moved(static_cast<pinned_array&&>(other));
    swap(moved);
    return *this;
  }
  ///@}
  ~pinned_array() {
    if (data_ != nullptr) static_cast<void>(detail::consume(cudaFreeHost(data_)));
  }

  /// As in std::vector. Subscripts are not checked.
  ///@{
  T* data() { return data_; }
  const T* data() const { return data_; }
  int64 size() const { return size_; }
  T& operator[](int64 i) { return data_[i]; }
  const T& operator[](int64 i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  ///@}

 private:
  void swap(pinned_array& other) noexcept {
    stdlib::swap(data_, other.data_);
    stdlib::swap(size_, other.size_);
  }
  T* data_ = nullptr;
  int64 size_ = 0;
};

/// Allocates an uninitialised pinned_array with the element type and the size of `array`. Errors: those of
/// pinned_array::allocate().
template <detail::contiguous_range_like Array>
auto like(host_t, const Array& array) {
  using element = stdlib::remove_const_t<detail::element_of<const Array>>;
  return pinned_array<element>::allocate(static_cast<int64>(array.size()));
}

}  // namespace giwa::inline GIWA_ABI

#endif
