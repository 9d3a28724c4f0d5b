// SPDX-License-Identifier: MIT
// Online softmax on a GPU: the cases of the host executor's test.
#include "host/softmax/online_cases.cuh"
#include "support/gpu.cuh"

using namespace giwa_test;

namespace {

class on_a_gpu {
 public:
  on_a_gpu() : stream_(new_stream()) {}
  template <class Op>
  bool run(const Op& op, const std::vector<float>& scores, int tiles, float scale_log2, online_results& r) const {
    const gpu_array<float> scores_gpu(scores), weights(r.weights.size()), factors(r.factors.size()),
        results(r.results.size());
    const gpu_array<int> unequal(1, 0);
    check_cuda(cudaDeviceSynchronize());  // the copies are done
    if (!giwa::launch(
             stream_, {.block = Op::max_threads}, op,
             {scores_gpu.data(), tiles, scale_log2, weights.data(), factors.data(), results.data(), unequal.data()})
             .ok())
      return false;
    if (!giwa::synchronize(stream_).ok()) return false;
    r = {weights.to_host(), factors.to_host(), results.to_host(), unequal.to_host()};
    return true;
  }

 private:
  giwa::stream stream_;
};

}  // namespace

TEMPLATE_TEST_CASE("tiles of scores become their softmax on a GPU", "", (warp_map<16, 32>), (warp_map<32, 16>),
                   (warpgroup_map<16>), (warpgroup_map<128>), (thread_map<tile_shape<32, 64>, 8, 16, 2>),
                   (thread_map<tile_shape<32, 4>, 32, 1>)) {
  for (const int tiles : {1, 6, 33}) check_online<online_op<TestType>>(on_a_gpu{}, tiles);
  check_factors_of_one<online_op<TestType>>(on_a_gpu{});
  check_large<online_op<TestType>>(on_a_gpu{});
  check_online<online_op<TestType, 8>>(on_a_gpu{}, 33);
  check_large<online_op<TestType, 8>>(on_a_gpu{});
  check_slack<online_op<TestType, 8>>(on_a_gpu{});
  check_without_maxima<TestType>(on_a_gpu{}, 33);
}
