// SPDX-License-Identifier: MIT
// Dropout: its decisions, their order in accumulators of the tensor cores, and attention_forward with it on the CPU.
#include <giwa/numeric/constants.hpp>
#include <giwa/tile/register_map.hpp>

#include <cmath>
#include <numeric>
#include <vector>

#include "host/attention/check.hpp"
#include "host/attention/simt_cases.cuh"

namespace {

using namespace giwa_test;
using giwa::dropout;
using giwa::detail::dropout_bits;

dropout_bits bits_of(const dropout<>& d, int batch = 0, int head = 0) { return {d, d.key(), batch, head}; }

constexpr int tested = 512, step_most = 16, width = tested + step_most;

/// The decisions for queries and keys below `width`.
std::vector<char> decisions_of(const dropout_bits& bits) {
  std::vector<char> kept;
  for (int query = 0; query < width; ++query)
    for (int key = 0; key < width; ++key) kept.push_back(bits(query, key) ? 1 : 0);
  return kept;
}
bool at(const std::vector<char>& kept, int query, int key) {
  return kept[static_cast<std::size_t>(query * width + key)] != 0;
}

/// The share of 512 x 512 pairs of a query and a key for which f(query, key) is true.
template <class F>
double share(const F& f) {
  int64 count = 0;
  for (int query = 0; query < tested; ++query)
    for (int key = 0; key < tested; ++key) count += f(query, key) ? 1 : 0;
  return static_cast<double>(count) / (tested * tested);
}

/// The variance of the number of kept weights in sets of `size` weights each, over that of independent weights; and how far
/// it may be from 1, five standard deviations. number_of(query, key) is the set of a weight.
template <class F>
double variance_fault(const std::vector<char>& kept, double keep, int size, const F& number_of) {
  const int sets = tested * tested / size;
  std::vector<int> counts(static_cast<std::size_t>(sets));
  for (int query = 0; query < tested; ++query)
    for (int key = 0; key < tested; ++key)
      counts[static_cast<std::size_t>(number_of(query, key))] += at(kept, query, key) ? 1 : 0;
  const double expected = size * keep * (1 - keep), excess = (1 - 6 * keep * (1 - keep)) / expected;
  double sum = 0;
  for (const int count : counts) sum += (count - size * keep) * (count - size * keep) / expected;
  return std::abs(sum / sets - 1) / (5 * std::sqrt((2 + excess) / sets));
}

}  // namespace

TEST_CASE("weights are kept with the probability 1 - p, independently of their neighbours") {
  for (const float p : {0.001f, 0.1f, 0.5f, 0.9f, 0.9999f}) {
    const dropout<> d(p, 42);
    CHECK(std::abs(d.rounded_probability() - p) <= (p > 0.01f && p < 0.99f ? 1 / 512.0f : 1 / 256.0f));
    const double keep = 1 - static_cast<double>(d.rounded_probability()), same = keep * keep + (1 - keep) * (1 - keep);
    // Five standard deviations of a mean of 512 x 512 independent numbers.
    const double of_mean = 5 * std::sqrt(keep * (1 - keep)) / tested,
                 of_same = 5 * std::sqrt(same * (1 - same)) / tested;
    const std::vector<char> a = decisions_of(bits_of(d));
    CHECK(std::abs(share([&](int q, int k) { return at(a, q, k); }) - keep) < of_mean);
    for (const int step : {1, 2, 4, 8, 16})
      for (const auto& [query, key] : {std::pair(step, 0), std::pair(0, step), std::pair(step, step)})
        CHECK(std::abs(share([&](int q, int k) { return at(a, q, k) == at(a, q + query, k + key); }) - same) < of_same);
    CHECK(variance_fault(a, keep, tested, [](int q, int) { return q; }) < 1);
    CHECK(variance_fault(a, keep, tested, [](int, int k) { return k; }) < 1);
    // The groups of dropout_bits, and the squares of a warp.
    const auto square = [](int q, int k) { return q / 16 * (tested / 16) + k / 16; };
    CHECK(variance_fault(a, keep, 256, square) < 1);
    CHECK(variance_fault(a, keep, 32, [&](int q, int k) { return square(q, k) * 8 + (q & 4) + k / 2 % 4; }) < 1);
    const giwa::uint64 offsets[2] = {0, 1};
    const dropout<> moved(p, 42, {}, &offsets[1]);
    for (const dropout_bits& other : {bits_of(d, 1), bits_of(d, 0, 1), bits_of(moved)}) {
      const std::vector<char> b = decisions_of(other);
      CHECK(std::abs(share([&](int q, int k) { return at(a, q, k) == at(b, q, k); }) - same) < of_same);
    }
    const dropout<> other_seed(p, 43), not_moved(p, 42, {}, &offsets[0]);
    const std::vector<char> b = decisions_of(bits_of(other_seed));
    CHECK(std::abs(share([&](int q, int k) { return at(a, q, k) == at(b, q, k); }) - same) < of_same);
    CHECK(decisions_of(bits_of(not_moved)) == a);
  }
  dropout<> later(0.5f, 42);
  later.first_batch = 3, later.first_head = 2;
  const dropout<> whole(0.5f, 42);
  CHECK(decisions_of(bits_of(later, 1, 5)) == decisions_of(bits_of(whole, 4, 7)));
}

