// SPDX-License-Identifier: MIT
// attention_backward on the CPU: tiles of queries for dq and tiles of keys for dk and dv, shared among threads.
#ifndef GIWA_ATTENTION_CPU_BACKWARD_HPP
#define GIWA_ATTENTION_CPU_BACKWARD_HPP

#include <giwa/attention/call/backward.hpp>
#include <giwa/attention/cpu/backward_worker.hpp>

#include <memory>
#include <new>

namespace giwa::inline GIWA_ABI::detail {

/// Runs attention_backward on the CPU; the arguments are checked already.
template <int HeadSize, int HeadSizeV>
struct host_backward {
  template <class Params>
  static status run(Params p) {
    std::unique_ptr<float[]> sums;
    if constexpr (Params::parameters > 0) {
      const int64 count = rows_of_heads(p.views.in.problem()) * Params::parameters;
      sums.reset(new (std::nothrow) float[static_cast<stdlib::size_t>(count)]());
      if (!sums) return host_out_of_memory("out of host memory for the gradients of the score modifier's parameters");
      p.workspace.parameter_sums = sums.get();
    }
    const auto& in = p.views.in;
    const int64 sequences = in.sequence_count();
    int64 longest_q = 0, longest_k = 0, all_q = 0, all_k = 0;
    for (int64 b = 0; b < sequences; ++b) {
      const auto h = p.call.at(static_cast<int>(b), 0);
      longest_q = h.queries() > longest_q ? h.queries() : longest_q;
      longest_k = h.keys() > longest_k ? h.keys() : longest_k;
      all_q += h.queries(), all_k += h.keys();
    }
    const int64 count = sequences > 0 ? sequences : 1, mean_q = all_q / count + 1, mean_k = all_k / count + 1;
    bool has_memory = true;
    const int64 products = saturated_product(all_q * in.q.extent(2), (in.q.extent(3) + in.v.extent(3)) * 2 * mean_k);
    if (takes_whole_heads(p, longest_q, longest_k, products)) {
      if constexpr (can_take_whole_heads<Params>) has_memory = for_heads(p, longest_q, longest_k, products);
    } else {
      has_memory = for_rows(p, longest_q, longest_k, mean_q, mean_k);
    }
    if (has_memory && !is_absent(p.dsinks))
      has_memory = for_tiles<tile_axis::queries>(p, 1, in.q.extent(2), 1, all_q, [&](auto& w, int, int head, int, int) {
        float& to = p.dsinks.data()[head * p.dsinks.stride(0)];
        const float gradient = w.sink_gradient(head);
        to = p.accumulate ? to + gradient : gradient;
      });
    if (!has_memory)
      return host_out_of_memory(
          "out of host memory for the tiles of attention_backward on the CPU (at most 36 MiB for each thread)");
    if constexpr (Params::parameters > 0)
      for (int head = 0; head < in.q.extent(2); ++head) sum_parameters(p, head);
    return {};
  }

