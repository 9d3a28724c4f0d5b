// SPDX-License-Identifier: MIT
// The host executor: runs an op on the CPU, block after block, with a fiber for each thread of the block.
#ifndef GIWA_GRID_HOST_EXECUTOR_HPP
#define GIWA_GRID_HOST_EXECUTOR_HPP

#include <giwa/base/status.hpp>
#include <giwa/grid/carried_exception.hpp>
#include <giwa/grid/host_block.hpp>
#include <giwa/grid/launch_config.hpp>
#include <giwa/grid/op.hpp>

#include <cstdlib>
#include <cstring>
#include <new>

namespace giwa::inline GIWA_ABI::detail {

/// Returns the lane whose value `lane` receives in a shuffle. As in PTX ("shfl.sync"), only the low five bits of the operand
/// count, and a lane whose source is outside the warp keeps its own value.
constexpr int shuffle_source(wait_kind kind, int lane, int operand) {
  const int distance = operand & 31;
  switch (kind) {
    case wait_kind::shuffle: return distance;
    case wait_kind::shuffle_up: return lane < distance ? lane : lane - distance;
    case wait_kind::shuffle_down: return lane + distance > 31 ? lane : lane + distance;
    default: return lane ^ distance;
  }
}

/// The shared memory of a block. Each block gets a new allocation of the exact size, so that AddressSanitizer guards both
/// ends, filled with 0xff bytes (NaN, or -1), so that a read of uninitialised memory shows.
class host_block_memory {
 public:
  host_block_memory() = default;
  ~host_block_memory() { release(); }
  host_block_memory(const host_block_memory&) = delete;
  host_block_memory& operator=(const host_block_memory&) = delete;

  /// Returns a new allocation in the place of the last one, or null.
  void* renew(stdlib::size_t bytes, stdlib::size_t alignment) {
    release();
    const ignored_accesses hidden;
    if (::posix_memalign(&memory_, alignment, bytes) != 0) memory_ = nullptr;
    if (memory_ != nullptr) std::memset(memory_, 0xff, bytes);
    return memory_;
  }

