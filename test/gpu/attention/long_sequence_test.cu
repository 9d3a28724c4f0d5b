// SPDX-License-Identifier: MIT
// Attention over up to a million keys: a sum over all of them loses nothing, and chunks of keys merge to the whole.
#include <algorithm>
#include <cmath>

#include "gpu/attention/plain_tensors.cuh"
#include "support/call_options.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

namespace {

void check_below(double worst, double bound) {
  CAPTURE(worst);
  CHECK(worst < bound);
}

template <class T>
double number_of(T x) {
  return static_cast<double>(giwa::convert<float>{}(x));
}

/// Where v begins: TMA needs 16 bytes, so in 16 bits an odd address leaves the call to the sm_80 kernel.
enum class values_begin { aligned, at_an_odd_element };

/// One head, all scores equal, values 10 + a normal number: the output is the mean of the values that the mask leaves.
template <class T, int HeadSize, class Tile, class Mask>
double worst_error_of_means(int64 queries, int64 keys, const Mask& mask, int64 first_key_of_last, bool is_causal,
                            values_begin begin = values_begin::aligned) {
  const giwa::stream s = new_stream();
  plain_tensors<T> t(1, queries, keys, 1, 1, HeadSize);
  std::vector<T> v = t.v.to_host();
  for (T& x : v) x = giwa::convert<T>{}(10.f + static_cast<float>(number_of(x)));
  const gpu_array<T> values(v.size() + 1);
  T* const first_value = values.data() + (begin == values_begin::aligned ? 0 : 1);
  check_cuda(cudaMemcpy(first_value, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  check_cuda(cudaDeviceSynchronize());
  const view_4<const T> v_view(first_value, {1, keys, 1, HeadSize});
  CHECK(giwa::check_tensor_map(v_view, "v").ok() == (begin == values_begin::aligned));
  t.q.fill(0);
  const gpu_array<float> o(static_cast<std::size_t>(queries) * HeadSize);
  const gpu_array<unsigned char> workspace(
      static_cast<std::size_t>(giwa::workspace_bytes({1, queries, keys, 1, 1, HeadSize, HeadSize, sizeof(T)})));
  giwa::attention_options options;
  options.lse = t.lse_view();
  options.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
  giwa::throw_if_failed(giwa::attention_forward<HeadSize, giwa_test::accuracy_of<Tile>, giwa_test::tile_of<Tile>>(
      s, t.q_view(), t.k_view(), v_view, view_4<float>(o.data(), {1, queries, 1, HeadSize}), mask, giwa::plain_score{},
      options));
  giwa::throw_if_failed(giwa::synchronize(s));
  const std::vector<float> got = o.to_host(), lse = t.lse.to_host();

  double worst = 0;
  std::vector<double> sum(HeadSize, 0.0);
  const auto add = [&](int64 key, double sign) {
    for (std::size_t c = 0; c < HeadSize; ++c)
      sum[c] += sign * number_of(v[static_cast<std::size_t>(key) * HeadSize + c]);
  };
  int64 first = 0, end = 0;
  for (int64 i = 0; i < queries; ++i) {
    const int64 last_end = is_causal ? keys - queries + i + 1 : keys;
    const int64 new_first = first_key_of_last < 0 ? 0 : last_end - first_key_of_last;
    for (; end < last_end; ++end) add(end, 1);
    for (; first < new_first; ++first) add(first, -1);
    const double count = static_cast<double>(end - first);
    for (std::size_t c = 0; c < HeadSize; ++c)
      worst = std::max(worst,
                       std::abs(static_cast<double>(got[static_cast<std::size_t>(i) * HeadSize + c]) - sum[c] / count));
    CHECK(std::abs(static_cast<double>(lse[static_cast<std::size_t>(i)]) - std::log(count)) < 1e-5);
  }
  return worst;
}

}  // namespace

// One sum over 2^20 keys in the accumulators of wgmma is 6.7e-3 off; a chunk of 2^16 keys is 1.5e-3 off at worst (H200).
TEST_CASE("the mean of values of one sign over a million keys") {
  if (small_mode()) return;
  constexpr int64 keys = (int64{1} << 20) - 77;
  const giwa::full all{};
  check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(200, keys, all, -1, false), 2e-3);
  check_below(worst_error_of_means<bf16, 128, giwa::automatic_tile>(130, keys, all, -1, false), 2e-3);
  check_below(worst_error_of_means<fp16, 256, giwa::automatic_tile>(130, keys, all, -1, false), 2e-3);
  check_below(worst_error_of_means<float, 128, giwa::tf32>(130, keys, all, -1, false), 2e-3);
  check_below(worst_error_of_means<float, 64, giwa::automatic_tile>(130, keys, all, -1, false), 1e-4);
}

// The consumers of a work tile end in different chunks, and a window begins in one and ends in the next.
TEST_CASE("masks across the ends of chunks") {
  if (small_mode()) return;
  const giwa::causal causal = giwa::causal::bottom_right;
  for (const int64 keys : {int64{65536}, int64{65537}, int64{65600}, int64{131072 + 100}, int64{3 * 65536 + 33}}) {
    CAPTURE(keys);
    check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(400, keys, causal, -1, true), 2e-3);
    check_below(worst_error_of_means<fp16, 128, giwa::automatic_tile>(300, keys, causal, -1, true), 2e-3);
    check_below(worst_error_of_means<fp16, 96, giwa::automatic_tile>(300, keys, causal, -1, true), 2e-3);
    check_below(worst_error_of_means<bf16, 256, giwa::automatic_tile>(300, keys, causal, -1, true), 2e-3);
    check_below(worst_error_of_means<fp16, 128, giwa::automatic_tile>(300, keys, giwa::sliding_window{1000} & causal,
                                                                      1000, true),
                1e-3);
    check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(400, keys, giwa::sliding_window{40000} & causal,
                                                                     40000, true),
                1e-3);
  }
}

