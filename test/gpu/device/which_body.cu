// SPDX-License-Identifier: MIT
// Programs built for sm_90, sm_90a and sm_75 alone: each knows which it is, the first says what to add, the last runs on no
// other GPU and says so. which_body.cmake compiles this file for each; GIWA_TEST_CAPABILITY is 90, 90, 75, and
// GIWA_TEST_SPECIFIC is 1 for sm_90a.
#include <giwa/giwa.cuh>

#include <string>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::int64;
using giwa::status_code;

struct nothing {
  GIWA_HOST_DEVICE void operator()(int64) const {}
};

TEST_CASE("a program knows which of its bodies the GPU would run") {
  const giwa::environment e = giwa::check_environment();
  INFO(e.advice);
  CHECK(giwa_test::no_error_left());
  const std::string advice = e.advice;
  if (giwa_test::capability() !=
      GIWA_TEST_CAPABILITY) {  // machine code of one architecture, no PTX: nothing here can run
    CHECK(e.verdict.code == status_code::no_kernel_image);
    CHECK(advice.find("CMAKE_CUDA_ARCHITECTURES=") != std::string::npos);
    CHECK(giwa::code_for_current_device().state.code == status_code::no_kernel_image);
    CHECK(giwa::for_all(nullptr, 100, nothing{}).code == status_code::no_kernel_image);
    CHECK(giwa_test::no_error_left());
    CHECK_FALSE(giwa::choose_device().on_gpu());
    CHECK(giwa_test::no_error_left());
    return;
  }
  REQUIRE(e.verdict.ok());
  CHECK(e.code.architecture == GIWA_TEST_CAPABILITY);
  if (GIWA_TEST_CAPABILITY != 90) return;
  CHECK(e.code.architecture_specific == (GIWA_TEST_SPECIFIC == 1));
  const bool names_the_flag = advice.find("-gencode arch=compute_90a,code=sm_90a") != std::string::npos;
  CHECK(names_the_flag == (GIWA_TEST_SPECIFIC == 0));
  const giwa::result<giwa::device_code> code = giwa::code_for_current_device();
  REQUIRE(code.ok());
  CHECK(code.value.architecture_specific == e.code.architecture_specific);
}
