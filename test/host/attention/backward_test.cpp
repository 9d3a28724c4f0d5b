// SPDX-License-Identifier: MIT
// attention_backward on the CPU against the reference: masks, scores, heads, lengths, types, head sizes, layouts,
// hostile numbers.
#include <giwa/attention/work/backward_schedules.hpp>
#include <giwa/base/throw.hpp>
#include <giwa/host.hpp>

#include <set>

#include "gpu/attention/backward_draw.hpp"
#include "support/backward_case.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/same_bits.hpp"

namespace {

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;

struct variation {
  bool dlse = false, accumulate = false, q = true, k = true, v = true;
};

template <class T, int HeadSize, int HeadSizeV = HeadSize, class O = T, class G = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string fault_of(case_options options, const Mask& mask = {}, const Score& score = {}, variation v = {}) {
  options.head_size = HeadSize;
  options.head_size_v = HeadSizeV;
  backward_case<T, O, G> c(options);
  c.has_dlse = v.dlse, c.accumulate = v.accumulate, c.wants_q = v.q, c.wants_k = v.k, c.wants_v = v.v;
  const backward_answers a = answers_of(c, mask, score);
  c.clear_outputs();
  const giwa::status s = backward_of<HeadSize, HeadSizeV>(giwa::host, c.views(), mask, score, c.call_options());
  if (!s.ok()) return std::string(giwa::format_status(s).c_str()) + "; " + c.of.options.text();
  return judge(c, a);
}

case_options sizes(int64 batch, int64 heads, int64 kv_heads, int64 queries, int64 keys) {
  case_options c;
  c.batch = batch, c.heads = heads, c.kv_heads = kv_heads, c.seq_q = queries, c.seq_k = keys;
  return c;
}

}  // namespace

TEST_CASE("lengths around the tile sizes") {
  constexpr int64 lengths[] = {1, 23, 64, 65, 97, 130};
  for (const int64 q : lengths)
    for (const int64 k : lengths) {
      case_options c = sizes(1, 1 + (q + k) % 2, 1, q, k);
      c.seed = static_cast<giwa::uint64>(100 * q + k);
      CHECK(fault_of<float, 20>(c) == "");
      CHECK(fault_of<float, 20>(c, q % 2 == 0 ? causal::top_left : causal::bottom_right) == "");
    }
  CHECK(fault_of<float, 20>(sizes(1, 1, 1, 0, 70)) == "");
  CHECK(fault_of<float, 20>(sizes(2, 1, 1, 70, 0)) == "");
  CHECK(fault_of<float, 20>(sizes(1, 2, 1, 420, 400), causal::bottom_right) == "");
}

TEST_CASE("types, head sizes, masks, score modifiers, groups of heads") {
  const float slopes[6] = {0.5f, 0.25f, 0.125f, 1, 0.03f, 0.2f};
  std::vector<int> ids(160);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i * i % 3);
  for (int i = 0; i < 4; ++i) {
    case_options c = sizes(2, 6, i % 2 == 0 ? 2 : 6, 70 + 10 * i, i < 2 ? 100 : 70 + 10 * i);
    c.seed = static_cast<giwa::uint64>(i);
    c.align = giwa::alignment::bottom_right;
    c.sinks = i % 2 == 1;
    c.spread = i == 3 ? 3 : 1;
    for (std::size_t t = 0; t < 4; ++t) c.layout[t] = static_cast<case_layout>((i + static_cast<int>(t)) % 6);
    c.offset = i;
    if (i == 2) c.scale = -0.3;
    const variation v{i != 1, i == 1};
    CHECK(fault_of<float, 33>(c, giwa::sliding_window{40} | giwa::prefix{9}, wavy_score{}, v) == "");
    CHECK(fault_of<fp16, 24, 40>(c, causal{}, giwa::softcap{2}, {i != 2}) == "");
    CHECK(fault_of<bf16, 64, 64, bf16, float>(c, scattered_mask{}, giwa::alibi{slopes}, v) == "");
    if (i >= 2) CHECK(fault_of<fp16, 72, 8, float, fp16>(c, giwa::segment_ids{ids.data(), ids.data(), 0, 0}) == "");
  }
  case_options large = sizes(1, 2, 1, 40, 30);
  CHECK(fault_of<fp16, 512>(large, causal::bottom_right, giwa::softcap{2}) == "");
  CHECK(fault_of<float, 1, 300>(large) == "");
}

TEST_CASE("dropout, with groups of heads, a custom modifier and packed sequences") {
  for (int i = 0; i < 3; ++i) {
    case_options c = sizes(2, 6, i == 0 ? 6 : 2, 70 + 30 * i, 100);
    c.align = giwa::alignment::bottom_right;
    c.sinks = i == 1;
    if (i == 2) c.q_lengths = {50, 0, 110}, c.k_lengths = {64, 9, 130};
    CHECK(fault_of<float, 20>(c, causal{}, giwa::dropout(i == 1 ? 0.5f : 0.1f, 3, giwa::softcap{2}),
                              {i != 1, i == 1}) == "");
  }
}

TEST_CASE("dq may be off by what the rounding of o does to it, and not by four times as much") {
  // The row's softmax is nearly all at one key, so that dP - delta is 1.4 % of both: o as fp16 moves dq by 2.2 %.
  backward_case<fp16> c(giwa_test::attention::draw_backward(1769, 256, 256));
  giwa_test::attention::draw_backward_outputs(1769, c);
  const backward_answers answers = answers_of(c, causal{}, giwa::softcap{5});
  c.clear_outputs();
  REQUIRE((backward_of<256, 256>(giwa::host, c.views(), causal{}, giwa::softcap{5}, c.call_options()).ok()));
  CHECK(judge(c, answers) == "");
  fp16& x = *(&c.dq.view()(0, 0, 0, 0) + 231);
  x = giwa::convert<fp16>{}(giwa::convert<float>{}(x) + 0.01f);
  CHECK(judge(c, answers) != "");
}

TEST_CASE("a gradient that is not wanted is not written") {
  for (int i = 0; i < 8; ++i)
    CHECK(fault_of<float, 20>(sizes(1, 2, 2, 70, 90), giwa::full{}, giwa::plain_score{},
                              {true, false, (i & 1) != 0, (i & 2) != 0, (i & 4) != 0}) == "");
}

