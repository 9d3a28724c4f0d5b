// SPDX-License-Identifier: MIT
// for_each_device: splits a batch over several GPUs, each with its part and a stream, from one host thread.
#ifndef GIWA_DEVICE_FOR_EACH_DEVICE_HPP
#define GIWA_DEVICE_FOR_EACH_DEVICE_HPP

#include <giwa/device/host.hpp>
#include <giwa/device/properties.hpp>
#include <giwa/device/split_batch.hpp>
#include <giwa/device/stream.hpp>

namespace giwa::inline GIWA_ABI {

/// A status with the number of the GPU that it is about: -1 for the CPU, and for errors of the arguments.
struct [[nodiscard]] GIWA_ABI_TAG device_status {
  int device = -1;  ///< the GPU that failed, or -1
  status state{};   ///< success, or the first failure

  /// Returns whether all parts succeeded.
  ///@{
  bool ok() const { return state.ok(); }
  explicit operator bool() const { return ok(); }
  ///@}
};

namespace detail {

/// A stream with work on the caller's memory. The destructor waits for the work, also when an exception propagates.
class awaited_stream {
 public:
  awaited_stream() = default;
  awaited_stream(awaited_stream&&) = delete;
  ~awaited_stream() { static_cast<void>(wait()); }

  status create() {
    result<stream> made = stream::create();
    stream_ = static_cast<stream&&>(made.value);
    return made.state;
  }
  cudaStream_t get() const { return stream_; }
  status wait() {
    if (stream_.get() == nullptr) return {};
    const status s = synchronize(stream_);
    stream_ = stream();
    return s;
  }

 private:
  stream stream_;
};

template <class F>
status start_part(awaited_stream& s, const batch_part& part, F& f) {
  const result<device_guard> guard = device_guard::activate(part.device);
  if (!guard.ok()) return guard.state;
  if (const status state = s.create(); !state.ok()) return state;
  return f(s.get(), part);
}

/// Runs the parts from number i on, which begin at item `first`. Starts all of them before it waits for the first.
template <class F>
device_status run_parts(const tensor_view<const int, 1>& devices, const weighted_batch& batch, int64 i, int64 first,
                        F& f) {
  if (i == batch.parts) return {};
  const batch_part part{devices(i), first, batch.count_of(i)};
  if (part.count == 0) return run_parts(devices, batch, i + 1, first, f);
  awaited_stream mine;
  const status started = start_part(mine, part, f);
  device_status others;
  if (started.ok()) others = run_parts(devices, batch, i + 1, first + part.count, f);
  const status done = mine.wait();
  if (!started.ok()) return {part.device, started};
  if (!done.ok()) return {part.device, done};
  return others;
}

}  // namespace detail

/// Splits a batch over GPUs, and calls f for each part that has items, in the order of `devices`, with the GPU of the part
/// current and a new stream of that GPU. Then the call waits for all streams.
///
/// Parameters:
///   - devices: the numbers of the GPUs; one may be listed twice
///   - weights: the parts are in proportion to them (see split_batch()), and equal if it is empty
///   - batch: items
///   - f: `status f(cudaStream_t stream, const batch_part& part)` copies its items to the GPU, enqueues the work, and copies the
///     results back, as in `copy(stream, part.of(q), ...)`
///
/// The calling thread makes all calls of f. If f waits, as copies to pageable memory do, the GPUs work one after the
/// other; with pinned_array they work at the same time. No GPU reads the memory of another. If `devices` is empty,
/// f(giwa::host, part) processes the whole batch on the CPU, if f accepts that (`[&](auto where, ...)`). The first
/// failure stops further calls and is returned with its GPU. Parts that were started are waited for, also if f throws.
/// The current device is restored. Errors: those of f and of split_batch(); a GPU that does not exist.
template <class F>
device_status for_each_device(const tensor_view<const int, 1>& devices, const tensor_view<const int64, 1>& weights,
                              int64 batch, F&& f) {
  static_assert(
      stdlib::is_invocable_r_v<status, F&, cudaStream_t, const batch_part&>,
      "giwa::for_each_device: f must take (cudaStream_t, const giwa::batch_part&) and return a giwa::status.");
  if (const status s = devices.check("devices"); !s.ok()) return {-1, s};
  // The CPU is one part; its weight has no effect.
  const bool on_cpu = devices.size() == 0;
  detail::weighted_batch b{batch, on_cpu ? 1 : devices.size(), on_cpu ? tensor_view<const int64, 1>{} : weights, 0};
  if (const status s = b.prepare(); !s.ok()) return {-1, s};
  if (on_cpu) {
    if (batch == 0) return {};
    if constexpr (requires { f(host, batch_part{}); }) {
      return {-1, f(host, batch_part{-1, 0, batch})};
    } else {
      return {-1,
              {status_code::no_device, bound::none, 0, "the list has no GPU, and the function does not take giwa::host",
               "devices", 0, 0}};
    }
  }
  for (int64 i = 0; i < devices.size(); ++i)
    if (const status s = detail::check_device(devices(i)); !s.ok()) return {devices(i), s};
  return detail::run_parts(devices, b, 0, 0, f);
}

}  // namespace giwa::inline GIWA_ABI

#endif
