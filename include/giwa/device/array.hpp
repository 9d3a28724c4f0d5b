// SPDX-License-Identifier: MIT
// An array in device memory, allocated and freed in stream order, and the copies to and from it.
#ifndef GIWA_DEVICE_ARRAY_HPP
#define GIWA_DEVICE_ARRAY_HPP

#include <giwa/device/copy.hpp>
#include <giwa/device/properties.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Whether an array of `size` elements of so many bytes can be asked for.
constexpr status check_array_size(int64 size, int64 element_bytes) {
  if (size < 0) return status::invalid("size", "sizes must not be negative", bound::at_least, 0, size);
  if (product_overflows(size, element_bytes))
    return status::invalid("size", "the array has more bytes than a 64-bit size", bound::at_most,
                           max_int64 / element_bytes, size);
  return {};
}

}  // namespace detail

/// Owns `size()` elements of device memory; moves, does not copy. Passes as a tensor_view<T, 1>.
///
/// The memory is usable by work that the same stream gets after allocate(), and is given back in that stream's order
/// when the array goes: other streams must be made to wait (see event), and the stream must outlive the array.
template <class T>
class device_array {
 public:
  static_assert(goes_as_bytes<T> && !stdlib::is_const_v<T>,
                "giwa::device_array: elements are copied byte by byte: T must be trivially copyable, and not const.");
  using element_type = T;  ///< of the array

  /// No elements.
  device_array() = default;

  /// Uninitialised elements, of the pool that cudaMallocAsync takes from. Asynchronous. Fails on a negative or impossible size,
  /// and with out_of_memory: then `got` are the bytes asked for and `expected` the GPU's free bytes; format_memory() (memory.hpp)
  /// has the rest.
  static result<device_array> allocate(cudaStream_t s, int64 size) {
    result<device_array> r;
    r.state = detail::check_array_size(size, sizeof(T));
    if (!r.ok() || size == 0) return r;
    void* memory = nullptr;
    const int64 bytes = size * static_cast<int64>(sizeof(T));
    r.state = detail::consume(cudaMallocAsync(&memory, static_cast<stdlib::size_t>(bytes), s), "size");
    if (r.state.code == status_code::out_of_memory) {
      stdlib::size_t free = 0, total = 0;
      if (detail::consume(cudaMemGetInfo(&free, &total)).ok()) {
        r.state.message = "the bytes of the array do not fit in the free memory of this GPU";
        r.state.relation = bound::at_most;
        r.state.expected = static_cast<int64>(free);
        r.state.got = bytes;
      }
    }
    if (r.ok()) {
      r.value.data_ = static_cast<T*>(memory);
      r.value.size_ = size;
      r.value.stream_ = s;
      cudaPointerAttributes a{};  // the stream's GPU, which need not be the current one
      r.state = detail::consume(cudaPointerGetAttributes(&a, memory));
      r.value.device_ = a.device;
    }
    if (!r.ok()) r.value = {};
    return r;
  }

  /// Takes the memory over; the other array is left empty.
  ///@{
  device_array(device_array&& other) noexcept { swap(other); }
  device_array& operator=(device_array&& other) noexcept {
    device_array moved(static_cast<device_array&&>(other));
    swap(moved);
    return *this;
  }
  ///@}
  ~device_array() {
    if (data_ == nullptr) return;
    // The default stream means that of the array's own GPU.
    const result<device_guard> guard =
        current_device().value == device_ ? result<device_guard>{} : device_guard::activate(device_);
    static_cast<void>(detail::consume(cudaFreeAsync(data_, stream_)));
  }

  /// The first element, null where there is none.
  ///@{
  T* data() { return data_; }
  const T* data() const { return data_; }
  ///@}
  /// The number of elements.
  int64 size() const { return size_; }
  /// The number of the GPU whose memory it is, -1 for an array without elements.
  int device() const { return device_; }

 private:
  void swap(device_array& other) noexcept {
    stdlib::swap(data_, other.data_);
    stdlib::swap(size_, other.size_);
    stdlib::swap(stream_, other.stream_);
    stdlib::swap(device_, other.device_);
  }
  T* data_ = nullptr;
  int64 size_ = 0;
  cudaStream_t stream_ = nullptr;
  int device_ = -1;
};

/// Uninitialised elements on the current device, of the type and number of those of `array`: a device_array, a std::vector, a view.
/// Errors: those of device_array::allocate().
template <detail::contiguous_range_like Array>
auto like(cudaStream_t s, const Array& array) {
  using element = stdlib::remove_const_t<detail::element_of<const Array>>;
  return device_array<element>::allocate(s, static_cast<int64>(array.size()));
}

/// A copy of `source`, one contiguous dimension in the memory of the host or of a GPU, on the current device. When the call
/// returns, pageable host memory may be reused; pinned and device memory must stay as they are until the stream has come this far.
template <class T>
result<device_array<T>> to_device(cudaStream_t s, tensor_view<const T, 1> source) {
  const auto all = detail::flat(source, "source");
  if (!all.ok()) return {{}, all.state};
  result<device_array<T>> r = device_array<T>::allocate(s, all.value.size());
  if (r.ok()) r.state = detail::copy_flat<T>(s, all.value, tensor_view<T, 1>(r.value), "source");
  if (!r.ok()) r.value = {};
  return r;
}

/// The same from a std::vector, std::array or std::span, or from a contiguous view of more dimensions.
template <detail::contiguous_range_like Array>
auto to_device(cudaStream_t s, const Array& source) {
  using element = stdlib::remove_const_t<detail::element_of<const Array>>;
  const auto all = detail::flat(source, "source");
  return all.ok() ? to_device<element>(s, tensor_view<const element, 1>(all.value))
                  : result<device_array<element>>{{}, all.state};
}

/// Copies into host memory of the same size, waits for the stream, and reports what went wrong in it.
template <class T>
status to_host(cudaStream_t s, tensor_view<const T, 1> source, tensor_view<T, 1> target) {
  if (const status state = detail::flat(source, "source").state; !state.ok()) return state;
  if (const status state = detail::flat(target, "target").state; !state.ok()) return state;
  if (const status state = detail::copy_flat<T>(s, source, target, "target"); !state.ok()) return state;
  return detail::consume(cudaStreamSynchronize(s), "stream");
}

/// The same from a device_array into a std::vector, std::array, std::span or pinned_array of the same size.
template <class T, detail::contiguous_range_like Range>
status to_host(cudaStream_t s, const device_array<T>& source, Range&& target) {
  return to_host<T>(s, tensor_view<const T, 1>(source), tensor_view<T, 1>(target));
}

}  // namespace giwa::inline GIWA_ABI

#endif
