// SPDX-License-Identifier: MIT
// Products of shared tiles in fp32 arithmetic on a GPU.
#include "host/tile/mma_cases.cuh"
#include "support/gpu.cuh"

using namespace giwa_test;

namespace {

class on_a_gpu {
 public:
  on_a_gpu() : stream_(new_stream()) {}
  template <class Op>
  bool run(const Op& op, const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& d) const {
    const gpu_array<float> a_gpu(a), b_gpu(b), d_gpu(d);
    if (!giwa::launch(stream_, {.block = Op::max_threads}, op, {a_gpu.data(), b_gpu.data(), d_gpu.data()}).ok())
      return false;
    if (!giwa::synchronize(stream_).ok()) return false;
    d = d_gpu.to_host();
    return true;
  }

 private:
  giwa::stream stream_;
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("tiles are multiplied on a GPU", "", all_multiplied) { check_products<TestType>(on_a_gpu{}); }
