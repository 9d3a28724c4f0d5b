// SPDX-License-Identifier: MIT
// Random problems of attention on the CPU, by the program that checks the GPU's; and that this program sees what is wrong.
#include <giwa/host.hpp>

#include <cstdlib>

#include "gpu/attention/host_place.hpp"
#include "gpu/attention/instance.hpp"
#include "support/catch.hpp"

using namespace giwa_test::attention;
using giwa::host_t;
using giwa::int64;
using giwa_test::random_sequence;

namespace {

const std::vector<callable<host_t>>& instances() {
  using M = mask_kind;
  using S = score_kind;
  static const auto list =
      list_of<host_t, instance<float, float, 64, 64, M::causal, S::plain>,
              instance<float, fp16, 33, 33, M::window, S::softcap>, instance<fp16, fp16, 64, 64, M::segments, S::plain>,
              instance<fp16, float, 8, 8, M::prefix, S::alibi>, instance<bf16, bf16, 80, 80, M::scattered, S::bias>,
              instance<bf16, float, 1, 1, M::full, S::capped_bias>,
              instance<bf16, fp16, 192, 128, M::causal, S::alibi>>();
  return list;
}

}  // namespace

TEST_CASE("random problems on the CPU") {
  host_place place(int64{64} << 20);
  std::string failures;
  int failed = 0, many = 0, empty = 0, run = 0;
  const char* wanted = std::getenv("GIWA_TEST_SEED");
  for (int64 seed = wanted ? std::atoll(wanted) : 0; seed < (wanted ? std::atoll(wanted) + 1 : 400); ++seed) {
    const auto& one = instances()[static_cast<std::size_t>(seed) % instances().size()];
    const attention_draw d = draw_problem(static_cast<giwa::uint64>(seed), one.types, {.work = 3 << 20});
    const outcome result = run_problem(place, d, [&](const call_arguments& a) { return one.call(giwa::host, a); });
    ++run;
    many += d.scores() >= 1 << 14 ? 1 : 0;
    empty += d.rows() == 0 || d.scores() == 0 ? 1 : 0;
    if (!result.ok() && ++failed <= 10) failures += result.failure + "\n";
  }
  INFO(failures << failed << " of " << run << " failed");
  CHECK(failed == 0);
  if (wanted) return;
  CHECK(many * 5 >= run * 2);
  CHECK(empty * 20 <= run);
}

