// SPDX-License-Identifier: MIT
// The pipeline on a GPU: what goes in comes out, in order and whole.
#include "host/tile/pipeline_cases.cuh"
#include "support/gpu.cuh"

using namespace giwa_test;

namespace {

class on_a_gpu {
 public:
  on_a_gpu() : stream_(new_stream()) {}
  template <class Op>
  bool run(const Op& op, const std::vector<float>& even, const std::vector<int>& odd, std::vector<float>& even_out,
           std::vector<int>& odd_out, int steps, int rows, int odd_rows) const {
    const gpu_array<float> even_gpu(even), even_out_gpu(even_out.size());
    const gpu_array<int> odd_gpu(odd), odd_out_gpu(odd_out.size());
    const pipeline_params p{
        {even_gpu.data(), {rows, 40}}, {odd_gpu.data(), {odd_rows, 5}}, even_out_gpu.data(), odd_out_gpu.data(), steps};
    if (!giwa::launch(stream_, {.block = Op::max_threads}, op, p).ok()) return false;
    if (!giwa::synchronize(stream_).ok()) return false;
    even_out = even_out_gpu.to_host();
    odd_out = odd_out_gpu.to_host();
    return true;
  }

 private:
  giwa::stream stream_;
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("a pipeline hands on its stages in order on a GPU", "", all_staged) {
  check_pipeline<TestType>(on_a_gpu{});
}
