// SPDX-License-Identifier: MIT
// Streams, events, timing, device arrays, copies, pointers and properties on a GPU; no call leaves an error behind.
#include <giwa/device.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::bound;
using giwa::device_array;
using giwa::int64;
using giwa::memory_kind;
using giwa::result;
using giwa::status;
using giwa::status_code;
using giwa::throw_if_failed;
using giwa_test::check_cuda;
using giwa_test::device_attribute;
using giwa_test::gpu_array;
using giwa_test::no_error_left;

namespace {

// Keeps one multiprocessor busy for so many nanoseconds, then adds 1.
__global__ void __launch_bounds__(32) spin_and_add(int64 nanoseconds, int* counter) {
  giwa_test::spin(nanoseconds);
  if (threadIdx.x == 0) atomicAdd(counter, 1);
}
__global__ void __launch_bounds__(32) copy_one(int* to, const int* from) {
  if (threadIdx.x == 0) *to = *from;
}

status spin(cudaStream_t s, int64 nanoseconds, int* counter) {
  spin_and_add<<<1, 32, 0, s>>>(nanoseconds, counter);
  return giwa::to_status(cudaGetLastError());
}

template <class T>
std::vector<T> counting(std::size_t n) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<T>(i % 100);
  return values;
}

}  // namespace

TEST_CASE("consume takes the runtime's mark of a failed call back, and no other") {
  const cudaError_t error = cudaSetDevice(12345);
  REQUIRE(error == cudaErrorInvalidDevice);
  REQUIRE(cudaPeekAtLastError() == error);
  const status s = giwa::detail::consume(error, "device");
  CHECK(s.code == status_code::no_device);
  CHECK(no_error_left());

  // A success takes nothing back: an error that somebody else has not looked at yet stays.
  REQUIRE(cudaSetDevice(12345) == error);
  CHECK(giwa::detail::consume(cudaSuccess).ok());
  CHECK(cudaGetLastError() == error);
  CHECK(no_error_left());
}

TEST_CASE("devices are counted and described") {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(giwa::device_count() == count);
  for (int device = 0; device < count; ++device) {
    const result<giwa::device_properties> r = giwa::properties_of(device);
    REQUIRE(r.ok());
    const giwa::device_properties& p = r.value;
    cudaDeviceProp expected{};
    check_cuda(cudaGetDeviceProperties(&expected, device));
    CHECK(p.device == device);
    CHECK(p.name == std::string(expected.name));
    CHECK(p.capability.major == expected.major);
    CHECK(p.capability.minor == expected.minor);
    CHECK(p.multiprocessors == expected.multiProcessorCount);
    CHECK(p.threads_per_multiprocessor == expected.maxThreadsPerMultiProcessor);
    CHECK(p.memory_bytes == static_cast<int64>(expected.totalGlobalMem));
    CHECK(p.l2_bytes == expected.l2CacheSize);
    CHECK(p.shared_bytes_per_block == static_cast<int64>(expected.sharedMemPerBlockOptin));
    CHECK(p.shared_bytes_per_multiprocessor == static_cast<int64>(expected.sharedMemPerMultiprocessor));
    CHECK(p.cooperative_launch == (expected.cooperativeLaunch != 0));
    CHECK(p.cluster_launch == (expected.clusterLaunch != 0));
    CHECK(p.pageable_memory_access == (expected.pageableMemoryAccess != 0));
    CHECK(p.clock_khz > 100000);
    CHECK(p.memory_bytes_per_second >= 0);
  }
  for (const int device : {-1, count, 2147483647}) {
    const status s = giwa::properties_of(device).state;
    CHECK(s.code == status_code::no_device);
    CHECK(s.got == device);
  }
  CHECK(no_error_left());
  using capability = giwa::compute_capability;
  CHECK(
      (capability{9, 0} > capability{8, 9} && capability{8, 0} < capability{8, 6} && capability{10, 0}.value() == 100));
}

