// SPDX-License-Identifier: MIT
// Dual numbers, the slopes of score modifiers, and the reference of the backward pass against central differences.
#include <giwa/attention/reference/backward.hpp>
#include <giwa/host.hpp>

#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/attention_case.hpp"
#include "support/backward_case.hpp"
#include "support/call_options.hpp"
#include "support/catch.hpp"

namespace {

using namespace giwa_test;
using giwa::attention_coord;
using giwa::causal;
using giwa::dual;

/// A modifier templated on the number, as a user writes it.
struct squashed {
  template <class Number>
  Number operator()(Number score, attention_coord c) const {
    using std::exp;
    return score * 0.5f + exp(-score * score) * (0.1f * static_cast<float>(c.key % 3 + c.head));
  }
};
/// One with its slope by hand, in fp32 alone.
struct by_hand {
  float operator()(float x, attention_coord) const { return x * x * 0.25f; }
  dual<float> value_and_slope(float x, attention_coord c) const { return {(*this)(x, c), 0.5f * x}; }
};

/// The problem in fp64, all of it: q, k, v, sinks, and a bias that some modifiers add.
struct numbers {
  std::vector<double> q, k, v, sinks, bias;
};

struct small_problem {
  int64 batch = 2, heads = 4, kv_heads = 2, queries = 5, keys = 6, depth = 3, width = 2;
  std::vector<int> q_offsets, k_offsets, k_lengths, k_index;
  bool has_sinks = false, has_bias = false;
};

/// sum(dout o) + sum(dlse lse), written apart from all of giwa.
template <class Mask, class Modifier>
double loss(const small_problem& p, const numbers& x, const std::vector<double>& dout, const std::vector<double>& dlse,
            const Mask& mask, const Modifier& modify) {
  double total = 0;
  const auto at = [](std::initializer_list<int64> sizes, std::initializer_list<int64> i) {
    int64 n = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) n = n * sizes.begin()[d] + i.begin()[d];
    return static_cast<std::size_t>(n);
  };
  const bool packed = !p.q_offsets.empty();
  const int64 sequences = packed ? static_cast<int64>(p.q_offsets.size()) - 1 : p.batch;
  for (int64 b = 0; b < sequences; ++b)
    for (int64 h = 0; h < p.heads; ++h) {
      const auto s = static_cast<std::size_t>(b);
      int64 of_k = p.k_index.empty() ? b : p.k_index[s];
      const auto sk = static_cast<std::size_t>(of_k);
      const int64 q0 = packed ? p.q_offsets[s] : 0, nq = packed ? p.q_offsets[s + 1] - q0 : p.queries;
      const int64 k0 = packed ? p.k_offsets[sk] : 0;
      int64 nk = packed ? p.k_offsets[sk + 1] - k0 : p.keys;
      if (!p.k_lengths.empty()) nk = p.k_lengths[s];
      const int64 qb = packed ? 0 : b, kb = packed ? 0 : of_k, kv = h / (p.heads / p.kv_heads);
      for (int64 i = 0; i < nq; ++i) {
        giwa::detail::weight_factors<Modifier> dropped(modify, static_cast<int>(b), static_cast<int>(h));
        std::vector<double> y, o(static_cast<std::size_t>(p.width), 0.0);
        std::vector<int64> kept;
        double sum = p.has_sinks ? std::exp(x.sinks[static_cast<std::size_t>(h)]) : 0;
        for (int64 j = 0; j < nk; ++j) {
          const attention_coord c{static_cast<int>(b), static_cast<int>(h), static_cast<int>(i), static_cast<int>(j),
                                  static_cast<int>(i + nk - nq)};
          if (!mask(c)) continue;
          double z = 0;
          for (int64 d = 0; d < p.depth; ++d)
            z += x.q[at({p.batch, p.queries, p.heads, p.depth}, {qb, q0 + i, h, d})] *
                 x.k[at({p.batch, p.keys, p.kv_heads, p.depth}, {kb, k0 + j, kv, d})];
          double score = modify(dual<double>{z * 0.6, 0.0}, c).value;
          if (p.has_bias) score += x.bias[at({p.batch, p.heads, p.queries, p.keys}, {b, h, i, j})];
          kept.push_back(j);
          y.push_back(std::exp(score));
          sum += y.back();
        }
        for (std::size_t n = 0; n < kept.size(); ++n)
          for (int64 d = 0; d < p.width; ++d)
            o[static_cast<std::size_t>(d)] +=
                y[n] / sum * dropped(static_cast<int>(i), static_cast<int>(kept[n])) *
                x.v[at({p.batch, p.keys, p.kv_heads, p.width}, {kb, k0 + kept[n], kv, d})];
        for (int64 d = 0; d < p.width; ++d)
          total +=
              o[static_cast<std::size_t>(d)] * dout[at({p.batch, p.queries, p.heads, p.width}, {qb, q0 + i, h, d})];
        if (sum > 0) total += dlse[at({p.batch, p.heads, p.queries}, {qb, h, q0 + i})] * std::log(sum);
      }
    }
  return total;
}