TEST_CASE("what is wrong is seen") {
  host_place place(int64{64} << 20);
  const auto& one = instances()[2];
  const auto find = [&](auto&& fits) {
    for (giwa::uint64 seed = 1;; ++seed) {
      const attention_draw d = draw_problem(seed, one.types, {.work = 1 << 20});
      if (d.values == value_kind::normal && d.rows() > 8 && d.scores() > 64 && d.has_lse && !d.has_scale && fits(d))
        return d;
    }
  };
  const attention_draw d = find([](const attention_draw& x) { return !x.packed; });
  const auto right = [&](const call_arguments& a) { return one.call(giwa::host, a); };
  CHECK(run_problem(place, d, right).ok());

  const auto spoiled = [&](auto&& spoil) {
    const outcome result = run_problem(place, d, right, spoil);
    return !result.ok() && result.failure.find("seed") != std::string::npos;
  };
  const auto first = [&](const call_arguments& a) { return static_cast<fp16*>(a.o) + d.o.first; };
  const auto change = [](fp16& x, auto&& f) { x = giwa::convert<fp16>{}(f(giwa::convert<float>{}(x))); };
  CHECK(spoiled([&](const call_arguments& a) { change(*first(a), [](float x) { return x + 0.01f; }); }));
  CHECK(spoiled([&](const call_arguments& a) { change(*first(a), [](float) { return HUGE_VALF - HUGE_VALF; }); }));
  CHECK(spoiled([&](const call_arguments& a) { static_cast<fp16*>(a.o)[0] = fp16{}; }));
  CHECK(spoiled([&](const call_arguments& a) { static_cast<fp16*>(a.o)[d.o.size - 1] = fp16{}; }));
  CHECK(spoiled([&](const call_arguments& a) { a.lse[d.lse.first] += 0.01f; }));
  CHECK(spoiled([&](const call_arguments& a) { a.lse[d.lse.first] = -HUGE_VALF; }));
  CHECK(spoiled([&](const call_arguments& a) { a.lse[0] = 0; }));

  const auto changed = [&](const attention_draw& e, auto&& f) {
    attention_draw other = e;
    f(other);
    return !run_problem(place, e, [&](call_arguments a) {
              a.draw = &other;
              return one.call(giwa::host, a);
            }).ok();
  };
  CHECK(changed(d, [](attention_draw& x) { x.has_scale = true, x.scale = 0.2f; }));
  CHECK(changed(d, [](attention_draw& x) { x.has_lse = false; }));
  CHECK(changed(d, [](attention_draw& x) { x.has_sinks = !x.has_sinks; }));
  CHECK(changed(d, [](attention_draw& x) { x.o.extent[1] -= 1, x.q.extent[1] -= 1; }));  // refused: lse has more rows
  CHECK(
      changed(find([](const attention_draw& x) { return !x.packed && x.seq_q + 4 < x.seq_k; }), [](attention_draw& x) {
        x.align = x.align == giwa::alignment::top_left ? giwa::alignment::bottom_right : giwa::alignment::top_left;
      }));
  CHECK(changed(find([](const attention_draw& x) { return x.heads == 6 && x.kv_heads == 3 && x.k.stride[2] != 0; }),
                [](attention_draw& x) { x.k.stride[2] = 0; }));
}

TEST_CASE("the check of a row agrees with the reference and with judge_attention") {
  // By hand: two keys with scores 0 and log 3, values 1 and 5: 1/4 + 15/4.
  const float q[1] = {1}, k[2] = {0, std::log(3.0f)}, v[2] = {1, 5};
  float o = 4, lse = std::log(4.0f);
  const sequence_rows rows{0, 1, 0, 2, 0, 0};
  located_problem p{};
  p.types = {element::of_fp32, element::of_fp32, 1, 1, mask_kind::full, score_kind::plain};
  p.q = {const_cast<float*>(q), {0, 0, 0, 1}};
  p.k = {const_cast<float*>(k), {0, 1, 0, 1}};
  p.v = {const_cast<float*>(v), {0, 1, 0, 1}};
  p.o = {&o, {0, 0, 0, 1}};
  p.lse = {&lse, {0, 0, 0, 1}};
  p.sequences = &rows;
  p.batch = p.heads = p.kv_heads = 1;
  p.has_lse = true;
  p.scale = 1;
  key_score scores[2];
  const row_finding f = check_row<float>(one_lane{}, p, 0, scores);
  CHECK(std::fabs(f.wanted - (4)) < 1e-5);
  CHECK(std::fabs(f.plain - (4)) < 1e-5);
  CHECK(std::fabs(f.lse - (std::log(4.0))) < 1e-5);
  CHECK(std::fabs(f.sum - (4)) < 1e-5);
  CHECK(std::fabs(f.root - (std::sqrt(1.0 / 16 + 225.0 / 16))) < 1e-5);
  CHECK(f.lse_error < 1e-6);
  CHECK(f.wrong_kind == 0);
}

