// SPDX-License-Identifier: MIT
// The loop of for_all(giwa::host, ...): threads of the CPU share a range, OpenMP's where the program is compiled with it.
#ifndef GIWA_GRID_HOST_LOOP_HPP
#define GIWA_GRID_HOST_LOOP_HPP

#include <giwa/grid/carried_exception.hpp>
#include <giwa/grid/host_for_all.hpp>
#include <giwa/numeric/integer.hpp>

#include <atomic>
#include <memory>
#include <new>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace giwa::inline GIWA_ABI::detail {

/// The fewest elements for which a thread pays. Starting and joining a thread takes 17 to 60 us; an element of c = a + b
/// takes 0.15 ns if vectorised and in cache, and 1 ns from memory or with g++ 12 -O2 (2-core x86-64 VM, 2026-11-20).
inline constexpr int64 host_grain = 65536;

#if defined(_OPENMP)
/// Whether this process is a child of fork(). It has none of the threads that GCC's OpenMP would wait for, if the parent used it.
inline bool is_forked = false;
inline const int forked_child_says_so = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
#endif

/// How many threads host_parallel() uses where there is work for `wanted`.
inline int64 host_workers(int64 wanted) {
  if (wanted <= 1) return 1;
#if defined(_OPENMP)
  const int allowed = omp_get_max_threads(), cores = omp_get_num_procs();  // the first as OMP_NUM_THREADS says
  const int64 most = allowed < cores ? allowed : cores;
#else
  const auto most = static_cast<int64>(std::thread::hardware_concurrency());  // 0 if unknown; takes 4 us
#endif
  return most < 1 ? 1 : most < wanted ? most : wanted;
}

/// A thread that host_parallel() starts and joins.
class helper_thread {
 public:
  /// Runs `work`, which does not throw, on a thread with a stack of so many bytes; 0: of the system's usual size. Returns
  /// false if the system refuses a thread.
  template <class Work>
  bool start(const Work& work, stdlib::size_t stack_bytes) {
#if defined(__unix__) || defined(__APPLE__)
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return false;
    if (stack_bytes != 0) static_cast<void>(pthread_attr_setstacksize(&attributes, stack_bytes));
    const auto run = [](void* w) -> void* { return (*static_cast<const Work*>(w))(), nullptr; };
    const auto create = [&](const pthread_attr_t* a) {
      return pthread_create(&thread_, a, run, const_cast<Work*>(&work)) == 0;
    };
    // A program's thread-local variables are on the stack too: if they do not fit, the usual size.
    const bool created = create(&attributes) || (stack_bytes != 0 && create(nullptr));
    static_cast<void>(pthread_attr_destroy(&attributes));
    return created;
#else
    static_cast<void>(stack_bytes);
    return !carry_exception([&] { thread_ = std::thread([&work] { work(); }); });
#endif
  }
  /// Waits for a thread that did start.
  void join() {
#if defined(__unix__) || defined(__APPLE__)
    static_cast<void>(pthread_join(thread_, nullptr));
#else
    thread_.join();
#endif
  }

 private:
#if defined(__unix__) || defined(__APPLE__)
  pthread_t thread_;
#else
  std::thread thread_;
#endif
};

/// The stacks of threads that run only code of this library and small functors, which State contains: a larger one gets a
/// stack of the usual size. glibc keeps 40 MB of stacks of ended threads; those of
/// 8 MB, the usual size, are mapped and unmapped in each call. 15 threads started and joined on 16 cores: 0.21 ms instead
/// of 0.31 to 0.36 (2026-11-27).
template <class State>
inline constexpr stdlib::size_t small_stack_bytes = sizeof(State) <= 128 << 10 ? 512 << 10 : 0;

