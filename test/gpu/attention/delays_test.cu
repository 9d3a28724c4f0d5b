// SPDX-License-Identifier: MIT
// Attention whose threads sleep at random before they wait for each other: it answers, and with the same bits.
#define GIWA_RANDOM_DELAYS 1
#include <limits>

#include "gpu/attention/plain_tensors.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

namespace {

void set_delay(unsigned nanoseconds) {
  check_cuda(cudaMemcpyToSymbol(giwa::arch::random_delay, &nanoseconds, sizeof nanoseconds));
}

// How many calls with delays differ from one without. NaNs among the values are there for who checks them, and for who must not
// wait for that.
template <int HeadSize, class T = fp16, class Mask>
int different_of(int64 queries, int64 keys, const Mask& mask, bool with_nan = false) {
  const giwa::stream s = new_stream();
  plain_tensors<T> t(2, queries, keys, 6, 2, HeadSize);
  for (std::size_t i = 7; with_nan && i < t.v.size(); i += t.v.size() / 24) {
    const T nan = giwa::convert<T>{}(std::numeric_limits<float>::quiet_NaN());
    check_cuda(cudaMemcpy(t.v.data() + i, &nan, sizeof nan, cudaMemcpyHostToDevice));
  }
  check_cuda(cudaDeviceSynchronize());
  const int64 bytes = giwa::workspace_bytes({2, queries, keys, 6, 2, HeadSize, HeadSize, int64{sizeof(T)}});
  const gpu_array<unsigned char> workspace(static_cast<std::size_t>(bytes));
  giwa::attention_options options;
  options.lse = t.lse_view();
  const auto run = [&] {
    giwa::throw_if_failed(giwa::attention_forward<HeadSize>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask,
                                                            giwa::plain_score{}, options));
    check_cuda(cudaStreamSynchronize(s));
  };
  const giwa::tensor_view<unsigned char, 1> all(workspace.data(), {bytes});
  if (sizeof(T) == 4) options.workspace = all;  // another path without
  set_delay(0);
  run();
  const auto o = t.o.to_host();
  const auto lse = t.lse.to_host();
  int different = 0;
  for (int i = 0; i < (small_mode() ? 2 : 40); ++i) {
    if (sizeof(T) != 4) options.workspace = i % 2 == 1 ? all : giwa::tensor_view<unsigned char, 1>{};
    set_delay(i % 4 < 2 ? 300 : 4000);
    t.o.fill(0xff), t.lse.fill(0xff);
    run();
    different += same_bits(o, t.o.to_host()) && same_bits(lse, t.lse.to_host()) ? 0 : 1;
  }
  return different;
}

}  // namespace

TEST_CASE("delays change nothing") {
  CHECK(different_of<64>(700, 700, giwa::causal{}) == 0);
  CHECK(different_of<64>(500, 900, giwa::full{}) == 0);
  CHECK(different_of<128>(700, 500, giwa::causal::bottom_right) == 0);
  CHECK(different_of<128>(1024, 300, giwa::full{}) == 0);  // an even number of tiles: blocks in pairs
  CHECK(different_of<256>(700, 700, giwa::causal{}) == 0);
  CHECK(different_of<64>(700, 700, giwa::causal{}, true) == 0);
  CHECK(different_of<64>(700, 900, giwa::sliding_window{50, giwa::alignment::bottom_right}, true) == 0);
  CHECK(different_of<256>(700, 700, giwa::causal{}, true) == 0);
#if !defined(GIWA_TEST_FEW_SIZES)
  CHECK(different_of<64, float>(700, 700, giwa::causal{}) == 0);
  CHECK(different_of<128, float>(1024, 300, giwa::full{}) == 0);
  CHECK(different_of<128, float>(500, 900, giwa::sliding_window{50, giwa::alignment::bottom_right}) == 0);
  CHECK(different_of<256, float>(700, 700, giwa::causal{}) == 0);
#endif
}
