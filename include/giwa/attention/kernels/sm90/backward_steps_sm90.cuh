// SPDX-License-Identifier: MIT
// The steps of the Hopper kernels of attention_backward between their products: P and dS.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_STEPS_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_STEPS_SM90_CUH

#include <giwa/arch/matrix_load.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/arch/shared_address.cuh>
#include <giwa/attention/kernels/simt/row_terms.cuh>
#include <giwa/attention/kernels/sm90/backward_bias_sm90.cuh>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Calls add_item(work) for each item of the block's queue, in order, until it returns false. The frame of a consumer.
template <class Types, class Block, class AddItem>
GIWA_DEVICE void consume_items(const Block& block, typename Types::shared_storage& s, const AddItem& add_item) {
  for (uint32 item = 0;; ++item) {
    const int at = static_cast<int>(item % Types::queue_depth);
    if (!add_item(s.work[at])) return;
    block.sync_warp();
    if (block.lane() == 0) s.work_empty[at].arrive();
  }
}

/// store_gradient() of a warpgroup by TMA in two steps: each warp writes its 16 of 64 rows to `staged`, and then, when its threads
/// have called fence_async_proxy() and met, its first lane starts the store of the rows from `origin` on.
///@{
template <class Block, class Sums, class Staged>
GIWA_DEVICE void stage_gradient(const Block& block, int thread, Sums& sums, float factor, Staged& staged) {
  sums.transform([&](float value) { return value * factor + 0.0f; });
  if (block.lane() == 0) arch::wait_stores_read<0>();  // of what was there
  block.sync_warp();
  if constexpr (Sums::map::shape::columns == Staged::columns) {
    store(thread, sums, 0, staged);
  } else {
    warpgroup_tile<Staged::columns> whole;  // the columns after those of the sums are not stored
    whole.fill(0);
    for (int i = 0; i < Sums::map::registers; ++i) whole.value[i] = sums.value[i];
    store(thread, whole, 0, staged);
  }
}
template <class Staged>
GIWA_DEVICE void start_store(int thread, const Staged& staged, const tensor_map& map, giwa::index<4> origin) {
  using box = tensor_box<Staged>;
  const int first = thread / 32 * 16;
  origin[2] += first;
  for (int i = 0; i * box::columns < Staged::columns; ++i)
    arch::store_box(map, box_coordinates<4>(origin, i * box::columns, typename Staged::value_type{}).at,
                    staged.data() + (64 * i + first) * box::columns);
  arch::commit_stores();
}
///@}
/// What a thread does with its scores of a tile, or of `Columns` of its moving rows from `first_column` on.
template <class Types, int Columns = Types::columns>
struct sm90_backward_steps {
  using map = warpgroup_map<Columns>;
  using scores_tile = register_tile<float, map>;
  using mask = typename Types::mask;
  using bounds = typename Types::bounds;
  using steps_of_scores = score_steps<mask, typename Types::score>;
  using key_type = decltype(dropout_key(stdlib::declval<const typename Types::score&>()));
  static constexpr bool rows_are_keys = Types::rows_are_keys, modified = steps_of_scores::modified;
  // Whether run() may have branches, at which ptxas waits for products that are under way.
  static constexpr bool tiled = Types::reads_bias, calls_score = modified && !tiled;
  static constexpr bool may_branch = calls_score || Types::adds_bias || !one_range_mask<mask>;
  // Whether a masked tile finds the first query of each key, instead of the last key of each query for each score. H200, 2026-11-29,
  // causal, 512 to 4096 tokens: 64 1.025 to 1.008 times as fast, 128 0.97 to 1.01.
  static constexpr bool by_first_query = Types::adds_dq && Types::by_halves && mask_traits<mask>::is_causal;
  static constexpr int words = map::registers / 2;              // of a left operand
  static constexpr int columns_of_thread = map::registers / 2;  // two of every eight, in two rows
  // More registers would be spilled.
  static constexpr bool reads_early = rows_are_keys && Columns <= 64 && !Types::adds_dq;

  const typename Types::call_params::call_type& call;
  const typename Types::tile_note& note;
  const typename Types::moving_terms& terms;
  const row_terms (&own)[map::rows];  // if the fixed rows are queries
  const int first_row, thread;
  [[no_unique_address]] const key_type random_key;
  const int first_column = 0;
  float lse[columns_of_thread];
  float factor = 0;  // of the scores, for powers of two
  // Where dq is added too, the lse that are read early, and where the thread's terms are.
  static constexpr int few = Types::adds_dq && !calls_score ? Columns / 16 : 0;
  uint32 terms_at = 0;
  /// Of a score modifier whose gradients are given here.
  struct giving_steps {
    uint32 bias_at = 0;         // where the thread's bias of a tile is: sm90_dq_product::place_of_thread()
    float of_key[map::rows]{};  // the bias of the thread's keys
    bool gives = true;          // not if the item comes again
    bool stores = false;        // the gradient of a bias in fp32, instead of adding it
    parameter_sums<map, Types::parameters>* parameters = nullptr;
  };
  static constexpr bool gives = tiled || Types::gives_scores;
  using giving_type = stdlib::conditional_t<gives, giving_steps, typename Types::no_bias>;

