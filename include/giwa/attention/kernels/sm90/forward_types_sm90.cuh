// SPDX-License-Identifier: MIT
// Types that the roles of the Hopper kernel share: tiles, pipelines, work tiles, barriers, and the kernel's parameters.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_TYPES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_TYPES_SM90_CUH

#include <giwa/attention/score/score_steps.cuh>
#include <giwa/attention/split_fp16/layout.hpp>
#include <giwa/attention/work/visible_tiles.hpp>
#include <giwa/attention/work/work_tiles.hpp>
#include <giwa/tile/pipeline_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// What a policy says for 8-bit elements, whose V is transposed, and what holds for others.
template <class Policy, bool TransposesV>
struct sm90_stages_of_bytes {
  static constexpr int k_stages = Policy::stages, loaded_stages = 1;
  static constexpr bool sums_in_shared = false;
};
template <class Policy>
struct sm90_stages_of_bytes<Policy, true> {
  // More stages of K: V needs more time until it can be multiplied, and K is loaded before it.
  static constexpr int k_stages = Policy::k_stages,
                       loaded_stages = Policy::loaded_stages > 0 ? Policy::loaded_stages : 1;
  static constexpr bool sums_in_shared = Policy::sums_in_shared;
};

/// A block has one producer warpgroup (tile scheduler, loader, NaN scrubbers) and Policy::consumers consumer warpgroups
/// of 64 queries each. The producer classifies each tile by the mask once, and passes the result on with the tile.
template <class T, class O, class Policy, class Mask, class Score>
struct sm90_types {
  using policy = Policy;
  using mask = Mask;
  using score = Score;
  using tiles_of_keys = key_tiles<Mask>;
  static constexpr int block_m = Policy::block_m, block_n = Policy::block_n;
  static constexpr int consumers = Policy::consumers, stages = Policy::stages;
  static constexpr int head_size = Policy::head_size, head_size_v = Policy::head_size_v;
  static constexpr int scrubbers = 2;  // warps

  // fp32 arrives as split fp16 with exponents (split_fp16/). The hi and lo parts of a row are contiguous.
  static constexpr bool is_split = element_traits<T>::is_split;
  using element = typename element_traits<T>::operand;
  // Tensor cores read 8-bit operands along k only: V arrives as (keys, head size), and the NaN scrubbers transpose it.
  static constexpr bool transposes_v = !element_traits<T>::reads_v_as_it_lies;
  // Where V arrives K-major, the loader changes the order of K's keys instead, so that P needs no exchange either.
  static constexpr bool k_major_v = requires { requires Policy::k_major_v; };
  static constexpr bool uses_transposers = transposes_v && !k_major_v;
  using score_map = stdlib::conditional_t<k_major_v, warpgroup_quads_map<block_n>, warpgroup_map<block_n>>;
  using of_bytes = sm90_stages_of_bytes<Policy, transposes_v>;
  static constexpr int k_stages = of_bytes::k_stages;
  static_assert(k_stages <= 4, "the consumer relies on a stage's number having two bits");
  static constexpr int slab = 128 / element_traits<element>::bytes;  // elements of 128 bytes
  template <int Rows, int Columns>
  using input_tile =
      shared_tile<element, tile_shape<Rows, Policy::parts * round_up(Columns, slab)>, swizzled<swizzle::bytes_128>>;
  using q_tile = input_tile<64, head_size>;                // (queries of a consumer, head size)
  using k_tile = input_tile<block_n, head_size>;           // (keys, head size)
  using loaded_v_tile = input_tile<block_n, head_size_v>;  // (keys, head size of v)
  // What tensor cores read; transposed, the keys have the order of operand_key().
  using v_tile = stdlib::conditional_t<transposes_v, input_tile<head_size_v, block_n>, loaded_v_tile>;
  static constexpr swizzle output_swizzle = head_size_v % 64 == 0   ? swizzle::bytes_128
                                            : head_size_v % 32 == 0 ? swizzle::bytes_64
                                                                    : swizzle::bytes_32;
  // The tile that TMA stores: (queries of a consumer, head size of v). A wider output is stored from registers.
  static constexpr bool stores_tiles = sizeof(O) == 2 && Policy::stages_output && !transposes_v;
  using o_element = stdlib::conditional_t<stores_tiles, O, stdlib::conditional_t<transposes_v, fp16, element>>;
  using o_tile = shared_tile<o_element, tile_shape<64, head_size_v>, swizzled<output_swizzle>>;
  // The rows of a warp, which it stores itself: the warps of a consumer do not wait for each other at a tile's end.
  using o_rows = shared_tile<typename o_tile::value_type, tile_shape<16, head_size_v>, swizzled<output_swizzle>>;

