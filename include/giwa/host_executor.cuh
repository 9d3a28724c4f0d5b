// SPDX-License-Identifier: MIT
// Door: run an op on the CPU, thread by thread, for tests and debuggers. nvcc, or a host compiler with -x c++.
#ifndef GIWA_HOST_EXECUTOR_CUH
#define GIWA_HOST_EXECUTOR_CUH

#include <giwa/grid/op.hpp>
#if !defined(__CUDACC_RTC__)  // run-time compilation compiles device code only
#include <giwa/grid/host_executor.hpp>
#endif

#endif
