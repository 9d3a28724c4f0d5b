// SPDX-License-Identifier: MIT
// merge_attention on the CPU: against double precision, against attention over all keys, its special values and its refusals.
#include <giwa/host.hpp>

#include <algorithm>
#include <limits>

#include "host/attention/merge_cases.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;
using giwa::merge_attention;
using giwa::status;

namespace {

template <class T, class O>
std::string on_host(const merge_data<T, O>& before, merge_data<T, O>& data) {
  O* o = data.o.data();
  float* lse = data.lse.data();
  if constexpr (std::is_same_v<T, O>)
    if (data.c.in_place >= 0) {
      o = data.parts.data() + data.c.in_place * data.c.strides()[0];
      lse = data.parts_lse.data() + data.c.in_place * data.c.rows();
    }
  const status s = merge_attention(giwa::host, data.o_parts(), data.lse_parts(), data.out(o), data.out_lse(lse));
  return s.ok() ? before.failure(o, lse) : giwa::format_status(s).c_str();
}

// Three parts of one row of two elements.
struct row {
  std::vector<float> parts{1, 2, 3, 4, 5, 6}, lse{0, 0, 0}, o{9, 9}, all{9};
  status merge() {
    return merge_attention(giwa::host, tensor_view<const float, 5>(parts.data(), {3, 1, 1, 1, 2}),
                           tensor_view<const float, 4>(lse.data(), {3, 1, 1, 1}),
                           tensor_view<float, 4>(o.data(), {1, 1, 1, 2}), tensor_view<float, 3>(all.data(), {1, 1, 1}));
  }
};

}  // namespace

TEST_CASE("parts merge to what double precision says") {
  CHECK(merge_failures<float, float>(on_host<float, float>) == "");
  CHECK(merge_failures<fp16, fp16>(on_host<fp16, fp16>) == "");
  CHECK(merge_failures<bf16, bf16>(on_host<bf16, bf16>) == "");
  CHECK(merge_failures<float, fp16>(on_host<float, fp16>) == "");
  CHECK(merge_failures<fp16, float>(on_host<fp16, float>) == "");
}

TEST_CASE("attention over parts of the keys merges to attention over all of them") {
  constexpr int64 queries = 9, keys = 50, heads = 2, size = 8, first = 20;
  const giwa::philox random(3);
  const auto numbers = [&](int64 n, giwa::uint64 seed) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 4 * random.uniform<float>(seed + i) - 2;
    return x;
  };
  const auto q = numbers(queries * heads * size, 0), k = numbers(keys * heads * size, 10000),
             v = numbers(keys * heads * size, 20000);
  const giwa::index<4> sizes{1, queries, heads, size};
  const tensor_view<const float, 4> query(q.data(), sizes);
  const auto rows = [&](const std::vector<float>& x, int64 begin, int64 end) {
    return tensor_view<const float, 4>(x.data() + begin * heads * size, {1, end - begin, heads, size});
  };
  std::vector<float> parts(2 * queries * heads * size), lse(2 * queries * heads), whole(queries * heads * size),
      whole_lse(queries * heads);
  const auto attend = [&](int64 begin, int64 end, float* o, float* l) {
    // The diagonal counts from key 0 of all: query 0 is at key 10, which is that much less of a later part.
    const giwa::attention_options options{.lse = tensor_view<float, 3>(l, {1, heads, queries})};
    return giwa::attention_forward<size>(
        giwa::host, query, rows(k, begin, end), rows(v, begin, end), tensor_view<float, 4>(o, sizes),
        giwa::causal{giwa::alignment::offset(14 - begin)}, giwa::plain_score{}, options);
  };
  REQUIRE(attend(0, keys, whole.data(), whole_lse.data()).ok());
  REQUIRE(attend(0, first, parts.data(), lse.data()).ok());
  REQUIRE(attend(first, keys, parts.data() + whole.size(), lse.data() + whole_lse.size()).ok());
  REQUIRE(merge_attention(giwa::host, tensor_view<const float, 5>(parts.data(), {2, 1, queries, heads, size}),
                          tensor_view<const float, 4>(lse.data(), {2, 1, heads, queries}),
                          tensor_view<float, 4>(parts.data(), sizes),
                          tensor_view<float, 3>(lse.data(), {1, heads, queries}))
              .ok());
  float off = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) off = std::max(off, std::fabs(whole[i] - parts[i]));
  for (std::size_t i = 0; i < whole_lse.size(); ++i) off = std::max(off, std::fabs(whole_lse[i] - lse[i]));
  CHECK(off < 1e-6f);
  CHECK(off >= 0);
}

