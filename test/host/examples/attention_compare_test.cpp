// SPDX-License-Identifier: MIT
// The check of the examples on attention: it compares the last queries with the mask and score modifier of the whole problem.
#include "../../../examples/support/attention_compare.hpp"

#include "support/catch.hpp"

namespace {

using giwa::int64;

constexpr int64 keys = 40, heads = 2, head_size = 16;

// Whether a key has the query's parity: a function of the query's own number.
struct same_parity {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const { return c.query % 2 == c.key % 2; }
};
struct other_parity {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const { return c.query % 2 != c.key % 2; }
};
struct late_queries_only {  // of 33 queries none of the last 8 is below 25
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const { return c.query >= 20 && c.key <= c.diagonal; }
};
struct by_query {
  GIWA_HOST_DEVICE float operator()(float score, giwa::attention_coord c) const {
    return score + (c.query > 30 ? 3.0f : -1.0f) * static_cast<float>(c.key % 3);
  }
};

// Attention of random numbers on the CPU, compared with the mask and the score modifier that the check is told.
template <class Mask, class Score, class Told, class ToldScore>
example::comparison check(int64 queries, const Mask& mask, const Score& score, const Told& told,
                          const ToldScore& told_score) {
  const giwa::index<4> q_sizes{1, queries, heads, head_size}, k_sizes{1, keys, heads, head_size};
  const auto random = [](const giwa::index<4>& sizes, int stream) {
    std::vector<float> x(static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2] * sizes[3]));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = giwa::philox{7, static_cast<giwa::uint64>(stream)}.uniform<float>(static_cast<int64>(i)) * 4 - 2;
    return x;
  };
  const std::vector<float> q = random(q_sizes, 0), k = random(k_sizes, 1), v = random(k_sizes, 2);
  std::vector<float> o(q.size()), lse(static_cast<std::size_t>(heads * queries));
  using view = giwa::tensor_view<const float, 4>;
  const view qv(q.data(), q_sizes), kv(k.data(), k_sizes), vv(v.data(), k_sizes);
  giwa::throw_if_failed(giwa::attention_reference(
      giwa::host, qv, kv, vv, giwa::tensor_view<float, 4>(o.data(), q_sizes), mask, score,
      {.lse = giwa::tensor_view<float, 3>(lse.data(), {1, heads, queries}), .align = giwa::alignment::bottom_right}));
  return example::compare(qv, kv, vv, view(o.data(), q_sizes), told, told_score, 8,
                          giwa::tensor_view<const float, 3>(lse.data(), {1, heads, queries}));
}

template <class Mask, class Score = giwa::plain_score>
bool good(int64 queries, const Mask& mask, const Score& score = {}) {
  return check(queries, mask, score, mask, score).good();
}

}  // namespace

TEST_CASE("a mask and a score modifier that read c.query are right", "[attention_compare]") {
  for (const int64 queries : {1, 5, 8, 9, 33, 40}) {
    CAPTURE(queries);
    CHECK(good(queries, same_parity{}));
    CHECK(good(queries, late_queries_only{}));
    CHECK(good(queries, giwa::full{}, by_query{}));
    CHECK(good(queries, same_parity{}, by_query{}));
    CHECK(good(queries, giwa::causal{}));
    CHECK(good(queries, giwa::full{}));
  }
}

TEST_CASE("another mask or score modifier is wrong", "[attention_compare]") {
  const giwa::plain_score plain;
  for (const int64 queries : {9, 33, 40}) {
    CAPTURE(queries);
    CHECK_FALSE(check(queries, same_parity{}, plain, other_parity{}, plain).good());
    CHECK_FALSE(check(queries, giwa::full{}, by_query{}, giwa::full{}, plain).good());
    CHECK_FALSE(check(queries, giwa::causal{}, plain, giwa::full{}, plain).good());
  }
}
