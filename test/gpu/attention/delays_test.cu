// SPDX-License-Identifier: MIT
// Attention whose threads sleep at random before they wait for each other: it answers, and with the same bits. GIWA_TEST_REPEATS
// is the number of calls for each case.
#define GIWA_RANDOM_DELAYS 1
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <giwa/attention_backward.cuh>

#include "gpu/attention/block_maps.cuh"
#include "gpu/attention/cached_gpu.cuh"
#include "gpu/attention/e4m3_gpu.cuh"
#include "gpu/attention/plain_tensors.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

namespace {

void set_delay(unsigned nanoseconds, unsigned warps = ~0u) {
  check_cuda(cudaMemcpyToSymbol(giwa::arch::random_delay, &nanoseconds, sizeof nanoseconds));
  check_cuda(cudaMemcpyToSymbol(giwa::arch::delayed_warps, &warps, sizeof warps));
}
/// The delays of call i: of all warps, or of one warpgroup alone, by more than a tile takes, by less, or by about as much. The kernel for
/// many latent rows without its barrier `met` does not end where the second warpgroup alone sleeps for up to 4000 ns; where all do, it
/// has the same bits (H200, 2026-11-30).
void set_delays(int i) {
  constexpr unsigned nanoseconds[] = {4000, 300, 1000};
  set_delay(nanoseconds[i / 2 % 3], i % 2 == 0 ? ~0u : 0xfu << 4 * ((i / 2 + 1) % 5));
}

int repeats() { return number_of("GIWA_TEST_REPEATS", small_mode() ? 2 : 40); }

template <class T>
void put_nan(const gpu_array<T>& to) {
  for (std::size_t i = 7; i < to.size(); i += to.size() / 24) {
    const T nan = giwa::convert<T>{}(std::numeric_limits<float>::quiet_NaN());
    check_cuda(cudaMemcpy(to.data() + i, &nan, sizeof nan, cudaMemcpyHostToDevice));
  }
}

// How many calls with delays differ from one without. NaNs among the values are there for who checks them, and for who must not
// wait for that.
template <int HeadSize, class T = fp16, class Mask>
int different_of(int64 queries, int64 keys, const Mask& mask, bool with_nan = false) {
  const giwa::stream s = new_stream();
  plain_tensors<T> t(2, queries, keys, 6, 2, HeadSize);
  if (with_nan) put_nan(t.v);
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
  for (int i = 0; i < repeats(); ++i) {
    if (sizeof(T) != 4) options.workspace = i % 2 == 1 ? all : giwa::tensor_view<unsigned char, 1>{};
    set_delays(i);
    t.o.fill(0xff), t.lse.fill(0xff);
    run();
    different += same_bits(o, t.o.to_host()) && same_bits(lse, t.lse.to_host()) ? 0 : 1;
  }
  return different;
}

// Whether both are NaN, or differ as sums in another order may.
bool are_close(const std::vector<fp16>& a, const std::vector<fp16>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](fp16 x, fp16 y) {
    const float left = giwa::convert<float>{}(x), right = giwa::convert<float>{}(y);
    return std::isnan(left) ? std::isnan(right) : std::abs(left - right) <= 0.001f + 0.005f * std::abs(left);
  });
}

// The same of attention_backward. With NaN in dout items come a second time. In any order dq has other bits, and, also with
// split_heads, the three query heads of a kv head are shared, or, with 6 kv heads and without a mask, the queries of a tile of keys divided.
template <int HeadSize, class Mask>
int different_gradients(int64 queries, int64 keys, const Mask& mask, bool with_nan = false, bool any_order = false,
                        int64 kv_heads = 2, bool split_heads = false) {
  const giwa::stream s = new_stream();
  plain_tensors<fp16> t(2, queries, keys, 6, kv_heads, HeadSize), of(2, queries, keys, 6, kv_heads, HeadSize);
  giwa::throw_if_failed(giwa::attention_forward<HeadSize>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask,
                                                          giwa::plain_score{}, {.lse = t.lse_view()}));
  gpu_array<fp16> dout(t.o.size());
  fill_normal(dout, 4);
  if (with_nan) put_nan(dout);
  const auto bytes = giwa::detail::backward_workspace_bytes(
      {2, queries, keys, 6, kv_heads, HeadSize, HeadSize, int64{sizeof(fp16)}}, 0, any_order, split_heads);
  gpu_array<unsigned char> workspace(static_cast<std::size_t>(bytes));
  const auto written = [](const view_4<const fp16>& v, const gpu_array<fp16>& memory) {
    return view_4<fp16>(memory.data(), v.extents());
  };
  const auto run = [&] {
    of.q.fill(0xff), of.k.fill(0xff), of.v.fill(0xff), workspace.fill(0xff);
    check_cuda(cudaDeviceSynchronize());
    giwa::throw_if_failed(giwa::attention_backward<HeadSize>(
        s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), written(t.o_view(), dout), written(of.q_view(), of.q),
        written(of.k_view(), of.k), written(of.v_view(), of.v), mask, giwa::plain_score{},
        {.lse = t.lse_view(),
         .workspace = {workspace.data(), {bytes}},
         .any_order = any_order,
         .split_heads = split_heads}));
    check_cuda(cudaStreamSynchronize(s));
  };
  set_delay(0);
  run();
  const auto dq = of.q.to_host(), dk = of.k.to_host(), dv = of.v.to_host();
  int different = 0;
  for (int i = 0; i < repeats(); ++i) {
    set_delays(i);
    run();
    const auto again = of.q.to_host();
    const bool same = any_order ? are_close(dq, again) : same_bits(dq, again);
    different += same && same_bits(dk, of.k.to_host()) && same_bits(dv, of.v.to_host()) ? 0 : 1;
  }
  return different;
}

