// SPDX-License-Identifier: MIT
// attention_cached with scales that arrive after the elements that they belong to: the same bits.
#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::e4m3;

namespace {

// Rows of 8 bytes are copied element by element: few loads, and zeros behind them. The scales of all blocks are read over
// PCIe meanwhile.
cached_case_options short_rows(uint64 seed) {
  cached_case_options c;
  c.seed = seed;
  c.heads = c.kv_heads = 4;
  c.head_size = c.head_size_v = 8;
  c.keys = 40;
  c.queries.assign(256, 1);
  for (int b = 0; b < 256; ++b) c.lengths.push_back(33 + b % 8);
  c.k_scales = c.v_scales = 7;  // one for each key and head
  return c;
}

}  // namespace

TEST_CASE("scales that arrive later than the elements that they belong to") {
  cached_case<bf16, e4m3> c(short_rows(1)), another(short_rows(2));
  cached_on_gpu<bf16, e4m3, bf16> gpu(c), pinned(c, array_place::pinned), between(another, array_place::pinned);
  const giwa::stream s = new_stream();
  const auto run = [&](auto& on) {
    on.clear_outputs();
    giwa::throw_if_failed(cached_of<8, 8>(s, on.views(), giwa::full{}, giwa::plain_score{}, on.call_options()));
    wait_for_device();
  };
  run(gpu);
  gpu.read_back();
  const std::vector<bf16> o = c.o.memory;
  CHECK(judge<giwa::fp16>(c, answers_of<giwa::fp16>(c, giwa::full{}, giwa::plain_score{})).failure == "");
  int different = 0;
  for (int i = 0; i < (small_mode() ? 2 : 20); ++i) {
    run(between);  // leaves other scales in shared memory
    run(pinned);
    pinned.read_back();
    different += same_bits(c.o.memory, o) ? 0 : 1;
  }
  CHECK(different == 0);
}
