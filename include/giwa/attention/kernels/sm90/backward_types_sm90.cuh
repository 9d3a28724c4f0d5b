// SPDX-License-Identifier: MIT
// Types that the roles of the Hopper kernels of attention_backward share.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_TYPES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_TYPES_SM90_CUH

#include <giwa/arch/registers.cuh>
#include <giwa/arch/tensor_map.hpp>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/score/score_steps.cuh>
#include <giwa/attention/tuning/sm90.hpp>
#include <giwa/attention/work/work_tiles.hpp>
#include <giwa/tile/mma_sm90.cuh>
#include <giwa/tile/pipeline_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A ring of stages in shared memory: the next stage, and the phase of its barriers.
template <int Stages>
class ring_cursor {
 public:
  GIWA_DEVICE int stage() const { return next; }
  GIWA_DEVICE uint32 phase() const { return parity; }
  GIWA_DEVICE void advance() {
    if (++next == Stages) next = 0, parity ^= 1;
  }

 private:
  int next = 0;
  uint32 parity = 0;
};
/// The same as one number, how many stages have been passed, for fewer registers. Stages is a power of two.
template <int Stages>
struct counting_cursor {
  static_assert((Stages & (Stages - 1)) == 0);
  uint32 turn = 0;
  GIWA_DEVICE int stage() const { return static_cast<int>(turn % Stages); }
  GIWA_DEVICE uint32 phase() const { return turn / Stages % 2; }
  GIWA_DEVICE void advance() { ++turn; }
};

/// The thread's rank in its warpgroup, read where it is needed instead of kept in a register.
GIWA_DEVICE inline int rank_in_warpgroup() {
  return static_cast<int>(static_cast<uint32>(arch::read_thread_rank()) % 128);
}

/// A block has a loader, a scheduler, and two consumer warpgroups with 64 fixed rows each, or the same 64: of a and b.
/// Tiles of x and y move past them. For dq the fixed rows are queries: a and b are q and dout, x and y are k and v. For
/// dk and dv they are keys:
/// a and b are k and v, x and y are q and dout; if dq is added too, each consumer has a writer. T is split_parts for
/// tensors of fp32, whose tiles hold split fp16.
template <class T, class G, int HeadSize, int HeadSizeV, gradient Of, class Mask, class Score>
struct sm90_backward_types {
  static constexpr int parts = parts_of<T>;
  static constexpr bool is_split = parts > 0;
  using policy = stdlib::conditional_t<is_split, sm90_split_backward_policy<Of, HeadSize, HeadSizeV>,
                                       sm90_backward_policy<Of, HeadSize, HeadSizeV>>;
  using input = stdlib::conditional_t<is_split, fp32, T>;
  using element = typename element_traits<input>::operand;
  using gradient_element = G;
  using mask = Mask;
  using score = Score;
  using call_params = backward_params<input, input, G, Mask, Score>;
  using head_type = head_place;
  static constexpr bool rows_are_keys = policy::rows_are_keys, sums_x = policy::sums_x, sums_y = policy::sums_y;
  static constexpr int block_m = policy::block_m, columns = policy::columns, consumers = policy::consumers,
                       groups = policy::groups;  // of 64 fixed rows
  static constexpr bool adds_dq = policy::adds_dq, by_gradient = policy::by_gradient, by_halves = policy::by_halves,
                        is_long = policy::is_long, schedules_keys = policy::schedules_keys;
  // Whether a consumer leaves out the products of a tile of which it sees nothing, but for its share of dq.
  static constexpr bool skips_unseen = !adds_dq || (mask_traits<Mask>::has_blocks && !by_halves);
  // A bias that is read by tiles into the memory for dS. Its gradient is stored from there, or added in fp32.
  using bias_type = tiled_bias<Score>;
  static constexpr bool reads_bias = adds_dq && has_tiled_bias_of<Score, element>,
                        adds_bias = reads_bias && bias_type::adds, stores_bias = reads_bias && !adds_bias;
  // Whether a score modifier takes gradients in the kernel of dq, one score after the other, also of its parameters.
  static constexpr bool gives_scores = !rows_are_keys && gradient_of<Score>::wanted,
                        gives_once = adds_bias || gives_scores;
  static constexpr int parameters = gives_scores ? gradient_of<Score>::parameters : 0;
  // With a bias four where there is room, so that it is loaded three tiles ahead.
  static constexpr int stages_x = policy::stages_x, stages_y = policy::stages_y,
                       stages_ds = (adds_dq ? policy::stages_ds : 1) * (reads_bias && !by_halves ? 2 : 1);
  static constexpr int stages_dq = policy::stages_dq;
  // of_warp where all threads of a warp are known to be at the same stages, and where dq is added at 64: there it spills 96 bytes
  // instead of 104, although they are not.
  static constexpr descriptors how =
      adds_dq || (!is_split && (HeadSize > 64 || HeadSizeV > 64)) ? descriptors::of_warp : descriptors::from_first;
  // Whether dk and dv are stored by slabs of 64 columns, in the memory for dS. Not of 56 columns, which are 64 in registers.
  static constexpr bool stores_slabs =
      adds_dq && sizeof(G) == 2 && HeadSize % 64 == 0 && HeadSizeV % 64 == 0 && !reads_bias;
  // Whether TMA stores them: 64 1.01 times as fast, 128 0.99, long sequences, by the memory of b, 1.05 (H200, 2026-11-29).
  static constexpr bool keeps_b = is_long && sizeof(G) == 2, stages_keys = (by_halves && stores_slabs) || keeps_b;
  static constexpr int head_size = round_up(HeadSize, 16), head_size_v = round_up(HeadSizeV, 16);
  static constexpr tile_axis moving_axis = rows_are_keys ? tile_axis::queries : tile_axis::keys;
  using tiles_list = visible_tiles<Mask, moving_axis>;
  using bounds = typename score_steps<Mask, Score>::bounds;

