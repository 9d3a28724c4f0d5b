// SPDX-License-Identifier: MIT
// attention_forward of e4m3 by tensor cores with a K-major v: numbers of keys, forms of a call, NaN; each row against the reference.
#include "gpu/attention/e4m3_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;

namespace {

/// A case whose v is K-major.
case_options k_major_options(int64 queries, int64 keys, int64 head_size) {
  case_options c = e4m3_options(queries, keys, head_size);
  c.batch = 1, c.heads = 2, c.kv_heads = 1;
  c.layout[2] = case_layout::k_major;
  return c;
}

}  // namespace

TEST_CASE("a K-major v of e4m3: numbers of keys") {
  for (const int64 keys : {1, 2, 3, 4, 5, 16, 31, 95, 96, 97, 98, 99, 100, 192, 500, 643, 1201, 1202, 1203, 1204}) {
    const case_options options = k_major_options(keys < 70 ? keys : 70, keys, 128);
    CHECK(fault_of<128, float>(options, giwa::causal{}) == "");
    CHECK(fault_of<128, fp16>(options, giwa::full{}) == "");
  }
  CHECK(fault_of<128, float>(k_major_options(5, 8195, 128), giwa::full{}) == "");
}

TEST_CASE("a K-major v of e4m3: head sizes, masks and modifiers") {
  for (const int64 keys : {333, 700}) {
    case_options options = k_major_options(210, keys, 64);
    options.sinks = keys == 333, options.batch = 2, options.heads = 1;
    CHECK(fault_of<64, float>(options, giwa::causal{}) == "");
    CHECK(fault_of<80, bf16>(options, giwa::full{}) == "");
    CHECK(fault_of<96, fp16>(options, giwa::sliding_window{130} | giwa::prefix{40}) == "");
    CHECK(fault_of<192, float>(options, giwa::causal{}) == "");
    CHECK(fault_of<256, float>(options, giwa::causal{}) == "");
    CHECK(fault_of<128, float, 64>(options, giwa::causal{}) == "");
    CHECK(fault_of<128, fp16>(options, giwa::sliding_window{90}) == "");
    CHECK(fault_of<128, bf16>(options, giwa::full{}, giwa::softcap{2}) == "");
    CHECK(fault_of<64, float>(options, giwa::causal{}, giwa::dropout(0.1f, 7)) == "");  // in fp32
  }
}

TEST_CASE("a K-major v of e4m3: packed, padded and unaligned") {
  case_options packed = k_major_options(1, 1, 128);
  packed.q_lengths = {20, 0, 265, 1, 192, 63, 9}, packed.k_lengths = {30, 5, 870, 0, 192, 101, 2};
  CHECK(fault_of<128, fp16>(packed, giwa::causal{}) == "");
  CHECK(fault_of<96, fp16>(packed, giwa::sliding_window{70} | giwa::prefix{40}) == "");
  CHECK(fault_of<80, bf16>(packed, giwa::full{}) == "");
  packed.q_lengths = packed.k_lengths = {3, 2};
  CHECK(fault_of<128, float>(packed, giwa::full{}) == "");
  case_options padded = k_major_options(200, 497, 128);
  padded.batch = 3, padded.k_used = {64, 497, 0};
  CHECK(fault_of<128, fp16>(padded, giwa::full{}) == "");
  padded.heads = 1, padded.q_used = {200, 1, 100}, padded.k_used = {100, 333, 497}, padded.k_index = {1, 0, 1},
  padded.k_batch = 2;
  CHECK(fault_of<256, float>(padded, giwa::causal{}) == "");
  for (const auto layout : {case_layout::heads_first, case_layout::padded}) {
    case_options options = k_major_options(130, 333, 128);
    options.layout[0] = options.layout[1] = options.layout[3] = layout;
    CHECK(fault_of<128, fp16>(options, giwa::causal{}) == "");
    options.offset = 1;  // no address of TMA
    CHECK(fault_of<128, fp16>(options, giwa::causal{}) == "");
  }
}

TEST_CASE("a K-major v of e4m3: NaN in it, in what follows it, and hostile numbers") {
  const auto fault = [](const auto& mask, int64 keys, bool packed, int numbers) {
    case_options options = k_major_options(150, keys, 128);
    options.kv_heads = 2;
    if (packed) options.q_lengths = {50, 100}, options.k_lengths = {keys / 3, keys - keys / 3};
    attention_case<e4m3, float> c(options);
    change(c, static_cast<e4m3_numbers>(numbers));
    const auto v = c.v.view();
    for (const int64 key : {int64{3}, keys / 3, keys / 2, keys - 1})
      v(0, key, key % 2, key % 128) = e4m3_of(key % 3 == 0 ? 0xff : 0x7f);
    if (const std::string refused = run_on_gpu<128, 128>(c, mask, giwa::plain_score{}); !refused.empty())
      return refused;
    return fault_against(c, answers_of(c, mask, giwa::plain_score{}));
  };
  for (const int64 keys : {350, 703})
    for (const bool packed : {false, true}) {
      CHECK(fault(giwa::causal{}, keys, packed, 0) == "");
      CHECK(fault(giwa::sliding_window{90}, keys, packed, 0) == "");
      CHECK(fault(giwa::full{}, keys, packed, 0) == "");
      for (int i = 1; i < static_cast<int>(e4m3_numbers::count); ++i)
        CHECK(fault(giwa::causal{}, keys, packed, i) == "");
    }
}
