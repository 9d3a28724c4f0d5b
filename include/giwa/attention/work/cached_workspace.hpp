// SPDX-License-Identifier: MIT
// The work of attention_cached, its splits and its workspace.
#ifndef GIWA_ATTENTION_WORK_CACHED_WORKSPACE_HPP
#define GIWA_ATTENTION_WORK_CACHED_WORKSPACE_HPP

#include <giwa/attention/problem/cached_problem.hpp>
#include <giwa/attention/work/many_rows.hpp>
#include <giwa/attention/work/splits.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// What the host knows of the work of a launch, for the shape of its splits.
struct split_work {
  int64 sequences, kv_heads;
  int64 tiles;                 // work tiles of all sequences, of one head of keys, at most
  int64 tile_leaves;           // leaves of one work tile, at most
  int64 rows;                  // of a tile that are in use, at most
  int64 columns;               // of the output, padded
  bool exact;                  // tiles and tile_leaves are those of every sequence
  bool in_order = false;       // leaves are merged one after the other: a split hands on each
  bool single_leaves = false;  // equal shares of one leaf do not become whole nodes
};

/// Shares the work among `blocks` blocks, with at most `available` bytes of workspace. Heads are columns, because
/// neighbouring heads of a key are neighbours in memory, unless more than a tenth of the blocks would have no work. Where all leaves are
/// of one work tile, splits are whole nodes of the tree: so they hand on fewer partials, of which each row merges one after the other.
/// So are short splits of few work tiles: 4 x 8(1) x 8192 9.9 us instead of 17.8; where leaves of a work tile are no whole nodes, 3 x 8(1)
/// x 10000, 19.0 instead of 18.7 (H200, 2026-11-29).
/// Where all work tiles have as many leaves, and whole ones leave few blocks without work, none is divided: 128 x 16(1) x 8192 127.2 us
/// instead of 142.3, 32 x 32(4) x 8192 in pages of 64 126.2 instead of 134.5 (H200, 2026-11-29).
GIWA_HOST_DEVICE constexpr split_shape shape_of_splits(const split_work& w, int64 blocks, int64 available) {
  const bool by_columns = w.kv_heads <= blocks && blocks % w.kv_heads * 10 <= blocks;
  const int64 columns = by_columns ? w.kv_heads : 1, in_column = by_columns ? 1 : w.kv_heads;
  const int64 tiles = saturated_product(w.tiles, in_column), leaves = saturated_product(tiles, w.tile_leaves);
  const int64 most = blocks / columns < leaves ? blocks / columns : leaves;
  const int node = fold_levels::span(1);
  const bool are_nodes = tiles <= 8 && w.tile_leaves % node == 0 && w.columns <= 256;
  const auto shape = [&](int64 splits, int64 slots) {
    split_shape s{
        .splits = static_cast<int>(splits),
        .columns = static_cast<int>(columns),
        .heads_in_column = static_cast<int>(in_column),
        .slots = static_cast<int>(slots),
        .rows = static_cast<int>(w.rows),
        .most_leaves = 0,
        .whole_above =
            !w.single_leaves && splits > 16 && (tiles == 1 || w.tile_leaves >= fold_levels::largest_span()) ? 0 : 1,
        .whole_below = w.in_order                 ? 0
                       : tiles == 1               ? 1 << 30
                       : are_nodes && splits > 16 ? node
                                                  : 0};
    const int64 each = ceil_div(tiles, splits);
    if (tiles > 0 && tiles <= 1 << 30 && columns * ceil_div(tiles, each) >= blocks - blocks / 16)
      s.whole_tiles = static_cast<int>(tiles), s.tiles_of_split = static_cast<int>(each);
    s.most_leaves = s.length_of(leaves);
    return s;
  };
  if (most <= 0) return shape(1, 0);
  for (int64 splits = most; splits > tiles || (splits == most && splits > 0); splits -= ceil_div(splits, int64{8})) {
    const int64 length = shape(splits, 0).most_leaves;
    // No work tile is divided.
    if (splits == 1 || w.tile_leaves == 1 || (w.exact && length % w.tile_leaves == 0)) return shape(splits, 0);
    // Partials that a split hands on are those of one work tile.
    const int64 most_leaves = length < w.tile_leaves ? length : w.tile_leaves;
    const int64 by_tree = split_partials::most(most_leaves), by_leaf = most_leaves + fold_levels::count;
    const int64 slots = w.in_order ? most_leaves : by_tree < by_leaf ? by_tree : by_leaf;
    if (slots > 1 << 20) break;
    const split_shape s = shape(splits, slots);
    if (workspace_bytes_of(s, w.columns) <= available) return s;
  }
  return shape(most < tiles ? most : tiles, 0);
}

