// SPDX-License-Identifier: MIT
// A consumer warpgroup of the Hopper kernels of attention_backward in fp32: products of split fp16.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_SPLIT_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_SPLIT_SM90_CUH

#include <giwa/attention/kernels/sm90/backward_items_sm90.cuh>
#include <giwa/attention/split_fp16/numbers.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// As sm90_backward_consumer, with three products of fp16 for each of fp32: lo hi, hi lo and hi hi, the small ones first, because
/// tensor-core accumulation truncates toward zero. For the same reason a tile's products with x and y are added to the sums in
/// fp32. Rows of all tensors have factors (split_rows): with those of q, k, v and dout
///   S = a x^T q_i k_j scale,  dP = b y^T v_j dout_i,  dq_i = sum of (dS k_j) x,  dk_j = sum of (dS q_i) x,
///   dv_j = sum of (P dout_i) y.
/// NaN and infinity are in factors alone, and a score that the mask drops is 0, so they reach no other row.
template <class Types, class Block>
class sm90_split_consumer : sm90_item_consumer<Types, Block> {
  using base = sm90_item_consumer<Types, Block>;
  friend base;
  using base::acquire_turn, base::await_next, base::release, base::release_turn, base::uniform;
  using base::base;
  using base::block, base::p, base::s, base::index, base::thread, base::x, base::y, base::first_row, base::own,
      base::sum_x, base::sum_y;
  using base::rows_are_keys, base::sums_x, base::sums_y;
  using typename base::action, typename base::G, typename base::map_of_scores, typename base::params,
      typename base::shared_storage, typename base::work_item;
  static constexpr int parts = Types::parts;

