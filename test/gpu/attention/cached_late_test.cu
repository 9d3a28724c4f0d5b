// SPDX-License-Identifier: MIT
// attention_cached after a kernel that lets it start, and writes the lengths and page numbers long after that: the same bits.
#include "gpu/attention/cached_gpu.cuh"
#include "gpu/attention/late_copies.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;

namespace {

cached_case_options case_of(int64 sequences, int64 page_size) {
  cached_case_options c;
  c.heads = 8;
  c.kv_heads = 2;
  c.head_size = c.head_size_v = 128;
  c.queries.assign(static_cast<std::size_t>(sequences), 2);
  c.page_size = page_size;
  c.keys = 1500;
  c.most = page_size == 0 ? 0 : giwa::ceil_div(c.keys, page_size);
  const int some[] = {1500, 130, 5, 0, 800, 256, 2147483647, -1};
  for (int64 b = 0; b < sequences; ++b) c.lengths.push_back(some[b % 8]);
  return c;
}

// Counts the calls with other bits, of those whose lengths and pages are others until the kernel before them writes them.
template <class T, class Element, class Mask>
int different(int64 sequences, int64 page_size, const Mask& mask) {
  cached_case<T, Element> c(case_of(sequences, page_size));
  cached_on_gpu<T, Element, T> gpu(c);
  const giwa::stream s = new_stream();
  const auto run = [&] {
    giwa::throw_if_failed(
        cached_of<128, 128>(s, gpu.views(), mask, giwa::plain_score{}, gpu.call_options(int64{8} << 20)));
  };
  gpu.clear_outputs();
  run();
  gpu.read_back();
  const std::vector<T> o = c.o.memory;
  const std::vector<float> lse = c.lse.memory;
  const gpu_array<int> lengths(c.options.lengths), pages(c.indices);
  int different = 0;
  for (const int before : {0, -5, 1, 128, 129, 1000, 1500, 2147483647}) {
    for (const bool all : {true, false}) {  // or the last sequence alone
      std::vector<int> other = c.options.lengths;
      for (std::size_t b = all ? 0 : other.size() - 1; b < other.size(); ++b) other[b] = before;
      check_cuda(cudaMemcpy(gpu.lengths.data(), other.data(), gpu.lengths.bytes(), cudaMemcpyHostToDevice));
      gpu.indices.fill(0x7f);
      gpu.clear_outputs();
      check_cuda(cudaDeviceSynchronize());
      launch_late_copies(s, {{late(gpu.lengths, lengths), late(gpu.indices, pages)}});
      run();
      gpu.read_back();
      different += same_bits(c.o.memory, o) && same_bits(c.lse.memory, lse) ? 0 : 1;
    }
  }
  return different;
}

}  // namespace

TEST_CASE("a kernel that reads too early would be seen") {
  if (kernels_start_early()) CHECK(early_reads_are_seen());
}

TEST_CASE("lengths that the kernel before the call writes late") {
  for (const int64 sequences : {1, 3, 8, 32, 33}) {
    CAPTURE(sequences);
    CHECK(different<bf16, bf16>(sequences, 0, causal::bottom_right) == 0);
    CHECK(different<bf16, e4m3>(sequences, 0, giwa::full{}) == 0);
  }
}

TEST_CASE("lengths and pages that the kernel before the call writes late") {
  for (const int64 page_size : {16, 24}) {
    CAPTURE(page_size);
    for (const int64 sequences : {1, 3, 32}) CHECK(different<bf16, bf16>(sequences, page_size, giwa::full{}) == 0);
    CHECK(different<bf16, e4m3>(3, page_size, causal::bottom_right) == 0);
  }
}