/// Empty, or the first gradient of the reference that differs from the difference quotient. `modify` reads the parameters,
/// and score_of() has their gradients, if there are some.
template <class Mask, class Modifier, class Call>
std::string fault_of(const small_problem& p, const Mask& mask, const Modifier& modify, const Call& score_of,
                     std::vector<double>* parameters = nullptr, const std::vector<float>* dparameters = nullptr) {
  const auto fill = [](int64 count, giwa::uint64 seed) {
    std::vector<float> x;
    for (int64 i = 0; i < count; ++i)
      x.push_back(static_cast<float>(normal_at(giwa::philox(seed), static_cast<giwa::uint64>(i))));
    return x;
  };
  const std::vector<float> q = fill(p.batch * p.queries * p.heads * p.depth, 1),
                           k = fill(p.batch * p.keys * p.kv_heads * p.depth, 2),
                           v = fill(p.batch * p.keys * p.kv_heads * p.width, 3), sinks = fill(p.heads, 4),
                           bias = fill(p.batch * p.heads * p.queries * p.keys, 5),
                           dlse = fill(p.batch * p.heads * p.queries, 7);
  const std::vector<float> dout_float = fill(p.batch * p.queries * p.heads * p.width, 6);
  const std::vector<double> dout(dout_float.begin(), dout_float.end());
  std::vector<double> dq(q.size(), 0.0), dk(k.size(), 0.0), dv(v.size(), 0.0), dbias(bias.size(), 0.0);
  std::vector<float> dsinks(sinks.size(), 0.0f);

  giwa::attention_backward_options options;
  options.scale = 0.6;
  options.align = giwa::alignment::bottom_right;
  options.dlse = {dlse.data(), {p.batch, p.heads, p.queries}};
  if (p.has_sinks) options.sinks = sinks, options.dsinks = dsinks;
  const auto four = [](auto& x, int64 a, int64 b, int64 c, int64 d) {
    return tensor_view<std::remove_reference_t<decltype(x[0])>, 4>(x.data(), {a, b, c, d});
  };
  const auto q4 = four(q, p.batch, p.queries, p.heads, p.depth);
  const auto k4 = four(k, p.batch, p.keys, p.kv_heads, p.depth), v4 = four(v, p.batch, p.keys, p.kv_heads, p.width);
  const auto o4 = four(dout, p.batch, p.queries, p.heads, p.width);
  const auto dq4 = four(dq, p.batch, p.queries, p.heads, p.depth);
  const auto dk4 = four(dk, p.batch, p.keys, p.kv_heads, p.depth), dv4 = four(dv, p.batch, p.keys, p.kv_heads, p.width);
  const auto score =
      score_of(four(bias, p.batch, p.heads, p.queries, p.keys), four(dbias, p.batch, p.heads, p.queries, p.keys));
  giwa::sequences packed;
  packed.k_lengths = p.k_lengths.empty() ? nullptr : p.k_lengths.data();
  packed.k_batch_index = p.k_index.empty() ? nullptr : p.k_index.data();
  giwa::status s;
  if (p.q_offsets.empty()) {
    s = giwa::attention_backward_reference(giwa::host, q4, k4, v4, o4, dq4, dk4, dv4, mask, score,
                                           giwa_test::with(options, packed));
  } else {
    packed.q_offsets = p.q_offsets.data(), packed.k_offsets = p.k_offsets.data();
    packed.count = static_cast<int64>(p.q_offsets.size()) - 1;
    s = giwa::attention_backward_reference(giwa::host, without_batch(q4), without_batch(k4), without_batch(v4),
                                           without_batch(o4), without_batch(dq4), without_batch(dk4),
                                           without_batch(dv4), mask, score, giwa_test::with(options, packed));
  }
  if (!s.ok()) return s.message;

  numbers x{{q.begin(), q.end()},
            {k.begin(), k.end()},
            {v.begin(), v.end()},
            {sinks.begin(), sinks.end()},
            {bias.begin(), bias.end()}};
  const std::vector<double> dlse_double(dlse.begin(), dlse.end());
  std::string fault;
  const auto compare = [&](const char* name, std::vector<double>& input, const auto& gradient, double tolerance) {
    for (std::size_t i = 0; i < input.size() && fault.empty(); ++i) {
      const double h = 1e-5, was = input[i];
      input[i] = was + h;
      const double above = loss(p, x, dout, dlse_double, mask, modify);
      input[i] = was - h;
      const double below = loss(p, x, dout, dlse_double, mask, modify);
      input[i] = was;
      const double expected = (above - below) / (2 * h), got = static_cast<double>(gradient[i]);
      if (!(std::abs(got - expected) <= tolerance * (1 + std::abs(expected))))
        fault = std::string(name) + " " + std::to_string(i) + ": " + std::to_string(got) + ", difference " +
                std::to_string(expected);
    }
  };
  compare("dq", x.q, dq, 1e-7);
  compare("dk", x.k, dk, 1e-7);
  compare("dv", x.v, dv, 1e-7);
  if (p.has_sinks) compare("dsinks", x.sinks, dsinks, 1e-6);
  if (p.has_bias) compare("dbias", x.bias, dbias, 1e-6);
  if (parameters != nullptr) compare("dparameters", *parameters, *dparameters, 1e-6);
  return fault;
}