  /// Reads the lse of the moving queries while the products run: shared memory is busy with their operands. Where dq is added too
  /// there are registers for a few, and for what the first steps after the products would wait for; with a modifier, which needs
  /// registers itself, for none. H100, 2026-11-26, 4, 8 and 12 of them, with counting_cursor, over none with ring_cursor: 64,
  /// geometric mean of 20 cells up to 8192 tokens, 1.015, 1.023, 1.017; 128 no difference.
  GIWA_DEVICE void read_early() {
    factor = modified ? log2_e<float> : call.scale * log2_e<float>;
    if constexpr (few > 0) {
      const int lane = static_cast<int>(static_cast<uint32>(arch::recomputed_here(thread)) % 32);
      terms_at = arch::shared_address(&terms.lse[first_column + map::column(lane, 0)]);
      arch::compute_here(factor), arch::compute_here(terms_at);
      GIWA_UNROLL
      for (int i = 0; i < few; i += 2) {
        const float2 two = arch::load_shared(terms_at + 16 * i);
        lse[i] = two.x, lse[i + 1] = two.y;
        arch::compute_here(lse[i]), arch::compute_here(lse[i + 1]);
      }
    }
    if constexpr (reads_early) {
      GIWA_UNROLL
      for (int i = 0; i < columns_of_thread; ++i) lse[i] = terms.lse[map::column(thread, i / 2 * 4 + i % 2)];
    }
  }

  /// Reads the bias of the thread's keys, which all queries share.
  GIWA_DEVICE void read_bias_of_keys(giving_steps& more) const {
    if constexpr (Types::bias_type::has_key_term)
      for (int slot = 0; slot < map::rows; ++slot)
        more.of_key[slot] =
            call.score.first(0.0f, note.limits.get().place_within(0, first_row + map::row(thread, slot)));
  }

