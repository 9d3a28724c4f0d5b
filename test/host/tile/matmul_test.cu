// SPDX-License-Identifier: MIT
// The matrix products of the examples on the host executor.
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>

#include <string_view>

#include "matmul_cases.cuh"

using namespace giwa_test;

namespace {

struct on_the_host {
  template <class T, class U, class Call>
  bool run(const std::vector<T>& a, const std::vector<T>& b, std::vector<U>& c, const Call& call) const {
    return call(giwa::host, a.data(), b.data(), c.data()).ok();
  }
};

template <step Step>
void check_types() {
  check_matmul<Step, float, float>(on_the_host{}, 25, 150);
  check_matmul<Step, fp16, fp16>(on_the_host{}, 25, 150);
  check_matmul<Step, bf16, float>(on_the_host{}, 15, 150);
}

}  // namespace

TEST_CASE("step 1 of the matrix product is exact on the CPU") { check_types<step::naive>(); }
TEST_CASE("step 2 of the matrix product is exact on the host executor") { check_types<step::shared_tile>(); }
TEST_CASE("step 3 of the matrix product is exact on the host executor") { check_types<step::register_tile>(); }
TEST_CASE("step 3 of the matrix product is exact in small tiles") { check_types<step::small_register_tile>(); }

TEST_CASE("matrix products refuse sizes that do not agree") {
  check_refusals<step::naive>(giwa::host);
  check_refusals<step::shared_tile>(giwa::host);
  check_refusals<step::register_tile>(giwa::host);
}
