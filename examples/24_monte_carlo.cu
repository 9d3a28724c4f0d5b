// SPDX-License-Identifier: MIT
// A Monte Carlo estimate with identical bits everywhere: the probability that a random walk touches a barrier, on GPU and CPU.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/24_monte_carlo.cu -o 24_monte_carlo
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: philox{seed, stream}(i) is 128 random bits that depend only on i. There is no generator state to set
// up, store or distribute, so sample i is the same in whichever thread computes it. Hits are counted in integers, whose
// sum does not depend on the order, so the estimate has the same bits for every launch and machine. (A sum of floats
// would not, because its rounding depends on the order.) More samples continue the same sequence; another stream is
// independent. The estimate comes with its standard error, and the check is that it lies within 4 standard errors of
// the exact value.
//
// A walk has 128 steps up or down, one bit each. The payoff of a one-touch option is of this kind: 1 if the price ever
// reaches a barrier. By reflection, P(maximum >= b) = P(end >= b) + P(end > b): a walk that ends above b has touched b,
// and of the walks that touch b, as many end above as below it (Feller, An Introduction to Probability Theory, III.7).
//
// Expected output, with the times of your machine; on a CPU there are fewer samples:
//   P(128 steps touch 16): exact 0.1586537
//     stream 0   0.1586635 +- 0.0000111, +0.9 standard errors off, 1073741824 samples, 33846 million a second
//     stream 1   0.1586521 +- 0.0000111, -0.1 standard errors off, 1073741824 samples, 33853 million a second
//     528 x 256 threads: 41719 hits among the first 262144 samples, a loop on the CPU has 41719
//     7 x 96 threads: 41719 hits among the first 262144 samples, a loop on the CPU has 41719
//     1 x 32 threads: 41719 hits among the first 262144 samples, a loop on the CPU has 41719
//   device: NVIDIA H200
//   check:  right
#include "support/place.cuh"

#include <giwa/host_executor.cuh>

#include <cmath>

using giwa::int64, giwa::throw_if_failed;
using count = unsigned long long;

constexpr int steps = 128, barrier = 16;

// Whether walk i reaches the barrier: a set bit is a step up.
GIWA_HOST_DEVICE constexpr bool touches(const giwa::philox& random, int64 i) {
  const giwa::random_words bits = random(static_cast<giwa::uint64>(i));
  int at = 0, highest = 0;
  for (int word = 0; word < 4; ++word)
    for (int bit = 0; bit < 32; ++bit) {
      at += static_cast<int>(bits.word[word] >> bit & 1) * 2 - 1;
      highest = at > highest ? at : highest;
    }
  return highest >= barrier;
}

// Adds the hits among the first n samples of a stream to *hits. Any launch has the same answer.
struct count_hits {
  struct params {
    giwa::philox random;
    int64 n;
    count* hits;
  };
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 256, min_blocks = 4;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    count mine = 0;
    for (const int64 i : giwa::grid_stride(block, p.n)) mine += touches(p.random, i);
    const count of_warp = giwa::reduce_warp(block, mine);
    if (block.lane() == 0) block.atomic_add(*p.hits, of_warp);
  }
};

// P(maximum >= barrier) by reflection: the end is 2 ups - steps, and C(steps, ups) walks of 2^steps have so many.
double exact() {
  double p = 0;
  for (int ups = 0; ups <= steps; ++ups) {
    const double walks = std::exp(std::lgamma(steps + 1.0) - std::lgamma(ups + 1.0) - std::lgamma(steps - ups + 1.0) -
                                  steps * std::log(2.0));
    const int end = 2 * ups - steps;
    p += walks * ((end >= barrier) + (end > barrier));
  }
  return p;
}

template <class Place>
bool run(const Place& place) {
  auto hits = place.template make<count>(1);
  const auto simulate = [&](const giwa::launch_config& shape, giwa::uint64 stream, int64 n) {
    hits = place.put(std::vector<count>{0});
    return giwa::launch(place.where(), shape, count_hits{}, {giwa::philox{2026, stream}, n, hits.data()});
  };
  giwa::launch_config full{.grid = 4, .block = count_hits::max_threads};
  if constexpr (Place::is_gpu) full.grid = throw_if_failed(giwa::blocks_at_once<count_hits>());

  const int64 n = int64{1} << (Place::is_gpu ? 30 : 18), first = 1 << 18;
  const double expected = exact();
  bool right = true;
  std::printf("P(%d steps touch %d): exact %.7f\n", steps, barrier, expected);
  for (const giwa::uint64 stream : {0, 1}) {
    const double ms = place.milliseconds([&] { return simulate(full, stream, n); });
    const double p = static_cast<double>(place.get(hits)[0]) / static_cast<double>(n);
    const double standard_error = std::sqrt(p * (1 - p) / static_cast<double>(n));
    const double off = (p - expected) / standard_error;
    std::printf("  stream %d   %.7f +- %.7f, %+.1f standard errors off, %lld samples, %.0f million a second\n",
                static_cast<int>(stream), p, standard_error, off, static_cast<long long>(n),
                static_cast<double>(n) * 1e-3 / ms);
    right = right && std::abs(off) < 4;
  }

  count by_loop = 0;
  for (int64 i = 0; i < first; ++i) by_loop += touches(giwa::philox{2026, 0}, i);
  for (const giwa::launch_config& shape : {full, {.grid = 7, .block = 96}, {.grid = 1, .block = 32}}) {
    throw_if_failed(simulate(shape, 0, first));
    const count found = place.get(hits)[0];
    std::printf("  %lld x %lld threads: %llu hits among the first %lld samples, a loop on the CPU has %llu\n",
                static_cast<long long>(shape.grid.x), static_cast<long long>(shape.block.x), found,
                static_cast<long long>(first), by_loop);
    right = right && found == by_loop;
  }
  return right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
