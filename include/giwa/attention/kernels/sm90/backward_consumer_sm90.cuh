// SPDX-License-Identifier: MIT
// A consumer warpgroup of the Hopper kernels of attention_backward: 64 rows of dq, or of dk and dv.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_CONSUMER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_CONSUMER_SM90_CUH

#include <giwa/attention/kernels/sm90/backward_items_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// With fixed rows a and b and moving rows x and y, for each tile of them:
///   S = a x^T,  dP = b y^T,  P = e^(score(S) - lse),  dS = P (dP - delta) slope,
///   dq or dk = scale * sum of dS x,  dv = sum of P y.
/// P and dS go from the accumulators into the next product as left operands in registers.
template <class Types, class Block>
class sm90_backward_consumer : sm90_item_consumer<Types, Block> {
  using base = sm90_item_consumer<Types, Block>;
  friend base;
  using steps_type = sm90_backward_steps<Types>;
  using scores_tile = typename steps_type::scores_tile;
  using base::acquire_turn, base::await_next, base::release, base::release_turn, base::uniform;
  using base::base;
  using base::block, base::p, base::s, base::index, base::x, base::y, base::dq, base::bad_keys, base::sum_x,
      base::sum_y;
  using base::sums_x, base::sums_y;
  using typename base::action, typename base::params, typename base::shared_storage, typename base::work_item;

 public:
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    sm90_backward_consumer me(block, p, s);
    base::consume(me);
  }

 private:
  /// Adds all tiles of an item and stores the sums. False if there is none.
  GIWA_DEVICE bool add_item(work_item& work) {
    if constexpr (sums_x) sum_x.fill(0);
    if constexpr (sums_y) sum_y.fill(0);
    if constexpr (Types::parameters > 0) this->parameter_gradients = {};
    action next = await_next();
    const bool has_tiles = !uniform(next == action::end_of_item || next == action::end);
    if (has_tiles) this->begin_item(work);
    next = base::add_tiles(*this, next);
    if (uniform(next == action::end)) return false;
    this->end_item(work, has_tiles);
    return true;
  }

  /// A tile that only the other consumer sees, where dq is added: its dS is 0. In the same turns as a tile that is seen.
  GIWA_DEVICE action add_unseen_tile() {
    this->agree_on_turns();
    s.y_full[y.stage()].wait(y.phase());
    acquire_turn();
    release_turn();
    dq.begin_tile(block, s, index, y.turn);
    bad_keys.find(block, dq.is_first(), s.a[index]);
    bad_keys.clear(dq.is_first(), s.a[index]);
    constexpr uint32 zero[sm90_backward_steps<Types>::words] = {};
    dq.write_gradients(s, index, thread_here(), y.turn, zero);
    acquire_turn();
    return this->end_tile();
  }
  /// One tile; returns what to do with the next. ptxas waits for all products at a branch, so there is none between those of
  /// S and of dS. A consumer has its turn for the last products of a tile and the first of the next one, or for each of them.
  template <bool Masked>
  GIWA_DEVICE action add_tile() {
    this->agree_on_turns();
    const int stage_x = uniform(x.stage()), stage_y = uniform(y.stage());
    const auto& x_tile = s.x[stage_x];
    const auto& y_tile = s.y[stage_y];
    // Set here, so that their registers are free from the last product to the next tile; the products overwrite them.
    scores_tile scores, dp;
    scores.fill(0);
    if constexpr (sums_x) dp.fill(0);
    // stage_x >> 2 is 0. Without it the compiler computes the descriptors of a and b before the loop, and spills them.
    const int fixed = index + (stage_x >> 2);
    if constexpr (!sums_x) s.y_full[y.stage()].wait(y.phase());
    if constexpr (Types::adds_dq) acquire_turn();
    arch::wgmma_fence();
    multiply<Types::head_size, Types::how>(scores, s.a[fixed], 0, transposed(x_tile), false);
    if constexpr (sums_x) {
      s.y_full[y.stage()].wait(y.phase());
      arch::wgmma_fence();
      multiply<Types::head_size_v, Types::how>(dp, s.b[fixed], 0, transposed(y_tile), false);
    }
    arch::wgmma_commit();
    release_turn();
    if constexpr (Types::adds_dq) dq.begin_tile(block, s, index, y.turn);
    if constexpr (Types::is_long) bad_keys.find(block, dq.is_first(), s.a[index]);
    steps_type steps{p.call.call,     s.notes[x.stage()], s.terms[x.stage()], this->own,
                     this->first_row, thread_here(),      this->random_key};
    const auto more = this->giving_of(steps);
    steps.read_early();
    arch::wgmma_wait<0>();
    arch::fence_operand(scores.value);
    if constexpr (sums_x) arch::fence_operand(dp.value);
    if constexpr (!sums_y) release(s.y_empty[y.stage()]);
    if constexpr (Types::adds_dq) bad_keys.replace(block, dq.is_first(), s.a[index], scores);
    [[maybe_unused]] uint32 weights[steps_type::words], gradients[steps_type::words];
    [[maybe_unused]] int turn = -1;
    if constexpr (Types::adds_bias) turn = this->await_turn_of_bias();
    steps.template run<Masked>(block, scores, dp, weights, gradients, more);
    if constexpr (Types::adds_dq) dq.write_gradients(s, index, thread_here(), y.turn, gradients);
    acquire_turn();
    if constexpr (sums_y) {
      arch::fence_operand(sum_y.value);
      arch::wgmma_fence();
      multiply<Types::how>(sum_y, weights, y_tile, true);
    }
    const auto start_dk = [&] {
      if constexpr (sums_x) {
        arch::fence_operand(sum_x.value);
        arch::wgmma_fence();
        multiply<Types::how>(sum_x, gradients, x_tile, true);
      }
      arch::wgmma_commit();
    };
    if constexpr (Types::is_long) {
      return end_long_tile(start_dk);
    } else {
      start_dk();
      const action next = this->end_tile();
      if constexpr (Types::adds_bias) sm90_bias<Types>::pass_turn(block, p, turn);
      return next;
    }
  }
  /// The thread's rank, read again where its register would be spilled. Kernels of one gradient or two were 0.99 times as fast so.
  GIWA_DEVICE int thread_here() const { return Types::adds_dq ? rank_in_warpgroup() : this->thread; }
  /// end_tile() with dq of the tile before in front of dk, under which its part is written.
  template <class StartDk>
  GIWA_DEVICE action end_long_tile(const StartDk& start_dk) {
    typename base::dq_type::tile dq_of_tile;
    dq.multiply(block, s, index, y.turn, dq_of_tile);
    start_dk();
    arch::mbarrier &x_empty = s.x_empty[x.stage()], &y_empty = s.y_empty[y.stage()];
    dq.await_part(s, index, y.turn);
    arch::wgmma_wait<1>();
    arch::fence_operand(sum_y.value);
    arch::fence_operand(dq_of_tile.value);
    release(y_empty);
    x.advance(), y.advance();
    dq.write(block, s, index, thread_here(), y.turn - 1, dq_of_tile);
    const action next = await_next();
    arch::wgmma_wait<0>();
    arch::fence_operand(sum_x.value);
    release(x_empty);
    return next;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
