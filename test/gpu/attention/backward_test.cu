// SPDX-License-Identifier: MIT
// attention_backward on a GPU against the reference: problems drawn at random, hostile numbers, refusals. GIWA_TEST_DRAWS is how
// many are drawn, from GIWA_TEST_FIRST_DRAW on, GIWA_TEST_SECONDS how long at most.
#include <giwa/attention_backward.cuh>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

#include "gpu/attention/backward_draw.hpp"
#include "gpu/attention/backward_gpu.cuh"
#include "gpu/attention/plain_tensors.cuh"
#include "support/another_gpu.hpp"
#include "support/call_options.hpp"
#include "support/catch.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;

/// Empty, or what is wrong with problem `number` in this form.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class O = T, class G = T, class Mask, class Score>
std::string fault_of(int number, const Mask& mask, const Score& score) {
  backward_case<T, O, G> c(draw_backward(number, HeadSize, HeadSizeV));
  draw_backward_outputs(number, c);
  const backward_answers a = answers_of(c, mask, score);
  const std::string refused = run<HeadSize, HeadSizeV>(c, mask, score);
  const std::string fault = refused.empty() ? judge(c, a) : refused;
  return fault.empty() ? "" : "draw " + std::to_string(number) + ": " + fault + "; " + c.of.options.text();
}

std::string fault_of_draw(int number) {
  switch (number % 11) {
    case 0: return fault_of<fp16, 64>(number, causal{}, giwa::plain_score{});
    case 1: return fault_of<bf16, 128>(number, giwa::full{}, giwa::plain_score{});
    case 2: return fault_of<float, 33>(number, causal{}, giwa::softcap{5});
#if !defined(GIWA_TEST_FEW_SIZES)  // where the program is only compiled
    case 3: return fault_of<fp16, 192, 128>(number, giwa::sliding_window{40} | giwa::prefix{9}, giwa::plain_score{});
    case 4: return fault_of<bf16, 72, 8, bf16, float>(number, scattered_mask{}, wavy_score{});
    case 5: return fault_of<float, 16, 256>(number, giwa::full{}, giwa::plain_score{});
    case 6: return fault_of<fp16, 256>(number, causal{}, giwa::softcap{5});
    case 7: return fault_of<float, 64>(number, causal{}, giwa::plain_score{});
    case 8: return fault_of<float, 128, 72>(number, causal{}, giwa::softcap{5});
    case 9: return fault_of<fp16, 120, 56>(number, causal{}, giwa::plain_score{});  // 128 and 64 in registers
#endif
    default: return fault_of<fp16, 512, 512, float>(number, causal{}, giwa::plain_score{});
  }
}

}  // namespace