TEST_CASE("a guard makes a GPU current and then the one before again") {
  const int before = throw_if_failed(giwa::current_device());
  for (int device = 0; device < giwa::device_count(); ++device) {
    {
      const auto activate_and_move = [&] {
        result<giwa::device_guard> guard = giwa::device_guard::activate(device);
        REQUIRE(guard.ok());
        CHECK(throw_if_failed(giwa::current_device()) == device);
        return giwa::device_guard(std::move(guard.value));  // what is left of `guard` goes here
      };
      const giwa::device_guard moved = activate_and_move();
      CHECK(throw_if_failed(giwa::current_device()) == device);  // the moved one still guards
      CHECK_FALSE(giwa::device_guard::activate(giwa::device_count()).ok());
      CHECK(throw_if_failed(giwa::current_device()) == device);
    }
    CHECK(throw_if_failed(giwa::current_device()) == before);
  }
  CHECK(no_error_left());
}

TEST_CASE("streams do not wait for the default stream, and events order them") {
  const gpu_array<int> counter(1, 0), copy(1);
  giwa::stream a = giwa_test::new_stream();
  const giwa::stream b = giwa_test::new_stream();
  CHECK(a.get() != b.get());
  CHECK(a.get() != nullptr);
  unsigned flags = 0;
  check_cuda(cudaStreamGetFlags(a, &flags));
  CHECK(flags == cudaStreamNonBlocking);

  const giwa::event done = throw_if_failed(giwa::event::create(false));
  REQUIRE(spin(a, 20000000, counter.data()).ok());
  REQUIRE(done.record(a).ok());
  REQUIRE(done.hold(b).ok());
  copy_one<<<1, 32, 0, b>>>(copy.data(), counter.data());
  REQUIRE(giwa::synchronize(b).ok());
  CHECK(copy.to_host()[0] == 1);
  REQUIRE(done.synchronize().ok());

  giwa::stream moved = std::move(a);
  CHECK(a.get() == nullptr);
  CHECK(giwa::synchronize(moved).ok());
  a = std::move(moved);
  giwa::stream& itself = a;
  a = std::move(itself);
  REQUIRE(spin(a, 1000, counter.data()).ok());
  CHECK(giwa::synchronize(a).ok());
  CHECK(giwa::stream().get() == nullptr);

  const giwa::event timed = throw_if_failed(giwa::event::create());
  REQUIRE(timed.record(a).ok());
  REQUIRE(timed.synchronize().ok());
  CHECK_FALSE(giwa::milliseconds_between(done, timed).ok());  // `done` has no time stamp
  CHECK_FALSE(giwa::milliseconds_between(giwa::event(), timed).ok());
  CHECK(no_error_left());
}

TEST_CASE("time_on measures what the stream does") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<int> counter(1, 0);
  for (const int repeats : {1, 4}) {
    const result<giwa::timing> r = giwa::time_on(
        s, [&] { return spin(s, 500000, counter.data()); }, 2, repeats);
    REQUIRE(r.ok());
    CAPTURE(repeats, r.value.fastest, r.value.median, r.value.slowest);
    CHECK(r.value.fastest > 0.45f);
    if (!giwa_test::small_mode()) CHECK(r.value.median < 5.0f);  // a sanitizer slows the kernel down
    CHECK(r.value.fastest <= r.value.median);
    CHECK(r.value.median <= r.value.slowest);
  }
  CHECK(counter.to_host()[0] == 2 + 15 + 2 + 15 * 4);

  int calls = 0;
  const auto fails_at = [&](int last) {
    calls = 0;
    return giwa::time_on(
               s, [&] { return ++calls == last ? status::invalid("work", "failed") : status{}; }, 3)
        .state;
  };
  for (const int last : {1, 3, 4, 18}) {
    CHECK(fails_at(last).argument == std::string("work"));
    CHECK(calls == last);
  }
  CHECK(fails_at(100).ok());
  CHECK(calls == 18);
  CHECK(giwa::time_on(
            s, [&] { return status{}; }, 0, 1)
            .ok());
  CHECK(no_error_left());
}