namespace {

/// The gradients if all are wanted, which one thread computes for a head, and if dq is apart from dk and dv.
template <class T, class Mask, class Score>
void test_bits_of_all(case_options o, const Mask& mask, const Score& score, bool hostile) {
  o.head_size = o.head_size_v = 20;
  backward_case<T> c(o);
  if (hostile)
    for (const int64 row : {3, 70, 130}) {
      const auto bad = giwa::convert<T>{}(row == 70 ? NAN : HUGE_VALF);
      c.of.k.view()(0, row, 1, 5) = bad, c.of.v.view()(0, row + 1, 0, 7) = bad, c.of.q.view()(0, row + 2, 2, 0) = bad;
      c.dout.view()(0, row + 3, 1, 3) = bad;
    }
  run_forward(c, mask, score);
  const auto run = [&](bool q, bool k_and_v) {
    c.clear_outputs();
    c.wants_q = q, c.wants_k = c.wants_v = k_and_v;
    REQUIRE((backward_of<20, 20>(giwa::host, c.views(), mask, score, c.call_options()).ok()));
    return std::tuple(c.dq.memory, c.dk.memory, c.dv.memory);
  };
  const auto [dq, dk, dv] = run(true, true);
  CHECK(same_bits(std::get<0>(run(true, false)), dq));
  const auto [unused, only_dk, only_dv] = run(false, true);
  CHECK((same_bits(only_dk, dk) && same_bits(only_dv, dv)));
}

}  // namespace

TEST_CASE("all gradients together have the bits of each alone") {
  case_options o = sizes(2, 4, 2, 150, 210);
  o.align = giwa::alignment::bottom_right;
  for (const bool hostile : {false, true}) {
    test_bits_of_all<float>(o, causal{}, giwa::softcap{2}, hostile);
    test_bits_of_all<fp16>(o, scattered_mask{}, giwa::dropout(0.2f, 3), hostile);
    test_bits_of_all<float>(o, giwa::full{}, giwa::plain_score{}, hostile);
  }
  o.q_used = {100, 150}, o.k_used = {210, 65};
  test_bits_of_all<float>(o, causal{}, wavy_score{}, false);
  o = sizes(1, 2, 1, 0, 0);
  o.q_lengths = {50, 0, 110, 3, 66}, o.k_lengths = {64, 9, 0, 200, 130};
  test_bits_of_all<float>(o, giwa::full{}, giwa::plain_score{}, false);
}

TEST_CASE("packed sequences, lengths, and keys by index") {
  const std::vector<int64> few{0, 1, 64, 0, 130, 7}, other{3, 0, 65, 0, 100, 64};
  for (int i = 0; i < 8; ++i) {
    case_options c;
    c.seed = static_cast<giwa::uint64>(i);
    c.heads = 4, c.kv_heads = i % 3 == 0 ? 4 : 2;
    c.sinks = i % 2 == 1;
    c.align = i < 4 ? giwa::alignment(giwa::alignment::bottom_right) : giwa::alignment::offset(20);
    if (i % 4 < 2) {
      c.q_lengths = i % 2 == 0 ? few : other, c.k_lengths = i / 4 == 0 ? few : other;
    } else {
      c.batch = 6, c.seq_q = 130, c.seq_k = 140;
    }
    if (i % 2 == 1) c.q_used = {0, -5, 64, 1000, 99, 3}, c.k_used = {131, 7, 0, 200, 90, 60};
    if (i % 4 == 2 || i == 5) c.k_index = {4, 4, -1, 1, 6, 4}, c.k_batch = 6;  // 6 and -1 are none
    CHECK(fault_of<float, 20>(c, causal{}, giwa::plain_score{}, {i % 2 == 0, i % 3 == 1}) == "");
  }
}

TEST_CASE("of the readers of the same keys any may be the longest") {
  for (const int64 most : {20, 64, 150})
    for (const std::vector<int>& keys : {std::vector<int>{1, 2, 0}, {2, 1, 0}, {1, 0, 2}, {2, 2, 1}}) {
      case_options c = sizes(3, 4, 2, 30, most);
      c.k_index = {1, 1, 1}, c.k_batch = 2;
      c.q_used = {30, 7, 30};
      for (const int n : keys) c.k_used.push_back(static_cast<int>(most * n / 2));
      CHECK(fault_of<float, 20>(c) == "");
      CHECK(fault_of<float, 20>(c, giwa::full{}, wavy_score{}, {.q = false}) == "");
    }
}

TEST_CASE("sinks and their gradients may have any stride") {
  case_options o = sizes(2, 4, 2, 7, 9);
  o.head_size = o.head_size_v = 20, o.sinks = true;
  backward_case<float> plain(o), strided(o);
  std::vector<float> sinks(12, NAN), dsinks(12, -1);
  for (std::size_t h = 0; h < 4; ++h) sinks[3 * h] = plain.of.sinks.view()(static_cast<int64>(h));
  auto options = strided.call_options();
  options.sinks = {sinks.data(), {4}, {3}}, options.dsinks = {dsinks.data() + 9, {4}, {-3}};
  for (auto* c : {&plain, &strided}) run_forward(*c, giwa::full{}, giwa::plain_score{});
  REQUIRE(backward_of<20, 20>(giwa::host, plain.views(), giwa::full{}, giwa::plain_score{}, plain.call_options()).ok());
  REQUIRE(backward_of<20, 20>(giwa::host, strided.views(), giwa::full{}, giwa::plain_score{}, options).ok());
  CHECK(same_bits(plain.dq.memory, strided.dq.memory));
  for (std::size_t h = 0; h < 4; ++h) CHECK(dsinks[9 - 3 * h] == plain.dsinks.view()(static_cast<int64>(h)));
  CHECK((dsinks[1] == -1 && dsinks[11] == -1));
}

TEST_CASE("gradients of parameters may have any strides") {
  case_options o = sizes(2, 4, 2, 7, 9);
  o.head_size = o.head_size_v = 20;
  backward_case<float> c(o);
  run_forward(c, giwa::full{}, giwa::plain_score{});
  trained_parameters trained(4);
  const auto run = [&](const tensor_view<float, 2>& to) {
    const trained_score<> score{trained.values.data(), to};
    return backward_of<20, 20>(giwa::host, c.views(), giwa::full{}, score, c.call_options());
  };
  std::vector<float> plain(8, NAN), strided(40, -1);
  REQUIRE(run({plain.data(), {4, 2}}).ok());
  for (const auto& [strides, first] : {std::pair<giwa::index<2>, int64>{{7, 3}, 0}, {{1, 5}, 2}, {{-3, 1}, 20}}) {
    const tensor_view<float, 2> to(strided.data() + first, {4, 2}, strides);
    REQUIRE(run(to).ok());
    for (int64 h = 0; h < 4; ++h)
      for (int64 i = 0; i < 2; ++i) CHECK(to(h, i) == plain[static_cast<std::size_t>(2 * h + i)]);
  }
}

