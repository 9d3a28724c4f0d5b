// SPDX-License-Identifier: MIT
// A consumer warpgroup of the Hopper kernel: FlashAttention-3's loop over the K tiles of 64 queries.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_CONSUMER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_CONSUMER_SM90_CUH

#include <giwa/attention/kernels/sm90/forward_consumer_state_sm90.cuh>
#include <giwa/attention/kernels/sm90/forward_products_sm90.cuh>
#include <giwa/attention/kernels/sm90/forward_promotion_sm90.cuh>
#include <giwa/attention/kernels/sm90/forward_scaling_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// One consumer's 64 queries of a work tile: the state and the steps of algorithm 2 of FlashAttention-3 (Shah et al.
/// 2024), and a short loop for each schedule. S = Q K^T of the next tile is issued before O += P V of the current one.
template <class Types, class Block>
struct sm90_query_rows {
  using policy = typename Types::policy;
  using consumer = sm90_consumer<Types, Block>;
  using score_map = typename Types::score_map;
  using output_registers = register_tile<float, warpgroup_map<Types::head_size_v>>;
  static constexpr bool is_split = Types::is_split, two_parts = policy::parts == 2;
  using notes = typename Types::consumer_note;
  using products = sm90_products<Types>;
  static constexpr bool k_major_v = Types::k_major_v;
  // Whether it skips tiles between those that it sees; else it computes them.
  static constexpr bool has_gaps = mask_traits<typename Types::mask>::has_blocks && Types::has_chunks &&
                                   !policy::overlaps && !is_split && !Types::promotes;
  static constexpr int slack = is_split ? 0 : policy::slack;
  static constexpr int headroom = is_split && !two_parts ? -split_exponents::of_p : Types::headroom;
  using softmax_state = online_softmax<score_map, headroom, slack>;

  consumer& c;
  const typename Types::work_tile& work;
  const int first_query;
  softmax_state softmax{};
  output_registers o;                                  // (queries, head size of v)
  split_exponents exponents;                           // powers of two in which scores and o are counted (split fp16)
  [[no_unique_address]] promoted_output<Types> sums;   // O of e4m3
  [[no_unique_address]] scaled_scores<Types> scaling;  // of e4m3
  bool has_nonfinite = false;  // NaN or infinity was scrubbed from V. It comes from the notes, so all threads agree.

  GIWA_DEVICE sm90_query_rows(consumer& of, const typename Types::work_tile& w)
      : c(of), work(w), first_query(Types::queries_of(w, of.index).first), scaling(of, w) {
    softmax.reset();
  }

  /// Processes all K tiles of the work tile. `key_splits` is told of each, when its scores are complete, and when O before it is.
  template <class KeySplits = keys_at_once>
  GIWA_DEVICE void attend(KeySplits&& key_splits = {}) {
    if constexpr (is_split) exponent_q = split_queries(c, work);
    wait_k();
    if constexpr (has_gaps) o.fill(0);
    do {
      while (own.keep() == tile_keep::none && !is_last()) {
        skip_tile();
        wait_k_and_skip_turn();
      }
      if (own.keep() == tile_keep::none) {
        if constexpr (has_gaps)
          c.release_q();
        else
          see_nothing();
        skip_tile();
        break;
      }
      key_splits.see_tile(own.first_key);
      sums.begin(own.first_key);
      first_tile();
      if constexpr (policy::slices_output)
        attend_in_slices(*this);
      else {
        if constexpr (speculates<KeySplits>)
          if (own.keep() == tile_keep::all && work.end_tile - work.first_tile > least_tiles)
            attend_without_maxima(*this);
        if constexpr (policy::overlaps)
          attend_with_overlap(*this, key_splits);
        else
          loop_pingpong(key_splits);
      }
      // Also before a gap: a consumer that skipped more tiles than a pipeline has stages while it held a tile of V would wait for
      // the loader, which loads K and V of the tiles in turn and would wait for the stage of that V.
      last_product(key_splits);
      sums.finish(c, o);
    } while (in_gap() && skip_turn());
    while (!own.is(notes::last_of_work)) {
      wait_k_and_skip_turn();
      skip_tile();
    }
  }
  /// Instead of attend(), where there are no keys.
  GIWA_DEVICE void see_nothing() {
    o.fill(0);
    c.release_q();
  }

