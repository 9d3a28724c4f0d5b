// SPDX-License-Identifier: MIT
// Streams and events that clean up after themselves, and the time between two events.
#ifndef GIWA_DEVICE_STREAM_HPP
#define GIWA_DEVICE_STREAM_HPP

#include <giwa/base/cuda_status.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Owns one handle of the CUDA runtime; moves, does not copy.
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

  /// The runtime's handle; stays owned here.
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

/// A stream of the current device, which does not wait for the default stream. Passes wherever a cudaStream_t is due.
/// Its work goes on when it is destroyed. An empty stream object is the default stream.
class stream : public detail::unique_handle<cudaStream_t, cudaStreamDestroy> {
 public:
  stream() = default;
  /// On the current device. Does not wait for the default stream.
  static result<stream> create() {
    cudaStream_t handle = nullptr;
    const status s = detail::consume(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
    return {stream(handle), s};
  }

 private:
  explicit stream(cudaStream_t handle) : unique_handle(handle) {}
};

/// Waits until the stream has done all that it was given, and reports the first thing that went wrong in it.
inline status synchronize(cudaStream_t s) { return detail::consume(cudaStreamSynchronize(s), "stream"); }

/// A point in a stream's work.
class event : public detail::unique_handle<cudaEvent_t, cudaEventDestroy> {
 public:
  event() = default;
  /// With `timed` an event carries a time stamp; without it waiting for it is cheaper.
  static result<event> create(bool timed = true) {
    cudaEvent_t handle = nullptr;
    const status s =
        detail::consume(cudaEventCreateWithFlags(&handle, timed ? cudaEventDefault : cudaEventDisableTiming));
    return {event(handle), s};
  }

  /// Marks what the stream has been given so far. Asynchronous.
  status record(cudaStream_t s) const { return detail::consume(cudaEventRecord(get(), s), "stream"); }
  /// Makes the stream's later work wait for this event. Asynchronous.
  status hold(cudaStream_t s) const { return detail::consume(cudaStreamWaitEvent(s, get(), 0), "stream"); }
  /// Waits on the host until the event has happened.
  status synchronize() const { return detail::consume(cudaEventSynchronize(get())); }

 private:
  explicit event(cudaEvent_t handle) : unique_handle(handle) {}
};

/// The milliseconds between two timed events that have both happened.
inline result<float> milliseconds_between(const event& first, const event& last) {
  float ms = 0;
  const status s = detail::consume(cudaEventElapsedTime(&ms, first, last));
  return {ms, s};
}

}  // namespace giwa::inline GIWA_ABI

#endif
