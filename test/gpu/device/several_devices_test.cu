// SPDX-License-Identifier: MIT
// for_each_device over one GPU, one GPU several times, and all GPUs; failures, and the state that they leave.
#include <giwa/giwa.cuh>

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::batch_part;
using giwa::device_status;
using giwa::int64;
using giwa::pinned_array;
using giwa::status;
using giwa::tensor_view;
using giwa::throw_if_failed;
using giwa_test::no_error_left;

namespace {

__global__ void __launch_bounds__(32) wait_on_gpu(int64 nanoseconds) { giwa_test::spin(nanoseconds); }

struct square {
  GIWA_HOST_DEVICE int operator()(int x) const { return x * x; }
};

// Squares a part of (items, width) numbers on its GPU.
status square_part(cudaStream_t s, const batch_part& part, tensor_view<const int, 2> in, tensor_view<int, 2> out) {
  auto there = giwa::to_device(s, part.of(in));
  if (!there.ok()) return there.state;
  if (const status state = giwa::for_all(s, giwa::elementwise{there.value, there.value}, square{}); !state.ok())
    return state;
  return giwa::copy(s, there.value, part.of(out));
}

std::vector<int> all_devices() {
  std::vector<int> devices(static_cast<std::size_t>(giwa::device_count()));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

}  // namespace

TEST_CASE("every item is processed once, at its own position, for all lists of GPUs and weights") {
  constexpr int64 batch = 37, width = 1001;
  pinned_array<int> in = throw_if_failed(pinned_array<int>::allocate(batch * width)),
                    out = throw_if_failed(giwa::like(giwa::host, in));
  std::vector<int> pageable(static_cast<std::size_t>(batch * width));
  std::iota(in.begin(), in.end(), 0);
  const tensor_view<const int, 2> source(in.data(), {batch, width});
  const int before = throw_if_failed(giwa::current_device());
  std::vector<int> reversed = all_devices();
  reversed = {reversed.rbegin(), reversed.rend()};
  const std::vector<int> lists[] = {{before}, {before, before, before}, all_devices(), reversed};
  for (const std::vector<int>& devices : lists)
    for (const bool uneven : {false, true})
      for (int* to : {out.data(), pageable.data()}) {
        std::vector<int64> weights(uneven ? devices.size() : 0);
        for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = i == 1 ? 0 : static_cast<int64>(3 * i + 1);
        std::fill(to, to + batch * width, -1);
        std::vector<int> used;
        int64 next = 0;
        const device_status done =
            giwa::for_each_device(devices, weights, batch, [&](cudaStream_t s, const batch_part& part) -> status {
              used.push_back(part.device);
              CHECK(throw_if_failed(giwa::current_device()) == part.device);
              CHECK(part.first == next);
              CHECK(part.count > 0);
              next += part.count;
              return square_part(s, part, source, tensor_view<int, 2>(to, {batch, width}));
            });
        CAPTURE(devices.size(), uneven, giwa::format_status(done.state).c_str());
        REQUIRE(done.ok());
        CHECK(next == batch);
        CHECK(used.size() == devices.size() - (uneven && devices.size() > 1 ? 1 : 0));
        CHECK(throw_if_failed(giwa::current_device()) == before);
        int wrong = 0;
        for (int i = 0; i < batch * width; ++i) wrong += to[i] == i * i ? 0 : 1;
        CHECK(wrong == 0);
      }
  CHECK(no_error_left());
}

TEST_CASE("more GPUs than items, and none at all") {
  const std::vector<int> devices(5, throw_if_failed(giwa::current_device()));
  int calls = 0;
  const auto count = [&](cudaStream_t, const batch_part& part) {
    CHECK(part.count == 1);
    ++calls;
    return status{};
  };
  CHECK(giwa::for_each_device(devices, {}, 3, count).ok());
  CHECK(calls == 3);
  CHECK(giwa::for_each_device(devices, {}, 0, count).ok());
  CHECK(calls == 3);
}

TEST_CASE("parts run at the same time") {
  if (giwa_test::small_mode()) return;  // a sanitizer runs kernels one by one
  const std::vector<int> devices(3, throw_if_failed(giwa::current_device()));
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(giwa::for_each_device(devices, {}, 3, [](cudaStream_t s, const batch_part&) {
            wait_on_gpu<<<1, 32, 0, s>>>(200000000);
            return giwa::to_status(cudaGetLastError());
          }).ok());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(seconds.count() >= 0.19);  // and it waits for them
  CHECK(seconds.count() < 0.39);
}

TEST_CASE("a failure is reported with its GPU and stops further calls, and started parts are waited for") {
  const int before = throw_if_failed(giwa::current_device());
  const std::vector<int> devices(3, before);
  pinned_array<int> in = throw_if_failed(pinned_array<int>::allocate(3)),
                    out = throw_if_failed(giwa::like(giwa::host, in));
  std::iota(in.begin(), in.end(), 4);
  const tensor_view<const int, 2> source(in.data(), {3, 1});
  const tensor_view<int, 2> target(out.data(), {3, 1});
  const auto run = [&](bool throws) {
    std::fill(out.begin(), out.end(), -1);
    return giwa::for_each_device(devices, {}, 3, [&](cudaStream_t s, const batch_part& part) -> status {
      if (part.first == 1 && throws) throw std::runtime_error("part 1");
      if (part.first == 1) return status::invalid("q", "failed");
      wait_on_gpu<<<1, 32, 0, s>>>(50000000);
      return square_part(s, part, source, target);
    });
  };
  const device_status failed = run(false);
  CHECK(failed.device == before);
  CHECK(failed.state.argument == std::string("q"));
  CHECK(out[0] == 16);
  CHECK(out[1] == -1);
  CHECK(out[2] == -1);
  CHECK_THROWS_AS(run(true), std::runtime_error);
  CHECK(out[0] == 16);
  CHECK(throw_if_failed(giwa::current_device()) == before);

  bool called = false;
  const std::vector<int> one_too_many{before, giwa::device_count()};
  const device_status missing = giwa::for_each_device(one_too_many, {}, 4, [&](cudaStream_t, const batch_part&) {
    called = true;
    return status{};
  });
  CHECK(missing.device == giwa::device_count());
  CHECK(missing.state.code == giwa::status_code::no_device);
  CHECK_FALSE(called);
  CHECK(no_error_left());
}

TEST_CASE("copies between two GPUs need no permission") {
  if (giwa::device_count() < 2) return;
  const giwa::stream first = giwa_test::new_stream();
  const int mine = throw_if_failed(giwa::current_device()), other = mine == 0 ? 1 : 0;
  const std::vector<int> values{3, 1, 4, 1, 5};
  const giwa::device_array<int> here = throw_if_failed(giwa::to_device(first, values));
  REQUIRE(giwa::synchronize(first).ok());
  const giwa::device_guard guard = throw_if_failed(giwa::device_guard::activate(other));
  const giwa::stream second = giwa_test::new_stream();
  const giwa::device_array<int> there = throw_if_failed(giwa::to_device(second, here));
  CHECK(there.device() == other);
  std::vector<int> back(values.size());
  REQUIRE(giwa::to_host(second, there, back).ok());
  CHECK(back == values);
  REQUIRE(giwa::memory_of(mine).value.pool_used > 0);  // of a GPU that is not current
  CHECK(throw_if_failed(giwa::current_device()) == other);
  CHECK(no_error_left());
}