 private:
  template <class QueryRows>
  friend GIWA_DEVICE void attend_without_maxima(QueryRows&);
  template <class QueryRows>
  friend GIWA_DEVICE void attend_in_slices(QueryRows&);
  template <class QueryRows, class KeySplits>
  friend GIWA_DEVICE void attend_with_overlap(QueryRows&, KeySplits&);
  template <bool FullyKept, class QueryRows, class KeySplits>
  friend GIWA_DEVICE void attend_tile_with_overlap(QueryRows&, KeySplits&);

  // --- Schedules. Nothing is issued between the products: the tensor cores would wait for it.
  GIWA_DEVICE void first_tile() {
    multiply_qk();
    if constexpr (!has_gaps) o.fill(0);
    arch::fence_operand(o.value);  // now, while nothing else can be done
    arch::wgmma_wait<0>();
    release_k();
    softmax_step(own.keep());
    if constexpr (has_gaps) rescale_o();
    make_p();
  }
  /// S of this tile, and O += P V of the one before, in this consumer's turn. Waits for S.
  GIWA_DEVICE void multiply_both() {
    multiply_qk();
    wait_v(scrubs_before);
    multiply_pv();
    c.pingpong.release();
    arch::wgmma_wait<1>();
  }
  /// Whether the softmax first assumes that m stays in all rows: after a first tile that is kept as a whole, so that m is the largest
  /// of many scores, and where the head, or the chunk of it, has more K tiles than that.
  template <class KeySplits>
  static constexpr bool speculates = slack > 0 && stdlib::remove_cvref_t<KeySplits>::at_once && !Types::transposes_v;
  static constexpr int least_tiles = policy::uses_pingpong ? 4 : 0;
  /// The softmax runs while other consumers use the tensor cores.
  template <class KeySplits>
  GIWA_DEVICE void loop_pingpong(KeySplits& key_splits) {
    while (next_tile()) {
      key_splits.see_tile(own.first_key);
      c.pingpong.acquire();
      multiply_both();
      release_k();
      key_splits.begin_softmax(*this);
      float largest[score_map::rows], factor_before[score_map::rows] = {factor[0], factor[1]};
      begin_softmax(own.keep(), largest);
      if constexpr (slack == 0) raise(largest);
      // What has been computed took the time that O needs after S.
      arch::wgmma_wait_after<0>(slack == 0 ? factor[0] + factor[1] : largest[0] + largest[1]);
      add_partial_o(factor_before);
      release_v();
      key_splits.take_output(*this);
      sums.promote_before(c, own.first_key, o);
      if (slack > 0 && c.block.any(softmax.exceeds_slack(largest))) {
        raise(largest);
        rescale_o();
      } else if constexpr (slack == 0 && !is_split) {
        rescale_o();
      }
      end_softmax();
      make_p();
      if constexpr (is_split && !two_parts) rescale_o();
    }
  }
  template <class KeySplits>
  GIWA_DEVICE void last_product(KeySplits& key_splits) {
    wait_v(in_gap() ? scrubs_before : own.is(notes::scrubs));
    if (is_split || in_gap()) {
      multiply_pv_and_wait();
    } else {
      multiply_pv();
      key_splits.wait_for_output(*this);
    }
    release_v();
  }

  // --- Pipelines
  GIWA_DEVICE bool is_last() const { return own.is(notes::last_of_consumer); }
  GIWA_DEVICE bool in_gap() const { return has_gaps && own.keep() == tile_keep::none; }
  /// Waits for the next K tile, if this consumer needs one and sees that one.
  GIWA_DEVICE bool next_tile() {
    if (is_last() || in_gap()) return false;
    wait_k();
    return !in_gap();
  }
  GIWA_DEVICE void wait_k() {
    k_stage = c.keys.next();
    c.keys.wait();
    Types::tile_arrived(c.p);
    scrubs_before = own.is(notes::scrubs);
    if constexpr (is_split) note = c.s.k_notes[k_stage];
    own = c.s.consumer_notes[k_stage][c.index];
  }
  GIWA_DEVICE void release_k() {
    arch::fence_operand(scores.value);
    c.keys.release(k_stage);
    if (is_last()) c.release_q();
  }
  GIWA_DEVICE void wait_v(bool scrubs, bool needed = true) {
    v_stage = c.values.next();
    c.values.wait();
    Types::tile_arrived(c.p);
    if (!scrubs) return;
    if constexpr (Types::uses_transposers)
      return static_cast<void>(has_nonfinite |= needed && Types::transposers_found(c.s, v_stage));
    if (needed) {
      c.s.scrubbed[v_stage].wait(c.scrub_phases >> v_stage & 1);
      has_nonfinite = has_nonfinite || c.s.v_notes[v_stage].has_nonfinite != 0;
    }
    c.scrub_phases ^= 1u << v_stage;
  }
  GIWA_DEVICE void release_v() {
    if constexpr (!two_parts) arch::fence_operand(o.value);
    c.values.release(v_stage);
  }
  /// Skips a tile that only other consumers need. It waits for the tile: the barriers of its stage count phases.
  GIWA_DEVICE void skip_tile() {
    c.keys.release(k_stage);
    wait_v(own.is(notes::scrubs), false);
    c.values.release(v_stage);
  }
  GIWA_DEVICE void wait_k_and_skip_turn() { wait_k(), skip_turn(); }
  GIWA_DEVICE bool skip_turn() { return c.pingpong.acquire(), c.pingpong.release(), true; }
  // --- Arithmetic
  GIWA_DEVICE void multiply_qk() { products::multiply_qk(c, k_stage, scores); }