const auto no_modifier = [](auto, auto) { return giwa::plain_score{}; };

}  // namespace

TEST_CASE("the reference has the gradients that differences give") {
  small_problem p;
  CHECK(fault_of(p, giwa::full{}, giwa::plain_score{}, no_modifier) == "");
  CHECK(fault_of(p, causal{}, giwa::plain_score{}, no_modifier) == "");
  p.queries = 7, p.has_sinks = true;  // the first row sees no key but the sink
  CHECK(fault_of(p, causal{}, giwa::plain_score{}, no_modifier) == "");
  CHECK(fault_of(p, giwa::sliding_window{2} | giwa::prefix{1}, squashed{}, [](auto, auto) { return squashed{}; }) ==
        "");
  CHECK(fault_of(p, causal{}, giwa::softcap{1.5f}, [](auto, auto) { return giwa::softcap{1.5f}; }) == "");
  const giwa::dropout drop(0.4f, 3, squashed{});
  CHECK(fault_of(p, causal{}, drop, [&](auto, auto) { return drop; }) == "");
  const float slopes[4] = {0.5f, 0.25f, 0.1f, 0.8f};
  const giwa::alibi alibi{slopes, 0, giwa::alignment::bottom_right};
  CHECK(fault_of(p, giwa::full{}, alibi, [&](auto, auto) { return alibi; }) == "");
}

TEST_CASE("the reference has the gradients that differences give, of a map of blocks and of a bias with it") {
  small_problem p;
  bool visible[2 * 4 * 5 * 6];  // blocks of 2 x 2: some empty, some full, some in part
  for (int i = 0; i < 2 * 4 * 5 * 6; ++i) {
    const int q = i / 6 % 5, k = i % 6, block = (i / 30 + 2 * (q / 2) + k / 2) % 4;
    visible[i] = block == 1 || (block == 2 && (q + k) % 2 == 0);
  }
  giwa::block_map map{
      .batch = 2, .heads = 4, .queries = 5, .keys = 6, .block_queries = 2, .block_keys = 2, .by_keys = true};
  std::vector<giwa::block_word> words(static_cast<std::size_t>(map.bytes()) / sizeof(giwa::block_word));
  map.words = words.data();
  REQUIRE(make_block_map(giwa::host, tensor_view<const bool, 4>(visible, {2, 4, 5, 6}), map).ok());
  CHECK(fault_of(p, giwa::block_sparse{map}, giwa::plain_score{}, no_modifier) == "");
  CHECK(fault_of(p, giwa::block_sparse{map, causal{}} | giwa::prefix{1}, squashed{},
                 [](auto, auto) { return squashed{}; }) == "");
  CHECK(fault_of(p, !giwa::block_sparse{map}, giwa::plain_score{}, no_modifier) == "");
  p.has_bias = p.has_sinks = true;
  CHECK(fault_of(p, giwa::block_sparse{map}, giwa::plain_score{},
                 [](const auto& b, const auto& db) { return giwa::bias_with_gradient(b, db); }) == "");
}

