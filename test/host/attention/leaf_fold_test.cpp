// SPDX-License-Identifier: MIT
// The tree of leaves: any division into splits does the same merges on the same operands, and hands on as many partials as said.
#include <giwa/attention/sums/leaf_fold.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

using namespace giwa::detail;
using giwa::int64;

namespace {

/// A state that is the sum of leaves as it was computed: "((0+1)+2)". The state of no keys is empty, and adds nothing.
struct sum {
  std::string text;
  void reset() { text.clear(); }
  void merge(const sum& later) {
    if (text.empty())
      text = later.text;
    else if (!later.text.empty())
      text = '(' + text + '+' + later.text + ')';
  }
};

/// A last node of a type of its own, as kernels have it.
struct last_sum : sum {};

/// The leaves [first, end) added by the definition of the tree: in order, into nodes of each level, and those into the
/// result. span is the number of leaves of a child.
sum sum_of(int first, int end, int level = fold_levels::count) {
  sum all{};
  if (level == 0) {
    all.text = std::to_string(first);
    return all;
  }
  const int span = fold_levels::span(level - 1);
  for (int n = first / span; n * span < end; ++n)
    all.merge(sum_of(std::max(first, n * span), std::min(end, (n + 1) * span), level - 1));
  return all;
}

/// What a split hands on.
struct split_result {
  split_partials partials;
  std::vector<sum> handed_on;
};

/// The split [from, to) of leaves that begin with `first`, as the kernel does it. If it has all leaves, the only state is the
/// result.
template <class Fold>
split_result fold_split(int first, int from, int to, int end) {
  const int begin = from == first ? 0 : from;
  split_result r{split_partials(begin, to), {}};
  Fold fold;
  fold.reset();
  for (int leaf = from; leaf < to; ++leaf) {
    sum x{std::to_string(leaf)};
    if (fold.push(0, leaf, x, begin)) r.handed_on.push_back(x);
  }
  if (from == first && to == end) return {r.partials, {fold.finish()}};
  for (int l = fold_levels::count - 1; l >= 0; --l)
    if (r.partials.is_unfinished(l)) r.handed_on.push_back(fold.unfinished(l));
  return r;
}

/// Counts what is wrong about leaves [first, end) in splits that end at `cuts` and at `end`.
struct law {
  int64 other_result = 0, other_count = 0, too_many = 0, checked = 0, in_fours = 0;

  void check(int first, int end, const std::vector<int>& cuts, const std::string& right) {
    if (++checked % 2 == 0)
      check_fold<leaf_fold<sum>>(first, end, cuts, right);
    else
      check_fold<leaf_fold<sum, sum, last_sum>>(first, end, cuts, right);
  }
  template <class Fold>
  void check_fold(int first, int end, const std::vector<int>& cuts, const std::string& right) {
    std::vector<split_partials::position> positions;
    std::vector<sum> partials;
    int from = first;
    for (std::size_t i = 0; i <= cuts.size(); ++i) {
      const int to = i < cuts.size() ? cuts[i] : end;
      const split_result r = fold_split<Fold>(first, from, to, end);
      if (cuts.empty()) {
        other_result += r.handed_on[0].text == right ? 0 : 1;
        return;
      }
      const int count = static_cast<int>(r.handed_on.size());
      other_count += r.partials.count() == count ? 0 : 1;
      too_many += r.partials.count() <= split_partials::most(to - from) ? 0 : 1;
      for (int n = 0; n < count; ++n) positions.push_back(r.partials.position_of(n));
      partials.insert(partials.end(), r.handed_on.begin(), r.handed_on.end());
      from = to;
    }
    // As one list, and in lists of 5, which end inside of nodes.
    for (const std::size_t most : {partials.size(), std::size_t{5}}) {
      Fold fold;
      fold.reset();
      for (std::size_t n = 0, end_of_list = 0; n < partials.size();) {
        if (n == end_of_list) end_of_list = std::min(n + most, partials.size());
        const merge_step step = merge_step::first_of(positions.data() + n, static_cast<int>(end_of_list - n));
        sum x = partials[n];
        for (int i = 1; i < step.partials; ++i) x.merge(partials[n + static_cast<std::size_t>(i)]);
        fold.add(step, x);
        n += static_cast<std::size_t>(step.partials);
        in_fours += step.partials == 4 ? 1 : 0;
      }
      other_result += fold.finish().text == right ? 0 : 1;
    }
    // Level by level: nodes of up to 4 operands each.
    std::vector<std::size_t> begins(partials.size());
    for (std::size_t n = 0; n < begins.size(); ++n) begins[n] = n;
    for (int level = 1; level < fold_levels::count; ++level) {
      std::vector<std::size_t> next;
      int operands = 0;
      for (const std::size_t n : begins) {
        if (n == 0 || begins_node(positions[n - 1], positions[n], level))
          next.push_back(n), operands = 1;
        else
          partials[next.back()].merge(partials[n]), ++operands;
        too_many += operands <= 4 ? 0 : 1;
      }
      begins = next;
    }
    for (std::size_t n = 1; n < begins.size(); ++n) partials[0].merge(partials[begins[n]]);
    other_result += partials[0].text == right ? 0 : 1;
  }
  void holds() const {
    CHECK(other_result == 0);
    CHECK(other_count == 0);
    CHECK(too_many == 0);
  }
};

}  // namespace

