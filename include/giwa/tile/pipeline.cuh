// SPDX-License-Identifier: MIT
// pipeline: a ring of stages in shared memory that a producer fills ahead of their use, whatever copies the data.
#ifndef GIWA_TILE_PIPELINE_CUH
#define GIWA_TILE_PIPELINE_CUH

#include <giwa/base/assert.hpp>
#include <giwa/tile/copy.cuh>

namespace giwa::inline GIWA_ABI {

/// What fills the stages of a pipeline: its third template argument.
///@{
struct plain_copies {};  ///< Ordinary loads and stores, on every GPU and on the host executor.
struct async_copies {
};  ///< cp.async from global to shared memory on sm_80 and later, otherwise the same as plain_copies.
/// TMA, for each block of a cluster of `ClusterBlocks` blocks; sm_90, in tile/pipeline_sm90.cuh.
template <int ClusterBlocks = 1>
struct tensor_copies {};
///@}

/// A ring of `Stages` stages that a producer fills and a consumer uses in the same order; the producer is at most
/// Stages - 1 stages ahead. A Stage is a shared_tile or a struct of shared_tiles. A pipeline is an uninitialised member of
/// an op's shared_storage.
///
///   pipeline.initialize(block, consumer_warps);           // once, by all threads; then block.sync()
///   auto in = pipeline.producer(block);
///   auto out = pipeline.consumer(block);
///   in.put([&](Stage& stage, auto& copies) { copies.load(view, {row, column}, stage.a); ... });
///   const Stage& stage = out.wait();                      // the oldest stage that is full and not yet released
///   ... use it ...
///   out.release();
///
/// With the copies of this header all threads of the block are both producer and consumer. put() may overwrite the stage of
/// an earlier wait(), so put() follows wait() in each step, as in stream().
template <class Stage, int Stages, class Copies = async_copies>
class pipeline {
  static_assert(Stages >= 2, "giwa::pipeline: one stage is used while another is filled: choose Stages of at least 2.");

  // What a producer passes to the function that fills a stage.
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
    GIWA_HOST_DEVICE producer_role(Block block, pipeline& p) : block_(block), pipeline_(p) {}

    /// Fills the next stage with fill(stage, copies). Does not wait for the data.
    template <class Fill>
    GIWA_HOST_DEVICE void put(const Fill& fill) {
      fill(pipeline_.stage_[next_], copier<Block>{block_});
      skip();
    }
    /// Takes the place of a put() after the last one, because wait() counts puts.
    GIWA_HOST_DEVICE void skip() {
      if constexpr (stdlib::is_same_v<Copies, async_copies>) copy_commit();
      next_ = next_ + 1 == Stages ? 0 : next_ + 1;
    }

   private:
    Block block_;
    pipeline& pipeline_;
    int next_ = 0;
  };

  template <class Block>
  class consumer_role {
   public:
    GIWA_HOST_DEVICE consumer_role(Block block, pipeline& p) : block_(block), pipeline_(p) {}

    /// Waits for the oldest stage and returns it. The last `Later` puts, into any pipeline of the block, may still be in
    /// flight. Contains a barrier of the block.
    template <int Later = Stages - 2>
    GIWA_HOST_DEVICE const Stage& wait() {
      if constexpr (stdlib::is_same_v<Copies, async_copies>) copy_wait<Later>();
      block_
          .sync();  // the copies of the other threads have arrived too, and no thread still reads the stage to be filled
      return pipeline_.stage_[next_];
    }
    GIWA_HOST_DEVICE void release() { next_ = next_ + 1 == Stages ? 0 : next_ + 1; }

   private:
    Block block_;
    pipeline& pipeline_;
    int next_ = 0;
  };

 public:
  static constexpr int stages = Stages;  ///< The number of stages.

  /// Does nothing, because these copies need no barriers. A kernel that works with any copies calls it.
  template <class Block>
  GIWA_HOST_DEVICE void initialize(Block, int /*consumer_warps*/) {}
  /// Returns the role of this thread: the one that fills stages, and the one that uses them.
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

  /// Runs the whole loop: for each step in [0, steps) calls fill(stage, copies, step), Stages - 1 steps ahead, then
  /// use(stage, step). Called by all threads of the block. The end of the loop is no barrier: call block.sync() before the
  /// next put() into this pipeline.
  template <class Block, class Fill, class Use>
  GIWA_HOST_DEVICE void stream(Block block, int steps, const Fill& fill, const Use& use) {
    auto in = producer(block);
    auto out = consumer(block);
    const auto put = [&](int step) {
      if (step < steps)
        in.put([&](Stage& stage, const auto& copies) { fill(stage, copies, step); });
      else
        in.skip();
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
};

}  // namespace giwa::inline GIWA_ABI

#endif