TEST_CASE("drawn problems") {
  const int first = number_of("GIWA_TEST_FIRST_DRAW", 0), count = number_of("GIWA_TEST_DRAWS", small_mode() ? 8 : 140);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(number_of("GIWA_TEST_SECONDS", 3600));
  std::atomic<int> next = first;
  std::mutex mutex;
  std::vector<std::string> faults;
  int drawn = 0;
  const auto draw_some = [&] {  // the reference takes a core
    for (int i = next++; i < first + count && std::chrono::steady_clock::now() < end; i = next++) {
      std::string fault;
      try {
        fault = fault_of_draw(i);
      } catch (const std::exception& e) {
        fault = "draw " + std::to_string(i) + ": " + e.what();
      }
      const std::lock_guard lock(mutex);
      ++drawn;
      if (!fault.empty()) faults.push_back(fault), next = first + count;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < (small_mode() ? 1 : std::clamp(std::thread::hardware_concurrency(), 1u, 16u)); ++i)
    threads.emplace_back(draw_some);
  draw_some();
  for (std::thread& t : threads) t.join();
  for (const std::string& fault : faults) CHECK(fault == "");
  if (!small_mode()) CHECK(fault_of_draw(175278) == "");  // gradients of 1e-27, whose squares are 0 in fp32
  CHECK(drawn > 0);
  std::printf("draws from %d on: %d, %d faults\n", first, drawn, static_cast<int>(faults.size()));
}

namespace {

template <class T, int HeadSize = 20>
void test_hostile_numbers() {
  case_options o = segments_case();
  o.head_size = o.head_size_v = HeadSize;
  backward_case<T> clean(o);
  run_forward(clean, segments_mask{}, giwa::plain_score{});
  REQUIRE((run<HeadSize, HeadSize>(clean, segments_mask{}, giwa::plain_score{})) == "");
  for (const float bad : {NAN, HUGE_VALF, 3e38f}) {
    if (small_mode() && !std::isnan(bad)) continue;
    backward_case<T> c(o);
    poison_segment(c, bad);
    run_forward(c, segments_mask{}, giwa::plain_score{});
    REQUIRE((run<HeadSize, HeadSize>(c, segments_mask{}, giwa::plain_score{})) == "");
    CHECK(different_outside_segment(c, clean) == 0);
    const auto hidden = [](auto& gradient) {  // rows of the segment without NaN
      int64 rows = 0;
      const auto v = gradient.view();
      for (int64 row = 0; row < 170; ++row)
        rows += segments_mask::of(static_cast<int>(row)) == 2 && !std::isnan(giwa::convert<float>{}(v(0, row, 0, 0)));
      return rows;
    };
    if (std::isnan(bad)) CHECK(hidden(c.dq) + hidden(c.dk) + hidden(c.dv) == 0);
  }
}

/// The largest error of the gradient of a bias, in a call that a graph contains. `biases` and `heads` are its sizes: 2, or 1 if
/// sequences or heads share it.
template <class T>
double worst_of_bias(int64 biases = 2, int64 heads = 2) {
  case_options o;
  o.batch = 2, o.heads = 2, o.seq_q = 70, o.seq_k = 90, o.head_size = o.head_size_v = 20;
  const giwa::index<4> shape{biases, heads, 70, 90};
  std::vector<float> values(static_cast<std::size_t>(biases * heads * 70 * 90)), expected(values.size(), 0.0f);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(normal_at(giwa::philox(9), static_cast<giwa::uint64>(i)));
  const gpu_array<float> bias(values), gradient(expected);
  const auto score = [&](const float* from, float* to) {
    return giwa::then(giwa::softcap{3}, giwa::bias_with_gradient(tensor_view<const float, 4>(from, shape),
                                                                 tensor_view<float, 4>(to, shape)));
  };
  backward_case<T> c(o);
  const backward_answers a = answers_of(c, causal::bottom_right, score(values.data(), expected.data()));
  c.clear_outputs();
  const backward_on_gpu<T, T, T> gpu(c);
  const giwa::stream s = new_stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  const giwa::status state = backward_of<20, 20>(s, gpu.views(), causal::bottom_right,
                                                 score(bias.data(), gradient.data()), gpu.call_options());
  check_cuda(cudaStreamEndCapture(s, &graph));
  REQUIRE(state.ok());
  check_cuda(cudaGraphInstantiate(&ready, graph, 0));
  check_cuda(cudaGraphLaunch(ready, s));
  gpu.read_back();
  CHECK(judge(c, a) == "");
  const std::vector<float> got = gradient.to_host();
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
  check_cuda(cudaGraphExecDestroy(ready));
  check_cuda(cudaGraphDestroy(graph));
  return worst;
}

}  // namespace

TEST_CASE("rows past the keys of a sequence do not reach its queries, which see all keys") {
  case_options o;
  o.heads = o.kv_heads = 2, o.head_size = o.head_size_v = 64;
  o.q_lengths = {128, 128, 256}, o.k_lengths = {100, 70, 130};  // packed: the next sequence's keys follow
  backward_case<fp16> packed(o);
  const backward_answers answers = answers_of(packed, giwa::full{}, giwa::plain_score{});
  REQUIRE((run<64, 64>(packed, giwa::full{}, giwa::plain_score{})) == "");
  CHECK(judge(packed, answers) == "");

  o.q_lengths = o.k_lengths = {};
  o.batch = 2, o.seq_q = 256, o.seq_k = 200, o.k_used = {100, 137};
  backward_case<fp16> padded(o);
  const backward_answers expected = answers_of(padded, giwa::full{}, giwa::plain_score{});
  const auto k = padded.of.k.view();
  for (int64 b = 0; b < 2; ++b)
    for (int64 row = o.k_used[static_cast<std::size_t>(b)]; row < o.seq_k; ++row)
      for (int64 i = 0; i < 64; ++i) k(b, row, 1, i) = giwa::convert<fp16>{}(NAN);
  REQUIRE((run<64, 64>(padded, giwa::full{}, giwa::plain_score{})) == "");
  CHECK(judge(padded, expected) == "");
}

namespace {

/// On a GPU with so many multiprocessors; `whole`: work tiles that are not divided.
template <class T, int HeadSize>
void test_divided_queries(case_options o, int processors, int whole) {
  o.head_size = o.head_size_v = HeadSize;
  o.kv_heads = o.heads, o.seq_k = 500;
  processors_of_test = processors;
  for (const bool has_lengths : {false, true}) {
    if (has_lengths) {
      o.q_used.assign(static_cast<std::size_t>(o.batch), static_cast<int>(o.seq_q) - 70);
      o.k_used.assign(static_cast<std::size_t>(o.batch), 300);
      o.q_used[0] = 100, o.k_used[0] = 450;
    }
    backward_case<T> c(o);
    c.any_order = true;
    const giwa::attention_problem sizes = c.views().in.problem();
    const int64 key_tiles = o.batch * o.heads * 4;
    const int64 query_tiles = giwa::ceil_div(o.seq_q, int64{giwa::detail::dq_parts::rows_of_tile(HeadSize, HeadSize)});
    std::vector<unsigned char> workspace(
        static_cast<std::size_t>(giwa::detail::backward_workspace_bytes(sizes, 90, true)));
    auto options = c.call_options();
    options.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
    const auto p = giwa::detail::params_of(c.views(), giwa::full{}, giwa::plain_score{}, options);
    const auto divided =
        giwa::detail::backward_schedules::divided_tiles(p, static_cast<int>(key_tiles), processors, query_tiles);
    if (has_lengths)  // only the device knows the work tiles
      CHECK(divided.parts == 1);
    else
      CHECK((divided.first == whole && divided.parts > 1));  // else this tests nothing
    const backward_answers answers = answers_of(c, giwa::full{}, giwa::plain_score{});
    REQUIRE((run<HeadSize, HeadSize>(c, giwa::full{}, giwa::plain_score{})) == "");
    CHECK(judge(c, answers) == "");
  }
  processors_of_test = 0;
}

template <class T, int HeadSize>
void test_both_orders() {
  case_options o;
  o.batch = 2, o.heads = 4, o.kv_heads = 2, o.head_size = o.head_size_v = HeadSize;
  o.seq_q = 300, o.seq_k = 700;  // six tiles of keys add to dq
  for (const int order : {0, 1, 2}) {
    backward_case<T> c(o);
    c.any_order = order == 1, c.split_heads = order == 2;
    const backward_answers answers = answers_of(c, causal::bottom_right, giwa::plain_score{});
    REQUIRE((run<HeadSize, HeadSize>(c, causal::bottom_right, giwa::plain_score{})) == "");
    CHECK(judge(c, answers) == "");
  }
}

/// Sequences that are just long enough for tiles of 80 queries, of which the last one is not full.
template <class T, class G, int HeadSize, class Mask>
void test_long_sequences(const Mask& mask, int64 queries, int64 heads) {
  case_options o;
  o.heads = heads, o.head_size = o.head_size_v = HeadSize, o.seq_q = queries + 17;
  o.seq_k = giwa::detail::long_sequences::keys + 44, o.align = giwa::alignment::top_left;
  backward_case<T, T, G> c(o);
  c.has_dlse = true, c.accumulate = sizeof(G) == 4;
  const backward_answers answers = answers_of(c, mask, giwa::plain_score{});
  for (const int order : {0, 1, 2}) {
    c.any_order = order == 1, c.split_heads = order == 2;
    REQUIRE((run<HeadSize, HeadSize>(c, mask, giwa::plain_score{})) == "");
    CHECK(judge(c, answers) == "");
  }
}

/// Of the rows [first, end) of `of`.
template <class B, class IsWrong>
int64 count_of_rows(B& of, int64 first, int64 end, const IsWrong& is_wrong) {
  int64 wrong = 0;
  const auto v = of.view();
  for (int64 row = first; row < end; ++row)
    for (int64 head = 0; head < v.extent(2); ++head)
      for (int64 i = 0; i < v.extent(3); ++i) wrong += is_wrong(v, giwa::index<4>{0, row, head, i}) ? 1 : 0;
  return wrong;
}
template <class B>
int64 different_in_rows(B& of, B& clean, int64 first, int64 end) {
  const auto b = clean.view();
  return count_of_rows(of, first, end, [&](const auto& a, const giwa::index<4>& at) {
    const auto &x = a(at[0], at[1], at[2], at[3]), &y = b(at[0], at[1], at[2], at[3]);
    return std::memcmp(&x, &y, sizeof x) != 0;
  });
}
template <class B>
int64 numbers_in_rows(B& of, int64 first, int64 end) {
  return count_of_rows(of, first, end, [](const auto& v, const giwa::index<4>& at) {
    return !std::isnan(giwa::convert<float>{}(v(at[0], at[1], at[2], at[3])));
  });
}
template <class B>
void set_rows(B& of, int64 first, int64 end, int64 column, int64 step, float value) {
  const auto v = of.view();
  using T = std::remove_cvref_t<decltype(v(0, 0, 0, 0))>;
  for (int64 row = first; row < end; ++row)
    for (int64 head = 0; head < v.extent(2); ++head)
      for (int64 i = column; i < v.extent(3); i += step) v(0, row, head, i) = giwa::convert<T>{}(value);
}
/// Of both causal tests.
template <int HeadSize, class T>
void compute_causal(backward_case<T>& c) {
  run_forward(c, causal{}, giwa::plain_score{});
  REQUIRE((run<HeadSize, HeadSize>(c, causal{}, giwa::plain_score{})) == "");
}
inline case_options causal_case(int64 queries, int64 keys, int64 heads, int64 kv_heads, int head_size) {
  case_options o;
  o.heads = heads, o.kv_heads = kv_heads, o.head_size = o.head_size_v = head_size, o.seq_q = queries, o.seq_k = keys;
  o.align = giwa::alignment::top_left;
  return o;
}

/// NaN in a query, in a row of dout, or in a key and its value reaches the rows that see it under a causal mask, and no others.
template <class T, int HeadSize>
void test_nan_under_causal_mask(int64 queries, int64 keys, int64 heads, int64 kv_heads) {
  constexpr int64 query = 100, row_of_dout = 50, key = 170;
  const case_options o = causal_case(queries, keys, heads, kv_heads, HeadSize);
  const auto set_nan = [](auto& of, int64 row) { set_rows(of, row, row + 1, 1, 3, NAN); };
  backward_case<T> clean(o), of_queries(o), of_keys(o);
  compute_causal<HeadSize>(clean);

  set_nan(of_queries.of.q, query), set_nan(of_queries.dout, row_of_dout);
  compute_causal<HeadSize>(of_queries);
  CHECK(different_in_rows(of_queries.dq, clean.dq, 0, row_of_dout) == 0);
  CHECK(numbers_in_rows(of_queries.dq, row_of_dout, row_of_dout + 1) == 0);
  CHECK(different_in_rows(of_queries.dq, clean.dq, row_of_dout + 1, query) == 0);
  CHECK(numbers_in_rows(of_queries.dq, query, query + 1) == 0);
  CHECK(different_in_rows(of_queries.dq, clean.dq, query + 1, queries) == 0);
  CHECK(numbers_in_rows(of_queries.dk, 0, query + 1) + numbers_in_rows(of_queries.dv, 0, query + 1) == 0);
  CHECK(different_in_rows(of_queries.dk, clean.dk, query + 1, keys) == 0);
  CHECK(different_in_rows(of_queries.dv, clean.dv, query + 1, keys) == 0);

  set_nan(of_keys.of.k, key), set_nan(of_keys.of.v, key);
  compute_causal<HeadSize>(of_keys);
  CHECK(different_in_rows(of_keys.dq, clean.dq, 0, key) == 0);
  CHECK(numbers_in_rows(of_keys.dq, key, queries) == 0);
  CHECK(numbers_in_rows(of_keys.dk, 0, keys) + numbers_in_rows(of_keys.dv, 0, keys) ==
        0);  // the last queries see all keys
}

/// One component of a key is bad: it reaches the queries that see the key, and no others, also if this component of the queries
/// or all of them are 0, or if the queries that are multiplied first are NaN.
template <class T, int HeadSize>
void test_bad_component(int64 length, int64 heads, int64 kv_heads, bool split_heads = false) {
  constexpr int64 key = 170, many = 140;
  for (const int column : {0, HeadSize - 1})
    for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF})
      for (const int queries : {0, 1, 2, 3}) {
        const case_options o = causal_case(length, length, heads, kv_heads, HeadSize);
        backward_case<T> clean(o), c(o);
        for (backward_case<T>* of : {&clean, &c}) {
          of->split_heads = split_heads;
          if (queries == 1) set_rows(of->of.q, 0, length, column, HeadSize, 0.0f);
          if (queries == 2) set_rows(of->of.q, 0, length, 0, 1, 0.0f);
        }
        if (queries == 3) set_rows(c.of.q, length - many, length, 0, 5, NAN);
        set_rows(c.of.k, key, key + 1, column, HeadSize, bad);
        compute_causal<HeadSize>(clean), compute_causal<HeadSize>(c);
        CAPTURE(column, bad, queries);
        CHECK(different_in_rows(c.dq, clean.dq, 0, key) == 0);
        CHECK(numbers_in_rows(c.dq, key, length) == 0);
      }
}

}  // namespace

