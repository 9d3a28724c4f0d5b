// SPDX-License-Identifier: MIT
// Types of the kernel for latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_TYPES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_TYPES_SM90_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/matrix_load.cuh>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/arch/tensor_map.hpp>
#include <giwa/attention/kernels/sm80/byte_products_sm80.cuh>
#include <giwa/attention/kernels/sm80/few_rows_types_sm80.cuh>
#include <giwa/attention/sums/finish_rows.cuh>
#include <giwa/attention/sums/leaf_fold.hpp>
#include <giwa/attention/sums/row_sums.cuh>
#include <giwa/tile/mma_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A thread's elements of O^T, which wgmma computes in slabs of 64 columns of O: the map of O (Rows, Columns), whose rows are the
/// columns of the accumulators. Warpgroup w of Columns / 64 / Warpgroups slabs has those from w times that number on.
template <int Rows, int Slabs>
struct transposed_output_map {
  using shape = tile_shape<Rows, 64 * Slabs>;
  using slab = warpgroup_map<Rows>;
  static constexpr int rows = Rows / 4, registers = Slabs * slab::registers, period = registers, lanes = 8;

  GIWA_HOST_DEVICE static constexpr int slot(int i) { return i % slab::registers / 4 * 2 + i % 2; }
  GIWA_HOST_DEVICE static constexpr int row(int thread, int slot) { return slot / 2 * 8 + thread % 4 * 2 + slot % 2; }
  GIWA_HOST_DEVICE static constexpr int column(int thread, int i) {
    return i / slab::registers * 64 + slab::row(thread, slab::slot(i % slab::registers));
  }
};

/// Whether lanes next to each other have the same rows.
template <class Map>
inline constexpr bool neighbours_share_rows = Map::row(0, 0) == Map::row(1, 0);
/// Whether a thread is the first in its block that has its rows.
template <class Map>
GIWA_DEVICE bool is_first_of_rows(int rank) {
  return rank < 32 && (neighbours_share_rows<Map> ? rank % Map::lanes == 0 : rank < 32 / Map::lanes);
}

/// Rows of 656 bytes in shared memory, as they are in memory, so that bulk copies bring them. 16 bytes of 8 rows lie in different banks,
/// because 656 is 16 more than a multiple of 128.
template <int Keys>
struct row_bytes_tile {
  static constexpr int keys = Keys, groups = rows_656::codes / rows_656::group;
  shared_tile<e4m3, tile_shape<Keys, rows_656::codes>, padded<rows_656::row_bytes - rows_656::codes>> codes;

  GIWA_DEVICE unsigned char* row(int key) {
    return reinterpret_cast<unsigned char*>(codes.data()) + rows_656::row_bytes * key;
  }
  GIWA_DEVICE const float* scales(int key) const {
    return reinterpret_cast<const float*>(&codes(key, 0) + rows_656::scales_at);
  }
};
/// Queries for them: in fp16 for the numbers of each scale, in the order of multiply_keys(), divided by a power of two; in bf16 for the
/// rest, and what bf16 leaves of fp16.
template <class T, int Rows>
struct row_bytes_queries {
  template <class Value, int Columns>
  using part = shared_tile<Value, tile_shape<Rows, Columns>, swizzled<swizzle::bytes_128>>;
  static constexpr int groups = rows_656::codes / rows_656::group,
                       rests = precision_of<T>::significand_bits > 8 ? 2 : 1;
  part<fp16, rows_656::group> codes[groups];
  part<bf16, rows_656::rest> rest[rests];
  float factor[Rows];
};
/// P times the scales of its keys, in units of a power of two, for each scale of a row; and these powers.
template <int Rows, int Keys, int Warps>
struct row_bytes_weights {
  static constexpr int groups = rows_656::codes / rows_656::group;
  shared_tile<fp16, tile_shape<Rows, Keys>, swizzled<swizzle::bytes_128>> of[groups];
  float factor[groups][Rows];
  alignas(16) float largest[groups][Rows][Warps];  // scale that a row sees among the keys of each score warp
  alignas(16) uint32 exponent[groups];             // of the largest scale of the tile
};

/// Stores P of a warpgroup, whose register i has value_of(i), as (rows, keys): four matrices of 8 keys and 8 rows at once, transposed.
template <class T, class Tile, class Value>
GIWA_DEVICE void store_transposed(int lane, int warp, Tile& to, const Value& value_of) {
  GIWA_UNROLL
  for (int c = 0; c < Tile::rows / 16; ++c) {
    uint32 words[4];
    GIWA_UNROLL
    for (int j = 0; j < 4; ++j) {
      const auto two = pack<T>(value_of(8 * c + 2 * j), value_of(8 * c + 2 * j + 1));
      __builtin_memcpy(&words[j], &two, 4);
    }
    arch::store_matrices<true>(
        arch::shared_address(to.chunk(16 * c + lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8)), words);
  }
}