/// The sizes of a kernel that decide its splits and its workspace: keys of a leaf, packed rows of a tile, columns of a partial.
struct few_rows_tile {
  int leaf_keys, rows, columns;
};

/// Packed rows of a tile for so many of a sequence and a head of keys. A decode step has as many as heads share keys, usually 4
/// or 8. 8 rows instead of 16, e4m3, 32 sequences of 8192 keys, 32/8 heads of 64: 80.4 us instead of 91.9 (H200, 2026-11-29).
GIWA_HOST_DEVICE constexpr int few_rows_of_tile(int64 rows) {
  if (rows > 0 && rows <= 8) return 8;
  return rows > 0 && rows <= 16 ? 16 : 32;
}

/// The sizes of the kernel that runs a problem.
GIWA_HOST_DEVICE constexpr few_rows_tile few_rows_tile_of(const cached_problem& p) {
  const int64 rows = p.kv_heads == 0 ? 0 : saturated_product(p.heads / p.kv_heads, p.queries);
  return {.leaf_keys = leaf_keys_of(p.head_size, p.head_size_v, p.cache_bytes),
          .rows = few_rows_of_tile(rows),
          .columns = static_cast<int>(round_up(p.head_size_v, 16))};
}

/// Whether tiles of two heads of keys are compiled. A leaf of 256 keys has 32 KB of 8-bit keys and values then instead of 16, for the
/// same waits: 32 sequences of 8192 keys, 32/8 heads, e4m3 69.4 us instead of 79.0, in pages of 16 71.9 instead of 102.6 (H200,
/// 2026-11-29), int4 63.9 instead of 86.6 (2026-11-30).
GIWA_HOST_DEVICE constexpr bool takes_pairs_of_heads(int64 head_size, int64 head_size_v, int64 cache_bytes) {
  return cache_bytes == 1 && head_size == 64 && head_size_v == 64;
}
/// The problem of these tiles.
GIWA_HOST_DEVICE constexpr cached_problem problem_of_pairs(cached_problem p) {
  p.kv_heads /= 2;
  return p;
}
/// Whether they are faster: with some leaves for each multiprocessor, in several sequences as their lengths may be short of the cache's,
/// and few rows of two heads. 8 sequences of 8192 keys 25.7 us instead of 26.8.
GIWA_HOST_DEVICE constexpr bool pairs_of_heads_are_faster(const cached_problem& p) {
  const int64 pairs = p.kv_heads / 2, leaves = ceil_div(p.keys, int64{leaf_keys_of(64, 64, 1)});
  if (!takes_pairs_of_heads(p.head_size, p.head_size_v, p.cache_bytes) || pairs == 0 || p.kv_heads % 2 != 0)
    return false;
  const int64 tiles = saturated_product(p.sequences, pairs);
  return p.rows == 0 && saturated_product(p.heads / pairs, p.queries) <= 16 && tiles >= 32 &&
         saturated_product(tiles, leaves) >= 1024;
}

/// The sizes of the Hopper kernel for latent rows.
GIWA_HOST_DEVICE constexpr few_rows_tile latent_tile_of(const cached_problem& p) {
  return {.leaf_keys = latent_leaf_keys, .rows = latent_rows, .columns = static_cast<int>(p.head_size_v)};
}

