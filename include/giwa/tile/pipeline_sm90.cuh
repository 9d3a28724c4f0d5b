// SPDX-License-Identifier: MIT
// The pipeline that TMA fills: mbarriers guard its stages, so that one warp produces while warpgroups consume.
#ifndef GIWA_TILE_PIPELINE_SM90_CUH
#define GIWA_TILE_PIPELINE_SM90_CUH

#include <giwa/arch/cluster.cuh>
#include <giwa/tile/copy_sm90.cuh>
#include <giwa/tile/pipeline.cuh>

namespace giwa::inline GIWA_ABI {

namespace detail {
/// Arrives at a barrier once for a warp, when all of its lanes have done what comes before.
template <class Block>
GIWA_DEVICE void arrive_as_warp(const Block& block, arch::mbarrier& barrier) {
  block.sync_warp();
  if (block.lane() == 0) barrier.arrive();
}
}  // namespace detail

/// A pipeline whose producer is one thread and whose consumers are whole warps. In a cluster the producer of each block
/// fills the stages of that block, or of all blocks at once (copies.multicast); a stage is filled again after all blocks
/// have released it. The launch has clusters of ClusterBlocks blocks or no clusters, in which case each block is alone.
template <class Stage, int Stages, int ClusterBlocks>
class pipeline<Stage, Stages, tensor_copies<ClusterBlocks>> {
  static_assert(sizeof(Stage) < 1 << 20,
                "giwa::pipeline: an mbarrier counts fewer than 2^20 bytes: use smaller tiles.");

  GIWA_DEVICE static int blocks() { return ClusterBlocks == 1 ? 1 : arch::cluster_size(); }

  // A position in the ring: a stage, and the phase of its `full` barrier. Counts two rounds of the ring, or without end
  // if the number of stages is a power of two: 4 instead of 11 instructions for each wait.
  struct cursor {
    static constexpr bool is_endless = (Stages & (Stages - 1)) == 0;
    uint32 at = 0;
    GIWA_DEVICE int stage() const { return static_cast<int>(is_endless || at < Stages ? at % Stages : at - Stages); }
    GIWA_DEVICE uint32 phase() const { return is_endless ? at / Stages & 1 : at < Stages ? 0 : 1; }
    GIWA_DEVICE void advance() { at = !is_endless && at + 1 == 2 * Stages ? 0 : at + 1; }
  };

  // What the producer passes to the function that fills a stage.
  struct copier {
    arch::mbarrier& full;
    arch::l2_policy policy;
    int& bytes;  // what the consumers wait for
    int number;  // of the stage
    /// Loads the box of `from` at `origin` into this block's tile.
    template <class Tile, int Rank>
    GIWA_DEVICE void load(const tensor_map& from, const giwa::index<Rank>& origin, Tile& to) const {
      bytes += Tile::bytes;
      giwa::load(from, origin, to, full, policy);
    }
    template <class From, class Tile, int Rank>
      requires(!stdlib::is_same_v<From, tensor_map>)
    GIWA_DEVICE void load(const From&, const giwa::index<Rank>&, Tile&) const {
      static_assert(detail::always_false<From>,
                    "giwa::pipeline: with tensor_copies<> load() takes the tensor map of make_tile_map(), not a view.");
    }
    /// Loads this block's share of a tile that all blocks of the cluster receive.
    template <class Tile, int Rank>
    GIWA_DEVICE void multicast(const tensor_map& from, const giwa::index<Rank>& origin, Tile& to, int block) const {
      if (blocks() == 1) return load(from, origin, to);
      bytes += Tile::bytes;
      giwa::load_multicast<ClusterBlocks>(from, origin, to, full, block, policy);
    }
  };

  class producer_role {
   public:
    GIWA_DEVICE producer_role(pipeline& p, arch::l2_policy policy) : pipeline_(p), policy_(policy) {}

    /// Waits until the next stage is free and fills it with fill(stage, copies). Consumers that wait for the stage also see
    /// what `fill` itself writes to shared memory.
    template <class Fill>
    GIWA_DEVICE void put(const Fill& fill) {
      pipeline_.empty_[at_.stage()].wait(at_.phase() ^ 1);
      int bytes = 0;
      fill(pipeline_.stage_[at_.stage()], copier{pipeline_.full_[at_.stage()], policy_, bytes, at_.stage()});
      // The phase cannot end before this arrival; bytes that landed earlier are subtracted from the expected bytes.
      pipeline_.full_[at_.stage()].arrive_and_expect(bytes);
      at_.advance();
    }

   private:
    pipeline& pipeline_;
    arch::l2_policy policy_;
    cursor at_{};
  };

