// SPDX-License-Identifier: MIT
// A checked build stops a kernel that reads outside a view, and the stream reports it. Nothing can follow in this program.
#define GIWA_CHECKED 1
#include <giwa/giwa.cuh>

#include "support/catch.hpp"
#include "support/gpu.cuh"

struct read_at {
  giwa::tensor_view<const int, 1> in;
  int* out;
  giwa::int64 at;
  GIWA_HOST_DEVICE void operator()(giwa::int64) const { *out = in(at); }
};

TEST_CASE("a checked build stops a kernel that reads outside a view") {
  if (giwa_test::small_mode()) return;  // a sanitizer would report the stop
  const giwa_test::gpu_array<int> memory(8, 0);
  const giwa::tensor_view<const int, 1> four(memory.data(), {4});
  REQUIRE(giwa::for_all(nullptr, 1, read_at{four, memory.data() + 7, 3}).ok());
  REQUIRE(giwa::synchronize(nullptr).ok());
  REQUIRE(giwa::for_all(nullptr, 1, read_at{four, memory.data() + 7, 4}).ok());  // inside the memory, outside the view
  const giwa::status stopped = giwa::synchronize(nullptr);
  CHECK(stopped.code == giwa::status_code::cuda_error);
}
