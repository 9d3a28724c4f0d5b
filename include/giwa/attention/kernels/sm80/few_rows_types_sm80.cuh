// SPDX-License-Identifier: MIT
// Types of the kernel for few rows.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_TYPES_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_TYPES_SM80_CUH

#include <giwa/arch/tensor_map.hpp>
#include <giwa/attention/append/rotated_queries.hpp>
#include <giwa/attention/kernels/sm80/few_rows_queue_sm80.cuh>
#include <giwa/attention/work/visible_groups.cuh>
#include <giwa/softmax/online.cuh>
#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// How keys come into shared memory.
enum class key_copies : int {
  boxes,     // TMA, sm_90
  chunks,    // cp.async of 16 bytes
  elements,  // element by element: rows that are not aligned to 16 bytes
};

/// Rows: packed rows of a tile, 8, 16 or 32. Stages: of the ring of keys, and of the ring of values.
template <int HeadSize, int HeadSizeV, int Rows, int Stages>
struct few_rows_policy {
  static constexpr int head_size = HeadSize, head_size_v = HeadSizeV, rows = Rows, stages = Stages;
  static constexpr int heads = 1;  // of keys in a tile
};
/// The same with tiles of two heads of keys (pairs_of_heads).
template <int HeadSize, int HeadSizeV, int Rows, int Stages>
struct few_rows_pairs_policy : few_rows_policy<HeadSize, HeadSizeV, Rows, Stages> {
  static constexpr int heads = 2;
};

/// Two heads of keys as one of twice the head size. A tile has the packed rows of both. A row takes the scores and the columns of O of
/// one of them, bit-identical to a tile of one head.
struct pairs_of_heads {
  /// Whether a view of keys or values may be seen so.
  template <class View>
  GIWA_HOST_DEVICE static constexpr bool suit(const View& v) {
    return v.extent(2) % 2 == 0 && v.stride(2) == v.extent(3) && v.stride(3) == 1;
  }
  template <class View>
  GIWA_HOST_DEVICE static constexpr View of(const View& v) {
    return {v.data(),
            {v.extent(0), v.extent(1), v.extent(2) / 2, 2 * v.extent(3)},
            {v.stride(0), v.stride(1), 2 * v.extent(3), 1}};
  }
  /// Which of the two heads of keys a packed row has.
  GIWA_HOST_DEVICE static int head_of(const packed_rows& rows, int row) {
    return 2 * (rows.head(row) - rows.first_head) < static_cast<int>(rows.group.divisor()) ? 0 : 1;
  }
};

/// The accumulator `Map` of 16 rows without the second row of each lane: a tile of 8 rows. The products compute 16 rows, and the
/// last 8 depend on no other row and are dropped.
template <class Map>
struct first_rows_map {
  static_assert(Map::rows == 2 && Map::registers % 4 == 0);
  using whole = register_tile<float, Map>;
  using shape = tile_shape<8, Map::shape::columns>;
  static constexpr int threads = 32, registers = Map::registers / 2, rows = 1, lanes = Map::lanes, period = registers;
  GIWA_HOST_DEVICE static constexpr int whole_register(int i) { return i / 2 * 4 + i % 2; }
  GIWA_HOST_DEVICE static constexpr int slot(int) { return 0; }
  GIWA_HOST_DEVICE static constexpr int row(int thread, int) { return Map::row(thread, 0); }
  GIWA_HOST_DEVICE static constexpr int column(int thread, int i) { return Map::column(thread, whole_register(i)); }
};
/// The map of a tile of Rows rows for products whose accumulator of N rows is Map<N, Columns>.
template <int Rows, int Columns, template <int, int> class Map>
struct few_rows_map_of {
  using type = Map<Rows, Columns>;
};
template <int Columns, template <int, int> class Map>
struct few_rows_map_of<8, Columns, Map> {
  using type = first_rows_map<Map<16, Columns>>;
};
/// Calls multiply(accumulator), which adds products, with an accumulator of whole fragments.
template <class Map, class Multiply>
GIWA_DEVICE void multiply_rows(register_tile<float, Map>& sums, const Multiply& multiply) {
  if constexpr (requires { typename Map::whole; }) {
    typename Map::whole all;
    all.fill(0);
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; ++i) all.value[Map::whole_register(i)] = sums.value[i];
    multiply(all);
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; ++i) sums.value[i] = all.value[Map::whole_register(i)];
  } else {
    multiply(sums);
  }
}