TEST_CASE("one split adds leaves as the tree says") {
  CHECK(sum_of(0, 1).text == "0");
  CHECK(sum_of(0, 6).text == "((((0+1)+2)+3)+(4+5))");
  CHECK(sum_of(3, 9).text == "((3+(((4+5)+6)+7))+8)");
  CHECK(sum_of(62, 66).text == "((62+63)+(64+65))");
  law broken;
  for (int end = 1; end <= 300; ++end)
    for (const int first : {0, 1, 3, 4, 5, 63, 64, 65, 128, 200, 255})
      if (first < end) broken.check(first, end, {}, sum_of(first, end).text);
  broken.holds();
  CHECK(broken.checked == 300 + 299 + 297 + 296 + 295 + 237 + 236 + 235 + 172 + 100 + 45);
}

TEST_CASE("two splits of up to 300 leaves") {
  law broken;
  for (int end = 2; end <= 300; ++end) {
    const std::string right = sum_of(0, end).text;
    for (int cut = 1; cut < end; ++cut) broken.check(0, end, {cut}, right);
  }
  broken.holds();
  CHECK(broken.checked == 300 * 299 / 2);
}

TEST_CASE("two splits of leaves that do not begin with 0") {
  law broken;
  for (const int first : {1, 2, 3, 4, 7, 8, 60, 63, 64, 65, 127, 130})
    for (int count = 2; count <= 150; count += 1 + count / 20) {
      const std::string right = sum_of(first, first + count).text;
      for (int cut = 1; cut < count; ++cut) broken.check(first, first + count, {first + cut}, right);
    }
  broken.holds();
}

TEST_CASE("random splits, short and long, also of one leaf each") {
  std::mt19937 random(2026);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  law broken;
  for (int i = 0; i < 10000; ++i) {
    const int first = i % 2 == 0 ? 0 : up_to(200), count = 2 + up_to(i % 100 == 0 ? 1500 : 298);
    const int split = 1 + up_to(up_to(3) == 0 ? 5 : count);  // leaves of one split, about
    std::vector<int> cuts;
    for (int at = first + 1 + up_to(split); at < first + count; at += 1 + up_to(split)) cuts.push_back(at);
    broken.check(first, first + count, cuts, sum_of(first, first + count).text);
  }
  broken.holds();
}

TEST_CASE("splits of whole nodes are merged four at a time") {
  for (const int split : {4, 16}) {
    law broken;
    broken.check(0, 16 * split,
                 {split, 2 * split, 3 * split, 4 * split, 5 * split, 6 * split, 7 * split, 8 * split, 9 * split,
                  10 * split, 11 * split, 12 * split, 13 * split, 14 * split, 15 * split},
                 sum_of(0, 16 * split).text);
    broken.holds();
    CHECK(broken.in_fours == 4 + 1);  // all 16 partials; in lists of 5 only the first four are together
  }
}

TEST_CASE("largest nodes of whole splits, each summed by itself and then merged in order") {
  constexpr int node = fold_levels::largest_span();
  int64 wrong = 0;
  for (const int split : {1, 2, 4, 8, 16, 32, 64})
    for (int end = node + 1; end <= 5 * node; end += 1 + end % 7) {
      sum all;
      for (int first = 0; first < end; first += node) {
        leaf_fold<sum> fold;
        fold.reset();
        for (int from = first; from < std::min(first + node, end); from += split) {
          const split_result r = fold_split<leaf_fold<sum>>(0, from, std::min(from + split, end), end);
          for (std::size_t n = 0; n < r.handed_on.size(); ++n) {
            const split_partials::position at = r.partials.position_of(static_cast<int>(n));
            sum x = r.handed_on[n];
            fold.add(merge_step::first_of(&at, 1), x);
          }
        }
        all.merge(fold.finish());
      }
      wrong += all.text == sum_of(0, end).text ? 0 : 1;
    }
  CHECK(wrong == 0);
}

TEST_CASE("equal splits, as launches have them") {
  law broken;
  for (const int first : {0, 5, 64})
    for (const int count : {64, 65, 127, 130, 300, 512, 700}) {
      const std::string right = sum_of(first, first + count).text;
      for (const int split : {1, 2, 3, 4, 5, 16, 31, 64, 65, 128, 256})
        for (const int phase : {1, split}) {  // the first split may begin in another work tile
          std::vector<int> cuts;
          for (int at = first + phase; at < first + count; at += split) cuts.push_back(at);
          broken.check(first, first + count, cuts, right);
        }
    }
  broken.holds();
}

TEST_CASE("a bound of the partials of a split") {
  int64 too_many = 0, decreases = 0, most_seen = 0;
  for (int leaves = 1; leaves <= 700; ++leaves) {
    for (int begin = 0; begin <= 400; ++begin) {
      const int count = split_partials(begin, begin + leaves).count();
      too_many += count <= split_partials::most(leaves) ? 0 : 1;
      if (leaves <= 64) most_seen = std::max<int64>(most_seen, count);
    }
    decreases += split_partials::most(leaves) >= split_partials::most(leaves - 1) ? 0 : 1;
  }
  CHECK(too_many == 0);
  CHECK(decreases == 0);
  CHECK(2 * most_seen >= split_partials::most(64));  // the bound is not far above what happens
  // Of long sequences, where numbers of leaves are large.
  constexpr int many = 1 << 25;
  for (const int begin : {0, 1, many - 63, many - 1, many, many + 1})
    for (const int leaves : {1, 64, 100000, many}) {
      const split_partials partials(begin, begin + leaves);
      CHECK(partials.count() <= split_partials::most(leaves));
      CHECK(partials.count() >= 1);
    }
}