 private:
  void release() {
    const ignored_accesses hidden;
    std::free(memory_);
    memory_ = nullptr;
  }
  void* memory_ = nullptr;
};

inline namespace GIWA_DETAIL_SANITIZER_TAG {

/// Runs the blocks of a grid one after the other, x fastest; inside a block each warp in turn, and each lane of a warp in
/// turn until it waits. The blocks of a cooperative grid exist at the same time, and each runs until it waits for the
/// others. The order is the same in every run. A block of 256 threads with ten barriers takes 0.16 ms (0.4 at
/// -O0, 2.2 under AddressSanitizer, 7 under ThreadSanitizer, 3.3 under Clang's); starting the fibers of a launch takes 1.2
/// ms (g++ 12 -O2, 2-core x86-64 VM, 2026-11-20).
class block_runner {
 public:
  using body = void (*)(host_thread&);

  block_runner(const launch_config& config, body run_thread, const void* job)
      : run_thread_(run_thread), size_(static_cast<int>(config.block.count())), cooperative_(config.cooperative) {
    block_.thread_extents = {config.block.z, config.block.y, config.block.x};
    block_.block_extents = {config.grid.z, config.grid.y, config.grid.x};
    block_.size = size_;
    block_.job = job;
    sets_ = cooperative_ ? config.grid.count() : GIWA_DETAIL_TSAN && config.grid.count() > 1 ? 2 : 1;
  }

  ~block_runner() {
    stopping_ = true;
    for (int i = 0; i < started_; ++i) {
      if (threads_[i].waits_for == wait_kind::exit) threads_[i].flow.resume();  // so that thread_main returns
      threads_[i].flow.release(this);
    }
    order_acquire(this);  // the writes of the threads are visible to the caller
    delete[] threads_;
    delete[] slots_;
  }
  block_runner(const block_runner&) = delete;
  block_runner& operator=(const block_runner&) = delete;

  /// Runs the whole grid with shared_bytes of shared memory for each block. Rethrows an exception of the body.
  GIWA_DETAIL_NO_TSAN status run(stdlib::size_t shared_bytes, stdlib::size_t shared_alignment) {
    if (cooperative_ && sets_ * size_ > most_threads)
      return status::invalid("grid", "the host executor cannot run so many blocks of a cooperative grid at once",
                             bound::at_most, most_threads / size_, sets_);
    if (!start_threads()) return out_of_memory("the stacks of the threads of a block do not fit in host memory");
    const index<3> n = block_.block_extents;
    int64 set = 0;
    for (int64 z = 0; z < n[0]; ++z)
      for (int64 y = 0; y < n[1]; ++y)
        for (int64 x = 0; x < n[2]; ++x) {
          slot& s = slots_[set];
          s.state.block_index = {z, y, x};
          s.state.shared = s.memory.renew(shared_bytes, shared_alignment);
          if (s.state.shared == nullptr)
            return out_of_memory("the shared memory of a block does not fit in host memory");
          if (!cooperative_) {
            if (const status state = run_block(threads_ + set * size_); !state.ok()) return state;
            if (thrown_) std::rethrow_exception(thrown_);
            if (threads_[set * size_].waits_for == wait_kind::sync_grid)
              return status::invalid("op",
                                     "a barrier for the grid (sync_grid) needs a launch with .cooperative = true");
          }
          set = (set + 1) % sets_;
        }
    return cooperative_ ? run_together() : status{};
  }

 private:
  static status out_of_memory(const char* message) {
    status s;
    s.code = status_code::out_of_memory;
    s.message = message;
    s.argument = "config";
    return s;
  }

  bool start_threads() {
    const auto count = static_cast<int>(size_ * sets_);
    threads_ = new (std::nothrow) host_thread[static_cast<stdlib::size_t>(count)];
    slots_ = new (std::nothrow) slot[static_cast<stdlib::size_t>(sets_)];
    if (threads_ == nullptr || slots_ == nullptr || !stacks_.reserve(count)) return false;
    for (int64 set = 0; set < sets_; ++set) slots_[set].state = block_;
    for (; started_ < count; ++started_) {
      host_thread& t = threads_[started_];
      t.block = &slots_[started_ / size_].state;
      t.runner = this;
      t.rank = started_ % size_;
      t.warp_leader = &threads_[started_ / 32 * 32];
      t.block_leader = &threads_[started_ / size_ * size_];
      t.grid_leader = threads_;
      t.flow.start(stacks_[started_], fiber_stacks::stack_bytes, &thread_main, &t);
    }
    return true;
  }

  // The main function of a fiber: runs one thread of each block.
  GIWA_DETAIL_NO_TSAN static void thread_main(void* argument) {
    host_thread& t = *static_cast<host_thread*>(argument);
    block_runner& runner = *static_cast<block_runner*>(t.runner);
    do {
      if (std::exception_ptr e = carry_exception([&] { runner.run_thread_(t); })) {
        runner.thrown_ = std::move(e);
        runner.failed_ = true;
      }
      t.wait(wait_kind::exit);
    } while (!runner.stopping_);
  }

  // Runs all blocks of a cooperative grid from one barrier of the grid to the next.
  GIWA_DETAIL_NO_TSAN status run_together() {
    for (;;) {
      int64 waiting = 0;
      for (int64 block = 0; block < sets_; ++block) {
        host_thread* const threads = threads_ + block * size_;
        if (const status s = run_block(threads); !s.ok()) return s;
        if (thrown_) std::rethrow_exception(thrown_);
        waiting += threads->waits_for == wait_kind::sync_grid ? 1 : 0;
      }
      if (waiting == 0) return {};
      if (waiting < sets_)
        return status::invalid("op", "all blocks of the grid must reach a barrier of the grid (sync_grid)",
                               bound::exactly, sets_, waiting);
      for (int64 i = 0; i < sets_ * size_; ++i) {
        if (threads_[i].line != threads_->line)
          return status::invalid("op", "all blocks must wait at the same barrier (source line of sync_grid)",
                                 bound::exactly, threads_->line, threads_[i].line);
        if (threads_[i].value != threads_->value)
          return status::invalid("op", "all blocks must call sync_grid with the same grid_barrier");
      }
    }
  }

  // Runs a block from its start, or from the barrier of the grid at which it waits, to its end or the next one.
  GIWA_DETAIL_NO_TSAN status run_block(host_thread* threads) {
    for (;;) {
      for (int rank = 0; rank < size_; ++rank) threads[rank].waits_for = wait_kind::none;
      for (int first = 0; first < size_; first += 32) {
        if (const status s = run_warp(threads + first); !s.ok() || failed_) return s;
      }
      int waiting = 0, for_grid = 0;
      for (int rank = 0; rank < size_; ++rank) {
        waiting += threads[rank].waits_for == wait_kind::sync ? 1 : 0;
        for_grid += threads[rank].waits_for == wait_kind::sync_grid ? 1 : 0;
      }
      if (waiting + for_grid == 0 || for_grid == size_) return {};
      if (for_grid > 0)
        return status::invalid("op", "all threads of the block must reach a barrier of the grid (sync_grid)",
                               bound::exactly, size_, for_grid);
      if (waiting < size_)
        return status::invalid("op", "all threads of the block must reach a barrier (sync)", bound::exactly, size_,
                               waiting);
      for (int rank = 0; rank < size_; ++rank) {
        host_thread& t = threads[rank];
        if (t.line != threads[0].line)
          return status::invalid("op", "all threads of the block must wait at the same barrier (source line of sync)",
                                 bound::exactly, threads[0].line, t.line);
      }
    }
  }

  // Runs the lanes of a warp until each waits for the block or the grid, or has returned.
  GIWA_DETAIL_NO_TSAN status run_warp(host_thread* lanes) {
    for (;;) {
      for (int i = 0; i < 32; ++i) {
        if (lanes[i].waits_for == wait_kind::none) lanes[i].flow.resume();
        if (failed_) return {};
      }
      const host_thread* leader = nullptr;  // the first lane that waits for its warp
      int same = 0;
      for (int i = 0; i < 32; ++i) {
        const wait_kind kind = lanes[i].waits_for;
        const bool for_warp = kind != wait_kind::sync && kind != wait_kind::sync_grid && kind != wait_kind::exit;
        if (leader == nullptr && for_warp) leader = &lanes[i];
        same += leader != nullptr && kind == leader->waits_for ? 1 : 0;
      }
      if (leader == nullptr) return {};
      if (same < 32)
        return status::invalid("op", "all lanes of a warp must reach the same shuffle, vote or sync_warp",
                               bound::exactly, 32, same);
      if (const status s = exchange(lanes, leader->waits_for); !s.ok()) return s;
      for (int i = 0; i < 32; ++i) lanes[i].waits_for = wait_kind::none;
    }
  }

  // Exchanges the values of the lanes, all of which wait. No thread runs now, so each value is still on its owner's stack.
  GIWA_DETAIL_NO_TSAN static status exchange(host_thread* lanes, wait_kind kind) {
    const ignored_accesses hidden;
    if (kind == wait_kind::any || kind == wait_kind::all || kind == wait_kind::ballot) {
      uint32 votes = 0;
      for (int i = 0; i < 32; ++i) votes |= static_cast<uint32>(lanes[i].operand) << i;
      for (int i = 0; i < 32; ++i) lanes[i].votes = votes;
    } else if (kind != wait_kind::sync_warp) {
      for (int i = 0; i < 32; ++i) {
        host_thread& t = lanes[i];
        if (t.bytes != lanes[0].bytes)
          return status::invalid("op", "all lanes of a warp must shuffle values of the same size in bytes",
                                 bound::exactly, static_cast<int64>(lanes[0].bytes), static_cast<int64>(t.bytes));
        std::memcpy(t.received, lanes[shuffle_source(kind, i, t.operand)].value, t.bytes);
      }
    }
    return {};
  }

  // A block that exists.
  struct slot {
    host_block_state state;
    host_block_memory memory;
  };
  // The guard pages of more stacks are more mappings than Linux allows a process by default, 65530; ThreadSanitizer
  // supports 8128 threads.
  static constexpr int64 most_threads = GIWA_DETAIL_TSAN ? 7168 : 16384;

  body run_thread_;
  int size_;  // threads of a block
  bool cooperative_;
  int64 sets_ = 1;  // blocks that exist at the same time
  int started_ = 0;
  bool stopping_ = false;  // tells the fibers to return
  bool failed_ = false;    // a thread has thrown
  std::exception_ptr thrown_;
  host_block_state block_;  // what all blocks have in common
  fiber_stacks stacks_;
  // Under ThreadSanitizer blocks alternate between two sets of fibers. It considers the accesses of one fiber in successive
  // blocks as ordered, which a GPU does not guarantee. So a race of a block of even rank with one of odd rank is reported.
  // A cooperative grid has a set for each block.
  host_thread* threads_ = nullptr;  // (sets, threads)
  slot* slots_ = nullptr;           // (sets)
};

}  // namespace GIWA_DETAIL_SANITIZER_TAG

/// Runs launch(giwa::host, ...), whose arguments are already checked.
template <class Op>
struct host_executor {
  using params = typename Op::params;
  using shared_storage = typename Op::shared_storage;
  struct job {
    const Op* op;
    const params* arguments;
  };

  static status run(const launch_config& config, const Op& op, const params& arguments) {
    if (config.cluster.count() != 1)
      return {
          status_code::not_supported, bound::exactly, 0, "the host executor does not support clusters", "cluster", 1,
          config.cluster.count()};
    const job work{&op, &arguments};
    block_runner runner(config, &run_thread, &work);
    return runner.run(sizeof(shared_storage), alignof(shared_storage) > 1024 ? alignof(shared_storage) : 1024);
  }

 private:
  static void run_thread(host_thread& t) {
    const job& work = *static_cast<const job*>(t.block->job);
    (*work.op)(host_block(t), *work.arguments, *static_cast<shared_storage*>(t.block->shared));
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