/// The splits of latent rows: as many as work tiles, or half as many and so on, where these are nearly all multiprocessors. Then no
/// work tile is divided if lengths are equal. A partial of 16 rows has 33 KB: 128 sequences of 8192
/// keys and 16 heads take 331 us with 132 splits and 286 with 128 (H200, 2026-11-29).
GIWA_HOST_DEVICE constexpr int64 latent_splits(const split_work& work, int64 multiprocessors) {
  const int64 tiles = saturated_product(work.tiles, work.kv_heads), each = ceil_div(tiles, multiprocessors);
  const int64 splits = each > 0 ? ceil_div(tiles, each) : 0;
  return splits >= multiprocessors - multiprocessors / 16 ? splits : multiprocessors;
}

/// The work of a problem. `exact`: all sequences have as many queries and keys as the problem says.
GIWA_HOST_DEVICE constexpr split_work work_of(const cached_problem& p, const few_rows_tile& tiles, bool exact) {
  const bool packed = p.rows > 0;
  const int64 rows = saturated_product(packed ? p.rows : p.queries, p.heads / p.kv_heads);
  const int64 row_tiles = ceil_div(rows, int64{tiles.rows}), leaves = ceil_div(p.keys, int64{tiles.leaf_keys});
  return {.sequences = p.sequences,
          .kv_heads = p.kv_heads,
          .tiles = packed ? p.sequences + row_tiles : saturated_product(p.sequences, row_tiles),
          .tile_leaves = leaves > 0 ? leaves : 1,
          .rows = rows < tiles.rows ? rows : tiles.rows,
          .columns = tiles.columns,
          .exact = exact};
}

/// The work of that kernel. A sequence with one head of keys may have splits of one leaf: 1 x 8192 14.0 us instead of 17.3 (H200, 2026-11-30).
GIWA_HOST_DEVICE constexpr split_work latent_work(const cached_problem& p, bool exact) {
  split_work w = work_of(p, latent_tile_of(p), exact);
  w.single_leaves = w.tiles == 1 && w.kv_heads == 1;
  return w;
}

/// Sequences with more queries are computed by the Hopper kernel for many latent rows, in tiles of 64. The number of rows decides, and
/// not the batch, because the two kernels sum in another order.
GIWA_HOST_DEVICE constexpr int latent_few_queries(const cached_problem& p) {
  if (p.latent_tile != latent_tile::by_rows) return p.latent_tile == latent_tile::rows_16 ? 2147483647 : 0;
  return static_cast<int>(latent_few_rows / (p.heads / p.kv_heads));
}
/// Keys of a leaf of that kernel. With division::by_batch work tiles are divided so that the multiprocessor with the most work has the
/// least: some leaves of equal length, plus what ending a leaf costs, and merging a work tile.
GIWA_HOST_DEVICE constexpr int latent_wide_leaf(const cached_problem& p, int64 multiprocessors) {
  if (p.division == division::by_sequence) return latent_wide_leaf_keys;
  const int64 keys = p.keys > latent_leaf_keys ? round_up(p.keys, int64{latent_leaf_keys}) : latent_leaf_keys;
  const int64 queries = p.rows > 0 ? p.rows : p.queries;
  const int64 row_tiles = ceil_div(saturated_product(queries, p.heads / p.kv_heads), int64{latent_wide_rows});
  const int64 tiles = p.rows > 0 ? saturated_product(p.kv_heads, p.sequences + row_tiles)
                                 : saturated_product(saturated_product(p.sequences, p.kv_heads), row_tiles);
  int64 best = keys, least = saturated_product(ceil_div(tiles, multiprocessors), keys);
  for (int64 each = 1; each <= 8; ++each) {
    const int64 leaves = tiles > 0 ? each * multiprocessors / tiles : 0;
    if (leaves < 2) continue;
    const int64 length = round_up(ceil_div(keys, leaves), int64{latent_leaf_keys});
    const int64 cost = each * (length + latent_leaf_end_keys) + latent_merge_keys + 4 * ceil_div(keys, length);
    if (cost < least) best = length, least = cost;
  }
  return static_cast<int>(best);
}
/// The work of that kernel. Tiles of rows count as heads of keys, as row_tile_params says, but those of packed queries.
GIWA_HOST_DEVICE constexpr split_work latent_wide_work(const cached_problem& p, int leaf_keys, bool exact) {
  split_work w = work_of(p, {leaf_keys, latent_wide_rows, static_cast<int>(p.head_size_v)}, exact);
  w.in_order = true;
  if (p.rows > 0) return w;
  const int64 rows = saturated_product(p.queries, p.heads / p.kv_heads);
  w.kv_heads = saturated_product(w.kv_heads, ceil_div(rows, int64{latent_wide_rows}));
  w.tiles = w.sequences;
  return w;
}