TEST_CASE("numbers that a pair does not see do not reach it") {
  const case_options o = segments_case();
  backward_case<float> clean(o);
  const auto run = [](backward_case<float>& c) {
    run_forward(c, segments_mask{}, giwa::plain_score{});
    return backward_of<20, 20>(giwa::host, c.views(), segments_mask{}, giwa::plain_score{}, c.call_options()).ok();
  };
  REQUIRE(run(clean));
  for (const float bad : {NAN, HUGE_VALF, 3e38f}) {
    backward_case<float> c(o);
    poison_segment(c, bad);
    REQUIRE(run(c));
    CHECK(different_outside_segment(c, clean) == 0);
  }
}

TEST_CASE("rows that see nothing may hold anything and have gradients of 0") {
  case_options o = sizes(1, 1, 1, 100, 60);  // bottom_right: the first 40 queries see no key
  o.head_size = o.head_size_v = 20;
  o.align = giwa::alignment::bottom_right;
  backward_case<float> clean(o), c(o);
  for (int64 row = 0; row < 40; ++row)
    for (int64 i = 0; i < 20; ++i) c.of.q.view()(0, row, 0, i) = c.dout.view()(0, row, 0, i) = NAN;
  for (auto* each : {&clean, &c}) {
    run_forward(*each, causal{}, giwa::plain_score{});
    REQUIRE(backward_of<20, 20>(giwa::host, each->views(), causal{}, giwa::plain_score{}, each->call_options()).ok());
  }
  CHECK(c.dq.elements<float>() == clean.dq.elements<float>());
  CHECK(c.dk.elements<float>() == clean.dk.elements<float>());
  CHECK(c.dv.elements<float>() == clean.dv.elements<float>());
  for (int64 i = 0; i < 20; ++i) CHECK(clean.dq.view()(0, 39, 0, i) == 0);
}

TEST_CASE("rows that a finite number masks as a whole have the gradients of rows without keys") {
  case_options o = sizes(2, 2, 1, 70, 90);
  o.head_size = o.head_size_v = 20;
  o.align = giwa::alignment::bottom_right;
  backward_case<float> expected(o), c(o);
  const auto compute = [](backward_case<float>& of, float least) {
    run_forward(of, causal{}, rows_masked_by{least});
    of.clear_outputs();
    const giwa::status s =
        backward_of<20, 20>(giwa::host, of.views(), causal{}, rows_masked_by{least}, of.call_options());
    REQUIRE(s.ok());
  };
  compute(expected, -INFINITY);
  CHECK(expected.dq.view()(1, 1, 1, 3) == 0);
  CHECK(expected.dq.view()(1, 2, 1, 3) != 0);
  for (const float least : {-1e9f, std::numeric_limits<float>::lowest()}) {
    compute(c, least);
    CHECK(same_bits(c.dq.elements<float>(), expected.dq.elements<float>()));
    CHECK(same_bits(c.dk.elements<float>(), expected.dk.elements<float>()));
    CHECK(same_bits(c.dv.elements<float>(), expected.dv.elements<float>()));
  }
}

TEST_CASE("dropout alone masks no row of large scores") {
  case_options o = sizes(1, 1, 1, 1, 1);
  o.head_size = o.head_size_v = 20;
  backward_case<float> c(o);
  c.of.q.fill(0), c.of.k.fill(0);
  c.of.q.view()(0, 0, 0, 0) = -1e5f, c.of.k.view()(0, 0, 0, 0) = 1e5f;
  float sum = 0;
  for (giwa::uint64 seed = 0; seed < 8; ++seed) {  // the weight, 1, is kept with some of these seeds
    const auto some = giwa::dropout(0.5f, seed);
    run_forward(c, giwa::full{}, some);
    c.clear_outputs();
    REQUIRE(backward_of<20, 20>(giwa::host, c.views(), giwa::full{}, some, c.call_options()).ok());
    const float dv = c.dv.view()(0, 0, 0, 0), dout = c.dout.view()(0, 0, 0, 0);
    CHECK((dv == 0 || dv == 2 * dout));
    sum += std::abs(dv);
  }
  CHECK(sum > 0);
}

TEST_CASE("a bias receives its gradient") {
  case_options o = sizes(2, 2, 1, 70, 90);
  o.head_size = o.head_size_v = 20;
  o.align = giwa::alignment::bottom_right;
  std::vector<float> values(2 * 2 * 70 * 90), gradient(values.size(), 0.0f), expected(values.size(), 0.0f);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(normal_at(giwa::philox(9), static_cast<giwa::uint64>(i)));
  backward_case<float> c(o);
  const auto score = [&](std::vector<float>& to) {
    const giwa::index<4> shape{2, 2, 70, 90};
    return giwa::then(giwa::softcap{3}, giwa::bias_with_gradient(tensor_view<const float, 4>(values.data(), shape),
                                                                 tensor_view<float, 4>(to.data(), shape)));
  };
  const backward_answers a = answers_of(c, causal{}, score(expected));
  c.clear_outputs();
  c.wants_q = false;
  REQUIRE(backward_of<20, 20>(giwa::host, c.views(), causal{}, score(gradient), c.call_options()).ok());
  CHECK(judge(c, a) == "");
  double worst = 0;
  int64 written = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(gradient[i]) - static_cast<double>(expected[i])));
    written += gradient[i] != 0 ? 1 : 0;
  }
  CHECK(worst < 1e-5);
  CHECK(written > 10000);
}

TEST_CASE("a bias that sequences or heads share receives the sum of the gradients") {
  case_options o = sizes(3, 4, 2, 70, 90);
  o.head_size = o.head_size_v = 20;
  o.align = giwa::alignment::bottom_right;
  backward_case<float> c(o);
  for (const giwa::index<4> shape : {giwa::index<4>{1, 4, 70, 90}, {3, 1, 70, 90}, {1, 1, 70, 90}}) {
    std::vector<float> values(static_cast<std::size_t>(3 * 4 * 70 * 90)), sum(values.size(), 0.0f),
        each(values.size(), 0.0f);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(normal_at(giwa::philox(9), static_cast<giwa::uint64>(i)));
    const tensor_view<const float, 4> shared(values.data(), shape);
    const tensor_view<float, 4> shared_gradient(sum.data(), shape), gradient(each.data(), {3, 4, 70, 90});
    const tensor_view<const float, 4> expanded(
        values.data(), gradient.extents(),
        {shape[0] == 1 ? 0 : shared.stride(0), shape[1] == 1 ? 0 : shared.stride(1), 90, 1});
    run_forward(c, causal{}, giwa::bias(shared));
    const auto run = [&](const auto& score) {
      return backward_of<20, 20>(giwa::host, c.views(), causal{}, score, c.call_options()).ok();
    };
    REQUIRE(run(giwa::bias_with_gradient(shared, shared_gradient)));
    REQUIRE(run(giwa::bias_with_gradient(expanded, gradient)));
    double worst = 0, largest = 0;
    for (int64 b = 0; b < shape[0]; ++b)
      for (int64 h = 0; h < shape[1]; ++h)
        for (int64 i = 0; i < 70 * 90; ++i) {
          double expected = 0;
          for (int64 b2 = b; b2 < (shape[0] == 1 ? 3 : b + 1); ++b2)
            for (int64 h2 = h; h2 < (shape[1] == 1 ? 4 : h + 1); ++h2)
              expected += static_cast<double>(gradient(b2, h2, i / 90, i % 90));
          worst = std::max(worst, std::abs(expected - static_cast<double>(shared_gradient(b, h, i / 90, i % 90))));
          largest = std::max(largest, std::abs(expected));
        }
    CHECK(worst < 1e-5);
    CHECK(largest > 0.1);
  }
}

