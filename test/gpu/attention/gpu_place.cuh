// SPDX-License-Identifier: MIT
// A GPU as a place for drawn problems: its memory, and the check of rows by a warp each.
#ifndef GIWA_TEST_GPU_ATTENTION_GPU_PLACE_CUH
#define GIWA_TEST_GPU_ATTENTION_GPU_PLACE_CUH

#include <algorithm>

#include <giwa/grid/for_all.cuh>

#include "gpu/attention/row_check.hpp"
#include "support/gpu.cuh"

namespace giwa_test::attention {

/// The 32 threads of a warp; on the host it is never called.
struct warp_lanes {
  GIWA_DEVICE int rank() const { return static_cast<int>(threadIdx.x % 32); }
  GIWA_DEVICE int size() const { return 32; }
  GIWA_DEVICE void sync() const { __syncwarp(); }
  template <class Value, class Join>
  GIWA_DEVICE Value all(Value x, Join join) const {
    for (int distance = 16; distance > 0; distance /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
  }
};

template <class T>
__global__ void __launch_bounds__(128) check_rows(const __grid_constant__ located_problem p, int64 rows, int64 keys,
                                                  key_score* scores, row_finding* found) {
  const int64 warp = (int64{blockIdx.x} * 128 + threadIdx.x) / 32, warps = int64{gridDim.x} * 4;
  const warp_lanes lanes;
  for (int64 row = warp; row < rows; row += warps) {
    const row_finding f = check_row<T>(lanes, p, row, scores + warp * keys);
    if (lanes.rank() == 0) found[row] = f;
    lanes.sync();  // the scores may be overwritten
  }
}

template <class = void>
__global__ void __launch_bounds__(256) count_written(const unsigned char* from, int64 bytes, uint64* count) {
  uint64 mine = 0;
  for (int64 i = int64{blockIdx.x} * 256 + threadIdx.x; i < bytes; i += int64{gridDim.x} * 256)
    mine += from[i] != 0xff ? 1 : 0;
  if (mine != 0) atomicAdd(reinterpret_cast<unsigned long long*>(count), static_cast<unsigned long long>(mine));
}

class gpu_place {
 public:
  /// The check's own memory is a third of it.
  explicit gpu_place(int64 bytes)
      : stream_(new_stream()),
        memory_(static_cast<std::size_t>(bytes / 3 * 2)),
        scores_(static_cast<std::size_t>(bytes / 3)) {}

  cudaStream_t stream() const { return stream_; }
  void clear() { used_ = 0; }
  /// What was taken so far.
  void* begin() const { return memory_.data(); }
  int64 used() const { return used_; }
  /// Memory at a multiple of 256 bytes; null where there is no more.
  void* take(int64 bytes) {
    const int64 first = giwa::round_up(used_, int64{256});
    if (first + bytes > static_cast<int64>(memory_.size())) return nullptr;
    used_ = first + bytes;
    return memory_.data() + first;
  }
  void poison() { check_cuda(cudaMemsetAsync(memory_.data(), 0xff, static_cast<std::size_t>(used_), stream_)); }
  void upload(int* to, const std::vector<int>& from) {
    check_cuda(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(int), cudaMemcpyHostToDevice, stream_));
    check_cuda(cudaStreamSynchronize(stream_));
  }
  template <class F>
  void for_all(int64 n, const F& f) {
    giwa::throw_if_failed(giwa::for_all(stream_, n, f));
  }
  std::string check(const located_problem& p, int64 rows, int64 keys, std::vector<row_finding>& found) {
    found.resize(static_cast<std::size_t>(rows));
    if (rows == 0) return "";
    const int64 for_scores = static_cast<int64>(scores_.size()) / 2;
    if (rows * static_cast<int64>(sizeof(row_finding)) > for_scores)
      return "the test has too little memory for findings";
    int64 blocks = std::min<int64>(giwa::ceil_div(rows, 4), 132 * 12);
    blocks = std::min(blocks, for_scores / (4 * keys * static_cast<int64>(sizeof(key_score))));
    if (blocks == 0) return "the test has too little memory for scores";
    auto* const findings = reinterpret_cast<row_finding*>(scores_.data());
    auto* const scores = reinterpret_cast<key_score*>(scores_.data() + giwa::round_up(for_scores, int64{256}));
    const auto run = [&](auto kernel) {
      giwa::throw_if_failed(
          giwa::launch(stream_, {.grid = blocks, .block = 128}, kernel, p, rows, keys, scores, findings));
    };
    switch (p.types.input) {
      case element::of_fp32: run(check_rows<float>); break;
      case element::of_fp16: run(check_rows<fp16>); break;
      case element::of_bf16: run(check_rows<bf16>); break;
    }
    check_cuda(
        cudaMemcpyAsync(found.data(), findings, found.size() * sizeof(row_finding), cudaMemcpyDeviceToHost, stream_));
    check_cuda(cudaStreamSynchronize(stream_));
    return "";
  }
  /// Bytes that are not 0xff.
  int64 written(const void* from, int64 bytes) {
    auto* const count = reinterpret_cast<uint64*>(scores_.data());
    check_cuda(cudaMemsetAsync(count, 0, sizeof(uint64), stream_));
    count_written<><<<static_cast<unsigned>(std::min<int64>(giwa::ceil_div(bytes, 256), 1024)), 256, 0, stream_>>>(
        static_cast<const unsigned char*>(from), bytes, count);
    check_cuda(cudaGetLastError());
    uint64 result = 0;
    check_cuda(cudaMemcpyAsync(&result, count, sizeof result, cudaMemcpyDeviceToHost, stream_));
    check_cuda(cudaStreamSynchronize(stream_));
    return static_cast<int64>(result);
  }

 private:
  giwa::stream stream_;
  gpu_array<char> memory_, scores_;
  int64 used_ = 0;
};

}  // namespace giwa_test::attention

#endif
