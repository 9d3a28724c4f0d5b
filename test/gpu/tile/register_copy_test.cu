// SPDX-License-Identifier: MIT
// Register tiles on a GPU: the cases of the host executor's test, and stmatrix where there is one.
#include "host/tile/register_cases.cuh"
#include "support/gpu.cuh"

using namespace giwa_test;

namespace {

class on_a_gpu {
 public:
  on_a_gpu() : stream_(new_stream()) {}
  template <class Op, class Params>
  bool run(const giwa::launch_config& config, const Op& op, const std::vector<float>& in, byte_array& out,
           Params params) const {
    const gpu_array<float> in_gpu(in);
    const gpu_array<unsigned char> out_gpu(out);
    check_cuda(cudaDeviceSynchronize());  // the copies are done
    if (!giwa::launch(stream_, config, op, params(in_gpu.data(), out_gpu.data())).ok()) return false;
    if (!giwa::synchronize(stream_).ok()) return false;
    out = out_gpu.to_host();
    return true;
  }

 private:
  giwa::stream stream_;
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("rows of a register tile are reduced on a GPU", "", reduced_maps) {
  check_reductions<TestType>(on_a_gpu{});
}

TEMPLATE_LIST_TEST_CASE("a register tile is stored to shared memory on a GPU", "", stored_to_shared) {
  check_to_shared<TestType>(on_a_gpu{});
}

TEMPLATE_LIST_TEST_CASE("a register tile is stored to a view on a GPU", "", stored_to_global) {
  check_to_global<TestType>(on_a_gpu{}, small_mode() ? 20 : 300);
}
