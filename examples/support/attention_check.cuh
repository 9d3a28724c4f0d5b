// SPDX-License-Identifier: MIT
// The comparison of attention_compare.hpp for tensors in the memory of a GPU or of the CPU.
#pragma once

#include "attention_compare.hpp"
#include "place.cuh"

#if defined(__CUDACC__)
#include <giwa/attention.cuh>
#endif

namespace example {

/// Compares tensors in the memory of a place.
template <class T, class Place, class Mask = giwa::full, class Score = giwa::plain_score>
comparison compare(const Place& place, const tensor<T, 4, Place>& q, const tensor<T, 4, Place>& k,
                   const tensor<T, 4, Place>& v, const tensor<T, 4, Place>& o, const Mask& mask = {},
                   const Score& score = {}) {
  const std::vector<T> qs = q.on_host(place), ks = k.on_host(place), vs = v.on_host(place), os = o.on_host(place);
  using view = giwa::tensor_view<const T, 4>;
  return compare(view(qs.data(), q.sizes()), view(ks.data(), k.sizes()), view(vs.data(), v.sizes()),
                 view(os.data(), o.sizes()), mask, score);
}

/// Returns the floating-point operations of both matrix products for `pairs` unmasked scores of all heads.
inline double flops(int64 pairs, int64 head_size, int64 head_size_v) {
  return 2.0 * static_cast<double>(pairs) * static_cast<double>(head_size + head_size_v);
}

}  // namespace example