TEST_CASE("device arrays are allocated, moved and freed") {
  const giwa::stream s = giwa_test::new_stream();
  device_array<double> a = throw_if_failed(device_array<double>::allocate(s, 1000));
  double* const data = a.data();
  CHECK(data != nullptr);
  CHECK(a.size() == 1000);
  device_array<double> b = std::move(a);
  CHECK(b.data() == data);
  CHECK(a.data() == nullptr);
  CHECK(a.size() == 0);
  a = std::move(b);
  CHECK(a.data() == data);
  CHECK(b.size() == 0);
  device_array<double>& itself = a;
  a = std::move(itself);
  CHECK(a.data() == data);
  CHECK(a.size() == 1000);
  a = throw_if_failed(device_array<double>::allocate(s, 5));  // frees the first
  CHECK(a.size() == 5);
  const giwa::tensor_view<const double, 1> view = a;
  CHECK(view.data() == a.data());
  CHECK(view.size() == 5);
  CHECK(device_array<char>::allocate(s, -1).state.argument == std::string("size"));
  CHECK(no_error_left());

  if (giwa_test::small_mode()) return;
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  const auto quarter = static_cast<int64>(free / 4);
  for (int i = 0; i < 20; ++i) REQUIRE(device_array<char>::allocate(s, quarter).ok());  // five times what there is
}

TEST_CASE("an allocation that does not fit says how much there is") {
  const giwa::stream s = giwa_test::new_stream();
  const status state = device_array<char>::allocate(s, int64{1} << 50).state;
  INFO(giwa::format_status(state).c_str());
  CHECK(state.code == status_code::out_of_memory);
  CHECK(state.argument == std::string("size"));
  CHECK(state.relation == bound::at_most);
  CHECK(state.got == int64{1} << 50);
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  CHECK(state.expected > 0);
  CHECK(state.expected <= static_cast<int64>(total));
  CHECK(device_array<double>::allocate(s, int64{1} << 60).state.code == status_code::invalid_argument);
  CHECK(no_error_left());
  CHECK(device_array<char>::allocate(s, 1000).ok());
}

TEMPLATE_TEST_CASE("elements go to the device and come back", "", char, int, double) {
  const giwa::stream s = giwa_test::new_stream();
  for (const std::size_t n : {0u, 1u, 1000u, 3000001u}) {
    const std::vector<TestType> there = counting<TestType>(n);
    const device_array<TestType> a = throw_if_failed(giwa::to_device(s, there));
    CHECK(a.size() == static_cast<int64>(n));
    std::vector<TestType> back(n, TestType{77});
    REQUIRE(giwa::to_host(s, a, back).ok());
    CHECK(back == there);
  }
  CHECK(no_error_left());
}

TEST_CASE("copies take arrays, spans and views, and refuse what they cannot copy") {
  const giwa::stream s = giwa_test::new_stream();
  std::array<float, 4> four{1, 2, 3, 4}, back{};
  REQUIRE(giwa::to_host(s, throw_if_failed(giwa::to_device(s, four)), back).ok());
  CHECK(back == four);
  const device_array<float> middle = throw_if_failed(giwa::to_device(s, std::span<const float>(four).subspan(1, 2)));
  REQUIRE(giwa::to_host(s, middle, std::span<float>(back).first(2)).ok());
  CHECK(back == std::array<float, 4>{2, 3, 3, 4});
  const giwa::tensor_view<const float, 1> view(four.data() + 1, {3});
  CHECK(throw_if_failed(giwa::to_device(s, view)).size() == 3);

  const giwa::tensor_view<float, 1> every_other(four.data(), {2}, {2});
  CHECK(giwa::to_device(s, every_other).state.argument == std::string("source"));
  CHECK(giwa::to_device(s, giwa::tensor_view<const float, 1>(nullptr, {3})).state.argument == std::string("source"));
  CHECK(giwa::to_device(s, giwa::tensor_view<const float, 1>(four.data(), {-3})).state.argument ==
        std::string("source"));
  for (const std::size_t size : {0u, 1u, 3u}) {
    const status state = giwa::to_host(s, middle, std::span<float>(back).first(size));
    CHECK(state.argument == std::string("target"));
    CHECK(state.relation == bound::exactly);
    CHECK(state.expected == 2);
    CHECK(state.got == static_cast<int64>(size));
  }
  CHECK(no_error_left());
}