/// The row map of transposed scores of packed rows, for score_steps: rows are keys, columns are packed rows.
struct columns_are_packed {
  int first_key;
  GIWA_HOST_DEVICE int query(int, int column) const { return column; }
  GIWA_HOST_DEVICE int key(int row, int) const { return first_key + row; }
};

/// m and l of a node of the fold, which each warp of the output warpgroups keeps once.
template <int Rows>
struct warp_sums {
  float m[Rows], l[Rows];
};

/// Loads the packed rows of a work tile into the tile of q, zeros past their end: by cp.async, because one after the other each chunk
/// took the latency of the memory (1 x 32768, 16 heads: 20.1 us instead of 22.4, H200, 2026-11-30). `Threads` threads call it, each
/// with its rank; 8 of them have a row, whose address they work out once.
template <class Types, int Threads>
GIWA_DEVICE void copy_packed_rows(int thread, const typename Types::params& p, const typename Types::call_params& call,
                                  const few_rows_work_tile& work, const packed_rows& rows,
                                  typename Types::shared_storage& s) {
  using operand = typename Types::operand;
  using tile = typename Types::q_tile;
  constexpr int run = 16 / static_cast<int>(sizeof(operand)), lanes = 8, slabs = tile::columns / (lanes * run);
  constexpr int at_once = Threads / lanes, each = tile::rows / at_once;
  static_assert(each * at_once == tile::rows && slabs * lanes * run == tile::columns);
  const auto& q = call.views.q;
  const int first = thread / lanes, column = thread % lanes * run;
  const operand* from[each];
  GIWA_UNROLL
  for (int i = 0; i < each; ++i) {
    const int row = first + i * at_once;
    from[i] = nullptr;
    if (row < rows.rows)
      from[i] = &q(work.sequence.q_batch, work.sequence.first_query_row + rows.query(row), rows.head(row), column);
  }
  GIWA_UNROLL
  for (int i = 0; i < each; ++i) {
    operand* const to = s.q.chunk(first + i * at_once, column);
    if (p.q_aligned) {
      GIWA_UNROLL
      for (int slab = 0; slab < slabs; ++slab)
        arch::copy_async_and_fill(arch::shared_address(to) + slab * tile::rows * lanes * 16,
                                  (from[i] == nullptr ? q.data() : from[i]) + slab * lanes * run,
                                  from[i] == nullptr ? 0 : 16);
    } else {
#pragma unroll 1
      for (int j = 0; j < slabs * run; ++j)
        to[j / run * tile::rows * lanes * run + j % run] =
            from[i] == nullptr ? convert<operand>{}(0.f) : from[i][j / run * lanes * run + j % run];
    }
  }
  arch::copy_async_commit();
  arch::copy_async_wait<0>();
}

/// A number of V in the cache, as it is in a tile of T.
template <class T, class Element>
GIWA_DEVICE T value_of(const tensor_view<const Element, 4>& v, const cache_row& row, int head, int column) {
  if constexpr (stdlib::same_as<T, Element>)
    return v(row.element, row.row, head, column);
  else
    return convert<T>{}(number_of_row<float>(&v(row.element, row.row, head, 0), column));
}

/// What a tile of 64 keys keeps of its scores. With a selection each lane reads two numbers of the list, as early as the caller likes,
/// and all learn by votes which of them name a key; else the mask is asked.
template <class Call>
struct tile_of_list {
  int number[2];

  template <class Block>
  GIWA_DEVICE void read(const Block& block, const Call& call, const packed_rows& rows, int first_key) {
    if constexpr (Call::selects) {
      GIWA_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int place = first_key + 32 * h + block.lane();
        number[h] = place < rows.keys ? call.mask.indices[rows.batch * call.mask.stride + place] : -1;
      }
    }
  }
  template <class Block, class Steps, class Scores, class RowMap>
  GIWA_DEVICE void apply(const Block& block, int thread, const Steps& steps, Scores& scores, const packed_rows& rows,
                         tile_keep visible, const RowMap& at) const {
    steps.apply(thread, scores, rows, Call::selects ? tile_keep::all : visible, at);
    if constexpr (Call::selects) {
      const uint32 named[2] = {block.ballot(selection_mask::is_named(number[0], rows.offset)),
                               block.ballot(selection_mask::is_named(number[1], rows.offset))};
      if ((named[0] & named[1]) == ~uint32{0}) return;
      scores.for_each(thread, [&](float& x, int row, int column) {
        const int key = at.key(row, column) - at.first_key;
        if ((named[key / 32] >> key % 32 & 1) == 0) x = -infinity_of<float>;
      });
    }
  }
};

