// SPDX-License-Identifier: MIT
// The GPUs of the machine: their number, their properties, and which one is current.
#ifndef GIWA_DEVICE_PROPERTIES_HPP
#define GIWA_DEVICE_PROPERTIES_HPP

#include <giwa/base/cuda_status.hpp>

#include <compare>

namespace giwa::inline GIWA_ABI {

/// Returns the number of GPUs: 0 without a driver or without a GPU. Never fails, and leaves no CUDA error behind.
inline int device_count() {
  int count = 0;
  return detail::consume(cudaGetDeviceCount(&count)).ok() ? count : 0;
}

/// A compute capability: 9.0 is {9, 0}. Ordered.
struct compute_capability {
  /// The numbers before and after the point.
  ///@{
  int major = 0, minor = 0;
  ///@}
  /// Returns 90 for 9.0, as in sm_90.
  constexpr int value() const { return 10 * major + minor; }
  /// Compares major, then minor.
  ///@{
  friend constexpr auto operator<=>(const compute_capability& a, const compute_capability& b) {
    return a.value() <=> b.value();
  }
  friend constexpr bool operator==(const compute_capability&, const compute_capability&) = default;
  ///@}
};

/// The properties of a GPU. Sizes are in bytes.
struct device_properties {
  int device = -1;                            ///< its number
  char name[256] = {};                        ///< its name, from the driver
  compute_capability capability{};            ///< its compute capability
  int multiprocessors = 0;                    ///< their number
  int threads_per_multiprocessor = 0;         ///< the most resident threads
  int64 memory_bytes = 0;                     ///< global memory
  int64 l2_bytes = 0;                         ///< the L2 cache
  int64 shared_bytes_per_block = 0;           ///< the most that a block may use (launch() opts in above 48 KB)
  int64 shared_bytes_per_multiprocessor = 0;  ///< for all its blocks
  int64 clock_khz = 0;                        ///< the multiprocessors' highest clock
  int64 memory_bytes_per_second = 0;          ///< peak rate of global memory, from clock and bus width; 0 if unknown
  bool cooperative_launch = false;            ///< whether a whole grid can synchronise
  bool cluster_launch = false;                ///< whether blocks can form clusters
  bool pageable_memory_access = false;        ///< kernels can read memory from malloc
};

namespace detail {

/// Looks up a function of the driver as CUDA 12.0 has it; null if the driver has none. Errors: those of the runtime, such as no
/// driver.
inline result<void*> driver_function(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const status s = consume(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found));
#else
  const status s = consume(cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found));
#endif
  return {found == cudaDriverEntryPointSuccess ? entry : nullptr, s};
}

/// Checks that a GPU with this number exists.
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

/// Returns the number of the GPU that is current in this host thread.
inline result<int> current_device() {
  int device = -1;
  const status s = detail::consume(cudaGetDevice(&device));
  return {s.ok() ? device : -1, s};
}

namespace detail {

/// Binds the context of the current device to this host thread if the thread has no context. A context that the program
/// has made current with the driver API stays current. Creates and destroys an event, which is allowed while any thread
/// captures a graph; cudaFree(nullptr), the usual way, is not. Does not wait for the device.
inline status bind_context() {
  cudaEvent_t event = nullptr;
  const status s = consume(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return s.ok() ? consume(cudaEventDestroy(event)) : s;
}

}  // namespace detail

/// Returns the properties of GPU number `device`. Queries the driver many times: call it once and keep the result.
/// Errors: there is no such GPU.
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

/// Makes a GPU current for this host thread. The destructor restores the one that was current before.
class device_guard {
 public:
  device_guard() = default;

  /// Makes GPU number `device` current. Errors: there is no such GPU; then nothing changes.
  static result<device_guard> activate(int device) {
    result<device_guard> r;
    r.state = detail::check_device(device);
    if (!r.ok()) return r;
    const result<int> before = current_device();
    r.state = before.ok() ? detail::consume(cudaSetDevice(device), "device") : before.state;
    if (r.ok()) r.value.previous_ = before.value;
    return r;
  }

  /// Takes over the restoring of the previous GPU.
  device_guard(device_guard&& other) noexcept : previous_(other.previous_) { other.previous_ = -1; }
  // No assignment: the guard that is overwritten would restore its GPU after the other guard has made its GPU current.
  device_guard& operator=(device_guard&&) = delete;
  ~device_guard() {
    if (previous_ >= 0) static_cast<void>(detail::consume(cudaSetDevice(previous_)));
  }

 private:
  int previous_ = -1;
};

}  // namespace giwa::inline GIWA_ABI

#endif
