// SPDX-License-Identifier: MIT
// Without a GPU every call still answers: with the argument that is wrong, or with what is missing and what to do.
#include <giwa/giwa.cuh>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

using giwa::bound;
using giwa::int64;
using giwa::max_int64;
using giwa::result;
using giwa::status;
using giwa::status_code;

namespace {

struct nothing {
  GIWA_HOST_DEVICE void operator()(int64) const {}
  template <int Rank>
  GIWA_HOST_DEVICE void operator()(const giwa::index<Rank>&) const {}
};
struct zero {
  GIWA_HOST_DEVICE int operator()() const { return 0; }
};

__global__ void __launch_bounds__(128) empty_kernel(int) {}

struct op {
  struct params {};
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 128, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, const params&, shared_storage&) const {}
};

bool is(const status& s, const char* argument, bound relation, int64 expected, int64 got) {
  return s.code == status_code::invalid_argument && s.argument == std::string(argument) && s.relation == relation &&
         s.expected == expected && s.got == got;
}
bool without_driver(const status& s) {
  return s.code == status_code::no_driver && std::string(s.message).find("no NVIDIA driver") != std::string::npos;
}

template <class Report>
std::string report_of(const Report& e) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const file = open_memstream(&text, &size);
  giwa::print(e, file);
  std::fclose(file);
  const std::string report(text, size);
  std::free(text);
  return report;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

// Assigned over an active guard, it would make the wrong GPU current.
static_assert(!std::is_move_assignable_v<giwa::device_guard> && std::is_move_constructible_v<giwa::device_guard>);

TEST_CASE("an argument that is wrong on every GPU is reported as such, before anything is asked of the driver") {
  const cudaStream_t s = nullptr;
  CHECK(is(giwa::for_all(s, -1, nothing{}), "n", bound::at_least, 0, -1));
  CHECK_FALSE(giwa::for_all(s, ~giwa::uint64{0}, nothing{}).ok());
  CHECK(is(giwa::for_all(s, giwa::extents{3, -4}, nothing{}), "extents", bound::at_least, 0, -4));
  CHECK(is(giwa::for_all(s, giwa::extents{int64{1} << 32, int64{1} << 31}, nothing{}), "extents", bound::at_most,
           max_int64 >> 32, int64{1} << 31));
  CHECK(giwa::for_all(s, giwa::elementwise{giwa::tensor_view<int, 1>(nullptr, {3})}, zero{}).argument ==
        std::string("out"));
  CHECK(is(giwa::launch(s, {.grid = {1, 70000}}, empty_kernel, 0), "grid.y", bound::at_most, 65535, 70000));
  CHECK(is(giwa::launch(s, {.grid = -1}, empty_kernel, 0), "grid.x", bound::at_least, 0, -1));
  CHECK(giwa::launch(s, {.grid = 0}, empty_kernel, 0).ok());  // launches nothing
  CHECK(giwa::launch(s, {.grid = {2, 0}, .block = 32}, op{}, {}).ok());
  CHECK(giwa::launch(s, {}, empty_kernel, int64{1} << 32).argument == std::string("arguments"));
  CHECK(giwa::launch(s, {}, static_cast<void (*)(int)>(nullptr), 0).argument == std::string("kernel"));
  CHECK(is(giwa::launch(s, {.block = 160}, op{}, {}), "block", bound::at_most, 128, 160));
  CHECK(giwa::launch(s, {.block = 33}, op{}, {}).argument == std::string("block"));

  CHECK(is(giwa::device_array<double>::allocate(s, -1).state, "size", bound::at_least, 0, -1));
  CHECK(is(giwa::device_array<double>::allocate(s, int64{1} << 60).state, "size", bound::at_most, (int64{1} << 60) - 1,
           int64{1} << 60));
  std::vector<float> some(4), more(5);
  const giwa::tensor_view<const float, 1> negative(some.data(), {-1}), null(nullptr, {4}),
      every_other(some.data(), {2}, {2});
  CHECK(giwa::to_device(s, negative).state.argument == std::string("source"));
  CHECK(giwa::to_device(s, null).state.argument == std::string("source"));
  CHECK(giwa::to_device(s, every_other).state.argument == std::string("source"));
  const giwa::tensor_view<float, 1> target(some.data(), {4});
  CHECK(is(giwa::to_host<float>(s, giwa::tensor_view<const float, 1>(more), target), "target", bound::exactly, 5, 4));
  CHECK(giwa::to_host<float>(s, target, giwa::tensor_view<float, 1>(nullptr, {4})).argument == std::string("target"));
  CHECK(giwa::to_host<float>(s, null, target).argument == std::string("source"));

  const auto work = [] { return status{}; };
  CHECK(is(giwa::time_on(s, work, -1).state, "warm_up", bound::at_least, 0, -1));
  CHECK(is(giwa::time_on(s, work, 0, 0).state, "repeats", bound::at_least, 1, 0));
  CHECK(is(giwa::resident_blocks(empty_kernel, 0).state, "threads", bound::at_least, 1, 0));
  CHECK(is(giwa::resident_blocks(empty_kernel, 1025).state, "threads", bound::at_most, 1024, 1025));
  CHECK(is(giwa::resident_blocks(empty_kernel, 32, -1).state, "shared_bytes", bound::at_least, 0, -1));
  CHECK(is(giwa::cover(empty_kernel, 0).state, "n", bound::at_least, 1, 0));
  CHECK(is(giwa::fill_gpu(empty_kernel, 0).state, "waves", bound::at_least, 1, 0));
}