TEST_CASE("the two biases of Evoformer are a bias of keys and one of pairs that sequences share") {
  case_options o = sizes(3, 2, 2, 40, 50);
  o.head_size = o.head_size_v = 20;
  backward_case<float> c(o);
  std::vector<float> of_keys(3 * 50), pairs(2 * 40 * 50), expected(pairs.size(), 0.0f), sums(pairs.size(), 0.0f);
  for (std::size_t i = 0; i < pairs.size(); ++i)
    pairs[i] = static_cast<float>(normal_at(giwa::philox(9), static_cast<giwa::uint64>(i)));
  for (std::size_t i = 0; i < of_keys.size(); ++i) of_keys[i] = i % 50 < 40 - i / 50 ? 0.0f : -1e9f;
  const auto modifier = giwa::evoformer_bias(tensor_view<const float, 2>(of_keys.data(), {3, 50}),
                                             tensor_view<const float, 3>(pairs.data(), {2, 40, 50}),
                                             tensor_view<float, 3>(sums.data(), {2, 40, 50}));
  const giwa::index<4> shape{1, 2, 40, 50};
  const auto by_hand = giwa::then(giwa::bias(tensor_view<const float, 4>(of_keys.data(), {3, 1, 1, 50})),
                                  giwa::bias_with_gradient(tensor_view<const float, 4>(pairs.data(), shape),
                                                           tensor_view<float, 4>(expected.data(), shape)));
  run_forward(c, giwa::full{}, modifier);
  REQUIRE(backward_of<20, 20>(giwa::host, c.views(), giwa::full{}, modifier, c.call_options()).ok());
  REQUIRE(backward_of<20, 20>(giwa::host, c.views(), giwa::full{}, by_hand, c.call_options()).ok());
  CHECK(sums == expected);
  double largest = 0;
  for (int64 i = 0; i < 40; ++i) {
    CHECK(sums[static_cast<std::size_t>(i * 50 + 41)] == 0);  // a key that no sequence sees
    largest = std::max(largest, std::abs(static_cast<double>(sums[static_cast<std::size_t>(i * 50 + 7)])));
  }
  CHECK(largest > 0.01);
}

TEST_CASE("parameters of a score modifier receive their gradients") {
  for (int i = 0; i < 4; ++i) {
    case_options o = sizes(2, 4, 2, 130, i == 0 ? 130 : 100);
    o.head_size = 20, o.head_size_v = 12, o.align = giwa::alignment::bottom_right, o.sinks = i == 1;
    if (i == 2) o.q_lengths = {0, 70, 40}, o.k_lengths = {9, 80, 0};
    if (i == 3) o.q_used = {130, 40}, o.k_used = {70, 100}, o.k_index = {1, 1};
    backward_case<float> c(o);
    c.has_dlse = i == 1, c.accumulate = i == 3, c.wants_q = i != 0;
    trained_parameters got(o.heads), expected(o.heads);
    if (c.accumulate) got.gradients.assign(got.gradients.size(), 0.5f), expected.gradients = got.gradients;
    const backward_answers a = answers_of(c, causal{}, expected.score());
    c.clear_outputs();
    REQUIRE(backward_of<20, 12>(giwa::host, c.views(), causal{}, got.score(), c.call_options()).ok());
    CHECK(judge(c, a) == "");
    CHECK(got.fault(expected, 1e-5) == "");
  }
}

TEST_CASE("sinks of a call without sequences have gradients of 0") {
  case_options o = sizes(1, 2, 1, 7, 9);
  o.head_size = o.head_size_v = 20, o.sinks = true;
  backward_case<float> c(o);
  c.clear_outputs();
  auto none = c.views();
  const auto cut = [](auto& v) { v = {v.data(), {0, v.extent(1), v.extent(2), v.extent(3)}, v.strides()}; };
  cut(none.in.q), cut(none.in.k), cut(none.in.v), cut(none.in.o), cut(none.dout), cut(none.dq), cut(none.dk),
      cut(none.dv);
  none.lse = {none.lse.data(), {0, 2, 7}};
  REQUIRE(backward_of<20, 20>(giwa::host, none, giwa::full{}, giwa::plain_score{}, c.call_options()).ok());
  CHECK(c.dsinks.view()(0) == 0);
  CHECK(c.dsinks.view()(1) == 0);
}