/// Whether some sequence may have many rows. `queries` of packed ones is what the caller says.
GIWA_HOST_DEVICE constexpr bool may_have_many_rows(const cached_problem& p) {
  return p.cache_bytes == 2 && p.queries > few_queries_of_sequence && has_many_rows(p.head_size, p.head_size_v);
}

/// The shape of the launch for many rows on `blocks` multiprocessors, with at most `available` bytes of workspace. `pairs`: two
/// blocks may be a cluster. They are if work tiles are so many that none is divided; then each block has half of their rows.
GIWA_HOST_DEVICE constexpr many_rows_shape shape_of_many_rows(const cached_problem& p, int blocks, int64 available,
                                                              bool pairs) {
  const many_rows_tile tile = many_rows_tile_of(p.head_size, p.head_size_v);
  const bool packed = p.rows > 0;
  const int64 queries = packed ? p.rows : p.queries;
  many_rows_shape s{.consumers = tile.rows / 64,
                    .tile_keys = tile.keys,
                    .tile = consumer_tile_of(static_cast<int>(p.heads / p.kv_heads)),
                    .kv_heads = static_cast<int>(p.kv_heads),
                    .blocks = blocks,
                    .cluster = 1,
                    .slots = 0,
                    .cached_keys = static_cast<int>((24 << 20) / (p.cache_bytes * (p.head_size + p.head_size_v)))};
  const int64 group_tiles = s.tile.group_tiles;
  const int64 tiles =
      ceil_div(saturated_product(ceil_div(queries, int64{s.tile.queries}), group_tiles), int64{s.consumers});
  // Upper bounds: work tiles, and splits of one. Packed sequences with many rows are few, and each may have one more tile.
  const int64 most_long = p.rows / (few_queries_of_sequence + 1), more = ceil_div(group_tiles, int64{s.consumers}) + 1;
  const int64 row_tiles = packed ? tiles + (most_long < p.sequences ? most_long : p.sequences) * more
                                 : saturated_product(p.sequences, tiles);
  const int64 work_tiles = saturated_product(row_tiles, p.kv_heads), most_tiles = 7 * int64{blocks} / 4;
  if (!packed && work_tiles > most_tiles) {
    if (pairs && tiles % 2 == 0 && blocks > 1) s.cluster = 2, s.blocks = blocks / 2;
    return s;
  }
  const int64 shortest = split_tiles_of(packed ? few_queries_of_sequence + 1 : queries, 0, tile.keys);
  const int64 longest = split_tiles_of(max_int64, 0, tile.keys), key_tiles = ceil_div(p.keys, int64{tile.keys});
  const int64 few = ceil_div(key_tiles, shortest) < 18 ? ceil_div(key_tiles, shortest) : 18;
  const int64 many = ceil_div(key_tiles, longest), splits = few > many ? few : many;
  if (splits < least_splits) return s;
  // More than 8 splits a block: the work tiles are many already, or the splits are long.
  const int64 partials = saturated_product(work_tiles < most_tiles ? work_tiles : most_tiles, splits),
              most = 8 * int64{blocks};
  const int64 fit = available / (int64{sizeof(float)} * slot_floats(tile.rows, round_up(p.head_size_v, 16)));
  s.slots = partials < most ? partials : most;
  if (fit < s.slots) s.slots = fit;
  return s;
}

