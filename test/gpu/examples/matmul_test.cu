// SPDX-License-Identifier: MIT
// The matrix products of the examples on a GPU.
#include <string_view>
#include <tuple>

#include "host/tile/matmul_cases.cuh"
#include "support/gpu.cuh"
#include "support/hopper.cuh"

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
  if constexpr (Step != step::fp32)
    REQUIRE(product_is_exact<Step, fp16, float>(on_a_gpu{}, 1000, 1003, 997, 0, 0, 0, random));
}

// A product that is near, in placed matrices.
bool fp32_is_near(const on_a_gpu& machine, int64 m, int64 n, int64 k, range r, random_sequence& random) {
  const auto layout = [&] { return random.below(2) == 0 ? 0 : static_cast<int>(random.below(4)); };
  placed_matrix<float> a(m, k, layout(), random), b(k, n, layout(), random), c(m, n, layout(), random);
  fill(a, r, matmul::lines::rows, random);
  fill(b, r, matmul::lines::columns, random);
  const auto call = [&](cudaStream_t stream, const float* of_a, const float* of_b, float* of_c) {
    return multiply_fp32(stream, {of_a + a.first, a.extents, a.strides}, {of_b + b.first, b.extents, b.strides},
                         {of_c + c.first, c.extents, c.strides});
  };
  return machine.run(a.memory, b.memory, c.memory, call) &&
         near_in_fp32(a, b, [&](int64 row, int64 column) { return c.at(row, column); });
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

TEST_CASE("step 6 of the matrix product is exact on a GPU, whichever kernel it takes") {
  const on_a_gpu machine;
  check_matmul<step::fp32, float, float>(machine, small_mode() ? 12 : 120, 300);
  check_unaligned<step::fp32>();
  random_sequence random(7);
  for (const int64 k :
       {1, 2, 63, 64, 65, 127, 128, 129, 192, 193, 256, 257, 321, 448})  // odd and even numbers of slots
    for (const int64 n : {131, 264}) {
      CAPTURE(k, n);
      REQUIRE(product_is_exact<step::fp32, float, float>(machine, 130, n, k, 0, 0, 0, random));
      if (small_mode()) break;
    }
}
TEST_CASE("step 6 of the matrix product keeps fp32's digits on a GPU") {
  if (!has_wgmma()) return;  // the plain sums of step 3 lose more where k is large
  const on_a_gpu machine;
  random_sequence random(2026);
  for (const range r : {range::plain, range::positive, range::wide_lines, range::wide, range::largest})
    for (const auto& [m, n, k] : {std::tuple<int64, int64, int64>{1, 1, 1},
                                  {5, 3, 2},
                                  {300, 200, 20},
                                  {130, 140, 64},
                                  {129, 257, 65},
                                  {260, 130, 1000},
                                  {70, 500, 129},
                                  {3, 515, 2000},
                                  {64, 64, 16384}}) {
      if (small_mode() && m * n * k > 1 << 20) continue;
      CAPTURE(static_cast<int>(r), m, n, k);
      REQUIRE(fp32_is_near(machine, m, n, k, r, random));
    }
}
TEST_CASE("step 6 of the matrix product leaves nothing finite where an input is not, on a GPU") {
  constexpr int64 m = 140, n = 150, k = 70;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> a(m * k, 1.0f), b(k * n, 1.0f), c(m * n, 0.0f);
  a[3 * k + 5] = std::nanf("");
  a[139 * k + 69] = infinity;
  a[9 * k] = 0x1p127f;  // finite, in a row of its own
  b[4 * n + 9] = -infinity;
  b[69 * n + 149] = std::nanf("");
  b[4 * n + 20] = 0;  // infinity meets zero
  a[12 * k + 4] = infinity;
  REQUIRE(on_a_gpu{}.run(a, b, c, [&](cudaStream_t stream, const float* of_a, const float* of_b, float* of_c) {
    return multiply_fp32(stream, {of_a, {m, k}}, {of_b, {k, n}}, {of_c, {m, n}});
  }));
  for (int64 row = 0; row < m; ++row)
    for (int64 column = 0; column < n; ++column) {
      const float x = c[static_cast<std::size_t>(row * n + column)];
      const bool bad = row == 3 || row == 12 || row == 139 || column == 9 || column == 149;
      CAPTURE(row, column, x);
      REQUIRE(std::isfinite(x) == !bad);
      if (!bad) REQUIRE(x == (row == 9 ? 0x1p127f : column == 20 ? 69.0f : 70.0f));
    }
}
TEST_CASE("step 6 of the matrix product refuses a workspace that does not do") {
  const giwa::stream s = new_stream();
  const gpu_array<float> memory(3 * 64, 0);
  const giwa::tensor_view<const float, 2> a{memory.data(), {5, 7}}, b{memory.data() + 64, {7, 9}};
  const giwa::tensor_view<float, 2> c{memory.data() + 128, {5, 9}};
  const int64 bytes = matmul::fp32_workspace_bytes(5, 9, 7);
  const gpu_array<unsigned char> room(static_cast<std::size_t>(2 * bytes + 16));
  using view = giwa::tensor_view<unsigned char, 1>;
  const giwa::status small = matmul::fp32(s, a, b, c, view{room.data(), {bytes - 1}});
  CHECK((std::string_view(small.argument) == "workspace" && small.expected == bytes && small.got == bytes - 1));
  for (const view& bad :
       {view{}, view{nullptr, {bytes}}, view{room.data() + 4, {bytes}}, view{room.data(), {bytes}, {2}}})
    CHECK(std::string_view(matmul::fp32(s, a, b, c, bad).argument) == "workspace");
  CHECK(matmul::fp32(s, a, b, c, view{room.data() + 16, {bytes}}).ok());
  CHECK(matmul::fp32(s, giwa::tensor_view<const float, 2>{nullptr, {0, 7}}, b,
                     giwa::tensor_view<float, 2>{nullptr, {0, 9}}, view{})
            .ok());  // nothing to do
  CHECK(giwa::synchronize(s).ok());
  const std::vector<unsigned char> after = room.to_host();  // nothing is written before or behind it
  for (std::size_t i = 0; i < after.size(); ++i)
    if (i < 16 || i >= static_cast<std::size_t>(bytes + 16)) REQUIRE(after[i] == 0xff);
}

TEST_CASE("matrix products on a stream refuse sizes that do not agree") {
  const giwa::stream s = new_stream();
  check_refusals<step::naive>(cudaStream_t{s});
  check_refusals<step::shared_tile>(cudaStream_t{s});
  check_refusals<step::register_tile>(cudaStream_t{s});
  check_refusals<step::fp32>(cudaStream_t{s});
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

TEST_CASE("step 6 of the matrix product can be captured") {
  const giwa::stream s = new_stream();
  const gpu_array<float> a(std::vector<float>(130 * 75, 3.0f)), b(std::vector<float>(75 * 70, 5.0f)), c(130 * 70);
  const gpu_array<unsigned char> workspace(static_cast<std::size_t>(matmul::fp32_workspace_bytes(130, 70, 75)));
  const giwa::tensor_view<const float, 2> view_a{a.data(), {130, 75}}, view_b{b.data(), {75, 70}};
  const giwa::tensor_view<unsigned char, 1> room{workspace.data(), {static_cast<int64>(workspace.size())}};
  CHECK(capture_and_replay(s, 3, [&] {
          return matmul::fp32(s, view_a, view_b, giwa::tensor_view<float, 2>{c.data(), {130, 70}}, room);
        }).ok());
  for (const float x : c.to_host()) REQUIRE(x == 3 * 5 * 75);
}