#if !defined(GIWA_TEST_FEW_SIZES)
TEST_CASE("long sequences") {
  using giwa::detail::long_sequences;
  test_long_sequences<bf16, bf16, 128>(giwa::full{}, long_sequences::full, 2);
  test_long_sequences<fp16, float, 128>(causal{}, long_sequences::causal, 1);
  test_long_sequences<fp16, fp16, 96>(giwa::full{}, long_sequences::full, 2);
}

TEST_CASE("NaN reaches the rows that see it, in tiles of few keys") {
  test_nan_under_causal_mask<fp16, 128>(300, 300, 4,
                                        1);  // dk with dv of 64 keys, on GPUs with at least six multiprocessors
}
#endif

TEST_CASE("dq has fewer columns than its sums in the workspace") {
  test_both_orders<fp16, 96>();
#if !defined(GIWA_TEST_FEW_SIZES)
  test_both_orders<bf16, 40>();
  test_both_orders<fp16, 72>();
  test_both_orders<fp16, 112>();
#endif
}

#if !defined(GIWA_TEST_FEW_SIZES)
TEST_CASE("128 columns of q and k with 64 of v: all gradients, and each kernel alone") {
  case_options o;
  o.batch = 2, o.heads = 4, o.kv_heads = 2, o.head_size = 128, o.head_size_v = 64;
  o.seq_q = 300, o.seq_k = 700;
  const auto check = [&]<class G>(G*, bool wants_q, bool wants_k) {
    backward_case<fp16, fp16, G> c(o);
    c.wants_q = wants_q, c.wants_k = c.wants_v = wants_k;
    const backward_answers answers = answers_of(c, causal::bottom_right, giwa::plain_score{});
    REQUIRE((run<128, 64>(c, causal::bottom_right, giwa::plain_score{})) == "");
    CHECK(judge(c, answers) == "");
  };
  for (const auto& [wants_q, wants_k] : {std::pair{true, true}, std::pair{true, false}, std::pair{false, true}}) {
    check(static_cast<fp16*>(nullptr), wants_q, wants_k);
    check(static_cast<float*>(nullptr), wants_q, wants_k);
  }
}
#endif

