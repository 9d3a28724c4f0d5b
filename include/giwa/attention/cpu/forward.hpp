// SPDX-License-Identifier: MIT
// attention_forward on the CPU: tiles of queries, shared among threads.
#ifndef GIWA_ATTENTION_CPU_FORWARD_HPP
#define GIWA_ATTENTION_CPU_FORWARD_HPP

#include <giwa/attention/cpu/worker.hpp>
#include <giwa/attention/forward/forward.hpp>
#include <giwa/grid/host_loop.hpp>

#include <atomic>

namespace giwa::inline GIWA_ABI::detail {

/// Runs attention_forward on the CPU; the arguments are checked already.
template <int HeadSize, int HeadSizeV>
struct host_attention {
  template <class T, class O, class Mask, class Score>
  static status run(const attention_params<T, O, Mask, Score>& params) {
    using worker = host_attention_worker<T, O, Mask, Score>;
    const attention_problem sizes = params.views.problem();
    int64 longest = params.views.q.extent(1), most_keys = params.views.k.extent(1);
    if (params.views.is_packed()) {
      longest = 0;
      for (int64 i = 0; i < sizes.batch; ++i) {
        const int queries = params.at(static_cast<int>(i), 0).queries();
        longest = queries > longest ? queries : longest;
      }
      most_keys = ceil_div(most_keys, sizes.batch);  // on average
    }
    if (longest == 0) return {};
    // Short sequences get smaller tiles, so that every core has one.
    const int64 queries = longest >= 768 ? worker::block_m : longest >= 96 ? 96 : 24;
    const int64 blocks = ceil_div(longest, queries), tasks = sizes.batch * sizes.heads * blocks;
    const int64 rows = longest < queries ? longest : queries;
    const int64 products = rows * (HeadSize + HeadSizeV) * (most_keys + 1);  // multiplications of a tile

    // host_parallel cuts at multiples of 64, so that threads that write single elements share no cache line; here a tile counts 64.
    constexpr int64 unit = 64;
    constexpr int64 enough = 4000000;  // multiplications that pay for a thread: 0.1 to 1 ms
    std::atomic<bool> no_memory{false};
    host_parallel(tasks * unit, ceil_div(enough, products) * unit, [&](int64 begin, int64 end) {
      worker w(params);
      if (!w.has_memory()) return no_memory.store(true, std::memory_order_relaxed);
      for (int64 task = begin / unit; task < end / unit; ++task) {
        const int64 first = task % blocks * queries, sequence = task / blocks;
        const auto h = params.at(static_cast<int>(sequence / sizes.heads), static_cast<int>(sequence % sizes.heads));
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
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
