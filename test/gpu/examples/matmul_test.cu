// SPDX-License-Identifier: MIT
// The matrix products of the examples on a GPU.
#include <string_view>

#include "host/tile/matmul_cases.cuh"
#include "support/gpu.cuh"

using namespace giwa_test;

namespace {

class on_a_gpu {
 public:
  on_a_gpu() : stream_(new_stream()) {}
  template <class T, class U, class Call>
  bool run(const std::vector<T>& a, const std::vector<T>& b, std::vector<U>& c, const Call& call) const {
    const gpu_array<T> a_gpu(a), b_gpu(b);
    const gpu_array<U> c_gpu(c);
    if (!call(cudaStream_t{stream_}, a_gpu.data(), b_gpu.data(), c_gpu.data()).ok()) return false;
    if (!giwa::synchronize(stream_).ok()) return false;
    c = c_gpu.to_host();
    return true;
  }

 private:
  giwa::stream stream_;
};

template <step Step>
void check_types() {
  const on_a_gpu machine;
  const int cases = small_mode() ? 12 : 120;
  check_matmul<Step, float, float>(machine, cases, 300);
  check_matmul<Step, fp16, fp16>(machine, cases, 300);
  check_matmul<Step, bf16, float>(machine, cases / 2, 300);
}

// No leading dimension is aligned, and no size is a multiple of a tile.
template <step Step>
void check_unaligned() {
  if (small_mode()) return;
  random_sequence random(7);
  REQUIRE(product_is_exact<Step, float, float>(on_a_gpu{}, 1000, 1003, 997, 0, 0, 0, random));
  REQUIRE(product_is_exact<Step, fp16, float>(on_a_gpu{}, 1000, 1003, 997, 0, 0, 0, random));
}

}  // namespace

TEST_CASE("step 1 of the matrix product is exact on a GPU") {
  check_types<step::naive>();
  check_unaligned<step::naive>();
}
TEST_CASE("step 2 of the matrix product is exact on a GPU") {
  check_types<step::shared_tile>();
  check_unaligned<step::shared_tile>();
}
TEST_CASE("step 3 of the matrix product is exact on a GPU") {
  check_types<step::register_tile>();
  check_unaligned<step::register_tile>();
}
TEST_CASE("step 3 of the matrix product is exact on a GPU in small tiles") {
  check_types<step::small_register_tile>();
  check_unaligned<step::small_register_tile>();
}

TEST_CASE("step 4 of the matrix product is exact on a GPU") {
  const on_a_gpu machine;
  check_matmul<step::mma, fp16, fp16>(machine, small_mode() ? 12 : 120, 300);
  check_matmul<step::mma, fp16, float>(machine, small_mode() ? 12 : 60, 300);
  random_sequence random(7);
  if (!small_mode()) REQUIRE(product_is_exact<step::mma, fp16, float>(machine, 1000, 1003, 997, 0, 0, 0, random));
}
TEST_CASE("step 5 of the matrix product is exact on a GPU, whichever kernel it takes") {
  const on_a_gpu machine;
  check_matmul<step::wgmma, fp16, fp16>(machine, small_mode() ? 12 : 120, 300);
  random_sequence random(7);
  for (const int64 n : {264, 328, 256, 100, 97})        // c's rows: multiples of 16 bytes, or not
    for (int i = 0; i < (small_mode() ? 1 : 6); ++i) {  // with other gaps behind the rows each time
      CAPTURE(n, i);
      REQUIRE(product_is_exact<step::wgmma, bf16, bf16>(machine, 130 + i, n, 72, 0, 0, 0, random));
    }
}

TEST_CASE("matrix products on a stream refuse sizes that do not agree") {
  const giwa::stream s = new_stream();
  check_refusals<step::naive>(cudaStream_t{s});
  check_refusals<step::shared_tile>(cudaStream_t{s});
  check_refusals<step::register_tile>(cudaStream_t{s});
  CHECK(no_error_left());
}

TEST_CASE("matrix products can be captured") {
  const giwa::stream s = new_stream();
  const gpu_array<float> a(130 * 40, 0), b(40 * 70, 0), c(130 * 70);
  const giwa::tensor_view<const float, 2> view_a{a.data(), {130, 40}}, view_b{b.data(), {40, 70}};
  const giwa::tensor_view<float, 2> view_c{c.data(), {130, 70}};
  CHECK(capture_and_replay(s, 2, [&] {
          if (const giwa::status x = matmul::naive(s, view_a, view_b, view_c); !x.ok()) return x;
          if (const giwa::status x = matmul::shared_tile(s, view_a, view_b, view_c); !x.ok()) return x;
          return matmul::register_tile(s, view_a, view_b, view_c);
        }).ok());
  for (const float x : c.to_host()) REQUIRE(x == 0);
}