// Two chunks, the second short: small enough for compute-sanitizer.
TEST_CASE("slightly more keys than a chunk") {
  constexpr int64 queries = 5, keys = 65536 + 300;
  const giwa::causal causal = giwa::causal::bottom_right;
  const giwa::full all{};
  check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(queries, keys, all, -1, false), 2e-3);
  check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(queries, keys, causal, -1, true), 2e-3);
  check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(queries, keys, giwa::sliding_window{1000} & causal,
                                                                   1000, true),
              1e-3);
  check_below(worst_error_of_means<float, 64, giwa::tf32>(queries, keys, all, -1, false), 2e-3);
  check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(queries, keys, causal, -1, true,
                                                                   values_begin::at_an_odd_element),
              2e-3);
}

// The sm_80 kernel, which also runs on Hopper where TMA cannot address a tensor. One sum over 2^20 keys in the accumulators of
// mma.sync was 0.065, 0.041 and 0.065 off (H200, 2026-11-22).
TEST_CASE("the mean of values of one sign over a million keys without TMA") {
  if (small_mode()) return;
  constexpr int64 keys = (int64{1} << 20) - 77;
  const giwa::full all{};
  constexpr auto odd = values_begin::at_an_odd_element;
  check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(200, keys, all, -1, false, odd), 2e-3);
  check_below(worst_error_of_means<bf16, 128, giwa::automatic_tile>(130, keys, all, -1, false, odd), 2e-3);
  check_below(worst_error_of_means<fp16, 256, giwa::automatic_tile>(130, keys, all, -1, false, odd), 2e-3);
}

// A block ends in one chunk or in several, and a window begins in one and ends in the next.
TEST_CASE("masks across the ends of chunks without TMA") {
  if (small_mode()) return;
  const giwa::causal causal = giwa::causal::bottom_right;
  constexpr auto odd = values_begin::at_an_odd_element;
  for (const int64 keys : {int64{65600}, int64{131072 + 100}, int64{3 * 65536 + 33}}) {
    CAPTURE(keys);
    check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(300, keys, causal, -1, true, odd), 2e-3);
    check_below(worst_error_of_means<bf16, 128, giwa::automatic_tile>(300, keys, causal, -1, true, odd), 2e-3);
    check_below(worst_error_of_means<fp16, 256, giwa::automatic_tile>(300, keys, giwa::sliding_window{1000} & causal,
                                                                      1000, true, odd),
                1e-3);
    check_below(worst_error_of_means<fp16, 64, giwa::automatic_tile>(400, keys, giwa::sliding_window{40000} & causal,
                                                                     40000, true, odd),
                2e-3);
  }
}

