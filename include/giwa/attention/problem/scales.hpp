// SPDX-License-Identifier: MIT
// Scales of q, k and v in e4m3.
#ifndef GIWA_ATTENTION_PROBLEM_SCALES_HPP
#define GIWA_ATTENTION_PROBLEM_SCALES_HPP

#include <giwa/attention/problem/coordinate.hpp>
#include <giwa/attention/problem/traits.hpp>
#include <giwa/numeric/integer.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI {

/// The scales of q, k and v of attention_forward() in e4m3, read when the kernel runs. An element of q and k stands for its value
/// times the scale of its rows; an element of v for value * scale * v_channel + v_mean. An empty view of scales is 1, of means 0.
///
/// Scales are (batch, groups of rows, heads). The first size is 1 or the batch of the tensor (1 for packed sequences), the last one 1 or
/// its heads. A group has `q_rows` rows of the tensor, not of a sequence, and the last one may have fewer; 0: all rows share one.
struct attention_scales {
  tensor_view<const float, 3> q{};  ///< of q
  tensor_view<const float, 3> k{};  ///< of k
  tensor_view<const float, 3> v{};  ///< of v
  int q_rows = 0;                   ///< rows of a group of q, or 0
  int k_rows = 0;                   ///< rows of a group of k: 0 or a multiple of 64
  int v_rows = 0;                   ///< rows of a group of v: 0 or a multiple of 64. Not 0: runs without tensor cores
  /// (kv heads, head size of v), or 1 for either: a factor and a term of each column of v. With dropout there must be no mean.
  ///@{
  tensor_view<const float, 2> v_channel{};
  tensor_view<const float, 2> v_mean{};
  ///@}
};

namespace detail {

/// A base with the scales of a type, empty for elements without them. (A member with [[no_unique_address]] would do in C++, but
/// nvcc 13.0 then moves the kernel's parameters.)
template <class T, class Scales>
struct with_scales {};
template <class T, class Scales>
  requires(element_traits<T>::has_scales)
struct with_scales<T, Scales> {
  Scales scales{};
};

/// The scales of the rows of one head of one sequence.
struct row_scales {
  const float* data = nullptr;  // of the first row of the tensor; null: 1
  int64 stride = 0;
  int rows = 0, first_row = 0;  // of a group, or 0; of the sequence
  GIWA_HOST_DEVICE float operator[](int row) const {
    return data == nullptr ? 1.f : rows == 0 ? *data : data[(first_row + row) / rows * stride];
  }
  /// Whether all rows share one scale.
  GIWA_HOST_DEVICE bool is_one() const { return data == nullptr || rows == 0; }
};
/// A number for each column of v.
struct column_numbers {
  const float* data = nullptr;
  int64 stride = 0;
  GIWA_HOST_DEVICE float get(int64 column, float otherwise) const {
    return data == nullptr ? otherwise : data[column * stride];
  }
};
/// The scales of one head of one sequence.
struct head_scales {
  row_scales q, k, v;
  column_numbers channel, mean;

  /// A column of o of a row. `share` is the sum of the row's normalized weights, 0 for a row without keys.
  GIWA_HOST_DEVICE float finish(float x, float share, int64 column) const {
    if (share == 0) return x;
    return channel.data == nullptr && mean.data == nullptr
               ? x
               : x * channel.get(column, 1.f) + share * mean.get(column, 0.f);
  }
};

template <int Rank>
GIWA_HOST_DEVICE constexpr int64 scale_offset(const tensor_view<const float, Rank>& v, int d, int64 i) {
  return v.extent(d) == 1 ? 0 : i * v.stride(d);
}
GIWA_HOST_DEVICE inline row_scales scales_of_rows(const tensor_view<const float, 3>& v, int group, int64 sequence,
                                                  int64 head, int first_row) {
  if (v.data() == nullptr) return {};
  return {v.data() + (scale_offset(v, 0, sequence) + scale_offset(v, 2, head)), v.stride(1), group, first_row};
}
GIWA_HOST_DEVICE inline column_numbers numbers_of_columns(const tensor_view<const float, 2>& v, int64 kv_head) {
  if (v.data() == nullptr) return {};
  return {v.data() + scale_offset(v, 0, kv_head), v.extent(1) == 1 ? 0 : v.stride(1)};
}
/// `Place` is head_place (params.hpp).
template <class Place>
GIWA_HOST_DEVICE head_scales scales_of_head(const attention_scales& s, const Place& h) {
  return {scales_of_rows(s.q, s.q_rows, h.sequence, h.head, h.first_query_row),
          scales_of_rows(s.k, s.k_rows, h.key_sequence, h.kv_head, h.first_key_row),
          scales_of_rows(s.v, s.v_rows, h.key_sequence, h.kv_head, h.first_key_row),
          numbers_of_columns(s.v_channel, h.kv_head), numbers_of_columns(s.v_mean, h.kv_head)};
}
template <class T, class Place>
GIWA_HOST_DEVICE with_scales<T, head_scales> scales_of_head(
    [[maybe_unused]] const with_scales<T, attention_scales>& call, [[maybe_unused]] const Place& h) {
  with_scales<T, head_scales> to;
  if constexpr (element_traits<T>::has_scales) to.scales = scales_of_head(call.scales, h);
  return to;
}

/// A row of elements with scales, for the CPU path and the reference.
template <class T>
struct scaled_row {
  const T* data;
  int64 step;  // from an element to the next one: not 1 for a K-major v
  float scale;
  column_numbers channel, mean;
};
template <class T>
GIWA_HOST_DEVICE double exact_element(const scaled_row<T>& row, int64 i) {
  return static_cast<double>(row.data[i * row.step]) * static_cast<double>(row.scale) *
             static_cast<double>(row.channel.get(i, 1.f)) +
         static_cast<double>(row.mean.get(i, 0.f));
}
/// The rows of a view (rows, head size) with their scales.
template <class T>
class scaled_rows {
 public:
  GIWA_HOST_DEVICE scaled_rows(const tensor_view<const T, 2>& view, const row_scales& scales,
                               const column_numbers& channel = {}, const column_numbers& mean = {})
      : data_(view.data()),
        stride_(view.stride(0)),
        step_(view.stride(1)),
        count_(view.extent(0)),
        scales_(scales),
        channel_(channel),
        mean_(mean) {}
  GIWA_HOST_DEVICE scaled_row<T> operator[](int64 n) const {
    return {data_ + n * stride_, step_, scales_[static_cast<int>(n)], channel_, mean_};
  }
  GIWA_HOST_DEVICE int64 count() const { return count_; }

 private:
  const T* data_;
  int64 stride_, step_, count_;
  row_scales scales_;
  column_numbers channel_, mean_;
};

/// Whether a view is one: it has a pointer or elements.
template <class V, int Rank>
GIWA_HOST_DEVICE constexpr bool is_given(const tensor_view<V, Rank>& v) {
  return v.data() != nullptr || v.size() != 0;
}
GIWA_HOST_DEVICE constexpr bool has_scales(const attention_scales& s) {
  return is_given(s.q) || is_given(s.k) || is_given(s.v) || is_given(s.v_channel) || is_given(s.v_mean) ||
         s.q_rows != 0 || s.k_rows != 0 || s.v_rows != 0;
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