  // If all blocks have the same amount of work, the two blocks of a cluster share each read of K and V from the L2
  // cache: each loads half of a tile's slabs for both.
  static constexpr bool multicasts =
      mask_traits<Mask>::keeps_all && k_tile::columns % 128 == 0 && v_tile::columns % 128 == 0 && !transposes_v;
  using copies = tensor_copies<multicasts ? 2 : 1>;

  // Where the queries of a head are no whole number of tiles, the first tile has fewer, whole consumers of 64, and not the
  // last one, which has the most keys under a causal mask. The work tile's copy of the head has no queries after the tile's last one.
  static constexpr bool first_tile_is_short = !mask_traits<Mask>::keeps_all;

  // Tensor-core accumulation truncates toward zero, and the errors of one sum over all keys add up: if all values have
  // one sign, the relative error of the output is 4e-5 at 2^16 keys and 6.7e-4 at 2^20 (H200). So keys are summed in
  // chunks, which are merged in fp32. With two parts each tile is summed separately, so chunks are not needed.
  // Of e4m3 they have 13 bits after the largest exponent, so O moves to sums in fp32 each time the keys of a long sum end
  // (promoted_output). A row of a mask of blocks sees few of its keys, so its chunks are longer: at most 1.7e-4, below the rounding to
  // fp16, where it sees 2^18. The lists of sm90_two_blocks_policy 408 to 503 TFLOP/s.
  static constexpr bool promotes = transposes_v, has_chunks = Policy::parts == 1 && !promotes;
  static constexpr int tiles_of_chunk = ceil_div(1 << (mask_traits<Mask>::has_blocks ? 18 : 16), block_n);
  enum class named_barrier : int { block = 0, pingpong = 1, of_consumer = pingpong + consumers };
  static_assert(static_cast<int>(named_barrier::of_consumer) + consumers <= 16, "a block has 16 named barriers");
  /// Returns the number of the named barrier of a consumer.
  GIWA_DEVICE static constexpr int barrier_of(named_barrier first, int consumer) {
    return static_cast<int>(first) + consumer;
  }

  // P in e4m3 has 18 binades: m has a weight near the largest number, 448, and m is raised before a weight exceeds it.
  static constexpr int headroom = transposes_v ? 6 : 0;
  using exponent = signed char;
  /// A tile of queries of one head, and a chunk of its keys: the needed K tiles in [first_tile, end_tile).
  struct work_tile {
    uninitialized<head_place> head;
    uninitialized<tiles_of_keys> keys;
    int first_query, first_tile, end_tile;
    bool end;                   // no work tile: the queue ends here
    bool continues, continued;  // chunks of the same queries come before, and after
    GIWA_DEVICE bool has_keys() const { return first_tile < end_tile; }
    GIWA_DEVICE bool is_chunk() const { return continues || continued; }
  };
  // Work tiles in flight: one is computed, one is loaded, and the others are scheduled ahead.
  static constexpr int queue_depth = head_size > 192 ? 3 : 4;

