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
  status s;
  s.argument = argument;
  s.cuda_code = static_cast<int>(error);
  switch (error) {
    case cudaSuccess: return {};
    case cudaErrorNoDevice:
      s.code = status_code::no_device;
      s.message = "the driver sees no GPU; is one installed, and is CUDA_VISIBLE_DEVICES right?";
      return s;
    case cudaErrorInvalidDevice:
      s.code = status_code::no_device;
      s.message = "there is no GPU with this number";
      return s;
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
      s.code = status_code::no_driver;
      s.argument = "";  // whatever it was, it is not at fault
      s.message = "no NVIDIA driver is installed, or it is older than the CUDA runtime of this binary";
      return s;
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorSystemDriverMismatch:
      s.code = status_code::no_driver;
      s.message = "the NVIDIA driver and its libraries do not fit each other or this GPU";
      return s;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
      s.code = status_code::no_kernel_image;
      s.message = "this binary holds no code for this GPU; build for it with -gencode or CMAKE_CUDA_ARCHITECTURES";
      return s;
    case cudaErrorInvalidResourceHandle:
      s.code = status_code::invalid_argument;
      s.message = "a stream, event or kernel does not exist, or belongs to another GPU than the current one";
      return s;
    case cudaErrorMemoryAllocation:
      s.code = status_code::out_of_memory;
      s.message = "the allocation does not fit in the memory that is left";
      return s;
    case cudaErrorInvalidValue:
      s.code = status_code::invalid_argument;
      s.message = cudaGetErrorString(error);
      return s;
    default:
      s.code = status_code::cuda_error;
      s.message = cudaGetErrorString(error);
      return s;
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
