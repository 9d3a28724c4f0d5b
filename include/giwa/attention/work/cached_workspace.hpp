// SPDX-License-Identifier: MIT
// The work of an attention_cached call from its sizes, its runs, and the workspace that it can use.
#ifndef GIWA_ATTENTION_WORK_CACHED_WORKSPACE_HPP
#define GIWA_ATTENTION_WORK_CACHED_WORKSPACE_HPP

#include <giwa/attention/problem/cached_problem.hpp>
#include <giwa/attention/work/many_rows.hpp>
#include <giwa/attention/work/runs.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// What the host knows of the work of a launch, for the shape of its runs.
struct run_work {
  int64 sequences, kv_heads;
  int64 units;        // tiles of rows of all sequences, of one head of keys, at most
  int64 unit_leaves;  // of one unit, at most
  int64 rows;         // of a tile that are in use, at most
  int64 columns;      // of the output, padded
  bool exact;         // units and unit_leaves are those of every sequence
};

/// Shares the work among `blocks` blocks, with at most `available` bytes of workspace. Heads are columns, because
/// neighbouring heads of a key are neighbours in memory, unless more than a tenth of the blocks would have no work.
GIWA_HOST_DEVICE constexpr run_shape shape_of_runs(const run_work& w, int64 blocks, int64 available) {
  const bool by_columns = w.kv_heads <= blocks && blocks % w.kv_heads * 10 <= blocks;
  const int64 columns = by_columns ? w.kv_heads : 1, in_column = by_columns ? 1 : w.kv_heads;
  const int64 units = saturated_product(w.units, in_column), leaves = saturated_product(units, w.unit_leaves);
  const int64 most = blocks / columns < leaves ? blocks / columns : leaves;
  const auto shape = [&](int64 runs, int64 slots) {
    run_shape s{.runs = static_cast<int>(runs),
                .columns = static_cast<int>(columns),
                .heads_in_column = static_cast<int>(in_column),
                .slots = static_cast<int>(slots),
                .rows = static_cast<int>(w.rows),
                .most_leaves = 0,
                .one_unit = units == 1};
    s.most_leaves = s.length_of(leaves);
    return s;
  };
  if (most <= 0) return shape(1, 0);
  for (int64 runs = most; runs > units || (runs == most && runs > 0); runs -= ceil_div(runs, int64{8})) {
    const int64 length = shape(runs, 0).most_leaves;
    // No unit is divided.
    if (runs == 1 || w.unit_leaves == 1 || (w.exact && length % w.unit_leaves == 0)) return shape(runs, 0);
    // Partials that a run hands on are those of one unit.
    const int64 own = length < w.unit_leaves ? length : w.unit_leaves;
    const int64 by_tree = run_partials::most(own), by_leaf = own + fold_levels::count;
    const int64 slots = by_tree < by_leaf ? by_tree : by_leaf;
    if (slots > 1 << 20) break;
    const run_shape s = shape(runs, slots);
    if (workspace_bytes_of(s, w.columns) <= available) return s;
  }
  return shape(most < units ? most : units, 0);
}

/// The sizes of a kernel that decide its runs and its workspace: keys of a leaf, packed rows of a tile, columns of a partial.
struct run_tiles {
  int leaf_keys, rows, columns;
};

/// The sizes of the kernel that runs a problem.
GIWA_HOST_DEVICE constexpr run_tiles run_tiles_of(const cached_problem& p) {
  const int64 rows = p.kv_heads == 0 ? 0 : saturated_product(p.heads / p.kv_heads, p.queries);
  return {.leaf_keys = leaf_keys_of(p.head_size, p.head_size_v, p.cache_bytes),
          .rows = rows > 0 && rows <= 16 ? 16 : 32,
          .columns = static_cast<int>(round_up(p.head_size_v, 16))};
}