TEST_CASE("a call that breaks a rule is refused, and says which") {
  case_options o = sizes(1, 2, 1, 7, 9);
  o.head_size = o.head_size_v = 20;
  backward_case<float> c(o);
  c.has_dlse = true;
  const auto good = c.views();
  const auto refused = [&](const auto& views, const giwa::attention_backward_options& options) {
    return std::string(
        giwa::format_status(backward_of<20, 20>(giwa::host, views, giwa::full{}, giwa::plain_score{}, options))
            .c_str());
  };
  const auto says = [](const std::string& text, const char* argument, const char* part) {
    return text.find(argument) != std::string::npos && text.find(part) != std::string::npos;
  };
  CHECK(backward_of<20, 20>(giwa::host, good, giwa::full{}, giwa::plain_score{}, c.call_options()).ok());
  auto views = good;
  views.lse = {};
  CHECK(says(refused(views, c.call_options()), "lse", "attention_forward wrote"));
  views = good, views.lse = {good.lse.data(), {1, 2, 8}};
  CHECK(says(refused(views, c.call_options()), "lse", "the sizes must be those of q"));
  views = good, views.lse = {nullptr, {1, 2, 7}};
  CHECK(says(refused(views, c.call_options()), "lse", "null"));
  views = good, views.dout = {nullptr, good.dout.extents()};
  CHECK(says(refused(views, c.call_options()), "dout", "null"));
  views = good, views.dk = good.dq;
  CHECK(says(refused(views, c.call_options()), "dk", "must have the sizes of k"));
  views = good, views.dv = good.dk;
  CHECK(says(refused(views, c.call_options()), "dv", "overlaps dk"));
  views = good, views.dq = c.of.q.view();
  CHECK(says(refused(views, c.call_options()), "dq", "overlaps q"));
  views = good, views.dq = {good.dq.data(), good.dq.extents(), {0, 0, 0, 1}};
  CHECK(says(refused(views, c.call_options()), "dq", "strides"));
  views = good, views.dout = {good.dout.data(), {1, 7, 2, 19}};
  CHECK(says(refused(views, c.call_options()), "dout", "must have the sizes of o"));
  auto options = c.call_options();
  options.dlse = {c.dlse.memory.data(), {1, 7, 2}};
  CHECK(says(refused(good, options), "dlse", "the sizes must be those of q"));
  options = c.call_options(), options.dsinks = c.dsinks.view();
  CHECK(says(refused(good, options), "dsinks", "which the call does not have"));
  case_options with_sinks = o;
  with_sinks.sinks = true;
  backward_case<float> sunk(with_sinks);
  options = sunk.call_options();
  options.dsinks = {reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(sunk.dsinks.memory.data()) + 1), {2}};
  CHECK(says(refused(sunk.views(), options), "dsinks", "aligned to its element type"));
  views = good;
  const giwa::index<4> no_heads{1, 7, 0, 20};
  views.in.q = {good.in.q.data(), no_heads}, views.in.o = {good.in.o.data(), no_heads};
  views.dout = {good.dout.data(), no_heads}, views.dq = {good.dq.data(), no_heads}, views.lse = {};
  options = c.call_options(), options.dlse = {};
  CHECK(says(refused(views, options), "`q`", "k and v have heads but q has none"));
  options = c.call_options(), options.scale = NAN;
  CHECK(says(refused(good, options), "scale", "finite"));
  std::vector<float> values(2 * 7 * 9);
  const tensor_view<float, 4> bias(values.data(), {1, 2, 7, 9});
  const giwa::bias_with_gradient over_itself(tensor_view<const float, 4>(bias), bias);
  CHECK(says(
      giwa::format_status(backward_of<20, 20>(giwa::host, good, giwa::full{}, over_itself, c.call_options())).c_str(),
      "bias gradient", "overlaps the bias"));
  const tensor_view<float, 4> of_heads(values.data(), {1, 2, 1, 1});
  CHECK(giwa::bias_with_gradient(tensor_view<const float, 4>(of_heads), of_heads)
            .check(giwa::attention_sizes{1, 2, -1, -1})
            .message == std::string("packed sequences have no gradient of a bias: use tensors of rank 4"));
  trained_parameters trained(2);
  const auto with_gradients = [&](const tensor_view<float, 2>& to) {
    const trained_score<> score{trained.values.data(), to};
    return std::string(
        giwa::format_status(backward_of<20, 20>(giwa::host, good, giwa::full{}, score, c.call_options())).c_str());
  };
  CHECK(says(with_gradients({trained.gradients.data(), {2, 1}}), "parameter_gradients", "(heads of q, parameters"));
  CHECK(says(with_gradients({}), "parameter_gradients", "(heads of q, parameters"));
  CHECK(says(with_gradients({nullptr, {2, 2}}), "parameter_gradients", "null"));
  CHECK(says(with_gradients({c.dk.view().data(), {2, 2}}), "parameter_gradients", "overlaps dk"));
  CHECK(says(with_gradients({c.of.lse.view().data(), {2, 2}}), "parameter_gradients", "overlaps lse"));
  const giwa::alibi_with_gradient of_itself(trained.values.data(), {trained.values.data() + 1, {2}});
  CHECK(says(
      giwa::format_status(backward_of<20, 20>(giwa::host, good, giwa::full{}, of_itself, c.call_options())).c_str(),
      "parameter_gradients", "overlaps the slopes"));
  const giwa::alibi_with_gradient alibi_to(trained.values.data(), {trained.gradients.data(), {2}});
  CHECK(says(giwa::format_status(
                 backward_of<20, 20>(giwa::host, good, giwa::full{}, giwa::then{alibi_to, alibi_to}, c.call_options()))
                 .c_str(),
             "parameter_gradients", "two parts of the score modifier"));
  CHECK(giwa::detail::backward_workspace_bytes(c.of.views().problem(), trained.score()) ==
        8 * 2 * 7 + 16 + 3 * 4 * 2 * 7);
  std::vector<fp16> halves(2 * 7 * 9);
  const auto of_bias = [&](const auto& shared, const auto& gradient) {
    return std::string(
        giwa::format_status(backward_of<20, 20>(giwa::host, good, giwa::full{},
                                                giwa::bias_with_gradient(shared, gradient), c.call_options()))
            .c_str());
  };
  const tensor_view<const float, 4> one(values.data(), {1, 1, 7, 9});
  CHECK(says(of_bias(one, tensor_view<fp16, 4>(halves.data(), {1, 1, 7, 9})), "bias gradient", "must be fp32"));
  CHECK(says(of_bias(one, tensor_view<fp16, 4>(halves.data(), {1, 2, 7, 9})), "bias gradient", "both must be 1"));
  backward_case<float, float, fp16> in_fp16(o);
  options = in_fp16.call_options(), options.accumulate = true;
  CHECK(says(refused(in_fp16.views(), options), "accumulate", "fp32"));
  giwa::attention_problem sizes = c.of.views().problem();  // fp32, 2 heads of q, 1 of k, 7 queries, 9 keys
  CHECK(giwa::detail::least_backward_workspace_bytes(sizes) == 8 * 2 * 7 + 16);
  // For tensor cores rows of 64 columns as two fp16, and a factor: q, k, v and dout, each part at a multiple of 16 bytes,
  // the rows with room to begin at a multiple of 128 bytes.
  constexpr giwa::int64 to_line = 128 - 16;
  constexpr giwa::int64 queries = 2 * 7 * 64 * 4, keys = 9 * 64 * 4;
  CHECK(giwa::detail::backward_workspace_bytes(sizes) ==
        8 * 2 * 7 + 16 + 4 * to_line + (queries + 64) + 2 * (keys + 48) + queries + 4 * 2 * 7);
  sizes.head_size = 65;
  CHECK(giwa::detail::backward_workspace_bytes(sizes) ==
        8 * 2 * 7 + 16 + 4 * to_line + (2 * queries + 64) + (2 * keys + 48) + (keys + 48) + queries + 4 * 2 * 7);
  sizes.seq_q = sizes.seq_k = -1, sizes.rows_q = 7, sizes.rows_k = 9, sizes.head_size = 64, sizes.batch = 5;  // packed
  CHECK(giwa::detail::backward_workspace_bytes(sizes) ==
        8 * 2 * 7 + 16 + 4 * to_line + (queries + 64) + 2 * (keys + 48) + queries + 4 * 2 * 7);
  sizes.head_size_v = 129;
  CHECK(giwa::detail::backward_workspace_bytes(sizes) == giwa::detail::least_backward_workspace_bytes(sizes));
  // In 16 bits dq in fp32: for each of 5 sequences a tile of 64 queries, 4 parts of 64 columns, and a word for each part. Then two lists
  // of 5 tiles of 32 bytes, and their counts.
  sizes.element_bytes = 2, sizes.head_size = 200;
  CHECK(giwa::detail::backward_workspace_bytes(sizes) == giwa::detail::least_backward_workspace_bytes(sizes) + to_line +
                                                             2 * 5 * 4 * (64 * 64 * 4 + 4) + 160 + 16 + 160 + 4);
  // For a GPU that is known only what its kernels use: fp32 and heads up to 128 on 9.0, heads up to 256 on 10.0.
  const auto more = [&](int capability) {
    return giwa::detail::backward_workspace_bytes(sizes, capability) -
           giwa::detail::least_backward_workspace_bytes(sizes);
  };
  CHECK((more(80) == 0 && more(90) == 0 && more(100) == more(0) && more(120) == 0));
  sizes.head_size = sizes.head_size_v = 128;
  CHECK((more(80) == 0 && more(90) == more(0) && more(90) > 0));
  // In any order also sums of dk and dv, if several heads of q read few tiles of 128 keys: of each of 2 heads that share one.
  sizes = {.batch = 2, .seq_q = 300, .seq_k = 300, .heads = 10, .kv_heads = 5, .head_size = 120, .head_size_v = 64};
  const auto for_any_order = [&](int capability) {
    return giwa::detail::backward_workspace_bytes(sizes, capability, true) -
           giwa::detail::backward_workspace_bytes(sizes, capability);
  };
  const auto for_split_heads = [&](int capability) {
    return giwa::detail::backward_workspace_bytes(sizes, capability, false, true) -
           giwa::detail::backward_workspace_bytes(sizes, capability);
  };
  constexpr giwa::int64 tiles = 2 * 3 * 5;
  CHECK(for_any_order(90) == to_line + tiles * (2 * 128 * (128 + 64) * 4 + 8 * 4));
  CHECK((for_split_heads(90) == for_any_order(90) && for_split_heads(80) == 0));
  CHECK((for_any_order(0) == for_any_order(90) && for_any_order(80) == 0 && for_any_order(100) == 0));
  // Else room for 132 parts of the queries of at most 66 tiles of keys; of fewer than 17 tiles for 8 parts of each.
  constexpr giwa::int64 divided = to_line + 132 * 128 * (128 + 64) * 4 + 66 * 8 * 4;
  sizes.seq_k = 9000;  // 710 tiles
  CHECK((for_any_order(90) == divided && for_split_heads(90) == 0));
  sizes.seq_k = 300, sizes.kv_heads = 10;  // 60 tiles
  CHECK(for_any_order(90) == divided - 6 * 8 * 4);
  sizes.seq_k = 100, sizes.heads = sizes.kv_heads = 5;  // 10 tiles
  CHECK(for_any_order(90) == to_line + 10 * (8 * 128 * (128 + 64) * 4 + 8 * 4));
  sizes.seq_k = 0;
  CHECK(for_any_order(90) == 0);
  sizes.seq_k = 300, sizes.heads = sizes.kv_heads = 10;
  using giwa::detail::shared_key_sums;
  sizes.heads = 71, sizes.kv_heads = 1;
  CHECK(shared_key_sums::sharers_of(sizes) == 8);  // 9 heads each, and 8
  sizes.heads = 7;
  CHECK(shared_key_sums::sharers_of(sizes) == 7);
  sizes.seq_k = 12800;  // 200 tiles
  CHECK(shared_key_sums::sharers_of(sizes) == 2);
  sizes.seq_k = 300, sizes.kv_heads = 0;
  CHECK(shared_key_sums::sharers_of(sizes) == 1);
  sizes = {.batch = 5,
           .seq_q = -1,
           .seq_k = -1,
           .heads = 2,
           .kv_heads = 1,
           .head_size = 128,
           .head_size_v = 128,
           .rows_q = 7,
           .rows_k = 9};
  CHECK(for_any_order(90) == to_line + 5 * (2 * 128 * 256 * 4 + 8 * 4));
  sizes = {.batch = 5, .seq_q = 7, .seq_k = 9, .heads = 2, .kv_heads = 1, .head_size = 128, .head_size_v = 128};
  sizes.element_bytes = 4;
  CHECK((more(80) == 0 && more(90) == more(0) && more(90) > 0 && more(100) == 0));
}