  /// Applies scale, modifier, mask and online softmax: S becomes P, and `factor` is what O must be multiplied by.
  GIWA_DEVICE void softmax_step(tile_keep keep) {
    float largest[score_map::rows];
    begin_softmax(keep, largest);
    raise(largest);
    end_softmax();
  }
  /// Its parts: up to the maxima; the row's m and `factor`, which with split fp16 is complete after the last part; the weights.
  template <bool FullyKept = false>
  GIWA_DEVICE void begin_softmax(tile_keep keep, float (&largest)[score_map::rows]) {
    apply_steps<FullyKept>(keep);
    softmax.find_maxima(c.block, scores, largest);
  }
  template <bool FullyKept = false>
  GIWA_DEVICE void apply_steps(tile_keep keep) {
    auto& steps = c.steps;
    const auto bounds = Types::bounds_of(work, c.index);
    const auto at = Types::rows_at(first_query, own.first_key);
    if constexpr (Types::transposes_v) scaling.apply(c, work, own.first_key, scores);
    if constexpr (is_split) exponents.begin_scores(exponent_q + note.exponent_k, c.p.call.scale, steps, softmax);
    if (FullyKept || (steps.modified && keep == tile_keep::all))
      steps.apply_to_whole(c.thread, scores, bounds, at);
    else
      steps.template apply<true>(c.thread, scores, bounds, keep == tile_keep::all ? keep : tile_keep::some, at);
  }
  GIWA_DEVICE void raise(const float (&largest)[score_map::rows]) {
    softmax.raise(largest, c.steps.scale_log2(), factor);
  }
  GIWA_DEVICE void end_softmax() {
    float sum[score_map::rows];
    softmax.weigh(scores, sum);
    softmax.add(sum);
    if constexpr (is_split) exponents.begin_values(note.exponent_v, factor);
  }
  /// Converts P to an operand in registers.
  GIWA_DEVICE void make_p() {
    products::make_p(scores, p);
    if constexpr (drops_weights<typename Types::score>)
      products::drop(c, Types::bounds_of(work, c.index), Types::rows_at(first_query, own.first_key), scores, p);
  }
  GIWA_DEVICE void rescale_o() {
    o.transform_rows(factor, [](float x, float f) { return x * f; });
    sums.rescale(c, factor);
  }
  GIWA_DEVICE void multiply_pv(int slice = 0) {
    if constexpr (two_parts)
      products::multiply_pv(c, v_stage, p, partial_o, slice);
    else
      products::multiply_pv(c, v_stage, p, o, 0, sums.continues);
  }
  GIWA_DEVICE void add_partial_o(const float (&factor_of_tile)[score_map::rows], int slice = 0) {
    if constexpr (two_parts) {
      arch::fence_operand(partial_o.value);
      add_tile_sum(o, factor_of_tile, partial_o, slice);
    }
  }
  GIWA_DEVICE void multiply_pv_and_wait() {
    GIWA_UNROLL
    for (int slice = 0; slice < Types::head_size_v / policy::slice; ++slice) {
      multiply_pv(slice);
      arch::wgmma_wait<0>();
      add_partial_o(factor, slice);
    }
  }

  register_tile<float, score_map> scores;                        // (queries, keys): S, then P in fp32
  typename products::operand p;                                  // P
  register_tile<float, warpgroup_map<policy::slice>> partial_o;  // of one tile, with split fp16
  float factor[score_map::rows];
  typename Types::k_note note;
  int exponent_q = 0;  // of the consumer's queries, with split fp16
  notes own{};
  bool scrubs_before;  // the V tile before that of `own`
  int k_stage = 0, v_stage = 0;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
