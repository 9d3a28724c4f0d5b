// SPDX-License-Identifier: MIT
// Rows of blocks, q8_0 and q4_0: their numbers, attention_cached on the CPU against the double reference, and what is refused.
#include <cstring>

#include "host/attention/cached_check.hpp"
#include "support/append_blocks.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;
using giwa::q4_0;
using giwa::q8_0;

TEST_CASE("numbers of blocks") {
  std::vector<q8_0> eight(2 * 34);
  std::vector<q4_0> four(2 * 18);
  const fp16 scales[2] = {giwa::convert<fp16>{}(0.75f), giwa::convert<fp16>{}(-0x1p-24f)};
  for (int b = 0; b < 2; ++b) {
    std::memcpy(&eight[static_cast<std::size_t>(34 * b)], &scales[b], 2);
    std::memcpy(&four[static_cast<std::size_t>(18 * b)], &scales[b], 2);
    for (int i = 0; i < 32; ++i)
      eight[static_cast<std::size_t>(34 * b + 2 + i)].byte =
          static_cast<unsigned char>(i % 2 == 0 ? 127 - i : -128 + i);
    for (int i = 0; i < 16; ++i)
      four[static_cast<std::size_t>(18 * b + 2 + i)].byte = static_cast<unsigned char>(i | (15 - i) << 4);
  }
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < 32; ++i) {
      const float scale = b == 0 ? 0.75f : -0x1p-24f;
      CHECK(q8_0::number_at(eight.data(), 32 * b + i) == scale * static_cast<float>(i % 2 == 0 ? 127 - i : -128 + i));
      CHECK(q4_0::number_at(four.data(), 32 * b + i) == scale * static_cast<float>((i < 16 ? i : 31 - i) - 8));
    }
}

TEST_CASE("caches of q8_0 and q4_0") {
  faults f;
  for (int i = 0; i < 12; ++i) {
    cached_case_options c;
    c.seed = static_cast<uint64>(i);
    c.kv_heads = 1 + i % 2;
    c.heads = c.kv_heads * (1 + i % 5);
    c.queries = {2, 2, 2};
    c.page_size = i % 3 == 0 ? 0 : 5 * i;
    c.keys = 90;
    c.most = c.page_size == 0 ? 0 : 90 / c.page_size + 1;
    c.lengths = {90, 0, 65};
    c.offset = i % 4;
    c.layout[1] = i % 2 == 0 ? case_layout::contiguous : case_layout::heads_first;
    f.add(cached_fault_of<bf16, 64, 64, q8_0>(c));
    f.add(cached_fault_of<float, 128, 32, q4_0>(c, giwa::causal::bottom_right));
    f.add(cached_fault_of<fp16, 96, 96, q4_0>(c, giwa::causal::bottom_right));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("caches of blocks that are refused") {
  static q8_0 bytes[2 * 68];
  static float q[64], o[64], scale[1];
  const tensor_view<const float, 4> queries(q, {1, 1, 1, 64});
  const tensor_view<float, 4> to(o, {1, 1, 1, 64});
  const auto state_of = [&](giwa::int64 of_k, giwa::int64 of_v, const float* scales) {
    giwa::kv_cache<const q8_0> cache{.k = {bytes, {1, 2, 1, of_k}}, .v = {bytes, {1, 2, 1, of_v}}};
    if (scales != nullptr) cache.scales.k = {scales, {1, 1, 1}};
    return giwa::attention_cached<64>(giwa::host, cache, queries, to);
  };
  CHECK(state_of(68, 68, nullptr).ok());
  CHECK(!state_of(67, 68, nullptr).ok());
  CHECK(!state_of(68, 34, nullptr).ok());
  CHECK(!state_of(64, 64, nullptr).ok());
  CHECK(!state_of(68, 68, scale).ok());
}

TEST_CASE("rows are appended to caches of blocks") {
  const auto fault = [](auto x, const auto& rotary) -> std::string {
    const auto q = x.q;
    const giwa::status state = x.call_on_host(rotary);
    if (!state.ok()) return giwa::format_status(state).c_str();
    if ((rotary.size > 0) == (std::memcmp(x.q_to.data(), q.data(), q.size() * sizeof(q[0])) == 0)) return "queries";
    return x.fault(rotary);
  };
  const giwa::rotary_base inner(10000.0, {.size = 36, .interleaved = true, .first = 10});
  CHECK(fault(new_blocks<bf16, q8_0>{}, giwa::no_rotary{}) == "");
  CHECK(fault(new_blocks<fp16, q8_0>{}, giwa::rotary_base(10000.0, {.size = 96})) == "");
  CHECK(fault(new_blocks<float, q8_0>{}, inner) == "");
  CHECK(fault(new_blocks<bf16, q4_0>{}, giwa::rotary_base(10000.0, {.size = 64, .first = 16})) == "");
  CHECK(fault(new_blocks<float, q4_0>{}, inner) == "");
}

TEST_CASE("scales of blocks stay within fp16") {
  std::vector<q8_0> eight(34);
  std::vector<q4_0> four(18);
  for (const float x : {0.f, 1e-30f, 1e30f, -1e30f}) {
    const auto number = [&](int i) { return i == 3 ? x : 0.f; };
    giwa::detail::append_block(eight.data(), number);
    giwa::detail::append_block(four.data(), number);
    const float most = std::fmin(std::fabs(x), 65504.f * 127), most_4 = std::fmin(std::fabs(x), 65504.f * 8);
    CHECK(std::fabs(std::fabs(q8_0::number_at(eight.data(), 3)) - most) <= 0x1p-25f + most * 1e-3f);
    CHECK(std::fabs(std::fabs(q4_0::number_at(four.data(), 3)) - most_4) <= 0x1p-25f + most_4 * 1e-3f);
    CHECK(q4_0::number_at(four.data(), 4) == 0);
  }
}
