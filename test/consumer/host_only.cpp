// SPDX-License-Identifier: MIT
// A program without CUDA that uses giwa's pure headers, with a host compiler alone.
#include <giwa/numeric/integer.hpp>
#include <giwa/numeric/tensor_view.hpp>

int main() {
  float data[6] = {0, 1, 2, 3, 4, 5};
  const giwa::tensor_view<const float, 2> view{data, {2, 3}};  // (rows, cols)
  return view(1, 2) == 5.0f && giwa::ceil_div(7, 2) == 4 ? 0 : 1;
}
