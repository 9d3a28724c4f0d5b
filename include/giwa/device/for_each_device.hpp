// SPDX-License-Identifier: MIT
// A batch over several GPUs: each gets its part and a stream, from one host thread; without a GPU the CPU gets all.
#ifndef GIWA_DEVICE_FOR_EACH_DEVICE_HPP
#define GIWA_DEVICE_FOR_EACH_DEVICE_HPP

#include <giwa/device/host.hpp>
#include <giwa/device/properties.hpp>
#include <giwa/device/split_batch.hpp>
#include <giwa/device/stream.hpp>

namespace giwa::inline GIWA_ABI {

/// Success, or the first failure and the GPU it is of: -1 for the CPU, and for what is wrong before any GPU is asked.
struct [[nodiscard]] GIWA_ABI_TAG device_status {
  int device = -1;  ///< whose failure it is
  status state{};   ///< the failure, or success

  /// Whether all parts succeeded.
  ///@{
  bool ok() const { return state.ok(); }
  explicit operator bool() const { return ok(); }
  ///@}
};

namespace detail {

/// A stream that has been given work on the caller's memory: waits for it, also where an exception passes.
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

/// The parts from number i on, which begin at item `first`: all are started before the first is waited for.
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

/// Splits a batch over `devices`, the numbers of GPUs, in proportion to `weights` (see split_batch(); empty: equally), and calls
/// `status f(cudaStream_t stream, const batch_part& part)` for each part that has items: with the part's GPU current and a stream
/// of its own, in the order of `devices`, which is that of the items. f copies its items to the GPU, gives the stream the work, and
/// copies the results home, `copy(stream, part.of(q), …)`; a GPU may be named twice. Then it waits for all streams.
///
/// Everything is given out by the calling thread: where f waits, as copies to pageable memory do, GPUs wait for each other; with
/// pinned_array they work at the same time. No GPU reads the memory of another.
/// Without devices f(giwa::host, part) does the whole batch on the CPU, where f takes that (`[&](auto where, …)`).
/// The first failure ends the giving out and is returned with its GPU; what has been started is awaited, also where f throws.
/// The current device is as before. Errors besides those of f: no such GPU, and those of split_batch().
template <class F>
device_status for_each_device(const tensor_view<const int, 1>& devices, const tensor_view<const int64, 1>& weights,
                              int64 batch, F&& f) {
  static_assert(stdlib::is_invocable_r_v<status, F&, cudaStream_t, const batch_part&>,
                "giwa::for_each_device: f is called with (cudaStream_t, const giwa::batch_part&) and returns a "
                "giwa::status.");
  if (const status s = devices.check("devices"); !s.ok()) return {-1, s};
  // The CPU is one part, whose weight does not matter.
  const bool on_cpu = devices.size() == 0;
  detail::weighted_batch b{batch, on_cpu ? 1 : devices.size(), on_cpu ? tensor_view<const int64, 1>{} : weights, 0};
  if (const status s = b.prepare(); !s.ok()) return {-1, s};
  if (on_cpu) {
    if (batch == 0) return {};
    if constexpr (requires { f(host, batch_part{}); }) {
      return {-1, f(host, batch_part{-1, 0, batch})};
    } else {
      return {-1,
              {status_code::no_device, bound::none, 0,
               "there is no GPU in the list, and the function does not take giwa::host", "devices", 0, 0}};
    }
  }
  for (int64 i = 0; i < devices.size(); ++i)
    if (const status s = detail::check_device(devices(i)); !s.ok()) return {devices(i), s};
  return detail::run_parts(devices, b, 0, 0, f);
}

}  // namespace giwa::inline GIWA_ABI

#endif
