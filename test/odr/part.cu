// SPDX-License-Identifier: MIT
// One half of the ODR test; GIWA_TEST_PART names it.
#include <giwa/grid/launch.cuh>

#include "parts.hpp"

struct write_architecture {
  struct params {
    int* out;
  };
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 32;
  static constexpr int min_blocks = 1;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
#if defined(__CUDA_ARCH__)
    if (block.rank() == 0) *p.out = __CUDA_ARCH__;
#else
    static_cast<void>(block), static_cast<void>(p);
#endif
  }
};

namespace GIWA_TEST_PART {

using params = write_architecture::params;

const void* address_of_launch() {
  giwa::status (*launch)(cudaStream_t, const giwa::launch_config&, const write_architecture&, const params&) =
      giwa::launch<write_architecture>;
  return reinterpret_cast<const void*>(launch);
}

giwa::status run(cudaStream_t stream, int* architecture) {
  return giwa::launch(stream, {.grid = 1, .block = 32}, write_architecture{}, params{architecture});
}

giwa::status check_square(giwa::tensor_view<const float, 2> matrix) {
  if (matrix.extent(0) == matrix.extent(1)) return {};
  return giwa::status::invalid("matrix", "is not square", giwa::bound::exactly, matrix.extent(0), matrix.extent(1));
}

}  // namespace GIWA_TEST_PART