TEST_CASE("special values of a merge") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  row r;
  REQUIRE(r.merge().ok());
  CHECK((std::fabs(r.o[0] - 3) < 1e-6f && std::fabs(r.all[0] - std::log(3.0f)) < 1e-6f));
  r.lse = {-inf, 2.5f, -inf};  // the only part with keys, to the bit; others may hold anything
  r.parts = {nan, inf, 0.1f, 0.3f, nan, nan};
  REQUIRE(r.merge().ok());
  CHECK((r.o == std::vector<float>{0.1f, 0.3f} && r.all[0] == 2.5f));
  r.lse = {-inf, -inf, -inf};
  REQUIRE(r.merge().ok());
  CHECK((r.o == std::vector<float>{0, 0} && r.all[0] == -inf));
  r.lse = {-inf, nan, 1};
  r.parts = {1, 2, 3, 4, 5, 6};
  REQUIRE(r.merge().ok());
  CHECK((std::isnan(r.o[0]) && std::isnan(r.o[1]) && std::isnan(r.all[0])));
  r.lse = {0, inf, 1};
  REQUIRE(r.merge().ok());
  CHECK((std::isnan(r.o[0]) && std::isnan(r.all[0])));
  r.lse = {0, 0, -200};  // a NaN element stays one, even with a weight that is 0
  r.parts[5] = nan;
  REQUIRE(r.merge().ok());
  CHECK((std::fabs(r.o[0] - 2) < 1e-6f && std::isnan(r.o[1]) && std::isfinite(r.all[0])));
  r.lse = {88, 88, 88};  // the sum of the largest finite numbers does not overflow
  r.parts.assign(6, 3e38f);
  REQUIRE(r.merge().ok());
  CHECK((std::fabs(r.o[0] / 3e38f - 1) < 1e-6f && std::fabs(r.all[0] - 88 - std::log(3.0f)) < 1e-5f));
}

TEST_CASE("packed parts merge, and lse may be left out") {
  const std::vector<float> parts{1, 2, 3, 4, 5, 6, 7, 8}, lse{0, 0, 0, 0};
  std::vector<float> o(4, 9.0f);
  REQUIRE(merge_attention(giwa::host, tensor_view<const float, 4>(parts.data(), {2, 2, 1, 2}),
                          tensor_view<const float, 4>(lse.data(), {2, 1, 1, 2}),
                          tensor_view<float, 3>(o.data(), {2, 1, 2}))
              .ok());
  CHECK(o == std::vector<float>{3, 4, 5, 6});
  CHECK(merge_attention(giwa::host, tensor_view<const float, 4>(nullptr, {2, 0, 1, 2}),
                        tensor_view<const float, 4>(nullptr, {2, 1, 1, 0}), tensor_view<float, 3>(nullptr, {0, 1, 2}))
            .ok());
}

TEST_CASE("one column has no last stride, and no elements have none") {
  row r;
  const tensor_view<const float, 5> column(r.parts.data(), {3, 1, 1, 1, 1}, {2, 2, 2, 2, 7});
  CHECK(merge_attention(giwa::host, column, tensor_view<const float, 4>(r.lse.data(), {3, 1, 1, 1}),
                        tensor_view<float, 4>(r.o.data(), {1, 1, 1, 1}, {5, 5, 5, 5}))
            .ok());
  const tensor_view<const float, 5> none(nullptr, {3, 1, 0, 1, 2}, {2, 2, 2, 2, 7});
  CHECK(merge_attention(giwa::host, none, tensor_view<const float, 4>(nullptr, {3, 1, 1, 0}),
                        tensor_view<float, 4>(nullptr, {1, 0, 1, 2}))
            .ok());
}

