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
  bool alike;       // all sequences have the same lengths
};

/// How many queries a tile has: a multiple of `strip`, `most` at most. Each tile packs the keys that it sees, which takes as
/// long as some of its rows; with smaller tiles the threads end together. If all tiles see all keys they take as long as each
/// other. Of the others one that takes twice the mean may come last, so threads wait for half of that on average.
///
/// Two threads, 8 heads, ms with tiles of 48, 96, 192 and 264 rows: 512 queries of size 64, full 2.45, 2.21, 2.07, 2.05, causal 1.62,
/// 1.41, 1.34, 1.36; 1024 of size 128, causal 9.14, 8.18, 7.89, 7.93 (AVX-512, 2026-11-26).
inline int64 host_tile_rows(int64 longest, int64 heads, int64 threads, bool all_keys, int64 strip, int64 most) {
  constexpr int64 packing = 10;  // in rows
  int64 best = strip, least = -1;
  for (int64 blocks = ceil_div(longest, most);; ++blocks) {
    const int64 rows = round_up(ceil_div(longest, blocks), strip), tiles = heads * ceil_div(longest, rows);
    const int64 rounds = ceil_div(tiles, threads) * threads * (rows + packing);
    const int64 rest = heads * longest + tiles * packing + (threads - 1) * (rows + packing);
    const int64 cost = all_keys ? rounds : rest;
    if (least < 0 || cost < least) best = rows, least = cost;
    if (rows == strip) return best;
  }
}

/// Computes all rows of a call whose arguments are checked.
template <class Params>
status run_host_rows(const Params& params, const host_rows_sizes& sizes) {
  using worker = host_attention_worker<Params>;
  const int64 longest = sizes.longest;
  if (longest == 0) return {};
  const int64 heads = sizes.sequences * sizes.heads;
  const int64 columns = params.views.q.extent(3) + params.views.o.extent(3);
  const int64 of_row = columns * (sizes.mean_keys + 1);  // multiplications
  constexpr int64 enough = 4000000;                      // of them pay for a thread: 0.1 to 1 ms
  const bool all_keys = sizes.alike && mask_traits<stdlib::remove_cvref_t<decltype(params.mask)>>::keeps_all;
  const int64 threads = host_workers(saturated_product(saturated_product(heads, longest), of_row) / enough);
  const int64 queries = host_tile_rows(longest, heads, threads, all_keys, worker::strip_rows, worker::block_m);
  const int64 blocks = ceil_div(longest, queries), tasks = heads * blocks;
  const int64 products = (longest < queries ? longest : queries) * of_row;

  // host_parallel cuts at multiples of 64, so that threads that write single elements share no cache line; here a tile counts 64.
  constexpr int64 unit = 64;
  std::atomic<bool> no_memory{false};
  const auto make = [&] { return worker(params); };
  const auto run = [&](worker& w, int64 begin, int64 end) {
    if (!w.has_memory()) return no_memory.store(true, std::memory_order_relaxed);
    for (int64 task = begin / unit; task < end / unit; ++task) {
      const int64 first = task % blocks * queries, sequence = task / blocks;
      const auto h =
          head_of(params, static_cast<int>(sequence / sizes.heads), static_cast<int>(sequence % sizes.heads));
      const int64 left = h.queries() - first;
      if (left > 0) w.run(h, static_cast<int>(first), static_cast<int>(left < queries ? left : queries));
    }
  };
  host_parallel(tasks * unit, ceil_div(enough, products) * unit, make, run, small_stack_bytes<worker>);
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
