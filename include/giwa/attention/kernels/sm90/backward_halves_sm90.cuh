// SPDX-License-Identifier: MIT
// A consumer warpgroup of the Hopper kernel of all gradients up to a head size of 64: tiles in two halves.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_HALVES_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_HALVES_SM90_CUH

#include <giwa/arch/matrix_load.cuh>
#include <giwa/attention/kernels/sm90/backward_items_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// sm90_backward_consumer with its 64 keys and values in registers as left operands, of which it multiplies 64 queries at a
/// time. A product of 64 x 64 with both operands in shared memory takes all bytes that this delivers, so that all else waits for
/// it; with S and dP of a whole tile of 128 queries there would be no registers for keys and values.
///
///   tile        first half               second half                        next tile
///   products    [S dP]                   [S dP] [dv dk]          [dv dk dq]   [S dP]
///   between            P, dS of first           P, dS of second       store dq       P, dS of first
///
/// H100, 2026-11-27, 32 heads, 512 to 16384 tokens, full and causal, against whole tiles with turns of the tensor cores: 1.03 to
/// 1.11, mean 1.06 in fixed order and 1.05 in any. With keys and values in shared memory halves gain nothing.
template <class Types, class Block>
class sm90_halved_consumer : sm90_item_consumer<Types, Block> {
  using base = sm90_item_consumer<Types, Block>;
  friend base;
  static constexpr int queries = 64;  // of a half
  using steps_type = sm90_backward_steps<Types, queries>;
  using base::await_next, base::release, base::uniform;
  using base::base;
  using base::block, base::p, base::s, base::index, base::x, base::y, base::dq, base::bad_keys, base::sum_x,
      base::sum_y;
  using typename base::action, typename base::params, typename base::shared_storage, typename base::work_item;

 public:
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s) {
    sm90_halved_consumer me(block, p, s);
    base::consume(me);
  }

 private:
  struct products {
    typename steps_type::scores_tile scores, dp;
  };
  /// What an item has in registers besides its sums. Not members of the consumer: registers of products that are under way cannot
  /// last from item to item.
  struct item_registers {
    uint32 keys[Types::head_size / 4], values[Types::head_size_v / 4];
    products first;  // of the next tile
  };

  /// Adds all tiles of an item and stores the sums. False if there is none.
  GIWA_DEVICE bool add_item(work_item& work) {
    sum_x.fill(0);
    sum_y.fill(0);
    action next = await_next();
    const bool has_tiles = !uniform(next == action::end_of_item || next == action::end);
    item_registers item;
    if (has_tiles) {
      this->begin_item(work);
      read(s.a[index], item.keys);
      read(s.b[index], item.values);
      release(s.b_empty[index]);
      arch::fence_operand(sum_x.value);  // set to 0 before these products begin
      arch::fence_operand(sum_y.value);
      start_next(item, true);
    }
    next = base::add_tiles(*this, next, item);
    arch::wgmma_wait<0>();  // for the products of no tile
    fence(item.first);
    if (uniform(next == action::end)) return false;
    this->end_item(work, has_tiles);
    return true;
  }

  /// One tile, of which S and dP of the first half are under way; at the end those of the next tile are. Returns what to do with
  /// that.
  template <bool Masked>
  GIWA_DEVICE action add_tile(item_registers& item) {
    const auto& x_tile = s.x[x.stage()];
    const auto& y_tile = s.y[y.stage()];
    uint32 weights[2][steps_type::words], gradients[2][steps_type::words];
    const auto steps_of = [&](int half) {
      return steps_type{p.call.call,     s.notes[x.stage()],  s.terms[x.stage()], this->own,
                        this->first_row, rank_in_warpgroup(), this->random_key,   queries * half};
    };
    const auto make_gradients = [&](int half, steps_type& steps, products& of, const auto& more) {
      fence(of);
      bad_keys.replace(block, half == 0 && dq.is_first(), s.a[index], of.scores);
      steps.template run<Masked>(block, of.scores, of.dp, weights[half], gradients[half], more);
      dq.write_gradients(s, index, rank_in_warpgroup(), y.turn, gradients[half], queries * half);
    };
    const auto add_products = [&](int half) {
      multiply<Types::how>(sum_y, weights[half], y_tile, true, 0, queries * half);
      multiply<Types::how>(sum_x, gradients[half], x_tile, true, 0, queries * half);
      arch::wgmma_commit();
    };

    dq.begin_tile(block, s, index, y.turn);
    steps_type first = steps_of(0);
    const auto more_of_first = this->giving_of(first);
    first.read_early();
    arch::wgmma_wait<0>();
    [[maybe_unused]] const int first_turn = this->await_turn_of_bias();
    make_gradients(0, first, item.first, more_of_first);

    products of_second;
    start(item, 1, of_second);
    add_products(0);
    steps_type second = steps_of(1);
    const auto more_of_second = this->giving_of(second);
    second.read_early();
    arch::wgmma_wait<steps_type::may_branch ? 0 : 1>();
    if constexpr (Types::adds_bias) sm90_bias<Types>::pass_turn(block, p, first_turn);
    [[maybe_unused]] const int second_turn = this->await_turn_of_bias(queries);
    make_gradients(1, second, of_second, more_of_second);

    arch::wgmma_fence();
    add_products(1);
    const action next = this->end_tile();
    if constexpr (Types::adds_bias) sm90_bias<Types>::pass_turn(block, p, second_turn);
    start_next(item, uniform(next == action::all || next == action::some));
    return next;
  }

  /// Starts S and dP of the next tile's first half. If there is none, of what is there: behind a branch ptxas would not know what
  /// is under way.
  GIWA_DEVICE void start_next(item_registers& item, bool is_tile) {
    if (is_tile) s.y_full[y.stage()].wait(y.phase());
    start(item, 0, item.first);
  }
  GIWA_DEVICE void start(const item_registers& item, int half, products& of) const {
    of.scores.fill(0), of.dp.fill(0);
    fence(of);
    arch::wgmma_fence();
    multiply<Types::how>(of.scores, item.keys, transposed(s.x[x.stage()]), false, queries * half);
    multiply<Types::how>(of.dp, item.values, transposed(s.y[y.stage()]), false, queries * half);
    arch::wgmma_commit();
  }
  GIWA_DEVICE static void fence(products& of) {
    arch::fence_operand(of.scores.value);
    arch::fence_operand(of.dp.value);
  }
  /// Reads 64 rows as a left operand.
  template <class Tile, int Words>
  GIWA_DEVICE static void read(const Tile& from, uint32 (&to)[Words]) {
    const int thread = rank_in_warpgroup(), lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    GIWA_UNROLL
    for (int i = 0; i < Words; i += 4) {
      uint32 matrices[4];
      arch::load_matrices(matrices, arch::shared_address(from.chunk(row, 4 * i + lane / 16 * 8)));
      GIWA_UNROLL
      for (int k = 0; k < 4; ++k) to[i + k] = matrices[k];
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
