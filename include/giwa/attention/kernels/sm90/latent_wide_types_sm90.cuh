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

/// Two warpgroups have half of the columns of O each, and compute S and P of every other tile of keys; one warpgroup loads.
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
  static constexpr int columns = Policy::head_size_v, half = columns / 2;  // half: columns of a warpgroup
  static_assert(rows == 64 && Policy::head_size == latent_head_size && columns == latent_head_size_v);

  static constexpr int output_warps = 8, producers = 4, max_threads = 32 * (output_warps + producers);
  static constexpr int output_threads = 32 * output_warps;
  // Lists need few registers to be copied: with 208 the loops of the output warps spill, 1326 us instead of 1458 for 1024 lists of 2048
  // keys and 128 heads, 204 instead of 209 for 128 of them (H200, 2026-11-30).
  static constexpr int output_registers = call_params::selects && !has_format ? 224 : 208;
  static constexpr int producer_registers = 504 - 2 * output_registers;

  template <int Rows, int Columns>
  using tile = shared_tile<T, tile_shape<Rows, Columns>, swizzled<swizzle::bytes_128>>;
  using q_tile = tile<rows, Policy::head_size>;       // (rows, head size)
  using k_tile = tile<leaf_keys, Policy::head_size>;  // (keys, head size), whose first columns are V
  using output_map = warpgroup_map<half>;
  using state = row_sums<output_map>;

  /// p: of a warp that hands P over and one that takes it. of_one: of the warps of a warpgroup.
  enum class named_barrier : int { block, producers, ready, outputs, of_one, p = of_one + 2 };
  GIWA_DEVICE static constexpr int barrier_of(named_barrier first, int number) {
    return static_cast<int>(first) + number;
  }

  /// A stage is loaded in parts, slabs of 64 columns each, because S begins with the first. It is released in two: the columns of V
  /// of each warpgroup.
  static constexpr int parts = 4, slabs = Policy::head_size / 64, half_slabs = half / 64;
  GIWA_HOST_DEVICE static constexpr int slab_of(int part) {
    return part == parts ? slabs : part * (2 * half_slabs / parts);
  }
  struct ring {
    k_tile tile[stages];
    arch::mbarrier full[stages][parts], empty[stages][2];
  };
  /// What of a tile the warpgroup that has its scores tells the other one, for each warp.
  enum news : int { raised = 1, scrubbed = 2 };
  struct shared_storage {
    ring k;
    q_tile q;
    uint4 p[4][128];      // P of a tile, as each thread of a warpgroup has it as an operand
    float m[rows];        // of rows whose m was raised
    float l[2][2][rows];  // of a leaf, in one of two buffers: of the tiles of each warpgroup
    int news[4];
    int has_nonfinite[2];
    split_search search;
    work_tile_queue queue;
  };
  struct params {
    row_tile_params<call_params> splits;
    key_copies copies;
    int box_rows;      // of a copy of TMA
    int issuers_log2;  // of the warps that start boxes
    bool q_aligned;    // rows of q are aligned to 16 bytes
    tensor_map k;      // (element of the cache, head, row, head size)
  };
};

/// The tiles of a leaf that some row sees, in order. All warps walk them.
template <class Types, class Block>
struct latent_wide_walk {
  const Block& block;
  const typename Types::call_params& call;
  const packed_rows& rows;
  const int leaf_tiles;
  int tile, end;
  tile_keep visible = tile_keep::none;
  [[no_unique_address]] typename Types::visible_leaves leaves{};

  GIWA_DEVICE latent_wide_walk(const Block& b, const typename Types::params& p, const packed_rows& r, int leaf)
      : block(b), call(p.splits.call), rows(r), leaf_tiles(p.splits.leaf_keys / Types::leaf_keys) {
    enter(leaf);
  }
  GIWA_DEVICE void enter(int leaf) {
    tile = leaf * leaf_tiles - 1, end = ceil_div(rows.keys, Types::leaf_keys);
    if (end > tile + 1 + leaf_tiles) end = tile + 1 + leaf_tiles;
    next();
  }
  GIWA_DEVICE bool exists() const { return tile < end; }
  GIWA_DEVICE void next() {
    for (++tile; tile < end; ++tile) {
      visible = leaves.of(block, call, rows, tile);
      if (visible != tile_keep::none) return;
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
