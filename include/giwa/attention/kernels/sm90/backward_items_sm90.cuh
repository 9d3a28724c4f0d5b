// SPDX-License-Identifier: MIT
// What the consumer warpgroups of the Hopper kernels of attention_backward have in common: an item's begin, tiles and end.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_ITEMS_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_ITEMS_SM90_CUH

#include <giwa/arch/named_barrier.cuh>
#include <giwa/attention/kernels/simt/store_gradient.cuh>
#include <giwa/attention/kernels/sm90/backward_dq_sm90.cuh>
#include <giwa/attention/kernels/sm90/backward_sharing_sm90.cuh>
#include <giwa/attention/kernels/sm90/backward_steps_sm90.cuh>
#include <giwa/tile/mma_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A consumer's 64 fixed rows: it waits for them and for tiles, sums, and stores. The class that inherits has add_item(work), for
/// the tiles of an item, and add_tile<whether it is masked>().
template <class Types, class Block>
class sm90_item_consumer {
 public:
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using work_item = typename Types::work_item;
  using action = typename Types::action;
  using G = typename Types::gradient_element;
  static constexpr bool rows_are_keys = Types::rows_are_keys, sums_x = Types::sums_x, sums_y = Types::sums_y;

 protected:
  using dq_type = sm90_dq_product<Types>;
  using map_of_scores = typename sm90_backward_steps<Types>::map;

  GIWA_DEVICE sm90_item_consumer(const Block& of, const params& parameters, shared_storage& storage)
      : block(of),
        p(parameters),
        s(storage),
        index(of.any(of.warp() / 4 == 2) ? 1 : 0),  // a vote tells the compiler that all threads of a warp agree
        thread(of.rank() % 128),
        random_key(dropout_key(of, parameters.call.call.score)) {}

  template <class Consumer>
  GIWA_DEVICE static void consume(Consumer& me) {
    if (me.index == Types::consumers - 1) me.release_turn();
    consume_items<Types>(me.block, me.s, [&](work_item& work) { return me.add_item(work); });
    if ((Types::stores_tiles || Types::stages_keys) && me.block.lane() == 0) arch::wait_stores<0>();
  }