TEST_CASE("nothing to do is done everywhere") {
  const cudaStream_t s = nullptr;
  CHECK(giwa::for_all(s, 0, nothing{}).ok());
  CHECK(giwa::for_all(s, giwa::extents{0, max_int64}, nothing{}).ok());
  CHECK(giwa::for_all(s, giwa::elementwise{giwa::tensor_view<int, 1>()}, zero{}).ok());
  const result<giwa::device_array<int>> none = giwa::device_array<int>::allocate(s, 0);
  CHECK(none.ok());
  CHECK(none.value.data() == nullptr);
  CHECK(none.value.size() == 0);
  CHECK(giwa::to_device(s, std::vector<int>()).ok());
}

TEST_CASE("host memory is host memory") {
  const int on_the_stack = 0;
  const std::vector<int> on_the_heap(1);
  for (const int* p : {&on_the_stack, on_the_heap.data(), static_cast<const int*>(nullptr)}) {
    const result<giwa::pointer_location> where = giwa::location_of(p);
    CHECK(where.ok());
    CHECK(where.value.kind == giwa::memory_kind::pageable);
    CHECK(where.value.device == -1);
  }
}

TEST_CASE("a device that does not exist is refused, and changes nothing") {
  const int before = giwa::current_device().value;
  for (const int device : {-1, giwa::device_count(), 12345, -2147483647}) {
    CAPTURE(device);
    const result<giwa::device_guard> guard = giwa::device_guard::activate(device);
    const status properties = giwa::properties_of(device).state;
    const giwa::environment e = giwa::check_environment(device == -1 ? 12345 : device);  // -1 asks for the current one
    for (const status& s : {guard.state, properties}) {
      CHECK_FALSE(s.ok());
      if (giwa::device_count() == 0) continue;
      CHECK(s.code == status_code::no_device);
      CHECK(s.got == device);
      CHECK(s.expected == (device < 0 ? 0 : giwa::device_count() - 1));
    }
    if (device >= 0) {
      CHECK_FALSE(e.verdict.ok());
    }
    CHECK(giwa::current_device().value == before);
  }
  CHECK(giwa::properties_of(-1).value.device == -1);
}

