// SPDX-License-Identifier: MIT
// A bias in the Hopper kernel of all gradients: how its tiles come, and where its gradient goes.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_BIAS_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_BIAS_SM90_CUH

#include <giwa/arch/acquire_release.cuh>
#include <giwa/arch/elect.cuh>
#include <giwa/arch/mbarrier.cuh>
#include <giwa/attention/kernels/sm90/backward_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// TMA loads a tile of the bias, (queries, keys) of each consumer, into the memory for dS of that tile. A thread reads it by ldmatrix
/// in the order of its scores, and writes dS to the same place. So a gradient in the type of q needs no other memory: TMA stores dS.
/// One in fp32 is stored or added from the registers of the consumers.
template <class Types>
struct sm90_bias {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using tile = typename Types::ds_tile;
  using place = typename Types::bias_place;
  static_assert(Types::columns % bias_order::queries == 0);  // a tile has whole turns

  GIWA_DEVICE static const auto& of(const params& p) { return Types::bias_type::of(p.call.call.score); }

  /// Starts the load of a tile. One thread, when the memory is free.
  GIWA_DEVICE static void load(const params& p, shared_storage& s, const place& at, int stage) {
    arch::mbarrier& full = s.bias.full[stage];
    const bool is_shared = of(p).values.values.extent(0) == 1;
    full.arrive_and_expect(Types::consumers * tile::bytes);
    for (int c = 0; c < Types::consumers; ++c)
      giwa::load(p.bias.values, origin(of(p).values.values, at, c), s.dq.ds[stage][c], full,
                 is_shared ? arch::l2_policy::normal : arch::l2_policy::evict_first);
  }
  /// Brings a tile into the L2 cache. One thread.
  GIWA_DEVICE static void prefetch(const params& p, const place& at) {
    for (int c = 0; c < Types::consumers; ++c)
      arch::prefetch_box(p.bias.values, box_coordinates<4>(origin(of(p).values.values, at, c), 0, element{}).at);
  }
  /// Starts to store dS of a tile as the gradient, without what is past the end. One thread.
  GIWA_DEVICE static void store(const params& p, const place& at, const tile (&ds)[Types::consumers]) {
    for (int c = 0; c < Types::consumers; ++c)
      arch::store_box(p.bias.gradient, box_coordinates<4>(origin(of(p).gradient_, at, c), 0, element{}).at,
                      ds[c].data());
    arch::commit_stores();
  }
  /// The element of a gradient in fp32 that belongs to a score.
  template <class Bias>
  GIWA_DEVICE static float* element_of(const Bias& bias, int batch, int head, int query, int key) {
    const gradient_sharing all = bias.shared();
    return bias.gradient_.data() +
           ((all.sequences ? 0 : batch * bias.gradient_.stride(0)) + (all.heads ? 0 : head * bias.gradient_.stride(1)) +
            query * bias.gradient_.stride(2) + key);
  }
  /// Four values of a thread become those of four keys that follow each other and one query: a thread has them of two queries and of two
  /// keys at a distance of eight, and exchanges them with three lanes. Of which keys and query: fours_of().
  template <class Block>
  GIWA_DEVICE static void exchange(const Block& block, int thread, float (&values)[4]) {
    const auto swap = [&](float& low, float& high, int lanes) {
      const bool odd = (thread & lanes) != 0;
      const float got = block.shuffle_xor(odd ? low : high, lanes);
      low = odd ? got : low, high = odd ? high : got;
    };
    swap(values[0], values[1], 4), swap(values[2], values[3], 4);
    swap(values[0], values[2], 8), swap(values[1], values[3], 8);
  }
  struct keys_and_query {
    int key, query;
  };
  /// The first of a thread's four keys of 64, and its query of eight, after exchange().
  GIWA_DEVICE static keys_and_query fours_of(int thread) {
    const int other = thread / 4 % 4;
    return {thread / 32 * 16 + other / 2 * 8 + thread / 16 % 2 * 4, thread % 4 * 2 + other % 2};
  }
  /// Writes the gradients of four keys, or adds them. Not one by one: see docs/notes/backward_hopper.md.
  GIWA_DEVICE static void give(float* to, const float (&gradients)[4], bool stores) {
    if (stores)
      *reinterpret_cast<float4*>(to) = make_float4(gradients[0], gradients[1], gradients[2], gradients[3]);
    else
      arch::add_relaxed(to, gradients);
  }
  /// How many sequences or heads come before this one in the order in which they add to the elements that they share.
  GIWA_DEVICE static int before(const params& p, int batch, int head) {
    const gradient_sharing all = of(p).shared();
    if (!all.sequences) return head;
    return all.heads ? batch * static_cast<int>(p.call.views.in.q.extent(2)) + head : batch;
  }
  /// Whether what a sequence and head give is stored: nothing is there that is part of the sum.
  template <class Note>
  GIWA_DEVICE static bool stores(const params& p, const Note& note) {
    const auto& of_tile = note.limits.get();
    return !p.call.order.sums || (p.call.order.in_turn && before(p, of_tile.batch, of_tile.head) == 0);
  }
  /// Waits until it is the turn of a tile's sequence and head to add to 16 keys of a warp and 64 queries, from the tile's query `first`
  /// on, and returns where that is counted; -1 without an order. The one before has the same keys, so its work tile was claimed before.
  template <class Block, class Note>
  GIWA_DEVICE static int await_turn(const Block& block, const params& p, const Note& note, int first, int key) {
    if (!p.call.order.in_turn) return -1;
    const int batch = note.limits.get().batch, head = note.limits.get().head, query = note.begin + first;
    const gradient_sharing all = of(p).shared();
    const bias_order& order = p.call.order;
    const int owner = all.sequences ? (all.heads ? 0 : head) : batch;
    const int place =
        (owner * order.groups_of_keys + key / bias_order::keys) * order.groups_of_queries + query / bias_order::queries;
    if (block.lane() == 0) {
#if defined(GIWA_RANDOM_DELAYS)
      arch::sleep_at_random();
#endif
      const int others = before(p, batch, head);
      while (arch::load_acquire(order.added + place) != others) {
      }
    }
    block.sync_warp();
    return place;
  }
  /// After what a warp has added or stored.
  template <class Block>
  GIWA_DEVICE static void pass_turn(const Block& block, const params& p, int place) {
    if (place < 0) return;
    block.sync_warp();
    if (block.lane() == 0) arch::add_acquire_release(p.call.order.added + place, 1);
  }

