// SPDX-License-Identifier: MIT
// quantize on a GPU: against double precision and the CPU's bits, in a graph, and with an x that is written late.
#include <giwa/host.hpp>
#include <giwa/quantize.cuh>

#include "gpu/attention/late_copies.cuh"
#include "host/attention/quantize_cases.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"

using namespace giwa_test;
using giwa::bf16;
using giwa::e4m3;
using giwa::fp16;

namespace {

template <class T>
bool equal_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(static_cast<const void*>(a.data()), b.data(), a.size() * sizeof(T)) == 0;
}

/// The memory of a call on the GPU.
template <class T, class Code>
struct quantize_on_gpu {
  gpu_array<T> x;
  gpu_array<Code> codes;
  gpu_array<float> scales, channel;

  explicit quantize_on_gpu(const quantize_data<T, Code>& d)
      : x(d.x.memory), codes(d.codes.memory), scales(d.scales.memory), channel(d.channel.memory) {}
  giwa::status call(quantize_data<T, Code>& d, cudaStream_t s) const {
    return d.call(s, x.data(), codes.data(), scales.data(), channel.data());
  }
  void read_back(quantize_data<T, Code>& d) const {
    d.codes.memory = codes.to_host(), d.scales.memory = scales.to_host(), d.channel.memory = channel.to_host();
  }
  void clear() { codes.fill(0xff), scales.fill(0xff), channel.fill(0xff); }
};

struct on_stream {
  template <class T, class Code>
  std::string operator()(quantize_data<T, Code>& data) const {
    quantize_data<T, Code> on_host = data;
    const giwa::status of_host = on_host.call(giwa::host, on_host.x.memory.data(), on_host.codes.memory.data(),
                                              on_host.scales.memory.data(), on_host.channel.memory.data());
    const giwa::stream s = new_stream();
    const quantize_on_gpu<T, Code> gpu(data);
    const giwa::status state = gpu.call(data, s);
    if (!state.ok() || !of_host.ok()) return giwa::format_status(state).c_str();
    gpu.read_back(data);
    return equal_bytes(data.codes.memory, on_host.codes.memory) &&
                   equal_bytes(data.scales.memory, on_host.scales.memory) &&
                   equal_bytes(data.channel.memory, on_host.channel.memory)
               ? ""
               : "not the bits of the CPU";
  }
};

}  // namespace

TEST_CASE("quantize on the GPU is what double precision says, with the bits of the CPU") {
  CHECK(quantize_fault<fp16, e4m3>(on_stream{}) == "");
  CHECK(quantize_fault<bf16, e4m3>(on_stream{}) == "");
  CHECK(quantize_fault<float, e4m3>(on_stream{}) == "");
  CHECK(quantize_fault<bf16, int8_code>(on_stream{}) == "");
  CHECK(quantize_fault<fp16, int4_pair>(on_stream{}) == "");
  CHECK(quantize_fault<float, int4_pair>(on_stream{}) == "");
}

TEST_CASE("many rows, of which a thread has several, and groups of more runs than registers hold") {
  for (const int rows : {1, 64, 0, channels}) {
    quantize_data<bf16, e4m3> data({.sizes = {2, 9001, 8, 128}, .rows = rows, .hostile = true});
    CAPTURE(data.options.text());
    CHECK(on_stream{}(data) == "");
    CHECK(data.fault() == "");
  }
}

TEST_CASE("quantize in a graph that is replayed with another x") {
  for (const int rows : {1, 64, channels}) {
    quantize_data<fp16, e4m3> data({.sizes = {1, 200, 2, 128}, .rows = rows}),
        other({.sizes = {1, 200, 2, 128}, .rows = rows, .hostile = true});
    quantize_on_gpu<fp16, e4m3> gpu(data);
    const giwa::stream s = new_stream();
    REQUIRE(gpu.call(data, s).ok());  // the first launch of a kernel loads it
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    REQUIRE(gpu.call(data, s).ok());
    check_cuda(cudaStreamEndCapture(s, &graph));
    check_cuda(cudaGraphInstantiate(&replay, graph, 0));
    gpu.clear();
    check_cuda(cudaMemcpy(gpu.x.data(), other.x.memory.data(), gpu.x.bytes(), cudaMemcpyHostToDevice));
    check_cuda(cudaGraphLaunch(replay, s));
    gpu.read_back(other);
    CHECK(other.fault() == "");
    check_cuda(cudaGraphExecDestroy(replay));
    check_cuda(cudaGraphDestroy(graph));
  }
}

TEST_CASE("an x that the kernel before the call writes late") {
  if (kernels_start_early()) CHECK(early_reads_are_seen());
  for (const int rows : {1, 64, channels}) {
    quantize_data<fp16, e4m3> data({.sizes = {1, 200, 2, 128}, .rows = rows});
    quantize_on_gpu<fp16, e4m3> gpu(data);
    const gpu_array<fp16> x(data.x.memory);
    const giwa::stream s = new_stream();
    for (int i = 0; i < 5; ++i) {
      gpu.clear();
      gpu.x.fill(0);
      launch_late_copies(s, {{late(gpu.x, x)}});
      REQUIRE(gpu.call(data, s).ok());
      gpu.read_back(data);
      CAPTURE(rows, i);
      CHECK(data.fault() == "");
    }
  }
}