  template <int Rows, int Columns>
  using tile = shared_tile<element, tile_shape<Rows, Columns>, swizzled<swizzle::bytes_128>>;
  using a_tile = tile<64, policy::width_x>;
  using b_tile = tile<64, policy::width_y>;
  using x_tile = tile<columns, policy::width_x>;
  using y_tile = tile<columns, policy::width_y>;
  // dq of a consumer, and a warp's share, which TMA stores.
  static constexpr bool stages_output = policy::stages_output, stores_tiles = stages_output && sizeof(G) == 2;
  template <int Rows>
  using dq_rows = shared_tile<stdlib::conditional_t<stores_tiles, G, element>, tile_shape<Rows, policy::width_x>,
                              swizzled<swizzle::bytes_128>>;
  using dq_tile = dq_rows<64>;
  using dq_of_warp = dq_rows<16>;

  // dk and dv of a consumer, and a warp's share of one.
  template <int Rows, int Width>
  using key_rows = shared_tile<G, tile_shape<Rows, Width>, swizzled<swizzle::bytes_128>>;
  using dk_tile = key_rows<64, policy::width_x>;
  using dv_tile = key_rows<64, policy::width_y>;
  using dk_of_warp = key_rows<16, policy::width_x>;
  using dv_of_warp = key_rows<16, policy::width_y>;
  struct rows_of_keys {
    dk_tile dk[consumers];
    dv_tile dv[consumers];
  };

  /// Where a tile's part of dq is added, for the kernel of all gradients.
  struct dq_place {
    int part;   // the first of the two of a tile of queries (dq_parts), or one of the next two
    int tile;   // of keys
    int after;  // 1 + the tile of keys that this one waits for, or 0: it is the first
  };
  static constexpr int no_more_parts = -1, unused_part = -2;
  // More than tiles can be loaded and not added yet: in the stages of x and of dS, and parts.
  static constexpr int places = 8;
  static_assert(stages_x + stages_ds + stages_dq + 1 <= places);
  using ds_tile = tile<columns, 64>;  // queries, keys
  static constexpr int ds_row_bytes = 2 * 64;
  struct parts_of_dq {
    ds_tile ds[stages_ds][consumers];
    float parts[consumers][stages_dq][policy::dq_floats];
  };
  struct rows_of_dq {
    dq_tile of[consumers];
  };
  /// Where the bias of a tile is, and whether its gradient is stored there.
  struct bias_place {
    int sequence, head, query, key;
    bool is_given;
  };
  struct bias_storage {
    bias_place of[stages_ds];
    arch::mbarrier full[stages_ds];
  };
  struct bias_maps {
    tensor_map values, gradient;  // (sequence, head, query, key)
  };
  struct no_bias {};
  /// Whether an item gives the gradients of a score modifier: not if it comes again.
  struct giving {
    bool now = true;
  };

  /// P times the slope of the score modifier, from the consumer that sums dv to the one that sums dk: of each thread to the
  /// thread of the same rank, which has the same scores.
  struct weights_between {
    static constexpr int stages = 2;
    alignas(16) float of[stages][64 * columns];  // in the order of a warpgroup's accumulator
    arch::mbarrier full[stages], empty[stages];
  };