namespace {

/// A call whose small tensors have room behind them: what is put over one of them reaches no other one.
struct roomy_case {
  backward_case<float> c;
  float lse[2048]{}, dlse[2048]{}, sinks[2048]{};
  giwa::detail::backward_views<float, float, float> views;
  giwa::attention_backward_options options;
  roomy_case() : c(roomy_sizes()), views(c.views()), options(c.call_options()) {
    views.lse = {lse, views.lse.extents()};
    options.dlse = {dlse, views.lse.extents()};
    options.sinks = {sinks, {4}};
  }
  static case_options roomy_sizes() {
    case_options o = sizes(2, 4, 2, 7, 9);
    o.head_size = o.head_size_v = 20, o.sinks = true;
    return o;
  }
};

}  // namespace

TEST_CASE("gradients share memory with nothing, and the refusal names what they share") {
  roomy_case c;
  alignas(16) static unsigned char workspace[1 << 16];
  const auto good = c.views;
  auto options = c.options;
  options.workspace = {workspace, {sizeof workspace}};
  trained_parameters trained(4);
  tensor_view<float, 2> to(trained.gradients.data(), {4, 2});
  const auto call = [&](const auto& views, const giwa::attention_backward_options& with) {
    const trained_score<> score{trained.values.data(), to};
    return backward_of<20, 20>(giwa::host, views, giwa::full{}, score, with);
  };
  REQUIRE(call(good, options).ok());

  const auto expect = [](const giwa::status& s, const std::string& argument, const std::string& message) {
    INFO(giwa::format_status(s).c_str() << " / " << argument << ": " << message);
    CHECK((!s.ok() && s.argument == argument && s.message == message));
  };
  const auto at = [](const auto* memory) { return const_cast<float*>(reinterpret_cast<const float*>(memory)); };
  const std::pair<const char*, float*> read[] = {
      {"q", at(good.in.q.data())},       {"k", at(good.in.k.data())},         {"v", at(good.in.v.data())},
      {"o", at(good.in.o.data())},       {"dout", at(good.dout.data())},      {"lse", at(good.lse.data())},
      {"dlse", at(options.dlse.data())}, {"sinks", at(options.sinks.data())}, {"the workspace", at(workspace)}};
  // Each gradient over each tensor that the call reads.
  for (const auto& [name, memory] : read) {
    const std::string message = std::string("the output overlaps ") + name;
    auto views = good;
    views.dq = {memory, good.dq.extents()};
    expect(call(views, options), "dq", message);
    views = good, views.dk = {memory, good.dk.extents()};
    expect(call(views, options), "dk", message);
    views = good, views.dv = {memory, good.dv.extents()};
    expect(call(views, options), "dv", message);
    auto with = options;
    with.dsinks = {memory, {4}};
    expect(call(good, with), "dsinks", message);
    to = {memory, {4, 2}};
    expect(call(good, options), "parameter_gradients", message);
    to = {trained.gradients.data(), {4, 2}};
  }
  for (const auto& [name, lengths] : {std::pair{"q_lengths", &giwa::sequences::q_lengths},
                                      {"k_lengths", &giwa::sequences::k_lengths},
                                      {"k_batch_index", &giwa::sequences::k_batch_index}}) {
    auto views = good;
    views.in.packed.*lengths = reinterpret_cast<const int*>(good.dk.data());
    expect(call(views, options), "dk", std::string("the output overlaps ") + name);
  }
  // Gradients over each other.
  float* const dq = good.dq.data();
  float* const dk = good.dk.data();
  float* const dv = good.dv.data();
  auto views = good;
  views.dk = {dq, good.dk.extents()};
  expect(call(views, options), "dk", "dk overlaps dq");
  views = good, views.dv = {dq, good.dv.extents()};
  expect(call(views, options), "dv", "dv overlaps dq");
  views = good, views.dv = good.dk;
  expect(call(views, options), "dv", "dv overlaps dk");
  for (const auto& [name, memory] : {std::pair{"dq", dq}, {"dk", dk}, {"dv", dv}}) {
    auto with = options;
    with.dsinks = {memory, {4}};
    expect(call(good, with), "dsinks", std::string("dsinks overlaps ") + name);
    to = {memory, {4, 2}};
    expect(call(good, options), "parameter_gradients", std::string("parameter_gradients overlaps ") + name);
  }
  to = {options.dsinks.data(), {4, 2}};
  expect(call(good, options), "parameter_gradients", "parameter_gradients overlaps dsinks");
  to = {trained.gradients.data(), {4, 2}};
  // Elements of one gradient over each other.
  views = good, views.dv = {dv, good.dv.extents(), {0, 40, 20, 1}};
  CHECK(call(views, options).argument == std::string("dv"));
  auto with = options;
  with.dsinks = {options.dsinks.data(), {4}, {0}};
  CHECK(call(good, with).argument == std::string("dsinks"));
  with = options, with.dsinks = {options.dsinks.data(), {3}};
  CHECK(call(good, with).got == 3);
  with = options, with.sinks = {options.sinks.data(), {5}};
  CHECK(call(good, with).got == 5);
  CHECK(call(good, options).ok());
}