  GIWA_DEVICE void begin_item(const work_item& work) {
    first_row = work.first + 64 * index;
    if constexpr (Types::adds_dq) bad_keys.forget();
    if constexpr (Types::gives_once) giving.now = work.careful == 0;
    const auto row_of = [&](int slot) { return map_of_scores::row(thread, slot); };
    if constexpr (!rows_are_keys && !Types::stages_output)
      for (int slot = 0; slot < map_of_scores::rows; ++slot)
        own[slot] = p.call.terms_of_query(work.head.get(), first_row + row_of(slot));
    s.fixed_full[index].wait(fixed_turn & 1);
    if constexpr (Types::stages_output)
      for (int slot = 0; slot < map_of_scores::rows; ++slot) own[slot] = s.own_terms[index][row_of(slot)];
    if constexpr (!rows_are_keys)
      for (row_terms& t : own) t.lse *= log2_e<float>;
    if constexpr (!Types::adds_dq) acquire_turn();
  }
  /// Adds an item's tiles, of which `next` says what to do with the first, by me.add_tile<whether it is masked>(item...), which
  /// returns the same of the next one. Returns the note without a tile that ends them.
  template <class Consumer, class... Item>
  GIWA_DEVICE static action add_tiles(Consumer& me, action next, Item&... item) {
    for (;;) {
      if (me.uniform(next == action::all)) {
        next = me.template add_tile<false>(item...);
      } else if (me.uniform(next == action::some)) {
        next = me.template add_tile<true>(item...);
      } else if (!Types::by_halves && me.uniform(next == action::none)) {
        if constexpr (Types::adds_dq && Types::skips_unseen)
          next = me.add_unseen_tile();
        else
          next = me.skip_tile();
      } else {
        return next;
      }
    }
  }
  /// After an item's last tile, or its end without one.
  GIWA_DEVICE void end_item(work_item& work, bool has_tiles) {
    release(s.x_empty[x.stage()]);
    x.advance();
    [[maybe_unused]] bool finite = true;  // of sums that are not shared, where dq is added
    [[maybe_unused]] bool by_tma = false;
    if (has_tiles) {
      if constexpr (!Types::by_halves && !Types::keeps_b) release(s.b_empty[index]);
      if constexpr (!Types::adds_dq) release_turn();
      [[maybe_unused]] typename dq_type::tile last;
      if constexpr (Types::adds_dq) {
        dq.start_last(block, s, index, y.turn, last);
        finite = are_finite();
        if constexpr (Types::stages_keys) {
          by_tma = uniform(finite & stores_by_tma(work) & (work.sharers <= 1) & (work.careful == 0));
          if (by_tma) begin_stores(work);
        }
        arch::wgmma_wait<0>();
        arch::fence_operand(last.value);
        release(s.a_empty[index ^ 1]);  // dq needs the keys of both consumers
      }
      release(s.a_empty[index]);
      if constexpr (Types::keeps_b)
        if (uniform(by_tma)) store_by_b(work, sum_x, p.call.call.scale, p.dk);
      if constexpr (Types::adds_dq) dq.finish(block, s, index, thread, y.turn, last);
      if constexpr (Types::keeps_b) {
        if (block.lane() == 0) arch::wait_stores_read<0>();
        release(s.b_empty[index]);
      } else if constexpr (Types::stages_keys) {
        if (uniform(by_tma)) end_stores(work);
      }
      ++fixed_turn;
    }
    if constexpr (Types::parameters > 0)
      if (uniform(!work.idle && work.careful == 0))
        parameter_gradients.store(block, thread, p.call, work.head.get(), work.first + 64 * index);
    if (!uniform(work.idle | by_tma)) store_sums(work, finite);
  }
  /// Whether TMA may store a warp's 16 rows: they may be clipped at the tensor's end, but must not reach into the next sequence.
  GIWA_DEVICE bool stores_by_tma(const work_item& work) const {
    const int end = work.first + 64 * index + rank_in_warpgroup() / 32 * 16 + (p.call.call.ragged ? 16 : 1);
    return p.stores_by_tma & (end <= work.rows);
  }
  /// Stores a warp's 16 rows of dk and dv by TMA, in two steps: the fence before the last part of dq, between them, is for both.
  ///@{
  GIWA_DEVICE void begin_stores(const work_item& work) {
    if constexpr (Types::keeps_b)
      return store_by_b(work, sum_y, 1, p.dv);
    else {
      stage_gradient(block, rank_in_warpgroup(), sum_y, 1, s.of_keys.dv[index]);
      stage_gradient(block, rank_in_warpgroup(), sum_x, p.call.call.scale, s.of_keys.dk[index]);
    }
  }
  /// By the memory of the values, which all warps have used when dS of the last tile is there.
  template <class Sums>
  GIWA_DEVICE void store_by_b(const work_item& work, Sums& sums, float factor, const tensor_map& map) {
    auto& staged = *reinterpret_cast<typename Types::dv_tile*>(&s.b[index]);
    stage_gradient(block, rank_in_warpgroup(), sums, factor, staged);
    arch::fence_async_proxy();
    block.sync_warp();
    if (block.lane() == 0)
      start_store(rank_in_warpgroup(), staged, map, Types::origin(work.head.get(), true, work.first + 64 * index));
  }
  GIWA_DEVICE void end_stores(const work_item& work) {
    if (block.lane() != 0) return;
    const auto at = Types::origin(work.head.get(), true, work.first + 64 * index);
    start_store(rank_in_warpgroup(), s.of_keys.dv[index], p.dv, at);
    start_store(rank_in_warpgroup(), s.of_keys.dk[index], p.dk, at);
  }
  ///@}
  /// Where the bias of a tile is, and what the steps give of the gradients of the score modifier.
  template <class Steps>
  GIWA_DEVICE auto giving_of([[maybe_unused]] const Steps& steps) {
    typename Steps::giving_type more{};
    if constexpr (Types::reads_bias) {
      more.bias_at = dq_type::place_of_thread(s, index, rank_in_warpgroup(), y.turn);
      steps.read_bias_of_keys(more);
    }
    if constexpr (Types::gives_once) more.gives = giving.now;
    if constexpr (Types::adds_bias) more.stores = sm90_bias<Types>::stores(p, s.notes[x.stage()]);
    if constexpr (Types::parameters > 0) more.parameters = &parameter_gradients;
    return more;
  }
  /// Waits for the warp's turn to add to the gradient of a bias, of 64 or all queries of a tile from `first` on; for sm90_bias::pass_turn().
  GIWA_DEVICE int await_turn_of_bias(int first = 0) const {
    if constexpr (Types::adds_bias)
      if (uniform(giving.now))
        return sm90_bias<Types>::await_turn(block, p, s.notes[x.stage()], first,
                                            first_row + rank_in_warpgroup() / 32 * 16);
    return -1;
  }
  /// Waits for the next stage of x and returns what to do with its tile.
  GIWA_DEVICE action await_next() const {
    s.x_full[x.stage()].wait(x.phase());
    return s.notes[x.stage()].of[index];
  }
  /// A tile that only the other consumer needs. Its stages are released before the next turn, because the other consumer may
  /// wait for their next tiles during its own.
  GIWA_DEVICE action skip_tile() {
    release_turn();
    s.y_full[y.stage()].wait(y.phase());
    release(s.y_empty[y.stage()]);
    release(s.x_empty[x.stage()]);
    x.advance(), y.advance();
    acquire_turn();
    return await_next();
  }
  /// Waits for the last products of a tile, and makes dq of the tile before; returns what to do with the next tile.
  GIWA_DEVICE action end_tile() {
    [[maybe_unused]] typename dq_type::tile dq_of_tile;
    if constexpr (Types::adds_dq) {
      dq.multiply(block, s, index, y.turn, dq_of_tile);
      release_turn();
    }
    arch::mbarrier &x_empty = s.x_empty[x.stage()], &y_empty = s.y_empty[y.stage()];
    x.advance(), y.advance();
    const action next = await_next();
    if constexpr (Types::adds_dq) dq.await_part(s, index, y.turn - 1);
    arch::wgmma_wait<Types::adds_dq ? 1 : 0>();
    if constexpr (sums_x) arch::fence_operand(sum_x.value);
    if constexpr (sums_y) arch::fence_operand(sum_y.value);
    if constexpr (sums_y) release(y_empty);
    release(x_empty);
    if constexpr (Types::adds_dq) {
      arch::wgmma_wait<0>();
      arch::fence_operand(dq_of_tile.value);
      dq.write(block, s, index, rank_in_warpgroup(), y.turn - 1, dq_of_tile);
    }
    return next;
  }
  /// Whether the sums of a warp's 16 rows have neither NaN nor infinity. Where dq is added, by four chains of additions.
  GIWA_DEVICE bool are_finite() const {
    constexpr int chains = Types::adds_dq ? 4 : 1;
    float zeros[chains]{};
    int n = 0;
    const auto add = [&](float value) {
      zeros[n] = fused_multiply_add(value, 0.0f, zeros[n]);
      n = (n + 1) % chains;
    };
    if constexpr (sums_x)
      for (float value : sum_x.value) add(value);
    if constexpr (sums_y)
      for (float value : sum_y.value) add(value);
    float zero = zeros[0];
    for (int i = 1; i < chains; ++i) zero += zeros[i];
    return !block.any(!(zero == 0));
  }
  /// Stores the sums of a warp's 16 rows. If they have NaN, the item has to come again, because 0 times NaN of a row that
  /// is not seen is NaN too; the second time they are stored as they are.
  GIWA_DEVICE void store_sums(work_item& work, bool finite) {
    const uint32 careful = work.careful, bit = 1u << (thread / 32 + 4 * index);
    if constexpr (Types::adds_dq)
      if (work.sharers > 1) {
        if (!collect_sums(work.sums, work.share, work.sharers, sum_x, sum_y)) return;
        finite = are_finite();
      }
    if (careful == 0) {
      if constexpr (!Types::adds_dq) finite = are_finite();
      if (!finite) {
        if (block.lane() == 0) block.atomic_add(work.again, bit);
        return;
      }
    } else if ((careful & bit) == 0) {
      return;
    }
    const auto& h = work.head.get();
    const auto& views = p.call.views;
    const float scale = p.call.call.scale;
    const int first = work.first + 64 * index;
    const auto store = [&](auto& sums, const tensor_view<G, 2>& to, float factor) {
      if constexpr (Types::stores_slabs)
        if (to.stride(0) % 8 == 0 && reinterpret_cast<uint64>(to.data()) % 16 == 0)
          return store_gradient_by_slabs(block, thread, sums, to, first, factor, dq.free_slab(s, index, y.turn));
      store_gradient(block, thread, sums, to, first, factor, p.call.accumulate);
    };
    if constexpr (!rows_are_keys) {
      if (is_absent(views.dq)) return;
      if constexpr (Types::stores_tiles)
        if (stores_by_tma(work)) return store_by_tma(Types::origin(h, false, first), scale);
      store(sum_x, p.call.query_rows(views.dq, h), scale);
    } else {
      if constexpr (sums_x)
        if (!is_absent(views.dk)) store(sum_x, p.call.key_rows(views.dk, h, work.rows), scale);
      if constexpr (sums_y)
        if (!is_absent(views.dv)) store(sum_y, p.call.key_rows(views.dv, h, work.rows), 1);
    }
  }
  GIWA_DEVICE void store_by_tma(const giwa::index<4>& at, float scale) {
    stage_gradient(block, thread, sum_x, scale, s.dq.of[index]);
    arch::fence_async_proxy();
    block.sync_warp();
    if (block.lane() == 0) start_store(thread, s.dq.of[index], p.dq, at);
  }
  /// A condition that all threads agree on, in a form that shows the compiler so: at a branch that might diverge it would
  /// wait for each product.
  GIWA_DEVICE bool uniform(bool condition) const { return block.any(condition); }
  /// A stage, in such a form too: descriptors are computed once for a warp then, not by each thread. H200, 2026-11-23: a fifth
  /// of the loop's instructions less at 128, where the call is 2 to 3 % faster. At 64 dk with dv without dq are 3 % slower. Where
  /// dq is added, agree_on_turns() has done it above 64.
  GIWA_DEVICE int uniform(int stage) const {
    return Types::policy::widest > 64 && !Types::adds_dq ? block.shuffle(stage, 0) : stage;
  }
  /// The same for all stages and phases of a tile, where dq is added to. Not at 64, where halves are 1 to 2 % slower so.
  GIWA_DEVICE void agree_on_turns() {
    if constexpr (Types::adds_dq) x.turn = block.shuffle(x.turn, 0), y.turn = block.shuffle(y.turn, 0);
  }
  /// The tensor cores in turn, so that the consumers do not compute exponentials at the same time, while the products wait. Not
  /// for all head sizes: sm90_backward_policy::takes_turns.
  ///@{
  GIWA_DEVICE void acquire_turn() const {
    if constexpr (Types::policy::takes_turns) arch::barrier_sync(1 + index, 128 * Types::consumers);
  }
  GIWA_DEVICE void release_turn() const {
    if constexpr (Types::policy::takes_turns) arch::barrier_arrive(2 - index, 128 * Types::consumers);
  }
  ///@}
  /// Lets the loader overwrite what the warp has read.
  GIWA_DEVICE void release(arch::mbarrier& empty) const {
    block.sync_warp();
    if (block.lane() == 0) empty.arrive();
  }

