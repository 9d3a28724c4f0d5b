// SPDX-License-Identifier: MIT
// attention_forward of e4m3 by tensor cores in every form of a call: packed and padded sequences, dropout, score modifiers, masks,
// sinks, head sizes of v, and what is not aligned; each row against the reference.
#include "gpu/attention/e4m3_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;

TEST_CASE("packed sequences of e4m3 by tensor cores") {
  case_options packed = e4m3_options(1, 1, 128);
  packed.q_lengths = {20, 0, 265, 1, 192, 63}, packed.k_lengths = {30, 5, 870, 0, 192, 100};
  packed.sinks = true;
  CHECK(fault_of<128, fp16>(packed, giwa::causal{}) == "");
  CHECK(fault_of<64, float>(packed, giwa::sliding_window{70}) == "");
  CHECK(fault_of<192, bf16>(packed, giwa::causal{}) == "");
}

TEST_CASE("padded sequences of e4m3 by tensor cores") {
  case_options padded = e4m3_options(270, 497, 128);
  padded.batch = 3, padded.k_used = {64, 497, 0};
  CHECK(fault_of<128, fp16>(padded, giwa::full{}) == "");
  padded.q_used = {270, 1, 100}, padded.k_used = {100, 333, 497}, padded.k_index = {1, 0, 1}, padded.k_batch = 2;
  CHECK(fault_of<256, float>(padded, giwa::causal{}) == "");
}

TEST_CASE("score modifiers of e4m3 by tensor cores") {
  const std::vector<float> slopes = {0.5f, 0.1f, 0.02f, 0.003f};
  const gpu_array<float> copy(slopes);
  const giwa::alibi on_host{slopes.data()}, on_gpu{copy.data()};
  const case_options options = e4m3_options(270, 900, 128);
  CHECK(fault_of<128, fp16>(options, giwa::causal{}, on_host, on_gpu) == "");
  CHECK(fault_of<64, float>(options, giwa::full{}, on_host, on_gpu) == "");
  CHECK(fault_of<128, bf16>(options, giwa::full{}, giwa::softcap{2}) == "");
  CHECK(fault_of<192, float>(options, giwa::causal{}, giwa::softcap{2}) == "");
}

TEST_CASE("masks of e4m3 by tensor cores") {
  case_options options = e4m3_options(300, 900, 96);
  options.sinks = true;
  CHECK(fault_of<96, fp16>(options, giwa::sliding_window{130} | giwa::prefix{40}) == "");
  options.spread = 2;  // scores of a standard deviation of 4
  CHECK(fault_of<192, float>(options, giwa::sliding_window{333}) == "");
  CHECK(fault_of<128, float, 64>(options, giwa::causal{}) == "");
  CHECK(fault_of<80, bf16, 256>(options, giwa::causal{}) == "");
}

TEST_CASE("dropout of e4m3 by tensor cores") {
  case_options options = e4m3_options(200, 500, 128);
  CHECK(fault_of<128, fp16>(options, giwa::causal{}, giwa::dropout(0.1f, 7)) == "");
  options.sinks = true;
  CHECK(fault_of<64, float>(options, giwa::full{}, giwa::dropout(0.5f, 7)) == "");
  CHECK(fault_of<256, bf16>(options, giwa::causal{}, giwa::dropout(0.3f, 7)) == "");
}

TEST_CASE("layouts of e4m3 that TMA addresses and others") {
  for (int i = 0; i < static_cast<int>(case_layout::count); ++i) {
    case_options options = e4m3_options(130, 333, 128);
    for (int t = 0; t < 4; ++t)
      options.layout[static_cast<std::size_t>(t)] =
          static_cast<case_layout>((i + t) % static_cast<int>(case_layout::count));
    if (i == 0)
      options.layout = {case_layout::heads_first, case_layout::heads_first, case_layout::heads_first,
                        case_layout::padded};
    options.offset = i == 3 ? 1 : 0;
    CHECK(fault_of<128, fp16>(options, giwa::causal{}) == "");
  }
}

TEST_CASE("numbers of e4m3 at the ends of their range by tensor cores") {
  for (int i = 1; i < static_cast<int>(e4m3_numbers::count); ++i) {
    case_options options = e4m3_options(130, 700, 128);
    attention_case<e4m3, float> c(options);
    change(c, static_cast<e4m3_numbers>(i));
    REQUIRE((run_on_gpu<128, 128>(c, giwa::causal{}, giwa::plain_score{})) == "");
    CHECK(fault_against(c, answers_of(c, giwa::causal{}, giwa::plain_score{})) == "");
  }
}
