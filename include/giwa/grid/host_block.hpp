// SPDX-License-Identifier: MIT
// A thread's handle to its block on the host: the members of device_block, implemented by the host executor.
#ifndef GIWA_GRID_HOST_BLOCK_HPP
#define GIWA_GRID_HOST_BLOCK_HPP

#include <giwa/grid/fiber.hpp>
#include <giwa/grid/grid_barrier.hpp>
#include <giwa/numeric/index.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail::inline GIWA_DETAIL_SANITIZER_TAG {

/// What a thread waits for: nothing while it runs, exit after its body has returned, otherwise its grid, block or warp.
enum class wait_kind : int {
  none,
  exit,
  sync_grid,
  sync,
  sync_warp,
  shuffle,
  shuffle_up,
  shuffle_down,
  shuffle_xor,
  any,
  all,
  ballot
};

/// The state that the threads of the running block share. Positions and sizes are (z, y, x).
struct host_block_state {
  index<3> thread_extents{1, 1, 1}, block_extents{1, 1, 1}, block_index{0, 0, 0};
  int size = 0;               // threads
  void* shared = nullptr;     // the op's shared_storage
  const void* job = nullptr;  // the op and its params
};

/// One thread of the running block, and its request to the executor while it waits.
struct host_thread {
  fiber flow;
  host_block_state* block = nullptr;
  void* runner = nullptr;  // the executor's block_runner
  int rank = 0;
  // Two addresses in the first thread of the grid, and of each block and warp, represent its barriers for ThreadSanitizer.
  host_thread *grid_leader = nullptr, *block_leader = nullptr, *warp_leader = nullptr;
  char grid_order[2], block_order[2], warp_order[2];
  int grid_phase = 0, block_phase = 0, warp_phase = 0;  // 0 or 1: which of the two addresses orders the next barrier

  wait_kind waits_for = wait_kind::none;
  int line = 0;                 // the source line of the call of sync or sync_grid
  int operand = 0;              // the lane or distance of a shuffle; the vote, 0 or 1
  stdlib::size_t bytes = 0;     // the size of a shuffled value
  const void* value = nullptr;  // the value that this thread sends; the grid_barrier of sync_grid
  void* received = nullptr;     // where the value that it receives goes
  uint32 votes = 0;             // the result of a vote: bit i is the vote of lane i

  /// Suspends the thread until the executor has seen all threads that must wait here.
  GIWA_DETAIL_NO_TSAN void wait(wait_kind kind) {
    waits_for = kind;
    flow.suspend();
  }
  GIWA_DETAIL_NO_TSAN void exchange(wait_kind kind, int operand_, stdlib::size_t bytes_, const void* value_,
                                    void* received_) {
    operand = operand_;
    bytes = bytes_;
    value = value_;
    received = received_;
    wait(kind);
  }
  GIWA_DETAIL_NO_TSAN uint32 vote(wait_kind kind, bool mine) {
    operand = mine ? 1 : 0;
    wait(kind);
    return votes;
  }

  // A barrier orders memory. Barriers alternate between two variables: with one, a thread at its next barrier would release
  // the variable before a slower thread acquires it for this one, and its accesses in between would seem ordered.
  GIWA_DETAIL_NO_TSAN void sync(int line_) {
    char* const order = &block_leader->block_order[block_phase];
    block_phase ^= 1;
    line = line_;
    order_release(order);
    wait(wait_kind::sync);
    order_acquire(order);
  }
  GIWA_DETAIL_NO_TSAN void sync_grid(const void* barrier, int line_) {
    char* const order = &grid_leader->grid_order[grid_phase];
    grid_phase ^= 1;
    line = line_;
    value = barrier;
    order_release(order);
    wait(wait_kind::sync_grid);
    order_acquire(order);
  }
  GIWA_DETAIL_NO_TSAN void sync_warp() {
    char* const order = &warp_leader->warp_order[warp_phase];
    warp_phase ^= 1;
    order_release(order);
    wait(wait_kind::sync_warp);
    order_acquire(order);
  }
};