  /// P and dS as left operands: P of the product with y, dS of that with x.
  template <bool Masked, class Block>
  GIWA_DEVICE void run([[maybe_unused]] const Block& block, const scores_tile& scores, const scores_tile& dp,
                       [[maybe_unused]] uint32 (&weights)[words], [[maybe_unused]] uint32 (&gradients)[words],
                       [[maybe_unused]] const giving_type& more = {}) const {
    using element = typename Types::element;
    const steps_of_scores steps{call.mask, call.score, call.scale, random_key};
    const bounds limits = note.limits.get();
    [[maybe_unused]] kept_tile<map, rows_are_keys> undropped;
    if constexpr (drops_weights<typename Types::score>)
      undropped.find(block, dropout_bits(call.score, steps.random_key, limits.batch, limits.head), thread, first_row,
                     note.begin + first_column);
    [[maybe_unused]] int first_visible[map::rows], end_visible = 0;
    if constexpr (Masked && by_first_query) end_visible = find_visible(limits, first_visible);
    [[maybe_unused]] uint32 biases[4];
    [[maybe_unused]] float* first_of_bias = nullptr;
    [[maybe_unused]] float four[4];
    [[maybe_unused]] int queries_of_four = 0;  // that exist, from the thread's first on
    if constexpr (Types::adds_bias) {
      const auto own = sm90_bias<Types>::fours_of(thread);
      const int query = note.begin + first_column + own.query, key = first_row + own.key;
      first_of_bias = sm90_bias<Types>::element_of(bias_of(), limits.batch, limits.head, query, key);
      const auto& sizes = bias_of().gradient_;
      queries_of_four = key < sizes.extent(3) ? static_cast<int>(sizes.extent(2)) - query : 0;
    }
    GIWA_UNROLL
    for (int i = 0; i < map::registers; i += 2) {
      const int slot = map::slot(i), row = first_row + map::row(thread, slot);
      float weight[2], gradient[2];
      [[maybe_unused]] float2 lse_of_two, delta_of_two, bias_of_two;
      if constexpr (tiled) {
        if (i % 8 == 0) arch::load_matrices<true>(biases, more.bias_at + (first_column + 2 * i) * Types::ds_row_bytes);
        bias_of_two = unpacked_word<element>(biases[i % 8 / 2]);
      }
      if constexpr (few > 0) {
        const int n = i / 4 * 2, offset = 4 * map::column(0, i);
        lse_of_two = n < few ? float2{lse[n], lse[n + 1]} : arch::load_shared(terms_at + offset);
        delta_of_two = arch::load_shared(terms_at + 4 * Types::columns + offset);
      }
      GIWA_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int column = first_column + map::column(thread, i + j), moving = note.begin + column;
        const int query = rows_are_keys ? moving : row, key = rows_are_keys ? row : moving;
        float y = scores.value[i + j], slope = 1;
        [[maybe_unused]] float z = 0;
        bool keep = true;
        if constexpr (Masked && by_first_query)
          keep = (map::column(0, i + j) >= first_visible[slot]) & (map::column(0, i + j) < end_visible);
        else if constexpr (Masked)
          keep = keeps(steps, limits, query, key);
        if constexpr (tiled) {
          y = fused_multiply_add(y, call.scale, more.of_key[slot]) + (j == 0 ? bias_of_two.x : bias_of_two.y);
        } else if constexpr (modified) {
          y = z = device_product(y, call.scale);
          const dual<float> at =
              modified_score(call.score, y, Masked ? limits.place_within(query, key) : limits.place(query, key));
          y = at.value, slope = at.slope;
        }
        // After the modifier, which may swallow NaN.
        if constexpr (Masked && !rows_are_keys) y += terms.nan[column];
        float lse_of_query, delta;
        if constexpr (few > 0)
          lse_of_query = j == 0 ? lse_of_two.x : lse_of_two.y, delta = j == 0 ? delta_of_two.x : delta_of_two.y;
        else if constexpr (rows_are_keys)
          lse_of_query = reads_early ? lse[i / 4 * 2 + j] : terms.lse[column], delta = terms.delta[column];
        else
          lse_of_query = own[slot].lse, delta = own[slot].delta;
        const float exponential = exp2_of(fused_multiply_add(y, factor, -lse_of_query));
        float drop = 1;
        if constexpr (drops_weights<typename Types::score>) drop = undropped[i + j] ? kept_scale(call.score) : 0;
        weight[j] = keep ? exponential * drop : 0;
        // By selection: dP may be NaN where the score is masked.
        if constexpr (Types::sums_x) gradient[j] = keep ? exponential * (dp.value[i + j] * drop - delta) * slope : 0;
        if constexpr (Types::gives_scores)
          if (keep && more.gives)
            gradient_of<typename Types::score>::give(call.score, exponential * (dp.value[i + j] * drop - delta), z,
                                                     limits.place(query, key), sums_of(more, slot));
      }
      if constexpr (Types::adds_bias) {
        four[i % 4] = gradient[0], four[i % 4 + 1] = gradient[1];
        if (i % 4 == 2) {
          sm90_bias<Types>::exchange(block, thread, four);
          if (more.gives && map::column(0, i) < queries_of_four)
            sm90_bias<Types>::give(first_of_bias + map::column(0, i) * bias_of().gradient_.stride(2), four,
                                   more.stores);
        }
      }
      if constexpr (Types::sums_y) weights[i / 2] = packed_word<element>(weight[0], weight[1]);
      if constexpr (Types::sums_x) gradients[i / 2] = packed_word<element>(gradient[0], gradient[1]);
    }
  }

  GIWA_DEVICE const auto& bias_of() const { return Types::bias_type::of(call.score); }
  /// The sums of the gradients of parameters of a row.
  GIWA_DEVICE static float* sums_of([[maybe_unused]] const giving_type& more, [[maybe_unused]] int slot) {
    if constexpr (Types::parameters > 0)
      return more.parameters->of(slot);
    else
      return nullptr;
  }
  /// Finds the queries that see each key of the thread under a causal mask, as columns relative to the thread's first one: from
  /// first[slot] on, and before what it returns.
  GIWA_DEVICE int find_visible(const bounds& limits, int (&first)[map::rows]) const {
    const int origin = note.begin + first_column + map::column(thread, 0);
    GIWA_UNROLL
    for (int slot = 0; slot < map::rows; ++slot) {
      const int key = first_row + map::row(thread, slot);
      const int64 column = int64{key} - limits.offset - origin;
      first[slot] = key >= limits.keys || column > Columns ? Columns : column > 0 ? static_cast<int>(column) : 0;
    }
    return limits.queries - origin;
  }
  /// Whether a query sees a key. Without a branch if the mask has a range of keys for each query.
  GIWA_DEVICE static bool keeps(const steps_of_scores& steps, const bounds& limits, int query, int key) {
    if constexpr (one_range_mask<mask>) {
      const bool inside = query < limits.queries;
      const attention_coord place = limits.place(inside ? query : limits.queries - 1, 0);
      int first = 0, last = limits.keys - 1;
      if constexpr (has_first_key<mask>) first = steps.mask.first_key(place);
      if constexpr (has_last_key<mask>) {
        const int bound = steps.mask.last_key(place);
        last = bound < last ? bound : last;
      }
      return inside & (key <= last) & (key >= first);
    } else {
      return steps.keeps(limits, query, key);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
