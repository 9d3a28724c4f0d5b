// SPDX-License-Identifier: MIT
// An array in page-locked host memory, from and to which copies are asynchronous.
#ifndef GIWA_DEVICE_PINNED_ARRAY_HPP
#define GIWA_DEVICE_PINNED_ARRAY_HPP

#include <giwa/device/array.hpp>
#include <giwa/device/host.hpp>

namespace giwa::inline GIWA_ABI {

/// Owns `size()` elements of page-locked ("pinned") host memory, for all GPUs; moves, does not copy. Passes as a
/// tensor_view<T, 1>, a std::span, or anything else that wants data() and size().
///
/// Copies between it and a GPU are asynchronous, and need no second copy through the driver's own pinned memory. Must outlive the
/// copies that use it. Allocating is slow, and what is pinned is not there for the rest of the machine: allocate once, reuse.
template <class T>
class pinned_array {
 public:
  static_assert(goes_as_bytes<T> && !stdlib::is_const_v<T>,
                "giwa::pinned_array: elements are copied byte by byte: T must be trivially copyable, and not const.");
  using element_type = T;  ///< of the array

  /// No elements.
  pinned_array() = default;

  /// Uninitialised elements. May wait for the GPU. Errors: a negative or impossible size, out_of_memory, no_driver and no_device:
  /// it is the driver that locks pages, so without one a std::vector is what to use.
  static result<pinned_array> allocate(int64 size) {
    result<pinned_array> r;
    r.state = detail::check_array_size(size, sizeof(T));
    if (!r.ok() || size == 0) return r;
    void* memory = nullptr;
    const auto bytes = static_cast<stdlib::size_t>(size) * sizeof(T);
    r.state = detail::consume(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "size");
    if (r.state.code == status_code::out_of_memory)
      r.state.message = "the bytes of the array do not fit in what host memory can be page-locked";
    if (!r.ok()) return r;
    r.value.data_ = static_cast<T*>(memory);
    r.value.size_ = size;
    return r;
  }

  /// Takes the memory over; the other array is left empty.
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

  /// As a std::vector has it; not checked.
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

/// Uninitialised pinned memory for as many elements of the same type as `array` has. Errors: those of pinned_array::allocate().
template <detail::contiguous_range_like Array>
auto like(host_t, const Array& array) {
  using element = stdlib::remove_const_t<detail::element_of<const Array>>;
  return pinned_array<element>::allocate(static_cast<int64>(array.size()));
}

}  // namespace giwa::inline GIWA_ABI

#endif