TEST_CASE("merges that are refused") {
  std::vector<float> memory(1000, 9.0f);
  const std::vector<float> untouched = memory;
  float* const x = memory.data();
  using five = tensor_view<const float, 5>;
  using four = tensor_view<const float, 4>;
  const five parts(x, {2, 2, 3, 4, 5});
  const four parts_lse(x + 300, {2, 2, 4, 3});
  const tensor_view<float, 4> o(x + 400, {2, 3, 4, 5});
  const tensor_view<float, 3> lse(x + 600, {2, 4, 3});
  REQUIRE(merge_attention(giwa::host, parts, parts_lse, o, lse).ok());
  memory = untouched;
  const auto refused = [&](const status& s, const std::string& argument, const std::string& words, int64 expected = 0,
                           int64 got = 0) {
    INFO(giwa::format_status(s).c_str() << " / " << argument << ": " << words);
    CHECK(s.code == giwa::status_code::invalid_argument);
    CHECK((s.argument == argument && std::string(s.message).find(words) != std::string::npos));
    CHECK((s.expected == expected && s.got == got));
    CHECK(memory == untouched);
  };
  const auto merge = [&](const five& a, const four& b, const tensor_view<float, 4>& c, const tensor_view<float, 3>& d) {
    return merge_attention(giwa::host, a, b, c, d);
  };
  refused(merge({x, {0, 2, 3, 4, 5}}, parts_lse, o, lse), "parts_o", "at least one part", 1, 0);
  refused(merge({x, {2, 2, 3, 4, 5}, {120, 60, 20, 5, 2}}, parts_lse, o, lse), "parts_o", "contiguous (stride 1)", 1,
          2);
  refused(merge({nullptr, {2, 2, 3, 4, 5}}, parts_lse, o, lse), "parts_o", "null");
  refused(merge({x, {2, 1, 3, 4, 5}}, parts_lse, o, lse), "o", "batch of parts_o", 1, 2);
  refused(merge({x, {2, 2, 2, 4, 5}}, parts_lse, o, lse), "o", "as many queries as parts_o", 2, 3);
  refused(merge({x, {2, 2, 3, 3, 5}}, parts_lse, o, lse), "o", "as many heads as parts_o", 3, 4);
  refused(merge({x, {2, 2, 3, 4, 4}}, parts_lse, o, lse), "o", "the head size of parts_o", 4, 5);
  refused(merge(parts, {x + 300, {1, 2, 4, 3}}, o, lse), "parts_lse", "as many parts as parts_o", 2, 1);
  refused(merge(parts, {x + 300, {2, 2, 3, 3}}, o, lse), "parts_lse", "as many heads as o", 4, 3);
  refused(merge(parts, {x + 300, {2, 2, 4, 4}}, o, lse), "parts_lse", "as many queries as o", 3, 4);
  refused(merge(parts, parts_lse, o, {x + 600, {2, 3, 3}}), "lse", "as many heads as o", 4, 3);
  refused(merge(parts, parts_lse, o, {x + 400, {2, 4, 3}}), "lse", "lse overlaps o");
  refused(merge(parts, parts_lse, o, {x + 100, {2, 4, 3}}), "lse", "lse overlaps parts_o");
  refused(merge(parts, parts_lse, o, {x + 301, {2, 4, 3}}), "lse", "is not one of the parts");
  refused(merge(parts, parts_lse, {x + 1, {2, 3, 4, 5}}, lse), "o", "is not one of the parts");
  refused(merge(parts, parts_lse, {x + 250, {2, 3, 4, 5}}, lse), "o", "o overlaps parts_lse");
  refused(merge(parts, parts_lse, {x + 400, {2, 3, 4, 5}, {60, 0, 5, 1}}, lse), "o", "must not be zero");
  refused(merge(parts, parts_lse, {x + 400, {2, 3, 4, 5}, {120, 40, 10, 2}}, lse), "o", "contiguous (stride 1)", 1, 2);
  refused(merge(parts, parts_lse, {nullptr, {2, 3, 4, 5}}, lse), "o", "null");
  refused(merge(parts, {nullptr, {2, 2, 4, 3}}, o, lse), "parts_lse", "null");
  refused(merge(parts, {x + 300, {2, 1, 4, 3}}, o, lse), "parts_lse", "its batch must be that of o", 2, 1);
  refused(merge(parts, parts_lse, o, {nullptr, {2, 4, 3}}), "lse", "null");
  refused(merge(parts, parts_lse, o, {x + 600, {1, 4, 3}}), "lse", "its batch must be that of o", 2, 1);
  refused(merge(parts, parts_lse, o, {x + 600, {2, 4, 2}}), "lse", "as many queries as o", 3, 2);
  refused(merge(parts, parts_lse, o, {x + 600, {2, 4, 3}, {12, 3, 0}}), "lse", "must not be zero");
  refused(merge({x, {2, 2, 3, 4, 0}}, parts_lse, {x + 400, {2, 3, 4, 0}}, lse), "o", "the head size must be at least 1",
          1, 0);
  // In the place of a part whose rows are those of another part as well.
  refused(merge({x, {2, 2, 3, 4, 5}, {60, 60, 20, 5, 1}}, parts_lse, {x, {2, 3, 4, 5}}, lse), "o",
          "is not one of the parts");
  CHECK(merge(parts, parts_lse, {x + 120, {2, 3, 4, 5}}, {x + 300, {2, 4, 3}}).ok());
}
