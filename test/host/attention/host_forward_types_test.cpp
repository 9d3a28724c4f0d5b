// SPDX-License-Identifier: MIT
// attention_forward on the CPU in every precision and for head sizes that are not multiples of a vector.
#include <algorithm>
#include <cstdint>
#include <vector>

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

namespace {

/// A program's tensor: a view and something more.
template <class T, int Rank>
struct named_tensor : giwa::tensor_view<T, Rank> {
  using giwa::tensor_view<T, Rank>::tensor_view;
  const char* name = "a name";
};

}  // namespace

TEST_CASE("types derived from a view") {
  constexpr int64 rows = 5, size = 8, count = rows * size;
  std::vector<float> in(3 * count), expected(count), out(count);
  const giwa::philox random(3);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = 2 * random.uniform<float>(i) - 1;
  using plain = giwa::tensor_view<const float, 4>;
  using derived = named_tensor<const float, 4>;
  const giwa::index<4> sizes{1, rows, 1, size};
  const giwa::tensor_view<float, 4> o(expected.data(), sizes);
  REQUIRE(giwa::attention_forward<size>(giwa::host, plain(in.data(), sizes), plain(in.data() + count, sizes),
                                        plain(in.data() + 2 * count, sizes), o, giwa::causal{})
              .ok());
  const derived q(in.data(), sizes), k(in.data() + count, sizes), v(in.data() + 2 * count, sizes);
  const named_tensor<float, 4> derived_o(out.data(), sizes);
  const auto right = [&](const giwa::status& s) {
    const bool same = s.ok() && out == expected;
    std::fill(out.begin(), out.end(), 77.0f);
    return same;
  };
  CHECK(right(giwa::attention_forward<size>(giwa::host, q, k, v, derived_o, giwa::causal{})));
  CHECK(right(giwa::attention_forward<size, size>(giwa::host, q, k, v, derived_o, giwa::causal{})));
  CHECK(
      right(giwa::attention_forward<giwa::head_sizes<4, size>>(giwa::host, q, k, plain(v), derived_o, giwa::causal{})));

  const int offsets[2] = {0, rows};
  const giwa::index<3> packed{rows, 1, size};
  const named_tensor<const float, 3> q3(in.data(), packed), k3(in.data() + count, packed),
      v3(in.data() + 2 * count, packed);
  const named_tensor<float, 3> o3(out.data(), packed);
  CHECK(right(giwa::attention_forward<size>(giwa::host, giwa::sequences{offsets, offsets, 1, rows}, q3, k3, v3, o3,
                                            giwa::causal{})));
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
