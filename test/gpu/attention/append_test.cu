// SPDX-License-Identifier: MIT
// append_to_cache on a GPU: against double precision and the CPU's bits, with hostile indices, in a graph that is replayed.
#include <giwa/cache.cuh>
#include <giwa/host.hpp>

#include <algorithm>
#include <vector>

#include "gpu/attention/append_gpu.cuh"
#include "host/attention/append_cases.hpp"
#include "host/attention/append_pairs.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

struct on_stream {
  template <class T, class Element>
  std::string operator()(const append_data<T, Element>& data, append_memory<T, Element>& memory) const {
    const giwa::stream s = new_stream();
    append_memory<T, Element> on_host = memory;
    const giwa::status of_host = data.call(giwa::host, pointers_to(on_host));
    const gpu_memory<T, Element> gpu(memory);
    const giwa::status state = data.call(s, gpu.pointers());
    if (!state.ok() || !of_host.ok()) return giwa::format_status(state).c_str();
    check_cuda(cudaStreamSynchronize(s));
    gpu.read_back(memory);
    return same_memory(memory, on_host) ? "" : "not the bits of the CPU";
  }
};

}  // namespace

TEST_CASE("rows are appended on the GPU as double precision says, with the bits of the CPU") {
  CHECK(append_failures<float, float>(append_cases(), on_stream{}) == "");
  CHECK(append_failures<bf16, bf16>(append_cases(), on_stream{}) == "");
}

TEST_CASE("rows are appended on the GPU to an 8-bit cache, divided by scales of every shape") {
  CHECK(append_failures<bf16, e4m3>(scale_cases(), on_stream{}) == "");
  CHECK(append_failures<fp16, e4m3>(append_cases(), on_stream{}) == "");
  CHECK(append_failures<bf16, int8_code>(scale_cases(), on_stream{}) == "");
}

TEST_CASE("rows are appended on the GPU to an 8-bit cache with scales that the call finds") {
  CHECK(append_failures<bf16, e4m3>(found_scale_cases(), on_stream{}) == "");
  CHECK(append_failures<fp16, int8_code>(found_scale_cases(), on_stream{}) == "");
  CHECK(append_failures<float, int8_code>(found_scale_cases(), on_stream{}) == "");
  CHECK(append_failures<bf16, int8_code>(transformed_cases(), on_stream{}) == "");
  CHECK(append_failures<float, e4m3>(transformed_cases(), on_stream{}) == "");
}

TEST_CASE("pairs of integers appended on the GPU with scales that the call finds are those of quantize") {
  const append_pairs<bf16> x;
  const auto on = [&](const gpu_array<bf16>& k_new, const gpu_array<bf16>& v_new) {
    const giwa::stream s = new_stream();
    const gpu_array k(x.k4), v(x.v4);
    const gpu_array of_k(std::vector<float>(x.k4.size(), NAN)), of_v(std::vector<float>(x.k4.size(), NAN));
    giwa::throw_if_failed(
        x.call_with_scales(s, k_new.data(), v_new.data(), of_k.data(), of_v.data(), k.data(), v.data()));
    check_cuda(cudaStreamSynchronize(s));
    return x.fault_of_scales(k.to_host(), of_k.to_host());
  };
  CHECK(on(gpu_array(x.k_new), gpu_array(x.v_new)) == "");
}

TEST_CASE("pairs of integers appended on the GPU are are those of 8 bits, limited to 7") {
  const auto append = [](auto x, const auto& rotary) {
    const giwa::stream s = new_stream();
    const gpu_array k_new(x.k_new), v_new(x.v_new);
    const gpu_array<float> of_k(x.k_scales), of_v(x.v_scales);
    const auto to = [&](auto& k, auto& v) {
      const gpu_array k_cache(k), v_cache(v);
      const giwa::status state =
          x.call(s, k_new.data(), v_new.data(), of_k.data(), of_v.data(), k_cache.data(), v_cache.data(), rotary);
      check_cuda(cudaStreamSynchronize(s));
      k = k_cache.to_host(), v = v_cache.to_host();
      return state;
    };
    const giwa::status of_pairs = to(x.k4, x.v4), of_codes = to(x.k8, x.v8);
    return !of_pairs.ok() || !of_codes.ok() ? giwa::format_status(of_pairs).c_str() : x.fault();
  };
  CHECK(append(append_pairs<bf16>{}, giwa::no_rotary{}) == "");
  CHECK(append(append_pairs<float>{}, giwa::rotary_base(10000.0, {.size = 32})) == "");
  CHECK(append(append_pairs<bf16>{}, giwa::rotary_base(10000.0, {.size = 20, .interleaved = true, .first = 8})) == "");
}

