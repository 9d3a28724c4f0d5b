// SPDX-License-Identifier: MIT
// Contiguous tensors of attention on a GPU, filled with numbers, for tests that compare giwa with itself.
#ifndef GIWA_TEST_GPU_ATTENTION_PLAIN_TENSORS_CUH
#define GIWA_TEST_GPU_ATTENTION_PLAIN_TENSORS_CUH

#include <giwa/attention.cuh>
#include <giwa/device.hpp>
#include <giwa/grid/for_all.cuh>

#include "gpu/attention/problem.hpp"
#include "support/gpu.cuh"
#include "support/same_bits.hpp"

namespace giwa_test::attention {

/// Fills with normal numbers; waits.
template <class T>
void fill_normal(const gpu_array<T>& array, uint64 seed) {
  const giwa::stream s = new_stream();
  const auto n = static_cast<int64>(array.size());
  const placement p{{1, 1, 1, n}, {0, 0, 0, 1}, 0, n};
  giwa::throw_if_failed(giwa::for_all(s, n, fill_tensor{array.data(), element_of<T>, p, value_kind::normal, seed, 7}));
  giwa::throw_if_failed(giwa::synchronize(s));
}

template <class T>
using view_4 = giwa::tensor_view<T, 4>;
template <class T>
using view_3 = giwa::tensor_view<T, 3>;

/// q, k, v with normal numbers; o and lse all bytes 0xff.
template <class T>
struct plain_tensors {
  int64 batch, seq_q, seq_k, heads, kv_heads, head_size;
  gpu_array<T> q, k, v, o;
  gpu_array<float> lse;

  plain_tensors(int64 batch_, int64 seq_q_, int64 seq_k_, int64 heads_, int64 kv_heads_, int64 head_size_)
      : batch(batch_),
        seq_q(seq_q_),
        seq_k(seq_k_),
        heads(heads_),
        kv_heads(kv_heads_),
        head_size(head_size_),
        q(size(seq_q, heads)),
        k(size(seq_k, kv_heads)),
        v(size(seq_k, kv_heads)),
        o(size(seq_q, heads)),
        lse(static_cast<std::size_t>(batch * heads * seq_q)) {
    fill_normal(q, 1);
    fill_normal(k, 2);
    fill_normal(v, 3);
  }
  std::size_t size(int64 length, int64 heads_) const {
    return static_cast<std::size_t>(batch * length * heads_ * head_size);
  }
  view_4<const T> q_view() const { return {q.data(), {batch, seq_q, heads, head_size}}; }
  view_4<const T> k_view() const { return {k.data(), {batch, seq_k, kv_heads, head_size}}; }
  view_4<const T> v_view() const { return {v.data(), {batch, seq_k, kv_heads, head_size}}; }
  view_4<T> o_view() const { return {o.data(), {batch, seq_q, heads, head_size}}; }
  view_3<float> lse_view() const { return {lse.data(), {batch, heads, seq_q}}; }
};

/// A part of a view: sequences [b, b + batches), rows [i, i + rows), heads [h, h + heads).
template <class T>
view_4<T> part(const view_4<T>& v, int64 b, int64 batches, int64 i, int64 rows, int64 h, int64 heads) {
  return {
      v.data() + b * v.stride(0) + i * v.stride(1) + h * v.stride(2), {batches, rows, heads, v.extent(3)}, v.strides()};
}

}  // namespace giwa_test::attention

#endif
