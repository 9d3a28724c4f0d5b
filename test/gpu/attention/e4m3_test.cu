// SPDX-License-Identifier: MIT
// attention_forward of e4m3 in fp32 on a GPU: against the reference, close to the CPU, and with the bits of fp32.
#include <giwa/attention.cuh>
#include <giwa/host.hpp>

#include "host/attention/e4m3_cases.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/same_bits.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

/// Runs a case on a GPU, and returns its message where it is refused. Its o and lse are copied back.
template <int HeadSize, class Tile = giwa::automatic_tile, class T, class O, class Mask>
std::string run_on_gpu(attention_case<T, O>& c, const Mask& mask) {
  const giwa::stream s = new_stream();
  c.clear_outputs();
  const gpu_array<T> q(c.q.memory), k(c.k.memory), v(c.v.memory);
  const gpu_array<O> o(c.o.memory);
  const gpu_array<float> lse(c.lse.memory), sinks(c.sinks.memory);
  const gpu_array<int> q_offsets(c.q_offsets), k_offsets(c.k_offsets), k_used(c.options.k_used);
  giwa::detail::attention_views<T, O> a = c.views();
  a.q = c.q.at(q.data()), a.k = c.k.at(k.data()), a.v = c.v.at(v.data()), a.o = c.o.at(o.data());
  if (c.packed()) a.packed.q_offsets = q_offsets.data(), a.packed.k_offsets = k_offsets.data();
  if (!c.options.k_used.empty()) a.packed.k_lengths = k_used.data();
  giwa::attention_options options = c.call_options();
  options.lse = c.lse.at(lse.data());
  if (c.options.sinks) options.sinks = c.sinks.at(sinks.data());
  const giwa::status state =
      forward_of<HeadSize, HeadSize, Tile>(static_cast<cudaStream_t>(s), a, mask, giwa::plain_score{}, options);
  if (!state.ok()) return giwa::format_status(state).c_str();
  giwa::throw_if_failed(giwa::synchronize(s));
  c.o.memory = o.to_host(), c.lse.memory = lse.to_host();
  return "";
}

/// Against the reference; against the CPU, by the same judge; against fp32_exact with the same numbers, bit by bit.
template <int HeadSize, class O, class Mask>
std::string fault_of(case_options options, e4m3_numbers numbers, const Mask& mask, bool with_nan = false) {
  options.head_size = options.head_size_v = HeadSize;
  attention_case<e4m3, O> c(options);
  change(c, numbers);
  if (with_nan) {
    c.v.view()(0, 3, 1, 5) = e4m3_of(0x7f), c.k.view()(0, 60, 0, 0) = e4m3_of(0xff);
    c.q.view()(0, 2, 3, 1) = e4m3_of(0x7f);
  }
  if (const std::string refused = run_on_gpu<HeadSize, giwa::fp32_exact>(c, mask); !refused.empty()) return refused;
  const attention_answers answers = answers_of(c, mask, giwa::plain_score{});
  if (const attention_verdict verdict = judge(c, answers); !verdict.ok()) return verdict.failure;

  attention_case<float, O> wide = widened(c);
  if (const std::string refused = run_on_gpu<HeadSize, giwa::fp32_exact>(wide, mask); !refused.empty()) return refused;
  if (!with_nan && !(same_bits(wide.o.memory, c.o.memory) && same_bits(wide.lse.memory, c.lse.memory)))
    return "other bits than fp32_exact; " + c.options.text();

  // The result on the CPU is as far from the reference as is allowed, and has NaN in the same places.
  const auto on_gpu = c.o.template elements<double>();
  c.clear_outputs();
  if (const giwa::status s =
          forward_of<HeadSize, HeadSize>(giwa::host, c.views(), mask, giwa::plain_score{}, c.call_options());
      !s.ok())
    return giwa::format_status(s).c_str();
  const auto on_cpu = c.o.template elements<double>();
  for (std::size_t i = 0; i < on_cpu.size(); ++i)
    if (std::isnan(on_cpu[i]) != std::isnan(on_gpu[i])) return "NaN in other places than on the CPU";
  return judge(c, answers).failure;
}

}  // namespace

TEST_CASE("e4m3 on a GPU: head sizes, outputs, layouts and hostile numbers") {
  for (int i = 0; i < static_cast<int>(e4m3_numbers::count); ++i) {
    const auto numbers = static_cast<e4m3_numbers>(i);
    case_options c = e4m3_options(70, 97 + 64 * i, 72);
    c.layout = {static_cast<case_layout>(i), static_cast<case_layout>(i + 1), static_cast<case_layout>(i % 2),
                static_cast<case_layout>(i % 3)};
    c.offset = i, c.sinks = i == 2;
    CHECK(fault_of<72, fp16>(c, numbers, giwa::causal{}) == "");
    CHECK(fault_of<64, bf16>(c, numbers, giwa::sliding_window{40}) == "");
    CHECK(fault_of<128, float>(c, numbers, giwa::full{}) == "");
  }
}

TEST_CASE("packed and padded sequences of e4m3 on a GPU") {
  case_options packed = e4m3_options(1, 1, 72);
  packed.q_lengths = {20, 0, 65, 1}, packed.k_lengths = {30, 5, 170, 0};
  CHECK(fault_of<72, fp16>(packed, e4m3_numbers::normal, giwa::causal{}) == "");
  case_options padded = e4m3_options(70, 97, 128);
  padded.k_used = {64, 97};
  CHECK(fault_of<128, float>(padded, e4m3_numbers::all_bits, giwa::full{}) == "");
}

TEST_CASE("NaN of e4m3 on a GPU") {
  CHECK(fault_of<72, fp16>(e4m3_options(70, 97, 72), e4m3_numbers::normal, giwa::causal{}, true) == "");
  CHECK(fault_of<64, bf16>(e4m3_options(70, 97, 64), e4m3_numbers::normal, giwa::sliding_window{40}, true) == "");
}

TEST_CASE("a prepared call of e4m3") {
  attention_case<e4m3, fp16> c(e4m3_options(70, 97, 72));
  const giwa::stream s = new_stream();
  const gpu_array<e4m3> q(c.q.memory), k(c.k.memory), v(c.v.memory);
  const gpu_array<fp16> o(c.o.memory);
  giwa::attention_options options;
  options.align = c.options.align;
  const auto plan = giwa::make_attention_plan<72>(c.q.at(q.data()), c.k.at(k.data()), c.v.at(v.data()),
                                                  c.o.at(o.data()), giwa::causal{}, giwa::plain_score{}, options);
  REQUIRE(plan.ok());
  REQUIRE(plan.value.launch(s).ok());
  giwa::throw_if_failed(giwa::synchronize(s));
  const std::vector<fp16> prepared = o.to_host();
  REQUIRE(run_on_gpu<72>(c, giwa::causal{}) == "");
  CHECK(same_bits(prepared, c.o.memory));
}