TEST_CASE("many rows, of which a thread has several heads") {
  const append_case many{.rows = std::vector<int64>(1500, 9),
                         .kv_heads = 8,
                         .heads = 11,
                         .size = 64,
                         .size_v = 64,
                         .rotary = rotary_kind::base,
                         .layout = {64},
                         .kind = cache_kind::blocks,
                         .page_size = 16};
  CHECK(append_failures<bf16, bf16>({many}, on_stream{}) == "");
  CHECK(append_failures<bf16, e4m3>({many}, on_stream{}) == "");
}

TEST_CASE("a captured call is one node, and appends by the lengths of the replay, also by those out of range") {
  append_data<bf16, bf16> data({.rows = std::vector<int64>(20, 1),
                                .kv_heads = 2,
                                .heads = 4,
                                .size = 32,
                                .size_v = 32,
                                .rotary = rotary_kind::base,
                                .layout = {32},
                                .kind = cache_kind::blocks,
                                .page_size = 3,
                                .packed = true});
  const giwa::stream s = new_stream();
  const gpu_memory<bf16, bf16> gpu(data.memory);
  check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  const giwa::status state = data.call(s, gpu.pointers());
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(s, &graph));
  REQUIRE(state.ok());
  std::size_t nodes = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 1);
  cudaGraphExec_t replay = nullptr;
  check_cuda(cudaGraphInstantiate(&replay, graph, 0));
  for (int round = 0; round < 7; ++round) {
    for (int& length : data.memory.lengths) length = length % static_cast<int>(data.capacity) + 1;
    if (round == 5)
      for (std::size_t b = 0; b < 12; ++b) {
        const int odd[] = {-1, -5, 0, 25, 1000, 100000};  // the pages of a sequence have 24 keys
        data.memory.lengths[b] = odd[b % 6];
      }
    if (round == 6)  // right again
      for (int& length : data.memory.lengths) length = std::clamp(length, 1, static_cast<int>(data.capacity));
    check_cuda(cudaMemcpy(gpu.lengths.data(), data.memory.lengths.data(), gpu.lengths.bytes(), cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy(gpu.k.data(), data.memory.k.data(), gpu.k.bytes(), cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy(gpu.v.data(), data.memory.v.data(), gpu.v.bytes(), cudaMemcpyHostToDevice));
    check_cuda(cudaDeviceSynchronize());
    check_cuda(cudaGraphLaunch(replay, s));
    check_cuda(cudaStreamSynchronize(s));
    append_memory<bf16, bf16> after = data.memory;
    gpu.read_back(after);
    CAPTURE(round);
    CHECK(data.failure(after) == "");
  }
  check_cuda(cudaGraphExecDestroy(replay));
  check_cuda(cudaGraphDestroy(graph));
}

TEST_CASE("memory of the host is refused on a stream, by name") {
  append_data<float, float> data(append_cases()[1]);
  const giwa::stream s = new_stream();
  const gpu_memory<float, float> gpu(data.memory);
  int reads_pageable = 0;
  check_cuda(cudaDeviceGetAttribute(&reads_pageable, cudaDevAttrPageableMemoryAccess, 0));
  if (reads_pageable != 0) return;
  auto p = gpu.pointers();
  p.lengths = data.memory.lengths.data();
  CHECK(std::string(data.call(s, p).argument) == "lengths");
  p = gpu.pointers();
  p.v = data.memory.v.data();
  CHECK(std::string(data.call(s, p).argument) == "v");
}
