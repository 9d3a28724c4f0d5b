// SPDX-License-Identifier: MIT
// The library's kernels, as users instantiate them, and those of examples/matmul, for the table of registers. No double:
// ptxas reports its use here.
#include "matmul/fp32.cuh"
#include "matmul/register_tile.cuh"
#include "matmul/wgmma.cuh"

#include <giwa/giwa.cuh>

template <class Value>
struct add {
  const Value* a;
  const Value* b;
  Value* c;
  __device__ void operator()(giwa::int64 i) const { c[i] = a[i] + b[i]; }
};

struct sum {
  template <class Value>
  GIWA_HOST_DEVICE Value operator()(Value a, Value b) const {
    return a + b;
  }
};

template <int Rank>
struct fill {
  giwa::tensor_view<float, Rank> out;
  GIWA_HOST_DEVICE void operator()(const giwa::index<Rank>& i) const { out[i] = 1.0f; }
};

giwa::status attend(cudaStream_t s, const giwa::tensor_view<__half, 4>& x, const giwa::tensor_view<float, 4>& y) {
  const giwa::status states[] = {
      giwa::attention_forward<256>(s, x, x, x, x, giwa::causal{}),
      giwa::attention_forward<64>(s, y, y, y, y, giwa::causal{}),
  };
  for (const giwa::status& state : states)
    if (!state.ok()) return state;
  return {};
}

giwa::status instantiate(cudaStream_t s, giwa::tensor_view<float, 2> image, giwa::tensor_view<float, 3> volume,
                         giwa::tensor_view<float, 1> x, giwa::tensor_view<__half, 1> y,
                         giwa::tensor_view<__half, 2> z) {
  const giwa::tensor_view<const __half, 2> a = z;
  const giwa::tensor_view<const float, 2> b = image;
  giwa::status states[] = {
      giwa::for_all(s, x.size(), add<float>{x.data(), x.data(), x.data()}),
      giwa::for_all(s, y.size(), add<__half>{y.data(), y.data(), y.data()}),
      giwa::for_all(s, giwa::extents{image.extent(0), image.extent(1)}, fill<2>{image}),
      giwa::for_all(s, giwa::extents{volume.extent(0), volume.extent(1), volume.extent(2)}, fill<3>{volume}),
      giwa::for_all(s, giwa::elementwise{x, x, x}, sum{}),
      giwa::for_all(s, giwa::elementwise{y, y, y}, sum{}),
      giwa::softmax(s, a, z),
      matmul::register_tile(s, b, b, image),
      matmul::wgmma(s, a, a, z),
      matmul::fp32(s, b, b, image, {}),
  };
  for (const giwa::status& state : states)
    if (!state.ok()) return state;
  return {};
}
