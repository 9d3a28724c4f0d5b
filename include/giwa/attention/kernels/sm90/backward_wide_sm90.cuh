// SPDX-License-Identifier: MIT
// A consumer warpgroup of the Hopper kernel of dk and dv for wide heads: dv or dk of 64 keys.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_WIDE_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_WIDE_SM90_CUH

#include <giwa/attention/kernels/simt/store_gradient.cuh>
#include <giwa/attention/kernels/sm90/backward_steps_sm90.cuh>
#include <giwa/tile/mma_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Both consumers have the same 64 keys, and tiles of 64 queries move past them, as in sm90_backward_consumer. For each tile
///   the consumer of dv:  S = k q^T,     P = e^(score(S) - lse),          dv += P dout
///   the consumer of dk:  dP = v dout^T, dS = P (dP - delta) slope,       dk += dS q
/// P times the slope goes from the first to the second through shared memory, in fp32 and in the order of the registers. So each
/// product is computed once, and one consumer computes P or dS under products of the other.
/// A consumer waits for each of its products: to start the first one of the next tile earlier was slower (H200,
/// 2026-11-23, docs/notes/backward_hopper.md).
template <class Types, class Block, gradient Of>
class sm90_wide_consumer {
 public:
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using work_item = typename Types::work_item;
  using action = typename Types::action;
  using G = typename Types::gradient_element;
  static constexpr bool of_v = Of == gradient::of_v;

  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    sm90_wide_consumer me(block, p, s);
    consume_items<Types>(block, s, [&](work_item& work) { return me.add_item(work); });
  }

 private:
  using steps_type = sm90_backward_steps<Types>;
  using map_of_scores = typename steps_type::map;
  using scores_tile = typename steps_type::scores_tile;
  using element = typename Types::element;
  using bounds = typename Types::bounds;
  // A tile is released after the next one has arrived, and each lse is read once.
  static_assert(Types::stages_x > 1 && Types::stages_y > 1 && steps_type::reads_early);
  static constexpr int width = of_v ? Types::head_size_v : Types::head_size;

  GIWA_DEVICE sm90_wide_consumer(const Block& of, const params& parameters, shared_storage& storage)
      : block(of),
        p(parameters),
        s(storage),
        thread(of.rank() % 128),
        random_key(dropout_key(of, parameters.call.call.score)) {}

  /// Adds all tiles of an item and stores the sums. False if there is none.
  GIWA_DEVICE bool add_item(work_item& work) {
    sum.fill(0);
    action next = await_next();
    const bool has_tiles = !uniform(next == action::end_of_item || next == action::end);
    if (has_tiles) {
      first_row = work.first;
      s.fixed_full[0].wait(fixed_turn++ & 1);
    }
    for (;;) {
      if (uniform(next == action::all)) {
        next = add_tile<false>();
      } else if (uniform(next == action::some || next == action::none)) {
        next = add_tile<true>();
      } else {
        break;
      }
    }
    if (uniform(next == action::end)) return false;
    release(s.x_empty[x.stage()]);
    x.advance();
    if (has_tiles) {
      release(s.b_empty[0]);
      release(s.a_empty[0]);
    }
    if (!uniform(work.idle)) store_sums(work, work.careful);
    return true;
  }

  /// Waits for the next stage of x and returns what to do with its tile.
  GIWA_DEVICE action await_next() const {
    s.x_full[x.stage()].wait(x.phase());
    return s.notes[x.stage()].of[0];
  }

  /// One tile; returns what to do with the next.
  template <bool Masked>
  GIWA_DEVICE action add_tile() {
    if constexpr (of_v)
      return add_weights<Masked>();
    else
      return add_gradients<Masked>();
  }

  /// dv += P dout.
  template <bool Masked>
  GIWA_DEVICE action add_weights() {
    const int stage_x = uniform(x.stage()), stage_y = uniform(y.stage());
    scores_tile scores;
    start(scores, s.a[0], s.x[stage_x]);
    steps_type steps = steps_of_tile();
    steps.read_early();
    s.weights.empty[between.stage()].wait(between.phase() ^ 1);
    arch::wgmma_wait<0>();
    arch::fence_operand(scores.value);
    uint32 weights[steps_type::words];
    write_weights<Masked>(steps, scores, weights);
    release(s.weights.full[between.stage()]);
    release(s.x_empty[x.stage()]);
    between.advance();
    s.y_full[y.stage()].wait(y.phase());
    arch::fence_operand(sum.value);
    arch::wgmma_fence();
    multiply<Types::how>(sum, weights, s.y[stage_y], true);
    arch::wgmma_commit();
    arch::mbarrier& y_empty = s.y_empty[y.stage()];
    x.advance(), y.advance();
    const action next = await_next();
    arch::wgmma_wait<0>();
    arch::fence_operand(sum.value);
    release(y_empty);
    return next;
  }
  /// P as a left operand, and P times the slope for the other consumer: -0 where the mask drops the score.
  template <bool Masked>
  GIWA_DEVICE void write_weights(const steps_type& steps, const scores_tile& scores,
                                 uint32 (&weights)[steps_type::words]) const {
    const bounds limits = steps.note.limits.get();
    [[maybe_unused]] kept_tile<map_of_scores, true> undropped;
    if constexpr (drops) find_undropped(steps, undropped);
    GIWA_UNROLL
    for (int i = 0; i < map_of_scores::registers; i += 4) {
      float weight[4], sent[4];
      GIWA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const auto e = exponential_of<Masked>(steps, limits, scores.value[i + j], i + j);
        sent[j] = steps_type::modified ? fused_multiply_add(e.value, e.slope, 0.0f) : e.value;
        if constexpr (Masked) sent[j] = e.keep ? sent[j] : -0.0f;
        weight[j] = e.keep ? e.value : 0;
        if constexpr (drops) weight[j] = undropped[i + j] ? weight[j] * kept_scale(p.call.call.score) : 0;
      }
      *reinterpret_cast<float4*>(place(i)) = make_float4(sent[0], sent[1], sent[2], sent[3]);
      weights[i / 2] = packed_word<element>(weight[0], weight[1]);
      weights[i / 2 + 1] = packed_word<element>(weight[2], weight[3]);
    }
  }

  /// P before dropout, the slope of the score modifier, and whether the mask keeps the score: as sm90_backward_steps::run, which
  /// does not call this because ptxas spills up to 60 bytes more at 64 and 128 then.
  struct exponential {
    float value, slope;
    bool keep;
  };
  template <bool Masked>
  GIWA_DEVICE exponential exponential_of(const steps_type& steps, const bounds& limits, float score, int i) const {
    const auto& call = p.call.call;
    const typename steps_type::steps_of_scores of_scores{call.mask, call.score, call.scale, random_key};
    const int query = steps.note.begin + map_of_scores::column(thread, i),
              key = first_row + map_of_scores::row(thread, map_of_scores::slot(i));
    exponential e{0, 1, true};
    if constexpr (Masked) e.keep = steps_type::keeps(of_scores, limits, query, key);
    if constexpr (steps_type::modified) {
      score = device_product(score, call.scale);
      const dual<float> at =
          modified_score(call.score, score, Masked ? limits.place_within(query, key) : limits.place(query, key));
      score = at.value, e.slope = at.slope;
    }
    const float factor = steps_type::modified ? log2_e<float> : call.scale * log2_e<float>;
    e.value = exp2_of(fused_multiply_add(score, factor, -steps.lse[i / 4 * 2 + i % 2]));
    return e;
  }
  /// Which weights of the tile dropout keeps.
  GIWA_DEVICE void find_undropped(const steps_type& steps, kept_tile<map_of_scores, true>& undropped) const {
    const bounds limits = steps.note.limits.get();
    undropped.find(block, dropout_bits(p.call.call.score, random_key, limits.batch, limits.head), thread, first_row,
                   steps.note.begin);
  }

  /// dk += dS q.
  template <bool Masked>
  GIWA_DEVICE action add_gradients() {
    const int stage_x = uniform(x.stage()), stage_y = uniform(y.stage());
    scores_tile dp;
    s.y_full[y.stage()].wait(y.phase());
    start(dp, s.b[0], s.y[stage_y]);
    s.weights.full[between.stage()].wait(between.phase());
    arch::wgmma_wait<0>();
    arch::fence_operand(dp.value);
    release(s.y_empty[y.stage()]);
    uint32 gradients[steps_type::words];
    read_gradients<Masked>(steps_of_tile(), dp, gradients);
    release(s.weights.empty[between.stage()]);
    between.advance();
    arch::fence_operand(sum.value);
    arch::wgmma_fence();
    multiply<Types::how>(sum, gradients, s.x[stage_x], true);
    arch::wgmma_commit();
    arch::mbarrier& x_empty = s.x_empty[x.stage()];
    x.advance(), y.advance();
    const action next = await_next();
    arch::wgmma_wait<0>();
    arch::fence_operand(sum.value);
    release(x_empty);
    return next;
  }
  /// dS as a left operand.
  template <bool Masked>
  GIWA_DEVICE void read_gradients(const steps_type& steps, const scores_tile& dp,
                                  uint32 (&gradients)[steps_type::words]) const {
    [[maybe_unused]] kept_tile<map_of_scores, true> undropped;
    if constexpr (drops) find_undropped(steps, undropped);
    GIWA_UNROLL
    for (int i = 0; i < map_of_scores::registers; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(place(i));
      const float weight[4] = {four.x, four.y, four.z, four.w};
      float gradient[4];
      GIWA_UNROLL
      for (int j = 0; j < 4; ++j) {
        float dp_of = dp.value[i + j];
        if constexpr (drops) dp_of = undropped[i + j] ? dp_of * kept_scale(p.call.call.score) : dp_of * 0;
        gradient[j] = weight[j] * (dp_of - steps.terms.delta[map_of_scores::column(thread, i + j)]);
        // By selection: dP may be NaN where the score is masked.
        if constexpr (Masked) gradient[j] = __float_as_uint(weight[j]) == 0x80000000u ? 0 : gradient[j];
      }
      gradients[i / 2] = packed_word<element>(gradient[0], gradient[1]);
      gradients[i / 2 + 1] = packed_word<element>(gradient[2], gradient[3]);
    }
  }

  /// Starts the product of the fixed rows and a tile.
  template <class Fixed, class Tile>
  GIWA_DEVICE static void start(scores_tile& product, const Fixed& fixed, const Tile& tile) {
    product.fill(0);
    arch::wgmma_fence();
    multiply<of_v ? Types::head_size : Types::head_size_v, Types::how>(product, fixed, 0, transposed(tile), false);
    arch::wgmma_commit();
  }
  GIWA_DEVICE steps_type steps_of_tile() const {
    return {p.call.call, s.notes[x.stage()], s.terms[x.stage()], own, first_row, thread, random_key};
  }
  /// Where the weights of a thread's registers [i, i + 4) are.
  GIWA_DEVICE float* place(int i) const { return s.weights.of[between.stage()] + (i * 128 + thread * 4); }

  /// Stores the sums of a warp's 16 rows, as sm90_backward_consumer does.
  GIWA_DEVICE void store_sums(work_item& work, uint32 careful) {
    const uint32 bit = 1u << (thread / 32 + (of_v ? 0 : 4));
    if (careful == 0) {
      float zero = 0;
      for (float value : sum.value) zero = fused_multiply_add(value, 0.0f, zero);
      if (block.any(!(zero == 0))) {
        if (block.lane() == 0) block.atomic_add(work.again, bit);
        return;
      }
    } else if ((careful & bit) == 0) {
      return;
    }
    const auto& to = of_v ? p.call.views.dv : p.call.views.dk;
    if (!is_absent(to))
      store_gradient(block, thread, sum, p.call.key_rows(to, work.head.get(), work.rows), work.first,
                     of_v ? 1 : p.call.call.scale, p.call.accumulate);
  }

  /// A condition or a stage that all threads agree on, in a form that shows the compiler so (sm90_backward_consumer).
  ///@{
  GIWA_DEVICE bool uniform(bool condition) const { return block.any(condition); }
  GIWA_DEVICE int uniform(int stage) const { return block.shuffle(stage, 0); }
  ///@}
  /// Lets others overwrite what the warp has read, or read what it has written.
  GIWA_DEVICE void release(arch::mbarrier& barrier) const {
    block.sync_warp();
    if (block.lane() == 0) barrier.arrive();
  }
  static constexpr bool drops = drops_weights<typename Types::score>;

  const Block& block;
  const params& p;
  shared_storage& s;
  const int thread;
  [[no_unique_address]] const typename steps_type::key_type random_key;
  ring_cursor<Types::stages_x> x;
  ring_cursor<Types::stages_y> y;
  ring_cursor<Types::weights_between::stages> between;
  uint32 fixed_turn = 0;
  int first_row = 0;
  row_terms own[map_of_scores::rows];  // not used: the fixed rows are keys
  warpgroup_tile<width> sum;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
