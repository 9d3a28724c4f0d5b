// SPDX-License-Identifier: MIT
// From a CUDA runtime error to a status.
#ifndef GIWA_BASE_CUDA_STATUS_HPP
#define GIWA_BASE_CUDA_STATUS_HPP

#include <giwa/base/status.hpp>

#include <cuda_runtime_api.h>

namespace giwa::inline GIWA_ABI {

/// The status that a CUDA runtime call answers with. `argument` names what the call was about, if anything.
/// The runtime also keeps the error for cudaGetLastError; see consume() for calls whose error is fully reported.
inline status to_status(cudaError_t error, const char* argument = "") {
  const auto as = [&](status_code code, const char* message) {
    // Without a driver no argument is at fault, whatever it was.
    return status{
        code, bound::none, static_cast<int>(error), message, code == status_code::no_driver ? "" : argument, 0, 0};
  };
  switch (error) {
    case cudaSuccess: return {};
    case cudaErrorNoDevice:
      return as(status_code::no_device, "the driver sees no GPU; is one installed, and is CUDA_VISIBLE_DEVICES right?");
    case cudaErrorInvalidDevice: return as(status_code::no_device, "there is no GPU with this number");
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
      return as(status_code::no_driver,
                "no NVIDIA driver is installed, or it is older than the CUDA runtime of this binary");
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorSystemDriverMismatch:
      return as(status_code::no_driver, "the NVIDIA driver and its libraries do not fit each other or this GPU");
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
      return as(status_code::no_kernel_image,
                "this binary holds no code for this GPU; build for it with -gencode or CMAKE_CUDA_ARCHITECTURES");
    case cudaErrorInvalidResourceHandle:
      return as(status_code::invalid_argument,
                "a stream, event or kernel does not exist, or belongs to another GPU than the current one");
    case cudaErrorMemoryAllocation:
      return as(status_code::out_of_memory, "the allocation does not fit in the memory that is left");
    case cudaErrorInvalidValue: return as(status_code::invalid_argument, cudaGetErrorString(error));
    default: return as(status_code::cuda_error, cudaGetErrorString(error));
  }
}

namespace detail {

/// to_status, and takes back the mark that a failed call leaves for the next cudaGetLastError: the caller has it now,
/// and somebody else's check must not find it. An error of an earlier kernel (a sticky one) stays.
inline status consume(cudaError_t error, const char* argument = "") {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return to_status(error, argument);
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
