// SPDX-License-Identifier: MIT
// The pipeline on the host executor: what goes in comes out, in order and whole.
#include <giwa/host_executor.cuh>

#include "pipeline_cases.cuh"

using namespace giwa_test;

namespace {

struct on_the_host {
  template <class Op>
  bool run(const Op& op, const std::vector<float>& even, const std::vector<int>& odd, std::vector<float>& even_out,
           std::vector<int>& odd_out, int steps, int rows, int odd_rows) const {
    const pipeline_params p{
        {even.data(), {rows, 40}}, {odd.data(), {odd_rows, 5}}, even_out.data(), odd_out.data(), steps};
    return giwa::launch(giwa::host, {.block = Op::max_threads}, op, p).ok();
  }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("a pipeline hands on its stages in order on the host executor", "", all_staged) {
  check_pipeline<TestType>(on_the_host{});
}
