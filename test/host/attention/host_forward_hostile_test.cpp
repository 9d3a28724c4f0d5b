// SPDX-License-Identifier: MIT
// attention_forward on the CPU in hostile cases: NaN and infinity, empty rows, sinks, unusual scales, large strides, equal bits.
#include <algorithm>

#include <sys/mman.h>

#include "host/attention/check.hpp"
#include "support/same_bits.hpp"

namespace {

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;

constexpr float infinity = HUGE_VALF;

/// Returns how many elements of the rows [first_row, last_row) of o differ from `value`.
template <class T, class O>
int64 rows_unlike(const attention_case<T, O>& c, int64 first_row, int64 last_row, double value) {
  const auto o = c.o.template elements<double>();
  int64 unlike = 0;
  for (int64 i = first_row * c.options.head_size_v; i < last_row * c.options.head_size_v; ++i)
    unlike += o[static_cast<std::size_t>(i)] == value ? 0 : 1;
  return unlike;
}

case_options square(int64 queries, int64 keys) {
  case_options c;
  c.seq_q = queries;
  c.seq_k = keys;
  c.head_size = c.head_size_v = 16;
  return c;
}

/// Returns a case in which all keys and values from number `first` on are `key` and `value`.
template <class T>
attention_case<T> poisoned(const case_options& options, int64 first, float key, float value) {
  attention_case<T> c(options);
  for (int64 j = first; j < options.seq_k; ++j)
    for (int64 i = 0; i < options.head_size; ++i) {
      c.k.view()(0, j, 0, i) = giwa::convert<T>{}(key);
      c.v.view()(0, j, 0, i) = giwa::convert<T>{}(value);
    }
  return c;
}

}  // namespace

