// SPDX-License-Identifier: MIT
// The reference itself: against sums written out with the standard library, and against values known by thought.
#include <algorithm>

#include "host/attention/check.hpp"

namespace {

using namespace giwa_test;
using giwa::attention_reference;

}  // namespace

TEST_CASE("the reference is softmax(q k^T) v") {
  case_options sizes;
  sizes.batch = 2;
  sizes.heads = 4;
  sizes.kv_heads = 2;
  sizes.seq_q = 6;
  sizes.seq_k = 9;
  sizes.head_size = 5;
  sizes.head_size_v = 3;
  sizes.spread = 2;
  sizes.layout = {case_layout::padded, case_layout::heads_first, case_layout::reversed, case_layout::contiguous};
  attention_case<giwa::bf16, double> c(sizes);
  const auto a = c.views();
  giwa::attention_options options = c.call_options();
  options.align = giwa::alignment::bottom_right;
  REQUIRE(attention_reference(giwa::host, a.q, a.k, a.v, a.o, giwa::causal{}, giwa::softcap{3}, options).ok());
  long double worst = 0;
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 4; ++h)
      for (int i = 0; i < 6; ++i) {
        std::vector<long double> weight(9, 0.0L);
        long double sum = 0;
        for (int j = 0; j <= i + 3; ++j) {
          long double s = 0;
          for (int d = 0; d < 5; ++d)
            s += static_cast<long double>(giwa::convert<double>{}(a.q(b, i, h, d))) *
                 static_cast<long double>(giwa::convert<double>{}(a.k(b, j, h / 2, d)));
          s /= std::sqrt(5.0L);
          weight[static_cast<std::size_t>(j)] = std::exp(3 * std::tanh(s / 3));
          sum += weight[static_cast<std::size_t>(j)];
        }
        for (int d = 0; d < 3; ++d) {
          long double o = 0;
          for (int j = 0; j < 9; ++j)
            o += weight[static_cast<std::size_t>(j)] / sum *
                 static_cast<long double>(giwa::convert<double>{}(a.v(b, j, h / 2, d)));
          worst = std::max(worst, std::abs(o - static_cast<long double>(a.o(b, i, h, d))));
        }
        worst = std::max(worst, std::abs(std::log(sum) - static_cast<long double>(c.lse.view()(b, h, i))) / 4);
      }
  CHECK(worst < 1e-6L);  // the modifier's tanh is one of floats
  CHECK(worst > 0);
}

TEST_CASE("values that need no computation") {
  // Queries of 0 average the values; the lse is ln of the number of keys.
  std::vector<float> q(4, 0.0f), k(12, 5.0f), v{1, 2, 3, 4, 5, 6}, lse(2);
  std::vector<double> o(2);
  const tensor_view<const float, 4> query(q.data(), {1, 2, 1, 2}), key(k.data(), {1, 6, 1, 2}),
      value(v.data(), {1, 6, 1, 1});
  giwa::attention_options options{};
  options.lse = tensor_view<float, 3>(lse.data(), {1, 1, 2});
  const tensor_view<double, 4> out(o.data(), {1, 2, 1, 1});
  REQUIRE(attention_reference(giwa::host, query, key, value, out, giwa::causal::bottom_right, {}, options).ok());
  CHECK(std::abs(o[0] - 3) < 1e-15);
  CHECK(std::abs(o[1] - 3.5) < 1e-15);
  CHECK(std::abs(lse[0] - std::log(5.0f)) < 1e-6f);
  CHECK(std::abs(lse[1] - std::log(6.0f)) < 1e-6f);
  REQUIRE(attention_reference(giwa::host, query, key, value, out, giwa::causal::top_left, {}, options).ok());
  CHECK(o[0] == 1);
  CHECK(o[1] == 1.5);
  // An offset is the last key of query 0, whatever the lengths are.
  const auto at = [&](int64 n) {
    return attention_reference(giwa::host, query, key, value, out, giwa::causal{giwa::alignment::offset(n)}, {},
                               options);
  };
  REQUIRE(at(2).ok());
  CHECK(std::abs(o[0] - 2) < 1e-15);
  CHECK(std::abs(o[1] - 2.5) < 1e-15);
  REQUIRE(at(-1).ok());
  CHECK(o[0] == 0);
  CHECK(lse[0] == -HUGE_VALF);
  CHECK(o[1] == 1);
  for (const int64 n : {5, 6, 100}) {
    REQUIRE(at(n).ok());
    CHECK(std::abs(o[0] - 3.5) < 1e-15);
    CHECK(std::abs(lse[1] - std::log(6.0f)) < 1e-6f);
  }
  for (const int64 n : {-2, -50}) {
    REQUIRE(at(n).ok());
    CHECK(o[1] == 0);
    CHECK(lse[1] == -HUGE_VALF);
  }
  const float sink[1] = {0};  // one key more, of value 0
  options.sinks = tensor_view<const float, 1>(sink, {1});
  REQUIRE(attention_reference(giwa::host, query, key, value, out, giwa::causal::top_left, {}, options).ok());
  CHECK(o[0] == 0.5);
  CHECK(o[1] == 1);
}

TEST_CASE("the reference takes packed sequences, any head size, and refuses what attention_forward refuses") {
  case_options sizes;
  sizes.q_lengths = {2, 0, 3};
  sizes.k_lengths = {4, 1, 0};
  sizes.head_size = 3;
  sizes.head_size_v = 2;
  attention_case<float, double> c(sizes);
  const auto a = c.views();
  const auto call = [&](const auto& o) {
    return attention_reference(giwa::host, without_batch(a.q), without_batch(a.k), without_batch(a.v), o,
                               {.sequences = a.packed});
  };
  CHECK(call(without_batch(a.o)).ok());
  CHECK(a.o(0, 4, 0, 1) == 0);
  CHECK(a.o(0, 1, 0, 1) != 0);
  CHECK(c.o.written_outside() == 0);
  CHECK_FALSE(call(tensor_view<double, 3>(c.o.memory.data(), {4, 1, 2})).ok());

  attention_case<float, double> whole(case_options{});
  const auto views = whole.views();
  const giwa::status s = attention_reference(giwa::host, views.q, views.k, views.v, views.o,
                                             {.sequences = {.q_offsets = a.packed.q_offsets}});
  CHECK(s.argument == std::string("q_offsets"));
  CHECK(whole.o.written() == 0);
}

TEST_CASE("rows as an op: what for_all does with them") {
  attention_case<float> c(case_options{});
  const auto params = giwa::detail::params_of(c.views(), giwa::full{}, giwa::plain_score{}, c.call_options());
  const giwa::detail::attention_reference_rows rows{params};
  REQUIRE(giwa::for_all(giwa::host, giwa::extents{1, 1, 3}, rows).ok());  // rows that there are not are passed over
  CHECK(c.o.view()(0, 0, 0, 0) == c.v.view()(0, 0, 0, 0));
  CHECK(c.o.written_outside() == 0);
}
