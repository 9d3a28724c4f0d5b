// SPDX-License-Identifier: MIT
// Copies between views and tiles on a GPU: the cases of the host executor's test, compared byte by byte.
#include "host/tile/copy_cases.cuh"
#include "support/gpu.cuh"

using namespace giwa_test;

namespace {

class on_a_gpu {
 public:
  on_a_gpu() : stream_(new_stream()) {}
  template <class Op, class Params>
  bool run(const giwa::launch_config& config, const Op& op, byte_array& in, byte_array& out, Params params) const {
    const gpu_array<unsigned char> in_gpu(in), out_gpu(out);
    if (!giwa::launch(stream_, config, op, params(in_gpu.data(), out_gpu.data())).ok()) return false;
    if (!giwa::synchronize(stream_).ok()) return false;
    out = out_gpu.to_host();
    return true;
  }

 private:
  giwa::stream stream_;
};

// Two rows that are farther apart than 32 bits count bytes.
struct far_rows {
  giwa::tensor_view<float, 2> view;
  GIWA_HOST_DEVICE void operator()(giwa::index<2> i) const { view[i] = static_cast<float>(i[0] * 1000 + i[1]); }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("tiles are copied on a GPU", "", all_copied) {
  check_copies<TestType>(on_a_gpu{}, small_mode() ? 60 : 600);
}

TEST_CASE("a tile wholly outside its view, however far, is all fill on a GPU") {
  check_far_origins<copied<fp16, fp16, 16, 64, giwa::swizzled<giwa::swizzle::bytes_128>>>(on_a_gpu{});
}

TEST_CASE("rows farther apart than 32 bits can tell are copied") {
  if (small_mode()) return;
  using big = copied<float, float, 8, 32, giwa::row_major>;
  using op = load_op<big, true>;
  constexpr int64 stride = (int64{1} << 30) + 16;  // elements: 4 GB and more
  const giwa::stream s = new_stream();
  const gpu_array<float> memory(static_cast<std::size_t>(stride) + 32);
  const giwa::tensor_view<float, 2> view{memory.data(), {2, 32}, {stride, 1}};
  REQUIRE(giwa::for_all(s, giwa::extents{2, 32}, far_rows{view}).ok());
  const gpu_array<unsigned char> out(sizeof(op::shared_storage));
  REQUIRE(giwa::launch(s, {.block = 64}, op{}, {view, {-1, 0}, -1.0f, out.data()}).ok());
  REQUIRE(giwa::synchronize(s).ok());
  std::vector<float> tile(8 * 32);
  std::memcpy(tile.data(), out.to_host().data() + offsetof(op::shared_storage, tile), sizeof(float) * tile.size());
  for (int row = 0; row < 8; ++row)
    for (int column = 0; column < 32; ++column) {
      const float expected = row == 1 || row == 2 ? static_cast<float>((row - 1) * 1000 + column) : -1.0f;
      CAPTURE(row, column);
      REQUIRE(tile[static_cast<std::size_t>(row * 32 + column)] == expected);
    }
}
