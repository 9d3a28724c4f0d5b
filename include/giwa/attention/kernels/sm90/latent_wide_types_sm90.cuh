// SPDX-License-Identifier: MIT
// Types of the kernel for many latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_TYPES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_WIDE_TYPES_SM90_CUH

#include <giwa/attention/kernels/sm90/latent_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The call without sequences of few queries, which have another launch.
template <class Call>
struct latent_wide_call : Call {
  using merged_in_order = void;  // see merges_in_order
  int few_queries;               // sequences with so many or fewer have none here
  GIWA_HOST_DEVICE cached_sequence at(int b) const {
    cached_sequence s = Call::at(b);
    if (s.queries <= few_queries) s.queries = 0;
    return s;
  }
};

/// One warpgroup scores all tiles of keys, S and P, and adds P V of the first columns of O; another one follows with P V of the other
/// columns; a third one loads.
/// Policy: few_rows_policy with 64 rows and 2 stages.
template <class T, class Element, class O, class Policy, class Mask, class Score>
struct latent_wide_types {
  using policy = Policy;
  using query = T;
  using element = T;
  using operand = T;
  using output = O;
  using call_params = latent_wide_call<cached_params<T, Element, O, Mask, Score>>;
  // What a selection leaves out of a tile is zeros there, and TMA does not gather rows.
  static constexpr bool has_format = !stdlib::same_as<T, Element>, scrubs = !call_params::selects;
  static constexpr bool has_boxes = scrubs && !has_format;
  static constexpr bool converts = false, values_are_keys = true;
  static constexpr int rows = Policy::rows, stages = Policy::stages;
  static constexpr int leaf_keys = 64;  // of a tile, which few_rows_copies calls a leaf
  using visible_leaves = detail::visible_leaves<Mask, leaf_keys>;
  static constexpr int columns = Policy::head_size_v, scorer_columns = 128, follower_columns = columns - scorer_columns;
  static_assert(rows == 64 && Policy::head_size == latent_head_size && columns == latent_head_size_v);

  static constexpr int output_warps = 8, producers = 4, max_threads = 32 * (output_warps + producers);
  static constexpr int output_threads = 32 * output_warps;
  static constexpr int scorer_registers = 176, follower_registers = 240, producer_registers = 88;
  static_assert(scorer_registers + follower_registers + producer_registers == 504);

  template <int Rows, int Columns>
  using tile = shared_tile<T, tile_shape<Rows, Columns>, swizzled<swizzle::bytes_128>>;
  using q_tile = tile<rows, Policy::head_size>;       // (rows, head size)
  using k_tile = tile<leaf_keys, Policy::head_size>;  // (keys, head size), whose first columns are V

  /// of_scorer: of its warps. p, met: of each of its warps and the one that follows it: P is there; P was taken, and S of
  /// the next tile is there.
  enum class named_barrier : int { block, producers, ready, outputs, of_scorer, p, met = p + 4 };
  GIWA_DEVICE static constexpr int barrier_of(named_barrier first, int number) {
    return static_cast<int>(first) + number;
  }

  /// A stage is loaded and released in parts: the columns that are not of V, which only S needs, and then those of V, 128 at a time, of the
  /// scorer and of the follower.
  static constexpr int parts = 5, part_columns = 128;
  static_assert(scorer_columns == part_columns && columns == (parts - 1) * part_columns);
  /// The last parts, which the follower adds while the scorer computes P of the next tile, for which the tensor cores would wait. Not of rows
  /// of a format, whose copies begin when all of a stage is free.
  static constexpr int late_parts = has_format ? 0 : 2, follower_part = 2;
  /// The first slab, of 64 columns, of a part, and their number.
  GIWA_HOST_DEVICE static constexpr int slab_of(int part) {
    return part == 0 ? columns / 64 : (part - 1) * part_columns / 64;
  }
  GIWA_HOST_DEVICE static constexpr int slabs_of(int part) {
    return part == 0 ? (Policy::head_size - columns) / 64 : part_columns / 64;
  }
  struct ring {
    k_tile tile[stages];
    arch::mbarrier full[stages][parts], empty[stages][parts];
  };
  /// What the scorer tells of a tile, for each warp.
  enum news : int { raised = 1, scrubbed = 2 };
  struct shared_storage {
    ring k;
    q_tile q;
    uint4 p[4][128];       // P of a tile, as each thread of a warpgroup has it as an operand
    float factor[rows];    // of O of rows whose m was raised
    float2 sums[2][rows];  // m and l of a leaf, in one of two buffers
    int news[4];
    int has_nonfinite;
    split_search search;
    work_tile_queue queue;
  };
  struct params {
    row_tile_params<call_params> splits;
    key_copies copies;
    int box_rows;            // of a copy of TMA
    int issuers_log2;        // of the warps that start boxes
    bool q_aligned;          // rows of q are aligned to 16 bytes
    bool sums_in_workspace;  // O of earlier leaves
    tensor_map k;            // (element of the cache, head, row, head size)
  };
};

/// The tiles of a leaf that some row sees, in order. All warps walk them.
template <class Types, class Block>
struct latent_wide_walk {
  const Block& block;
  const typename Types::call_params& call;
  const packed_rows& rows;
  const int leaf_tiles;
  int tile, end,
      full_end = 0;  // full_end: the end of tiles of which all rows see all keys, as is known for all of them
  tile_keep visible = tile_keep::none;
  [[no_unique_address]] typename Types::visible_leaves leaves{};

  GIWA_DEVICE latent_wide_walk(const Block& b, const typename Types::params& p, const packed_rows& r, int leaf)
      : block(b), call(p.splits.call), rows(r), leaf_tiles(p.splits.leaf_keys / Types::leaf_keys) {
    enter(leaf);
  }
  GIWA_DEVICE void enter(int leaf) {
    tile = leaf * leaf_tiles - 1, end = ceil_div(rows.keys, Types::leaf_keys);
    if (end > tile + 1 + leaf_tiles) end = tile + 1 + leaf_tiles;
    if constexpr (mask_bounds_leaves<stdlib::remove_cvref_t<decltype(call.mask)>>) {
      const int first = tile + 1, full = rows.keys / Types::leaf_keys, last = full < end ? full : end;
      const score_tile all = rows.tile(first * Types::leaf_keys, last * Types::leaf_keys - 1);
      full_end = first < last && classify_heads(call.mask, all, call.heads_per_kv) == tile_keep::all ? last : 0;
    }
    next();
  }
  GIWA_DEVICE bool exists() const { return tile < end; }
  GIWA_DEVICE void next() {
    if (tile + 1 < full_end) {
      ++tile, visible = tile_keep::all;
      return;
    }
    for (++tile; tile < end; ++tile) {
      visible = leaves.of(block, call, rows, tile);
      if (visible != tile_keep::none) return;
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