/// The strides of scales, 0 along a dimension that all share.
struct scale_strides {
  int64 element = 0, row = 0, head = 0;
  GIWA_HOST_DEVICE static constexpr scale_strides of(const tensor_view<const float, 3>& scales) {
    const auto stride = [&](int d) { return scales.extent(d) == 1 ? 0 : scales.stride(d); };
    return {stride(0), stride(1), stride(2)};
  }
};

/// The 8-bit rings' scales of keys and values, where each has its own, and the factors of rows.
template <bool Exists, int Rows, int Heads, int Stages, int LeafKeys, int ScoreWarps, int Groups>
struct few_rows_scales {
  // With the ring of keys. Scales of values have two slots for each stage, because P needs them after the keys' stage is free: the score
  // warps that free a stage have done P of the leaf before in it. They are the same group of warps in each stage.
  static_assert(Stages % Groups == 0);
  static constexpr int slots = 2 * Stages;
  alignas(8) float k[Stages][Heads][LeafKeys], v[slots][Heads][LeafKeys];
  float q_factor[Groups][Rows];  // of a row's scores: that which fp16 made necessary, and the scale of all keys
  float o_factor[2][Rows];       // of a row's O of a leaf
  alignas(16) float largest[2][Rows][ScoreWarps];  // scale among the values of each score warp's keys
  int hidden[2][ScoreWarps];                       // a row does not see some of these keys
};
template <int Rows, int Heads, int Stages, int LeafKeys, int ScoreWarps, int Groups>
struct few_rows_scales<false, Rows, Heads, Stages, LeafKeys, ScoreWarps, Groups> {};

/// producers: one of them has written the first work tile. ready: so they have, and the mbarriers are initialized. scores,
/// more_scores: of a group of score warps; all_scores: of both. p_full and p_empty: the score warps hand P of a leaf to the output warps
/// in one of two buffers.
struct few_rows_barriers {
  enum class named_barrier : int {
    block,
    producers,
    ready,
    scores,
    outputs,
    p_full,
    p_empty = p_full + 2,
    more_scores = p_empty + 2,
    all_scores
  };
  /// Returns the barrier of a buffer.
  GIWA_DEVICE static constexpr int barrier_of(named_barrier first, int buffer) {
    return static_cast<int>(first) + buffer;
  }
};

/// T: elements of q. Element: of the cache, T or of 8 bits.
template <class T, class Element, class O, class Policy, class Mask, class Score>
struct few_rows_types : few_rows_barriers {
  using policy = Policy;
  using query = T;
  using element = Element;
  static constexpr bool converts = !element_traits<Element>::on_tensor_cores;
  static constexpr int codes = codes_of<Element>;
  static constexpr bool values_are_keys = false;             // V is in the tiles of K
  using operand = stdlib::conditional_t<converts, fp16, T>;  // of products, and so of q and P in shared memory
  using output = O;
  using score = Score;
  using call_params = cached_params<T, Element, O, Mask, Score>;
  static constexpr int early_sequences = 32;                // whose splits are found early, at most
  static constexpr bool has_boxes = !call_params::selects;  // TMA does not gather rows
  static constexpr int rows = Policy::rows, fragment_rows = rows < 16 ? 16 : rows, stages = Policy::stages,
                       leaf_keys = leaf_keys_of(Policy::head_size, Policy::head_size_v, sizeof(Element));
  static constexpr int heads = Policy::heads, width = heads * Policy::head_size, width_v = heads * Policy::head_size_v;
  using visible_leaves = detail::visible_leaves<Mask, leaf_keys>;
  // Warps: the first compute O = P V, the next S = Q K^T and P, the last copy keys. Conversions make S slower: then two
  // groups of warps compute it for every other leaf, and half as many compute O, if their registers hold the fold.
  static constexpr int most_groups = score_groups_of(Policy::head_size, Policy::head_size_v, rows, sizeof(Element));
  static constexpr int score_groups = GIWA_ARCH_HAS_SM90A ? most_groups : 1;
  static constexpr int output_warps = score_groups == 2 ? 4 : 8, score_warps = 4, producers = 4;
  static constexpr int max_threads = 32 * (output_warps + score_groups * score_warps + producers);
  // The fold takes most registers. All roles together have the 128 of each of 512 threads.
  static constexpr bool narrow = width_v <= 64;
  static constexpr int output_registers = score_groups == 1 ? 168 : narrow ? 152 : 200;
  static constexpr int score_registers = score_groups == 1 ? 104 : narrow ? 144 : 120, producer_registers = 72;