 private:
  using element = typename Types::element;

  template <class View>
  GIWA_DEVICE static giwa::index<4> origin(const View& v, const place& at, int consumer) {
    return {v.extent(0) == 1 ? 0 : at.sequence, v.extent(1) == 1 ? 0 : at.head, at.query, at.key + 64 * consumer};
  }
};

/// Loads the bias of tiles, and stores the gradient of the tiles before from the same memory. The loader does both: the writers of dq
/// are what fixed order waits for. A whole warp.
template <class Types>
class sm90_bias_loader {
 public:
  using of = sm90_bias<Types>;
  using params = typename of::params;
  using shared_storage = typename of::shared_storage;

  /// Before the loads of a tile: brings its bias into the L2 cache, and stores the gradient that is in its memory.
  template <class Block>
  GIWA_DEVICE void prepare(const Block& block, const params& p, shared_storage& s, const typename of::place& of_tile) {
    next = of_tile;
    if (arch::elect_one()) of::prefetch(p, next);
    block.sync_warp();
    store(block, p, s);
  }
  /// After the loads of a tile, because its memory is free when the consumers have its q.
  template <class Block>
  GIWA_DEVICE void load(const Block& block, const params& p, shared_storage& s) {
    const int stage = static_cast<int>(turn % stages);
    if (Types::stores_bias && block.lane() == 0) {
      arch::wait_stores_read<0>();
      s.bias.of[stage] = next;
    }
    s.ds_empty[stage].wait(turn / stages % 2 ^ 1);
    block.sync_warp();
    if (arch::elect_one()) of::load(p, s, next, stage);
    block.sync_warp();
    ++turn;
  }
  /// Stores what is left.
  template <class Block>
  GIWA_DEVICE void finish(const Block& block, const params& p, shared_storage& s) {
    for (uint32 i = 0; i < stages; ++i, ++turn) store(block, p, s);
    if (Types::stores_bias && block.lane() == 0) arch::wait_stores<0>();
  }

 private:
  static constexpr uint32 stages = Types::stages_ds;

  template <class Block>
  GIWA_DEVICE void store(const Block& block, const params& p, shared_storage& s) const {
    if constexpr (Types::stores_bias) {
      if (turn < stages) return;
      const int stage = static_cast<int>(turn % stages);
      s.ds_full[stage].wait(turn / stages % 2 ^ 1);
      if (block.lane() == 0 && s.bias.of[stage].is_given) of::store(p, s.bias.of[stage], s.dq.ds[stage]);
      block.sync_warp();
    }
  }

  typename of::place next;
  uint32 turn = 0;  // tiles so far
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