/// Replaces `target` by update(target) atomically and relaxed, by compare and exchange, for any T of 1, 2, 4 or 8 bytes.
/// Returns the old value.
template <class T, class Update>
T atomic_update(T& target, Update update) {
  static_assert(sizeof(T) <= 8, "giwa: use a type of at most 8 bytes for an atomic.");
  T old;
  __atomic_load(&target, &old, __ATOMIC_RELAXED);
  T desired = update(old);
  while (!__atomic_compare_exchange(&target, &old, &desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    desired = update(old);
  return old;
}

}  // namespace detail::inline GIWA_DETAIL_SANITIZER_TAG

inline namespace GIWA_DETAIL_SANITIZER_TAG {

/// The `block` that an op receives on the host, a handle to its thread in the host executor. device_block documents the
/// members. The members also compile for the device, so that the body of an op does; there they do nothing.
///
/// The executor is stricter than a GPU: all threads of the block must reach the same sync, and all lanes of a warp the same
/// shuffle or vote, also threads whose siblings have returned. Otherwise launch() returns an error.
class host_block {
#if defined(__CUDA_ARCH__)
#define GIWA_DETAIL_ON_HOST(expression, elsewhere) return elsewhere
#else
#define GIWA_DETAIL_ON_HOST(expression, elsewhere) return expression
#endif
 public:
  /// For the host executor.
  explicit host_block(detail::host_thread& thread) : thread_(&thread) {}

  /// See device_block.
  ///@{
  GIWA_HOST_DEVICE int rank() const { GIWA_DETAIL_ON_HOST(thread_->rank, 0); }
  GIWA_HOST_DEVICE int size() const { GIWA_DETAIL_ON_HOST(thread_->block->size, 1); }
  GIWA_HOST_DEVICE int warp() const { return rank() / 32; }
  GIWA_HOST_DEVICE int lane() const { return rank() % 32; }

  GIWA_HOST_DEVICE index<3> thread_index() const {
    const index<3> n = thread_extents();
    return {rank() / (n[1] * n[2]), rank() / n[2] % n[1], rank() % n[2]};
  }
  GIWA_HOST_DEVICE index<3> thread_extents() const {
    GIWA_DETAIL_ON_HOST(thread_->block->thread_extents, (index<3>{1, 1, 1}));
  }
  GIWA_HOST_DEVICE index<3> block_index() const {
    GIWA_DETAIL_ON_HOST(thread_->block->block_index, (index<3>{0, 0, 0}));
  }
  GIWA_HOST_DEVICE index<3> block_extents() const {
    GIWA_DETAIL_ON_HOST(thread_->block->block_extents, (index<3>{1, 1, 1}));
  }
  GIWA_HOST_DEVICE int64 block_rank() const {
    const index<3> i = block_index(), n = block_extents();
    return (i[0] * n[1] + i[1]) * n[2] + i[2];
  }
  GIWA_HOST_DEVICE int64 block_count() const {
    const index<3> n = block_extents();
    return n[0] * n[1] * n[2];
  }

  /// Leave `line` out: it is the line of the caller, which error messages and the check for one common sync use.
  GIWA_HOST_DEVICE void sync([[maybe_unused]] int line = __builtin_LINE()) const {
    GIWA_DETAIL_ON_HOST(thread_->sync(line), void());
  }
  GIWA_HOST_DEVICE void sync_warp() const { GIWA_DETAIL_ON_HOST(thread_->sync_warp(), void()); }
  GIWA_HOST_DEVICE void sync_grid([[maybe_unused]] grid_barrier& barrier,
                                  [[maybe_unused]] int line = __builtin_LINE()) const {
    GIWA_DETAIL_ON_HOST(thread_->sync_grid(&barrier, line), void());
  }
  ///@}

  /// See device_block.
  ///@{
  template <class T>
  GIWA_HOST_DEVICE T shuffle(T value, int source_lane) const {
    return exchange(detail::wait_kind::shuffle, value, source_lane);
  }
  template <class T>
  GIWA_HOST_DEVICE T shuffle_up(T value, int distance) const {
    return exchange(detail::wait_kind::shuffle_up, value, distance);
  }
  template <class T>
  GIWA_HOST_DEVICE T shuffle_down(T value, int distance) const {
    return exchange(detail::wait_kind::shuffle_down, value, distance);
  }
  template <class T>
  GIWA_HOST_DEVICE T shuffle_xor(T value, int lane_mask) const {
    return exchange(detail::wait_kind::shuffle_xor, value, lane_mask);
  }

  GIWA_HOST_DEVICE bool any(bool vote) const {
    GIWA_DETAIL_ON_HOST(thread_->vote(detail::wait_kind::any, vote) != 0, vote);
  }
  GIWA_HOST_DEVICE bool all(bool vote) const {
    GIWA_DETAIL_ON_HOST(thread_->vote(detail::wait_kind::all, vote) == ~uint32{0}, vote);
  }
  GIWA_HOST_DEVICE uint32 ballot(bool vote) const {
    GIWA_DETAIL_ON_HOST(thread_->vote(detail::wait_kind::ballot, vote), vote ? 1u : 0u);
  }

  template <class T>
  GIWA_HOST_DEVICE T atomic_add(T& target, stdlib::type_identity_t<T> value) const {
    if constexpr (stdlib::is_integral_v<T>)
      GIWA_DETAIL_ON_HOST(__atomic_fetch_add(&target, value, __ATOMIC_RELAXED), (void(value), target));
    else
      GIWA_DETAIL_ON_HOST(detail::atomic_update(target, [=](T old) { return static_cast<T>(old + value); }),
                          (void(value), target));
  }
  template <class T>
  GIWA_HOST_DEVICE T atomic_min(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_HOST(detail::atomic_update(target, [=](T old) { return value < old ? value : old; }),
                        (void(value), target));
  }
  template <class T>
  GIWA_HOST_DEVICE T atomic_max(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_HOST(detail::atomic_update(target, [=](T old) { return old < value ? value : old; }),
                        (void(value), target));
  }
  template <class T>
  GIWA_HOST_DEVICE T atomic_exchange(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_HOST(detail::atomic_update(target, [=](T) { return value; }), (void(value), target));
  }
  template <class T>
  GIWA_HOST_DEVICE T atomic_compare_exchange(T& target, stdlib::type_identity_t<T> expected,
                                             stdlib::type_identity_t<T> desired) const {
#if !defined(__CUDA_ARCH__)
    __atomic_compare_exchange(&target, &expected, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;  // if they differ, the builtin has stored the value of the target here
#else
    return void(expected), void(desired), target;
#endif
  }
  ///@}
#undef GIWA_DETAIL_ON_HOST

 private:
  template <class T>
  GIWA_HOST_DEVICE T exchange([[maybe_unused]] detail::wait_kind kind, T value, [[maybe_unused]] int operand) const {
    static_assert(goes_as_bytes<T>, "giwa: a shuffled value must be trivially copyable: shuffle its members.");
    T received = value;
#if !defined(__CUDA_ARCH__)
    thread_->exchange(kind, operand, sizeof(T), &value, &received);
#endif
    return received;
  }

  detail::host_thread* thread_;
};

}  // namespace GIWA_DETAIL_SANITIZER_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
