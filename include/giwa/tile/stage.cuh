// SPDX-License-Identifier: MIT
// The stage: a ring of slots in shared memory that is filled ahead of its use, whatever copies the data.
#ifndef GIWA_TILE_STAGE_CUH
#define GIWA_TILE_STAGE_CUH

#include <giwa/base/assert.hpp>
#include <giwa/tile/copy.cuh>

namespace giwa::inline GIWA_ABI {

// What fills a stage, its third argument.
//   plain_copies      ordinary loads and stores; every GPU, and the host executor
//   async_copies      cp.async, from global to shared memory past the registers; sm_80, elsewhere like plain_copies
//   tensor_copies<n>  TMA, for each block of a cluster of n blocks; sm_90, in stage_sm90.cuh
struct plain_copies {};
struct async_copies {};
template <int ClusterBlocks = 1>
struct tensor_copies {};

/// `Depth` slots that a producer fills and a consumer uses in the same order, the producer up to Depth - 1 slots ahead.
/// A member of an op's shared_storage, uninitialised; a Slot is a shared_tile or a struct of them.
///
///   stage.initialize(block, consumer_warps);              // once, by all; then block.sync()
///   auto in = stage.producer(block);
///   auto out = stage.consumer(block);
///   in.put([&](Slot& slot, auto& copies) { copies.load(view, {row, column}, slot.a); … });
///   const Slot& slot = out.wait();                        // the oldest slot that was put and not yet released
///   … use it …
///   out.release();
///
/// This one is for copies by ordinary threads: all threads of the block are its producer and its consumer. Between one
/// wait() and the next a slot of an earlier wait() may be overwritten: put() comes after wait(), as stream() has it.
template <class Slot, int Depth, class Copies = async_copies>
class stage {
  static_assert(Depth >= 2, "giwa::stage: one slot is used while another is filled: Depth is at least 2.");

  // What a producer lends to the function that fills a slot.
  template <class Block>
  struct copier {
    Block block;
    template <class View, class Tile>
    GIWA_HOST_DEVICE void load(const View& from, const giwa::index<2>& origin, Tile& to,
                               typename Tile::value_type fill = {}) const {
      if constexpr (stdlib::is_same_v<Copies, async_copies>)
        load_async(block, from, origin, to, fill);
      else
        giwa::load(block, from, origin, to, fill);
    }
  };

  template <class Block>
  class producer_role {
   public:
    GIWA_HOST_DEVICE producer_role(Block block, stage& s) : block_(block), stage_(s) {}

    /// Fills the next slot with fill(slot, copies). Does not wait for the data.
    template <class Fill>
    GIWA_HOST_DEVICE void put(const Fill& fill) {
      fill(stage_.slot_[next_], copier<Block>{block_});
      skip();
    }
    /// Puts nothing, in place of a put() behind the last one, so that wait() may count on it.
    GIWA_HOST_DEVICE void skip() {
      if constexpr (stdlib::is_same_v<Copies, async_copies>) copy_commit();
      next_ = next_ + 1 == Depth ? 0 : next_ + 1;
    }

   private:
    Block block_;
    stage& stage_;
    int next_ = 0;
  };

  template <class Block>
  class consumer_role {
   public:
    GIWA_HOST_DEVICE consumer_role(Block block, stage& s) : block_(block), stage_(s) {}

    /// Waits for the oldest slot. `Later` of the puts behind it, into any stage of the block, may still be under way.
    template <int Later = Depth - 2>
    GIWA_HOST_DEVICE const Slot& wait() {
      if constexpr (stdlib::is_same_v<Copies, async_copies>) copy_wait<Later>();
      block_.sync();  // what the others have put is here as well, and nobody still reads the slot that is put next
      return stage_.slot_[next_];
    }
    GIWA_HOST_DEVICE void release() { next_ = next_ + 1 == Depth ? 0 : next_ + 1; }

   private:
    Block block_;
    stage& stage_;
    int next_ = 0;
  };

 public:
  static constexpr int depth = Depth;  ///< how many slots

  /// These have nothing to initialise, and consumers are all warps: the call is for kernels that are written for any copies.
  template <class Block>
  GIWA_HOST_DEVICE void initialize(Block, int /*consumer_warps*/) {}
  /// The role of this thread: who fills slots, and who uses them.
  ///@{
  template <class Block>
  GIWA_HOST_DEVICE producer_role<Block> producer(Block block) {
    return {block, *this};
  }
  template <class Block>
  GIWA_HOST_DEVICE consumer_role<Block> consumer(Block block) {
    return {block, *this};
  }
  ///@}

  /// The whole loop: for each step in [0, steps) fill(slot, copies, step), Depth - 1 steps ahead, then use(slot, step). Ends
  /// without a barrier: sync() before the block puts anything into this stage again.
  template <class Block, class Fill, class Use>
  GIWA_HOST_DEVICE void stream(Block block, int steps, const Fill& fill, const Use& use) {
    auto in = producer(block);
    auto out = consumer(block);
    const auto put = [&](int step) {
      if (step < steps)
        in.put([&](Slot& slot, const auto& copies) { fill(slot, copies, step); });
      else
        in.skip();
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
};

}  // namespace giwa::inline GIWA_ABI

#endif