TEST_CASE("a workspace of gradients is large enough, contiguous, aligned and apart from what the call reads") {
  roomy_case c;
  alignas(16) static unsigned char memory[1 << 16];
  const auto good = c.views;
  const giwa::plain_score score;
  const int64 needed = giwa::detail::least_backward_workspace_bytes(good.in.problem(), score);
  const auto check = [&](const auto& views, const tensor_view<unsigned char, 1>& w) {
    auto options = c.options;
    options.workspace = w;
    return giwa::detail::check_backward_workspace(views, score, options);
  };
  CHECK(check(good, {memory, {needed}}).ok());
  CHECK(check(good, {memory, {needed + 1}}).ok());
  const giwa::status small = check(good, {memory, {needed - 1}});
  CHECK((small.relation == giwa::bound::at_least && small.expected == needed && small.got == needed - 1));
  CHECK(check(good, {}).expected == needed);
  CHECK(check(good, {nullptr, {needed}}).message ==
        std::string("the pointer must not be null if the view has elements"));
  CHECK(check(good, {memory, {needed}, {2}}).got == 2);
  CHECK(check(good, {memory + 8, {needed}}).message == std::string("the workspace must be 16-byte aligned"));
  const auto over = [&](const char* name, const auto* read) {
    auto* const bytes = reinterpret_cast<unsigned char*>(reinterpret_cast<giwa::uint64>(read) / 16 * 16);
    const giwa::status s = check(good, {bytes, {needed}});
    INFO(giwa::format_status(s).c_str());
    CHECK(s.message == std::string("the workspace overlaps ") + name);
  };
  over("q", good.in.q.data()), over("k", good.in.k.data()), over("v", good.in.v.data()), over("o", good.in.o.data());
  over("dout", good.dout.data()), over("lse", good.lse.data()), over("dlse", c.dlse);
  over("sinks", c.sinks);
  auto views = good;
  views.in.packed.k_lengths = reinterpret_cast<const int*>(memory);
  CHECK(check(views, {memory, {needed}}).message == std::string("the workspace overlaps k_lengths"));
}

TEST_CASE("sums in 16 bits are refused for each gradient alone") {
  case_options o = sizes(1, 2, 1, 7, 9);
  o.head_size = o.head_size_v = 20;
  const auto check = [](auto&& c, bool q, bool k, bool v) {
    c.accumulate = true, c.wants_q = q, c.wants_k = k, c.wants_v = v;
    c.clear_outputs();
    return backward_of<20, 20>(giwa::host, c.views(), giwa::full{}, giwa::plain_score{}, c.call_options());
  };
  for (const int wanted : {1, 2, 4}) {
    CHECK(check(backward_case<float, float, fp16>(o), wanted & 1, wanted & 2, wanted & 4).argument ==
          std::string("accumulate"));
    CHECK(check(backward_case<float>(o), wanted & 1, wanted & 2, wanted & 4).ok());
  }
}

TEST_CASE("no two packed sequences share a tile of dq") {
  giwa_test::random_sequence random(4);
  for (int round = 0; round < 20; ++round) {
    case_options o = sizes(1, 2, 1, 0, 0);
    o.head_size = o.head_size_v = random.below(2) == 0 ? 64 : 128;
    const int sequences = 1 + static_cast<int>(random.below(4));
    for (int i = 0; i < sequences; ++i)
      o.q_lengths.push_back(static_cast<int>(random.below(200))), o.k_lengths.push_back(1);
    backward_case<fp16> c(o);
    const auto in = c.views().in;
    std::vector<unsigned char> memory(
        static_cast<std::size_t>(giwa::detail::backward_workspace_bytes(in.problem(), 0)));
    auto options = c.call_options();
    options.workspace = {memory.data(), {static_cast<int64>(memory.size())}};
    const auto p = giwa::detail::params_of(c.views(), giwa::full{}, giwa::plain_score{}, options);
    const int rows = giwa::detail::dq_parts::rows_of_tile(o.head_size, o.head_size_v);
    std::set<int> parts;
    for (int head = 0; head < 2; ++head)
      for (int b = 0; b < sequences; ++b) {
        const auto h = p.call.at(b, head);
        for (int n = 0; n * rows < h.queries(); ++n) CHECK(parts.insert(p.dq_part_of(h, n)).second);
      }
    for (const int part : parts)
      CHECK((part >= 0 && part < giwa::detail::dq_parts::of_tile(o.head_size) * 2 * p.workspace.tiles));
  }
}

