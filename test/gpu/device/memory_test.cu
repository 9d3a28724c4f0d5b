// SPDX-License-Identifier: MIT
// Pinned memory, copies between all kinds of memory, arrays like others, the memory report, and out of memory, on a GPU.
#include <giwa/attention.cuh>
#include <giwa/device.hpp>
#include <giwa/grid.cuh>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::device_array;
using giwa::int64;
using giwa::memory_kind;
using giwa::memory_report;
using giwa::pinned_array;
using giwa::result;
using giwa::status;
using giwa::status_code;
using giwa::tensor_view;
using giwa::throw_if_failed;
using giwa_test::check_cuda;
using giwa_test::device_attribute;
using giwa_test::no_error_left;

namespace {

__global__ void __launch_bounds__(32) wait_on_gpu(int64 nanoseconds) { giwa_test::spin(nanoseconds); }

struct twice {
  GIWA_HOST_DEVICE int operator()(int x) const { return 2 * x; }
};

memory_kind kind_of(const void* p) { return throw_if_failed(giwa::location_of(p)).kind; }
memory_report report() { return throw_if_failed(giwa::memory_of(throw_if_failed(giwa::current_device()))); }

std::vector<int> counting(int64 n, int first) {
  std::vector<int> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), first);
  return v;
}

}  // namespace

TEST_CASE("pinned arrays are page-locked, move, and unlock when they go") {
  pinned_array<int> a = throw_if_failed(pinned_array<int>::allocate(1000));
  int* const data = a.data();
  REQUIRE(data != nullptr);
  CHECK(a.size() == 1000);
  CHECK(a.end() - a.begin() == 1000);
  CHECK(kind_of(data) == memory_kind::pinned);
  CHECK(kind_of(&a[999]) == memory_kind::pinned);
  CHECK(giwa::check_device_pointer(data, "a").ok());
  CHECK(giwa::check_host_pointer(data, "a").ok());
  pinned_array<int> b = std::move(a);
  CHECK(b.data() == data);
  CHECK(a.data() == nullptr);
  CHECK(a.size() == 0);
  b = throw_if_failed(pinned_array<int>::allocate(5));  // frees the first
  pinned_array<int>& itself = b;
  b = std::move(itself);
  CHECK(b.size() == 5);
  CHECK(no_error_left());
  if (giwa_test::small_mode()) return;
  const status huge = pinned_array<char>::allocate(int64{1} << 50).state;
  INFO(giwa::format_status(huge).c_str());
  CHECK_FALSE(huge.ok());
  CHECK(huge.argument == std::string("size"));
  CHECK(no_error_left());
}

TEST_CASE("copy goes between every two kinds of memory") {
  const giwa::stream s = giwa_test::new_stream();
  constexpr int64 n = 100003;
  std::vector<int> pageable[2] = {std::vector<int>(n), std::vector<int>(n)};
  pinned_array<int> pinned[2];
  device_array<int> device[2];
  for (int i = 0; i < 2; ++i) {
    pinned[i] = throw_if_failed(pinned_array<int>::allocate(n));
    device[i] = throw_if_failed(device_array<int>::allocate(s, n));
  }
  REQUIRE(giwa::synchronize(s).ok());
  const auto view = [](auto& x) { return tensor_view<int, 1>(x); };
  const tensor_view<int, 1> from[] = {view(pageable[0]), view(pinned[0]), view(device[0])},
                            to[] = {view(pageable[1]), view(pinned[1]), view(device[1])};
  int first = 1;
  for (const auto& source : from)
    for (const auto& target : to) {
      CAPTURE(name_of(kind_of(source.data())), name_of(kind_of(target.data())));
      const std::vector<int> expected = counting(n, first += 1000);
      std::vector<int> got(n);
      REQUIRE(giwa::copy(s, expected, source).ok());
      REQUIRE(giwa::copy(s, source, target).ok());
      REQUIRE(giwa::to_host<int>(s, target, view(got)).ok());
      CHECK(got == expected);

      const bool on_host =
          kind_of(source.data()) != memory_kind::device && kind_of(target.data()) != memory_kind::device;
      if (on_host) std::fill(target.data(), target.data() + n, -1);
      const status by_cpu = giwa::copy(giwa::host, source, target);
      CHECK(by_cpu.ok() == on_host);
      if (on_host) CHECK(std::equal(expected.begin(), expected.end(), target.data()));
      if (!on_host)
        CHECK(by_cpu.argument == std::string(kind_of(source.data()) == memory_kind::device ? "from" : "to"));
    }
  // to_device from any memory, and from views of several dimensions.
  REQUIRE(giwa::copy(s, counting(n, 7), device[0]).ok());
  std::vector<int> got(n);
  REQUIRE(giwa::to_host(s, throw_if_failed(giwa::to_device(s, device[0])), got).ok());
  CHECK(got == counting(n, 7));
  std::vector<int> six(6);
  REQUIRE(giwa::to_host(s, throw_if_failed(giwa::to_device(s, tensor_view<int, 2>(got.data(), {2, 3}))), six).ok());
  CHECK(six == counting(6, 7));
  CHECK(no_error_left());
}

