// SPDX-License-Identifier: MIT
// The host executor through its public header and under nvcc, where an op's body is compiled for the device as well.
#include "ops.hpp"
#include "support/catch.hpp"

#include <giwa/grid.cuh>
#include <giwa/host_executor.cuh>

#include <vector>

using namespace giwa_test;

namespace {

// Never launched here: the compiler has to accept each op for both.
template <class Op>
giwa::status launch_on(cudaStream_t stream, const typename Op::params& p) {
  return giwa::launch(stream, {.block = 32}, Op{}, p);
}

template <class Op>
bool compiles() {
  return &launch_on<Op> != nullptr;
}

}  // namespace

using giwa::detail::keeps_value;
static_assert(keeps_value<int>(-1) && keeps_value<int>(0x7fffffffll) && !keeps_value<int>(0x80000000ll));
static_assert(keeps_value<unsigned>(5) && !keeps_value<unsigned>(-1) && !keeps_value<unsigned>(0x100000000ll));
static_assert(keeps_value<int>(0x7fffffffu) && !keeps_value<int>(0x80000000u) && !keeps_value<int>(0x100000000ull));
static_assert(keeps_value<unsigned char>(255u) && !keeps_value<unsigned char>(256u) && keeps_value<bool>(7));
static_assert(keeps_value<float>(0x7fffffff) && keeps_value<int>(1.5f));  // conversions that the compiler warns of

TEST_CASE("ops compiled by nvcc run on the host") {
  const bool all = compiles<block_sum_op>() && compiles<atomics_op>() && compiles<vote_op>() && compiles<who_op>() &&
                   compiles<transpose_op>() && compiles<shuffle_op<double>>();
  CHECK(all);
  std::vector<int64> in(2 * 256, 3), out(in.size());
  REQUIRE(giwa::launch(giwa::host, {.grid = 2, .block = 256}, block_scan_op{}, {in.data(), out.data()}).ok());
  for (std::size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == 3 * (static_cast<int64>(i) % 256 + 1));
}
