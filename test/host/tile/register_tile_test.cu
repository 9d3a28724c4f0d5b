// SPDX-License-Identifier: MIT
// Register tiles on the host executor: functions of elements and rows, reductions, and stores to every kind of target.
#include <giwa/host_executor.cuh>

#include <cmath>
#include <cstring>

#include "register_cases.cuh"

using namespace giwa_test;

namespace {

struct on_the_host {
  template <class Op, class Params>
  bool run(const giwa::launch_config& config, const Op& op, const std::vector<float>& in, byte_array& out,
           Params params) const {
    return giwa::launch(giwa::host, config, op, params(in.data(), out.data())).ok();
  }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("rows of a register tile are reduced on the host executor", "", reduced_maps) {
  check_reductions<TestType>(on_the_host{});
}

TEMPLATE_LIST_TEST_CASE("a register tile is stored to shared memory on the host executor", "", stored_to_shared) {
  check_to_shared<TestType>(on_the_host{});
}

TEMPLATE_LIST_TEST_CASE("a register tile is stored to a view on the host executor", "", stored_to_global) {
  check_to_global<TestType>(on_the_host{}, 150);
}

TEST_CASE("the larger of two numbers passes over NaN on the host") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const giwa::larger larger;
  CHECK(larger(nan, 3.0f) == 3.0f);
  CHECK(larger(3.0f, nan) == 3.0f);
  CHECK(std::isnan(larger(nan, nan)));
  CHECK(larger(-1.0f, 2.0f) == 2.0f);
  CHECK(larger(2.0f, -1.0f) == 2.0f);
}

TEST_CASE("accumulators become operands with their elements in order") {
  using map = giwa::warp_map<16, 16>;
  giwa::register_tile<float, map> tile;
  for (int i = 0; i < map::registers; ++i) tile.value[i] = 1 + static_cast<float>(i * i) * 0x1p-20f;
  giwa::uint32 one[map::registers / 2], hi[map::registers / 2], lo[map::registers / 2];
  giwa::to_operand<giwa::fp16>(tile, one);
  giwa::to_operands(tile, 2.0f, hi, lo);
  const auto number = [](giwa::uint32 word, int place) {
    giwa::fp16 x[2];
    std::memcpy(static_cast<void*>(x), &word, sizeof x);
    return giwa::convert<float>{}(x[place]);
  };
  for (int i = 0; i < map::registers; ++i) {
    CHECK(number(one[i / 2], i % 2) == giwa::convert<float>{}(giwa::convert<giwa::fp16>{}(tile.value[i])));
    CHECK(std::abs(number(hi[i / 2], i % 2) + number(lo[i / 2], i % 2) - 2 * tile.value[i]) <= 0x1p-21f);
  }
}
