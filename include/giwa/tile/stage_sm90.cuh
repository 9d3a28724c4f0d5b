// SPDX-License-Identifier: MIT
// The stage that TMA fills: slots guarded by mbarriers, so that one warp produces while warpgroups consume.
#ifndef GIWA_TILE_STAGE_SM90_CUH
#define GIWA_TILE_STAGE_SM90_CUH

#include <giwa/arch/cluster.cuh>
#include <giwa/tile/copy_sm90.cuh>
#include <giwa/tile/stage.cuh>

namespace giwa::inline GIWA_ABI {

/// See stage. Its producer is one thread, its consumers are whole warps. In a cluster each block's producer fills its own
/// slots, or those of all blocks at once (copies.multicast); a slot is filled again when all blocks have released it. The
/// launch has clusters of ClusterBlocks, or none: then each block is alone.
template <class Slot, int Depth, int ClusterBlocks>
class stage<Slot, Depth, tensor_copies<ClusterBlocks>> {
  static_assert(sizeof(Slot) < 1 << 20, "giwa::stage: an mbarrier counts fewer than 2^20 bytes: use smaller tiles.");

  GIWA_DEVICE static int blocks() { return ClusterBlocks == 1 ? 1 : arch::cluster_size(); }

  // A place in the ring; the phase is that of the slot's `full`. Two rounds of the ring in one number.
  struct cursor {
    int at = 0;
    GIWA_DEVICE int slot() const { return at < Depth ? at : at - Depth; }
    GIWA_DEVICE uint32 phase() const { return at < Depth ? 0 : 1; }
    GIWA_DEVICE void advance() { at = at + 1 == 2 * Depth ? 0 : at + 1; }
  };

  // What the producer lends to the function that fills a slot.
  struct copier {
    arch::mbarrier& full;
    arch::l2_policy policy;
    int& bytes;  // what the consumers wait for
    int number;  // of the slot
    template <class Tile, int Rank>
    GIWA_DEVICE void load(const tensor_map& from, const giwa::index<Rank>& origin, Tile& to) const {
      bytes += Tile::bytes;
      giwa::load(from, origin, to, full, policy);
    }
    /// This block's share of a tile that all blocks of the cluster get.
    template <class Tile, int Rank>
    GIWA_DEVICE void multicast(const tensor_map& from, const giwa::index<Rank>& origin, Tile& to, int block) const {
      if (blocks() == 1) return load(from, origin, to);
      bytes += Tile::bytes;
      giwa::load_multicast<ClusterBlocks>(from, origin, to, full, block, policy);
    }
  };

  class producer_role {
   public:
    GIWA_DEVICE producer_role(stage& s, arch::l2_policy policy) : stage_(s), policy_(policy) {}

    /// Waits until the next slot is free, and fills it with fill(slot, copies). What fill writes itself, into the slot or
    /// beside it, the consumers find as well.
    template <class Fill>
    GIWA_DEVICE void put(const Fill& fill) {
      stage_.empty_[at_.slot()].wait(at_.phase() ^ 1);
      int bytes = 0;
      fill(stage_.slot_[at_.slot()], copier{stage_.full_[at_.slot()], policy_, bytes, at_.slot()});
      // The phase cannot end before this arrival; bytes that landed earlier are subtracted from what it announces.
      stage_.full_[at_.slot()].arrive_and_expect(bytes);
      at_.advance();
    }

   private:
    stage& stage_;
    arch::l2_policy policy_;
    cursor at_{};
  };

  template <class Block>
  class consumer_role {
   public:
    GIWA_DEVICE consumer_role(Block block, stage& s) : block_(block), stage_(s) {}

    /// Waits for the oldest slot that is neither released nor waited for.
    GIWA_DEVICE Slot& wait() {
      const cursor at = waiting_;
      stage_.full_[at.slot()].wait(at.phase());
      waiting_.advance();
      return stage_.slot_[at.slot()];
    }
    /// The number of the slot that wait() will give next.
    GIWA_DEVICE int next() const { return waiting_.slot(); }
    /// Gives the oldest slot back that was waited for. Called by whole warps, after the last use.
    GIWA_DEVICE void release() {
      release(released_);
      released_ = released_ + 1 == Depth ? 0 : released_ + 1;
    }
    /// The same for who knows the slot's number, and need not count; no mixing.
    GIWA_DEVICE void release(int slot) {
      block_.sync_warp();  // the other lanes have read it too
      if constexpr (ClusterBlocks == 1) {
        if (block_.lane() == 0) stage_.empty_[slot].arrive();
      } else {
        if (block_.lane() < blocks_) stage_.empty_[slot].arrive_in(block_.lane());
      }
    }

   private:
    Block block_;
    stage& stage_;
    int blocks_ = blocks();
    cursor waiting_{};
    int released_ = 0;
  };

 public:
  static constexpr int depth = Depth;  ///< how many slots

  /// By all threads, before any role is made; `consumer_warps` is how many warps of each block release every slot. Then a
  /// barrier: sync(), or cluster_sync() in a cluster.
  template <class Block>
  GIWA_DEVICE void initialize(Block block, int consumer_warps) {
    if (block.rank() != 0) return;
    for (int i = 0; i < Depth; ++i) {
      full_[i].initialize(1);
      empty_[i].initialize(consumer_warps * blocks());
    }
    arch::mbarriers_initialized();
  }

  /// Slot number `i`, for a consumer that has waited for it.
  GIWA_DEVICE Slot& slot(int i) { return slot_[i]; }

  /// The role of this thread. It begins with the ring's first slot: each thread makes one, once in a kernel.
  ///@{
  template <class Block>
  GIWA_DEVICE producer_role producer(Block, arch::l2_policy policy = arch::l2_policy::normal) {
    return {*this, policy};
  }
  template <class Block>
  GIWA_DEVICE consumer_role<Block> consumer(Block block) {
    return {block, *this};
  }
  ///@}

  /// The loop of a block without roles, as in the other stages, but once in a kernel: the thread of rank 0 produces besides.
  template <class Block, class Fill, class Use>
  GIWA_DEVICE void stream(Block block, int steps, const Fill& fill, const Use& use) {
    static_assert(Depth >= 2, "giwa::stage: one slot is used while another is filled: Depth is at least 2.");
    auto in = producer(block);
    auto out = consumer(block);
    const auto put = [&](int step) {
      if (step < steps && block.rank() == 0)
        in.put([&](Slot& slot, const copier& copies) { fill(slot, copies, step); });
      block.sync_warp();  // what the warp does next may ask for all of its lanes
    };
    for (int step = 0; step < Depth - 1; ++step) put(step);
    for (int step = 0; step < steps; ++step) {
      const Slot& slot = out.wait();
      put(step + Depth - 1);
      use(slot, step);
      out.release();
    }
  }

 private:
  Slot slot_[Depth];
  arch::mbarrier full_[Depth], empty_[Depth];
};

}  // namespace giwa::inline GIWA_ABI

#endif