TEST_CASE("the workspace has room for dq of long sequences, whose tiles have few more rows") {
  using giwa::detail::dq_parts, giwa::detail::long_sequences;
  const auto rows_of = [](int64 queries, int64 rows) { return giwa::round_up(queries, rows); };
  int64 count = 0;
  for (int64 queries = 2000; queries < 4400; queries += 8) {
    const bool is_long = long_sequences::suits(queries, long_sequences::full);
    const int64 longer = rows_of(queries, dq_parts::long_rows) - rows_of(queries, 64);
    CHECK(is_long == (queries >= long_sequences::full && 50 * longer <= queries));
    if (!is_long || queries % 56 != 0) continue;
    const int64 head_size = queries % 112 == 0 ? 96 : 128;
    const giwa::attention_problem p{2, queries, 1, 3, 1, head_size, head_size, 2, 0, 0};
    std::vector<unsigned char> memory(
        static_cast<std::size_t>(giwa::detail::backward_workspace_bytes(p, giwa::plain_score{}, 90)));
    giwa::detail::workspace_layout layout{memory.data()};
    const auto w = giwa::detail::backward_workspace::take(layout, p, 0, true, giwa::detail::key_sharing::none);
    const int64 floats = long_sequences::tiles_of(2, queries) * 3 * 2 * dq_parts::long_floats;
    CHECK(reinterpret_cast<float*>(w.added) - w.dq >= floats);
    CHECK(layout.bytes <= static_cast<int64>(memory.size()));
    ++count;
  }
  CHECK(count > 10);
}

TEST_CASE("sums of keys that blocks share are apart, for each tile of keys of each head, and fill their memory") {
  using giwa::detail::shared_key_sums;
  for (const bool packed : {false, true}) {
    case_options o = sizes(3, 4, 2, 20, 300);
    o.head_size = o.head_size_v = 64;
    if (packed) o.q_lengths = {20, 7, 30, 1}, o.k_lengths = {300, 128, 0, 129};
    backward_case<fp16> c(o);
    auto p = giwa::detail::params_of(c.views(), giwa::full{}, giwa::plain_score{}, c.call_options());
    shared_key_sums& shared = p.workspace.of_keys;
    shared.sharers = 3, shared.tiles = shared_key_sums::tiles_of(c.views().in.problem());
    const int64 warps = 2 * shared.tiles * shared_key_sums::warps, floats = shared_key_sums::floats_of_warp(64, 64);
    std::vector<float> sums(static_cast<std::size_t>(warps * shared.sharers * floats));
    std::vector<int> arrived(static_cast<std::size_t>(warps));
    shared.sums = sums.data(), shared.arrived = arrived.data();
    std::set<int64> places;
    for (int head = 0; head < 4; head += 2)
      for (int b = 0; b < c.of.sequence_count(); ++b) {
        const auto h = p.call.at(b, head);
        for (int n = 0; n * shared_key_sums::rows_of_tile < h.keys(); ++n) {
          const auto place = p.shared_sums_of(h, n);
          const int64 warp = place.arrived - arrived.data();
          CHECK(places.insert(warp).second);
          CHECK((warp >= 0 && warp + shared_key_sums::warps <= warps && warp % shared_key_sums::warps == 0));
          CHECK((place.first == sums.data() + warp * shared.sharers * floats && place.floats == floats));
        }
      }
    CHECK(places.size() == (packed ? 12 : 18));
  }
}

TEST_CASE("the longest packed sequence of keys is that of queries, or the average if it is more") {
  case_options o = sizes(1, 2, 1, 0, 0);
  o.head_size = o.head_size_v = 64, o.q_lengths = {5, 3}, o.k_lengths = {10, 31};
  backward_case<fp16> c(o);
  const auto longest = [&](int most_queries) {
    auto views = c.views();
    views.in.packed.max_q = most_queries;
    return giwa::detail::backward_schedules::longest_keys(
        giwa::detail::params_of(views, giwa::full{}, giwa::plain_score{}, c.call_options()));
  };
  CHECK((longest(0) == 21 && longest(20) == 21 && longest(22) == 22 && longest(100) == 41));
}

TEST_CASE("in any order the queries of tiles of keys that are left after whole rounds of the blocks are divided") {
  case_options o;
  o.heads = o.kv_heads = 80, o.seq_q = 5, o.seq_k = 7, o.head_size = o.head_size_v = 64;
  backward_case<giwa::fp16> c(o);
  const giwa::attention_problem sizes = c.views().in.problem();
  std::vector<unsigned char> workspace(
      static_cast<std::size_t>(giwa::detail::backward_workspace_bytes(sizes, 0, true)));
  giwa::attention_backward_options options;
  options.any_order = true;
  options.workspace = {workspace.data(), {static_cast<giwa::int64>(workspace.size())}};
  struct last {
    int first, parts;
    bool operator==(const last&) const = default;
  };
  const auto of = [&](const auto& mask, int work_tiles, giwa::int64 tiles) {
    const auto p = giwa::detail::params_of(c.views(), mask, giwa::plain_score{}, options);
    const auto found = giwa::detail::backward_schedules::divided_tiles(p, work_tiles, 132, tiles);
    return last{found.first, found.parts};
  };
  CHECK(of(giwa::full{}, 4096, 128) == last{4092, 8});
  CHECK(of(giwa::full{}, 4092, 128) == last{4092, 1});
  CHECK(of(giwa::full{}, 2048, 256) == last{2048, 1});  // 68 are left, more than half a round
  CHECK(of(giwa::full{}, 64, 16) == last{0, 2});
  CHECK(of(giwa::full{}, 64, 15) == last{64, 1});  // fewer than 8 tiles of queries for each
  CHECK(of(giwa::causal{}, 4096, 128) == last{4096, 1});
  CHECK(of(giwa::causal{giwa::alignment::offset(7)}, 4096, 128) == last{4092, 8});  // keeps all 7 keys
  options.workspace = {workspace.data(), {giwa::detail::backward_workspace_bytes(sizes)}};
  CHECK(of(giwa::full{}, 4096, 128) == last{4096, 1});
  options.workspace = {workspace.data(), {static_cast<giwa::int64>(workspace.size())}};
  options.any_order = false, options.split_heads = true;
  CHECK(of(giwa::full{}, 4096, 128) == last{4096, 1});
}
