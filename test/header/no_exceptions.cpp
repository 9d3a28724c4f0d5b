// SPDX-License-Identifier: MIT
// The public headers that a host compiler can compile, with -fno-exceptions.
#include <giwa/device.hpp>
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>

giwa::status double_all(float* x, giwa::int64 n) {
  return giwa::for_all(giwa::host, n, [x](giwa::int64 i) { x[i] *= 2; });
}