// The same of append_to_cache and attention_cached after it, with and without a workspace. The new keys and values are
// heads of q. Of latent rows without append_to_cache.
template <int HeadSize, int HeadSizeV = HeadSize, class Mask>
int different_cached(const cached_case_options& options, const Mask& mask) {
  cached_case<fp16> c(options);
  cached_on_gpu<fp16, fp16, fp16> gpu(c);
  const giwa::stream s = new_stream();
  const auto views = gpu.views();
  [[maybe_unused]] const giwa::kv_cache<fp16> cache{c.k.at(gpu.k.data()), c.v.at(gpu.v.data()),  views.cache.pages,
                                                    views.cache.lengths,  views.cache.sequences, {}};
  [[maybe_unused]] const auto heads_of_q = [&](int64 first) {
    const auto& q = views.q;
    return giwa::tensor_view<const fp16, 4>(q.data() + first * q.stride(2),
                                            {q.extent(0), q.extent(1), options.kv_heads, q.extent(3)}, q.strides());
  };
  const auto run = [&](int64 workspace_bytes) {
    gpu.clear_outputs();
    check_cuda(cudaDeviceSynchronize());
    if constexpr (HeadSize == HeadSizeV)
      giwa::throw_if_failed(giwa::append_to_cache(s, cache, heads_of_q(0), heads_of_q(options.kv_heads),
                                                  giwa::rotary_base(10000, {HeadSize})));
    giwa::throw_if_failed(
        cached_of<HeadSize, HeadSizeV>(s, views, mask, giwa::plain_score{}, gpu.call_options(workspace_bytes)));
    check_cuda(cudaStreamSynchronize(s));
  };
  set_delay(0);
  run(0);
  const auto o = gpu.o.to_host();
  const auto lse = gpu.lse.to_host();
  int different = 0;
  for (int i = 0; i < repeats(); ++i) {
    set_delays(i);
    run(i % 2 == 0 ? int64{8} << 20 : 0);
    different += same_bits(o, gpu.o.to_host()) && same_bits(lse, gpu.lse.to_host()) ? 0 : 1;
  }
  return different;
}

// How many calls in e4m3 with delays differ from one without. Here warps also transpose v, and look for NaN in it.
template <int HeadSize, class Mask>
int different_e4m3(int64 queries, int64 keys, const Mask& mask, bool with_nan = false) {
  attention_case<e4m3, fp16> c(e4m3_options(queries, keys, HeadSize));
  if (with_nan)
    for (std::size_t i = 7; i < c.v.memory.size(); i += c.v.memory.size() / 24) c.v.memory[i] = e4m3_of(0x7f);
  const auto run = [&] { REQUIRE(run_on_gpu<HeadSize, HeadSize>(c, mask, giwa::plain_score{}) == ""); };
  set_delay(0);
  run();
  const std::vector<fp16> o = c.o.memory;
  const std::vector<float> lse = c.lse.memory;
  int different = 0;
  for (int i = 0; i < repeats(); ++i) {
    set_delays(i);
    run();
    different += !same_bits(c.o.memory, o) || !same_bits(c.lse.memory, lse);
  }
  return different;
}

}  // namespace