  template <class Value, int Rows, int Columns>
  using tile = shared_tile<Value, tile_shape<Rows, Columns>,
                           swizzled<Columns * sizeof(Value) % 128 == 0 ? swizzle::bytes_128 : swizzle::bytes_64>>;
  using q_tile = tile<operand, fragment_rows, round_up(Policy::head_size, 64)>;     // (rows, head size)
  using k_tile = tile<Element, leaf_keys, round_up(ceil_div(width, codes), 64)>;    // (keys, head size)
  using v_tile = tile<Element, leaf_keys, round_up(ceil_div(width_v, codes), 64)>;  // (keys, columns)
  using p_tile = tile<operand, fragment_rows, leaf_keys>;                           // (rows, keys)

  // The score warps share out the keys of a leaf, the output warps the columns of O. Some may have none.
  static constexpr int warp_keys = leaf_keys / score_warps < 16 ? 16 : leaf_keys / score_warps;
  static constexpr int scores_in_use = leaf_keys / warp_keys;  // warps
  static constexpr int columns = round_up(Policy::head_size_v, 16), tile_columns = heads * columns;
  static constexpr int warp_columns = tile_columns <= 16 * output_warps   ? 16
                                      : tile_columns <= 32 * output_warps ? 32
                                                                          : 64;
  static constexpr int outputs_in_use =
      round_up(ceil_div(tile_columns, warp_columns), warp_columns < 16 * codes ? 2 : 1);  // warps
  static_assert(outputs_in_use * warp_columns <= v_tile::columns * codes);

  static constexpr int score_threads = 32 * score_warps, output_threads = 32 * output_warps;

  /// A ring of tiles of keys or values.
  template <class Tile>
  struct ring {
    Tile tile[stages];
    arch::mbarrier full[stages], empty[stages];
  };
  struct shared_storage {
    ring<k_tile> k;
    ring<v_tile> v;
    q_tile q[most_groups];
    p_tile p[2];
    float m[2][rows];                                // of a leaf, in units of log2
    alignas(16) float maxima[2][rows][score_warps];  // of each score warp's keys
    alignas(16) float sums[2][rows][score_warps];
    int has_nonfinite[2];
    split_search search;
    work_tile_queue queue;
    few_rows_scales<converts, rows, heads, stages, leaf_keys, score_warps, most_groups> scales;
  };
  struct params {
    split_params<call_params> splits;
    key_copies copies;
    int box_rows;             // of a copy of TMA
    int issuers_log2;         // of the warps that start boxes
    bool q_aligned;           // rows of q are aligned to 16 bytes
    bool keys_once;           // each key is read by one tile of rows, and need not stay in the L2 cache
    bool k_scales, v_scales;  // the keys or values of a sequence and a head have several scales
    tensor_map k, v;          // (element of the cache, head, row, head size)
    scale_strides k_strides, v_strides;
  };
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
