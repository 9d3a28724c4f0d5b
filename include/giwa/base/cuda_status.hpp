// SPDX-License-Identifier: MIT
// Converts CUDA runtime errors to statuses.
#ifndef GIWA_BASE_CUDA_STATUS_HPP
#define GIWA_BASE_CUDA_STATUS_HPP

#include <giwa/base/status.hpp>

#if defined(__has_include) && !__has_include(<cuda_runtime_api.h>)
#error "giwa needs the headers of the CUDA toolkit, on the CPU too: add the toolkit's include/ to the include path."
#endif
#include <cuda_runtime_api.h>

namespace giwa::inline GIWA_ABI {

/// Converts the result of a CUDA runtime call to a status. `argument` is the name of the caller's argument that the
/// call was about, or empty. Leaves the error that cudaGetLastError returns as it is.
inline status to_status(cudaError_t error, const char* argument = "") {
  const auto as = [&](status_code code, const char* message) {
    // A missing driver is not the fault of any argument.
    return status{
        code, bound::none, static_cast<int>(error), message, code == status_code::no_driver ? "" : argument, 0, 0};
  };
  switch (error) {
    case cudaSuccess: return {};
    case cudaErrorNoDevice:
      return as(status_code::no_device,
                "the driver finds no GPU; check that one is installed, and check CUDA_VISIBLE_DEVICES");
    case cudaErrorInvalidDevice: return as(status_code::no_device, "there is no GPU with this number");
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
      return as(status_code::no_driver,
                "no NVIDIA driver is installed, or it is older than the CUDA runtime of this binary");
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorSystemDriverMismatch:
      return as(status_code::no_driver, "the NVIDIA driver and its libraries do not match each other or this GPU");
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
      return as(status_code::no_kernel_image,
                "this binary contains no code for this GPU; build for it with -gencode or CMAKE_CUDA_ARCHITECTURES");
    case cudaErrorInvalidResourceHandle:
      return as(status_code::invalid_argument,
                "a stream, event or kernel does not exist, or does not belong to the current GPU");
    case cudaErrorMemoryAllocation:
      return as(status_code::out_of_memory, "the allocation does not fit in the free memory");
    case cudaErrorInvalidValue: return as(status_code::invalid_argument, cudaGetErrorString(error));
    default: return as(status_code::cuda_error, cudaGetErrorString(error));
  }
}

namespace detail {

/// Converts as to_status() does, and clears the error that a failed call leaves for cudaGetLastError: it is reported by
/// the status, and other code's check must not find it. Sticky errors, which are those of kernels, stay.
inline status consume(cudaError_t error, const char* argument = "") {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return to_status(error, argument);
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
