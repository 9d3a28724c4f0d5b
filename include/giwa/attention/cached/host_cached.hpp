// SPDX-License-Identifier: MIT
// attention_cached on the CPU.
#ifndef GIWA_ATTENTION_CACHED_HOST_CACHED_HPP
#define GIWA_ATTENTION_CACHED_HOST_CACHED_HPP

#include <giwa/attention/cached/cached.hpp>
#include <giwa/attention/cached/rows.hpp>
#include <giwa/attention/cpu/run.hpp>

namespace giwa::inline GIWA_ABI::detail {

template <class Element>
void host_widen(const cached_row<Element>& row, float* to, int count) {
  if (row.data == nullptr)
    for (int i = 0; i < count; ++i) to[i] = 0;
  else if constexpr (sizeof(Element) > 1)
    host_widen(row.data, to, count);
  else
    for (int i = 0; i < count; ++i) to[i] = convert<float>{}(row.data[i]) * row.scale;
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
    return run_host_rows(params, {sequences, params.views.q.extent(2), longest, ceil_div(keys, sequences)});
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
