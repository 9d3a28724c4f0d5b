// SPDX-License-Identifier: MIT
// The options of append_to_cache: queries to rotate, and positions and slots of the new rows.
#ifndef GIWA_ATTENTION_APPEND_APPEND_OPTIONS_HPP
#define GIWA_ATTENTION_APPEND_APPEND_OPTIONS_HPP

#include <giwa/attention/problem/views.hpp>

namespace giwa::inline GIWA_ABI {

/// A view of rank 4, (sequences, rows, heads, head size), or 3, (all rows, heads, head size), or no view.
template <class T>
class row_tensor {
 public:
  /// None.
  constexpr row_tensor() = default;
  /// A view of T, or if T is const of elements that are not.
  template <class U, int Rank>
    requires((Rank == 3 || Rank == 4) && stdlib::convertible_to<U (*)[], T (*)[]>)
  GIWA_HOST_DEVICE constexpr row_tensor(const tensor_view<U, Rank>& v)
      : view_(detail::in_four_dimensions(v)), rank_(Rank) {}

  /// Returns the rank of the view: 3 or 4, 0 for none.
  GIWA_HOST_DEVICE constexpr int rank() const { return rank_; }
  /// Returns the view with a first dimension, of size 1 for rank 3.
  GIWA_HOST_DEVICE constexpr const tensor_view<T, 4>& view() const { return view_; }

 private:
  tensor_view<T, 4> view_;
  int rank_ = 0;
};

/// A number for each new row, in device memory, as int or int64; or none. The rows are in the order of k_new: number
/// sequence * new rows + row, or that of the packed row.
class row_numbers {
 public:
  /// None.
  constexpr row_numbers() = default;
  /// Numbers of either type.
  ///@{
  GIWA_HOST_DEVICE constexpr row_numbers(const tensor_view<const int, 1>& numbers) : narrow_(numbers), given_(true) {}
  GIWA_HOST_DEVICE constexpr row_numbers(const tensor_view<int, 1>& numbers) : narrow_(numbers), given_(true) {}
  GIWA_HOST_DEVICE constexpr row_numbers(const tensor_view<const int64, 1>& numbers)
      : wide_(numbers), given_(true), is_wide_(true) {}
  GIWA_HOST_DEVICE constexpr row_numbers(const tensor_view<int64, 1>& numbers)
      : wide_(numbers), given_(true), is_wide_(true) {}
  ///@}

  /// Returns whether there are numbers.
  GIWA_HOST_DEVICE constexpr bool given() const { return given_; }
  /// Returns number i, which must be given.
  GIWA_HOST_DEVICE constexpr int64 operator[](int64 i) const {
    return is_wide_ ? wide_.data()[i * wide_.stride(0)] : narrow_.data()[i * narrow_.stride(0)];
  }
  /// The numbers, of which at most one view has elements.
  ///@{
  GIWA_HOST_DEVICE constexpr const tensor_view<const int, 1>& narrow() const { return narrow_; }
  GIWA_HOST_DEVICE constexpr const tensor_view<const int64, 1>& wide() const { return wide_; }
  ///@}

 private:
  tensor_view<const int, 1> narrow_;
  tensor_view<const int64, 1> wide_;
  bool given_ = false, is_wide_ = false;
};

/// The options of append_to_cache(): `{.q = q, .q_to = q}`. T is the element type of k_new.
template <class T>
struct append_options {
  /// Queries of the new rows, which are rotated as k is and written to q_to, whether their row is written to the cache or
  /// not: sizes of k_new, with any number of heads.
  row_tensor<const T> q{};
  row_tensor<T> q_to{};  ///< the sizes of q; may be the same view
  /// The position of each new row for the rotation. None: where the row is in its sequence. They do not decide where rows
  /// are written. A user's rotation may take any numbers for positions, such as those of rows.
  row_numbers positions{};
  /// Where each new row is written: number of the page (or of the sequence, in a cache without pages) times the size of
  /// dimension 1 of k, plus the row in it. None: where the row is in its sequence. Rows with negative slots, and slots
  /// past the end of the cache, are not written to the cache.
  row_numbers slots{};
  /// Which rows of packed k_new and v_new each sequence has: q_offsets and count; the other members stay unset. Required for
  /// tensors of rank 3, but with slots and, if k is rotated, positions.
  giwa::sequences sequences{};
};

}  // namespace giwa::inline GIWA_ABI

#endif
