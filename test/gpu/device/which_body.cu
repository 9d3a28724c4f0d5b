// SPDX-License-Identifier: MIT
// One program built for sm_90 and one for sm_90a: each knows which it is, and the first says what to add.
// which_body.cmake compiles this file twice, and GIWA_TEST_SPECIFIC is 1 for sm_90a.
#include <giwa/device.hpp>

#include <string>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::status_code;

TEST_CASE("a program knows which of its bodies the GPU would run") {
  const giwa::environment e = giwa::check_environment();
  INFO(e.advice);
  CHECK(giwa_test::no_error_left());
  const std::string advice = e.advice;
  if (giwa_test::capability() != 90) {  // machine code of one architecture, no PTX: nothing here can run
    CHECK(e.verdict.code == status_code::no_kernel_image);
    CHECK(advice.find("CMAKE_CUDA_ARCHITECTURES=") != std::string::npos);
    CHECK(giwa::code_for_current_device().state.code == status_code::no_kernel_image);
    return;
  }
  REQUIRE(e.verdict.ok());
  CHECK(e.code.architecture == 90);
  CHECK(e.code.architecture_specific == (GIWA_TEST_SPECIFIC == 1));
  const bool names_the_flag = advice.find("-gencode arch=compute_90a,code=sm_90a") != std::string::npos;
  CHECK(names_the_flag == (GIWA_TEST_SPECIFIC == 0));
  const giwa::result<giwa::device_code> code = giwa::code_for_current_device();
  REQUIRE(code.ok());
  CHECK(code.value.architecture_specific == e.code.architecture_specific);
}
