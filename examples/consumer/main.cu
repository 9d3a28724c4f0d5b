// SPDX-License-Identifier: MIT
// A first program with giwa: squares numbers on the GPU, or on the CPU if there is no GPU.
#include <giwa/device.hpp>
#include <giwa/grid.cuh>
#include <giwa/host.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

struct square {
  float* x;
  GIWA_HOST_DEVICE void operator()(giwa::int64 i) const { x[i] *= x[i]; }
};

int main() {
  std::vector<float> x(1000, 3.0f);
  const bool on_gpu = giwa::choose_device().on_gpu();
  if (on_gpu) {
    const giwa::stream stream = throw_if_failed(giwa::stream::create());
    auto dx = throw_if_failed(giwa::to_device(stream, x));
    throw_if_failed(giwa::for_all(stream, x.size(), square{dx.data()}));
    throw_if_failed(giwa::to_host(stream, dx, x));
  } else {
    throw_if_failed(giwa::for_all(giwa::host, x.size(), square{x.data()}));
  }
  if (std::ranges::count(x, 9.0f) != 1000) return 1;
  std::printf("right on the %s\n", on_gpu ? "GPU" : "CPU");
}
