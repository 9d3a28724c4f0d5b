// SPDX-License-Identifier: MIT
// attention_cached on the CPU.
#ifndef GIWA_ATTENTION_CPU_CACHED_HPP
#define GIWA_ATTENTION_CPU_CACHED_HPP

#include <giwa/attention/call/cached.hpp>
#include <giwa/attention/cpu/run.hpp>
#include <giwa/attention/problem/cached_rows.hpp>

namespace giwa::inline GIWA_ABI::detail {

template <class Element>
void host_widen(const host_loops& loops, const cached_row<Element>& row, float* to, int count) {
  if (row.data == nullptr) {
    for (int i = 0; i < count; ++i) to[i] = 0;
    return;
  }
  host_widen(loops, row.data, to, count);
  if constexpr (element_traits<Element>::has_scales)
    for (int i = 0; i < count; ++i) to[i] *= row.scale;
}
template <class Element>
void host_prefetch(const cached_row<Element>& row, int count) {
  if (row.data != nullptr) host_prefetch(row.data, count);
}

/// Runs attention_cached on the CPU; the arguments are checked already.
template <int HeadSize, int HeadSizeV>
struct host_cached {
  template <class T, class Element, class O, class Mask, class Score>
  static status run(const cached_params<T, Element, O, Mask, Score>& params) {
    const int64 sequences = params.views.sequence_count();
    int64 longest = 0, keys = 0;
    for (int64 i = 0; i < sequences; ++i) {
      const cached_sequence s = params.at(static_cast<int>(i));
      longest = s.queries > longest ? s.queries : longest;
      keys += s.keys;
    }
    return run_host_rows(params, {sequences, params.views.q.extent(2), longest, ceil_div(keys, sequences), false});
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
