// SPDX-License-Identifier: MIT
// What part.cu defines, compiled twice: for the architecture list 80 and for 90a.
#ifndef GIWA_TEST_ODR_PARTS_HPP
#define GIWA_TEST_ODR_PARTS_HPP

#include <cuda_runtime_api.h>

#include <giwa/base/status.hpp>
#include <giwa/numeric/tensor_view.hpp>

// Each part has the same op, and so the same instantiation of giwa::launch.
#define GIWA_TEST_DECLARE_PART                                                                \
  const void* address_of_launch();                                                            \
  giwa::status run(cudaStream_t stream, int* architecture); /* writes what ran, 800 or 900 */ \
  giwa::status check_square(giwa::tensor_view<const float, 2> matrix);

namespace part_80 {
GIWA_TEST_DECLARE_PART
}
namespace part_90a {
GIWA_TEST_DECLARE_PART
}

#endif
