// SPDX-License-Identifier: MIT
// The kernels of attention_backward on the host executor, against the reference: their indices, barriers and NaN.
#include <giwa/attention/kernels/simt/backward_simt.cuh>
#include <giwa/attention/kernels/simt/row_terms.cuh>
#include <giwa/host_executor.cuh>

#include <atomic>
#include <cmath>

#include "support/backward_case.hpp"
#include "support/catch.hpp"

namespace {

using namespace giwa_test;
using giwa::causal;
using giwa::fp16;
using giwa::detail::gradient;

/// All kernels of a call, with grids of at most 64 blocks for dq, dk and dv.
template <int HeadSize, int HeadSizeV, class T, class O, class G, class Mask, class Score>
giwa::status run_simt(backward_case<T, O, G>& c, const Mask& mask, const Score& score) {
  const auto views = c.views();
  auto options = c.call_options();
  std::vector<double> memory(
      static_cast<std::size_t>(giwa::detail::backward_workspace_bytes(views.in.problem(), score) / 8 + 1), NAN);
  options.workspace = {reinterpret_cast<unsigned char*>(memory.data()), {static_cast<int64>(memory.size()) * 8}};
  giwa::status s = giwa::detail::check_backward(views, mask, score, options, HeadSize, HeadSizeV);
  if (s.ok()) s = giwa::detail::check_backward_workspace(views, score, options);
  const auto p = giwa::detail::params_of(views, mask, score, options);
  using params = std::remove_cv_t<decltype(p)>;
  using terms_op = giwa::detail::row_terms_op<params, HeadSizeV>;
  const auto terms = terms_op::params::of(p);
  CHECK((terms.work_tiles() == 0 || (terms.blocks(0) > 0 && terms.blocks(1) <= terms_op::min_blocks)));
  if (s.ok())
    s = giwa::launch(giwa::host, {.grid = std::min<int64>(3, terms.blocks(0)), .block = terms_op::max_threads},
                     terms_op{}, terms);
  const auto tiles = [&]<gradient Of>(std::integral_constant<gradient, Of>, int64 sequences, int64 heads, int64 rows) {
    using op = giwa::detail::simt_backward_op<T, O, G, HeadSize, HeadSizeV, Of, Mask, Score>;
    giwa::attention_problem sizes = views.in.problem();
    sizes.batch = sequences, sizes.heads = sizes.kv_heads = heads, sizes.seq_q = sizes.seq_k = rows;
    typename op::params all{p, giwa::detail::attention_schedule::of(sizes, 0, op::block_m, 1, 256)};
    for (; s.ok() && all.schedule.first < all.schedule.work_tiles; all.schedule.first += 64)
      s = giwa::launch(
          giwa::host,
          {.grid = std::min<int64>(64, all.schedule.work_tiles - all.schedule.first), .block = op::max_threads}, op{},
          all);
  };
  const int64 kv_heads = views.in.k.extent(2);
  tiles(std::integral_constant<gradient, gradient::of_q>{}, p.tiled_sequences(), p.tiled_heads(), 100);
  tiles(std::integral_constant<gradient, gradient::of_k>{}, p.key_sequences(), kv_heads, 100);
  tiles(std::integral_constant<gradient, gradient::of_v>{}, p.key_sequences(), kv_heads, 65);
  if (s.ok() && c.of.options.sinks)
    s = giwa::launch(giwa::host, {.grid = views.in.q.extent(2), .block = 256}, giwa::detail::sink_gradient_op<params>{},
                     p);
  if constexpr (params::parameters > 0)
    if (s.ok())
      s = giwa::launch(giwa::host, {.grid = views.in.q.extent(2), .block = 256},
                       giwa::detail::parameter_gradient_op<params>{}, p);
  return s;
}

template <class T, int HeadSize, int HeadSizeV, class G = T, class Mask = giwa::full, class Score = giwa::plain_score>
std::string fault_of(case_options options, const Mask& mask = {}, const Score& score = {}, bool accumulate = false) {
  options.head_size = HeadSize;
  options.head_size_v = HeadSizeV;
  backward_case<T, T, G> c(options);
  c.has_dlse = true, c.accumulate = accumulate;
  const backward_answers a = answers_of(c, mask, score);
  c.clear_outputs();
  const giwa::status s = run_simt<HeadSize, HeadSizeV>(c, mask, score);
  return s.ok() ? judge(c, a) : s.message;
}

}  // namespace

