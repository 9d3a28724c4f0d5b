// SPDX-License-Identifier: MIT
// The ranges of all stride loops: first, first + stride, ... below an end, in one or more dimensions.
#ifndef GIWA_NUMERIC_STRIDE_RANGE_HPP
#define GIWA_NUMERIC_STRIDE_RANGE_HPP

#include <giwa/numeric/extents.hpp>

namespace giwa::inline GIWA_ABI {

/// The range of `for (int64 i : stride_range{first, end, stride})`, for 0 <= first, 0 <= end, 1 <= stride < 2^62.
/// Counts in unsigned integers, so that the step past the largest end does not overflow.
class stride_range {
 public:
  /// The range from `first` to before `end`.
  GIWA_HOST_DEVICE constexpr stride_range(int64 first, int64 end, int64 stride)
      : first_(static_cast<uint64>(first)),
        end_(end > 0 ? static_cast<uint64>(end) : 0),
        stride_(static_cast<uint64>(stride)) {}

  struct sentinel {};
  /// The position of a loop.
  struct iterator {
    /// What a range-based for loop needs; i is the loop's index.
    ///@{
    uint64 i, end, stride;
    GIWA_HOST_DEVICE constexpr int64 operator*() const { return static_cast<int64>(i); }
    GIWA_HOST_DEVICE constexpr iterator& operator++() {
      i += stride;
      return *this;
    }
    GIWA_HOST_DEVICE friend constexpr bool operator==(const iterator& a, sentinel) { return a.i >= a.end; }
    ///@}
  };
  /// For a range-based for loop.
  ///@{
  GIWA_HOST_DEVICE constexpr iterator begin() const { return {first_, end_, stride_}; }
  GIWA_HOST_DEVICE constexpr sentinel end() const { return {}; }
  ///@}

 private:
  uint64 first_, end_, stride_;
};

/// The product of one stride_range for each of Rank dimensions, the last dimension innermost.
template <int Rank>
class stride_range_nd {
 public:
  /// The range from `first` to before `end` in every dimension.
  GIWA_HOST_DEVICE constexpr stride_range_nd(const index<Rank>& first, const index<Rank>& end,
                                             const index<Rank>& stride)
      : first_(first), end_(end), stride_(stride) {}

  struct sentinel {};
  /// The position of a loop.
  class iterator {
   public:
    /// What a range-based for loop needs.
    ///@{
    GIWA_HOST_DEVICE constexpr iterator(const stride_range_nd& range)
        : first_(range.first_), end_(range.end_), stride_(range.stride_), i_(range.first_) {
      for (int d = 0; d < Rank; ++d) done_ = done_ || i_[d] >= end_[d];
    }
    GIWA_HOST_DEVICE constexpr const index<Rank>& operator*() const { return i_; }
    GIWA_HOST_DEVICE constexpr iterator& operator++() {
      advance<Rank - 1>();
      return *this;
    }
    GIWA_HOST_DEVICE friend constexpr bool operator==(const iterator& a, sentinel) { return a.done_; }
    ///@}

   private:
    // One step in dimension D, carried into the dimension before it. Compares what is left with the stride, so that the
    // sum cannot overflow; a template, so that every subscript is a constant and the index stays in registers.
    template <int Dim>
    GIWA_HOST_DEVICE constexpr void advance() {
      if (end_[Dim] - i_[Dim] > stride_[Dim]) {
        i_[Dim] += stride_[Dim];
      } else if constexpr (Dim > 0) {
        i_[Dim] = first_[Dim];
        advance<Dim - 1>();
      } else {
        done_ = true;
      }
    }

    index<Rank> first_, end_, stride_, i_;  // not the range itself: to NVRTC it is incomplete here
    bool done_ = false;
  };
  /// For a range-based for loop.
  ///@{
  GIWA_HOST_DEVICE constexpr iterator begin() const { return iterator(*this); }
  GIWA_HOST_DEVICE constexpr sentinel end() const { return {}; }
  ///@}

 private:
  index<Rank> first_, end_, stride_;
};

}  // namespace giwa::inline GIWA_ABI

#endif