TEST_CASE("an infinite value is NaN only where its weight may be flushed to 0") {
  // Two keys without a score, the second value infinite, beside a sink: the weight of each key is e^-sink.
  const float q[1] = {1}, k[2] = {0, 0}, v[2] = {1, HUGE_VALF}, slopes[1] = {0};
  const sequence_rows rows{0, 1, 0, 2, 0, 0};
  located_problem p{};
  p.types = {element::of_fp32, element::of_fp32, 1, 1, mask_kind::full, score_kind::plain};
  p.q = {const_cast<float*>(q), {0, 0, 0, 1}};
  p.k = {const_cast<float*>(k), {0, 1, 0, 1}};
  p.v = {const_cast<float*>(v), {0, 1, 0, 1}};
  p.sequences = &rows, p.slopes = slopes;
  p.batch = p.heads = p.kv_heads = 1;
  p.has_sinks = true;
  p.scale = 1;
  const auto accepts = [&](float sink, float got) {
    p.sinks = &sink;
    p.o = {&got, {0, 0, 0, 1}};
    key_score scores[2];
    return check_row<float>(one_lane{}, p, 0, scores).wrong_kind == 0;
  };
  const float nan = HUGE_VALF - HUGE_VALF;
  for (const float sink : {0.0f, 80.0f, 86.0f, 88.0f, 100.0f, 103.3f, 200.0f}) {
    CAPTURE(sink);
    CHECK(accepts(sink, HUGE_VALF));
    CHECK(accepts(sink, nan) == (sink > 87));  // e^-87.3 is 2^-126
    CHECK_FALSE(accepts(sink, 1.0f));
    CHECK_FALSE(accepts(sink, -HUGE_VALF));
  }
}

TEST_CASE("a row far below its sink has infinite values") {
  // 76 keys with scores about -95 beside a sink of 0; the weight of the infinite value is 2^-149.2.
  using one = instance<float, float, 160, 160, mask_kind::prefix, score_kind::alibi>;
  const attention_draw d =
      draw_problem(1'000'279, one::types, {.work = int64{1} << 28, .seq_q = 1023, .seq_k = 175, .ratio = 8});
  host_place place(int64{64} << 20);
  CHECK(run_problem(place, d, [&](const call_arguments& a) { return one::call(giwa::host, a); }).failure == "");
}

TEST_CASE("the rule allows twice the plain program's error, and not three times") {
  const auto& one = instances()[2];
  attention_draw d = draw_problem(1, one.types, {.seq_q = 200, .seq_k = 200, .ratio = 1, .plain_layout = true});
  std::vector<row_finding> rows(static_cast<std::size_t>(d.rows()));
  const double width = d.types.head_size_v, unit = ulp_of(d.types.input, 1);
  const auto all = [&](double plain, double error) {
    for (row_finding& f : rows) {
      f = {};
      f.largest = 1, f.plain_error = plain, f.error = error;
      f.plain_squares = plain * plain * width, f.error_squares = error * error * width;
    }
    return judge(d, rows).empty();
  };
  CHECK(all(0, 0));
  CHECK(all(4 * unit, 8 * unit));
  CHECK_FALSE(all(4 * unit, 12 * unit));
  CHECK(all(0, 0.99 * unit));
  CHECK_FALSE(all(0, 1.2 * unit));
  const auto with_one = [&](auto&& change) {
    static_cast<void>(all(unit, unit));
    change(rows[rows.size() / 2]);
    return judge(d, rows).empty();
  };
  CHECK(with_one([](row_finding&) {}));
  CHECK_FALSE(with_one([](row_finding& f) { f.wrong_kind = 1; }));
  CHECK_FALSE(with_one([](row_finding& f) { f.wrong_lse = true; }));
  CHECK_FALSE(with_one([](row_finding& f) { f.lse_error = 1e-5; }));
  CHECK_FALSE(with_one([&](row_finding& f) { f.error = 4 * unit; }));
  CHECK_FALSE(with_one([&](row_finding& f) { f.error_squares = 16 * unit * unit * width; }));
  CHECK_FALSE(with_one([&](row_finding& f) { f.error_without_plain = 5 * unit; }));
  CHECK_FALSE(with_one([](row_finding& f) { f.error = HUGE_VAL - HUGE_VAL, f.error_squares = f.error; }));
}
