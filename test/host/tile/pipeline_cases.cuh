// SPDX-License-Identifier: MIT
// Pipelines for the tests on the host executor and on a GPU: what goes in comes out, in order and whole.
#ifndef GIWA_TEST_HOST_TILE_PIPELINE_CASES_CUH
#define GIWA_TEST_HOST_TILE_PIPELINE_CASES_CUH

#include <giwa/grid.cuh>
#include <giwa/tile.cuh>

#include <tuple>
#include <vector>

#include "support/catch.hpp"

namespace giwa_test {

using giwa::int64;

/// The stages of a pipeline, and the threads of its block.
template <int Depth, class Copies, int Threads>
struct staged {
  static constexpr int depth = Depth, threads = Threads;
  static constexpr int rows = 8, columns = 40;
  struct stage {
    giwa::shared_tile<float, giwa::tile_shape<rows, columns>> even;
    giwa::shared_tile<int, giwa::tile_shape<3, 5>> odd;
  };
  using pipeline = giwa::pipeline<stage, Depth, Copies>;
};

struct pipeline_params {
  giwa::tensor_view<const float, 2> even;  // (rows * steps, columns), or less: what lies outside becomes zero
  giwa::tensor_view<const int, 2> odd;     // (3 * steps, 5), filled up with -1
  float* even_out;                         // (rows * steps, columns), and the same for the second turn
  int* odd_out;                            // (3 * steps, 5), likewise
  int steps;
};

/// Streams the matrices through a pipeline, twice, and writes out what each use saw. Every thread reads what others have brought.
template <class Staged, bool ByRoles>
struct pipeline_op {
  using params = pipeline_params;
  using stage = typename Staged::stage;
  static constexpr int max_threads = Staged::threads, min_blocks = 1;
  struct shared_storage {
    typename Staged::pipeline pipeline;
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    s.pipeline.initialize(block, max_threads / 32);
    block.sync();
    for (int turn = 0; turn < 2; ++turn) {
      const auto fill = [&](stage& to, const auto& copies, int step) {
        copies.load(p.even, giwa::index<2>{step * Staged::rows, 0}, to.even);
        copies.load(p.odd, giwa::index<2>{step * 3, 0}, to.odd, -1);
      };
      const auto use = [&](const stage& from, int step) {
        const int at = turn * p.steps + step, last = max_threads - 1 - block.rank();
        for (int i = last; i < Staged::rows * Staged::columns; i += max_threads)
          p.even_out[at * Staged::rows * Staged::columns + i] = from.even(i / Staged::columns, i % Staged::columns);
        for (int i = last; i < 15; i += max_threads) p.odd_out[at * 15 + i] = from.odd(i / 5, i % 5);
      };
      if constexpr (ByRoles)
        by_roles(block, s.pipeline, p.steps, fill, use);
      else
        s.pipeline.stream(block, p.steps, fill, use);
      block.sync();
    }
  }

 private:
  // As in the documentation of pipeline: Stages - 1 puts ahead, each put after a wait.
  template <class Block, class Pipeline, class Fill, class Use>
  GIWA_HOST_DEVICE static void by_roles(Block block, Pipeline& pipeline, int steps, const Fill& fill, const Use& use) {
    auto in = pipeline.producer(block);
    auto out = pipeline.consumer(block);
    const auto put = [&](int step) {
      if (step < steps)
        in.put([&](stage& to, const auto& copies) { fill(to, copies, step); });
      else
        in.skip();
    };
    for (int step = 0; step + 1 < Pipeline::stages; ++step) put(step);
    for (int step = 0; step < steps; ++step) {
      const stage& from = out.wait();
      put(step + Pipeline::stages - 1);
      use(from, step);
      out.release();
    }
  }
};

using all_staged = std::tuple<staged<2, giwa::plain_copies, 64>, staged<2, giwa::async_copies, 64>,
                              staged<3, giwa::async_copies, 256>, staged<4, giwa::plain_copies, 96>,
                              staged<4, giwa::async_copies, 128>, staged<7, giwa::async_copies, 32>>;

/// Machine::run(op, even, odd, even_out, odd_out, steps, rows, odd_rows) runs the op on copies of the arrays, and brings the
/// outputs back. `rows` and `odd_rows` are those that the views have.
template <class Staged, bool ByRoles, class Machine>
bool streams_in_order(const Machine& machine, int steps, int missing_rows) {
  constexpr int rows = Staged::rows, columns = Staged::columns;
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  std::vector<float> even(size(steps * rows * columns)), even_out(2 * even.size(), -7);
  std::vector<int> odd(size(steps * 15)), odd_out(2 * odd.size(), -7);
  for (std::size_t i = 0; i < even.size(); ++i) even[i] = static_cast<float>(i + 1);
  for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = static_cast<int>(i + 1000000);
  const int even_rows = steps * rows > missing_rows ? steps * rows - missing_rows : 0;
  const int odd_rows = steps * 3 > missing_rows ? steps * 3 - missing_rows : 0;
  if (!machine.run(pipeline_op<Staged, ByRoles>{}, even, odd, even_out, odd_out, steps, even_rows, odd_rows))
    return false;

  for (std::size_t i = 0; i < even.size(); ++i)
    if (static_cast<int>(i) / columns >= even_rows) even[i] = 0;
  for (std::size_t i = 0; i < odd.size(); ++i)
    if (static_cast<int>(i) / 5 >= odd_rows) odd[i] = -1;
  const std::vector<float> even_once(even);
  const std::vector<int> odd_once(odd);
  even.insert(even.end(), even_once.begin(), even_once.end());
  odd.insert(odd.end(), odd_once.begin(), odd_once.end());
  return even_out == even && odd_out == odd;
}

template <class Staged, class Machine>
void check_pipeline(const Machine& machine) {
  for (const int steps : {0, 1, 2, 3, 4, 5, 6, 7, 8, 20})
    for (const int missing_rows : {0, 1, 11}) {
      CAPTURE(steps, missing_rows);
      REQUIRE(streams_in_order<Staged, false>(machine, steps, missing_rows));
      REQUIRE(streams_in_order<Staged, true>(machine, steps, missing_rows));
    }
}

}  // namespace giwa_test

#endif
