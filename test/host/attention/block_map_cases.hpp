// SPDX-License-Identifier: MIT
// Random maps of blocks in every form that make_block_map takes, what they must become, and attention with them.
#ifndef GIWA_TEST_HOST_ATTENTION_BLOCK_MAP_CASES_HPP
#define GIWA_TEST_HOST_ATTENTION_BLOCK_MAP_CASES_HPP

#include <giwa/host.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace giwa_test {

struct block_problem {
  int batch = 1, heads = 1, queries = 0, keys = 0, block_queries = 128, block_keys = 128;
  bool by_keys = true;
  float density = 0.67f;    // of the blocks that are not empty
  bool empty_ends = false;  // the first row and the last column of blocks are empty
};

/// A random state for each block, 0 (empty), 1 (partial) or 2 (full), its map, and the same blocks as every source.
class block_case {
 public:
  block_case(const block_problem& p, giwa::uint64 seed)
      : map{nullptr, p.batch, p.heads, p.queries, p.keys, p.block_queries, p.block_keys, p.by_keys, nullptr},
        words_(static_cast<std::size_t>(map.bytes()) / sizeof(giwa::block_word), {~0u, ~0u, ~0u, ~0u}),
        states_(static_cast<std::size_t>(int64{p.batch} * p.heads * map.rows() * map.columns())) {
    map.words = words_.data();
    const giwa::philox random(seed);
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const int column = static_cast<int>(i) % map.columns(), row = static_cast<int>(i) / map.columns() % map.rows();
      const bool ends = p.empty_ends && (row == 0 || column == map.columns() - 1);
      const float x = random.uniform<float>(i);
      states_[i] = ends || x >= p.density ? 0 : x < p.density / 2 ? 1 : 2;
    }
    for (int b = 0; b < p.batch; ++b)
      for (int h = 0; h < p.heads; ++h)
        for (int r = 0; r < map.rows(); ++r) add_row(b, h, r);
    capacity_ = std::max(1, most_);
    for (const bool full : {false, true}) {
      auto& flat = full ? full_ : partial_;
      flat.assign(static_cast<std::size_t>(capacity_) * rows_[full].size(),
                  -7);  // beyond a row's count nothing is read
      for (std::size_t r = 0; r < rows_[full].size(); ++r) {
        std::copy(rows_[full][r].begin(), rows_[full][r].end(),
                  flat.begin() + static_cast<std::ptrdiff_t>(r) * capacity_);
        counts_[full].push_back(static_cast<int>(rows_[full][r].size()));
      }
    }
  }

  giwa::block_map map;

  int at(int b, int h, int r, int c) const {
    return states_[static_cast<std::size_t>(((int64{b} * map.heads + h) * map.rows() + r) * map.columns() + c)];
  }
  const int* states() const { return states_.data(); }
  /// As sources without partial blocks have them.
  void keep_full_alone() {
    for (int& s : states_) s = s == 2 ? 2 : 0;
  }
  giwa::block_lists lists() const { return {list(true), list(false)}; }
  /// The full blocks, and the rows of blocks as those of one matrix.
  giwa::block_rows rows() {
    offsets_.assign(map.rows() == 0 ? static_cast<std::size_t>(map.batch * map.heads) : 0, 0), numbers_.clear();
    for (std::size_t r = 0; r < rows_[1].size(); ++r) {
      if (static_cast<int>(r) % map.rows() == 0) offsets_.push_back(static_cast<int>(numbers_.size()));
      numbers_.insert(numbers_.end(), rows_[1][r].begin(), rows_[1][r].end());
      offsets_.push_back(static_cast<int>(numbers_.size()));
    }
    return {giwa::tensor_view<const int, 3>(offsets_.data(), {map.batch, map.heads, map.rows() + 1}),
            giwa::tensor_view<const int, 1>(numbers_.data(), {static_cast<int64>(numbers_.size())})};
  }
  /// (batch, heads, queries, keys), `gap` elements after each row: all, some or none of a block's scores.
  giwa::tensor_view<const bool, 4> matrix(int gap) {
    const int64 row = map.keys + gap;
    visible_.reset(new bool[static_cast<std::size_t>(int64{map.batch} * map.heads * map.queries * row) + 1]);
    const giwa::philox random(11);
    int64 i = 0;
    for (int b = 0; b < map.batch; ++b)
      for (int h = 0; h < map.heads; ++h)
        for (int q = 0; q < map.queries; ++q)
          for (int k = 0; k < row; ++k, ++i) {
            const int state = k < map.keys ? at(b, h, map.row_of(q), map.column_of(k)) : 1;
            // One score, one score missing, or half of them.
            const bool some = map.row_of(q) % 3 == 0   ? q % map.block_queries == 1 && k % map.block_keys == 2
                              : map.row_of(q) % 3 == 1 ? q % map.block_queries != 1 || k % map.block_keys != 2
                                                       : random.uniform<float>(static_cast<giwa::uint64>(i)) < 0.5f;
            visible_[static_cast<std::size_t>(i)] = state == 2 || (state == 1 && some);
          }
    return {visible_.get(),
            {map.batch, map.heads, map.queries, map.keys},
            {map.heads * map.queries * row, map.queries * row, row, 1}};
  }
  /// Scores of blocks: from 2 on full ones, below partial and empty ones.
  giwa::tensor_view<const float, 4> score_view() {
    scores_.resize(states_.size());
    const giwa::philox random(12);
    for (std::size_t i = 0; i < states_.size(); ++i)
      scores_[i] = static_cast<float>(states_[i]) + 0.5f * random.uniform<float>(i);
    return {scores_.data(), {map.batch, map.heads, map.rows(), map.columns()}};
  }

  /// The first word that is not as state(b, h, r, c) says; empty if all are right.
  template <class State>
  std::string failure(const State& state) const {
    for (int b = 0; b < map.batch; ++b)
      for (int h = 0; h < map.heads; ++h) {
        for (int r = 0; r < map.rows(); ++r)
          if (const int bad = wrong(map.row(b, h, r), map.columns(), [&](int c) { return state(b, h, r, c); });
              bad >= 0)
            return "row " + std::to_string(r) + ", word " + std::to_string(bad);
        for (int c = 0; map.by_keys && c < map.columns(); ++c)
          if (const int bad = wrong(map.column(b, h, c), map.rows(), [&](int r) { return state(b, h, r, c); });
              bad >= 0)
            return "column " + std::to_string(c) + ", word " + std::to_string(bad);
      }
    return "";
  }
  /// What scores make of a block, visible(b, h, query, key): 0, 1 or 2.
  template <class Visible>
  int state_of(int b, int h, int r, int c, const Visible& visible) const {
    bool found = false, missing = false;
    for (int q = r * map.block_queries; q < std::min((r + 1) * map.block_queries, map.queries); ++q)
      for (int k = c * map.block_keys; k < std::min((c + 1) * map.block_keys, map.keys); ++k)
        (visible(b, h, q, k) ? found : missing) = true;
    return !found ? 0 : missing ? 1 : 2;
  }

 private:
  using int64 = giwa::int64;

  void add_row(int b, int h, int r) {
    for (const bool full : {false, true}) {
      std::vector<int> blocks;
      for (int c = map.columns() - 1; c >= 0; --c) {
        if (at(b, h, r, c) == (full ? 2 : 1)) blocks.push_back(c);
        if (!full && at(b, h, r, c) == 2 && c % 5 == 0) blocks.push_back(c);  // in both lists: full
      }
      if (!blocks.empty() && r % 2 == 0) blocks.push_back(blocks.front());  // twice in one list
      std::rotate(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(blocks.size() / 3), blocks.end());
      most_ = std::max(most_, static_cast<int>(blocks.size()));
      rows_[full].push_back(blocks);
    }
  }
  giwa::block_list list(bool full) const {
    return {giwa::tensor_view<const int, 3>(counts_[full].data(), {map.batch, map.heads, map.rows()}),
            giwa::tensor_view<const int, 4>((full ? full_ : partial_).data(),
                                            {map.batch, map.heads, map.rows(), capacity_})};
  }
  template <class State>
  static int wrong(const giwa::block_word* words, int blocks, const State& state) {
    giwa::uint32 visible_before = 0, full_before = 0;
    for (int i = 0; i < blocks / 32 + 1; ++i) {
      giwa::uint32 visible = 0, full = 0;
      for (int bit = 0; bit < 32 && 32 * i + bit < blocks; ++bit) {
        const int s = state(32 * i + bit);
        visible |= (s > 0 ? 1u : 0u) << bit, full |= (s == 2 ? 1u : 0u) << bit;
      }
      const giwa::block_word& w = words[i];
      if (w.visible != visible || w.full != full || w.visible_before != visible_before || w.full_before != full_before)
        return i;
      for (int bit = 0; bit < 32; ++bit) visible_before += visible >> bit & 1, full_before += full >> bit & 1;
    }
    return -1;
  }

  std::vector<giwa::block_word> words_;
  std::vector<int> states_, full_, partial_, counts_[2], offsets_, numbers_;
  std::vector<std::vector<int>> rows_[2];
  std::vector<float> scores_;
  std::unique_ptr<bool[]> visible_;
  int most_ = 0, capacity_ = 0;
};

