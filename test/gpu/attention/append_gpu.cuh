// SPDX-License-Identifier: MIT
// The memory of a case of append_to_cache on a GPU.
#ifndef GIWA_TEST_GPU_ATTENTION_APPEND_GPU_CUH
#define GIWA_TEST_GPU_ATTENTION_APPEND_GPU_CUH

#include "host/attention/append_cases.hpp"
#include "support/gpu.cuh"

namespace giwa_test {

// The memory of a call on the GPU.
template <class T, class Element>
struct gpu_memory {
  gpu_array<T> k_new, v_new, q, q_to;
  gpu_array<Element> k, v;
  gpu_array<int> lengths, indices, page_offsets, row_offsets, slots, positions;
  gpu_array<int64> wide_slots, wide_positions;
  gpu_array<float> k_scales, v_scales, cos, sin, k_mean;

  explicit gpu_memory(const append_memory<T, Element>& m)
      : k_new(m.k_new),
        v_new(m.v_new),
        q(m.q),
        q_to(m.q_to),
        k(m.k),
        v(m.v),
        lengths(m.lengths),
        indices(m.indices),
        page_offsets(m.page_offsets),
        row_offsets(m.row_offsets),
        slots(m.slots),
        positions(m.positions),
        wide_slots(m.wide_slots),
        wide_positions(m.wide_positions),
        k_scales(m.k_scales),
        v_scales(m.v_scales),
        cos(m.cos),
        sin(m.sin),
        k_mean(m.k_mean) {}

  append_pointers<T, Element> pointers() const {
    return {k_new.data(),    v_new.data(),     q.data(),          q_to.data(),           k.data(),
            v.data(),        lengths.data(),   indices.data(),    page_offsets.data(),   row_offsets.data(),
            slots.data(),    positions.data(), wide_slots.data(), wide_positions.data(), k_scales.data(),
            v_scales.data(), cos.data(),       sin.data(),        k_mean.data()};
  }
  // What a call may write.
  void read_back(append_memory<T, Element>& m) const {
    m.k_new = k_new.to_host();  // q may be part of it
    m.q = q.to_host();
    m.q_to = q_to.to_host();
    m.k = k.to_host();
    m.v = v.to_host();
    m.k_scales = k_scales.to_host();
    m.v_scales = v_scales.to_host();
  }
};

}  // namespace giwa_test

#endif
