// SPDX-License-Identifier: MIT
// The limits of another GPU, which GIWA_TEST_AS puts in the place of the present one's (support/another_gpu.hpp): here of 8.6.
#include <giwa/device.hpp>
#include <giwa/grid.cuh>

#include <cstdlib>

#include "support/another_gpu.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"

namespace {

using giwa::int64;

const int before_the_first_call = setenv("GIWA_TEST_AS", "8.6", 1);

template <int Bytes>
struct of_shared_bytes {
  struct params {
    int* to;
  };
  struct shared_storage {
    int numbers[Bytes / 4];
  };
  static constexpr int max_threads = 128, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    s.numbers[block.rank()] = 7;
    block.sync();
    if (block.rank() == 0) *p.to = s.numbers[block.size() - 1];
  }
};
template <int KiB>
using of_kib = of_shared_bytes<(KiB << 10)>;

template <class = void>
__global__ void __launch_bounds__(128) nothing() {}

}  // namespace

TEST_CASE("properties and occupancy are those of the other GPU") {
  REQUIRE(before_the_first_call == 0);
  const auto p = giwa::throw_if_failed(giwa::properties_of(giwa::throw_if_failed(giwa::current_device())));
  CHECK(p.capability.value() == 86);
  CHECK(p.shared_bytes_per_block == int64{99} << 10);
  CHECK(p.shared_bytes_per_multiprocessor == int64{100} << 10);
  CHECK(p.threads_per_multiprocessor == 1536);
  CHECK(p.multiprocessors == 72);
  CHECK_FALSE(p.cluster_launch);
  CHECK(giwa::throw_if_failed(giwa::code_for_current_device()).architecture == 86);
  CHECK(giwa::throw_if_failed(giwa::blocks_at_once<of_kib<49>>()) == 2 * 72);
  CHECK(giwa::throw_if_failed(giwa::blocks_at_once<of_kib<50>>()) == 72);  // CUDA takes 1 KB for each block
  CHECK(giwa::throw_if_failed(giwa::resident_blocks(nothing<>, 128)) == 12);
  CHECK(giwa::throw_if_failed(giwa::resident_blocks(nothing<>, 32)) == 16);
  giwa_test::processors_of_test = 3;
  CHECK(giwa::throw_if_failed(giwa::blocks_at_once<of_kib<50>>()) == 3);
  giwa_test::processors_of_test = 0;
}

TEST_CASE("launches beyond the limits of the other GPU are refused, and others run") {
  const giwa::stream s = giwa_test::new_stream();
  const giwa_test::gpu_array<int> to(1, 0);
  const giwa::launch_config one{.block = 128};
  CHECK(launch(s, one, of_kib<99>{}, {to.data()}).ok());
  CHECK(giwa::synchronize(s).ok());
  CHECK(to.to_host()[0] == 7);
  CHECK_FALSE(launch(s, one, of_kib<100>{}, {to.data()}).ok());
  CHECK_FALSE(launch(s, {.grid = 2, .block = 128, .cluster = 2}, nothing<>).ok());
  CHECK(launch(s, {.grid = 72 * 12, .block = 128, .cooperative = true}, nothing<>).ok());
  CHECK_FALSE(launch(s, {.grid = 72 * 12 + 1, .block = 128, .cooperative = true}, nothing<>).ok());
  CHECK(giwa::synchronize(s).ok());
  CHECK(giwa_test::no_error_left());
}