namespace {

/// Attention over all keys against its parts of at most one chunk each, merged on the host in double. In fp16 a weight is off by up to
/// 2^-11 of itself, so each result is off by up to 2e-3 (bf16 1.6e-2) for values up to 4 where a few keys have most of the weight.
template <class T, int HeadSize, class Tile>
double distance_to_merged_parts(int64 queries, int64 keys, int64 part_keys) {
  const giwa::stream s = new_stream();
  plain_tensors<T> t(1, queries, keys, 1, 1, HeadSize);
  const gpu_array<float> o(static_cast<std::size_t>(queries) * HeadSize);
  const gpu_array<unsigned char> workspace(
      static_cast<std::size_t>(giwa::workspace_bytes({1, queries, keys, 1, 1, HeadSize, HeadSize, sizeof(T)})));
  giwa::attention_options options;
  options.lse = t.lse_view();
  options.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
  options.scale = 1.0f;  // scores of many sizes: a few keys count most
  const view_4<float> o_view(o.data(), {1, queries, 1, HeadSize});
  const auto run = [&](const view_4<const T>& k, const view_4<const T>& v) {
    giwa::throw_if_failed(giwa::attention_forward<HeadSize, giwa_test::accuracy_of<Tile>, giwa_test::tile_of<Tile>>(
        s, t.q_view(), k, v, o_view, giwa::full{}, giwa::plain_score{}, options));
    giwa::throw_if_failed(giwa::synchronize(s));
  };
  std::vector<double> merged(o.size(), 0.0), total(static_cast<std::size_t>(queries), 0.0);
  std::vector<double> reference(static_cast<std::size_t>(queries), 0.0);
  for (int64 first = 0; first < keys; first += part_keys) {
    const int64 count = std::min(part_keys, keys - first);
    run(part(t.k_view(), 0, 1, first, count, 0, 1), part(t.v_view(), 0, 1, first, count, 0, 1));
    const std::vector<float> part_o = o.to_host(), part_lse = t.lse.to_host();
    for (std::size_t i = 0; i < total.size(); ++i) {
      if (first == 0) reference[i] = static_cast<double>(part_lse[i]);
      const double weight = std::exp(static_cast<double>(part_lse[i]) - reference[i]);
      total[i] += weight;
      for (std::size_t c = 0; c < HeadSize; ++c)
        merged[i * HeadSize + c] += weight * static_cast<double>(part_o[i * HeadSize + c]);
    }
  }
  run(t.k_view(), t.v_view());
  const std::vector<float> whole = o.to_host(), lse = t.lse.to_host();
  double worst = 0;
  for (std::size_t i = 0; i < merged.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(whole[i]) - merged[i] / total[i / HeadSize]));
  for (std::size_t i = 0; i < total.size(); ++i)
    CHECK(std::abs(static_cast<double>(lse[i]) - reference[i] - std::log(total[i])) < 1e-4);
  return worst;
}

}  // namespace

// From 4096 keys on, at head size 128 from 8192, a call has another tile; its parts here have the usual one.
TEST_CASE("the tile of long sequences") {
  const int64 keys = small_mode() ? 8192 + 77 : 20000;
  check_below(distance_to_merged_parts<fp16, 128, giwa::automatic_tile>(200, keys, 4096), 2e-3);
  check_below(distance_to_merged_parts<bf16, 128, giwa::automatic_tile>(200, keys, 4096), 1e-2);
  check_below(distance_to_merged_parts<fp16, 96, giwa::automatic_tile>(200, keys, 2048), 2e-3);
  check_below(distance_to_merged_parts<bf16, 80, giwa::automatic_tile>(200, keys, 2048), 1.6e-2);
  const giwa::causal causal = giwa::causal::bottom_right;
  for (const int64 length : {int64{4095}, int64{4096}, int64{4096 + 77}, int64{8191}, int64{8192}, int64{8192 + 77}}) {
    CAPTURE(length);
    check_below(worst_error_of_means<fp16, 128, giwa::automatic_tile>(300, length, causal, -1, true), 2e-3);
    check_below(worst_error_of_means<bf16, 120, giwa::automatic_tile>(300, length, causal, -1, true), 2e-3);
    check_below(worst_error_of_means<fp16, 80, giwa::automatic_tile>(300, length, causal, -1, true), 2e-3);
  }
}

