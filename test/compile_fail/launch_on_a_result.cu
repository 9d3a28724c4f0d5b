// EXPECT: giwa::launch: the first argument is a result: giwa::throw_if_failed(s) is its stream
// SPDX-License-Identifier: MIT
// A result may hold an error instead of a stream.
#include <giwa/base/throw.hpp>
#include <giwa/device/stream.hpp>
#include <giwa/grid/launch.cuh>

__global__ void __launch_bounds__(32) empty() {}
giwa::status run(const giwa::result<giwa::stream>& s) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::launch(s, {.block = 32}, empty);
#else
  return giwa::launch(giwa::throw_if_failed(s), {.block = 32}, empty);
#endif
}
