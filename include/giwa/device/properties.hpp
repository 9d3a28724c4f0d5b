// SPDX-License-Identifier: MIT
// Which GPUs there are, which one is current, and what each can do.
#ifndef GIWA_DEVICE_PROPERTIES_HPP
#define GIWA_DEVICE_PROPERTIES_HPP

#include <giwa/base/cuda_status.hpp>

#include <compare>

namespace giwa::inline GIWA_ABI {

/// The number of usable GPUs: 0 without a driver or without a GPU. Never fails, leaves no CUDA error behind.
inline int device_count() {
  int count = 0;
  return detail::consume(cudaGetDeviceCount(&count)).ok() ? count : 0;
}

/// 9.0 is {9, 0}; ordered.
struct compute_capability {
  /// As NVIDIA counts them.
  ///@{
  int major = 0, minor = 0;
  ///@}
  /// 90, as in sm_90.
  constexpr int value() const { return 10 * major + minor; }
  /// By major, then by minor.
  ///@{
  friend constexpr auto operator<=>(const compute_capability& a, const compute_capability& b) {
    return a.value() <=> b.value();
  }
  friend constexpr bool operator==(const compute_capability&, const compute_capability&) = default;
  ///@}
};

/// What giwa and its users ask of a GPU. Sizes in bytes.
struct device_properties {
  int device = -1;                     ///< its number
  char name[256] = {};                 ///< as the driver has it
  compute_capability capability{};     ///< of its instructions
  int multiprocessors = 0;             ///< how many
  int threads_per_multiprocessor = 0;  ///< the most at once
  int64 memory_bytes = 0;              ///< global memory
  int64 l2_bytes = 0;                  ///< of the cache before it
  int64 shared_bytes_per_block = 0;    ///< the most a block may ask for (launch() does what is needed above 48 KB)
  int64 shared_bytes_per_multiprocessor = 0;  ///< for all its blocks
  int64 clock_khz = 0;                        ///< the multiprocessors' highest clock
  int64 memory_bytes_per_second = 0;  ///< the memory's peak rate, by its clock and width; 0 if the driver does not say
  bool cooperative_launch = false;    ///< whether a whole grid can synchronise
  bool cluster_launch = false;        ///< whether blocks can form clusters
  bool pageable_memory_access = false;  ///< kernels may read memory that malloc gave
};

namespace detail {

/// A device number that exists, or why it does not.
inline status check_device(int device) {
  int count = 0;
  if (const status s = consume(cudaGetDeviceCount(&count), "device"); !s.ok()) return s;
  if (device >= 0 && device < count) return {};
  status s{status_code::no_device, bound::at_most, 0, "there is no GPU with this number", "device", count - 1, device};
  if (device < 0) s.relation = bound::at_least, s.expected = 0;
  return s;
}

inline result<int64> attribute(int device, cudaDeviceAttr which) {
  int value = 0;
  const status s = consume(cudaDeviceGetAttribute(&value, which, device), "device");
  return {value, s};
}

}  // namespace detail

/// The GPU that this host thread's next launch would use.
inline result<int> current_device() {
  int device = -1;
  const status s = detail::consume(cudaGetDevice(&device));
  return {s.ok() ? device : -1, s};
}

namespace detail {

/// Binds a context to this host thread if it has none: that of the current device, which stays the current one. A context
/// that the program has made current by the driver's API stays, too. By creating an event, which any call may do while any
/// thread captures a graph; cudaFree(nullptr), the usual way, may not. Waits for nothing.
inline status bind_context() {
  cudaEvent_t event = nullptr;
  const status s = consume(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return s.ok() ? consume(cudaEventDestroy(event)) : s;
}

}  // namespace detail

/// The properties of GPU number `device`. Many questions to the driver: ask once, keep the answer.
inline result<device_properties> properties_of(int device) {
  if (const status s = detail::check_device(device); !s.ok()) return {{}, s};
  device_properties p;
  p.device = device;
  status failure;
  const auto ask = [&](cudaDeviceAttr which) {
    const result<int64> r = detail::attribute(device, which);
    if (!r.ok() && failure.ok()) failure = r.state;
    return r.value;
  };
  p.capability = {static_cast<int>(ask(cudaDevAttrComputeCapabilityMajor)),
                  static_cast<int>(ask(cudaDevAttrComputeCapabilityMinor))};
  p.multiprocessors = static_cast<int>(ask(cudaDevAttrMultiProcessorCount));
  p.threads_per_multiprocessor = static_cast<int>(ask(cudaDevAttrMaxThreadsPerMultiProcessor));
  p.l2_bytes = ask(cudaDevAttrL2CacheSize);
  p.shared_bytes_per_block = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  p.shared_bytes_per_multiprocessor = ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  p.clock_khz = ask(cudaDevAttrClockRate);
  // Two transfers a clock, the bus width in bits.
  p.memory_bytes_per_second = ask(cudaDevAttrMemoryClockRate) * 1000 * 2 * (ask(cudaDevAttrGlobalMemoryBusWidth) / 8);
  p.cooperative_launch = ask(cudaDevAttrCooperativeLaunch) != 0;
  p.cluster_launch = ask(cudaDevAttrClusterLaunch) != 0;
  p.pageable_memory_access = ask(cudaDevAttrPageableMemoryAccess) != 0;
  if (failure.ok()) {
    cudaDeviceProp all{};
    failure = detail::consume(cudaGetDeviceProperties(&all, device), "device");
    p.memory_bytes = static_cast<int64>(all.totalGlobalMem);
    for (int i = 0; i < 255; ++i) p.name[i] = all.name[i];
  }
  return {failure.ok() ? p : device_properties{}, failure};
}

/// Makes a GPU current for this host thread until the guard goes, then the one that was current before.
class device_guard {
 public:
  device_guard() = default;

  /// Fails, and changes nothing, if there is no such GPU.
  static result<device_guard> activate(int device) {
    result<device_guard> r;
    r.state = detail::check_device(device);
    if (!r.ok()) return r;
    const result<int> before = current_device();
    r.state = before.ok() ? detail::consume(cudaSetDevice(device), "device") : before.state;
    if (r.ok()) r.value.previous_ = before.value;
    return r;
  }

  /// Takes over the duty to go back.
  device_guard(device_guard&& other) noexcept : previous_(other.previous_) { other.previous_ = -1; }
  // No assignment: the guard that goes would restore its GPU over the one that the other has just made current.
  device_guard& operator=(device_guard&&) = delete;
  ~device_guard() {
    if (previous_ >= 0) static_cast<void>(detail::consume(cudaSetDevice(previous_)));
  }

 private:
  int previous_ = -1;
};

}  // namespace giwa::inline GIWA_ABI

#endif
