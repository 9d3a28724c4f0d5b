// SPDX-License-Identifier: MIT
// Attention on Hopper: warpgroups of 64 queries multiply what TMA brings by wgmma, in turns.
#ifndef GIWA_ATTENTION_FORWARD_FORWARD_SM90_CUH
#define GIWA_ATTENTION_FORWARD_FORWARD_SM90_CUH

#include <giwa/arch/elect.cuh>
#include <giwa/arch/named_barrier.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/forward/policy.hpp>
#include <giwa/attention/forward/producer_sm90.cuh>
#include <giwa/grid/op.hpp>
#include <giwa/softmax/online.cuh>
#include <giwa/tile/mma_sm90.cuh>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// FlashAttention-3 (Shah et al. 2024, algorithm 2): one warp loads, the others are told what to do (producer_sm90.cuh). The next
/// scores are multiplied just before the last weights, and warpgroups take turns at the tensor cores, so that the softmax of
/// one runs beside the products of the others; where the output is wide, beside its own too.
template <class T, class O, class Policy, class Mask, class Score>
struct sm90_attention_op {
  using supply = sm90_attention_supply<T, O, Policy, Mask, Score>;
  using params = typename supply::params;
  using shared_storage = typename supply::shared_storage;
  static constexpr int rows = Policy::rows, columns = Policy::columns, groups = Policy::groups;
  static constexpr int head_size = Policy::head_size, head_size_v = Policy::head_size_v;
  static constexpr int max_threads = 128 * (groups + 1), min_blocks = 1;
  static_assert(Policy::fits,
                "giwa::attention_forward: on Hopper this tile needs more registers or shared memory than a block has: "
                "choose fewer keys.");

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
#if GIWA_ARCH_HAS_SM90A
    const auto block = with_threads<max_threads>(plain_block);
    supply::initialize(block, s);
    const bool clustered = supply::shares_loads && p.cluster > 1;
    if (clustered)
      arch::cluster_sync();
    else
      block.sync();
    if (block.warp() < 4) {
      if constexpr (Policy::moves_registers) arch::release_registers<Policy::loader_registers>();
      if (block.warp() == 0 && arch::elect_one()) supply::load(block, p, s);
      if (block.warp() % 2 == 1) supply::check(block, s, block.warp() / 2);
      if (block.warp() == 2 && arch::elect_one()) supply::plan(block, p, s);
    } else {
      if constexpr (Policy::moves_registers) arch::claim_registers<Policy::registers>();
      attend(block, p, s);
    }
    if (clustered) arch::cluster_sync();  // the other may still load here, or arrive
#else
    static_cast<void>(plain_block), static_cast<void>(p), static_cast<void>(s);
    __trap();  // never launched: the host asks for code_for_current_device() first
#endif
  }

 private:
  using score_map = warpgroup_map<columns>;
  using output_map = warpgroup_map<head_size_v>;
  using steps_of_scores = score_steps<Mask, Score>;
  static constexpr bool in_pieces = supply::in_pieces, two_pieces = Policy::pieces == 2;
  using softmax_state = online_softmax<score_map, in_pieces && !two_pieces ? -piece_exponents::of_weights : 0>;
  using output_registers = register_tile<float, output_map>;
  using element = typename supply::element;

  // So that the products of one run beside the softmax of the others.
  struct turns {
    int group;
    GIWA_DEVICE void take() const {
      if constexpr (Policy::takes_turns) arch::barrier_sync(1 + group, 256);
    }
    GIWA_DEVICE void give() const {
      if constexpr (Policy::takes_turns) arch::barrier_arrive(group + 1 == groups ? 1 : 2 + group, 256);
    }
  };

  template <class Block>
  GIWA_DEVICE static void attend(const Block& block, const params& p, shared_storage& s) {
    // By votes, which tell the compiler that a warp's threads agree on it.
    const int warpgroup = block.warp() / 4 - 1;
    const int group = (block.any((warpgroup & 1) != 0) ? 1 : 0) + (block.any((warpgroup & 2) != 0) ? 2 : 0);
    const int thread = block.rank() % 128;
    steps_of_scores steps{p.call.mask, p.call.score, p.call.scale};
    const turns turn{group};
    auto keys = s.keys.consumer(block);
    auto values = s.values.consumer(block);
    uint32 checks = 0;  // bit i: the phase of checked[i]
    const bool needs_scale = !steps_of_scores::modified && steps.scale_first();
    if (group == groups - 1) turn.give();
    for (uint32 round = 0;; ++round) {
      s.queries_full[group].wait(round & 1);
      const typename supply::item& it = s.items[round % supply::ring];
      if (it.end) break;
      const attention_head<T, O>& head = it.head.get();
      const int first_query = it.first_query + 64 * group;
      softmax_state softmax;
      output_registers o;
      softmax.reset();
      o.fill(0);
      piece_exponents exponents;  // of what scores and o are counted in
      // Whether NaN or infinity was taken out of the values of this warpgroup's tiles. Its threads agree: the tiles' notes say so.
      bool found = false;
      if (it.has_keys()) {
        register_tile<float, score_map> scores;
        uint32 weights[Policy::pieces][score_map::registers / 2];
        register_tile<float, warpgroup_map<Policy::slice>> sums;  // of a tile in pieces
        float factor[score_map::rows];
        typename supply::key_note note;
        typename supply::share mine;
        int key_slot = 0, value_slot = 0;
        const auto rescale = [&] { o.transform_rows(factor, [](float x, float f) { return x * f; }); };
        const auto next_keys = [&] {
          key_slot = keys.next();
          keys.wait();
          note = s.key_notes[key_slot];
          mine = s.shares[key_slot][group];
        };
        const auto next_values = [&](bool wanted) {
          value_slot = values.next();
          values.wait();
          if (s.value_notes[value_slot].doubtful) {
            if (wanted) {
              s.checked[value_slot].wait(checks >> value_slot & 1);
              found = found || s.value_notes[value_slot].found != 0;
            }
            checks ^= 1u << value_slot;
          }
        };
        const auto multiply_keys = [&] {
          arch::wgmma_fence();
          // key_slot >> 2 is 0. Without it the compiler prepares the descriptors of q for all of the loop, and spills them.
          const auto& q = s.group[group + (key_slot >> 2)].q;
          const auto k = transposed(s.keys.stage(key_slot));
          if constexpr (two_pieces) {  // small products first, as the tensor cores cut what they add
            constexpr int low = round_up(head_size, 64);
            multiply<head_size>(scores, q, 0, k, false, low, 0);
            multiply<head_size>(scores, q, 0, k, true, 0, low);
          }
          multiply<head_size>(scores, q, 0, k, two_pieces);
          arch::wgmma_commit();
        };
        const auto multiply_values = [&](int slice = 0) {
          auto& v = s.values.stage(value_slot);
          if constexpr (two_pieces) {
            constexpr int low = round_up(head_size_v, 64);
            arch::keep(sums.value);
            arch::wgmma_fence();
            multiply(sums, weights[1], v, false, slice * Policy::slice);
            multiply(sums, weights[0], v, true, low + slice * Policy::slice);
            multiply(sums, weights[0], v, true, slice * Policy::slice);
          } else {
            arch::keep(o.value);
            arch::wgmma_fence();
            multiply(o, weights[0], v, true);
          }
          arch::wgmma_commit();
        };
        // The tensor cores cut what they add to a sum, always towards 0: in a sum over all keys that would add up.
        const auto add_sums = [&](int slice = 0) {
          if constexpr (two_pieces) {
            arch::keep(sums.value);
            GIWA_UNROLL
            for (int i = 0; i < sums.registers; ++i) o.value[slice * sums.registers + i] += sums.value[i];
          }
        };
        const auto leave_keys = [&] {
          arch::keep(scores.value);
          if (mine.last) leave_queries(block, s.queries_empty[group]);
          keys.release(key_slot);
        };
        const auto leave_values = [&] {
          if constexpr (!two_pieces) arch::keep(o.value);
          values.release(value_slot);
        };
        const auto make_weights = [&] {
          if constexpr (two_pieces)
            to_operands(scores, power_of_two(-piece_exponents::of_weights), weights[0], weights[1]);
          else
            to_operand<element>(scores, weights[0]);
        };
        const auto to_weights = [&](auto whole, tile_keep keep) {
          const typename steps_of_scores::bounds bounds(head);
          if constexpr (in_pieces)
            exponents.enter_scores(it.exponents[group] + note.key_exponent, p.call.scale, steps, softmax);
          if (decltype(whole)::value || (steps_of_scores::modified && keep == tile_keep::all))
            steps.apply_to_whole(thread, scores, bounds, first_query, note.first_key);
          else
            steps.apply(thread, scores, bounds, keep == tile_keep::all ? keep : tile_keep::some, first_query,
                        note.first_key);
          softmax.update(block, scores, steps.scale_log2(), factor);
          if constexpr (in_pieces) exponents.enter_values(note.value_exponent, factor);
        };
        const auto multiply_by_slices = [&] {
          GIWA_UNROLL
          for (int slice = 0; slice < head_size_v / Policy::slice; ++slice) {
            multiply_values(slice);
            arch::wgmma_wait<0>();
            add_sums(slice);
          }
        };
        // A straight line from the first product to the last wait: at a branch between them ptxas waits for all products.
        const auto multiply_beside_softmax = [&](auto whole) {
          multiply_keys();
          rescale();
          multiply_values();
          turn.give();
          arch::wgmma_wait<1>();
          leave_keys();
          to_weights(whole, tile_keep::some);
          arch::wgmma_wait_after<0>(softmax.l[0] + softmax.l[1]);
          leave_values();
          make_weights();
        };

        const auto next_turn = [&] {
          next_keys();
          turn.take();
        };
        // A tile that others see some of: it is waited for, as its slot's barriers count phases.
        const auto pass_tile = [&] {
          keys.release(key_slot);
          next_values(false);
          values.release(value_slot);
        };

        next_keys();
        while (mine.keep == tile_keep::none && !mine.last) {
          pass_tile();
          next_turn();
          turn.give();
        }
        if (mine.keep != tile_keep::none) {
          multiply_keys();
          arch::wgmma_wait<0>();
          leave_keys();
          to_weights(stdlib::false_type{}, mine.keep);
          make_weights();
          while (!mine.last) {
            next_turn();
            if constexpr (Policy::slices_output) {
              multiply_keys();
              next_values(true);
              multiply_by_slices();
              leave_values();
              leave_keys();
              to_weights(stdlib::false_type{}, mine.keep);
              make_weights();
              rescale();
            } else if constexpr (!Policy::overlaps) {
              multiply_keys();
              next_values(true);
              multiply_values();
              turn.give();
              arch::wgmma_wait<1>();
              leave_keys();
              to_weights(stdlib::false_type{}, mine.keep);
              arch::wgmma_wait<0>();
              add_sums();
              leave_values();
              make_weights();
              rescale();
            } else {
              next_values(true);
              if (needs_scale || mine.keep != tile_keep::all)
                multiply_beside_softmax(stdlib::false_type{});
              else
                multiply_beside_softmax(stdlib::true_type{});
            }
          }
          if constexpr (Policy::overlaps) rescale();
          next_values(true);
          multiply_by_slices();
          leave_values();
        } else {
          leave_queries(block, s.queries_empty[group]);
          pass_tile();
        }
        while (!note.last) {
          next_turn();
          turn.give();
          pass_tile();
        }
      } else {
        leave_queries(block, s.queries_empty[group]);
      }
      finish(block, p, s, it, steps, exponents, thread, group, softmax, o, found);
      block.sync_warp();
      if (block.lane() == 0) s.item_empty[round % supply::ring].arrive();
    }
    if (supply::stores_tiles && thread == 0) arch::wait_stores<0>();
  }

  template <class Block>
  GIWA_DEVICE static void leave_queries(const Block& block, arch::mbarrier& empty) {
    block.sync_warp();
    if (block.lane() == 0) empty.arrive();
  }

  /// The item's rows of this warpgroup, to global memory. `exponents`: what o is counted in.
  template <class Block>
  GIWA_DEVICE static void finish(const Block& block, const params& p, shared_storage& s,
                                 const typename supply::item& it, const steps_of_scores& steps,
                                 const piece_exponents& exponents, int thread, int group, softmax_state& softmax,
                                 output_registers& o, bool found) {
    const attention_head<T, O>& head = it.head.get();
    const int first_query = it.first_query + 64 * group;
    float normalizer[score_map::rows];
    finish_rows(block, thread, softmax, steps.scale_log2(), p.call, head, first_query, true, normalizer);
    if constexpr (in_pieces)
      if (it.has_keys())
        exponents.leave(thread, o, p.pieces.v, head.batch, head.kv_head, static_cast<int>(head.v.extent(1)),
                        two_pieces);
    o.transform_rows(normalizer, [](float x, float f) { return x * f + 0.f; });  // no -0, which others' NaN might turn
    if constexpr (supply::stores_tiles) {
      // A tile may reach beyond the tensor, but not into the next sequence.
      const bool whole = !p.call.views.is_packed() || first_query + 64 <= head.queries();
      if (p.store_by_map && !found && first_query < head.queries() && whole) {
        const int barrier = 1 + groups + group;
        if (thread == 0) arch::wait_stores_read<0>();  // that of the item before
        arch::barrier_sync(barrier, 128);
        giwa::store(thread, o, 0, s.group[group].o);
        arch::fence_async_proxy();
        arch::barrier_sync(barrier, 128);
        if (thread == 0) {
          giwa::store(s.group[group].o, p.o,
                      giwa::index<4>{head.sequence, head.head, head.first_query_row + first_query, 0});
          arch::commit_stores();
        }
        return;
      }
    }
    store_rows(block, thread, o, head.o, {first_query, 0});
    if (found) {
      block.sync_warp();
      const int warp_row = thread / 32 * 16;
      add_non_finite(one_warp<Block>(block), steps, head, it.keys.get(), first_query + warp_row, 16, 0, head_size_v,
                     [&](int n) { return supply::doubtful(p, it.keys.get(), n); });
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