TEST_CASE("delays change nothing of calls with a cache") {
  cached_case_options c;
  c.heads = 8;
  c.kv_heads = 2;
  c.head_size = c.head_size_v = 128;
  c.queries = {2, 2, 2};
  c.keys = 3000;
  c.lengths = {3000, 2, 777};
  CHECK(different_cached<128>(c, giwa::causal::bottom_right) == 0);  // TMA
  c.offset = 1;
  CHECK(different_cached<128>(c, giwa::causal::bottom_right) == 0);  // element by element
  c.offset = 0;
  c.page_size = 16;
  c.most = 200;
  CHECK(different_cached<128>(c, giwa::causal::bottom_right) == 0);  // cp.async
  c.queries = {20, 20, 20};
  c.lengths = {3000, 20, 777};
  CHECK(different_cached<128>(c, giwa::full{}) == 0);  // many rows: two warps start boxes
  CHECK(different_cached<128>(c, giwa::causal::bottom_right) == 0);
  c.page_size = 3;
  c.most = 1000;
  CHECK(different_cached<128>(c, giwa::full{}) == 0);  // many rows: two warps copy by cp.async
}

TEST_CASE("delays change nothing of latent rows") {
  cached_case_options c;
  c.heads = 9;
  c.head_size = 576, c.head_size_v = 512;
  c.latent = true;
  c.queries = {2, 2, 2};  // two tiles of rows
  c.keys = 3000;
  c.lengths = {3000, 2, 777};
  CHECK(different_cached<576, 512>(c, giwa::causal::bottom_right) == 0);  // TMA
  c.page_size = 16;
  c.most = 200;
  CHECK(different_cached<576, 512>(c, giwa::full{}) == 0);  // four warps start boxes
  c.page_size = 3;
  c.most = 1000;
  CHECK(different_cached<576, 512>(c, giwa::causal::bottom_right) == 0);  // cp.async
  c.heads = 40;                                                           // two tiles of 64 rows
  c.kv_heads = 1;
  CHECK(different_cached<576, 512>(c, giwa::causal::bottom_right) == 0);
  c.page_size = 16;
  c.most = 200;
  CHECK(different_cached<576, 512>(c, giwa::full{}) == 0);
  c.page_size = 0;
  CHECK(different_cached<576, 512>(c, giwa::causal::bottom_right) == 0);
}

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

TEST_CASE("delays change nothing of e4m3") {
  CHECK(different_e4m3<128>(700, 900, giwa::causal::bottom_right) == 0);
  CHECK(different_e4m3<128>(500, 1700, giwa::full{}, true) == 0);  // more keys than one sum has
  CHECK(different_e4m3<64>(700, 900, giwa::sliding_window{50, giwa::alignment::bottom_right}, true) == 0);
  CHECK(different_e4m3<256>(300, 700, giwa::causal::bottom_right) == 0);
}

TEST_CASE("delays change nothing of gradients") {
  CHECK(different_gradients<64>(700, 900, giwa::causal::bottom_right) == 0);
  CHECK(different_gradients<128>(700, 500, giwa::causal::bottom_right) == 0);
  CHECK(different_gradients<128>(1024, 300, giwa::full{}) == 0);
  CHECK(different_gradients<128>(700, 700, giwa::causal{}, true) == 0);
  CHECK(different_gradients<64>(700, 900, giwa::causal::bottom_right, false, true) == 0);
  CHECK(different_gradients<128>(700, 700, giwa::causal{}, false, true) == 0);
  CHECK(different_gradients<128>(700, 700, giwa::causal{}, true, true) == 0);
  CHECK(different_gradients<128>(1300, 300, giwa::full{}, false, true, 6) == 0);
  CHECK(different_gradients<128>(1300, 300, giwa::full{}, true, true, 6) == 0);
  CHECK(different_gradients<64>(700, 900, giwa::causal::bottom_right, false, false, 2, true) == 0);
  CHECK(different_gradients<128>(700, 700, giwa::causal{}, true, false, 2, true) == 0);
  for (const int size : {64, 128}) {
    block_case c({.heads = 6, .queries = 900, .keys = 1100, .block_queries = size, .block_keys = size, .density = 0.4f},
                 5);
    gpu_array<giwa::block_word> words(static_cast<std::size_t>(c.map.bytes()) / sizeof(giwa::block_word));
    giwa::throw_if_failed(on_gpu{}(c.lists(), c.map, words));
    giwa::block_map map = c.map;
    map.words = words.data();
    CHECK(different_gradients<128>(900, 1100, giwa::block_sparse{map}) == 0);
    CHECK(different_gradients<128>(900, 1100, giwa::block_sparse{map}, true) == 0);
  }
  CHECK(different_gradients<256>(700, 700, giwa::sliding_window{50}) == 0);
  CHECK(different_gradients<256>(700, 700, giwa::sliding_window{50}, true) == 0);
}
