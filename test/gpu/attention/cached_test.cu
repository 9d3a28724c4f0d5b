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
    options.queries.assign(options.queries.size(), 1 + i % 9);
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
    for (const std::vector<int64>& cuts : {std::vector<int64>{300}, {0}, {700}, {1, 130, 699}})
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
    for (const std::vector<int>& lengths : {std::vector<int>{900, 1, 300},
                                            {0, 0, 0},
                                            {-1, INT_MAX, 129},
                                            {128, 900, 129},
                                            {901, INT_MIN, 913},
                                            {5, 6, 7}}) {
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