TEST_CASE("the reference gives the gradient of a bias") {
  small_problem p;
  p.has_bias = true;
  const auto with_bias = [](const auto& b, const auto& db) { return giwa::bias_with_gradient(b, db); };
  CHECK(fault_of(p, causal{}, giwa::plain_score{}, with_bias) == "");
  const auto capped = [](const auto& b, const auto& db) {
    return giwa::then(giwa::softcap{1.5f}, giwa::bias_with_gradient(b, db));
  };
  CHECK(fault_of(p, giwa::full{}, giwa::softcap{1.5f}, capped) == "");
  const auto dropped = [](const auto& b, const auto& db) {
    return giwa::dropout(0.4f, 3, giwa::bias_with_gradient(b, db));
  };
  CHECK(fault_of(p, causal{}, giwa::dropout(0.4f, 3), dropped) == "");
}

TEST_CASE("the reference gives the gradients of parameters, on both sides of another modifier") {
  small_problem p;
  p.queries = 7, p.has_sinks = true;
  std::vector<float> values{0.5f, 2, 0.75f, -1, 1.25f, 3, -0.5f, 0.25f}, gradients(values.size(), NAN);
  std::vector<double> exact(values.begin(), values.end());
  const tensor_view<float, 2> to(gradients.data(), {4, 2});
  const trained_score<> trained{values.data(), to};
  const trained_score<double> moved{exact.data(), to};
  CHECK(fault_of(
            p, causal{}, moved, [&](auto, auto) { return trained; }, &exact, &gradients) == "");
  const auto last = [&](auto, auto) { return giwa::then(squashed{}, trained); };
  CHECK(fault_of(p, giwa::full{}, giwa::then(squashed{}, moved), last, &exact, &gradients) == "");
  const auto first = [&](auto, auto) { return giwa::then(trained, squashed{}); };
  CHECK(fault_of(p, giwa::full{}, giwa::then(moved, squashed{}), first, &exact, &gradients) == "");
}

TEST_CASE("the reference takes packed sequences, lengths and shared keys") {
  small_problem p;
  p.batch = 1, p.queries = 9, p.keys = 11;
  p.q_offsets = {1, 4, 4, 8}, p.k_offsets = {0, 5, 6, 10};
  CHECK(fault_of(p, causal{}, giwa::plain_score{}, no_modifier) == "");
  p.k_index = {2, 0, 2}, p.k_lengths = {4, 1, 3};
  CHECK(fault_of(p, causal{}, giwa::plain_score{}, no_modifier) == "");
  small_problem of_rank_4;
  of_rank_4.k_lengths = {6, 2}, of_rank_4.k_index = {1, 1};
  CHECK(fault_of(of_rank_4, causal{}, squashed{}, [](auto, auto) { return squashed{}; }) == "");
}