/// Policy: few_rows_policy with 16 rows. The producers, the queue and the splits are those of the kernel for few rows. Element: T, or
/// rows that become numbers of T when they are loaded.
template <class T, class Element, class O, class Policy, class Mask, class Score>
struct latent_types : few_rows_barriers {
  using policy = Policy;
  using query = T;
  using element = T;
  using output = O;
  using call_params = cached_params<T, Element, O, Mask, Score>;
  // What a selection leaves out of a tile is zeros there, and TMA does not gather rows.
  static constexpr bool has_format = !stdlib::same_as<T, Element>, scrubs = !call_params::selects;
  static constexpr int early_sequences = most_early_sequences;
  static constexpr bool has_boxes = scrubs && !has_format;
  static constexpr bool converts = false, values_are_keys = true, copies_bytes = has_format;
  using operand = stdlib::conditional_t<has_format, fp16, T>;  // of P
  static constexpr int rows = Policy::rows, stages = has_format ? 3 : Policy::stages, leaf_keys = latent_leaf_keys;
  using visible_leaves = detail::visible_leaves<Mask, leaf_keys, has_format>;
  static constexpr int columns = Policy::head_size_v;
  static_assert(Policy::head_size % 64 == 0 && columns % 128 == 0 && columns <= Policy::head_size);

  // Two warpgroups compute O^T = V^T P^T, half of the columns each; one computes S^T = K Q^T and P, or two of rows of bytes: one took 3000
  // cycles for a tile, most of it latency (128 x 8192, 16 heads, H200, 2026-11-30).
  static constexpr int output_warps = 8, score_warps = 4, score_groups = has_format ? 2 : 1, producers = 4;
  static constexpr int max_threads = 32 * (output_warps + score_groups * score_warps + producers);
  static constexpr int output_registers = has_format ? 128 : 184, score_registers = has_format ? 88 : 72,
                       producer_registers = has_format ? 48 : 72;
  static constexpr int score_threads = 32 * score_warps, output_threads = 32 * output_warps;

  template <int Rows, int Columns>
  using tile = shared_tile<T, tile_shape<Rows, Columns>, swizzled<swizzle::bytes_128>>;
  template <class Bytes, class Numbers>
  using of_format = stdlib::conditional_t<has_format, Bytes, Numbers>;
  using q_tile = of_format<row_bytes_queries<T, rows>, tile<rows, Policy::head_size>>;  // (rows, head size)
  using k_tile =
      of_format<row_bytes_tile<leaf_keys>, tile<leaf_keys, Policy::head_size>>;  // (keys, head size), first V
  using p_tile = of_format<row_bytes_weights<rows, leaf_keys, score_warps>, tile<rows, leaf_keys>>;  // (rows, keys)
  static constexpr int slabs = columns / 128;                                                        // of a warpgroup
  static constexpr int columns_of_warp = columns / output_warps;  // of rows of bytes; each warp has its own
  using output_map = of_format<byte_map<rows, columns_of_warp, 1>, transposed_output_map<rows, slabs>>;
  using state = row_sums<output_map>;

  static constexpr bool groups_alternate = stages % score_groups != 0;  // of a stage
  struct ring {
    k_tile tile[stages];
    arch::mbarrier full[stages], empty[stages];
    int requested[stages];  // the number of the tile whose copies have begun, where groups of score warps alternate
  };
  struct shared_storage {
    ring k;
    q_tile q;
    p_tile p[2];
    union {
      // O of all keys before the last node of 64 leaves; of rows of bytes that of a node of 16 leaves.
      float o_before[output_map::registers][output_threads];
      alignas(16) float o_of_rows[rows][columns + 4];  // of a work tile that is written, without bank conflicts
    };
    warp_sums<rows> sums_before[fold_levels::count][output_warps];  // of the nodes of the fold
    ended_row<output> row[rows];                                    // of a work tile that is written
    float m[2][rows];                                               // of a leaf, in units of log2
    alignas(16) float maxima[2][rows][score_warps];                 // of each score warp's keys
    alignas(16) float sums[2][rows][score_warps];
    int has_nonfinite[2];
    split_search search;
    work_tile_queue queue;
  };
  struct params {
    split_params<call_params> splits;
    key_copies copies;
    int box_rows;      // of a copy of TMA
    int issuers_log2;  // of the warps that start boxes
    bool q_aligned;    // rows of q are aligned to 16 bytes
    bool keys_once;    // each key is read by one tile of rows, and need not stay in the L2 cache
    tensor_map k;      // (element of the cache, head, row, head size)
  };

  /// Waits until a tile of keys is there. wgmma may then read what cp.async or ordinary stores have written; it takes rows of bytes from
  /// registers.
  GIWA_DEVICE static void wait_for_keys(const params& p, shared_storage& s, uint32 turn) {
    // The tile before in this stage may be one of the other group's, which this warp has not waited for. Until that is there, the last
    // complete phase is the one before it, which has the parity of this tile's. A producer begins to copy this tile when the output warps
    // have had the other one; then its phase is complete, and this tile's cannot be over before this warp has handed on P.
    if constexpr (groups_alternate)
      while (static_cast<volatile int&>(s.k.requested[turn % stages]) != static_cast<int>(turn)) {
      }
    s.k.full[turn % stages].wait(turn / stages & 1);
    if (!has_format && p.copies != key_copies::boxes) arch::fence_async_proxy();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
