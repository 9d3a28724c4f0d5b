// SPDX-License-Identifier: MIT
// Device memory that the small arrays of a thread share: cudaMalloc, a fill and a copy for each array take most of the time of a small
// random problem.
#ifndef GIWA_TEST_SUPPORT_DEVICE_ARENA_CUH
#define GIWA_TEST_SUPPORT_DEVICE_ARENA_CUH

#include <cuda_runtime.h>

#include <giwa/numeric/integer.hpp>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/environment.hpp"

namespace giwa_test {

/// Throws where the CUDA runtime reports an error; Catch2 prints the text.
inline void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

/// Arrays one after the other, with a copy in host memory that is filled first. What was written there is uploaded when the address of
/// an array is asked for. All space is free again when there is no array any more. A thread waits for its own streams only, so that
/// several threads do not wait for each other.
class device_arena {
 public:
  /// The arena of this thread, or null where arrays have memory of their own. GIWA_TEST_ARENA=1 asks for arenas, and so does a fuzz program with --small.
  static device_arena* of_thread() {
    static const bool wanted = is_set("GIWA_TEST_ARENA");
    if (!wanted) return nullptr;
    static thread_local device_arena* const mine = new device_arena;  // kept until the process ends
    return mine;
  }

  /// The offset of so many bytes, or -1 where they do not fit.
  giwa::int64 take(std::size_t bytes) {
    const auto needed = static_cast<giwa::int64>((bytes + 1 + align - 1) / align * align);
    if (needed > size - used_) return -1;
    const giwa::int64 at = used_;
    used_ += needed, ++arrays_;
    fill(at, needed, 0xff);  // NaN between arrays
    return at;
  }
  void release() {
    if (--arrays_ == 0) used_ = 0, written_.clear();
  }

  void fill(giwa::int64 at, giwa::int64 bytes, int byte) {
    if (bytes > upload_most) {
      upload();
      check_cuda(cudaMemsetAsync(device_ + at, byte, static_cast<std::size_t>(bytes), cudaStreamPerThread));
      check_cuda(cudaStreamSynchronize(cudaStreamPerThread));
      return;
    }
    std::memset(host_ + at, byte, static_cast<std::size_t>(bytes));
    note(at, bytes);
  }
  void write(giwa::int64 at, const void* from, giwa::int64 bytes) {
    if (bytes == 0) return;
    std::memcpy(host_ + at, from, static_cast<std::size_t>(bytes));
    note(at, bytes);
  }
  unsigned char* address(giwa::int64 at) {
    upload();
    return device_ + at;
  }
  /// Before a stream captures, too.
  void upload() {
    if (written_.empty()) return;
    for (const auto& [first, last] : written_)
      check_cuda(cudaMemcpyAsync(device_ + first, host_ + first, static_cast<std::size_t>(last - first),
                                 cudaMemcpyHostToDevice, cudaStreamPerThread));
    written_.clear();
    check_cuda(cudaStreamSynchronize(cudaStreamPerThread));
  }
  void read(giwa::int64 at, void* to, giwa::int64 bytes) {
    if (bytes == 0) return;
    check_cuda(cudaMemcpyAsync(host_ + at, address(at), static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost,
                               cudaStreamPerThread));
    check_cuda(cudaStreamSynchronize(cudaStreamPerThread));
    std::memcpy(to, host_ + at, static_cast<std::size_t>(bytes));
  }

 private:
  static constexpr giwa::int64 size = giwa::int64{48} << 20, upload_most = 1 << 19, align = 256;
  unsigned char *device_ = nullptr, *host_ = nullptr;
  giwa::int64 used_ = 0, arrays_ = 0;
  std::vector<std::pair<giwa::int64, giwa::int64>> written_;  // not uploaded yet: first and last byte + 1

  // Threads sleep while they wait: on a GPU that other processes use too, many threads then draw more than there are cores.
  device_arena() {
    check_cuda(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    check_cuda(cudaMalloc(&device_, size));
    check_cuda(cudaMallocHost(&host_, size));
  }
  /// Joins what follows on what was written last, or is within it.
  void note(giwa::int64 first, giwa::int64 bytes) {
    if (!written_.empty() && first >= written_.back().first && first <= written_.back().second)
      written_.back().second = std::max(written_.back().second, first + bytes);
    else
      written_.emplace_back(first, first + bytes);
  }
};

}  // namespace giwa_test

#endif