TEST_CASE("the decisions of a seed stay what they are") {
  const dropout_bits bits = bits_of(dropout<>(0.25f, 2026), 3, 5);
  std::string rows;
  for (int query = 0; query < 3; ++query)
    for (int key = 0; key < 20; ++key) rows += bits(query, 1000 + key) ? '1' : '0';
  CHECK(rows == "011111001110111100101101101001111111001111100010111001111100");
}

namespace {

/// Counts the registers of all threads of an accumulator that have another decision than their pair of a query and a key.
template <class Map, bool RowsAreKeys>
struct wrong_registers_op {
  struct params {
    dropout<> drop;
    int* wrong;
  };
  struct shared_storage {};
  static constexpr int max_threads = Map::threads, min_blocks = 1;
  template <class Block>
  void operator()(Block block, const params& p, shared_storage&) const {
    const dropout_bits bits = bits_of(p.drop, 1, 1);
    const int first_row = 48, first_column = 1024, thread = block.rank();
    giwa::detail::kept_tile<Map, RowsAreKeys> kept;
    kept.find(block, bits, thread, first_row, first_column);
    giwa::uint32 operand[2][Map::registers / 2];
    for (auto& part : operand)
      for (auto& two : part) two = ~0u;
    kept.clear(operand);
    for (int i = 0; i < Map::registers; ++i) {
      const int row = first_row + Map::row(thread, Map::slot(i)), column = first_column + Map::column(thread, i);
      const bool expected = RowsAreKeys ? bits(column, row) : bits(row, column);
      p.wrong[thread] += kept[i] != expected ? 1 : 0;
      for (const auto& part : operand)
        p.wrong[thread] += (part[i / 2] >> 16 * (i % 2) & 0xffff) != (expected ? 0xffffu : 0u) ? 1 : 0;
    }
  }
};

/// How many they are.
template <class Map, bool RowsAreKeys>
int wrong_registers() {
  std::vector<int> wrong(std::size_t{Map::threads});
  using op = wrong_registers_op<Map, RowsAreKeys>;
  const giwa::status s =
      giwa::launch(giwa::host, {.grid = 1, .block = Map::threads}, op{}, {dropout(0.4f, 5), wrong.data()});
  return s.ok() ? std::accumulate(wrong.begin(), wrong.end(), 0) : -1;
}

}  // namespace

TEST_CASE("threads of the tensor cores find their decisions, be the rows queries or keys") {
  CHECK(wrong_registers<giwa::warp_map<32, 48>, false>() == 0);
  CHECK(wrong_registers<giwa::warp_map<32, 48>, true>() == 0);
  CHECK(wrong_registers<giwa::warp_map<64, 32>, false>() == 0);
  CHECK(wrong_registers<giwa::warpgroup_map<176>, false>() == 0);
  CHECK(wrong_registers<giwa::warpgroup_map<80>, true>() == 0);
  CHECK(wrong_registers<giwa::warpgroup_map<128>, false>() == 0);
  CHECK(wrong_registers<giwa::warpgroup_map<128>, true>() == 0);
}