/// The largest workspace of the launches for many rows.
GIWA_HOST_DEVICE constexpr int64 many_rows_bytes(const cached_problem& p, int blocks) {
  if (!may_have_many_rows(p)) return 0;
  const int64 floats = slot_floats(many_rows_tile_of(p.head_size, p.head_size_v).rows, round_up(p.head_size_v, 16));
  return shape_of_many_rows(p, blocks, max_int64, false).slots * floats * int64{sizeof(float)};
}

}  // namespace detail

/// Returns the bytes of the largest workspace that a call of attention_cached() with these sizes uses on a GPU, whatever the
/// lengths, the mask and the pages are. With fewer bytes the call uses fewer multiprocessors where there are few sequences,
/// and returns the same bits. `gpu.multiprocessors`: those of the GPU; without a number, 192 are assumed. 0 for fp32, whose
/// kernel uses no workspace, and for sizes that supports() refuses. Needs no GPU.
/// Example: `workspace_bytes(cached_problem{.sequences = 1, .keys = 8192, .heads = 32, .kv_heads = 8, .head_size = 128,
/// .head_size_v = 128}, {.multiprocessors = 132})`.
/// A template, so that a list in braces is an attention_problem.
template <stdlib::same_as<cached_problem> Problem>
GIWA_HOST_DEVICE constexpr int64 workspace_bytes(const Problem& p, const workspace_gpu& gpu = {}) {
  const int multiprocessors = gpu.multiprocessors > 0 ? gpu.multiprocessors : 192;
  if (!detail::are_on_tensor_cores(p.element_bytes) || !detail::check_sizes(p, 0).ok()) return 0;
  if (p.sequences == 0 || p.heads == 0 || (p.queries == 0 && p.rows == 0)) return 0;
  const auto bytes_with = [&](const detail::few_rows_tile& tiles, const detail::split_work& work, int64 splits) {
    return detail::workspace_bytes_of(detail::shape_of_splits(work, splits, max_int64), tiles.columns);
  };
  const detail::few_rows_tile tiles = detail::few_rows_tile_of(p);
  const int64 few = bytes_with(tiles, detail::work_of(p, tiles, false), multiprocessors),
              many = detail::many_rows_bytes(p, multiprocessors);
  int64 most = few > many ? few : many;
  if (detail::pairs_of_heads_are_faster(p)) {
    const cached_problem of_pairs = detail::problem_of_pairs(p);
    const detail::few_rows_tile tiles_of_pairs = detail::few_rows_tile_of(of_pairs);
    const int64 pairs = bytes_with(tiles_of_pairs, detail::work_of(of_pairs, tiles_of_pairs, false), multiprocessors);
    most = most > pairs ? most : pairs;
  }
  if ((p.cache_bytes != p.element_bytes && p.cache_bytes != 1) || !detail::may_be_latent(p.head_size, p.head_size_v))
    return most;
  const detail::few_rows_tile latent_tiles = detail::latent_tile_of(p);
  const detail::split_work latent_work = detail::latent_work(p, false);
  const int64 latent = bytes_with(latent_tiles, latent_work, detail::latent_splits(latent_work, multiprocessors));
  most = most > latent ? most : latent;
  if (p.queries <= detail::latent_few_queries(p)) return most;
  const detail::split_work wide_work = detail::latent_wide_work(p, detail::latent_wide_leaf(p, multiprocessors), false);
  const int64 wide = detail::workspace_bytes_of(
      detail::shape_of_splits(wide_work, detail::latent_splits(wide_work, multiprocessors), max_int64),
      wide_work.columns);
  return most > wide ? most : wide;
}

}  // namespace giwa::inline GIWA_ABI

#endif