  /// The producer's notes on a K tile with split fp16.
  struct k_note {
    exponent exponent_k, exponent_v;
  };
  /// The producer's notes on a K tile, and on its V tile, for one consumer. One word holds all answers, because reads
  /// of shared memory and the unpacking of bytes are on the way to each product.
  struct consumer_note {
    static constexpr uint32 last_of_consumer = 4;  // the consumer needs no later tile of the work tile
    static constexpr uint32 last_of_work = 8;      // nor does another one
    static constexpr uint32 scrubs = 16;           // v_note::needs_scrub
    int first_key;
    uint32 flags;  // the part that the mask keeps for the consumer, in two bits, and some of these
    GIWA_DEVICE tile_keep keep() const { return static_cast<tile_keep>(flags & 3); }
    GIWA_DEVICE bool is(uint32 flag) const { return (flags & flag) != 0; }
  };
  /// The producer's notes on a V tile.
  struct v_note {
    bool needs_scrub;   // it holds rows that some query does not see
    bool end;           // no tile: the stream of tiles ends here
    int has_nonfinite;  // NaNs and infinities scrubbed; valid once the scrubbers have arrived
    GIWA_DEVICE static constexpr int keys() { return v_tile::rows; }
  };
  struct q_and_o {
    q_tile q;
    o_tile o;
  };
  struct q_alone {
    q_tile q;
  };
  /// The bits of the largest magnitudes of q that warps of consumers found, with split fp16.
  struct magnitudes_of_q {
    alignas(16) uint32 of_warps[consumers][4];
  };
  /// With V transposed: the tiles that TMA loads, what the two transposers found in each transposed one, and the sums of O.
  struct fp32_sums {
    float4 of_thread[consumers][head_size_v / 8][128];  // four of a thread each: of two columns of its two rows
  };
  struct no_sums {};
  struct no_transposer {};
  /// What is visible of the first tiles of the next work tile: visible_groups::first_groups() of each lane.
  struct groups_of_lanes {
    uninitialized<tile_bits> of_lane[32];
  };
  struct loaded_values {
    pipeline<loaded_v_tile, of_bytes::loaded_stages, copies> v;
  };
  // A base, because nvcc 12.4 fails at a first member without address.
  struct transposer_storage : stdlib::conditional_t<k_major_v, nothing, loaded_values> {
    [[no_unique_address]] stdlib::conditional_t<of_bytes::sums_in_shared, fp32_sums, no_sums> sums;
    int has_nonfinite[stages][scrubbers];
    float scale_of_row[consumers][2][128];  // of q, of a thread's two rows
  };
  struct shared_storage {
    pipeline<k_tile, k_stages, copies> k;
    pipeline<v_tile, stages, copies> v;
    stdlib::conditional_t<stores_tiles, q_and_o, q_alone> rows[consumers];
    work_tile work[queue_depth];
    k_note k_notes[k_stages];
    consumer_note consumer_notes[k_stages][consumers];
    v_note v_notes[stages];
    int batch, head, tile, next_chunk;  // the tile scheduler's state: it has few registers
    arch::mbarrier q_full[consumers], q_empty[consumers], work_full[queue_depth], work_empty[queue_depth];
    arch::mbarrier scrubbed[stages];
    arch::mbarrier near_end;  // the loader has reached the last K tiles of a work tile
    [[no_unique_address]] stdlib::conditional_t<mask_traits<Mask>::has_blocks, groups_of_lanes, nothing> groups;
    [[no_unique_address]] stdlib::conditional_t<is_split, magnitudes_of_q, nothing> largest_of_q;
    [[no_unique_address]] stdlib::conditional_t<transposes_v, transposer_storage, no_transposer> transposer;
  };
  /// The queries of a work tile: block_m, or 64 fewer, and then the last consumer has none.
  struct narrow_tiles {
    int queries = block_m;
  };
  using split_or_nothing = stdlib::conditional_t<is_split, split_tensors, nothing>;
  /// For a K-major V, `k` is of groups of four rows, (sequence, head, group, row of the group, head size), and copies two rows of each.
  /// Where the last rows of a head are no group, its last tile is copied two rows at a time.
  struct maps_of_keys {
    tensor_map two_rows;
    int groups = 0;  // of a head
  };
  struct params {
    attention_params<T, O, Mask, Score> call;
    attention_schedule schedule;
    int work_tiles;         // of this launch
    int cluster;            // blocks of a cluster: same keys, different queries; a work tile is for all of them
    work_counter* counter;  // of claims after each block's first work tile; null: each block takes every grid-th
    bool chunked;           // a head may have more keys than a chunk; if not, no work tile is a chunk
    bool stores_by_tma;
    split_or_nothing split;
    tensor_map q, k, v, o;  // (sequence, head, row, head size)
    [[no_unique_address]] stdlib::conditional_t<Policy::narrows, narrow_tiles, nothing> narrow;
    [[no_unique_address]] stdlib::conditional_t<k_major_v, maps_of_keys, nothing> keys;
  };
  /// Returns the queries of a work tile.
  GIWA_DEVICE static int queries_of_tile(const params& p) {
    if constexpr (Policy::narrows) return p.narrow.queries;
    return block_m;
  }

