// SPDX-License-Identifier: MIT
// attention_forward on the CPU in every precision and for head sizes that are not multiples of a vector.
#include <cstdint>

#include "host/attention/check.hpp"

namespace {

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

template <class T, int HeadSize, int HeadSizeV = HeadSize, class O = T>
void add_cases(faults& f) {
  for (int i = 0; i < 4; ++i) {
    case_options c;
    c.seed = static_cast<uint64>(i * 1000 + HeadSize);
    c.heads = 2;
    c.kv_heads = 1 + i % 2;
    c.seq_q = i == 0 ? 1 : 45;
    c.seq_k = i == 1 ? 64 : 97;
    c.layout[0] = c.layout[3] = static_cast<case_layout>((i + HeadSize) % 5);
    c.layout[1] = c.layout[2] = static_cast<case_layout>((2 * i + HeadSize) % 5);
    c.offset = (HeadSize + i) % 8;
    c.spread = i == 3 ? 3 : 1;
    c.align = giwa::alignment::bottom_right;
    f.add(fault_of<T, HeadSize, HeadSizeV, O>(c, giwa::causal{}));
  }
}

}  // namespace

TEST_CASE("fp32 in several head sizes") {
  faults f;
  add_cases<float, 1>(f);
  add_cases<float, 7>(f);
  add_cases<float, 33>(f);
  add_cases<float, 64>(f);
  add_cases<float, 128>(f);
  add_cases<float, 192, 128>(f);
  add_cases<float, 512>(f);
  CHECK_NO_FAULTS(f);
}

TEST_CASE("fp16 in several head sizes") {
  faults f;
  add_cases<fp16, 1, 72>(f);
  add_cases<fp16, 40>(f);
  add_cases<fp16, 80>(f);
  add_cases<fp16, 100>(f);
  add_cases<fp16, 256>(f);
  CHECK_NO_FAULTS(f);
}

TEST_CASE("bf16 in several head sizes") {
  faults f;
  add_cases<bf16, 8>(f);
  add_cases<bf16, 96>(f);
  add_cases<bf16, 160>(f);
  add_cases<bf16, 64, 256>(f);
  add_cases<bf16, 320>(f);
  CHECK_NO_FAULTS(f);
}

TEST_CASE("an output of another precision") {
  faults f;
  add_cases<fp16, 64, 64, float>(f);
  add_cases<bf16, 64, 33, fp16>(f);
  add_cases<float, 33, 64, bf16>(f);
  CHECK_NO_FAULTS(f);
}

TEST_CASE("every fp16 number is widened exactly") {
  bool same = true;
  for (int bits = 0; bits < 65536; ++bits) {
    const auto raw = static_cast<std::uint16_t>(bits);
    fp16 x;
    std::memcpy(static_cast<void*>(&x), &raw, sizeof x);
    float fast = 0;
    giwa::detail::host_widen(&x, &fast, 1);
    const float right = giwa::convert<float>{}(x);
    same = same && (std::isnan(right) ? std::isnan(fast) : std::memcmp(&fast, &right, sizeof fast) == 0);
  }
  CHECK(same);
}
