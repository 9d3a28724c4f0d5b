// SPDX-License-Identifier: MIT
// attention_cached with rotated_queries on a GPU: the bits of a call with queries that append_to_cache rotated, in every kernel.
// GIWA_TEST_DRAWS is how many problems of each form are drawn, from GIWA_TEST_FIRST_DRAW on.
#include <cstdio>

#include "gpu/attention/cached_draw.hpp"
#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"
#include "support/rotated_case.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;
using giwa::fp16;

namespace {

/// Numbers of rows on the GPU: none, or the position of each row as int or int64.
struct gpu_positions {
  gpu_array<int> narrow;
  gpu_array<int64> wide;
  giwa::row_numbers numbers;

  gpu_positions(const std::vector<int64>& positions, int64 kind)
      : narrow(std::vector<int>(positions.begin(), positions.end())), wide(positions) {
    const auto count = static_cast<int64>(positions.size());
    if (kind == 1) numbers = tensor_view<const int, 1>(narrow.data(), {count});
    if (kind == 2) numbers = tensor_view<const int64, 1>(wide.data(), {count});
  }
};

/// Runs a case on the GPU and returns o and lse; `fault` is the sentence of a refusal.
template <int HeadSize, int HeadSizeV, class T, class Element, class O, class Mask, class Score>
std::pair<std::vector<O>, std::vector<float>> results_of(cached_case<T, Element, O>& c, const Mask& mask,
                                                         const Score& score, std::string& fault) {
  cached_on_gpu<T, Element, O> gpu(c);
  const giwa::stream s = new_stream();
  gpu.clear_outputs();
  const giwa::status state = cached_of<HeadSize, HeadSizeV>(s, gpu.views(), mask, score, gpu.call_options(8 << 20));
  if (!state.ok()) fault = giwa::format_status(state).c_str();
  gpu.read_back();
  return {c.o.memory, c.lse.memory};
}

/// Empty, or what is wrong with a case: rotated by the call it must have the bits of queries that are rotated before it, which are
/// right.
template <int HeadSize, int HeadSizeV, class T, class Element, class O, class Mask, class OnHost, class OnGpu,
          class Score>
std::string fault_of(cached_case_options options, const Mask& mask, const OnHost& on_host, const OnGpu& on_gpu,
                     const Score& score, int64 kind) {
  options.head_size = HeadSize, options.head_size_v = HeadSizeV;
  cached_case<T, Element, O> plain(options), before(options);
  std::vector<int64> positions = positions_in_sequences(plain);
  if (kind != 0)
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] += static_cast<int64>(i % 5) * 3;
  std::string fault;
  if (const giwa::status s = rotate(before, on_host, positions); !s.ok()) return giwa::format_status(s).c_str();
  const auto expected = results_of<HeadSize, HeadSizeV>(before, mask, score, fault);
  const gpu_positions numbers(positions, kind);
  const auto found =
      results_of<HeadSize, HeadSizeV>(plain, mask, giwa::rotated_queries(on_gpu, score, numbers.numbers), fault);
  const std::string text = "; " + options.text() + "; rotated " + std::to_string(on_host.size) + " from " +
                           std::to_string(on_host.first) + (on_host.interleaved ? ", interleaved" : "") +
                           ", positions " + std::to_string(kind);
  if (!fault.empty()) return fault + text;
  if (!same_bits(found.first, expected.first)) return "o differs" + text;
  if (!same_bits(found.second, expected.second)) return "lse differs" + text;
  return judge<plain_type<T, Element>>(before, answers_of<plain_type<T, Element>>(before, mask, score)).failure;
}

/// The drawn problem `number`, with a rotation that is drawn.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string fault_of_base(int number, const Mask& mask = {}, const Score& score = {}, bool latent = false) {
  const int64 leaf =
      latent ? giwa::detail::latent_leaf_keys : giwa::detail::leaf_keys_of(HeadSize, HeadSizeV, sizeof(Element));
  cached_case_options c = cached_drawer(number, leaf).draw(sizeof(Element) == 1);
  c.latent = latent;
  random_sequence random(static_cast<uint64>(number) + 70000);
  const giwa::rotary_base rotary(10000.0, latent && number % 2 == 0 ? giwa::rotary_layout{.size = 64, .first = 512}
                                                                    : drawn_layout(HeadSize, random));
  const std::string fault =
      fault_of<HeadSize, HeadSizeV, T, Element, O>(c, mask, rotary, rotary, score, random.below(3));
  return fault.empty() ? "" : "draw " + std::to_string(number) + ": " + fault;
}

