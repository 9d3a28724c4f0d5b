// SPDX-License-Identifier: MIT
// The tolerance of attention itself: what it lets pass and what it must not.
#include "support/attention.hpp"

#include "support/catch.hpp"

namespace {

using namespace giwa_test;
using giwa::fp16;

/// Scores of up to 40, whose rounding to fp16 is what the plain implementation's error comes from.
struct prepared {
  attention_case<fp16> problem;
  attention_answers answers;
  prepared() : problem(options()), answers(answers_of(problem, giwa::full{}, giwa::plain_score{})) {}
  static case_options options() {
    case_options c;
    c.heads = 2;
    c.seq_q = 40;
    c.seq_k = 150;
    c.head_size = c.head_size_v = 32;
    c.spread = 3;
    return c;
  }
  attention_verdict judge(const std::vector<double>& got) const {
    return judge_attention<fp16, fp16>(32, got, answers.o, answers.plain, answers.scales);
  }
  /// The reference, and `factor` times the plain implementation's error.
  std::vector<double> away(double factor) const {
    std::vector<double> got = answers.o;
    for (std::size_t i = 0; i < got.size(); ++i) got[i] += factor * (answers.plain[i] - answers.o[i]);
    return got;
  }
};

}  // namespace

TEST_CASE("twice the plain implementation's error passes and three times fails") {
  const prepared p;
  CHECK(p.judge(p.answers.o).ok());
  CHECK(p.judge(p.answers.plain).ok());
  CHECK(p.judge(p.away(1.9)).ok());
  CHECK_FALSE(p.judge(p.away(3)).ok());
  CHECK_FALSE(p.judge(p.away(-3)).ok());
  CHECK_FALSE(p.judge(p.away(100)).ok());
}

TEST_CASE("fp32: a score may be off by the rounding errors of its sum, and not by seven times as much") {
  // Beside a sink, o is p v; a score of one key that is off by e makes it (1 + (1 - p) e) p v. Sums of 64 products were off by
  // up to 57 units of 2^-24 in attention_cached where q and k had a deviation of 4. That grows with its square.
  for (const double spread : {1.0, 4.0}) {
    case_options c;
    c.seq_q = 80, c.seq_k = 1, c.head_size = 64, c.head_size_v = 16, c.spread = spread, c.sinks = true;
    attention_case<float> problem(c);
    const attention_answers a = answers_of(problem, giwa::full{}, giwa::plain_score{});
    const double v = static_cast<double>(problem.v.view()(0, 0, 0, 0));
    int small_weights = 0;
    for (std::size_t row = 0; row < 80; ++row) {
      const double p = a.o[16 * row] / v;
      const auto passes = [&](double units) {
        std::vector<double> got = a.o;
        for (std::size_t i = 16 * row; i < 16 * row + 16; ++i) got[i] *= 1 + (1 - p) * units * 0x1p-24;
        return judge_attention<float, float>(16, got, a.o, a.plain, a.scales).ok();
      };
      const double units = spread == 1 ? 12 : 60;
      CHECK(passes(units));
      CHECK(passes(-units));
      if (p > 0.5 || p < 1e-30) continue;  // fp32 has fewer digits of a smaller p
      CHECK_FALSE(passes(7 * units));
      CHECK_FALSE(passes(-7 * units));
      small_weights += p < 1e-6 ? 1 : 0;
    }
    CHECK(small_weights >= (spread == 1 ? 0 : 10));
  }
}

TEST_CASE("one element, one row, or one value that is not finite fails") {
  const prepared p;
  for (const std::size_t at : {std::size_t{0}, std::size_t{1000}, p.answers.o.size() - 1}) {
    for (const double wrong : {0.25, -0.25, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      std::vector<double> got = p.answers.o;
      got[at] += wrong;
      CHECK_FALSE(p.judge(got).ok());
    }
  }
  std::vector<double> got = p.answers.o;
  for (std::size_t i = 0; i < 32; ++i) std::swap(got[i], got[32 + i]);  // two rows exchanged
  CHECK_FALSE(p.judge(got).ok());
  CHECK_FALSE(p.judge(std::vector<double>(got.size(), 0.0)).ok());
}

TEST_CASE("the answer of another problem fails: one key too many, another scale, another mask") {
  prepared p;
  for (const int which : {0, 1, 2}) {
    attention_case<fp16> other(prepared::options());
    if (which == 0) other.k.extents[1] = other.v.extents[1] = 149;
    if (which == 1) other.options.scale = 0.18;  // for 1 / sqrt(32) = 0.1768
    const auto wrong = which == 2 ? answers_of(other, giwa::causal::bottom_right, giwa::plain_score{})
                                  : answers_of(other, giwa::full{}, giwa::plain_score{});
    CHECK_FALSE(p.judge(wrong.o).ok());
  }
}

TEST_CASE("what is not finite must be the same") {
  const double nan = std::nan(""), inf = HUGE_VAL;
  const std::vector<row_scale> one{{1, 1, 1}};
  const auto ok = [&](double got, double reference, double plain) {
    return judge_attention<fp16, fp16>(1, {got}, {reference}, {plain}, one).ok();
  };
  CHECK(ok(nan, nan, nan));
  CHECK_FALSE(ok(0, nan, nan));
  CHECK_FALSE(ok(inf, nan, nan));
  CHECK(ok(inf, inf, inf));
  CHECK(ok(nan, inf, nan));  // 0 * inf, where a weight vanishes in fp32
  CHECK_FALSE(ok(nan, inf, inf));
  CHECK_FALSE(ok(-inf, inf, nan));
  CHECK(ok(inf, 70000, inf));  // too large for fp16
  CHECK_FALSE(ok(inf, 60000, 60000));
  CHECK(ok(1, 1, nan));  // a score that fp16 does not hold: 4 ulp
  CHECK(ok(1.0039, 1, nan));
  CHECK_FALSE(ok(1.0049, 1, nan));
  CHECK_FALSE(ok(nan, 1, nan));
}

TEST_CASE("the tolerance of the lse") {
  const std::vector<row_scale> one{{1, 1, 5}};
  const float inf = HUGE_VALF;
  const auto ok = [&](float got, float reference, float plain) {
    return judge_lse({got}, {reference}, {plain}, one).ok();
  };
  CHECK(ok(7.000001f, 7, 7));
  CHECK_FALSE(ok(7.00001f, 7, 7));
  CHECK_FALSE(ok(NAN, 7, 7));
  CHECK_FALSE(ok(inf, 7, 7));
  CHECK(ok(-inf, -inf, -inf));
  CHECK_FALSE(ok(-3e38f, -inf, -inf));
  CHECK_FALSE(ok(NAN, -inf, -inf));
  CHECK(ok(NAN, NAN, NAN));
  CHECK_FALSE(ok(0, NAN, NAN));
  CHECK(ok(-3e38f, -3e38f, -3e38f));

  // One key, whose score of -0.75 is what is left of partial sums of 10.
  const auto left = [&](float got, float moved) {
    row_scale scale{1, 1, 0.75f};
    scale.moved_lse = moved;
    return judge_lse({got}, {-0.752245784f}, {-0.752245843f}, {scale}).ok();
  };
  CHECK(left(-0.752245247f, 9.75f));
  CHECK_FALSE(left(-0.752245247f, 0));
  CHECK_FALSE(left(-0.7522f, 9.75f));
}
