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
  host_block_memory(stdlib::size_t bytes, stdlib::size_t alignment) {
    const ignored_accesses hidden;
    if (::posix_memalign(&memory_, alignment, bytes) != 0) memory_ = nullptr;
    if (memory_ != nullptr) std::memset(memory_, 0xff, bytes);
  }
  ~host_block_memory() {
    const ignored_accesses hidden;
    std::free(memory_);
  }
  host_block_memory(const host_block_memory&) = delete;
  host_block_memory& operator=(const host_block_memory&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

inline namespace GIWA_DETAIL_SANITIZER_TAG {

/// Runs the blocks of a grid one after the other, x fastest; inside a block each warp in turn, and each lane of a warp in
/// turn until it waits. The order is the same in every run. A block of 256 threads with ten barriers takes 0.16 ms (0.4 at
/// -O0, 2.2 under AddressSanitizer, 7 under ThreadSanitizer, 3.3 under Clang's); starting the fibers of a launch takes 1.2
/// ms (g++ 12 -O2, 2-core x86-64 VM, 2026-11-20).
class block_runner {
 public:
  using body = void (*)(host_thread&);

  block_runner(const launch_config& config, body run_thread, const void* job)
      : run_thread_(run_thread), size_(static_cast<int>(config.block.count())) {
    block_.thread_extents = {config.block.z, config.block.y, config.block.x};
    block_.block_extents = {config.grid.z, config.grid.y, config.grid.x};
    sets_ = GIWA_DETAIL_TSAN && config.grid.count() > 1 ? 2 : 1;
    block_.size = size_;
    block_.job = job;
  }

  ~block_runner() {
    stopping_ = true;
    for (int i = 0; i < started_; ++i) {
      if (threads_[i].waits_for == wait_kind::exit) threads_[i].flow.resume();  // so that thread_main returns
      threads_[i].flow.release(this);
    }
    order_acquire(this);  // the writes of the threads are visible to the caller
    delete[] threads_;
  }
  block_runner(const block_runner&) = delete;
  block_runner& operator=(const block_runner&) = delete;

  /// Runs the whole grid with shared_bytes of shared memory for each block. Rethrows an exception of the body.
  GIWA_DETAIL_NO_TSAN status run(stdlib::size_t shared_bytes, stdlib::size_t shared_alignment) {
    if (!start_threads()) return out_of_memory("the stacks of the threads of a block do not fit in host memory");
    const index<3> n = block_.block_extents;
    int set = 0;
    for (int64 z = 0; z < n[0]; ++z)
      for (int64 y = 0; y < n[1]; ++y)
        for (int64 x = 0; x < n[2]; ++x) {
          block_.block_index = {z, y, x};
          const host_block_memory shared(shared_bytes, shared_alignment);
          if (shared.get() == nullptr) return out_of_memory("the shared memory of a block does not fit in host memory");
          block_.shared = shared.get();
          if (const status s = run_block(set == 0 ? threads_ : threads_ + size_); !s.ok()) return s;
          if (thrown_) std::rethrow_exception(thrown_);
          set = (set + 1) % sets_;
        }
    return {};
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
    const int count = size_ * sets_;
    threads_ = new (std::nothrow) host_thread[static_cast<stdlib::size_t>(count)];
    if (threads_ == nullptr || !stacks_.reserve(count)) return false;
    for (; started_ < count; ++started_) {
      host_thread& t = threads_[started_];
      t.block = &block_;
      t.runner = this;
      t.rank = started_ % size_;
      t.warp_leader = &threads_[started_ / 32 * 32];
      t.block_leader = &threads_[started_ / size_ * size_];
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

  GIWA_DETAIL_NO_TSAN status run_block(host_thread* threads) {
    for (int rank = 0; rank < size_; ++rank) threads[rank].waits_for = wait_kind::none;
    for (;;) {
      for (int first = 0; first < size_; first += 32) {
        if (const status s = run_warp(threads + first); !s.ok() || failed_) return s;
      }
      int waiting = 0;
      for (int rank = 0; rank < size_; ++rank) waiting += threads[rank].waits_for == wait_kind::sync ? 1 : 0;
      if (waiting == 0) return {};
      if (waiting < size_)
        return status::invalid("op", "all threads of the block must reach a barrier (sync)", bound::exactly, size_,
                               waiting);
      for (int rank = 0; rank < size_; ++rank) {
        host_thread& t = threads[rank];
        if (t.line != threads[0].line)
          return status::invalid("op", "all threads of the block must wait at the same barrier (source line of sync)",
                                 bound::exactly, threads[0].line, t.line);
      }
      for (int rank = 0; rank < size_; ++rank) threads[rank].waits_for = wait_kind::none;
    }
  }

  // Runs the lanes of a warp until each waits for the block or has returned.
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
        if (leader == nullptr && kind != wait_kind::sync && kind != wait_kind::exit) leader = &lanes[i];
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

  body run_thread_;
  int size_;  // threads of a block
  int sets_ = 1, started_ = 0;
  bool stopping_ = false;  // tells the fibers to return
  bool failed_ = false;    // a thread has thrown
  std::exception_ptr thrown_;
  host_block_state block_;
  fiber_stacks stacks_;
  // Under ThreadSanitizer blocks alternate between two sets of fibers. It considers the accesses of one fiber in successive
  // blocks as ordered, which a GPU does not guarantee. So a race of a block of even rank with one of odd rank is reported.
  host_thread* threads_ = nullptr;  // (sets, threads)
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