TEST_CASE("the CPU path and the kernel of ordinary arithmetic drop the weights of the reference") {
  faults f;
  for (int i = 0; i < 6; ++i) {
    case_options c;
    c.seed = static_cast<uint64>(i);
    c.batch = 2, c.heads = 4, c.kv_heads = 2;
    c.seq_q = i == 1 ? 1 : i == 3 ? 600 : 50 + 20 * i, c.seq_k = 97;  // 600: tiles that begin off a multiple of 16
    c.sinks = i % 2 == 1;
    c.align = giwa::alignment::bottom_right;
    if (i == 4) c.q_lengths = {5, 0, 70}, c.k_lengths = {100, 8, 60};
    const float p = i == 2 ? 0.9f : 0.1f;
    f.add(fault_of<float, 20>(c, giwa::causal{}, dropout(p, 77)));
    f.add(fault_of<giwa::fp16, 24>(c, giwa::full{}, dropout(p, 77, giwa::softcap(5))));
    c.head_size = 12, c.head_size_v = 20;
    attention_case<float> of_kernel(c);
    const dropout drop(p, 77, wavy_score{});
    const giwa::status s = run_simt<12, 20>(of_kernel.views(), giwa::causal{}, drop, of_kernel.call_options());
    f.add(s.ok() ? judge(of_kernel, answers_of(of_kernel, giwa::causal{}, drop)).failure : s.message);
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("a sequence drops the same weights alone and packed, and a batch in one call and in two") {
  case_options c;
  c.batch = 3, c.heads = 2, c.kv_heads = 2, c.seq_q = c.seq_k = 40, c.head_size = c.head_size_v = 20;
  attention_case<float> all(c);
  REQUIRE((run<20>(all, giwa::causal{}, dropout(0.3f, 5))) == "");
  const std::vector<float> o = all.o.elements<float>();

  std::vector<float> packed(o.size()), parts(o.size());
  const int offsets[] = {0, 40, 80, 120};
  const auto a = all.views();
  const auto flat = [](const auto& v) { return giwa::tensor_view<const float, 3>(v.data(), {120, 2, 20}); };
  REQUIRE(giwa::attention_forward<20>(giwa::host, flat(a.q), flat(a.k), flat(a.v),
                                      giwa::tensor_view<float, 3>(packed.data(), {120, 2, 20}), giwa::causal{},
                                      dropout(0.3f, 5), {.lse = {}, .sequences = {offsets, offsets, 3, 40}})
              .ok());
  CHECK(packed == o);
  for (const int64 first : {0, 2}) {
    const int64 count = first == 0 ? 2 : 1;
    const auto part = [&](const auto* data) {
      return giwa::tensor_view<const float, 4>(data + first * 1600, {count, 40, 2, 20});
    };
    dropout<> d(0.3f, 5);
    d.first_batch = static_cast<int>(first);
    REQUIRE(giwa::attention_forward<20>(giwa::host, part(a.q.data()), part(a.k.data()), part(a.v.data()),
                                        giwa::tensor_view<float, 4>(parts.data() + first * 1600, {count, 40, 2, 20}),
                                        giwa::causal{}, d)
                .ok());
  }
  CHECK(parts == o);

  attention_case<float> none(c), plain(c);
  REQUIRE((run<20>(none, giwa::causal{}, dropout(0, 5))) == "");
  REQUIRE((run<20>(plain, giwa::causal{})) == "");
  CHECK(none.o.elements<float>() == plain.o.elements<float>());
  CHECK(none.o.elements<float>() != o);
  CHECK(none.lse.elements<float>() == all.lse.elements<float>());  // lse is that of all weights
}

TEST_CASE("a probability or a number out of range is refused") {
  case_options c;
  c.heads = c.kv_heads = 1, c.seq_q = c.seq_k = 3, c.head_size = c.head_size_v = 20;
  attention_case<float> a(c);
  for (const float p : {-0.1f, 1.0f, 2.0f, std::nanf("")}) {
    const std::string message = run<20>(a, giwa::causal{}, dropout(p, 5));
    CHECK(message.find("the probability must be at least 0 and less than 1") != std::string::npos);
  }
  for (const float p : {0.0f, 0.5f}) {
    dropout<> d(p, 5);
    d.first_head = -1;
    CHECK(run<20>(a, giwa::causal{}, d).find("must not be negative") != std::string::npos);
  }
  CHECK(run<20>(a, giwa::causal{}, dropout(0, 5, giwa::softcap(-1))).find("softcap") != std::string::npos);
}