TEMPLATE_TEST_CASE("NaN and infinity in masked keys never reach a row", "", float, fp16, bf16) {
  faults f;
  for (const float bad : {NAN, infinity, -infinity})
    for (const int64 first : {1, 40, 64, 90}) {
      // The mask is causal: rows from `first` on see the poison, rows before must not.
      auto c = poisoned<TestType>(square(100, 100), first, bad, bad);
      f.add(fault<16>(c, causal{}));
      CHECK(std::isfinite(giwa::convert<float>{}(c.o.view()(0, first - 1, 0, 3))));
      CHECK(std::isnan(giwa::convert<float>{}(c.o.view()(0, 99, 0, 3))));
      auto values = poisoned<TestType>(square(100, 100), first, 0.5f, bad);
      f.add(fault<16>(values, causal{}));
      auto kept_by_none = poisoned<TestType>(square(70, 100), first, bad, bad);
      f.add(fault<16>(kept_by_none, giwa::prefix{static_cast<int>(first)}));
      CHECK(rows_unlike(kept_by_none, 0, 70, HUGE_VAL) == 70 * 16);
    }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("a NaN in a query changes only its own row") {
  attention_case<float> c(square(30, 70));
  c.q.view()(0, 7, 0, 3) = NAN;
  CHECK(fault<16>(c) == "");
  int64 bad = 0;
  for (const double x : c.o.elements<double>()) bad += std::isnan(x) ? 1 : 0;
  CHECK(bad == 16);
}

TEST_CASE("infinite and very negative scores, with and without masked keys") {
  faults f;
  for (const float number : {infinity, -infinity, 3e38f, -3e38f, -1e30f, 100.0f, -100.0f})
    for (const int which : {0, 1, 2}) {
      std::vector<float> add(70);
      for (std::size_t j = 0; j < add.size(); ++j)
        add[j] = which == 0 ? number : which == 1 ? (j == 40 ? number : 0) : (j % 2 == 0 ? number : -infinity);
      const giwa::bias b{tensor_view<const float, 4>(add.data(), {1, 1, 1, 70})};
      f.add(fault_of<float, 16>(square(70, 70), giwa::full{}, b));
      f.add(fault_of<float, 16>(square(70, 70), causal{}, b));
      f.add(fault_of<float, 16>(square(70, 70), giwa::sliding_window{3}, b));
    }
  CHECK_NO_FAULTS(f);

  attention_case<float> lowest(square(1, 70));  // scores of -3e38 give an average, not an empty row
  std::vector<float> add(70, -3e38f);
  const giwa::bias b{tensor_view<const float, 4>(add.data(), {1, 1, 1, 70})};
  CHECK(fault<16>(lowest, giwa::prefix{2}, b) == "");
  CHECK(lowest.lse.view()(0, 0, 0) == -3e38f);
  const float average = (lowest.v.view()(0, 0, 0, 0) + lowest.v.view()(0, 1, 0, 0)) / 2;
  CHECK(std::abs(lowest.o.view()(0, 0, 0, 0) - average) < 1e-6f);
}

TEST_CASE("a key with a score of -infinity counts as masked") {
  attention_case<float> c(square(20, 70));
  for (int64 i = 0; i < 20; ++i) c.q.view()(0, i, 0, 0) = 1 + c.q.view()(0, i, 0, 0) * c.q.view()(0, i, 0, 0);
  for (int64 j = 5; j < 70; ++j) c.k.view()(0, j, 0, 0) = -infinity;
  CHECK(fault<16>(c) == "");
  const auto unmasked = c.o.elements<float>();
  for (const float x : unmasked) REQUIRE(std::isfinite(x));
  c.clear_outputs();
  REQUIRE(run<16>(c, giwa::prefix{5}).empty());
  CHECK(same_bits(unmasked, c.o.elements<float>()));

  for (int64 j = 0; j < 5; ++j) c.k.view()(0, j, 0, 0) = -infinity;  // all scores are -inf: a row without keys
  c.clear_outputs();
  CHECK(fault<16>(c) == "");
  CHECK(rows_unlike(c, 0, 20, 0.0) == 0);
  CHECK(c.lse.view()(0, 0, 19) == -infinity);
}

TEST_CASE("the output is finite up to n max|v| = 3.4e38 and overflows beyond") {
  // Equal scores, so every weight is 1: the bound n max|v| <= 3.4e38 of docs/numerics.md is exact.
  const auto largest = [](int64 keys, float value) {
    attention_case<float> c(square(3, keys));
    for (int64 i = 0; i < 3; ++i)
      for (int64 d = 0; d < 16; ++d) c.q.view()(0, i, 0, d) = 0;
    for (int64 j = 0; j < keys; ++j)
      for (int64 d = 0; d < 16; ++d) c.v.view()(0, j, 0, d) = value;
    REQUIRE(run<16>(c).empty());
    return c.o.view()(0, 1, 0, 7);
  };
  CHECK(std::abs(largest(3, 1e38f) / 1e38f - 1) < 1e-6f);
  CHECK(std::abs(largest(1024, -3.3e35f) / -3.3e35f - 1) < 1e-5f);
  CHECK(largest(4, 1e38f) == infinity);
  CHECK(largest(1024, -3.4e35f) == -infinity);
}

TEST_CASE("rows without keys give 0 and an lse of -infinity") {
  attention_case<float> c(square(100, 30));  // causal with more queries than keys: 70 rows see nothing
  CHECK(fault<16>(c, causal::bottom_right) == "");
  CHECK(rows_unlike(c, 0, 70, 0.0) == 0);
  CHECK(rows_unlike(c, 70, 71, 0.0) == 16);
  for (int64 i = 0; i < 70; ++i) REQUIRE(c.lse.view()(0, 0, i) == -infinity);

  attention_case<float> nothing(square(10, 40));
  CHECK(fault<16>(nothing, !giwa::full{}) == "");
  CHECK(rows_unlike(nothing, 0, 10, 0.0) == 0);

  attention_case<float> no_keys(square(10, 0));
  CHECK(fault<16>(no_keys) == "");
  CHECK(rows_unlike(no_keys, 0, 10, 0.0) == 0);
  CHECK(no_keys.lse.view()(0, 0, 9) == -infinity);
}

TEST_CASE("an empty problem succeeds and writes nothing") {
  for (const int which : {0, 1, 2}) {
    case_options c = square(which == 0 ? 0 : 5, 7);
    if (which == 1) c.batch = 0;
    if (which == 2) c.heads = c.kv_heads = 0;
    attention_case<float> a(c);
    CHECK(run<16>(a).empty());
    CHECK(a.o.written() + a.lse.written() == 0);
  }
}

TEST_CASE("a sink is part of the sum and has no value") {
  case_options c = square(50, 70);
  c.heads = 4;
  c.kv_heads = 2;
  c.sinks = true;
  faults f;
  f.add(fault_of<float, 16>(c));
  c.align = giwa::alignment::bottom_right;
  f.add(fault_of<fp16, 16>(c, causal{}, giwa::softcap{2}));
  f.add(fault_of<float, 16>(c, giwa::sliding_window{3}));
  c.q_lengths = {20, 0, 30};
  c.k_lengths = {0, 5, 65};
  f.add(fault_of<bf16, 16>(c, causal{}));
  CHECK_NO_FAULTS(f);

  case_options few = square(3, 0);  // no key: o is 0, lse is the sink
  few.sinks = true;
  attention_case<float> a(few);
  CHECK(fault<16>(a) == "");
  CHECK(rows_unlike(a, 0, 3, 0.0) == 0);
  CHECK(a.lse.view()(0, 0, 2) == a.sinks.view()(0));
  for (const float sink : {-infinity, infinity, NAN, -3e38f, 3e38f}) {
    case_options odd = square(3, 9);
    odd.sinks = true;
    attention_case<float> b(odd);
    b.sinks.view()(0) = sink;
    CHECK(fault<16>(b) == "");
  }
}

TEST_CASE("a sum over 2^20 keys is as exact as a short one") {
  // Equal weights and values: every addition rounds the same way. In one chain of additions the error was 3e-3.
  constexpr int64 keys = int64{1} << 20;
  for (const bool equal : {true, false}) {
    const giwa::philox random(3);
    std::vector<float> q(8), k(keys * 8), v(keys * 8), o(8);
    std::vector<double> exact(8);
    q[0] = 1;
    for (int64 j = 0; j < keys; ++j) {
      const auto n = static_cast<std::size_t>(j * 8);
      k[n] = equal ? (j == 0 ? 0.0f : -0.3f) : random.uniform<float>(static_cast<uint64>(j));
      for (std::size_t d = 0; d < 8; ++d) v[n + d] = equal ? 1.1f : 10 + random.uniform<float>(keys + n + d);
    }
    const tensor_view<const float, 4> query(q.data(), {1, 1, 1, 8}), key(k.data(), {1, keys, 1, 8}),
        value(v.data(), {1, keys, 1, 8});
    giwa::attention_options options;
    options.scale = 1.0f;
    REQUIRE(giwa::attention_forward<8>(giwa::host, query, key, value, tensor_view<float, 4>(o.data(), {1, 1, 1, 8}),
                                       giwa::full{}, giwa::plain_score{}, options)
                .ok());
    REQUIRE(giwa::attention_reference(giwa::host, query, key, value, tensor_view<double, 4>(exact.data(), {1, 1, 1, 8}),
                                      giwa::full{}, giwa::plain_score{}, options)
                .ok());
    double worst = 0;
    for (std::size_t d = 0; d < 8; ++d) worst = std::max(worst, std::abs(o[d] / exact[d] - 1));
    CAPTURE(equal);
    CHECK(worst < 2e-5);
  }
}

TEST_CASE("a row gives identical bits alone and with rows that see other groups of keys") {
  // 10 segments of 500 keys and 3 queries: some end before key 2048, some begin after it, one crosses it.
  attention_case<float> all(square(30, 5000));
  std::vector<int> q_ids(30), k_ids(5000);
  for (std::size_t i = 0; i < q_ids.size(); ++i) q_ids[i] = static_cast<int>(i / 3);
  for (std::size_t j = 0; j < k_ids.size(); ++j) k_ids[j] = static_cast<int>(j / 500);
  const auto call = [&](const giwa::detail::attention_views<float, float>& a, const int* ids) {
    giwa::attention_options options;
    options.align = giwa::alignment::top_left;
    REQUIRE(forward_of<16, 16>(giwa::host, a, giwa::segment_ids{ids, k_ids.data(), 30, 5000, true}, giwa::plain_score{},
                               options)
                .ok());
  };
  call(all.views(), q_ids.data());
  int different = 0;
  for (int i = 0; i < 30; ++i) {
    std::vector<float> o(16, NAN);
    giwa::detail::attention_views<float, float> a = all.views();
    a.q = tensor_view<const float, 4>(&all.q.view()(0, i, 0, 0), {1, 1, 1, 16});
    a.o = tensor_view<float, 4>(o.data(), {1, 1, 1, 16});
    call(a, &q_ids[static_cast<std::size_t>(i)]);
    for (int d = 0; d < 16; ++d)
      different += std::memcmp(&o[static_cast<std::size_t>(d)], &all.o.view()(0, i, 0, d), sizeof(float)) != 0;
  }
  CHECK(different == 0);
}

TEST_CASE("scales of 0, negative and large ones") {
  faults f;
  for (const double scale : {0.0, -0.3, 1.0, 20.0, 1e-30, 1e-40}) {
    case_options c = square(40, 90);
    c.scale = scale;
    f.add(fault_of<float, 16>(c));
    f.add(fault_of<bf16, 16>(c, giwa::prefix{50}));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("a row gives identical bits alone, in a batch, in another tile and with other heads") {
  for (const bool masked : {false, true}) {
    case_options c = square(250, 150);
    c.batch = 3;
    c.heads = 6;
    c.kv_heads = 2;
    c.seq_q = masked ? 150 : 800;
    attention_case<float> all(c);
    const auto call = [&](const giwa::detail::attention_views<float, float>& a, giwa::attention_options options,
                          int first) {
      options.align = giwa::alignment::top_left;
      // The row sees the same keys as in the whole problem, where it is query `first`.
      const giwa::status s = masked ? forward_of<16, 16>(giwa::host, a, giwa::keys_ahead{first} & giwa::prefix{140},
                                                         giwa::softcap{3}, options)
                                    : forward_of<16, 16>(giwa::host, a, giwa::full{}, giwa::softcap{3}, options);
      REQUIRE(s.ok());
    };
    call(all.views(), all.call_options(), 0);
    int64 different = 0;
    for (const auto& [b, q, h] : {std::tuple{0, 0, 0}, {1, 149, 5}, {2, 77, 2}, {2, 140, 3}, {1, 23, 1}, {0, 24, 4}}) {
      std::vector<float> o(16, NAN), lse(1, NAN);
      giwa::detail::attention_views<float, float> a = all.views();
      const auto of_head = [&](const tensor_view<const float, 4>& v, int64 head) {
        return tensor_view<const float, 4>(&v(b, 0, head, 0), {1, v.extent(1), 1, 16}, v.strides());
      };
      a.q = tensor_view<const float, 4>(&all.q.view()(b, q, h, 0), {1, 1, 1, 16});
      a.k = of_head(a.k, h / 3);
      a.v = of_head(a.v, h / 3);
      a.o = tensor_view<float, 4>(o.data(), {1, 1, 1, 16});
      giwa::attention_options options{};
      options.lse = tensor_view<float, 3>(lse.data(), {1, 1, 1});
      call(a, options, q);
      for (int i = 0; i < 16; ++i)
        different += std::memcmp(&o[static_cast<std::size_t>(i)], &all.o.view()(b, q, h, i), sizeof(float)) != 0;
      different += std::memcmp(lse.data(), &all.lse.view()(b, h, q), sizeof(float)) != 0;
    }
    CHECK(different == 0);
  }
}

TEST_CASE("bits do not depend on masked keys") {
  auto clean = poisoned<float>(square(100, 100), 100, 0, 0), dirty = poisoned<float>(square(100, 100), 50, NAN, NAN);
  REQUIRE(run<16>(clean, causal{}).empty());
  REQUIRE(run<16>(dirty, causal{}).empty());
  auto a = clean.o.elements<float>(), b = dirty.o.elements<float>();
  a.resize(50 * 16);
  b.resize(50 * 16);
  CHECK(same_bits(a, b));
}

TEST_CASE("twenty calls give the same bits") {
  case_options c = square(300, 200);
  c.heads = 8;
  attention_case<bf16> a(c);
  REQUIRE(run<16>(a).empty());
  const auto first = a.o.memory;
  bool same = true;
  for (int i = 0; i < 20; ++i) {
    a.clear_outputs();
    REQUIRE(run<16>(a).empty());
    same = same && same_bits(first, a.o.memory);
  }
  CHECK(same);
}

TEST_CASE("rows more than 2^31 elements apart") {
  // Only the touched pages of these 72 GiB of addresses take memory.
  constexpr int64 stride = (int64{1} << 32) + 16, rows = 4;
  constexpr std::size_t bytes = static_cast<std::size_t>((rows + 0.5) * stride) * sizeof(float);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    WARN("the system gives no 72 GiB of addresses");
    return;
  }
  case_options c = square(rows, rows);
  attention_case<float> near(c);
  float* const base = static_cast<float*>(memory);
  const auto far = [&](int64 slot, const tensor_view<float, 4>* from) {
    tensor_view<float, 4> v(base + slot * 1024, {1, rows, 1, 16}, {1, stride, 7, 1});
    for (int64 i = 0; from != nullptr && i < rows; ++i)
      for (int64 j = 0; j < 16; ++j) v(0, i, 0, j) = (*from)(0, i, 0, j);
    return v;
  };
  const auto q = near.q.view(), k = near.k.view(), v = near.v.view();
  const giwa::detail::attention_views<float, float> a{far(0, &q), far(1, &k), far(2, &v), far(3, nullptr)};
  REQUIRE(fault<16>(near, causal{}) == "");
  // The tensors interleave: their address ranges overlap, but they share no element.
  const giwa::status s = forward_of<16, 16>(giwa::host, a, causal{}, giwa::plain_score{}, {});
  INFO(giwa::format_status(s).c_str());
  CHECK(s.ok());
  int64 different = 0;
  for (int64 i = 0; i < rows; ++i)
    for (int64 j = 0; j < 16; ++j) different += a.o(0, i, 0, j) == near.o.view()(0, i, 0, j) ? 0 : 1;
  CHECK(different == 0);
  munmap(memory, bytes);
}