  class filler_role {
   public:
    GIWA_DEVICE explicit filler_role(pipeline& p) : pipeline_(p) {}

    /// Waits until the next stage is free and calls fill(stage, full), which starts copies that end at the barrier `full`.
    template <class Fill>
    GIWA_DEVICE void put(const Fill& fill) {
      pipeline_.empty_[at_.stage()].wait(at_.phase() ^ 1);
      fill(pipeline_.stage_[at_.stage()], pipeline_.full_[at_.stage()]);
      at_.advance();
    }

   private:
    pipeline& pipeline_;
    cursor at_{};
  };

  template <class Block>
  class consumer_role {
   public:
    GIWA_DEVICE consumer_role(Block block, pipeline& p) : block_(block), pipeline_(p) {}

    /// Waits for the next stage in order and returns it. A consumer may wait for several stages before it releases one.
    GIWA_DEVICE Stage& wait() {
      const cursor at = waiting_;
      pipeline_.full_[at.stage()].wait(at.phase());
      waiting_.advance();
      return pipeline_.stage_[at.stage()];
    }
    /// Returns the number of the stage that the next wait() returns.
    GIWA_DEVICE int next() const { return waiting_.stage(); }
    /// Releases the oldest stage that was waited for. Called by whole warps, after the last use.
    GIWA_DEVICE void release() {
      release(released_);
      released_ = released_ + 1 == Stages ? 0 : released_ + 1;
    }
    /// Releases stage number `stage`, for a consumer that knows the number. Do not mix with release().
    GIWA_DEVICE void release(int stage) {
      if constexpr (ClusterBlocks == 1) {
        detail::arrive_as_warp(block_, pipeline_.empty_[stage]);
      } else {
        block_.sync_warp();
        if (block_.lane() < blocks_) pipeline_.empty_[stage].arrive_in(block_.lane());
      }
    }

   private:
    Block block_;
    pipeline& pipeline_;
    int blocks_ = blocks();
    cursor waiting_{};
    int released_ = 0;
  };

 public:
  static constexpr int stages = Stages;  ///< The number of stages.

  /// Initialises the barriers. Called by all threads before any role is made; `consumer_warps` is the number of warps of
  /// each block that release every stage. If other threads of the block fill a part of each stage, `fillers` is how many of them
  /// arrive at its `full` barrier. A barrier must follow: sync(), or cluster_sync() in a cluster.
  template <class Block>
  GIWA_DEVICE void initialize(Block block, int consumer_warps, int fillers = 0) {
    if (block.rank() != 0) return;
    for (int i = 0; i < Stages; ++i) {
      full_[i].initialize(1 + fillers);
      empty_[i].initialize(consumer_warps * blocks());
    }
    arch::mbarriers_initialized();
  }

  /// Returns stage number `i`, for a consumer that has waited for it.
  GIWA_DEVICE Stage& stage(int i) { return stage_[i]; }

  /// Returns the role of this thread. A role begins at stage 0, so each thread makes it once in a kernel.
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

  /// Returns the role of a thread that fills a part of every stage, besides the producer, which announces all bytes.
  template <class Block>
  GIWA_DEVICE filler_role filler(Block) {
    return filler_role(*this);
  }
  /// Waits until stage number `i` has been filled for the n-th time, counted from 0, for a thread that is no consumer
  /// of every stage.
  GIWA_DEVICE void wait(int i, uint32 n) { full_[i].wait(n & 1); }

  /// Runs the whole loop, as in the other pipelines, with the thread of rank 0 as the producer and all threads as consumers.
  /// Once in a kernel.
  template <class Block, class Fill, class Use>
  GIWA_DEVICE void stream(Block block, int steps, const Fill& fill, const Use& use) {
    static_assert(Stages >= 2,
                  "giwa::pipeline: one stage is used while another is filled: choose Stages of at least 2.");
    auto in = producer(block);
    auto out = consumer(block);
    const auto put = [&](int step) {
      if (step < steps && block.rank() == 0)
        in.put([&](Stage& stage, const copier& copies) { fill(stage, copies, step); });
      block.sync_warp();  // the next operation of the warp may need all of its lanes
    };
    for (int step = 0; step < Stages - 1; ++step) put(step);
    for (int step = 0; step < steps; ++step) {
      const Stage& stage = out.wait();
      put(step + Stages - 1);
      use(stage, step);
      out.release();
    }
  }

 private:
  Stage stage_[Stages];
  arch::mbarrier full_[Stages], empty_[Stages];
};

}  // namespace giwa::inline GIWA_ABI

#endif