std::string fault_of_draw(int number) {
  switch (number % 6) {
    case 0: return fault_of_base<fp16, 128>(number, causal::bottom_right);
    case 1: return fault_of_base<bf16, 64, 64, e4m3>(number, causal::bottom_right);
    case 2: return fault_of_base<bf16, 576, 512>(number, causal::bottom_right, {}, true);
    case 3: return fault_of_base<fp16, 80, 40, fp16, float>(number, by_distance{}, own_score{});
    case 4: return fault_of_base<float, 64>(number, causal::bottom_right);
    default: return fault_of_base<fp16, 128>(number, causal::bottom_right);
  }
}

/// Sequences with few and with many queries, alone and mixed.
cached_case_options case_of(int i) {
  cached_case_options c = drawn_cached_case(i);
  c.sinks = false;
  return c;
}

}  // namespace

TEST_CASE("rotated queries have the bits of queries that are rotated before the call") {
  const int first = number_of("GIWA_TEST_FIRST_DRAW", 0), count = number_of("GIWA_TEST_DRAWS", small_mode() ? 12 : 60);
  int faults = 0;
  for (int i = first; i < first + count && faults < 5; ++i) {
    const std::string fault = fault_of_draw(i);
    CHECK(fault == "");
    faults += fault.empty() ? 0 : 1;
  }
  std::printf("draws %d to %d: %d faults\n", first, first + count - 1, faults);
}

TEST_CASE("tables of cosines and sines, and a user's rotation") {
  constexpr int64 rows = 1600;
  std::vector<fp16> cos(rows * 64), sin(rows * 64);
  for (std::size_t i = 0; i < cos.size(); ++i) {
    const double angle = 0.001 * static_cast<double>(i % 6000);
    cos[i] = giwa::convert<fp16>{}(std::cos(angle)), sin[i] = giwa::convert<fp16>{}(std::sin(angle));
  }
  const gpu_array<fp16> cos_there(cos), sin_there(sin);
  for (int i = 0; i < (small_mode() ? 4 : 12); ++i) {
    const cached_case_options c = case_of(3 * i + 1);
    const giwa::index<2> sizes{rows, 64 - i % 3};
    const giwa::index<2> strides{64, 1};
    const giwa::rotary_layout layout{.interleaved = i % 2 == 0};
    using table = tensor_view<const fp16, 2>;
    const giwa::rotary_table on_host(table(cos.data(), sizes, strides), table(sin.data(), sizes, strides), layout),
        on_gpu(table(cos_there.data(), sizes, strides), table(sin_there.data(), sizes, strides), layout);
    CHECK(fault_of<128, 128, fp16, fp16, fp16>(c, causal::bottom_right, on_host, on_gpu, giwa::plain_score{}, i % 3) ==
          "");
    turn_by_pair own;
    own.size = i % 2 == 0 ? 128 : 100, own.interleaved = i % 4 == 0, own.first = i % 2 == 0 ? 0 : 13;
    CHECK(fault_of<128, 128, fp16, fp16, fp16>(c, causal::bottom_right, own, own, giwa::plain_score{}, i % 3) == "");
  }
}

TEST_CASE("positions and tables that the GPU cannot use are refused") {
  cached_case_options options = case_of(1);
  options.head_size = options.head_size_v = 128;
  cached_case<fp16> c(options);
  std::vector<int64> positions(static_cast<std::size_t>(c.rows()));
  std::vector<fp16> table(64 * 64);
  const cached_on_gpu<fp16, fp16, fp16> gpu(c);
  const giwa::stream s = new_stream();
  int reads_pageable = 0;
  check_cuda(cudaDeviceGetAttribute(&reads_pageable, cudaDevAttrPageableMemoryAccess, 0));
  if (reads_pageable != 0) return;
  const auto refused = [&](const auto& rotated) {
    const giwa::status state = cached_of<128, 128>(s, gpu.views(), causal::bottom_right, rotated, gpu.call_options());
    return state.ok() ? std::string() : std::string(state.argument);
  };
  const giwa::row_numbers on_host = tensor_view<const int64, 1>(positions.data(), {c.rows()});
  CHECK(refused(giwa::rotated_queries(giwa::rotary_base(10000.0, {.size = 128}), on_host)) == "positions");
  const tensor_view<const fp16, 2> of_host(table.data(), {64, 64});
  CHECK(refused(giwa::rotated_queries(giwa::rotary_table(of_host, of_host))) == "cos");
}
