// SPDX-License-Identifier: MIT
// The transpose and the stencil of the examples on a GPU.
#include "host/tile/transpose_cases.cuh"
#include "support/gpu.cuh"

using namespace giwa_test;

namespace {

class on_a_gpu {
 public:
  on_a_gpu() : stream_(new_stream()) {}
  template <class T, class Call>
  bool run(const std::vector<T>& in, std::vector<T>& out, const Call& call) const {
    const gpu_array<T> in_gpu(in), out_gpu(out);
    if (!call(stream_, in_gpu.data(), out_gpu.data()).ok()) return false;
    if (!giwa::synchronize(stream_).ok()) return false;
    out = out_gpu.to_host();
    return true;
  }

 private:
  giwa::stream stream_;
};

}  // namespace

TEST_CASE("matrices are transposed on a GPU") {
  check_transpose<giwa::uint32>(on_a_gpu{}, small_mode() ? 20 : 300, 300);
  check_transpose<unsigned short>(on_a_gpu{}, small_mode() ? 20 : 300, 400);
}

TEST_CASE("staged sweeps are plain sweeps, bit by bit, on a GPU") {
  check_sweeps<1>(on_a_gpu{}, small_mode() ? 10 : 100, 300);
  check_sweeps<4>(on_a_gpu{}, small_mode() ? 10 : 100, 300);
  check_sweeps<8>(on_a_gpu{}, small_mode() ? 10 : 100, 300);
}
