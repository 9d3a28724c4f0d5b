// SPDX-License-Identifier: MIT
// Attention, step 1: the definition as loops over queries, keys and the head size; one thread for each query. fp32.
//
//   nvcc -std=c++20 -O3 -arch=native -Iinclude examples/steps/01_three_loops.cu -o step && ./step
//
// Every operand comes from memory or a cache, and even the sums are kept there. The row's largest score is needed before the
// first weight, so all scores are computed twice.
#include "step.hpp"

#include <cmath>

struct three_loops {
  steps::problem<float> p;

  GIWA_HOST_DEVICE float score(giwa::int64 query, giwa::int64 key) const {
    float sum = 0;
    for (int i = 0; i < steps::head_size; ++i) sum += p.q(query, i) * p.k(key, i);
    return sum * steps::scale;
  }

  GIWA_HOST_DEVICE void operator()(giwa::int64 query) const {
    const giwa::int64 first = p.first_key(query), end = first + p.tokens;
    float largest = -INFINITY, sum = 0;
    for (giwa::int64 key = first; key < end; ++key) largest = giwa::larger{}(largest, score(query, key));
    for (int i = 0; i < steps::head_size; ++i) p.o(query, i) = 0;
    for (giwa::int64 key = first; key < end; ++key) {
      const float weight = ::expf(score(query, key) - largest);
      sum += weight;
      for (int i = 0; i < steps::head_size; ++i) p.o(query, i) += weight * p.v(key, i);
    }
    for (int i = 0; i < steps::head_size; ++i) p.o(query, i) /= sum;
  }
};

int main() {
  return steps::run<float>("step 1, three loops, fp32", [](const auto& where, const steps::problem<float>& p) {
    return giwa::for_all(where, p.q.extent(0), three_loops{p});
  });
}
