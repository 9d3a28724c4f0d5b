// SPDX-License-Identifier: MIT
// Copies between views and tiles on the host executor: any size, place, stride and alignment, compared byte by byte.
#include <giwa/host_executor.cuh>

#include <sys/mman.h>

#include <limits>

#include "copy_cases.cuh"
#include "support/environment.hpp"

using namespace giwa_test;

namespace {

struct on_the_host {
  template <class Op, class Params>
  bool run(const giwa::launch_config& config, const Op& op, byte_array& in, byte_array& out, Params params) const {
    return giwa::launch(giwa::host, config, op, params(in.data(), out.data())).ok();
  }
};

// Never launched here: the compiler has to accept the ops for the device as well.
#if !defined(GIWA_TEST_HOST_ONLY)
template <class Op>
giwa::status launch_on(cudaStream_t stream, const typename Op::params& p) {
  return giwa::launch(stream, {.block = 32}, Op{}, p);
}
template <class Copied>
bool compiles() {
  return &launch_on<load_op<Copied, false>> != nullptr && &launch_on<load_op<Copied, true>> != nullptr &&
         &launch_on<store_op<Copied>> != nullptr;
}
#else
template <class>
bool compiles() {
  return true;
}
#endif

constexpr giwa::detail::tile_window inside = giwa::detail::window_of(3, 100, 16),
                                    before = giwa::detail::window_of(-5, 100, 16),
                                    past = giwa::detail::window_of(90, 100, 16),
                                    both = giwa::detail::window_of(-2, 9, 16);
static_assert(inside.begin == 0 && inside.end == 16 && before.begin == 5 && before.end == 16);
constexpr giwa::int64 last = std::numeric_limits<giwa::int64>::max();
static_assert(giwa::detail::window_of(-last - 1, last, 16).end == 0 &&
                  giwa::detail::window_of(last, last, 16).end == 0 && giwa::detail::window_of(-16, 100, 16).end == 0 &&
                  giwa::detail::window_of(100, 100, 16).end == 0,
              "no sum overflows: a constant expression would not compile");
static_assert(past.begin == 0 && past.end == 10 && both.begin == 2 && both.end == 11);

}  // namespace

TEMPLATE_LIST_TEST_CASE("tiles are copied on the host executor", "", all_copied) {
  CHECK(compiles<TestType>());
  check_copies<TestType>(on_the_host{}, small_mode() ? 9 : 150);  // under ThreadSanitizer each takes 60 ms
}

TEST_CASE("a tile wholly outside its view, however far, is all fill") {
  if (small_mode()) return;
  check_far_origins<copied<fp16, fp16, 16, 64, giwa::swizzled<giwa::swizzle::bytes_128>>>(on_the_host{});
}

TEST_CASE("rows farther apart than 32 bits can tell are copied on the host executor") {
  using far = copied<float, float, 8, 32, giwa::row_major>;
  constexpr int64 stride = (int64{1} << 31) + 16;  // elements: 8 GB, of which two pages are used
  constexpr std::size_t size = 4 * (stride + 32);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    WARN("skipped: the system gives no address space of 8 GB");
    return;
  }
  const giwa::tensor_view<float, 2> view{static_cast<float*>(memory), {2, 32}, {stride, 1}};
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 32; ++column) view(row, column) = static_cast<float>(100 * row + column);
  using op = load_op<far, false>;
  std::vector<unsigned char> out(sizeof(op::shared_storage));
  CHECK(giwa::launch(giwa::host, {.block = 64}, op{}, {view, {-1, 0}, -1.0f, out.data()}).ok());
  munmap(memory, size);
  std::vector<float> tile(8 * 32);
  std::memcpy(tile.data(), out.data() + offsetof(op::shared_storage, tile), sizeof(float) * tile.size());
  for (int row = 0; row < 8; ++row)
    for (int column = 0; column < 32; ++column) {
      CAPTURE(row, column);
      REQUIRE(tile[static_cast<std::size_t>(row * 32 + column)] ==
              (row == 1 || row == 2 ? static_cast<float>(100 * (row - 1) + column) : -1.0f));
    }
}