TEST_CASE("in any order blocks divide the queries of tiles of keys") {
  case_options o;
  o.batch = 2, o.heads = 3, o.seq_q = 2100;  // 24 tiles of keys, 17 of queries in two parts
  test_divided_queries<fp16, 64>(o, 132, 0);
#if !defined(GIWA_TEST_FEW_SIZES)
  o.seq_q = 1100;
  test_divided_queries<bf16, 128>(o, 132, 0);
  test_divided_queries<fp16, 96>(o, 17, 17);
  o.batch = o.heads = 1, o.seq_q = 4000;  // 4 tiles of keys, 63 of queries in seven parts
  test_divided_queries<bf16, 128>(o, 132, 0);
#endif
}

TEST_CASE("numbers that a pair does not see do not reach it") {
  test_hostile_numbers<float>();
#if !defined(GIWA_TEST_FEW_SIZES)
  test_hostile_numbers<bf16>();
  test_hostile_numbers<fp16, 128>();
  test_hostile_numbers<fp16, 256>();
#endif
}

namespace {

/// dq, dk and dv of a case where a score modifier adds `least` to all scores of some rows.
template <class T, int HeadSize>
std::vector<float> gradients_with_rows_masked_by(float least) {
  case_options o;
  o.batch = 2, o.heads = 2, o.kv_heads = 1, o.seq_q = 150, o.seq_k = 200, o.head_size = o.head_size_v = HeadSize;
  o.align = giwa::alignment::bottom_right;
  backward_case<T> c(o);
  answers_of(c, causal{}, rows_masked_by{least});  // computes o and lse
  REQUIRE((run<HeadSize, HeadSize>(c, causal{}, rows_masked_by{least})) == "");
  std::vector<float> all = c.dq.template elements<float>();
  for (auto* each : {&c.dk, &c.dv}) {
    const std::vector<float> of_each = each->template elements<float>();
    all.insert(all.end(), of_each.begin(), of_each.end());
  }
  return all;
}

template <class T, int HeadSize>
void test_rows_masked_by_finite_numbers() {
  const std::vector<float> expected = gradients_with_rows_masked_by<T, HeadSize>(-INFINITY);
  CHECK(std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
  for (const float least : {-1e9f, std::numeric_limits<float>::lowest()})
    CHECK(same_bits(gradients_with_rows_masked_by<T, HeadSize>(least), expected));
}

}  // namespace

TEST_CASE("rows that a finite number masks as a whole have the gradients of rows without keys") {
  test_rows_masked_by_finite_numbers<fp16, 64>();
#if !defined(GIWA_TEST_FEW_SIZES)
  test_rows_masked_by_finite_numbers<float, 64>();
  test_rows_masked_by_finite_numbers<bf16, 256>();
#endif
}

namespace {

/// Empty, or what is wrong where the rows of each tensor are multiplied by powers of two from 2^-reach to 2^reach, those of q and
/// k by less, and dout by `size` too.
template <int HeadSize, int HeadSizeV>
std::string fault_of_magnitude(float size, int reach) {
  case_options o;
  o.heads = 4, o.kv_heads = 2, o.seq_q = 150, o.seq_k = 200, o.head_size = HeadSize, o.head_size_v = HeadSizeV;
  o.align = giwa::alignment::bottom_right;
  backward_case<float> c(o);
  const auto multiply = [&](auto& b, float factor, int most) {
    const auto v = b.view();
    for (int64 row = 0; row < v.extent(1); ++row)
      for (int64 head = 0; head < v.extent(2); ++head)
        for (int64 i = 0; i < v.extent(3); ++i)
          v(0, row, head, i) *= std::ldexp(factor, static_cast<int>((row * 7 + head) % (2 * most + 1)) - most);
  };
  multiply(c.of.q, 1, reach / 8), multiply(c.of.k, 1, reach / 8), multiply(c.of.v, 1, reach);
  multiply(c.dout, size, reach);
  const backward_answers a = answers_of(c, causal{}, giwa::softcap{5});
  const std::string refused = run<HeadSize, HeadSizeV>(c, causal{}, giwa::softcap{5});
  return refused.empty() ? judge(c, a) : refused;
}

/// dq of a case by this accuracy.
template <class How>
std::vector<float> dq_by(backward_case<float>& c) {
  c.clear_outputs();
  const backward_on_gpu<float, float, float> gpu(c);
  const giwa::stream s = new_stream();
  const auto a = gpu.views();
  giwa::throw_if_failed(giwa::attention_backward<33, giwa_test::accuracy_of<How>>(
      s, a.in.q, a.in.k, a.in.v, a.in.o, a.dout, a.dq, a.dk, a.dv, causal{}, giwa::softcap{5},
      giwa_test::with_lse(gpu.call_options(), a.lse)));
  gpu.read_back();
  return c.dq.template elements<float>();
}

}  // namespace

TEST_CASE("rows of fp32 may have any magnitude") {
  for (const int reach : {0, 20})
    for (const float size : {1.0f, 1e-20f, 1e15f}) {
      CHECK((fault_of_magnitude<33, 33>(size, reach)) == "");
#if !defined(GIWA_TEST_FEW_SIZES)
      CHECK((fault_of_magnitude<128, 72>(size, reach)) == "");
#endif
    }
}

#if !defined(GIWA_TEST_FEW_SIZES)
TEST_CASE("fp32_exact needs no more than the least workspace, and tf32 rounds to 11 bits") {
  case_options o;
  o.heads = 2, o.seq_q = o.seq_k = 200, o.head_size = o.head_size_v = 33;
  backward_case<float> c(o);
  const backward_answers a = answers_of(c, causal{}, giwa::softcap{5});
  const auto error = [&](const std::vector<float>& dq) {
    double squares = 0, all = 0;
    for (std::size_t i = 0; i < dq.size(); ++i) {
      const double x = a.dq.reference[i], off = static_cast<double>(dq[i]) - x;
      squares += off * off, all += x * x;
    }
    return std::sqrt(squares / all);
  };
  const std::vector<float> fast = dq_by<giwa::fp32>(c), rounded = dq_by<giwa::tf32>(c),
                           exact = dq_by<giwa::fp32_exact>(c);
  CHECK(error(fast) < 1e-6);
  CHECK(error(exact) < 1e-6);
  CHECK(error(rounded) < 1e-3);
  c.has_least_workspace = true;
  CHECK(same_bits(exact, dq_by<giwa::fp32>(c)));
  if (giwa::detail::path_here().value == giwa::attention_path::sm90) {
    CHECK(error(rounded) > 1e-5);
    CHECK(!same_bits(fast, exact));
  }
}
#endif

TEST_CASE("a bias receives its gradient, and the call can be captured in a graph") {
  CHECK(worst_of_bias<float>() < 1e-5);
  CHECK(worst_of_bias<float>(1, 2) < 2e-5);
#if !defined(GIWA_TEST_FEW_SIZES)
  CHECK(worst_of_bias<fp16>() < 5e-3);  // o is rounded
  CHECK(worst_of_bias<fp16>(2, 1) < 1e-2);
  CHECK(worst_of_bias<fp16>(1, 1) < 2e-2);
#endif
}

namespace {

/// The gradients of the parameters of a score modifier, twice with the same bits; in the third call the last key is NaN,
/// which only the last query of two heads sees.
template <class T>
void test_parameters(double tolerance) {
  case_options o;
  o.batch = 2, o.heads = 4, o.kv_heads = 2, o.seq_q = 150, o.seq_k = 200, o.head_size = o.head_size_v = 20;
  o.align = giwa::alignment::bottom_right;
  backward_case<T> c(o);
  trained_parameters expected(o.heads);
  const backward_answers a = answers_of(c, causal{}, expected.score());
  const gpu_array<float> values(expected.values);
  std::vector<float> first;
  for (const bool bad : {false, false, true}) {
    trained_parameters got(o.heads);
    const gpu_array<float> gradients(got.gradients);
    const auto score = trained_parameters::score(values.data(), gradients.data(), o.heads);
    if (bad) c.of.k.view()(0, 199, 0, 3) = giwa::convert<T>{}(NAN);
    c.clear_outputs();
    const backward_on_gpu<T, T, T> gpu(c, score);
    const giwa::stream s = new_stream();
    REQUIRE(backward_of<20, 20>(s, gpu.views(), causal{}, score, gpu.call_options()).ok());
    gpu.read_back();
    got.gradients = gradients.to_host();
    if (bad) {
      for (std::size_t i = 0; i < got.gradients.size(); ++i)
        CHECK(std::isnan(got.gradients[i]) == ((i < 8 ? i / 2 : i - 8) < 2));
      continue;
    }
    CHECK(judge(c, a) == "");
    CHECK(got.fault(expected, tolerance) == "");
    CHECK((first.empty() || same_bits(first, got.gradients)));
    first = got.gradients;
  }
}

}  // namespace

TEST_CASE("parameters of a score modifier receive their gradients") {
  test_parameters<float>(1e-5);
#if !defined(GIWA_TEST_FEW_SIZES)
  test_parameters<fp16>(5e-3);  // o is rounded
#endif
}

TEST_CASE("a call without enough workspace is refused, and says how much it needs") {
  case_options o;
  o.heads = 3, o.seq_q = o.seq_k = 50, o.head_size = o.head_size_v = 20;
  backward_case<float> c(o);
  c.has_least_workspace = true;
  run_forward(c, segments_mask{}, giwa::plain_score{});
  c.clear_outputs();
  const backward_on_gpu<float, float, float> gpu(c);
  const giwa::stream s = new_stream();
  const auto refused = [&](giwa::attention_backward_options options) {
    const giwa::status state = backward_of<20, 20>(s, gpu.views(), segments_mask{}, giwa::plain_score{}, options);
    return state.argument == std::string_view("workspace") ? state.expected : -1;
  };
  auto options = gpu.call_options();
  CHECK(gpu.workspace.size() == 50 * 3 * 8 + 16);
  options.workspace = {};
  CHECK(refused(options) == 50 * 3 * 8 + 16);
  options.workspace = {gpu.workspace.data(), {50 * 3 * 8 + 15}};
  CHECK(refused(options) == 50 * 3 * 8 + 16);
  auto views = gpu.views();
  views.dk = c.dk.view();  // memory of the host
  const giwa::status state = backward_of<20, 20>(s, views, segments_mask{}, giwa::plain_score{}, gpu.call_options());
  CHECK(state.argument == std::string_view("dk"));
  gpu.read_back();
  CHECK(c.dq.written() + c.dk.written() + c.dv.written() == 0);
  CHECK(no_error_left());
}

namespace {

/// The gradients of some sequences, of all heads. dq, dk and dv are the parts of t's gradients.
template <class T, int HeadSize, class Mask>
struct some_gradients {
  std::vector<T> dq, dk, dv;

