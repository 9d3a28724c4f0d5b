// SPDX-License-Identifier: MIT
// merge_attention on the CPU: rows shared among threads.
#ifndef GIWA_ATTENTION_CPU_MERGE_HPP
#define GIWA_ATTENTION_CPU_MERGE_HPP

#include <giwa/attention/call/merge.hpp>
#include <giwa/attention/sums/merge_parts.hpp>
#include <giwa/grid/host_for_all.hpp>
#include <giwa/grid/host_loop.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The work on one row. lse is written last, because it may be that of a part.
template <class T, class O>
struct merge_row {
  merge_views<T, O> m;
  void operator()(index<3> at) const {
    const auto [batch, query, head] = at;
    const float* const lse = m.lse_of(batch, query, head);
    const softmax_state<float> all = m.state_of(lse);
    const T* const part = m.part_of(batch, query, head);
    O* const o = m.output_of(batch, query, head);
    for (int64 first = 0; first < m.o.extent(3); first += block) {
      const int64 left = m.o.extent(3) - first;
      float sum[block];
      const int count = left < block ? static_cast<int>(left) : block;
      merge_columns(all, m.parts(), part + first, m.parts_o.stride(0), lse, m.parts_lse.stride(0), sum, count);
      for (int c = 0; c < count; ++c) o[first + c] = convert<O>{}(sum[c]);
    }
    if (m.lse.data() != nullptr)
      m.lse.data()[batch * m.lse.stride(0) + head * m.lse.stride(1) + query * m.lse.stride(2)] = all.lse();
  }

 private:
  static constexpr int block = 512;  // no row of attention is longer, so that a weight is computed once
};

template <class T>
struct host_merge {
  template <class O>
  static status run(const merge_views<T, O>& m) {
    return for_all(host, extents{m.o.extent(0), m.o.extent(1), m.o.extent(2)}, merge_row<T, O>{m});
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