/// Calls body(state, begin, end) on ranges that together cover [0, n), each element once, with the state that make()
/// returns once on each thread. Runs on the calling thread and on one more for each other core, as long as each has at
/// least `grain` elements, grain >
/// 0. If that is one thread, or the system starts no more, the caller does everything; a single thread gets [0, n) in
/// one call. With OpenMP (-fopenmp) the threads are those of its runtime, which keeps them between calls, at most
/// omp_get_max_threads(); inside of a parallel region there is one. A child of fork() starts its own as without OpenMP.
/// Started threads have stacks of `stack_bytes`, or of the system's usual size. Rethrows the first exception of a body; some
/// ranges are then left out.
template <class Make, class Body>
void host_parallel(int64 n, int64 grain, const Make& make, const Body& body, stdlib::size_t stack_bytes = 0) {
  if (n <= 0) return;
  const int64 workers = host_workers(n / grain);
  if (workers <= 1) {
    auto state = make();
    return body(state, int64{0}, n);
  }

  // Several pieces for each thread, so that other threads take over from a slow one.
  const int64 even = ceil_div(n, workers * 4);
  const int64 piece = round_up(even > grain ? even : grain, 64);  // 64: two threads rarely write to one cache line
  const int64 pieces = ceil_div(n, piece);
  std::atomic<int64> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr thrown;
  const auto work = [&] {
    std::exception_ptr mine = carry_exception([&] {
      auto state = make();
      for (int64 i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
        const int64 begin = i * piece;
        body(state, begin, i == pieces - 1 ? n : begin + piece);
      }
    });
    if (!mine) return;
    next.store(pieces, std::memory_order_relaxed);
    if (!failed.exchange(true)) thrown = std::move(mine);
  };

#if defined(_OPENMP)  // its threads stay between calls
  if (!is_forked) {
#pragma omp parallel num_threads(static_cast<int>(workers))
    work();
    if (thrown) std::rethrow_exception(thrown);
    return;
  }
#endif
  // Threads that start each other, as a tree, were slower: attention of 512 tokens on 16 cores 1.16 ms instead of 1.07
  // (2026-11-23).
  // If the system refuses a thread, the caller and the threads that did start share the work.
  const auto helpers = static_cast<stdlib::size_t>(workers - 1);
  const std::unique_ptr<helper_thread[]> threads(new (std::nothrow) helper_thread[helpers]);
  stdlib::size_t started = 0;
  while (threads && started < helpers && threads[started].start(work, stack_bytes)) ++started;
  work();
  for (stdlib::size_t t = 0; t < started; ++t) threads[t].join();
  if (thrown) std::rethrow_exception(thrown);
}
/// The same with body(begin, end).
template <class Body>
void host_parallel(int64 n, int64 grain, const Body& body) {
  host_parallel(
      n, grain, [] { return 0; }, [&](int, int64 begin, int64 end) { body(begin, end); });
}

/// Calls f on the indices of rank [begin, end), in order. Divides once and then iterates row by row; the inner loop runs
/// along the last dimension, so that the compiler can vectorise it.
template <int64... Sizes, class F>
void for_each_index(const extents<Sizes...>& e, int64 begin, int64 end, const F& f) {
  if (begin >= end) return;
  constexpr int last = extents<Sizes...>::rank - 1;
  index<last + 1> row = delinearize(e, begin);
  for (int64 left = end - begin; left > 0;) {
    const int64 first = row[last];
    const int64 stop = left < e[last] - first ? first + left : e[last];
    for (int64 i = first; i < stop; ++i) {
      index<last + 1> at = row;
      at[last] = i;
      f(at);
    }
    left -= stop - first;
    row[last] = 0;
    for (int d = last - 1; d >= 0 && ++row[d] == e[d]; --d) row[d] = 0;
  }
}

/// Runs for_all(giwa::host, ...), whose arguments are already checked. Each loop uses a local copy of f: no store can alias
/// its members, so the compiler keeps them in registers.
template <class F>
struct host_loop {
  static void run(int64 n, const F& f) {
    host_parallel(n, host_grain, [&](int64 begin, int64 end) {
      const F local = f;
      for (int64 i = begin; i < end; ++i) local(i);
    });
  }

  template <int64... Sizes>
  static void run(const extents<Sizes...>& e, int64 size, const F& f) {
    host_parallel(size, host_grain, [&](int64 begin, int64 end) {
      const F local = f;
      for_each_index(e, begin, end, local);
    });
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