TEST_CASE("the location of a pointer is known, and whether a kernel may use it") {
  const bool pageable_works = device_attribute(cudaDevAttrPageableMemoryAccess) != 0;
  const int current = throw_if_failed(giwa::current_device());
  const auto location = [](const void* p) { return throw_if_failed(giwa::location_of(p)); };

  const std::vector<char> on_host(100);
  CHECK(location(on_host.data()).kind == memory_kind::pageable);
  CHECK(location(on_host.data()).device == -1);
  const status host_pointer = giwa::check_device_pointer(on_host.data(), "input");
  CHECK(host_pointer.ok() == pageable_works);
  if (!pageable_works) {
    CHECK(host_pointer.code == status_code::invalid_argument);
    CHECK(host_pointer.argument == std::string("input"));
  }

  const gpu_array<char> on_device(100);
  CHECK(location(on_device.data()).kind == memory_kind::device);
  CHECK(location(on_device.data() + 99).device == current);
  CHECK(giwa::check_device_pointer(on_device.data() + 99, "input").ok());

  const giwa::stream s = giwa_test::new_stream();
  const device_array<char> in_order = throw_if_failed(device_array<char>::allocate(s, 100));
  CHECK(location(in_order.data()).kind == memory_kind::device);
  CHECK(giwa::check_device_pointer(in_order.data(), "input").ok());

  void* pinned = nullptr;
  check_cuda(cudaMallocHost(&pinned, 100));
  CHECK(location(pinned).kind == memory_kind::pinned);
  CHECK(location(pinned).device == -1);
  CHECK(giwa::check_device_pointer(pinned, "input").ok());
  check_cuda(cudaFreeHost(pinned));

  if (device_attribute(cudaDevAttrManagedMemory) != 0) {
    void* managed = nullptr;
    check_cuda(cudaMallocManaged(&managed, 4096));
    CHECK(location(managed).kind == memory_kind::managed);
    CHECK(giwa::check_device_pointer(managed, "input").ok());
    check_cuda(cudaFree(managed));
  }
  CHECK(no_error_left());
}

TEST_CASE("the environment of a program built for this GPU") {
  const giwa::environment e = giwa::check_environment();
  INFO(e.advice);
  CHECK(e.verdict.ok());
  CHECK(e.driver >= e.runtime / 1000 * 1000);
  CHECK(e.devices == giwa::device_count());
  CHECK(e.properties.device == throw_if_failed(giwa::current_device()));
  CHECK(e.code.architecture > 0);
  CHECK(e.code.architecture <= giwa_test::capability());
  CHECK(e.code.ptx > 0);
  CHECK(std::string(e.advice).find(e.properties.name) != std::string::npos);  // more in which_body.cu

  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const file = open_memstream(&text, &size);
  giwa::print(e, file);
  std::fclose(file);
  const std::string report(text, size);
  std::free(text);
  INFO(report);
  for (const std::string& part :
       {std::string(e.properties.name), std::string("compute capability"), std::string("multiprocessors"),
        "sm_" + std::to_string(e.code.architecture), std::string(e.advice)})
    CHECK(report.find(part) != std::string::npos);

  const giwa::device_choice choice = giwa::choose_device();
  CHECK(choice.on_gpu());
  CHECK(choice.device == throw_if_failed(giwa::current_device()));
  CHECK(choice.visit([](auto where) { return std::is_same_v<decltype(where), cudaStream_t>; }));

  const giwa::environment none = giwa::check_environment(giwa::device_count());
  CHECK(none.verdict.code == status_code::no_device);
  CHECK(std::string(none.advice).find("cannot be used") != std::string::npos);
  CHECK(no_error_left());
}
