// SPDX-License-Identifier: MIT
// The memory of a GPU: how much is free and how much this process holds, trimming it, and out of memory in words.
#ifndef GIWA_DEVICE_MEMORY_HPP
#define GIWA_DEVICE_MEMORY_HPP

#include <giwa/base/throw.hpp>
#include <giwa/device/properties.hpp>

#include <cstdio>

namespace giwa::inline GIWA_ABI {

/// A number of bytes in words, in a buffer of fixed size.
struct bytes_text {
  char text[32];  ///< zero-terminated
  /// Returns the text, for printf.
  const char* c_str() const { return text; }
};

/// Returns a number of bytes in words, in units of 1024: "96.0 GiB", "1.5 KiB", "512 bytes".
inline bytes_text format_bytes(int64 bytes) {
  constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  bytes_text out;
  int unit = 0;
  double value = static_cast<double>(bytes);
  // A value that would print as 1024.0 becomes 1.0 of the next unit.
  for (; unit < 6 && (value < 0 ? -value : value) >= (unit == 0 ? 1024 : 1023.95); ++unit) value /= 1024;
  std::snprintf(out.text, sizeof out.text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return out;
}

/// The memory of a GPU, in bytes.
struct memory_report {
  int device = -1;  ///< the number of the GPU
  int64 total = 0;  ///< all of its memory
  int64 free = 0;   ///< free for every process, without what the pool of this process has reserved
  /// The pool of this process that device_array allocates from: the memory that it has reserved, the part of that which
  /// arrays use, and the highest value of each so far.
  ///@{
  int64 pool_reserved = 0, pool_used = 0;
  int64 pool_reserved_most = 0, pool_used_most = 0;
  ///@}
};

namespace detail {

/// Returns the pool of cudaMallocAsync on a GPU.
inline result<cudaMemPool_t> pool_of(int device) {
  if (const status s = check_device(device); !s.ok()) return {nullptr, s};
  cudaMemPool_t pool = nullptr;
  const status s = consume(cudaDeviceGetMemPool(&pool, device), "device");
  return {pool, s};
}

}  // namespace detail

/// Returns the memory of GPU number `device`. Does not synchronise: memory that was freed in a stream may count as used
/// until the program has synchronised with the stream. The current device stays. Errors: there is no such GPU.
inline result<memory_report> memory_of(int device) {
  const result<cudaMemPool_t> pool = detail::pool_of(device);
  if (!pool.ok()) return {{}, pool.state};
  memory_report report;
  report.device = device;
  const result<device_guard> guard = device_guard::activate(device);
  if (!guard.ok()) return {{}, guard.state};
  stdlib::size_t free = 0, total = 0;
  status s = detail::consume(cudaMemGetInfo(&free, &total), "device");
  report.free = static_cast<int64>(free);
  report.total = static_cast<int64>(total);
  const auto ask = [&](cudaMemPoolAttr which, int64& answer) {
    unsigned long long bytes = 0;
    if (s.ok()) s = detail::consume(cudaMemPoolGetAttribute(pool.value, which, &bytes), "device");
    answer = static_cast<int64>(bytes);
  };
  ask(cudaMemPoolAttrReservedMemCurrent, report.pool_reserved);
  ask(cudaMemPoolAttrUsedMemCurrent, report.pool_used);
  ask(cudaMemPoolAttrReservedMemHigh, report.pool_reserved_most);
  ask(cudaMemPoolAttrUsedMemHigh, report.pool_used_most);
  return {s.ok() ? report : memory_report{}, s};
}

/// Prints a memory report in two lines: the memory of the GPU, and that of the pool.
inline void print(const memory_report& m, std::FILE* to = stdout) {
  std::fprintf(to, "GPU %d: %s free of %s\n", m.device, format_bytes(m.free).c_str(), format_bytes(m.total).c_str());
  std::fprintf(to, "       this process's pool: %s in use, at most %s; %s reserved, at most %s\n",
               format_bytes(m.pool_used).c_str(), format_bytes(m.pool_used_most).c_str(),
               format_bytes(m.pool_reserved).c_str(), format_bytes(m.pool_reserved_most).c_str());
}

/// Returns a status in words as format_status() does. If a device_array did not fit, the text contains the memory `m`
/// of the GPU, from memory_of(): "giwa: out of memory `size`: 160.0 GiB asked for, 80.2 GiB free of 139.8 GiB; this
/// process's pool holds 48.0 GiB, 40.0 GiB of it in use".
inline status_text format_memory(const status& s, const memory_report& m) {
  if (s.code != status_code::out_of_memory || s.relation != bound::at_most) return format_status(s);
  status_text out;
  std::snprintf(out.text, sizeof out.text,
                "giwa: %s `%s`: %s asked for, %s free of %s; this process's pool holds %s, %s of it in use",
                name_of(s.code), s.argument, format_bytes(s.got).c_str(), format_bytes(s.expected).c_str(),
                format_bytes(m.total).c_str(), format_bytes(m.pool_reserved).c_str(),
                format_bytes(m.pool_used).c_str());
  return out;
}

/// Returns the reserved but unused memory of the pool on GPU number `device` to the driver, for other processes and for
/// cudaMalloc. Does not help device_arrays of this process, which get that memory anyway. Does not synchronise: memory
/// that was freed in a stream is returned only after the program has synchronised with the stream. Errors: there is no
/// such GPU.
inline status trim(int device) {
  const result<cudaMemPool_t> pool = detail::pool_of(device);
  return pool.ok() ? detail::consume(cudaMemPoolTrimTo(pool.value, 0), "device") : pool.state;
}

/// Lets the pool on GPU number `device` keep up to `bytes` of unused memory. By default it keeps none: every
/// synchronisation returns unused memory to the driver, and the next allocation requests it again. The driver keeps the
/// setting for this process; the default is 0. Errors: there is no such GPU; `bytes` is negative.
inline status keep_memory(int device, int64 bytes) {
  if (bytes < 0) return status::invalid("bytes", "sizes must not be negative", bound::at_least, 0, bytes);
  const result<cudaMemPool_t> pool = detail::pool_of(device);
  auto threshold = static_cast<unsigned long long>(bytes);
  return pool.ok() ? detail::consume(cudaMemPoolSetAttribute(pool.value, cudaMemPoolAttrReleaseThreshold, &threshold),
                                     "device")
                   : pool.state;
}

}  // namespace giwa::inline GIWA_ABI

#endif
