// SPDX-License-Identifier: MIT
// The work tiles of the kernels of attention_backward: of rows of queries, or of rows of keys.
#ifndef GIWA_ATTENTION_BACKWARD_SCHEDULES_HPP
#define GIWA_ATTENTION_BACKWARD_SCHEDULES_HPP

#include <giwa/attention/backward/params.hpp>
#include <giwa/attention/schedule/work_tiles.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The order in which blocks take the rows of each gradient.
struct backward_schedules {
  /// The problem with the sequences and heads that have separate work tiles.
  template <class Params>
  static attention_problem by_queries(const Params& p) {
    attention_problem queries = p.views.in.problem();
    queries.batch = p.tiled_sequences();
    if (p.tiled_heads() != queries.heads) queries.heads = queries.kv_heads = p.tiled_heads();
    return queries;
  }
  /// The problem with queries and keys exchanged: work tiles of keys, of all sequences and heads of k, and `sharers` of each.
  template <class Params>
  static attention_problem by_keys(const Params& p, int sharers) {
    attention_problem keys = p.views.in.problem();
    keys.batch = p.key_sequences();
    keys.kv_heads *= sharers;
    keys.heads = keys.kv_heads;
    const int64 queries = keys.seq_q;
    keys.seq_q = keys.seq_k, keys.seq_k = queries;
    return keys;
  }
  /// About the length of the longest packed sequence of keys: that of queries, or the average if it is more.
  template <class Params>
  static int64 longest_keys(const Params& p) {
    const auto& in = p.views.in;
    const int64 mean = in.packed.count > 0 ? ceil_div(in.k.extent(1), in.packed.count) : 0;
    const int64 longest = in.packed.max_q > mean ? in.packed.max_q : mean;
    return longest < in.k.extent(1) ? longest : in.k.extent(1);
  }

  /// How many heads alternate in the schedule where dq is added. In fixed order tiles of keys of a head follow each other at
  /// a distance, and under a causal mask those that are computed at the same time end together, so that blocks wait for
  /// each other: less with more heads, which in turn no longer fit the L2 cache. H200, 2026-11-23, fp16, TFLOP/s by number
  /// of heads:
  ///   128, full, 512 tokens: 48 320, 128 250; 4096: 6 436, 16 480, 64 342; 8192: 4 500, 8 507, 16 492; 16384: 2 502, 4 515,
  ///   8 516, 16 493
  ///   64, full, 8192: 4 418, 8 428, 16 421; 16384: 4 435, 8 442, 16 414
  ///   128, causal, 2048: 32 309, 64 326, 128 264; 4096: 16 297, 32 400, 64 397; 16384: 4 270, 8 378, 16 461
  ///   64, causal, 4096: 16 253, 64 380; 16384: 16 376, 32 412
  /// In any order tiles of keys wait for the first one alone, so fewer heads are better:
  ///   128, full, 4096: 4 490, 16 480; 16384: 4 525, 8 521, 16 507; 64, full, 16384: 4 454, 16 434
  ///   128, causal, 2048: 16 350, 32 376; 4096: 8 407, 16 438, 32 442; 8192: 8 472, 16 476, 32 468; 16384: 8 510, 16 501
  ///   64, causal, 4096: 8 350, 16 367, 32 363; 8192: 8 408, 32 397; 16384: 8 440, 32 419
  template <class Params>
  static int64 alternating_heads(int64 keys, int64 head_sizes, bool any_order) {
    using mask = stdlib::remove_cvref_t<decltype(Params::call.mask)>;
    const int64 tiles = ceil_div(keys > 0 ? keys : 1, int64{128});
    constexpr bool is_full = stdlib::same_as<mask, full>;
    if (any_order) return is_full ? (tiles <= 32 ? 8 : 4) : tiles <= 32 ? 32 : tiles <= 64 ? 16 : 8;
    if constexpr (is_full) return tiles <= 32 ? 16 : 8;
    const int64 heads = int64{2048} * 256 / head_sizes / tiles, most = tiles <= 16 || head_sizes <= 128 ? 64 : 32;
    return heads < 16 ? 16 : heads > most ? most : heads;
  }

  /// The work tiles of block_m rows of a gradient; none if there is no sequence or no head.
  template <gradient Of, class Params>
  static attention_schedule schedule_of_rows(const Params& p, int block_m) {
    const int sharers = Of == gradient::of_all ? p.workspace.of_keys.sharers : 1;
    const attention_problem sizes = Of == gradient::of_q ? by_queries(p) : by_keys(p, sharers);
    // No sequence is longer than all queries together, whatever max_q says.
    const int64 all_queries = p.views.in.q.extent(1), said = p.views.in.packed.max_q;
    const int64 longest = Of != gradient::of_q ? longest_keys(p) : said < all_queries ? said : all_queries;
    if (sizes.batch == 0 || sizes.heads == 0) return {};
    const int64 head_sizes = sizes.head_size + sizes.head_size_v;
    const int bytes = static_cast<int>(head_sizes) * static_cast<int>(sizeof(float));
    int64 least_heads = 1;
    if constexpr (Of == gradient::of_all)
      least_heads =
          alternating_heads<Params>(sizes.seq_q < 0 ? longest : sizes.seq_q, head_sizes, p.workspace.any_order);
    return attention_schedule::of(sizes, longest, block_m, 1, bytes, least_heads);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
