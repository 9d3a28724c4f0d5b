// SPDX-License-Identifier: MIT
// merge_attention on a GPU: against double precision, in place, with and without vectors, in a captured graph, and its refusals.
#include <giwa/attention.cuh>

#include "host/attention/merge_cases.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

template <class T, class O>
std::string on_stream(const merge_data<T, O>& before, merge_data<T, O>& data) {
  const giwa::stream s = new_stream();
  gpu_array<T> parts(data.parts);
  gpu_array<float> parts_lse(data.parts_lse), lse(data.lse);
  gpu_array<O> o(data.o);
  O* to = o.data();
  float* to_lse = lse.data();
  const bool in_place = std::is_same_v<T, O> && data.c.in_place >= 0;
  if constexpr (std::is_same_v<T, O>)
    if (in_place) {
      to = parts.data() + data.c.in_place * data.c.strides()[0];
      to_lse = parts_lse.data() + data.c.in_place * data.c.rows();
    }
  const giwa::status state = giwa::merge_attention(s, data.o_parts(parts.data()), data.lse_parts(parts_lse.data()),
                                                   data.out(to), data.out_lse(to_lse));
  if (!state.ok()) return giwa::format_status(state).c_str();
  check_cuda(cudaStreamSynchronize(s));
  std::vector<O> result(data.o.size());
  std::vector<float> result_lse(data.lse.size());
  check_cuda(cudaMemcpy(result.data(), to, result.size() * sizeof(O), cudaMemcpyDeviceToHost));
  check_cuda(cudaMemcpy(result_lse.data(), to_lse, result_lse.size() * sizeof(float), cudaMemcpyDeviceToHost));
  return before.failure(result.data(), result_lse.data());
}

}  // namespace

TEST_CASE("parts merge on the GPU to what double precision says") {
  CHECK(merge_failures<float, float>(on_stream<float, float>) == "");
  CHECK(merge_failures<fp16, fp16>(on_stream<fp16, fp16>) == "");
  CHECK(merge_failures<bf16, bf16>(on_stream<bf16, bf16>) == "");
  CHECK(merge_failures<float, bf16>(on_stream<float, bf16>) == "");
  CHECK(merge_failures<fp16, float>(on_stream<fp16, float>) == "");
}

TEST_CASE("many rows, each merged in the place of a part, repeatedly with the same bits") {
  const merge_data<fp16, fp16> data({2, 3, 700, 5, 128, 0, false, 0});
  const giwa::stream s = new_stream();
  std::vector<fp16> first;
  std::vector<float> first_lse;
  for (int i = 0; i < 3; ++i) {
    gpu_array<fp16> parts(data.parts);
    gpu_array<float> lse(data.parts_lse);
    REQUIRE(giwa::merge_attention(s, data.o_parts(parts.data()), data.lse_parts(lse.data()), data.out(parts.data()),
                                  data.out_lse(lse.data()))
                .ok());
    check_cuda(cudaStreamSynchronize(s));
    const auto o = parts.to_host();
    const auto l = lse.to_host();
    if (i == 0) {
      CHECK(data.failure(o.data(), l.data()) == "");
      first = o, first_lse = l;
    }
    CHECK(std::memcmp(o.data(), first.data(), o.size() * sizeof(fp16)) == 0);
    CHECK(std::memcmp(l.data(), first_lse.data(), l.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("a merge may be captured") {
  const merge_data<float, float> data({3, 1, 40, 2, 64});
  gpu_array<float> parts(data.parts), lse(data.parts_lse), o(data.o);
  const giwa::stream s = new_stream();
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  const giwa::status state =
      giwa::merge_attention(s, data.o_parts(parts.data()), data.lse_parts(lse.data()), data.out(o.data()));
  check_cuda(cudaStreamEndCapture(s, &graph));
  CHECK(state.ok());
  std::size_t nodes = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 1);
  check_cuda(cudaGraphDestroy(graph));
}
