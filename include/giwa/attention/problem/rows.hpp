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

/// The rows of one head of one sequence. Keys and values that lie elsewhere, in pages for example, get another type of
/// rows here:
/// all that is asked of it is operator[] and count().
template <class T, class O>
struct head_rows {
  strided_rows<const T> q, k, v;
  strided_rows<O> o;
  GIWA_HOST_DEVICE explicit head_rows(const attention_head<T, O>& h) : q(h.q), k(h.k), v(h.v), o(h.o) {}
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