TEST_CASE("tiles, grouped heads, sinks and score modifiers") {
  case_options c;
  c.heads = 4, c.kv_heads = 2, c.sinks = true;
  c.align = giwa::alignment::bottom_right;
  c.seq_q = 130, c.seq_k = 70;
  CHECK(fault_of<float, 12, 20, float>(c, causal{}, giwa::softcap{2}, true) == "");
  c.seq_q = 3, c.seq_k = 129, c.batch = 2;
  CHECK(fault_of<float, 12, 20, float>(c, causal{}, giwa::softcap{2}) == "");
  c.seq_q = 40, c.seq_k = 64, c.kv_heads = 4;
  CHECK(fault_of<fp16, 136, 48>(c) == "");
}

TEST_CASE("dropout, of packed sequences too") {
  case_options c;
  c.heads = 4, c.kv_heads = 2, c.sinks = true;
  c.align = giwa::alignment::bottom_right;
  c.q_lengths = {70, 1, 100}, c.k_lengths = {130, 0, 90};
  const giwa::dropout drop(0.3f, 11, giwa::softcap{2});
  CHECK(fault_of<float, 12, 20, float>(c, causal{}, drop, true) == "");
  c.k_index = {2, 0, 2}, c.k_used = {90, 60, 80};
  CHECK(fault_of<float, 12, 20, float>(c, causal{}, drop) == "");
}

TEST_CASE("packed sequences, lengths, and keys by index") {
  case_options c;
  c.heads = 2;
  c.align = giwa::alignment::bottom_right;
  c.q_lengths = {0, 1, 100, 30}, c.k_lengths = {5, 0, 90, 70};
  CHECK(fault_of<float, 12, 20, float>(c, causal{}, giwa::softcap{2}) == "");
  c.q_used = {0, 1, 77, 100}, c.k_used = {131, 7, 60, 90}, c.k_index = {2, 3, 3, -1};
  CHECK(fault_of<float, 12, 20, float>(c, causal{}, giwa::softcap{2}) == "");
}

TEST_CASE("numbers that a pair does not see do not reach it") {
  case_options o;
  o.seq_q = o.seq_k = 70;
  o.head_size = 12, o.head_size_v = 20;
  const giwa::prefix mask{50};
  backward_case<float> clean(o), c(o);
  for (int64 row = 50; row < 70; ++row) c.of.k.view()(0, row, 0, 3) = c.of.v.view()(0, row, 0, 5) = NAN;
  for (auto* each : {&clean, &c}) {
    run_forward(*each, mask, giwa::plain_score{});
    REQUIRE((run_simt<12, 20>(*each, mask, giwa::plain_score{})).ok());
  }
  CHECK(c.dq.elements<float>() == clean.dq.elements<float>());
  CHECK(c.dk.elements<float>() == clean.dk.elements<float>());
  CHECK(c.dv.elements<float>() == clean.dv.elements<float>());
  CHECK(clean.dk.view()(0, 69, 0, 0) == 0);
  CHECK(clean.dq.view()(0, 69, 0, 0) != 0);
}

TEST_CASE("keys past those of one reader take nothing from it, be its queries NaN") {
  case_options o;
  o.batch = 2, o.seq_q = o.seq_k = 64;
  o.k_used = {64, 40}, o.k_index = {0, 0}, o.k_batch = 1;
  o.head_size = 12, o.head_size_v = 20;
  backward_case<float> clean(o), c(o);
  for (auto* each : {&clean, &c}) {
    run_forward(*each, giwa::full{}, giwa::plain_score{});
    if (each == &c) c.of.q.view()(1, 3, 0, 5) = NAN;
    REQUIRE((run_simt<12, 20>(*each, giwa::full{}, giwa::plain_score{})).ok());
  }
  int different = 0;
  for (int64 row = 40; row < 64; ++row)
    for (int64 i = 0; i < 12; ++i)
      different += c.dk.view()(0, row, 0, i) == clean.dk.view()(0, row, 0, i) &&
                           c.dv.view()(0, row, 0, i) == clean.dv.view()(0, row, 0, i)
                       ? 0
                       : 1;
  CHECK(different == 0);
  CHECK(std::isnan(c.dk.view()(0, 39, 0, 5)));
  CHECK(clean.dk.view()(0, 50, 0, 5) != 0);
}