 private:
  /// All gradients of a head of k at a time: not of score modifiers that take gradients.
  template <class Params>
  static constexpr bool can_take_whole_heads =
      !gradient_of<stdlib::remove_cvref_t<decltype(stdlib::declval<const Params&>().call.score)>>::wanted &&
      Params::parameters == 0;
  /// Whether threads that take whole heads are done earlier: five products instead of seven, but fewer tasks. Their sums
  /// take 32 MiB at most. `products` are the multiplications of S and dP.
  template <class Params>
  static bool takes_whole_heads(const Params& p, int64 longest_q, int64 longest_k, int64 products) {
    const auto& in = p.views.in;
    if (!can_take_whole_heads<Params> || is_absent(p.views.dq) || is_absent(p.views.dk) || is_absent(p.views.dv) ||
        in.packed.k_batch_index != nullptr)  // which may leave a sequence without keys
      return false;
    const int64 depth = in.q.extent(3), width = in.v.extent(3), tasks = p.key_sequences() * in.k.extent(2);
    if (tasks == 0 || longest_k == 0 || ((longest_q + longest_k) * depth + longest_k * width) * 4 > 32 << 20)
      return false;
    const int64 threads = host_workers(products / multiplications_of_thread), rounds = ceil_div(tasks, threads);
    // Sequences of other lengths make tasks of other lengths.
    return rounds * threads * 5 <= tasks * 7 && (!p.call.ragged || rounds >= 4);
  }
  template <class Params>
  static bool for_heads(const Params& p, int64 longest_q, int64 longest_k, int64 products) {
    using worker = host_backward_worker<Params, tile_axis::keys, true>;
    const int64 heads = p.views.in.k.extent(2), tasks = p.key_sequences() * heads;
    return host_tasks(
        tasks, products / tasks + 1, [&] { return worker(p, longest_k, longest_q); },
        [&](worker& w, int64 task) { w.run_head(static_cast<int>(task / heads), static_cast<int>(task % heads)); });
  }
  template <class Params>
  static bool for_rows(const Params& p, int64 longest_q, int64 longest_k, int64 mean_q, int64 mean_k) {
    using modifier = decltype(p.call.score);
    const auto& in = p.views.in;
    bool has_memory = true;
    if (!is_absent(p.views.dq) || gradient_of<stdlib::remove_cvref_t<modifier>>::wanted)
      has_memory = for_tiles<tile_axis::queries>(p, p.tiled_sequences(), p.tiled_heads(), longest_q, mean_k,
                                                 [&](auto& w, int sequence, int head, int first, int most) {
                                                   const auto end = p.end_of(sequence, head);
                                                   for (int b = sequence; b < end.sequence; ++b)
                                                     for (int i = head; i < end.head; ++i) {
                                                       const auto h = p.call.at(b, i);
                                                       const int left = h.queries() - first;
                                                       if (left > 0) w.run_queries(h, first, left < most ? left : most);
                                                     }
                                                 });
    if (has_memory && !(is_absent(p.views.dk) && is_absent(p.views.dv)))
      has_memory =
          for_tiles<tile_axis::keys>(p, p.key_sequences(), in.k.extent(2), longest_k, mean_q * p.call.heads_per_kv,
                                     [&](auto& w, int n, int head, int first, int most) {
                                       const int left = p.keys_of(n) - first;
                                       if (left > 0) w.run_keys(n, head, first, left < most ? left : most);
                                     });
    return has_memory;
  }

  /// The gradients of the parameters of the score modifier for one head, from the sums of its rows.
  template <class Params>
  static void sum_parameters(const Params& p, int head) {
    for (int i = 0; i < Params::parameters; ++i) {
      double sum = 0;
      for (int64 b = 0; b < p.views.in.sequence_count(); ++b) {
        const auto h = p.call.at(static_cast<int>(b), head);
        for (int query = 0; query < h.queries(); ++query) sum += static_cast<double>(p.parameter_sums_at(h, query)[i]);
      }
      float& to = gradient_of<stdlib::remove_cvref_t<decltype(p.call.score)>>::output(p.call.score, i, head);
      to = p.accumulate ? to + static_cast<float>(sum) : static_cast<float>(sum);
    }
  }
  /// run(worker, sequence, head, first row, most rows) for tiles of the rows of all heads, on threads. `others` is
  /// about the number of rows that each row meets. Returns false if there was too little memory.
  template <tile_axis Fixed, class Params, class Run>
  static bool for_tiles(const Params& p, int64 sequences, int64 heads, int64 longest, int64 others, const Run& run) {
    using worker = host_backward_worker<Params, Fixed>;
    if (longest == 0) return true;
    // Short sequences get smaller tiles, so that every core has one.
    const int64 rows = longest >= 384 ? worker::block_rows : longest >= 96 ? 48 : 24;
    const int64 blocks = ceil_div(longest, rows), tasks = sequences * heads * blocks;
    const int64 columns = p.views.in.q.extent(3) + p.views.in.v.extent(3);
    const int64 products = (longest < rows ? longest : rows) * columns * 2 * (others + 1);  // multiplications of a tile

    const auto run_tile = [&](worker& w, int64 task) {
      const int64 first = task % blocks * rows, row = task / blocks;
      run(w, static_cast<int>(row / heads), static_cast<int>(row % heads), static_cast<int>(first),
          static_cast<int>(rows));
    };
    return host_tasks(
        tasks, products, [&] { return worker(p); }, run_tile);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