  /// `fillers`: threads other than the loader that arrive when they have filled a part of a stage.
  template <class Block, class Storage>
  GIWA_DEVICE static void initialize(const Block& block, Storage& s, int fillers = 0) {
    s.k.initialize(block, 4 * consumers, fillers);
    if constexpr (uses_transposers) {
      s.v.initialize(block, 4 * consumers, scrubbers - 1);  // no producer besides the transposers
      s.transposer.v.initialize(block, scrubbers);
    } else {
      s.v.initialize(block, 4 * consumers + scrubbers, fillers);
    }
    if (block.rank() != 0) return;
    for (int i = 0; i < consumers; ++i) s.q_full[i].initialize(1), s.q_empty[i].initialize(4);
    for (int i = 0; i < queue_depth; ++i)
      s.work_full[i].initialize(1), s.work_empty[i].initialize(4 * consumers + 1);  // and the loader
    for (int i = 0; i < stages; ++i) s.scrubbed[i].initialize(scrubbers);
    if constexpr (requires { s.near_end; }) s.near_end.initialize(1);
    arch::mbarriers_initialized();
  }

  /// The pipeline of V that the loader fills.
  template <class Storage>
  GIWA_DEVICE static auto& loaded_v(Storage& s) {
    if constexpr (uses_transposers)
      return s.transposer.v;
    else
      return s.v;
  }

  /// Whether the transposers found NaN in a V tile that needed a scrub.
  template <class Storage>
  GIWA_DEVICE static bool transposers_found(const Storage& s, int stage) {
    return (s.transposer.has_nonfinite[stage][0] | s.transposer.has_nonfinite[stage][1]) != 0;
  }

  /// Called after a wait for a tile, by a kernel whose tiles TMA does not always copy.
  GIWA_DEVICE static void tile_arrived(const params&) {}

  /// The queries of a consumer.
  struct query_range {
    int first, count;
  };
  GIWA_DEVICE static query_range queries_of(const work_tile& work, int consumer) {
    return {work.first_query + 64 * consumer, 64};
  }
  /// Whether a consumer has fewer than 64 queries.
  GIWA_DEVICE static bool lacks_rows(const work_tile& work, int consumer) {
    return work.head.get().queries() - queries_of(work, consumer).first < 64;
  }
  /// The limits of a consumer's scores, and the map of its rows and columns, for score_steps.
  GIWA_DEVICE static auto bounds_of(const work_tile& work, int) {
    return typename score_steps<Mask, Score>::bounds(work.head.get());
  }
  GIWA_DEVICE static rows_are_queries rows_at(int first_query, int first_key) { return {first_query, first_key}; }
  /// Starts the load of a consumer's queries, unless it splits them itself (split_queries).
  GIWA_DEVICE static void load_queries(const params& p, const work_tile& work, int consumer, q_tile& to,
                                       arch::mbarrier& full) {
    if constexpr (is_split) return full.arrive();
    const auto& head = work.head.get();
    full.arrive_and_expect(q_tile::bytes);
    giwa::load(p.q,
               giwa::index<4>{head.sequence, head.head, head.first_query_row + queries_of(work, consumer).first, 0}, to,
               full);
  }

  /// Whether a V tile holds rows that some query does not see. TMA fills zeros past the end of a tensor, but past the
  /// end of a packed sequence it reads the next sequence.
  GIWA_DEVICE static bool needs_scrub(const params& p, const tiles_of_keys& list, int n, tile_keep visible_by_mask) {
    if constexpr (is_split) return false;  // split numbers are finite
    return (p.call.ragged ? list.with_end(visible_by_mask, n) : visible_by_mask) == tile_keep::some;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
