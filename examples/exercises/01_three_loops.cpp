// SPDX-License-Identifier: MIT
// Exercise 1: attention by its definition. Fill in the hole (TODO); no GPU is needed.
//
//   g++ -std=c++20 -O1 -Iinclude -I/usr/local/cuda/include examples/exercises/01_three_loops.cpp -o exercise && ./exercise
//
// It prints "right", or what is wrong. Add -DGIWA_SOLUTION to run the solution, solutions/01_three_loops.inc.
#include "exercise.hpp"

// One thread for each query.
struct three_loops {
  exercises::problem p;

  float score(giwa::int64 query, giwa::int64 key) const {
    float sum = 0;
    for (int i = 0; i < exercises::head_size; ++i) sum += p.q(query, i) * p.k(key, i);
    return sum * exercises::scale;
  }

  void operator()(giwa::int64 query) const {
    float largest = -INFINITY, sum = 0;
    for (giwa::int64 key = 0; key < exercises::tokens; ++key) largest = std::max(largest, score(query, key));
    for (int i = 0; i < exercises::head_size; ++i) p.o(query, i) = 0;
#if defined(GIWA_SOLUTION)
#include "solutions/01_three_loops.inc"
#else
    // TODO, about 6 lines. For each key: its weight e^(score - largest); add the weight to `sum`, and the weight times the row
    // of v to the row of o. Then divide the row of o by `sum`.
    static_cast<void>(sum);
#endif
  }
};

int main() {
  return exercises::check(
      [](const exercises::problem& p) { return giwa::for_all(giwa::host, exercises::tokens, three_loops{p}); },
      "softmax in chapter 6 of docs/learn.md; std::exp, score(query, key), p.v(key, i), p.o(query, i)");
}