namespace {
/// A modifier that sums what it is given.
struct summed {
  std::atomic<int>* calls;
  std::atomic<double>* sum;
  GIWA_HOST_DEVICE float operator()(float score, giwa::attention_coord) const { return score; }
  GIWA_HOST_DEVICE giwa::dual<float> value_and_slope(float score, giwa::attention_coord) const { return {score, 1}; }
  void gradient(float dy, giwa::attention_coord) const {
    ++*calls;
    for (double old = *sum; !sum->compare_exchange_weak(old, old + static_cast<double>(dy));) {
    }
  }
};
}  // namespace

TEST_CASE("a bias that all sequences and heads share receives its gradient") {
  case_options o;
  o.batch = 2, o.heads = 2, o.seq_q = 70, o.seq_k = 80, o.head_size = 12, o.head_size_v = 20;
  const giwa::index<4> shape{1, 1, 70, 80};
  std::vector<float> values(70 * 80, 0.25f), got(values.size(), 0.0f), expected(values.size(), 0.0f);
  const auto score = [&](std::vector<float>& to) {
    return giwa::bias_with_gradient(tensor_view<const float, 4>(values.data(), shape),
                                    tensor_view<float, 4>(to.data(), shape));
  };
  backward_case<float> c(o);
  const backward_answers a = answers_of(c, giwa::full{}, score(expected));
  c.clear_outputs();
  REQUIRE((run_simt<12, 20>(c, giwa::full{}, score(got))).ok());
  CHECK(judge(c, a) == "");
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  CHECK(worst < 1e-5);
  CHECK(largest > 0.1);
}

TEST_CASE("parameters of a score modifier receive their gradients") {
  case_options o;
  o.batch = 2, o.heads = 4, o.kv_heads = 2, o.seq_q = 70, o.seq_k = 130, o.head_size = 12, o.head_size_v = 20;
  o.align = giwa::alignment::bottom_right;
  backward_case<float> c(o);
  trained_parameters got(o.heads), expected(o.heads);
  const backward_answers a = answers_of(c, causal{}, expected.score());
  for (const bool bad : {false, true}) {
    if (bad) c.of.k.view()(0, 129, 0, 3) = NAN;  // seen by the last query alone: the block takes a second pass
    c.clear_outputs();
    REQUIRE((run_simt<12, 20>(c, causal{}, got.score())).ok());
    if (!bad) {
      CHECK(judge(c, a) == "");
      CHECK(got.fault(expected, 1e-5) == "");
    }
  }
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {  // one NaN for each parameter of the heads that saw it
    const std::size_t head = i < 8 ? i / 2 : i - 8;
    CHECK(std::isnan(got.gradients[i]) == (head < 2));
  }
}

TEST_CASE("a modifier is given each gradient once, also where a masked key is NaN") {
  case_options o;
  o.seq_q = o.seq_k = 70;
  o.head_size = 12, o.head_size_v = 20;
  const giwa::prefix mask{50};
  double sums[2];
  for (const bool bad : {false, true}) {
    backward_case<float> c(o);
    run_forward(c, mask, giwa::plain_score{});
    if (bad) c.of.k.view()(0, 60, 0, 3) = NAN;
    std::atomic<int> calls{0};
    std::atomic<double> sum{0};
    REQUIRE((run_simt<12, 20>(c, mask, summed{&calls, &sum})).ok());
    CHECK(calls == 70 * 50);
    sums[bad ? 1 : 0] = sum;
  }
  CHECK(std::abs(sums[0] - sums[1]) < 1e-6);
}
