// SPDX-License-Identifier: MIT
// The memory that a pointer refers to: pageable, pinned, managed, or that of a GPU; and who may use it.
#ifndef GIWA_DEVICE_POINTER_HPP
#define GIWA_DEVICE_POINTER_HPP

#include <giwa/device/properties.hpp>

#include <initializer_list>

namespace giwa::inline GIWA_ABI {

/// The kinds of memory that a pointer can refer to.
enum class memory_kind : int {
  pageable,  ///< ordinary host memory, unknown to CUDA
  pinned,    ///< host memory that CUDA has page-locked
  device,    ///< the memory of one GPU
  managed,   ///< moves between host and GPUs
};

/// In words: "pageable host memory", "device memory".
GIWA_HOST_DEVICE constexpr const char* name_of(memory_kind kind) {
  switch (kind) {
    case memory_kind::pageable: return "pageable host memory";
    case memory_kind::pinned: return "pinned host memory";
    case memory_kind::device: return "device memory";
    case memory_kind::managed: return "managed memory";
  }
  return "unknown memory";
}

/// The kind of memory, and whose it is.
struct pointer_location {
  memory_kind kind = memory_kind::pageable;  ///< which kind of memory
  int device = -1;                           ///< the GPU, or -1 for host memory
};

namespace detail {

/// The location that CUDA's answer gives. Unregistered memory is the host's.
inline pointer_location location_from(const cudaPointerAttributes& a) {
  switch (a.type) {
    case cudaMemoryTypeDevice: return {memory_kind::device, a.device};
    case cudaMemoryTypeManaged: return {memory_kind::managed, a.device};
    case cudaMemoryTypeHost: return {memory_kind::pinned, -1};
    default: return {};
  }
}

/// Whether CUDA reports an address on the current device for registered memory: the memory of this device, managed or
/// pinned memory, or the memory of another GPU to which it has access.
inline bool has_device_address(const cudaPointerAttributes& a) {
  return a.type != cudaMemoryTypeUnregistered && a.devicePointer != nullptr;
}

/// Whether the answer may be about a host thread that has no context rather than about the memory. Until the first call
/// of a thread that needs a context, CUDA 13.0 answers device 0 and a null devicePointer for the memory of every GPU.
inline bool may_lack_context(const cudaPointerAttributes& a) {
  return a.type != cudaMemoryTypeUnregistered && a.devicePointer == nullptr;
}

/// Whether a kernel on GPU number `device`, the current one, may use memory of which CUDA answers `a`.
/// `reads_pageable`: this GPU reads the host's pageable memory.
inline status check_attributes(const cudaPointerAttributes& a, int device, bool reads_pageable, const char* argument) {
  if (has_device_address(a)) return {};
  if (a.type == cudaMemoryTypeDevice)
    return status::invalid(argument, "the pointer refers to the memory of another GPU, to which this one has no access",
                           bound::exactly, device, a.device);
  if (reads_pageable) return {};
  return status::invalid(argument,
                         "the pointer refers to host memory, which this GPU cannot read; copy it with to_device");
}

}  // namespace detail

/// Returns the kind of memory that the pointer refers to, and whose it is. Without a driver every pointer is a host
/// pointer. Takes about 0.1 microseconds, and a few for the memory of a GPU to which the current one has no access.
/// Changes neither the current device nor a stream. May be called from any host thread, and while a graph is captured.
inline result<pointer_location> location_of(const void* pointer) {
  cudaPointerAttributes a{};
  const auto ask = [&] { return detail::consume(cudaPointerGetAttributes(&a, pointer), "pointer"); };
  status s = ask();
  if (s.code == status_code::no_driver || s.code == status_code::no_device) return {{}, {}};
  if (s.ok() && detail::may_lack_context(a)) {
    s = detail::bind_context();
    if (s.ok()) s = ask();
  }
  if (!s.ok()) return {{}, s};
  return {detail::location_from(a), {}};
}

/// Returns whether the CPU may use the pointer. The failure names the argument.
inline status check_host_pointer(const void* pointer, const char* argument) {
  const result<pointer_location> where = location_of(pointer);
  if (!where.ok() || where.value.kind != memory_kind::device) return where.state;
  return status::invalid(argument,
                         "the pointer refers to a GPU's memory, which the CPU cannot read; copy it with to_host");
}

/// Returns whether a kernel on the current device may use the pointer. The failure names the argument and what was
/// found. Memory of another GPU passes where the current one has been given access (cudaDeviceEnablePeerAccess,
/// cudaMemPoolSetAccess), and pageable host memory where this GPU reads it. Takes about 0.1 microseconds where it
/// succeeds. Changes neither the current device nor a stream. May be called from any host thread, and while a graph is
/// captured.
inline status check_device_pointer(const void* pointer, const char* argument) {
  cudaPointerAttributes a{};
  const auto ask = [&] { return detail::consume(cudaPointerGetAttributes(&a, pointer), argument); };
  if (const status s = ask(); !s.ok()) return s;
  if (detail::has_device_address(a)) return {};
  const result<int> device = current_device();
  if (!device.ok()) return device.state;
  const result<int64> reads_pageable = detail::attribute(device.value, cudaDevAttrPageableMemoryAccess);
  if (!reads_pageable.ok()) return reads_pageable.state;
  const auto check = [&] { return detail::check_attributes(a, device.value, reads_pageable.value != 0, argument); };
  if (check().ok()) return {};
  // Refused: by an answer that a host thread without a context may get. Asked again with one.
  if (const status s = detail::bind_context(); !s.ok()) return s;
  if (const status s = ask(); !s.ok()) return s;
  return check();
}

namespace detail {

/// An argument of a call: a pointer, or the first element of a view, null if it has none.
struct named_pointer {
  const void* pointer;
  const char* argument;

  named_pointer(const void* p, const char* name) : pointer(p), argument(name) {}
  template <class View>
    requires requires(const View& v) { v.size(), v.data(); }
  named_pointer(const View& v, const char* name) : named_pointer(v.size() > 0 ? v.data() : nullptr, name) {}
};

/// Checks the pointers of a call, each by check_device_pointer(), up to the first that a kernel may not use. Null pointers pass: no
/// kernel reads them.
inline status check_named_pointers(std::initializer_list<named_pointer> all) {
  status state;
  for (const named_pointer& p : all)
    if (state.ok() && p.pointer != nullptr) state = check_device_pointer(p.pointer, p.argument);
  return state;
}
/// The same of each for which for_each(f) calls f(pointer or view, argument).
template <class ForEach>
status check_each_pointer(const ForEach& for_each) {
  status s;
  for_each([&](const auto& x, const char* argument) {
    if (s.ok()) s = check_named_pointers({{x, argument}});
  });
  return s;
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
