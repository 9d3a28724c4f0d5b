// SPDX-License-Identifier: MIT
// What the GPU tests share: device memory made of nothing but the CUDA runtime, byte counters, capture.
#ifndef GIWA_TEST_SUPPORT_GPU_CUH
#define GIWA_TEST_SUPPORT_GPU_CUH

#include <cuda_runtime.h>

#include <giwa/base/throw.hpp>
#include <giwa/device/stream.hpp>

#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/device_arena.cuh"
#include "support/environment.hpp"

namespace giwa_test {

/// Keeps the calling thread busy for so long.
__device__ inline void spin(giwa::int64 nanoseconds) {
  giwa::uint64 begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now < begin + static_cast<giwa::uint64>(nanoseconds));
}

using giwa::int64;
using giwa::uint64;

/// An attribute of the current GPU.
inline int64 device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device));
  check_cuda(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

/// The current GPU's compute capability, as 90.
inline int64 capability() {
  return 10 * device_attribute(cudaDevAttrComputeCapabilityMajor) + device_attribute(cudaDevAttrComputeCapabilityMinor);
}

/// No call of giwa leaves an error behind for somebody else's cudaGetLastError.
inline bool no_error_left() { return cudaPeekAtLastError() == cudaSuccess; }

/// A stream of its own, so that no test passes only because of what the default stream waits for.
inline giwa::stream new_stream() { return giwa::throw_if_failed(giwa::stream::create()); }

/// Held while a stream captures, and while a thread waits for the device: CUDA refuses to wait for a device of which any thread
/// captures a stream, and invalidates the capture.
inline std::mutex& capture_mutex() {
  static std::mutex mutex;
  return mutex;
}
inline void wait_for_device() {
  const std::lock_guard lock(capture_mutex());
  check_cuda(cudaDeviceSynchronize());
}

/// Where an array lies. Pages of managed memory are on the host until the GPU reads them, for which it waits tens of microseconds. Pinned
/// memory is read over the bus each time, in a microsecond or two.
enum class array_place { gpu, managed, pinned };

/// Device memory, all of its bytes 0xff (NaN, or -1) or as given. Copies to the host wait for the whole device, or, of a thread with an
/// arena, for nothing: there the work on the array has ended.
template <class T>
class gpu_array {
 public:
  explicit gpu_array(std::size_t size, int byte = 0xff, array_place place = array_place::gpu) : size_(size) {
    if (place != array_place::gpu) {
      is_pinned_ = place == array_place::pinned;
      check_cuda(is_pinned_ ? cudaMallocHost(&data_, bytes() + 1) : cudaMallocManaged(&data_, bytes() + 1));
      std::memset(static_cast<void*>(data_), byte, bytes());
    } else if (device_arena* const arena = device_arena::of_thread();
               arena != nullptr && (at_ = arena->take(bytes())) >= 0) {
      arena_ = arena;
      if (byte != 0xff) fill(byte);
    } else {
      check_cuda(cudaMalloc(&data_, bytes() + (size == 0 ? 1 : 0)));
      fill(byte);
    }
  }
  explicit gpu_array(const std::vector<T>& from, array_place place = array_place::gpu)
      : gpu_array(from.size(), 0xff, place) {
    if (arena_ != nullptr) {
      arena_->write(at_, from.data(), static_cast<int64>(bytes()));
      return;
    }
    if (place != array_place::gpu) {
      if (!from.empty()) std::memcpy(static_cast<void*>(data_), from.data(), bytes());
      return;
    }
    check_cuda(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice));
    // From pageable memory the copy may end after the call, and a stream of one's own does not wait for it.
    wait_for_device();
  }
  ~gpu_array() {
    if (arena_ != nullptr)
      arena_->release();
    else if (is_pinned_)
      cudaFreeHost(data_);
    else
      cudaFree(data_);
  }
  gpu_array(gpu_array&& other) noexcept
      : arena_(std::exchange(other.arena_, nullptr)),
        at_(other.at_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        is_pinned_(other.is_pinned_) {}
  gpu_array& operator=(gpu_array&&) = delete;

  void fill(int byte) {
    if (arena_ != nullptr) return arena_->fill(at_, static_cast<int64>(bytes()), byte);
    wait_for_device();
    check_cuda(cudaMemset(data_, byte, bytes()));
    wait_for_device();
  }
  std::vector<T> to_host() const {
    std::vector<T> copy(size_);
    if (arena_ != nullptr) {
      arena_->read(at_, copy.data(), static_cast<int64>(bytes()));
      return copy;
    }
    wait_for_device();
    check_cuda(cudaMemcpy(copy.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return copy;
  }
  T* data() const { return arena_ != nullptr ? reinterpret_cast<T*>(arena_->address(at_)) : data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }

 private:
  device_arena* arena_ = nullptr;
  int64 at_ = 0;  // in the arena
  T* data_ = nullptr;
  std::size_t size_;
  bool is_pinned_ = false;
};

/// Adds 1 to byte i, atomically; up to 255 times.
__device__ inline void count_byte(unsigned char* bytes, int64 i) {
  unsigned* const words = reinterpret_cast<unsigned*>(bytes);  // cudaMalloc's alignment; the array is a multiple of 4
  atomicAdd(words + i / 4, 1u << (8 * (i % 4)));
}

/// How often each of n elements was reached: a byte each, counted and checked on the device.
class touch_counter {
 public:
  explicit touch_counter(int64 n) : n_(n), bytes_(static_cast<std::size_t>((n + 3) / 4 * 4), 0) {}
  unsigned char* data() const { return bytes_.data(); }
  void clear() { bytes_.fill(0); }
  /// The number of elements that were not reached exactly `times` times.
  int64 wrong(int times = 1) const;

 private:
  int64 n_;
  gpu_array<unsigned char> bytes_;
};

template <class = void>
__global__ void __launch_bounds__(256)
    count_wrong_bytes(const unsigned* words, int64 n, unsigned times, uint64* wrong) {
  uint64 mine = 0;
  for (int64 w = int64{blockIdx.x} * 256 + threadIdx.x; w * 4 < n; w += int64{gridDim.x} * 256) {
    const unsigned word = words[w];
    for (int b = 0; b < 4; ++b)
      if (w * 4 + b < n && (word >> (8 * b) & 0xff) != times) ++mine;
  }
  if (mine != 0) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), static_cast<unsigned long long>(mine));
}

inline int64 touch_counter::wrong(int times) const {
  const gpu_array<uint64> result(1, 0);
  wait_for_device();
  const unsigned blocks = n_ < (1 << 20) ? 32 : 2048;
  count_wrong_bytes<><<<blocks, 256, 0, cudaStreamPerThread>>>(reinterpret_cast<const unsigned*>(bytes_.data()), n_,
                                                               static_cast<unsigned>(times), result.data());
  check_cuda(cudaGetLastError());
  return static_cast<int64>(result.to_host()[0]);
}

/// Captures what `work` gives the stream, in the global mode, which refuses every call that allocates or waits; then runs
/// it `times` times. Returns what work() returned.
template <class Work>
giwa::status capture_and_replay(cudaStream_t s, int times, Work&& work) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  const giwa::status state = work();
  check_cuda(cudaStreamEndCapture(s, &graph));
  check_cuda(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < times; ++i) check_cuda(cudaGraphLaunch(executable, s));
  check_cuda(cudaStreamSynchronize(s));
  check_cuda(cudaGraphExecDestroy(executable));
  check_cuda(cudaGraphDestroy(graph));
  return state;
}

}  // namespace giwa_test

#endif
