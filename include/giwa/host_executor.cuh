// SPDX-License-Identifier: MIT
// Public header of the host executor, which runs an op on the CPU for tests and debuggers. nvcc or a host compiler.
#ifndef GIWA_HOST_EXECUTOR_CUH
#define GIWA_HOST_EXECUTOR_CUH

#include <giwa/grid/op.hpp>
#if !defined(__CUDACC_RTC__)  // run-time compilation compiles device code only
#include <giwa/grid/host_executor.hpp>
#endif

#endif
