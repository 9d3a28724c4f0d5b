// SPDX-License-Identifier: MIT
// Matrix product, step 1: one thread for each element, from global memory. Any GPU, and the CPU.
#pragma once

#include "problem.cuh"

namespace matmul {

/// A thread computes one element of c. Neighbouring threads read neighbouring elements of b and the same element of a. Each
/// element of a is read n times and each element of b m times, by way of the caches.
template <class T, class U, class Epilogue>
struct naive_body {
  giwa::tensor_view<const T, 2> a, b;  // (m, k), (k, n)
  output<U, Epilogue> c;               // (m, n)

  GIWA_HOST_DEVICE void operator()(giwa::index<2> at) const {
    const auto [row, column] = at;
    float sum = 0;
    for (int64 k = 0; k < a.extent(1); ++k)
      sum += giwa::convert<float>{}(a(row, k)) * giwa::convert<float>{}(b(k, column));
    c.put(sum, row, column);
  }
};

/// Computes c = epilogue(a b), summed in fp32. `where` is a stream, and the call is asynchronous, or giwa::host.
template <class T, class U, class Where, class Epilogue = identity>
giwa::status naive(const Where& where, const giwa::tensor_view<const T, 2>& a, const giwa::tensor_view<const T, 2>& b,
                   const giwa::tensor_view<U, 2>& c, const Epilogue& epilogue = {}) {
  if (const giwa::status s = check(a, b, c); !s.ok()) return s;
  return giwa::for_all(where, giwa::extents{c.extent(0), c.extent(1)}, naive_body<T, U, Epilogue>{a, b, {c, epilogue}});
}

}  // namespace matmul