// From 257 to 512 keys a call with a head size of 256 has another tile.
TEST_CASE("the tile of short sequences") {
  check_below(distance_to_merged_parts<fp16, 256, giwa::automatic_tile>(200, 512, 128), 2e-3);
  check_below(distance_to_merged_parts<bf16, 256, giwa::automatic_tile>(200, 300, 128), 1e-2);
  const giwa::causal causal = giwa::causal::bottom_right;
  for (const int64 length : {int64{256}, int64{257}, int64{511}, int64{512}, int64{513}}) {
    CAPTURE(length);
    check_below(worst_error_of_means<fp16, 256, giwa::automatic_tile>(250, length, causal, -1, true), 2e-3);
    check_below(worst_error_of_means<bf16, 248, giwa::automatic_tile>(130, length, giwa::full{}, -1, false), 2e-3);
  }
}

// Between the two parts of the mask there are K tiles that no query sees, also where a chunk ends.
TEST_CASE("a mask with a hole at the end of a chunk") {
  if (small_mode()) return;
  const giwa::stream s = new_stream();
  const auto mask = (giwa::sliding_window{4096} | giwa::prefix{4}) & giwa::causal::bottom_right;
  for (const int64 keys : {int64{131072 + 500}, int64{4 * 65536 + 5000}}) {
    plain_tensors<fp16> t(1, 200, keys, 1, 1, 128);
    t.q.fill(0);
    giwa::attention_options options;
    options.lse = t.lse_view();
    giwa::throw_if_failed(giwa::attention_forward<128>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask,
                                                       giwa::plain_score{}, options));
    giwa::throw_if_failed(giwa::synchronize(s));
    for (const float lse : t.lse.to_host()) CHECK(std::abs(static_cast<double>(lse) - std::log(4100.0)) < 1e-5);
  }
}

// tf32 counts in powers of two that change from tile to tile; a consumer may need nothing of the last chunk.
TEST_CASE("tf32 across the end of a chunk, with sinks") {
  if (small_mode()) return;
  const giwa::stream s = new_stream();
  for (const int64 keys : {int64{65600}, int64{131072 + 70}}) {
    plain_tensors<float> t(1, 128, keys, 1, 1, 128);
    gpu_array<float> sink(1);
    sink.fill(0);
    const gpu_array<unsigned char> workspace(
        static_cast<std::size_t>(giwa::workspace_bytes({1, 128, keys, 1, 1, 128, 128, 4})));
    giwa::attention_options options;
    options.lse = t.lse_view();
    options.sinks = {sink.data(), {1}};
    options.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
    const auto run = [&](auto tile) {
      giwa::throw_if_failed(
          giwa::attention_forward<128, giwa_test::accuracy_of<decltype(tile)>, giwa_test::tile_of<decltype(tile)>>(
              s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), giwa::causal::bottom_right, giwa::plain_score{},
              options));
      giwa::throw_if_failed(giwa::synchronize(s));
    };
    run(giwa::automatic_tile{});
    const std::vector<float> o = t.o.to_host(), lse = t.lse.to_host();
    run(giwa::tf32{});
    const std::vector<float> o_tf32 = t.o.to_host(), lse_tf32 = t.lse.to_host();
    double worst_o = 0, worst_lse = 0;
    for (std::size_t i = 0; i < o.size(); ++i)
      worst_o = std::max(worst_o, std::abs(static_cast<double>(o[i]) - static_cast<double>(o_tf32[i])));
    for (std::size_t i = 0; i < lse.size(); ++i)
      worst_lse = std::max(worst_lse, std::abs(static_cast<double>(lse[i]) - static_cast<double>(lse_tf32[i])));
    check_below(worst_o, 1e-3);
    check_below(worst_lse, 1e-3);
  }
}

TEST_CASE("chunks merge to the whole") {
  if (small_mode()) return;
  const int64 keys = 5 * 65536 + 1000;
  check_below(distance_to_merged_parts<fp16, 64, giwa::automatic_tile>(200, keys, 40000), 2e-3);
  check_below(distance_to_merged_parts<fp16, 128, giwa::automatic_tile>(200, keys, 40000), 2e-3);
  check_below(distance_to_merged_parts<fp16, 256, giwa::automatic_tile>(200, keys, 40000), 2e-3);
  check_below(distance_to_merged_parts<float, 128, giwa::tf32>(200, keys, 40000), 1e-3);
}
