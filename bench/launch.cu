// SPDX-License-Identifier: MIT
// What a launch costs the calling thread: giwa::launch and giwa::for_all compared with a bare <<<>>> with as many
// parameter bytes.
#include "alternate.hpp"

namespace {

using giwa::int64;

template <int Bytes>
struct payload {
  char bytes[Bytes];
};

template <int Bytes>
__global__ void __launch_bounds__(256) nothing(const __grid_constant__ payload<Bytes>) {}

struct nothing_at {
  const float* a;
  const float* b;
  float* c;
  GIWA_HOST_DEVICE void operator()(int64) const {}
};

struct nothing_of {
  GIWA_HOST_DEVICE float operator()(float a, float) const { return a; }
};

struct nothing_op {
  using params = payload<40>;
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 256, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, const params&, shared_storage&) const {}
};

std::shared_ptr<void> prepare(std::vector<bench::contest::contender>& contenders) {
  auto data = std::make_shared<std::vector<giwa::device_array<float>>>();
  for (int i = 0; i < 3; ++i) data->push_back(bench::require(giwa::device_array<float>::allocate(nullptr, 256)));
  std::vector<giwa::device_array<float>>& d = *data;
  float* a = d[0].data();
  const giwa::tensor_view<float, 1> x{d[0]}, y{d[1]}, z{d[2]};
  const std::function<void(int)> run[] = {
      [](int) { nothing<40><<<1, 256, 0, nullptr>>>(payload<40>{}); },
      [](int) { bench::require(giwa::launch(nullptr, {.grid = 1, .block = 256}, nothing<40>, payload<40>{})); },
      [](int) { bench::require(giwa::launch(nullptr, {.grid = 1, .block = 256}, nothing_op{}, payload<40>{})); },
      [](int) { nothing<48><<<1, 256, 0, nullptr>>>(payload<48>{}); },
      [a](int) {
        bench::require(giwa::for_all(nullptr, 256, nothing_at{a, a, a}));
      },
      [](int) { nothing<56><<<1, 256, 0, nullptr>>>(payload<56>{}); },
      [&d](int) {
        bench::require(giwa::for_all(nullptr, giwa::elementwise{d[0], d[1], d[2]}, nothing_of{}));
      },
      [x, y, z](int) {
        bench::require(giwa::for_all(nullptr, giwa::elementwise{x, y, z}, nothing_of{}));
      },
  };
  for (std::size_t i = 0; i < contenders.size(); ++i) contenders[i].run = run[i];
  return data;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, [] {
    bench::contest::add(std::make_shared<bench::contest>(
        "launch",
        std::vector<bench::contest::contender>{{"bare_40_bytes", "bare_40_bytes"},
                                               {"giwa_launch_kernel_40_bytes", "bare_40_bytes"},
                                               {"giwa_launch_op_40_bytes", "bare_40_bytes"},
                                               {"bare_48_bytes", "bare_48_bytes"},
                                               {"giwa_for_all_index_48_bytes", "bare_48_bytes"},
                                               {"bare_56_bytes", "bare_56_bytes"},
                                               {"giwa_for_all_elementwise_arrays_56_bytes", "bare_56_bytes"},
                                               {"giwa_for_all_elementwise_views_56_bytes", "bare_56_bytes"}},
        1, 200, 0.0, bench::host_seconds, prepare));
  });
}