/// |a - b|, and infinity if one of them is NaN.
inline float distance_of(float a, float b) {
  const float d = a == b ? 0 : std::abs(a - b);
  return d == d ? d : std::numeric_limits<float>::infinity();
}

/// A mask by a formula, without classify().
struct every_third {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const {
    return (c.query + 2 * c.key + c.head) % 3 == 0 && c.key % 50 < 30;
  }
};

inline std::string name_of(const block_problem& p) {
  return std::to_string(p.batch) + " x " + std::to_string(p.heads) + " x " + std::to_string(p.queries) + " x " +
         std::to_string(p.keys) + " in " + std::to_string(p.block_queries) + " x " + std::to_string(p.block_keys) +
         (p.by_keys ? "" : ", by queries");
}

/// Makes maps of all sources by make(source, map), which returns a status; says which is wrong.
template <class Make>
std::string block_map_failures(const Make& make) {
  const block_problem problems[] = {
      {.queries = 1, .keys = 1, .block_queries = 1, .block_keys = 1},
      {.queries = 31 * 4, .keys = 33 * 2 - 1, .block_queries = 4, .block_keys = 2},
      {.queries = 32 * 2, .keys = 32 * 16, .block_queries = 2, .block_keys = 16},
      {.queries = 65, .keys = 64, .block_queries = 1, .block_keys = 1},
      {.batch = 2, .heads = 3, .queries = 100, .keys = 400, .block_queries = 16, .block_keys = 32},
      {.batch = 3, .heads = 1, .queries = 130, .keys = 70, .block_queries = 64, .block_keys = 16, .by_keys = false},
      {.heads = 2, .queries = 33, .keys = 2100, .block_queries = 32, .block_keys = 2},  // more words than lanes
      {.queries = 700,
       .keys = 528,
       .block_queries = 256,
       .block_keys = 128},  // more vectors of booleans than are read at once
  };
  giwa::uint64 seed = 0;
  for (const block_problem& p : problems) {
    block_case c(p, ++seed);
    const auto failure = [&](const char* source, const giwa::status& s, const auto& state) {
      const std::string bad = s.ok() ? c.failure(state) : std::string(giwa::format_status(s).c_str());
      return bad.empty() ? bad : name_of(p) + ", " + source + ": " + bad;
    };
    const auto by_scores = [&](const auto& visible) {
      return [&](int b, int h, int r, int k) { return c.state_of(b, h, r, k, visible); };
    };
    std::string all =
        failure("lists", make(c.lists(), c.map), [&](int b, int h, int r, int k) { return c.at(b, h, r, k); });
    const auto full_of = [&](int b, int h, int r, int k) { return c.at(b, h, r, k) == 2 ? 2 : 0; };
    all += failure("full list alone", make(giwa::block_lists{.full = c.lists().full}, c.map), full_of);
    all += failure("no list", make(giwa::block_lists{}, c.map), [](int, int, int, int) { return 0; });
    all += failure("rows", make(c.rows(), c.map), full_of);
    all += failure("threshold", make(giwa::score_threshold{c.score_view(), 2}, c.map), full_of);
    const auto scores = c.score_view();
    for (const int count : {0, 1, 3, p.keys}) {
      const auto taken = [&](int b, int h, int r, int k) {
        const auto score = [&](int i) {
          return scores.data()[((b * p.heads + h) * c.map.rows() + r) * c.map.columns() + i];
        };
        int before = 0;
        for (int i = 0; i < c.map.columns(); ++i)
          before += score(i) > score(k) || (score(i) == score(k) && i < k) ? 1 : 0;
        return before < count ? 2 : 0;
      };
      all += failure("top", make(giwa::score_top{scores, count}, c.map), taken);
    }
    for (const int gap : {0, 7, 16}) {
      const auto visible = c.matrix(gap);
      const auto at = [&](int b, int h, int q, int k) {
        return visible.data()[b * visible.stride(0) + h * visible.stride(1) + q * visible.stride(2) + k];
      };
      all += failure("booleans", make(visible, c.map), by_scores(at));
    }
    const auto with_mask = [&](const char* name, const auto& mask, int offset) {
      const auto at = [&](int b, int h, int q, int k) { return mask(giwa::attention_coord{b, h, q, k, q + offset}); };
      all += failure(name, make(mask, c.map), by_scores(at));
    };
    with_mask("causal", giwa::causal::bottom_right, p.keys - p.queries);
    with_mask("window", giwa::sliding_window{9, giwa::alignment::top_left} | giwa::prefix{3}, 0);
    with_mask("a formula", every_third{}, 0);
    with_mask("full", giwa::full{}, 0);
    if (!all.empty()) return all;
  }
  return "";
}

