// SPDX-License-Identifier: MIT
// Where a pointer leads: host, pinned, managed, or the memory of which GPU.
#ifndef GIWA_DEVICE_POINTER_HPP
#define GIWA_DEVICE_POINTER_HPP

#include <giwa/device/properties.hpp>

namespace giwa::inline GIWA_ABI {

/// What kind of memory a pointer leads to.
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

/// Where the pointer leads. Without a driver every pointer is a host pointer. Takes about 0.1 microseconds.
inline result<pointer_location> location_of(const void* pointer) {
  cudaPointerAttributes a{};
  const status s = detail::consume(cudaPointerGetAttributes(&a, pointer), "pointer");
  if (s.code == status_code::no_driver || s.code == status_code::no_device) return {{}, {}};
  if (!s.ok()) return {{}, s};
  switch (a.type) {
    case cudaMemoryTypeDevice: return {{memory_kind::device, a.device}, {}};
    case cudaMemoryTypeManaged: return {{memory_kind::managed, a.device}, {}};
    case cudaMemoryTypeHost: return {{memory_kind::pinned, -1}, {}};
    default: return {{}, {}};
  }
}

/// Whether the CPU may use the pointer; the failure names the argument, and the GPU whose memory it is.
inline status check_host_pointer(const void* pointer, const char* argument) {
  const result<pointer_location> where = location_of(pointer);
  if (!where.ok() || where.value.kind != memory_kind::device) return where.state;
  return status::invalid(argument,
                         "the pointer leads to a GPU's memory, which the CPU cannot read; copy it with to_host");
}

/// Whether a kernel on the current device may use the pointer; the failure names the argument and what it found. Memory of
/// another GPU passes where this one has been given access.
inline status check_device_pointer(const void* pointer, const char* argument) {
  cudaPointerAttributes a{};
  if (const status s = detail::consume(cudaPointerGetAttributes(&a, pointer), argument); !s.ok()) return s;
  // An address on the current device: its own memory, managed or pinned memory, or a peer's with access.
  if (a.type != cudaMemoryTypeUnregistered && a.devicePointer != nullptr) return {};
  const result<int> device = current_device();
  if (!device.ok()) return device.state;
  if (a.type == cudaMemoryTypeDevice)
    return status::invalid(argument, "the pointer leads to the memory of another GPU, to which this one has no access",
                           bound::exactly, device.value, a.device);
  const result<int64> pageable = detail::attribute(device.value, cudaDevAttrPageableMemoryAccess);
  if (!pageable.ok()) return pageable.state;
  if (pageable.value != 0) return {};  // the GPU reads the host's pages
  return status::invalid(argument,
                         "the pointer leads to host memory, which this GPU cannot read; copy it with to_device");
}

}  // namespace giwa::inline GIWA_ABI

#endif