  const Block& block;
  const params& p;
  shared_storage& s;
  const int index, thread;
  [[no_unique_address]] const typename sm90_backward_steps<Types>::key_type random_key;
  template <int Stages>
  using cursor = stdlib::conditional_t<Types::adds_dq, counting_cursor<Stages>, ring_cursor<Stages>>;
  cursor<Types::stages_x> x;
  cursor<Types::stages_y> y;  // where dq is added, its turn counts the tiles
  stdlib::conditional_t<Types::adds_dq, dq_type, nothing> dq;
  stdlib::conditional_t<Types::adds_dq, sm90_bad_keys<Types>, nothing> bad_keys;
  uint32 fixed_turn = 0;
  int first_row = 0;
  [[no_unique_address]] stdlib::conditional_t<Types::gives_once, typename Types::giving, typename Types::no_bias>
      giving;
  [[no_unique_address]] parameter_sums<map_of_scores, Types::parameters> parameter_gradients;
  // Of the fixed queries, with the lse in powers of two; of split fp16, of the fixed rows.
  stdlib::conditional_t<Types::is_split, typename Types::split_row_terms, row_terms> own[map_of_scores::rows];
  stdlib::conditional_t<sums_x, warpgroup_tile<Types::head_size>, nothing> sum_x;
  stdlib::conditional_t<sums_y, warpgroup_tile<Types::head_size_v>, nothing> sum_y;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