  some_gradients(const plain_tensors<T>& t, const gpu_array<T>& dout, int64 first, int64 count, const Mask& mask) {
    const giwa::stream s = new_stream();
    gpu_array<T> to_q(t.q.size()), to_k(t.k.size()), to_v(t.v.size());
    to_q.fill(0xff), to_k.fill(0xff), to_v.fill(0xff);
    const auto like = [](const view_4<const T>& v, const gpu_array<T>& memory) {
      return view_4<T>(memory.data(), v.extents());
    };
    const auto of = [&](const auto& v) { return part_of(v, first, count); };
    const auto bytes = giwa::detail::backward_workspace_bytes(
        {count, t.seq_q, t.seq_k, t.heads, t.kv_heads, HeadSize, HeadSize, int64{sizeof(T)}});
    gpu_array<unsigned char> workspace(static_cast<std::size_t>(bytes));
    workspace.fill(0xff);
    check_cuda(cudaDeviceSynchronize());
    giwa::throw_if_failed(giwa::attention_backward<HeadSize>(
        s, of(t.q_view()), of(t.k_view()), of(t.v_view()), of(t.o_view()), of(like(t.q_view(), dout)),
        of(like(t.q_view(), to_q)), of(like(t.k_view(), to_k)), of(like(t.v_view(), to_v)), mask, giwa::plain_score{},
        {.lse = of(t.lse_view()), .workspace = {workspace.data(), {bytes}}}));
    check_cuda(cudaStreamSynchronize(s));
    dq = to_q.to_host(), dk = to_k.to_host(), dv = to_v.to_host();
  }
  template <class V>
  static V part_of(const V& v, int64 first, int64 count) {
    auto extents = v.extents();
    extents[0] = count;
    return V(v.data() + first * v.stride(0), extents, v.strides());
  }
};

/// A sequence's gradients alone have the bits that they have in a batch. More keys than one kernel for all gradients needs.
template <class T, int HeadSize, class Mask>
void test_alone(const Mask& mask) {
  const int64 queries = small_mode() ? 150 : 700, keys = small_mode() ? 300 : 1300;
  const plain_tensors<T> t(3, queries, keys, 4, 2, HeadSize);
  gpu_array<T> dout(t.o.size());
  fill_normal(dout, 4);
  {
    const giwa::stream s = new_stream();
    giwa::throw_if_failed(giwa::attention_forward<HeadSize>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask,
                                                            giwa::plain_score{}, {.lse = t.lse_view()}));
    check_cuda(cudaStreamSynchronize(s));
  }
  using gradients = some_gradients<T, HeadSize, Mask>;
  const gradients batch(t, dout, 0, 3, mask), alone(t, dout, 1, 1, mask);
  const auto different = [](const std::vector<T>& a, const std::vector<T>& b) {
    const auto third = static_cast<std::ptrdiff_t>(a.size() / 3);
    return !same_bits(std::vector<T>(a.begin() + third, a.begin() + 2 * third),
                      std::vector<T>(b.begin() + third, b.begin() + 2 * third));
  };
  CHECK(!different(batch.dq, alone.dq));
  CHECK(!different(batch.dk, alone.dk));
  CHECK(!different(batch.dv, alone.dv));
}

}  // namespace

TEST_CASE("the gradients of a sequence have the same bits alone and in a batch") {
  test_alone<fp16, 64>(causal::top_left);
#if !defined(GIWA_TEST_FEW_SIZES)
  test_alone<fp16, 64>(giwa::full{});
  test_alone<fp16, 128>(causal::bottom_right);
  test_alone<float, 64>(causal::bottom_right);
  test_alone<fp16, 128>(giwa::sliding_window{200, giwa::alignment::bottom_right});
#endif
}

#if !defined(GIWA_TEST_FEW_SIZES)
TEST_CASE("NaN reaches the rows that see it in the kernel of all gradients") {
  using giwa::detail::long_sequences;
  test_nan_under_causal_mask<fp16, 64>(300, 300, 2, 2);
  test_nan_under_causal_mask<fp16, 128>(300, 300, 2, 2);
  test_nan_under_causal_mask<fp16, 128>(long_sequences::causal + 17, long_sequences::keys, 1, 1);
}
TEST_CASE("a bad component of a key reaches the queries that see it") {
  test_bad_component<fp16, 64>(300, 2, 2);
  test_bad_component<bf16, 96>(300, 2, 2);
  test_bad_component<fp16, 128>(300, 4, 2, true);
}
#endif