/// The work of a problem. `exact`: all sequences have as many queries and keys as the problem says.
GIWA_HOST_DEVICE constexpr run_work work_of(const cached_problem& p, const run_tiles& tiles, bool exact) {
  const bool packed = p.rows > 0;
  const int64 rows = saturated_product(packed ? p.rows : p.queries, p.heads / p.kv_heads);
  const int64 row_tiles = ceil_div(rows, int64{tiles.rows}), leaves = ceil_div(p.keys, int64{tiles.leaf_keys});
  return {.sequences = p.sequences,
          .kv_heads = p.kv_heads,
          .units = packed ? p.sequences + row_tiles : saturated_product(p.sequences, row_tiles),
          .unit_leaves = leaves > 0 ? leaves : 1,
          .rows = rows < tiles.rows ? rows : tiles.rows,
          .columns = tiles.columns,
          .exact = exact};
}

/// Whether some sequence may have many rows. `queries` of packed ones is what the caller says.
GIWA_HOST_DEVICE constexpr bool may_have_many_rows(const cached_problem& p) {
  return p.cache_bytes == 2 && p.queries > few_queries_of_sequence && has_many_rows(p.head_size, p.head_size_v);
}

/// The shape of the launch for many rows on `blocks` multiprocessors, with at most `available` bytes of workspace. `pairs`: two
/// blocks may be a cluster. They are if units are so many that none is divided, and each block has a tile of rows of every unit.
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
  const int64 of_group = s.tile.of_group;
  const int64 tiles =
      ceil_div(saturated_product(ceil_div(queries, int64{s.tile.queries}), of_group), int64{s.consumers});
  // Upper bounds: units, and splits of one. Packed sequences with many rows are few, and each may have one more tile.
  const int64 most_long = p.rows / (few_queries_of_sequence + 1), more = ceil_div(of_group, int64{s.consumers}) + 1;
  const int64 row_tiles = packed ? tiles + (most_long < p.sequences ? most_long : p.sequences) * more
                                 : saturated_product(p.sequences, tiles);
  const int64 units = saturated_product(row_tiles, p.kv_heads), most_units = 7 * int64{blocks} / 4;
  if (!packed && units > most_units) {
    if (pairs && tiles % 2 == 0 && blocks > 1) s.cluster = 2, s.blocks = blocks / 2;
    return s;
  }
  const int64 shortest = split_tiles_of(packed ? few_queries_of_sequence + 1 : queries, 0, tile.keys);
  const int64 longest = split_tiles_of(max_int64, 0, tile.keys), key_tiles = ceil_div(p.keys, int64{tile.keys});
  const int64 few = ceil_div(key_tiles, shortest) < 18 ? ceil_div(key_tiles, shortest) : 18;
  const int64 many = ceil_div(key_tiles, longest), splits = few > many ? few : many;
  if (splits < least_splits) return s;
  // More than 8 items a block: the units are many already, or the splits are long.
  const int64 items = saturated_product(units < most_units ? units : most_units, splits), most = 8 * int64{blocks};
  const int64 fit = available / (int64{sizeof(float)} * item_floats(tile.rows, round_up(p.head_size_v, 16)));
  s.slots = items < most ? items : most;
  if (fit < s.slots) s.slots = fit;
  return s;
}

/// The largest workspace of the launches for many rows.
GIWA_HOST_DEVICE constexpr int64 many_rows_bytes(const cached_problem& p, int blocks) {
  if (!may_have_many_rows(p)) return 0;
  const int64 floats = item_floats(many_rows_tile_of(p.head_size, p.head_size_v).rows, round_up(p.head_size_v, 16));
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
  const detail::run_tiles tiles = detail::run_tiles_of(p);
  const detail::run_work work = detail::work_of(p, tiles, false);
  const int64 few = detail::workspace_bytes_of(detail::shape_of_runs(work, multiprocessors, max_int64), tiles.columns);
  const int64 many = detail::many_rows_bytes(p, multiprocessors);
  return few > many ? few : many;
}

}  // namespace giwa::inline GIWA_ABI

#endif