/// block_sparse{map, Inner} without the map: a mask that reads the states.
template <class Inner>
struct states_of_blocks {
  giwa::block_map map;
  const int* states;  // as block_case::at() numbers them
  Inner inner;
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const {
    const giwa::int64 matrix = giwa::int64{map.batch == 1 ? 0 : c.batch} * map.heads + (map.heads == 1 ? 0 : c.head);
    const int state = states[(matrix * map.rows() + map.row_of(c.query)) * map.columns() + map.column_of(c.key)];
    return state == 2 || (state == 1 && inner(c));
  }
};

/// Attention and its gradients on the CPU with a map made by make(), against the reference with the states as a formula.
template <class Make>
std::string block_sparse_attention_failures(const Make& make) {
  constexpr giwa::int64 batch = 2, heads = 4, kv_heads = 2, queries = 300, keys = 410, size = 16;
  const giwa::philox random(3);
  const auto numbers = [&](giwa::int64 n, giwa::uint64 from) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 4 * random.uniform<float>(from + i) - 2;
    return x;
  };
  const giwa::index<4> of_q{batch, queries, heads, size}, of_k{batch, keys, kv_heads, size};
  const auto n = [](const giwa::index<4>& e) { return e[0] * e[1] * e[2] * e[3]; };
  const auto q = numbers(n(of_q), 0), k = numbers(n(of_k), 1 << 20), v = numbers(n(of_k), 2 << 20),
             dout = numbers(n(of_q), 3 << 20);
  using in = giwa::tensor_view<const float, 4>;
  using out = giwa::tensor_view<float, 4>;
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    float most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, distance_of(a[i], b[i]));
    return most;
  };
  const auto failure = [&](const block_problem& p, const auto& inner) -> std::string {
    block_case c(p, 77);
    if (const giwa::status s = make(c.lists(), c.map); !s.ok()) return giwa::format_status(s).c_str();
    const giwa::block_sparse mask{c.map, inner};
    const states_of_blocks<std::remove_cvref_t<decltype(inner)>> formula{c.map, c.states(), inner};
    const giwa::attention_options plain{.align = giwa::alignment::bottom_right};
    std::vector<float> o(q.size()), right(q.size()), lse(static_cast<std::size_t>(batch * heads * queries));
    giwa::attention_options options = plain;
    options.lse = giwa::tensor_view<float, 3>(lse.data(), {batch, heads, queries});
    giwa::status s =
        giwa::attention_forward<size>(giwa::host, in(q.data(), of_q), in(k.data(), of_k), in(v.data(), of_k),
                                      out(o.data(), of_q), mask, giwa::plain_score{}, options);
    if (s.ok())
      s = attention_reference(giwa::host, in(q.data(), of_q), in(k.data(), of_k), in(v.data(), of_k),
                              out(right.data(), of_q), formula, giwa::plain_score{}, plain);
    if (!s.ok()) return giwa::format_status(s).c_str();
    if (!(distance(o, right) < 2e-5f)) return name_of(p) + ": o is off by " + std::to_string(distance(o, right));
    std::vector<float> got[3], exact[3];
    for (int i = 0; i < 3; ++i) got[i].resize(i == 0 ? q.size() : k.size()), exact[i] = got[i];
    giwa::attention_backward_options backward{.align = giwa::alignment::bottom_right};
    s = attention_backward_reference(giwa::host, in(q.data(), of_q), in(k.data(), of_k), in(v.data(), of_k),
                                     in(dout.data(), of_q), out(exact[0].data(), of_q), out(exact[1].data(), of_k),
                                     out(exact[2].data(), of_k), formula, giwa::plain_score{}, backward);
    backward.lse = options.lse;
    if (s.ok())
      s = giwa::attention_backward<size>(giwa::host, in(q.data(), of_q), in(k.data(), of_k), in(v.data(), of_k),
                                         in(o.data(), of_q), in(dout.data(), of_q), out(got[0].data(), of_q),
                                         out(got[1].data(), of_k), out(got[2].data(), of_k), mask, giwa::plain_score{},
                                         backward);
    if (!s.ok()) return giwa::format_status(s).c_str();
    for (int i = 0; i < 3; ++i)
      if (!(distance(got[i], exact[i]) < 2e-4f))
        return name_of(p) + ": gradient " + std::to_string(i) + " is off by " +
               std::to_string(distance(got[i], exact[i]));
    return "";
  };
  block_problem p{.batch = 2, .heads = 4, .queries = 300, .keys = 410, .block_queries = 16, .block_keys = 32};
  std::string all = failure(p, giwa::full{}) + failure(p, giwa::causal::bottom_right);
  p.batch = 1, p.block_queries = 128, p.block_keys = 4;
  all += failure(p, giwa::sliding_window{200, giwa::alignment::bottom_right});
  p.heads = 1, p.by_keys = false, p.block_keys = 64;
  all += failure(p, giwa::full{});
  p = {.batch = 2, .heads = 4, .queries = 300, .keys = 410, .block_queries = 64, .block_keys = 16};
  for (const float density : {0.f, 0.04f, 0.2f}) {
    p.density = density, p.empty_ends = true;
    all += failure(p, giwa::full{}) + failure(p, giwa::causal::bottom_right);
  }
  return all;
}

}  // namespace giwa_test

#endif
