// SPDX-License-Identifier: MIT
// Owning types for streams and events, and the time between two events.
#ifndef GIWA_DEVICE_STREAM_HPP
#define GIWA_DEVICE_STREAM_HPP

#include <giwa/base/cuda_status.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Owns one handle of the CUDA runtime. Movable, not copyable.
template <class Handle, cudaError_t (*Destroy)(Handle)>
class unique_handle {
 public:
  unique_handle() = default;
  unique_handle(unique_handle&& other) noexcept : handle_(other.release()) {}
  unique_handle& operator=(unique_handle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = other.release();
    }
    return *this;
  }
  ~unique_handle() { reset(); }

  /// Returns the handle of the runtime, which this object still owns.
  Handle get() const { return handle_; }
  operator Handle() const { return handle_; }

 protected:
  explicit unique_handle(Handle handle) : handle_(handle) {}

 private:
  Handle release() {
    const Handle handle = handle_;
    handle_ = nullptr;
    return handle;
  }
  void reset() {
    if (handle_ != nullptr) static_cast<void>(consume(Destroy(handle_)));
    handle_ = nullptr;
  }
  Handle handle_ = nullptr;
};

}  // namespace detail

/// Owns a CUDA stream. Converts to cudaStream_t. Created on the current device; does not synchronise with the default
/// stream. Work that is enqueued when the object is destroyed still runs. A default-constructed object is the default
/// stream.
class stream : public detail::unique_handle<cudaStream_t, cudaStreamDestroy> {
 public:
  stream() = default;
  /// Creates a stream of the current device that does not synchronise with the default stream.
  static result<stream> create() {
    cudaStream_t handle = nullptr;
    const status s = detail::consume(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
    return {stream(handle), s};
  }

 private:
  explicit stream(cudaStream_t handle) : unique_handle(handle) {}
};

/// Waits until the stream has done all its work. Errors: those of the work, as the CUDA runtime reports them.
inline status synchronize(cudaStream_t s) { return detail::consume(cudaStreamSynchronize(s), "stream"); }

/// Owns a CUDA event: a point in the work of a stream.
class event : public detail::unique_handle<cudaEvent_t, cudaEventDestroy> {
 public:
  event() = default;
  /// Creates an event. With `timed` it records the time; without, waiting for it is cheaper.
  static result<event> create(bool timed = true) {
    cudaEvent_t handle = nullptr;
    const status s =
        detail::consume(cudaEventCreateWithFlags(&handle, timed ? cudaEventDefault : cudaEventDisableTiming));
    return {event(handle), s};
  }

  /// Records the event after the work that the stream has so far. Asynchronous.
  status record(cudaStream_t s) const { return detail::consume(cudaEventRecord(get(), s), "stream"); }
  /// Makes later work of the stream `s` wait for the event. Asynchronous.
  status hold(cudaStream_t s) const { return detail::consume(cudaStreamWaitEvent(s, get(), 0), "stream"); }
  /// Waits on the host until the work before the event is done.
  status synchronize() const { return detail::consume(cudaEventSynchronize(get())); }

 private:
  explicit event(cudaEvent_t handle) : unique_handle(handle) {}
};

/// Returns the milliseconds between two timed events. Errors: one has no time, or its work is not done yet.
inline result<float> milliseconds_between(const event& first, const event& last) {
  float ms = 0;
  const status s = detail::consume(cudaEventElapsedTime(&ms, first, last));
  return {ms, s};
}

}  // namespace giwa::inline GIWA_ABI

#endif
