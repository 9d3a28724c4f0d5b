// SPDX-License-Identifier: MIT
// How a drawn call runs on a GPU: as it is, with inputs that the kernel before it writes late, or from a graph that is replayed; on how
// many multiprocessors; with GIWA_RANDOM_DELAYS, with threads that sleep before they wait.
#ifndef GIWA_TEST_FUZZ_MODES_CUH
#define GIWA_TEST_FUZZ_MODES_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/mbarrier.cuh>
#include <giwa/grid/launch.cuh>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "support/another_gpu.hpp"
#include "support/gpu.cuh"

namespace giwa_test::fuzz {

/// All problems run as they are.
inline bool only_plain() {
  static const bool plain = is_set("GIWA_FUZZ_PLAIN");
  return plain;
}

enum class run_mode : int { plain, late, graph, count };
inline run_mode mode_of(uint64 seed) {
  if (only_plain()) return run_mode::plain;
  return static_cast<run_mode>(seed * 0x9e3779b97f4a7c15ull / 5 % static_cast<uint64>(run_mode::count));
}

/// How many multiprocessors the calls of a problem find: all (0), or in every other problem few, so that a block has several work items.
inline int processors_of(uint64 seed) {
  constexpr int few[] = {1, 2, 4, 17};
  const uint64 n = (seed * 0xd1342543de82ef95ull) >> 40;
  return only_plain() || n % 2 == 0 ? 0 : few[n / 2 % 4];
}
/// Calls of this thread find so many while this lives.
class with_processors {
 public:
  explicit with_processors(int count) { processors_of_test = count; }
  with_processors(const with_processors&) = delete;
  with_processors& operator=(const with_processors&) = delete;
  ~with_processors() { processors_of_test = 0; }
};

/// Lets threads of kernels sleep for up to so long, which the seed draws, before they wait. Without GIWA_RANDOM_DELAYS nothing.
inline void draw_delay([[maybe_unused]] uint64 seed) {
#if defined(GIWA_RANDOM_DELAYS)
  constexpr unsigned nanoseconds[] = {0, 300, 4000};
  check_cuda(cudaMemcpyToSymbol(giwa::arch::random_delay, &nanoseconds[seed % 3], sizeof(unsigned)));
#endif
}

/// Memory of a problem on the GPU.
struct problem_memory {
  unsigned char* data;
  int64 bytes;
};
template <class T>
problem_memory memory_of(const gpu_array<T>& a) {
  return {reinterpret_cast<unsigned char*>(a.data()), static_cast<int64>(a.bytes())};
}
/// In an arena, arrays one after the other as one.
inline std::vector<problem_memory> joined(std::vector<problem_memory> memory) {
  if (device_arena::of_thread() == nullptr) return memory;
  std::sort(memory.begin(), memory.end(), [](const auto& a, const auto& b) { return a.data < b.data; });
  std::vector<problem_memory> all;
  for (const problem_memory& m : memory)
    if (!all.empty() && m.data - (all.back().data + all.back().bytes) <= 512)
      all.back().bytes = m.data + m.bytes - all.back().data;
    else
      all.push_back(m);
  return all;
}
struct late_restores {
  static constexpr int most = 20;
  problem_memory to[most];
  const unsigned char* from[most];
  int count;
};

/// Lets the next kernel start, and copies after a while in which that one runs up to its wait. One block, so that there is room.
template <class = void>
__global__ void __launch_bounds__(1024) restore_late(const __grid_constant__ late_restores r) {
  giwa::arch::launch_dependents();
  for (int i = 0; i < 20; ++i) __nanosleep(1000);
  for (int n = 0; n < r.count; ++n) {
    const int64 words = r.to[n].bytes / 16;
    for (int64 i = threadIdx.x; i < words; i += 1024)
      reinterpret_cast<uint4*>(r.to[n].data)[i] = reinterpret_cast<const uint4*>(r.from[n])[i];
    for (int64 i = 16 * words + threadIdx.x; i < r.to[n].bytes; i += 1024) r.to[n].data[i] = r.from[n][i];
  }
}

/// Runs call() on a stream in a mode. `memory` is what the call reads and writes; in `late` all of it is 0xff until the kernel before
/// the call restores it. reset() enqueues what gives outputs and workspace the bytes that they had before the call.
template <class Call, class Reset>
giwa::status run_in(run_mode mode, cudaStream_t s, const std::vector<problem_memory>& memory, const Call& call,
                    const Reset& reset) {
  if (device_arena* const arena = device_arena::of_thread()) arena->upload();
  if (mode == run_mode::plain) {
    const giwa::status state = call();
    check_cuda(cudaStreamSynchronize(s));
    return state;
  }
  if (mode == run_mode::late) {
    std::vector<gpu_array<unsigned char>> copies;
    late_restores restores{};
    for (const problem_memory& m : joined(memory)) {
      if (m.bytes == 0) continue;
      if (restores.count == late_restores::most) throw std::logic_error("more arrays than late_restores has");
      copies.emplace_back(static_cast<std::size_t>(m.bytes));
      const auto bytes = static_cast<std::size_t>(m.bytes);
      check_cuda(cudaMemcpyAsync(copies.back().data(), m.data, bytes, cudaMemcpyDeviceToDevice, s));
      check_cuda(cudaMemsetAsync(m.data, 0xff, bytes, s));
      restores.to[restores.count] = m, restores.from[restores.count++] = copies.back().data();
    }
    // After a kernel with less shared memory the next one would not begin early.
    const int64 shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    giwa::throw_if_failed(
        giwa::launch(s, {.grid = 1, .block = 1024, .shared_bytes = shared}, restore_late<>, restores));
    const giwa::status state = call();
    check_cuda(cudaStreamSynchronize(s));
    return state;
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  giwa::status state;
  {
    const std::lock_guard lock(capture_mutex());
    check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    state = call();
    check_cuda(cudaStreamEndCapture(s, &graph));
  }
  if (state.ok()) {
    check_cuda(cudaGraphInstantiate(&ready, graph, 0));
    check_cuda(cudaGraphLaunch(ready, s));
    reset();
    check_cuda(cudaGraphLaunch(ready, s));
    check_cuda(cudaGraphExecDestroy(ready));  // while it may still run
  }
  check_cuda(cudaGraphDestroy(graph));
  check_cuda(cudaStreamSynchronize(s));
  return state;
}

}  // namespace giwa_test::fuzz

#endif