TEST_CASE("from and to pinned memory the host does not wait, and copies can be captured") {
  const giwa::stream s = giwa_test::new_stream();
  constexpr int64 n = 1 << 20;
  pinned_array<int> in = throw_if_failed(pinned_array<int>::allocate(n)),
                    out = throw_if_failed(giwa::like(giwa::host, in));
  device_array<int> there = throw_if_failed(giwa::like(s, in));
  CHECK(there.size() == n);
  CHECK(kind_of(out.data()) == memory_kind::pinned);
  std::iota(in.begin(), in.end(), 5);
  std::fill(out.begin(), out.end(), -1);
  const auto work = [&]() -> status {
    if (const status state = giwa::copy(s, in, there); !state.ok()) return state;
    if (const status state = giwa::for_all(s, giwa::elementwise{there, there}, twice{}); !state.ok()) return state;
    return giwa::copy(s, there, out);
  };
  REQUIRE(work().ok());  // loads what is loaded at the first call
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(out[0] == 10);
  CHECK(out[n - 1] == 2 * (n + 4));

  if (!giwa_test::small_mode()) {
    std::fill(out.begin(), out.end(), -1);
    wait_on_gpu<<<1, 32, 0, s>>>(300000000);
    REQUIRE(work().ok());
    const int seen = out[n - 1];
    const cudaError_t state = cudaStreamQuery(s);
    CHECK(state == cudaErrorNotReady);
    if (state == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
    CHECK(seen == -1);
    REQUIRE(giwa::synchronize(s).ok());
    CHECK(out[n - 1] == 2 * (n + 4));
  }
  std::fill(out.begin(), out.end(), -1);
  CHECK(giwa_test::capture_and_replay(s, 2, work).ok());
  CHECK(out[n - 1] == 2 * (n + 4));
  CHECK(no_error_left());
}

TEST_CASE("the memory report counts what arrays use, and trim gives back what they have left") {
  const giwa::stream s = giwa_test::new_stream();
  const int device = throw_if_failed(giwa::current_device());
  check_cuda(cudaDeviceSynchronize());  // what earlier tests have freed
  REQUIRE(giwa::trim(device).ok());
  const memory_report before = report();
  CHECK(before.device == device);
  CHECK(before.total > 0);
  CHECK(before.free > 0);
  CHECK(before.free <= before.total);
  CHECK(before.pool_used <= before.pool_reserved);
  if (giwa_test::small_mode()) return;

  constexpr int64 bytes = int64{256} << 20;
  REQUIRE(giwa::keep_memory(device, int64{4} << 30).ok());
  {
    const auto array = throw_if_failed(device_array<char>::allocate(s, bytes));
    const memory_report with = report();
    CHECK(with.pool_used >= before.pool_used + bytes);
    CHECK(with.pool_reserved >= with.pool_used);
    CHECK(with.pool_used_most >= with.pool_used);
    CHECK(with.pool_reserved_most >= with.pool_reserved);
  }
  REQUIRE(giwa::synchronize(s).ok());
  const memory_report kept = report();
  CHECK(kept.pool_used == before.pool_used);
  CHECK(kept.pool_reserved >= before.pool_reserved + bytes);  // of what is kept
  REQUIRE(giwa::trim(device).ok());
  const memory_report trimmed = report();
  CHECK(trimmed.pool_reserved <= before.pool_reserved);
  CHECK(trimmed.pool_used_most >= before.pool_used + bytes);

  REQUIRE(giwa::keep_memory(device, 0).ok());  // the default: a synchronisation gives it back
  static_cast<void>(throw_if_failed(device_array<char>::allocate(s, bytes)));
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(report().pool_reserved < before.pool_reserved + bytes);
  CHECK(no_error_left());
}

TEST_CASE("a GPU that does not exist has no memory to report") {
  for (const int device : {-1, giwa::device_count()}) {
    CHECK(giwa::memory_of(device).state.code == status_code::no_device);
    CHECK(giwa::trim(device).code == status_code::no_device);
    CHECK(giwa::keep_memory(device, 0).code == status_code::no_device);
  }
  CHECK(no_error_left());
}

TEST_CASE("out of memory says how much was asked for, how much is free, and of how much") {
  const giwa::stream s = giwa_test::new_stream();
  const status state = device_array<char>::allocate(s, int64{1} << 50).state;
  REQUIRE(state.code == status_code::out_of_memory);
  const memory_report m = report();
  CHECK(state.got == int64{1} << 50);
  CHECK(state.expected > 0);
  CHECK(state.expected <= m.total);
  const std::string text = giwa::format_memory(state, m).c_str();
  INFO(text);
  CHECK(text.find("1.0 PiB asked for, ") != std::string::npos);
  CHECK(text.find(std::string(" free of ") + giwa::format_bytes(m.total).c_str()) != std::string::npos);

  // 64 sequences of 16 queries over so many keys that k and v are twice what is free; half of it fits in a split or a batch.
  const giwa::attention_problem problem{64, 16, m.free / (64 * 8 * 128 * 2), 8, 8, 128, 128, 2};
  const auto advice = throw_if_failed(giwa::memory_advice(problem, m));
  CHECK_FALSE(advice.fits(advice.whole));
  CHECK(advice.batch >= 16);
  CHECK(advice.batch < 64);
  CHECK(advice.key_parts >= 2);
  CHECK(advice.key_parts <= 3);
  CHECK(device_array<char>::allocate(s, 1000).ok());
  CHECK(no_error_left());
}

TEST_CASE("attention_reference refuses the host's memory by the argument's name, where the GPU cannot read it") {
  const giwa::stream s = giwa_test::new_stream();
  std::vector<float> host(64);
  device_array<float> there = throw_if_failed(giwa::to_device(s, host));
  const bool pageable_works = device_attribute(cudaDevAttrPageableMemoryAccess) != 0;
  const auto check = [&](const status& state, const char* argument) {
    CAPTURE(argument, state.message);
    CHECK(state.ok() == pageable_works);
    if (pageable_works) return;
    CHECK(state.argument == std::string(argument));
    CHECK(std::string(state.message).find("host memory") != std::string::npos);
  };
  const auto view = [&](float* p) { return tensor_view<float, 4>(p, {1, 2, 2, 16}); };
  float* const device = there.data();
  device_array<float> more = throw_if_failed(giwa::like(s, there));
  const auto reference = [&](float* q, float* k, float* v, float* o) {
    return giwa::attention_reference(cudaStream_t{s}, view(q), view(k), view(v), view(o));
  };
  check(reference(host.data(), device, device, more.data()), "q");
  check(reference(device, host.data(), device, more.data()), "k");
  check(reference(device, device, host.data(), more.data()), "v");
  check(reference(device, device, device, host.data()), "o");
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(no_error_left());
}
