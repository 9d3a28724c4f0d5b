// SPDX-License-Identifier: MIT
// What the exercises share: problems that each show another mistake, and the sentence for the first that is solved wrongly.
#pragma once

#include <giwa/grid.cuh>
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>
#include <giwa/softmax/device_exponential.cuh>
#include <giwa/tile.cuh>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace exercises {

using giwa::int64;

inline constexpr int head_size = 64;
inline constexpr float scale = 0.125f;  // 1 / sqrt(head_size)
inline constexpr int64 tokens = 192;    // of one head

using rows = giwa::tensor_view<const float, 2>;   // (tokens, head_size)
using output_rows = giwa::tensor_view<float, 2>;  // (tokens, head_size)

/// One head of attention without a mask.
struct problem {
  rows q, k, v;
  output_rows o;
};

/// Numbers that read() has read from tiles.
inline long numbers_read = 0;
/// Returns an element of a shared tile, and counts it.
template <class Tile>
float read(const Tile& tile, int row, int column) {
  ++numbers_read;
  return tile(row, column);
}

inline int say(const char* what, const char* hint) {
  std::printf("wrong: %s\nhint:  %s\n", what, hint);
  return 1;
}

/// The main of an exercise: attend(problem) returns a status. Prints "right", or what is wrong with the first problem that is
/// solved wrongly, and `hint`. `most_reads`: how many numbers read() may read from tiles for one problem, or 0.
template <class Attend>
int check(const Attend& attend, const char* hint, long most_reads = 0) {
  enum { same_values, same_scores, random, largest_last, large_scores, count };
  const char* const sentences[count] = {
      "where all values are 1, o must be 1. Do the weights of a row add up to their sum, by which o is divided?",
      "where all scores are equal, o must be the mean of the values. Is every key of every tile used, and used once?",
      "o is wrong for random numbers. Is a score the scaled sum of q k, and the weight e^(score - maximum)?",
      "o is wrong where the largest score of a row comes last.",
      "o is wrong where scores are large. Is the row's maximum subtracted before e^x?"};
  for (int kind = 0; kind < count; ++kind) {
    std::vector<float> q(tokens * head_size), k(q.size()), v(q.size()), o(q.size(), 12345.0f);
    std::vector<double> expected(q.size());
    const giwa::philox chance{60, static_cast<giwa::uint64>(kind)};
    for (std::size_t i = 0; i < q.size(); ++i) {
      const auto number = [&](giwa::uint64 stream) { return 4 * chance.uniform<float>(3 * i + stream) - 2; };
      q[i] = kind == same_scores ? 0 : number(0), k[i] = number(1), v[i] = kind == same_values ? 1 : number(2);
      if (kind == largest_last) q[i] = 1, k[i] = static_cast<float>(i / head_size) / 64;
      if (kind == large_scores) q[i] *= 30;
    }
    const giwa::index<2> sizes{tokens, int64{head_size}};
    const giwa::index<4> of_four{1, tokens, 1, int64{head_size}};
    const auto view = [&](const std::vector<float>& x) { return giwa::tensor_view<const float, 4>(x.data(), of_four); };
    giwa::throw_if_failed(giwa::attention_reference(giwa::host, view(q), view(k), view(v),
                                                    giwa::tensor_view<double, 4>(expected.data(), of_four)));
    numbers_read = 0;
    const giwa::status state =
        attend(problem{{q.data(), sizes}, {k.data(), sizes}, {v.data(), sizes}, {o.data(), sizes}});
    if (!state.ok()) return say(giwa::format_status(state).c_str(), hint);

    if (std::ranges::all_of(o, [](float x) { return x == 0; }))
      return say("o is 0 everywhere. Fill in the hole: look for TODO.", hint);
    if (std::ranges::any_of(o, [](float x) { return x == 12345.0f; })) return say("o is not written everywhere.", hint);
    const auto off = [](float x, double exact) { return !(std::abs(static_cast<double>(x) - exact) <= 1e-3); };
    std::size_t wrong = 0;
    while (wrong < o.size() && !off(o[wrong], expected[wrong])) ++wrong;
    if (wrong < o.size()) {
      std::printf("o(%d, %d) is %g and must be %g\n", static_cast<int>(wrong) / head_size,
                  static_cast<int>(wrong) % head_size, static_cast<double>(o[wrong]), expected[wrong]);
      const bool is_nan = std::isnan(o[wrong]) && kind != large_scores;
      return say(is_nan ? "o is NaN. Is shared memory read that no thread has written yet, or is 0 divided by 0?"
                        : sentences[kind],
                 hint);
    }
    if (most_reads > 0 && numbers_read > most_reads)
      return say(
          "o is right, but too many numbers are read from shared memory. Use each number that is read several times.",
          hint);
  }
  std::printf("right\n");
  return 0;
}

}  // namespace exercises