TEST_CASE("the reference refuses sequences and options as the call does") {
  const std::vector<float> numbers(32, 1);
  std::vector<double> gradient(96, 7.0);
  const giwa::tensor_view<const float, 3> x(numbers.data(), {4, 1, 8});
  const auto part = [&](int i) { return giwa::tensor_view<double, 3>(gradient.data() + 32 * i, {4, 1, 8}); };
  const auto dq = part(0), dk = part(1), dv = part(2);
  const giwa::status no_offsets = giwa::attention_backward_reference(giwa::host, x, x, x, x, dq, dk, dv);
  CHECK(no_offsets.argument == std::string_view("q_offsets"));
  const std::vector<int> offsets{0, 4};
  giwa::attention_backward_options options;
  options.sequences.q_offsets = offsets.data(), options.sequences.count = 1;
  const giwa::status of_keys =
      giwa::attention_backward_reference(giwa::host, x, x, x, x, dq, dk, dv, causal{}, giwa::plain_score{}, options);
  CHECK(of_keys.argument == std::string_view("k_offsets"));
  options.sequences.k_offsets = offsets.data();
  const giwa::status twice =
      giwa::attention_backward_reference(giwa::host, x, x, x, x, dq, dk, dv, options, giwa::plain_score{}, options);
  CHECK(twice.argument == std::string_view("options"));
  CHECK(gradient == std::vector<double>(96, 7.0));
  CHECK(giwa::attention_backward_reference(giwa::host, x, x, x, x, dq, dk, dv, causal{}, giwa::plain_score{}, options)
            .ok());
  CHECK(gradient[95] != 7.0);
}

TEST_CASE("a dual has the slope of each function") {
  const auto slope_is = [](auto f, double x) {
    const double h = 1e-6, got = f(dual<double>{x, 1.0}).slope;
    const double expected = (f(dual<double>{x + h}).value - f(dual<double>{x - h}).value) / (2 * h);
    return std::abs(got - expected) < 1e-7 * (1 + std::abs(expected));
  };
  for (const double x : {0.3, 1.7, 2.5}) {
    CHECK(slope_is([](auto a) { return exp(a) + exp2(a) * log(a); }, x));
    CHECK(slope_is([](auto a) { return sqrt(a) / (a * a + 1) - 2.0 / a; }, x));
    CHECK(slope_is([](auto a) { return tanh(a) * sin(a) - cos(3 * a); }, x));
    CHECK(slope_is([](auto a) { return fmin(a * a, a + 0.5) + fmax(-a, a - 3); }, x));
    CHECK(slope_is([](auto a) { return fabs(a - 1) + copysign(a * a, 1 - a); }, x));
    CHECK(slope_is([](auto a) { return a > 1 ? a * a : a += 2; }, x));
  }
  static_assert(!std::is_convertible_v<dual<float>, float> && !std::is_constructible_v<float, dual<float>>);
  static_assert(!giwa::detail::has_slope<decltype([](float x, attention_coord) { return x; })>);
  static_assert(giwa::detail::has_slope<decltype([](auto x, attention_coord) { return x * 2; })>);
}

TEST_CASE("check_slope believes the built-in modifiers, and no wrong slope") {
  const float slopes[1] = {0.5f}, values[1] = {3};
  const giwa::bias bias{tensor_view<const float, 4>(values, {1, 1, 1, 1})};
  const attention_coord c{0, 0, 2, 7, 2};
  CHECK(giwa::check_slope(giwa::plain_score{}, c, -20, 20).ok);
  CHECK(giwa::check_slope(giwa::softcap{5}, c, -20, 20).ok);
  CHECK(giwa::check_slope(giwa::alibi{slopes}, c, -20, 20).ok);
  CHECK(giwa::check_slope(bias, c, -20, 20).ok);
  CHECK(giwa::check_slope(giwa::then(giwa::softcap{5}, bias), c, -20, 20).ok);
  CHECK(giwa::check_slope(giwa::then(squashed{}, giwa::softcap{5}), c, -3, 3).ok);
  CHECK(giwa::check_slope(by_hand{}, c, -20, 20).ok);
  struct wrong : by_hand {
    dual<float> value_and_slope(float x, attention_coord) const { return {x * x * 0.25f, 0.4f * x}; }
  };
  const giwa::slope_check found = giwa::check_slope(wrong{}, c, -20, 20);
  CHECK(!found.ok);
  CHECK(std::abs(found.score) == 20);
  for (float x = -60; x <= 60; x += 0.37f) {  // the two forms of softcap agree
    const dual<double> exact = giwa::softcap{5}(dual<double>{static_cast<double>(x), 1.0}, c);
    const dual<float> fast = giwa::softcap{5}.value_and_slope(x, c);
    CHECK(std::abs(static_cast<double>(fast.value) - exact.value) < 5e-6);
    CHECK(std::abs(static_cast<double>(fast.slope) - exact.slope) <= 1e-6);
  }
}
