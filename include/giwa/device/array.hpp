// SPDX-License-Identifier: MIT
// device_array: an array in device memory, allocated and freed in stream order; and copies to and from it.
#ifndef GIWA_DEVICE_ARRAY_HPP
#define GIWA_DEVICE_ARRAY_HPP

#include <giwa/device/copy.hpp>
#include <giwa/device/properties.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Checks the size of an array: not negative, and its bytes fit in 64 bits.
constexpr status check_array_size(int64 size, int64 element_bytes) {
  if (size < 0) return status::invalid("size", "sizes must not be negative", bound::at_least, 0, size);
  if (product_overflows(size, element_bytes))
    return status::invalid("size", "the bytes of the array must fit in 64 bits", bound::at_most,
                           max_int64 / element_bytes, size);
  return {};
}

}  // namespace detail

/// An array of `size()` elements in device memory, which it owns. Movable, not copyable. Converts to tensor_view<T, 1>.
///
/// Allocation and deallocation are ordered by the stream: work that the stream gets after allocate() may use the
/// memory, and the destructor frees it after the work that the stream has by then. Other streams must be made to wait
/// (see event), and the stream must outlive the array. The destructor may run in any host thread and with any GPU
/// current.
template <class T>
class device_array {
 public:
  static_assert(goes_as_bytes<T> && !stdlib::is_const_v<T>,
                "giwa::device_array: elements are copied byte by byte, so T must be trivially copyable and not const.");
  using element_type = T;  ///< the element type

  /// An array without elements.
  device_array() = default;

  /// Allocates `size` uninitialised elements on the GPU of the stream `s`, from the pool of cudaMallocAsync.
  /// Asynchronous; not to be called while `s` captures a graph. Errors: a size that is negative or too large;
  /// out_of_memory, with the bytes requested as `got` and the free bytes of the GPU as `expected` (format_memory()
  /// prints both).
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
        r.state.message = "the bytes of the array must fit in the free memory of this GPU";
        r.state.relation = bound::at_most;
        r.state.expected = static_cast<int64>(free);
        r.state.got = bytes;
      }
    }
    if (r.ok()) {
      r.value.data_ = static_cast<T*>(memory);
      r.value.size_ = size;
      r.value.stream_ = s;
      cudaPointerAttributes a{};  // the GPU of the stream, which may not be the current one
      r.state = detail::consume(cudaPointerGetAttributes(&a, memory));
      r.value.device_ = a.device;
    }
    if (!r.ok()) r.value = {};
    return r;
  }

  /// Takes over the memory of the other array, which becomes empty.
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
    // A default stream is that of the array's GPU, which has to be current for it.
    const result<device_guard> guard =
        current_device().value == device_ ? result<device_guard>{} : device_guard::activate(device_);
    static_cast<void>(detail::consume(cudaFreeAsync(data_, stream_)));
  }

  /// Returns a pointer to the first element, or null if there are no elements.
  ///@{
  T* data() { return data_; }
  const T* data() const { return data_; }
  ///@}
  /// Returns the number of elements.
  int64 size() const { return size_; }
  /// Returns the number of the GPU that holds the array, or -1 if there are no elements.
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

/// Allocates an uninitialised device_array with the element type and the size of `array`, which is a device_array, a
/// std::vector, a view, or any type with data() and size(). Asynchronous on `s`. Errors: those of
/// device_array::allocate().
template <detail::contiguous_range_like Array>
auto like(cudaStream_t s, const Array& array) {
  using element = stdlib::remove_const_t<detail::element_of<const Array>>;
  return device_array<element>::allocate(s, static_cast<int64>(array.size()));
}

/// Copies `source`, a contiguous view of host or device memory, to a new device_array. Asynchronous on `s`. Pageable
/// host memory may change as soon as the call returns; pinned and device memory must not change until the stream has
/// done the copy. Errors: `source` is null or not contiguous, and those of device_array::allocate().
template <class T>
result<device_array<T>> to_device(cudaStream_t s, tensor_view<const T, 1> source) {
  const auto all = detail::flat(source, "source");
  if (!all.ok()) return {{}, all.state};
  result<device_array<T>> r = device_array<T>::allocate(s, all.value.size());
  if (r.ok()) r.state = detail::copy_flat<T>(s, all.value, tensor_view<T, 1>(r.value), "source");
  if (!r.ok()) r.value = {};
  return r;
}

/// Copies a std::vector, std::array or std::span, or a contiguous view of any rank, to a new device_array.
template <detail::contiguous_range_like Array>
auto to_device(cudaStream_t s, const Array& source) {
  using element = stdlib::remove_const_t<detail::element_of<const Array>>;
  const auto all = detail::flat(source, "source");
  return all.ok() ? to_device<element>(s, tensor_view<const element, 1>(all.value))
                  : result<device_array<element>>{{}, all.state};
}

/// Copies to the host, and waits for the stream. Errors: those of copy(), and errors of earlier work in the stream.
///
/// Parameters:
///   - s: the stream
///   - source: a view of device memory
///   - target: a view of equal size; written
template <class T>
status to_host(cudaStream_t s, tensor_view<const T, 1> source, tensor_view<T, 1> target) {
  if (const status state = detail::flat(source, "source").state; !state.ok()) return state;
  if (const status state = detail::flat(target, "target").state; !state.ok()) return state;
  if (const status state = detail::copy_flat<T>(s, source, target, "target"); !state.ok()) return state;
  return detail::consume(cudaStreamSynchronize(s), "stream");
}

/// Copies a device_array to the host, and waits for the stream.
///
/// Parameters:
///   - s: the stream
///   - source: the device_array
///   - target: a std::vector, std::array, std::span or pinned_array of equal size; written
template <class T, detail::contiguous_range_like Range>
status to_host(cudaStream_t s, const device_array<T>& source, Range&& target) {
  return to_host<T>(s, tensor_view<const T, 1>(source), tensor_view<T, 1>(target));
}

}  // namespace giwa::inline GIWA_ABI

#endif
