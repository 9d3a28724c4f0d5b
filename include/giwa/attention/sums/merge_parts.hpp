// SPDX-License-Identifier: MIT
// The sums of merge_attention: o of a row from the o of its parts, each weighted by its log-sum-exp.
#ifndef GIWA_ATTENTION_SUMS_MERGE_PARTS_HPP
#define GIWA_ATTENTION_SUMS_MERGE_PARTS_HPP

#include <giwa/numeric/multiply_add.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/vector_access.hpp>
#include <giwa/softmax/state.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Elements that are next to each other in memory.
template <class T, int Count>
struct merge_packet {
  T element[stdlib::size_t{Count}];
};

/// The weight of a part with the log-sum-exp `lse` in a row with the state `all`.
GIWA_HOST_DEVICE inline float merge_weight(const softmax_state<float>& all, float normalizer, float lse) {
  return lse == -infinity_of<float> ? 0.f : exponential{}(lse - all.reference()) * normalizer;
}

/// sum = sum of w_i x_i over the parts, `Count` elements of a row at once. `part`: those of part 0, `lse`: that of part
/// 0; part i is i strides further. A part without keys counts as 0, whatever it contains.
template <int Count, class T>
GIWA_HOST_DEVICE void merge_elements(const softmax_state<float>& all, int64 parts, const T* part, int64 part_stride,
                                     const float* lse, int64 lse_stride, float (&sum)[stdlib::size_t{Count}]) {
  for (int e = 0; e < Count; ++e) sum[e] = 0;
  const float normalizer = all.normalizer();
  for (int64 i = 0; i < parts; ++i) {
    const auto x = load_vector<merge_packet<T, Count>>(part + i * part_stride);
    const float own = lse[i * lse_stride];
    const bool empty = own == -infinity_of<float>;
    const float weight = merge_weight(all, normalizer, own);
    for (int e = 0; e < Count; ++e) sum[e] = multiply_add(weight, empty ? 0.f : convert<float>{}(x.element[e]), sum[e]);
  }
}

/// The same with the parts in the outer loop, for any number of elements, so that a weight is computed once. Each element has the
/// bits that merge_elements() gives it: a part without keys would add +0 to a sum that is never -0.
template <class T>
GIWA_HOST_DEVICE void merge_columns(const softmax_state<float>& all, int64 parts, const T* part, int64 part_stride,
                                    const float* lse, int64 lse_stride, float* sum, int count) {
  for (int c = 0; c < count; ++c) sum[c] = 0;
  const float normalizer = all.normalizer();
  for (int64 i = 0; i < parts; ++i) {
    const float own = lse[i * lse_stride];
    if (own == -infinity_of<float>) continue;
    const float weight = merge_weight(all, normalizer, own);
    const T* const x = part + i * part_stride;
    for (int c = 0; c < count; ++c) sum[c] = multiply_add(weight, convert<float>{}(x[c]), sum[c]);
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