  /// The rows of a block in a gradient. P is 0 where the mask drops a score, but 0 times NaN is NaN. So a consumer's
  /// warp that gets NaN does not store its 16 rows, but sets its bit in `again`, and the item comes a second time, with
  /// these bits in `careful`. Then moving rows with NaN are cleared in tiles that not every row sees, and P is NaN for
  /// the pairs that do. Other rows get the same bits.
  struct work_item {
    // For keys, of one of the sequences and heads that read them; where dq is added the loader changes the head (changes_head).
    uninitialized<head_type> head;
    int batch, head_index, first, rows;
    int share, sharers;  // which one of how many that share these rows: the heads of q, or, if divided, all queries
    int first_head, end_head;                                                           // for keys, the heads of q
    stdlib::conditional_t<adds_dq, typename call_params::place_of_sums, nothing> sums;  // of the sharers
    uint32 careful, again;
    bool idle;     // there are no rows: passed over
    bool end;      // there are no more items
    bool last;     // of a work tile: when its tiles are loaded, the scheduler claims the next one
    bool divided;  // the sharers divide the queries, not the heads
  };
  static constexpr int queue_depth = 2;
  /// How many work tiles share the heads of q that read a tile of keys. An item that comes again has all of them.
  GIWA_DEVICE static int sharers(const call_params& p) { return adds_dq ? p.workspace.of_keys.sharers : 1; }

  /// What a consumer does with a tile: all scores are kept, some, or none. Two notes have no tile: an item's tiles end, or
  /// there are no more items.
  enum class action : int { all, some, none, end_of_item, end };
  /// The loader's notes on a tile: the rows of x and y from `begin` on.
  struct tile_note {
    action of[groups];
    int begin;
    uninitialized<bounds> limits;
  };
  /// The terms of the moving rows: of queries, with the lse in powers of two, or NaN of a row that has NaN and was cleared;
  /// of keys, this NaN or else 0.
  struct terms_of_queries {
    alignas(16) float lse[columns], delta[columns];
  };
  struct terms_of_keys {
    alignas(16) float nan[columns];
  };
  /// Of split fp16: split_row_terms.
  struct split_terms_of_queries {
    alignas(16) float of_score[columns], of_gradient[columns], lse[columns], delta[columns];
  };
  struct split_terms_of_keys {
    alignas(16) float of_score[columns], of_gradient[columns];
  };
  using moving_terms =
      stdlib::conditional_t<is_split, stdlib::conditional_t<rows_are_keys, split_terms_of_queries, split_terms_of_keys>,
                            stdlib::conditional_t<rows_are_keys, terms_of_queries, terms_of_keys>>;
  /// What scores and gradients of a row are multiplied by: for k and v their factors (split_rows). For q its factor times the
  /// scale, and for dout its factor with lse and delta such that P dout, and dS = P (dP - delta), are
  ///   2^(q k - lse) dout  and  2^(q k - lse) (dP dout - delta).
  struct split_row_terms {
    float of_score, of_gradient, lse = 0, delta = 0;
  };
  GIWA_DEVICE static split_row_terms terms_of_key(const call_params& p, const head_type& h, int key) {
    if (key >= h.keys()) return {0, 0};
    const int64 row = p.split.k.row(h.key_sequence, h.kv_head, h.first_key_row + key);
    return {p.split.k.factors[row], p.split.v.factors[row]};
  }
  /// e^-lse is split into 2^-n and 2^-(lse log2(e) - n), and 2^-n is in the factor of dout and in delta: the exponent
  /// of P, which is rounded, has the size of a score. With all of the lse in it P was off by 4e-7, as much as all else.
  GIWA_DEVICE static split_row_terms terms_of_query(const call_params& p, const head_type& h, int query) {
    if (query >= h.queries()) return {0, 0, infinity_of<float>, 0};
    const int64 row = p.split.q.row(h.sequence, h.head, h.first_query_row + query);
    const float scale = score_steps<Mask, Score>::modified ? p.call.scale : p.call.scale * log2_e<float>;
    const row_terms t = p.terms_of_query(h, query);
    const float product = t.lse * log2_e<float>;
    if (!(fabsf(product) < 24)) return {p.split.q.factors[row] * scale, p.split.dout.factors[row], product, t.delta};
    constexpr float rest_of_log2_e = static_cast<float>(log2_e<double> - static_cast<double>(log2_e<float>));
    const float whole = rintf(product), factor = power_of_two(-static_cast<int>(whole));
    const float error = fused_multiply_add(t.lse, log2_e<float>, -product);
    return {p.split.q.factors[row] * scale, p.split.dout.factors[row] * factor,
            (product - whole) + fused_multiply_add(t.lse, rest_of_log2_e, error), t.delta * factor};
  }
  GIWA_DEVICE static void put(const split_row_terms& t, int row, moving_terms& to) {
    to.of_score[row] = t.of_score, to.of_gradient[row] = t.of_gradient;
    if constexpr (rows_are_keys) to.lse[row] = t.lse, to.delta[row] = t.delta;
  }
  struct shared_storage {
    a_tile a[groups];
    stdlib::conditional_t<sums_x, b_tile, nothing> b[groups];
    x_tile x[stages_x];
    y_tile y[stages_y];
    stdlib::conditional_t<adds_dq, parts_of_dq, stdlib::conditional_t<stores_tiles, rows_of_dq, nothing>> dq;
    stdlib::conditional_t<stages_keys && !keeps_b, rows_of_keys, nothing> of_keys;
    stdlib::conditional_t<by_gradient, weights_between, nothing> weights;
    stdlib::conditional_t<adds_dq, dq_place, nothing> dq_places[places];  // a ring
    moving_terms terms[stages_x];
    stdlib::conditional_t<stages_output, row_terms[64], nothing> own_terms[consumers];  // of the fixed queries
    tile_note notes[stages_x];
    work_item work[queue_depth];
    stdlib::conditional_t<rows_are_keys, uninitialized<head_type>, nothing>
        moving_head;  // of the tiles that are loaded
    arch::mbarrier x_full[stages_x], x_empty[stages_x], y_full[stages_y], y_empty[stages_y];
    arch::mbarrier ds_full[stages_ds], ds_empty[stages_ds], place_full[adds_dq ? places : 1];
    arch::mbarrier dq_full[consumers][stages_dq], dq_empty[consumers][stages_dq];
    arch::mbarrier landed;  // tiles that are scrubbed before consumers get them
    arch::mbarrier fixed_full[groups], a_empty[groups], b_empty[groups];
    arch::mbarrier work_full[queue_depth], work_empty[queue_depth];
    stdlib::conditional_t<adds_dq, arch::mbarrier, nothing> last_loaded;  // all tiles of the last item of a work tile
    stdlib::conditional_t<adds_dq, arch::mbarrier, nothing> tiles_known;  // of an item: has_tiles
    bool has_tiles;
    [[no_unique_address]] stdlib::conditional_t<reads_bias, bias_storage, no_bias> bias;
  };
  struct params {
    call_params call;
    attention_schedule schedule;
    int work_tiles;             // of this launch
    int* counter;               // of work tiles claimed after each block's first
    bool waits_first;           // for the kernel before it; else only before its end
    tensor_map a, b, x, y, dq;  // (sequence, head, row, head size)
    stdlib::conditional_t<stages_keys, tensor_map, nothing> dk, dv;
    bool stores_by_tma;
    stdlib::conditional_t<adds_dq, last_work_tiles, nothing> last;
    [[no_unique_address]] stdlib::conditional_t<reads_bias, bias_maps, no_bias> bias{};
    [[no_unique_address]] stdlib::conditional_t<policy::narrows, bool, no_bias> narrow{};
  };