TEST_CASE("the environment report says what was found and what to do") {
  const giwa::environment e = giwa::check_environment();
  const std::string report = report_of(e);
  INFO(report);
  CHECK(e.toolkit == CUDART_VERSION);
  CHECK(e.runtime / 1000 == CUDART_VERSION / 1000);
  CHECK(contains(report, "giwa                 " + std::to_string(GIWA_VERSION_MAJOR) + "." +
                             std::to_string(GIWA_VERSION_MINOR) + "." + std::to_string(GIWA_VERSION_PATCH) + "\n"));
  CHECK(contains(report, "built with CUDA      " + std::to_string(e.toolkit / 1000) + "." +
                             std::to_string(e.toolkit % 1000 / 10) + "\n"));
  CHECK(contains(report, "GPUs                 " + std::to_string(giwa::device_count()) + "\n"));
  CHECK(std::string(e.advice).size() > 10);
  CHECK(report.substr(report.size() - std::string(e.advice).size() - 1) == std::string(e.advice) + "\n");
  CHECK(report.find('\0') == std::string::npos);
  if (e.devices > 0) return;
  CHECK_FALSE(e.verdict.ok());
  CHECK(e.properties.device == -1);
  CHECK_FALSE(contains(report, "multiprocessors"));
}

TEST_CASE("without a driver the CPU is chosen, and all else says that there is no driver") {
  if (giwa::check_environment().driver != 0) return;  // there is one; the tests below test/gpu run
  CHECK(giwa::device_count() == 0);
  CHECK(giwa::current_device().value == -1);
  CHECK(without_driver(giwa::current_device().state));

  const giwa::device_choice choice = giwa::choose_device();
  CHECK_FALSE(choice.on_gpu());
  CHECK(choice.device == -1);
  CHECK(without_driver(choice.found.verdict));
  CHECK(contains(choice.found.advice, "giwa runs on the CPU (giwa::host)"));
  CHECK(contains(report_of(choice.found), "driver               none\n"));
  CHECK(report_of(choice) == std::string("device: CPU\n        ") + choice.found.advice + "\n");
  CHECK(choice.visit([](auto where) { return std::is_same_v<decltype(where), giwa::host_t>; }));

  const cudaStream_t s = nullptr;
  std::vector<int> data(100);
  CHECK(without_driver(giwa::stream::create().state));
  CHECK(without_driver(giwa::event::create().state));
  CHECK(without_driver(giwa::synchronize(s)));
  CHECK(without_driver(giwa::time_on(s, [] { return status{}; }).state));
  CHECK(without_driver(giwa::device_array<int>::allocate(s, 100).state));
  CHECK(without_driver(giwa::to_device(s, data).state));
  CHECK(without_driver(giwa::check_device_pointer(data.data(), "data")));
  CHECK(without_driver(giwa::for_all(s, 100, nothing{})));
  CHECK(without_driver(giwa::for_all(s, giwa::extents{10, 10}, nothing{})));
  CHECK(without_driver(giwa::for_all(s, giwa::elementwise{data}, zero{})));
  CHECK(without_driver(giwa::launch(s, {}, empty_kernel, 1)));
  CHECK(without_driver(giwa::launch(s, {.shared_bytes = 100000}, empty_kernel, 1)));
  CHECK(without_driver(giwa::launch(s, {.shared_bytes = int64{1} << 40}, empty_kernel, 1)));
  CHECK(without_driver(giwa::launch(s, {.grid = 2, .cluster = 2}, empty_kernel, 1)));
  CHECK(without_driver(giwa::launch(s, {.grid = 16, .cluster = 16}, empty_kernel, 1)));
  CHECK(without_driver(giwa::launch(s, {.cooperative = true}, empty_kernel, 1)));
  CHECK(without_driver(giwa::launch(s, {.block = 32}, op{}, {})));
  CHECK(without_driver(giwa::cover(empty_kernel, 100).state));
  CHECK(without_driver(giwa::fill_gpu(empty_kernel).state));
  CHECK(without_driver(giwa::resident_blocks(empty_kernel, 32).state));
  CHECK(without_driver(giwa::code_for_current_device().state));
  CHECK(without_driver(giwa::properties_of(0).state));
  CHECK(without_driver(giwa::device_guard::activate(0).state));
}

#define GIWA_TEST_TEXT_(...) #__VA_ARGS__
#define GIWA_TEST_TEXT(...) GIWA_TEST_TEXT_(__VA_ARGS__)

TEST_CASE("the tag of this file names its architectures, in order") {
  std::string expected = "archs_";
  for (const int architecture : {__CUDA_ARCH_LIST__}) expected += std::to_string(architecture);
  CHECK(GIWA_TEST_TEXT(GIWA_ARCH_TAG) == expected);
  CHECK(contains(expected, "0"));
}
