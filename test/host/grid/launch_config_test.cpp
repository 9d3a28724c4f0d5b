// SPDX-License-Identifier: MIT
// Launch configurations: every limit at and beyond it, for kernels and for ops.
#include <cuda_runtime_api.h>

#include <giwa/grid/launch_config.hpp>
#include <giwa/grid/op.hpp>

#include <string>

#include "support/catch.hpp"

using giwa::bound;
using giwa::dimensions;
using giwa::int64;
using giwa::launch_config;
using giwa::max_int64;
using giwa::status;
using giwa::status_code;
using giwa::validate;

namespace {

constexpr int64 min_int64 = -max_int64 - 1;

static_assert(validate({}).ok() && !validate({.block = 0}).ok(), "a configuration can be checked while compiling");
static_assert(dimensions{2, 3, 4}.count() == 24 && dimensions(7) == dimensions{7, 1, 1});

struct limit {
  const char* argument;
  dimensions launch_config::*shape;
  int64 dimensions::*axis;
  int64 largest;
};
// CUDA C++ Programming Guide, "Technical specifications per compute capability", 7.5 to 12.x; clusters: 16 blocks.
const limit limits[] = {
    {"grid.x", &launch_config::grid, &dimensions::x, 2147483647},
    {"grid.y", &launch_config::grid, &dimensions::y, 65535},
    {"grid.z", &launch_config::grid, &dimensions::z, 65535},
    {"block.x", &launch_config::block, &dimensions::x, 1024},
    {"block.y", &launch_config::block, &dimensions::y, 1024},
    {"block.z", &launch_config::block, &dimensions::z, 64},
    {"cluster.x", &launch_config::cluster, &dimensions::x, 16},
    {"cluster.y", &launch_config::cluster, &dimensions::y, 16},
    {"cluster.z", &launch_config::cluster, &dimensions::z, 16},
};

bool is(const status& s, const char* argument, bound relation, int64 expected, int64 got) {
  return s.code == status_code::invalid_argument && s.argument == std::string(argument) && s.relation == relation &&
         s.expected == expected && s.got == got;
}

struct op {
  struct params {};
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 256, min_blocks = 1;
  template <class Block>
  void operator()(Block, const params&, shared_storage&) const {}
};

}  // namespace

TEST_CASE("each count is taken up to its limit, and refused beyond it with the number") {
  for (const limit& l : limits) {
    CAPTURE(l.argument);
    launch_config c;
    if (l.shape == &launch_config::cluster) c.grid.*l.axis = l.largest;  // a whole number of clusters
    for (const int64 good : {int64{1}, l.largest}) {
      c.*l.shape.*l.axis = good;
      CHECK(validate(c).ok());
    }
    for (const int64 large : {l.largest + 1, 2 * l.largest, int64{1} << 32, (int64{1} << 32) + 1, max_int64}) {
      c.*l.shape.*l.axis = large;
      CHECK(is(validate(c), l.argument, bound::at_most, l.largest, large));
    }
    const int64 least = l.shape == &launch_config::grid ? 0 : 1;
    for (const int64 small : {int64{0}, int64{-1}, min_int64}) {
      c.*l.shape.*l.axis = small;
      CHECK((small >= least ? validate(c).ok() : is(validate(c), l.argument, bound::at_least, least, small)));
    }
  }
}

TEST_CASE("a block has at most 1024 threads in all") {
  const int64 sizes[] = {1, 2, 3, 16, 31, 32, 33, 63, 64, 512, 513, 1023, 1024};
  for (const int64 x : sizes)
    for (const int64 y : sizes)
      for (const int64 z : sizes) {
        if (z > 64) continue;
        CAPTURE(x, y, z);
        const status s = validate({.block = {x, y, z}});
        REQUIRE((x * y * z <= 1024 ? s.ok() : is(s, "block", bound::at_most, 1024, x * y * z)));
      }
}

TEST_CASE("a cluster has at most 16 blocks, and the grid is made of whole clusters") {
  for (int64 x = 1; x <= 16; ++x)
    for (int64 y = 1; y <= 16; ++y)
      for (int64 z = 1; z <= 16; ++z) {
        CAPTURE(x, y, z);
        const launch_config whole{.grid = {3 * x, y, 5 * z}, .cluster = {x, y, z}};
        const status s = validate(whole);
        REQUIRE((x * y * z <= 16 ? s.ok() : is(s, "cluster", bound::at_most, 16, x * y * z)));
        if (!s.ok()) continue;
        for (const dimensions& grid : {dimensions{3 * x + 1, y, 5 * z}, {3 * x, y + 1, 5 * z}, {3 * x, y, 5 * z + 1}}) {
          const bool divides = grid.x % x == 0 && grid.y % y == 0 && grid.z % z == 0;
          const status other = validate({.grid = grid, .cluster = {x, y, z}});
          REQUIRE((divides ? other.ok() : other.argument == std::string("cluster")));
        }
      }
}

TEST_CASE("shared memory is not negative; how much is too much depends on the GPU") {
  for (const int64 bytes : {int64{0}, int64{1}, int64{49152}, int64{1} << 40})
    CHECK(validate({.shared_bytes = bytes}).ok());
  for (const int64 bytes : {int64{-1}, min_int64})
    CHECK(is(validate({.shared_bytes = bytes}), "shared_bytes", bound::at_least, 0, bytes));
}

TEST_CASE("an op's block is a whole number of warps, at most max_threads, and its shared memory its own") {
  const auto check = [](const launch_config& c) { return giwa::detail::validate_op<op>(c); };
  for (int64 threads = 1; threads <= 1024; ++threads)
    REQUIRE(check({.block = threads}).ok() == (threads % 32 == 0 && threads <= 256));
  CHECK(is(check({.block = 288}), "block", bound::at_most, 256, 288));
  CHECK(check({.block = {4, 4, 2}}).ok());
  CHECK(check({.block = {4, 4, 16}}).ok());
  CHECK_FALSE(check({.block = {4, 4, 17}}).ok());
  CHECK_FALSE(check({.block = {5, 3, 2}}).ok());
  CHECK(is(check({.block = 32, .shared_bytes = 1}), "shared_bytes", bound::exactly, 0, 1));
  CHECK(is(check({.grid = {1, 70000}, .block = 32}), "grid.y", bound::at_most, 65535, 70000));
}

TEST_CASE("dimensions are made of a dim3 and of any numbers") {
  CHECK(dimensions(dim3(2, 3, 4)) == dimensions{2, 3, 4});
  CHECK(dimensions(dim3(4294967295u)).x == 4294967295);
  CHECK(dimensions(uint3{5, 6, 7}) == dimensions{5, 6, 7});
  const launch_config c{.grid = 80, .block = {32, 8}, .shared_bytes = 65536};
  CHECK(c.grid == dimensions{80, 1, 1});
  CHECK(c.block == dimensions{32, 8, 1});
}
