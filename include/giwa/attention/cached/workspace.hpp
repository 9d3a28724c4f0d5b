// SPDX-License-Identifier: MIT
// The work of an attention_cached call from its sizes, its runs, and the workspace that it can use.
#ifndef GIWA_ATTENTION_CACHED_WORKSPACE_HPP
#define GIWA_ATTENTION_CACHED_WORKSPACE_HPP

#include <giwa/attention/cached/problem.hpp>
#include <giwa/attention/cached/runs.hpp>

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
  const auto shape = [&](int64 runs, int64 states) {
    run_shape s{.runs = static_cast<int>(runs),
                .columns = static_cast<int>(columns),
                .heads_in_column = static_cast<int>(in_column),
                .states = static_cast<int>(states),
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
    // States that a run hands on are those of one unit.
    const int64 own = length < w.unit_leaves ? length : w.unit_leaves;
    const int64 by_tree = run_states::most(own), by_leaf = own + fold_levels::count;
    const int64 states = by_tree < by_leaf ? by_tree : by_leaf;
    if (states > 1 << 20) break;
    const run_shape s = shape(runs, states);
    if (workspace_bytes_of(s, w.columns) <= available) return s;
  }
  return shape(most < units ? most : units, 0);
}

/// The sizes of a kernel that decide its runs and its workspace: keys of a leaf, packed rows of a tile, columns of a state.
struct run_tiles {
  int leaf_keys, rows, columns;
};

/// The sizes of the kernel that runs a problem.
GIWA_HOST_DEVICE constexpr run_tiles run_tiles_of(const cached_problem& p) {
  const int64 rows = p.kv_heads == 0 ? 0 : saturated_product(p.heads / p.kv_heads, p.queries);
  return {.leaf_keys = leaf_keys_of(p.head_size, p.head_size_v),
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

}  // namespace detail

/// Returns the largest workspace, in bytes, that a call of attention_cached() with these sizes uses on a GPU with this
/// many multiprocessors, whatever the lengths, the mask and the pages are. With fewer bytes the call uses fewer
/// multiprocessors where there are few sequences, and returns the same bits. 0 for elements of q or the cache that do not
/// have 16 bits, whose kernel uses no workspace, and for sizes that supports() refuses. Needs no GPU.
/// Example: `cached_workspace_bytes({.sequences = 1, .keys = 8192, .heads = 32, .kv_heads = 8, .head_size = 128,
/// .head_size_v = 128}, 132)`.
GIWA_HOST_DEVICE constexpr int64 cached_workspace_bytes(const cached_problem& p, int multiprocessors) {
  if (p.element_bytes != 2 || p.cache_bytes != 2 || !detail::check_sizes(p, 0).ok()) return 0;
  if (p.sequences == 0 || p.heads == 0 || (p.queries == 0 && p.rows == 0)) return 0;
  const detail::run_tiles tiles = detail::run_tiles_of(p);
  const detail::run_work work = detail::work_of(p, tiles, false);
  return detail::workspace_bytes_of(detail::shape_of_runs(work, multiprocessors, max_int64), tiles.columns);
}

}  // namespace giwa::inline GIWA_ABI

#endif