 public:
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    sm90_split_consumer me(block, p, s);
    base::consume(me);
  }

 private:
  using steps_type = sm90_backward_steps<Types>;
  using scores_tile = typename steps_type::scores_tile;
  using operand = split_operand<map_of_scores, parts>;
  static constexpr bool modified = steps_type::modified, drops = drops_weights<typename Types::score>;
  using bounds = typename Types::bounds;

  /// Adds all tiles of an item and stores the sums. False if there is none.
  GIWA_DEVICE bool add_item(const work_item& work) {
    if constexpr (sums_x) sum_x.fill(0);
    if constexpr (sums_y) sum_y.fill(0);
    action next = await_next();
    const bool has_tiles = !uniform(next == action::end_of_item || next == action::end);
    if (has_tiles) begin_item(work);
    next = base::add_tiles(*this, next);
    if (uniform(next == action::end)) return false;
    release(s.x_empty[x.stage()]);
    x.advance();
    if (has_tiles) {
      release_turn();
      release(s.b_empty[index]);
      release(s.a_empty[index]);
      ++this->fixed_turn;
    }
    if (!uniform(work.idle)) store_sums(work);
    return true;
  }
  GIWA_DEVICE void begin_item(const work_item& work) {
    first_row = work.first + 64 * index;
    for (int slot = 0; slot < map_of_scores::rows; ++slot) {
      const int row = first_row + map_of_scores::row(thread, slot);
      const auto& h = work.head.get();
      own[slot] = rows_are_keys ? Types::terms_of_key(p.call, h, row) : Types::terms_of_query(p.call, h, row);
    }
    s.fixed_full[index].wait(this->fixed_turn & 1);
    acquire_turn();
  }

  /// One tile; returns what to do with the next. ptxas waits for all products at a branch, so there is none while they run.
  template <bool Masked>
  GIWA_DEVICE action add_tile() {
    const auto& x_tile = s.x[x.stage()];
    const auto& y_tile = s.y[y.stage()];
    scores_tile scores, dp;
    // x.stage() >> 2 is 0. Without it the compiler computes the descriptors of a and b before the loop, and spills them.
    const int fixed = index + (x.stage() >> 2);
    arch::fence_operand(scores.value);
    if constexpr (sums_x) arch::fence_operand(dp.value);
    arch::wgmma_fence();
    multiply_scores<Types::head_size>(scores, s.a[fixed], x_tile);
    if constexpr (sums_x) {
      s.y_full[y.stage()].wait(y.phase());
      arch::wgmma_fence();
      multiply_scores<Types::head_size_v>(dp, s.b[fixed], y_tile);
    }
    arch::wgmma_commit();
    release_turn();
    arch::wgmma_wait<0>();
    arch::fence_operand(scores.value);
    if constexpr (sums_x) arch::fence_operand(dp.value);
    if constexpr (!sums_y) release(s.y_empty[y.stage()]);
    weigh<Masked>(scores, dp);
    [[maybe_unused]] operand weights, gradients;
    if constexpr (sums_y) weights.set(block, scores);
    if constexpr (sums_x) gradients.set(block, dp);
    if constexpr (!sums_x) s.y_full[y.stage()].wait(y.phase());
    acquire_turn();
    [[maybe_unused]] stdlib::conditional_t<sums_x, warpgroup_tile<Types::head_size>, nothing> part_x;
    [[maybe_unused]] stdlib::conditional_t<sums_y, warpgroup_tile<Types::head_size_v>, nothing> part_y;
    if constexpr (sums_y) arch::fence_operand(part_y.value);
    if constexpr (sums_x) arch::fence_operand(part_x.value);
    arch::wgmma_fence();
    if constexpr (sums_y) multiply_operand(part_y, weights, y_tile);
    if constexpr (sums_x) multiply_operand(part_x, gradients, x_tile);
    arch::wgmma_commit();
    arch::mbarrier &x_empty = s.x_empty[x.stage()], &y_empty = s.y_empty[y.stage()];
    x.advance(), y.advance();
    const action next = await_next();
    arch::wgmma_wait<0>();
    if constexpr (sums_y) {
      arch::fence_operand(part_y.value);
      release(y_empty);
    }
    if constexpr (sums_x) arch::fence_operand(part_x.value);
    release(x_empty);
    if constexpr (sums_y) add(sum_y, part_y, weights.factor);
    if constexpr (sums_x) add(sum_x, part_x, gradients.factor);
    return next;
  }

  template <int Depth, class Fixed, class Moving>
  GIWA_DEVICE static void multiply_scores(scores_tile& to, const Fixed& fixed, const Moving& moving) {
    constexpr int lo = Fixed::columns / split_rows::parts_per_number;
    if constexpr (parts == 2) {
      multiply<Depth>(to, fixed, 0, transposed(moving), false, lo, 0);
      multiply<Depth>(to, fixed, 0, transposed(moving), true, 0, lo);
    }
    multiply<Depth>(to, fixed, 0, transposed(moving), parts == 2);
  }
  template <class Sums, class Moving>
  GIWA_DEVICE static void multiply_operand(Sums& to, const operand& left, const Moving& moving) {
    if constexpr (parts == 2) {
      multiply(to, left.parts[1], moving, false);
      multiply(to, left.parts[0], moving, true, Moving::columns / split_rows::parts_per_number);
    }
    multiply(to, left.parts[0], moving, parts == 2);
  }
  template <class Sums>
  GIWA_DEVICE static void add(Sums& sums, const Sums& part, const float (&factor)[map_of_scores::rows]) {
    GIWA_UNROLL
    for (int i = 0; i < Sums::registers; ++i)
      sums.value[i] = fused_multiply_add(part.value[i], factor[Sums::map::slot(i)], sums.value[i]);
  }

  /// Turns scores into P times the factors of dout, and dp into dS times those of q or k.
  template <bool Masked>
  GIWA_DEVICE void weigh(scores_tile& scores, scores_tile& dp) const {
    const auto& note = s.notes[x.stage()];
    const auto& terms = s.terms[x.stage()];
    const bounds limits = note.limits.get();
    const typename steps_type::steps_of_scores steps{p.call.call.mask, p.call.call.score, p.call.call.scale,
                                                     this->random_key};
    [[maybe_unused]] kept_tile<map_of_scores, rows_are_keys> undropped;
    if constexpr (drops)
      undropped.find(block, dropout_bits(steps.score, steps.random_key, limits.batch, limits.head), thread, first_row,
                     note.begin);
    GIWA_UNROLL
    for (int i = 0; i < map_of_scores::registers; ++i) {
      const int slot = map_of_scores::slot(i), row = first_row + map_of_scores::row(thread, slot);
      const int column = map_of_scores::column(thread, i), moving = note.begin + column;
      const int query = rows_are_keys ? moving : row, key = rows_are_keys ? row : moving;
      float lse, delta, of_q, of_k, of_v, of_dout;
      if constexpr (rows_are_keys) {
        lse = terms.lse[column], delta = terms.delta[column];
        of_q = terms.of_score[column], of_k = own[slot].of_score;
        of_dout = terms.of_gradient[column], of_v = own[slot].of_gradient;
      } else {
        lse = own[slot].lse, delta = own[slot].delta;
        of_q = own[slot].of_score, of_k = terms.of_score[column];
        of_dout = own[slot].of_gradient, of_v = terms.of_gradient[column];
      }
      bool keep = true;
      if constexpr (Masked) keep = steps_type::keeps(steps, limits, query, key);
      const float score = scores.value[i] * of_k;
      float exponent, slope = 1;
      if constexpr (modified) {
        float y = device_product(score, of_q);
        const dual<float> at =
            modified_score(p.call.call.score, y, Masked ? limits.place_within(query, key) : limits.place(query, key));
        y = at.value, slope = at.slope;
        exponent = fused_multiply_add(y, log2_e<float>, -lse);
      } else {
        exponent = fused_multiply_add(score, of_q, -lse);
      }
      const float weight = exp2_of(exponent);
      // P and dS, but for 2^-n, which the terms have. By selection: numbers of a masked score may be NaN.
      float drop = 1;
      if constexpr (drops) drop = undropped[i] ? kept_scale(steps.score) : 0;
      scores.value[i] = keep ? weight * drop * of_dout : 0;
      if constexpr (sums_x) {
        const float ds = weight * fused_multiply_add(dp.value[i] * drop * of_v, of_dout, -delta) * slope;
        dp.value[i] = keep ? ds * (rows_are_keys ? of_q : of_k) : 0;
      }
    }
  }

  GIWA_DEVICE void store_sums(const work_item& work) {
    const auto& h = work.head.get();
    const auto& views = p.call.views;
    const auto store = [&](auto& sums, const tensor_view<G, 2>& to, float factor) {
      store_gradient(block, thread, sums, to, work.first + 64 * index, factor, p.call.accumulate);
    };
    if constexpr (!rows_are_keys) {
      if (!is_absent(views.dq)) store(sum_x, p.call.query_rows(views.dq, h), p.call.call.scale);
    } else {
      // The factors of q contain the scale, and that of exp2_of().
      if constexpr (sums_x)
        if (!is_absent(views.dk)) store(sum_x, p.call.key_rows(views.dk, h, work.rows), modified ? 1 : ln_2<float>);
      if constexpr (sums_y)
        if (!is_absent(views.dv)) store(sum_y, p.call.key_rows(views.dv, h, work.rows), 1);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