  /// Where row `row` of the head is in a tensor of keys or of queries.
  GIWA_DEVICE static giwa::index<4> origin(const head_type& h, bool of_keys, int row) {
    return of_keys ? giwa::index<4>{h.key_sequence, h.kv_head, h.first_key_row + row, 0}
                   : giwa::index<4>{h.sequence, h.head, h.first_query_row + row, 0};
  }

  template <class Block>
  GIWA_DEVICE static void initialize(const Block& block, shared_storage& s) {
    if (block.rank() != 0) return;
    for (int i = 0; i < stages_x; ++i) s.x_full[i].initialize(1), s.x_empty[i].initialize(4 * consumers);
    for (int i = 0; i < stages_y; ++i) s.y_full[i].initialize(1), s.y_empty[i].initialize(4 * consumers);
    s.landed.initialize(1);
    if constexpr (adds_dq) {
      s.last_loaded.initialize(1), s.tiles_known.initialize(1);
      for (int i = 0; i < stages_ds; ++i)
        s.ds_full[i].initialize(4 * consumers), s.ds_empty[i].initialize(4 * consumers);
      if constexpr (reads_bias)
        for (arch::mbarrier& full : s.bias.full) full.initialize(1);
      for (int i = 0; i < places; ++i) s.place_full[i].initialize(1);
      for (int c = 0; c < consumers; ++c)
        for (int i = 0; i < stages_dq; ++i) s.dq_full[c][i].initialize(4), s.dq_empty[c][i].initialize(1);
    }
    if constexpr (by_gradient)
      for (int i = 0; i < weights_between::stages; ++i)
        s.weights.full[i].initialize(4), s.weights.empty[i].initialize(4);
    for (int c = 0; c < groups; ++c) {
      s.fixed_full[c].initialize(1);
      s.a_empty[c].initialize(adds_dq || by_gradient ? 4 * consumers : 4);
      s.b_empty[c].initialize(by_gradient ? 4 * consumers : 4);
    }
    for (int i = 0; i < queue_depth; ++i) {
      s.work_full[i].initialize(1), s.work_empty[i].initialize(4 * consumers + 1);  // and the loader
      s.work[i].again = 0;
    }
    arch::mbarriers_initialized();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
