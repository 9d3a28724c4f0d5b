// SPDX-License-Identifier: MIT
// attention_cached on a GPU against the reference: pages, layouts, groups of heads, packed queries, masks, scores, priors.
#include <algorithm>
#include <climits>

#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::causal;
using giwa::fp16;

namespace {

/// Runs a case in parts; `in_place`: o and lse are the prior. Empty, or the error.
template <class T>
std::string run_in_parts(cached_case<T, T, T>& c, const std::vector<int64>& cuts, bool in_place) {
  const cached_on_gpu<T, T, T> gpu(c), other(c);
  const auto& second = in_place ? gpu : other;
  const giwa::stream s = new_stream();
  const auto run = [&](const auto& views, const giwa::cached_options& options) {
    return cached_of<128, 128>(s, views, giwa::full{}, giwa::plain_score{}, options);
  };
  const giwa::status state = giwa_test::run_in_parts(gpu.views(), gpu.call_options(1 << 20), second.views().o,
                                                     second.call_options().lse, cuts, run);
  if (!state.ok()) return giwa::format_status(state).c_str();
  check_cuda(cudaStreamSynchronize(s));
  gpu.read_back();
  return "";
}

}  // namespace

TEST_CASE("fp16, all keys: pages, lists, layouts, groups of heads, ragged queries") {
  CHECK(first_cached_fault<fp16, 128>(0, 1, 40) == "");
}

TEST_CASE("fp16, causal") { CHECK(first_cached_fault<fp16, 128>(1, 3, 30, causal::bottom_right) == ""); }

TEST_CASE("bf16, a sliding window, which leaves out whole leaves") {
  const giwa::sliding_window window{70, giwa::alignment::bottom_right};
  CHECK(first_cached_fault<giwa::bf16, 64>(2, 3, 30, window) == "");
}

TEST_CASE("fp16 with an output of fp32, a mask and a score modifier of every coordinate") {
  CHECK(first_cached_fault<fp16, 80, 40, fp16, float>(0, 5, 18, by_distance{}, own_score{}) == "");
}

TEST_CASE("few_queries gives the bits of any_queries") {
  for (int i = 0; i < 20; i += 4) {
    cached_case_options options = drawn_cached_case(i);
    options.kv_heads = 2;
    options.heads = 6;
    options.head_size = options.head_size_v = 128;
    if (options.packed) continue;
    options.queries.assign(options.queries.size(), 8 - i % 7);
    cached_case<fp16> c(options);
    cached_on_gpu<fp16, fp16, fp16> gpu(c);
    const giwa::stream s = new_stream();
    REQUIRE(cached_of<128, 128>(s, gpu.views(), giwa::full{}, giwa::plain_score{}, gpu.call_options()).ok());
    gpu.read_back();
    const auto o = c.o.memory;
    gpu.clear_outputs();
    const giwa::status state = cached_of<128, 128, giwa::few_queries>(s, gpu.views(), giwa::full{}, giwa::plain_score{},
                                                                      gpu.call_options(1 << 20));
    REQUIRE(state.ok());
    gpu.read_back();
    CAPTURE(i);
    CHECK(same_bits(c.o.memory, o));
  }
}

TEST_CASE("parts of the keys in turn give the result for all of them") {
  for (const bool packed : {false, true})
    for (const std::vector<int64>& cuts : std::vector<std::vector<int64>>{{300}, {0}, {700}, {1, 130, 699}})
      for (const bool in_place : {false, true}) {
        cached_case_options options;
        options.heads = 6;
        options.kv_heads = 2;
        options.head_size = options.head_size_v = 128;
        options.queries = packed ? std::vector<int64>{1, 5, 0, 20} : std::vector<int64>{3, 3, 3, 3};
        options.packed = packed;
        options.keys = 700;
        options.sinks = true;
        cached_case<fp16> c(options);
        REQUIRE(run_in_parts(c, cuts, in_place) == "");
        CAPTURE(packed, in_place, cuts.size(), cuts[0]);
        CHECK(judge<fp16>(c, answers_of<fp16>(c, giwa::full{}, giwa::plain_score{})).failure == "");
        if (small_mode()) break;
      }
}

