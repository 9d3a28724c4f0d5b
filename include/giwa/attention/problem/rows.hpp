// SPDX-License-Identifier: MIT
// Where the rows of a head's tensors lie: the one place in which the CPU path and the reference compute a row's address.
#ifndef GIWA_ATTENTION_PROBLEM_ROWS_HPP
#define GIWA_ATTENTION_PROBLEM_ROWS_HPP

#include <giwa/attention/problem/params.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The rows of a view (rows, head size) with a constant stride.
template <class T>
class strided_rows {
 public:
  GIWA_HOST_DEVICE explicit strided_rows(const tensor_view<T, 2>& view)
      : data_(view.data()), stride_(view.stride(0)), count_(view.extent(0)) {}

  /// The first element of row n, whose elements are contiguous; 0 <= n < count().
  GIWA_HOST_DEVICE T* operator[](int64 n) const { return data_ + n * stride_; }
  GIWA_HOST_DEVICE int64 count() const { return count_; }

 private:
  T* data_;
  int64 stride_, count_;
};

/// The rows of one head of one sequence. The CPU path and the reference take any type with these members: operator[] of
/// k and v gives what host_widen() and exact_element() read, and an lse of -inf is no prior.
template <class T, class O>
struct head_rows {
  strided_rows<const T> q, k, v;
  strided_rows<O> o;
  static constexpr bool has_prior = false;
  GIWA_HOST_DEVICE explicit head_rows(const attention_head<T, O>& h) : q(h.q), k(h.k), v(h.v), o(h.o) {}
};

/// The head that a call's parameters describe, and its rows. Parameters of other calls have other overloads.
///@{
template <class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE attention_head<T, O> head_of(const attention_params<T, O, Mask, Score>& p, int batch, int head) {
  return p.at(batch, head);
}
template <class T, class O>
GIWA_HOST_DEVICE head_rows<T, O> rows_of(const attention_head<T, O>& h) {
  return head_rows<T, O>(h);
}
template <class Params>
using head_type = decltype(head_of(stdlib::declval<const Params&>(), 0, 0));
template <class Params>
using rows_type = decltype(rows_of(stdlib::declval<const head_type<Params>&>()));
///@}

/// Element i of a row, exactly.
template <floating_format T>
GIWA_HOST_DEVICE double exact_element(const T* row, int64 i) {
  return convert<double>{}(row[i]);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
