// SPDX-License-Identifier: MIT
// The work tiles of the kernels of attention_backward: of rows of queries, or of rows of keys.
#ifndef GIWA_ATTENTION_WORK_BACKWARD_SCHEDULES_HPP
#define GIWA_ATTENTION_WORK_BACKWARD_SCHEDULES_HPP

#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/work/work_tiles.hpp>

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

  /// How many heads alternate at least in the schedule where dq is added; more if the L2 cache has room for them. The blocks of a
  /// head read the same queries and add to the same dq at about the same time, so the fewer heads, the more of that is in the L2
  /// cache. Under a mask, tiles of keys that are computed at the same time also end together, and those that begin next
  /// follow each other at a distance: with few heads they wait longer. H100, 2026-11-25, fp16, 2048 / head size heads,
  /// at least 16384 tokens, TFLOP/s by number of heads, in fixed order and in any:
  ///   128, full, 8192 tokens: 2 512 510, 8 490 502, 16 448 499; 16384: 2 499 511, 4 512 514, 8 496 514, 16 336 510;
  ///     32768: 2 524 515, 4 453 514, 8 324 517
  ///   128, causal, 4096: 4 408 430, 8 425 429, 16 426 443, 32 397 426; 8192: 4 453 471, 8 465 473, 16 459 472;
  ///     32768: 2 490 495, 4 499 515, 8 501 519, 16 499 516; 131072: 2 501 532, 4 510 530, 8 510 528, 16 293 264
  ///   64, full, 16384: 2 433 452, 4 448 457, 8 443 450, 16 441 441, 32 344 313
  ///   64, causal, 4096: 4 349 372, 8 345 373, 16 341 370; 16384: 2 373 420, 4 402 424, 8 421 438, 16 423 437
  /// H200, 2026-11-30, causal, fixed order, times as fast as with 16 up to 4096 tokens and 8 above: 64, 4096 tokens, 32 heads 1.02, 64 1.01;
  /// 8192 16 1.04, 32 1.06; 16384 16 1.03, 32 1.045; 32768 16 1.02; 128, 8192 16 1.01, 32 1.01; any order 1.00.
  /// Tiles of keys of a mask of blocks have different numbers of tiles of queries, so they are at different queries at any time, and
  /// heads alternate while their queries, gradients and dq fit in the L2 cache. H200, 2026-11-29, share of density x dense speed, 16
  /// heads of 16384 tokens, with 1, 2, 4, 8, 16 heads: 64 x 64 blocks, 10 % 0.26 0.29 0.31 0.31 0.29, 50 % 0.55 0.57 0.59 0.58 0.49;
  /// 128 x 128 in any order, 10 % 0.60 0.63 0.63 0.60 0.56, 50 % 0.75 0.74 0.77 0.75 0.66; 2 heads of 131072, 1, 2: 30 % 0.86 0.80.
  /// In any order, since the part of dq that is ready first stores: 1 instead of 4, 5, 10, 30, 50 % 1.05 1.01 1.00 1.09 times as fast.
  /// mma.sync on that GPU, 128: full, 4096 2 195 203, 16 186 192; causal, 4096 8 161 195, 16 178 194, 32 174 178
  template <class Params>
  static int64 alternating_heads(const Params& p, int64 keys, int64 head_sizes) {
    if (keeps_all(p)) return head_sizes < 256 ? 512 / head_sizes : 2;
    if constexpr (mask_traits<stdlib::remove_cvref_t<decltype(p.call.mask)>>::has_blocks) {
      const int64 queries = p.views.in.is_packed() ? p.views.in.packed.max_q : p.views.in.q.extent(1);
      const int64 cached =
          (int64{p.workspace.any_order ? 16 : 64} << 20) / (4 * head_sizes * (queries < 1 ? 1 : queries));
      return cached < 1 ? 1 : cached < 16 ? cached : 16;
    }
    // Twice as many where several heads read one, up to 4096 tokens, and at 64 in fixed order.
    const bool is_grouped = p.views.in.q.extent(2) > p.views.in.k.extent(2), adds_in_order = !p.workspace.any_order;
    if ((keys <= 4096 && is_grouped) || (keys <= 16384 && head_sizes <= 128 && adds_in_order)) return 32;
    return keys <= 16384 ? 16 : 8;
  }
  /// Whether the host knows that the mask keeps all scores. A causal one does in most steps of a ring.
  template <class Params>
  static bool keeps_all(const Params& p) {
    using mask = mask_traits<stdlib::remove_cvref_t<decltype(p.call.mask)>>;
    if constexpr (mask::is_causal) return !p.call.bottom_right && p.call.diagonal_offset >= p.views.in.k.extent(1) - 1;
    return mask::keeps_all;
  }

  /// Whether two Hopper kernels, for dq and for dk with dv, are faster than one for all gradients:
  /// - of short sequences with wide heads and a mask, unless it is causal and k has as many heads as q (128, causal, 1024 tokens: one
  ///   kernel 1.04 to 1.25 times as fast as two, with 1 x 32(8) heads 0.88; H200, 2026-11-29); for packed ones only the device knows the
  ///   lengths;
  /// - in fixed order, where the kernel for dq takes the blocks of a mask as wholes, `columns` keys at a time: tiles of keys do not wait
  ///   for each other then. 128 x 128 blocks, share of density x dense speed at 5, 10, 30, 50 %, 16 heads of 16384 tokens: 0.50 0.61
  ///   0.72 0.72 instead of 0.44 0.55 0.67 0.69; 2 heads of 131072, 5, 10, 30 %: 0.76 0.74 0.73 instead of 0.61 0.62 0.71 (H200,
  ///   2026-11-29).
  template <class Params>
  static bool prefers_separate(const Params& p, int head_sizes, int columns) {
    using mask = mask_traits<stdlib::remove_cvref_t<decltype(p.call.mask)>>;
    const auto& in = p.views.in;
    if (p.workspace.of_keys.sharers > 1) return false;
    const bool is_short = head_sizes > 128 && !mask::keeps_all && !in.is_packed() && in.k.extent(1) <= 1024 &&
                          !(mask::is_causal && in.q.extent(2) == in.k.extent(2));
    const bool takes_blocks = mask::has_blocks && mask::queries_of_block(p.call.mask) >= 128 &&
                              mask::keys_of_block(p.call.mask) % columns == 0;
    return is_short || (takes_blocks && !p.workspace.any_order);
  }
  /// Whether tiles of dq_parts::long_rows queries are faster. Not where only the device knows lengths: bits must not depend on the batch.
  template <class Params>
  static bool prefers_long(const Params& p) {
    const auto& in = p.views.in;
    return !in.is_ragged() && in.k.extent(1) >= long_sequences::keys &&
           long_sequences::suits(in.q.extent(1), keeps_all(p) ? long_sequences::full : long_sequences::causal);
  }
  /// Whether the kernel that rounds the sums of dq knows which tile of keys adds last to each: in fixed order, where the host knows
  /// the mask.
  template <class Params>
  static bool ends_are_known(const Params& p) {
    using mask = mask_traits<stdlib::remove_cvref_t<decltype(p.call.mask)>>;
    return !p.workspace.any_order && mask::any_range && !mask::has_blocks && mask::known_on_host(p.call.mask);
  }
  /// Heads that alternate at least in the other schedules. Under a mask the long tiles of a section come first; if the
  /// last section has one or two heads, blocks end with long tiles. H100, 2026-11-26, fp16, 256, causal, TFLOP/s with
  /// 1, 2, 4, 8 heads: 8192 tokens 395 403 410 415, 16384 414 432 438 438; up to 4096 there are more in any case.
  template <class Params>
  static int64 heads_of_sections(const Params& p) {
    return keeps_all(p) ? 1 : 8;
  }

  /// Which work tiles of the kernel of all gradients are divided, and into how many parts: in any order those beyond whole
  /// rounds of the blocks. Without a mask all work tiles take the same time, so in a last round of few of them most
  /// blocks would be idle. A head has `tiles` of queries, of which each part has a share.
  template <class Params>
  static last_work_tiles divided_tiles(const Params& p, int work_tiles, int blocks, int64 tiles) {
    const shared_key_sums& room = p.workspace.of_keys;
    const int left = work_tiles % blocks;
    if (p.call.ragged) return {0x7fffffff, 1};  // only the device knows how many there are
    if (!p.workspace.any_order || room.sharers > 1 || left == 0 || !keeps_all(p)) return {work_tiles, 1};
    const int64 least = 8;  // tiles of a part: with 4, 64, 1024 tokens were 3 % slower
    int64 parts = blocks / left;
    for (const int64 most : {room.parts / left, shared_key_sums::most_sharers, tiles / least})
      if (most < parts) parts = most;
    return parts < 2 ? last_work_tiles{work_tiles, 1} : last_work_tiles{work_tiles - left, static_cast<int>(parts)};
  }

  /// The work tiles of block_m rows of a gradient; none if there is no sequence or no head.
  template <gradient Of, class Params>
  static attention_schedule schedule_of_rows(const Params& p, int block_m) {
    const int sharers = is_of_all(Of) ? p.workspace.of_keys.sharers : 1;
    const attention_problem sizes = Of == gradient::of_q ? by_queries(p) : by_keys(p, sharers);
    // No sequence is longer than all queries together, whatever max_q says.
    const int64 all_queries = p.views.in.q.extent(1), said = p.views.in.packed.max_q;
    const int64 longest = Of != gradient::of_q ? longest_keys(p) : said < all_queries ? said : all_queries;
    if (sizes.batch == 0 || sizes.heads == 0) return {};
    const int64 head_sizes = sizes.head_size + sizes.head_size_v;
    const int bytes = static_cast<int>(head_sizes) * static_cast<int>(sizeof(float));
    int64 least_heads = heads_of_sections(p);
    if constexpr (is_of_all(Of))
      least_heads = alternating_heads(p, sizes.seq_q < 0 ? longest : sizes.seq_q, head_sizes);
    // Sequences that add to a bias in turn follow each other: of more at once most would wait.
    if constexpr (Params::adds_bias && Of == gradient::of_all)
      if (p.order.in_turn && sizes.batch > 1)
        return attention_schedule::of(sizes, longest, block_m, 1, bytes, sizes.heads, 0);
    return attention_schedule::of(sizes, longest, block_m, 1, bytes, least_heads);
  }
  /// How many sequences alternate, whose heads are fewer than those that should, where tiles are listed (list_tiles).
  template <gradient Of, class Params>
  static int sequences_together(const Params& p, int block_m) {
    const attention_schedule s = schedule_of_rows<Of>(p, block_m);
    int together = 1;
    while (together < 32 && 2 * together * s.heads.divisor() <= s.section.divisor()) together *= 2;
    return together;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