TEST_CASE("a captured call computes by the lengths of the replay, also by those out of range") {
  for (const int64 page : {0, 16}) {
    cached_case_options options;
    options.heads = 8;
    options.kv_heads = 2;
    options.head_size = options.head_size_v = 128;
    options.queries = {2, 2, 2};
    options.page_size = page;
    options.keys = 900;
    options.most = page == 0 ? 0 : giwa::ceil_div(options.keys, page);
    options.lengths = {INT_MAX, INT_MAX, INT_MAX};  // every key of the cache has its numbers
    cached_case<fp16> c(options);
    const int64 capacity = c.keys[0];
    REQUIRE(capacity == (page == 0 ? 900 : 912));
    cached_on_gpu<fp16, fp16, fp16> gpu(c);
    const giwa::stream s = new_stream();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    const giwa::status state =
        cached_of<128, 128>(s, gpu.views(), causal::bottom_right, giwa::plain_score{}, gpu.call_options(1 << 20));
    check_cuda(cudaStreamEndCapture(s, &graph));
    REQUIRE(state.ok());
    check_cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (const std::vector<int>& lengths : std::vector<std::vector<int>>{
             {900, 1, 300}, {0, 0, 0}, {-1, INT_MAX, 129}, {128, 900, 129}, {901, INT_MIN, 913}, {5, 6, 7}}) {
      c.options.lengths = lengths;
      for (std::size_t b = 0; b < 3; ++b) c.keys[b] = std::clamp<int64>(lengths[b], 0, capacity);
      check_cuda(cudaMemcpy(gpu.lengths.data(), lengths.data(), gpu.lengths.bytes(), cudaMemcpyHostToDevice));
      gpu.clear_outputs();
      check_cuda(cudaGraphLaunch(replay, s));
      check_cuda(cudaStreamSynchronize(s));
      gpu.read_back();
      CHECK(judge<fp16>(c, answers_of<fp16>(c, causal::bottom_right, giwa::plain_score{})).failure == "");
    }
    check_cuda(cudaGraphExecDestroy(replay));
    check_cuda(cudaGraphDestroy(graph));
  }
}

namespace {

/// Writes n numbers, late.
template <class = void>
__global__ void __launch_bounds__(32) write_late(int* to, const int* from, int n) {
  for (const long long begin = clock64(); clock64() - begin < 400000;) continue;
  if (static_cast<int>(threadIdx.x) < n) to[threadIdx.x] = from[threadIdx.x];
}

/// What comes before a call on its stream, and brings the lengths.
enum class earlier { kernel, copy, set, host_function, other_stream };

void give(earlier what, const giwa::stream& s, const giwa::stream& other, const gpu_array<int>& to,
          const gpu_array<int>& from) {
  const int n = 3;
  check_cuda(cudaMemsetAsync(to.data(), 0, to.bytes(), s));
  if (what == earlier::set) return;
  const auto late = [&](cudaStream_t on) {
    write_late<><<<1, 32, 0, on>>>(to.data(), from.data(), n);
    check_cuda(cudaGetLastError());
  };
  if (what == earlier::copy)
    check_cuda(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDeviceToDevice, s));
  if (what == earlier::kernel) late(s);
  if (what == earlier::host_function) {
    late(s);
    check_cuda(cudaLaunchHostFunc(
        s, [](void*) {}, nullptr));
  }
  if (what == earlier::other_stream) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    check_cuda(cudaEventRecord(event, s));
    check_cuda(cudaStreamWaitEvent(other, event, 0));
    late(other);
    check_cuda(cudaEventRecord(event, other));
    check_cuda(cudaStreamWaitEvent(s, event, 0));
    check_cuda(cudaEventDestroy(event));
  }
}

}  // namespace

TEST_CASE("a call waits for earlier work of every kind, captured or not") {
  for (const earlier what :
       {earlier::kernel, earlier::copy, earlier::set, earlier::host_function, earlier::other_stream})
    for (const bool captured : {false, true}) {
      cached_case_options options;
      options.heads = 8;
      options.kv_heads = 2;
      options.head_size = options.head_size_v = 128;
      options.queries = {1, 1, 1};
      options.keys = 900;
      options.lengths = {900, 1, 300};
      cached_case<fp16> c(options);
      const gpu_array<int> lengths(options.lengths);
      cached_on_gpu<fp16, fp16, fp16> gpu(c);
      if (what == earlier::set)
        for (std::size_t b = 0; b < 3; ++b) c.options.lengths[b] = 0, c.keys[b] = 0;
      gpu.clear_outputs();
      const giwa::stream s = new_stream(), other = new_stream();
      const auto work = [&] {
        // Twice, so that the second call's lengths change while the first may still read them.
        for (int i = 0; i < 2; ++i) {
          give(what, s, other, gpu.lengths, lengths);
          const giwa::status state =
              cached_of<128, 128>(s, gpu.views(), giwa::full{}, giwa::plain_score{}, gpu.call_options(1 << 20));
          if (!state.ok()) return state;
        }
        return giwa::status{};
      };
      CAPTURE(static_cast<int>(what), captured);
      const giwa::status state = captured ? capture_and_replay(s, 3, work) : work();
      REQUIRE(state.ok());
      check_cuda(cudaStreamSynchronize(s));
      gpu.read_back();
      CHECK(judge<fp16>(c, answers_of<fp16>(c, giwa::full{}, giwa::plain_score{})).failure == "");
    }
}
