// SPDX-License-Identifier: MIT
// Attention on the CPU: tiles of queries of all heads, shared among threads.
#ifndef GIWA_ATTENTION_CPU_RUN_HPP
#define GIWA_ATTENTION_CPU_RUN_HPP

#include <giwa/attention/cpu/worker.hpp>
#include <giwa/grid/host_loop.hpp>

#include <atomic>

namespace giwa::inline GIWA_ABI::detail {

/// What the rows of a call are shared by.
struct host_rows_sizes {
  int64 sequences, heads;
  int64 longest;    // queries of a sequence, at most
  int64 mean_keys;  // of a sequence, about
};

/// Computes all rows of a call whose arguments are checked.
template <class Params>
status run_host_rows(const Params& params, const host_rows_sizes& sizes) {
  using worker = host_attention_worker<Params>;
  const int64 longest = sizes.longest;
  if (longest == 0) return {};
  // Short sequences get smaller tiles, so that every core has one.
  const int64 queries = longest >= 768 ? worker::block_m : longest >= 96 ? 96 : 24;
  const int64 blocks = ceil_div(longest, queries), tasks = sizes.sequences * sizes.heads * blocks;
  const int64 rows = longest < queries ? longest : queries;
  const int64 columns = params.views.q.extent(3) + params.views.o.extent(3);
  const int64 products = rows * columns * (sizes.mean_keys + 1);  // multiplications of a tile

  // host_parallel cuts at multiples of 64, so that threads that write single elements share no cache line; here a tile counts 64.
  constexpr int64 unit = 64;
  constexpr int64 enough = 4000000;  // multiplications that pay for a thread: 0.1 to 1 ms
  std::atomic<bool> no_memory{false};
  const auto make = [&] { return worker(params); };
  host_parallel(tasks * unit, ceil_div(enough, products) * unit, make, [&](worker& w, int64 begin, int64 end) {
    if (!w.has_memory()) return no_memory.store(true, std::memory_order_relaxed);
    for (int64 task = begin / unit; task < end / unit; ++task) {
      const int64 first = task % blocks * queries, sequence = task / blocks;
      const auto h =
          head_of(params, static_cast<int>(sequence / sizes.heads), static_cast<int>(sequence % sizes.heads));
      const int64 left = h.queries() - first;
      if (left > 0) w.run(h, static_cast<int>(first), static_cast<int>(left < queries ? left : queries));
    }
  });
  if (no_memory.load()) {
    status s;
    s.code = status_code::out_of_memory;
    s.message = "out of host memory for the tiles of attention on the CPU (at most 2 MiB for each thread)";
    return s;
  }
  return {};
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
