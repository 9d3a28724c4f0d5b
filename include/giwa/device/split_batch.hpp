// SPDX-License-Identifier: MIT
// split_batch: splits a batch in proportion to weights, exactly.
#ifndef GIWA_DEVICE_SPLIT_BATCH_HPP
#define GIWA_DEVICE_SPLIT_BATCH_HPP

#include <giwa/base/assert.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI {

/// The items [first, first + count) of a batch, and the GPU that processes them.
struct batch_part {
  int device = -1;  ///< the GPU's number, or -1 for the CPU
  /// The first item, and the number of items.
  ///@{
  int64 first = 0, count = 0;
  ///@}

  /// Returns these items of a tensor whose first dimension is the batch. Contiguous if the tensor is.
  template <class T, int Rank>
  GIWA_HOST_DEVICE constexpr tensor_view<T, Rank> of(const tensor_view<T, Rank>& whole) const {
    GIWA_ASSERT(0 <= first && 0 <= count && first <= whole.extent(0) - count,
                "the first dimension of the tensor must be the batch");
    index<Rank> extents = whole.extents();
    extents[0] = count;
    return {whole.data() + first * whole.stride(0), extents, whole.strides()};
  }
};

namespace detail {

/// A batch and the weights of its parts. Without weights all parts weigh the same.
struct weighted_batch {
  int64 n = 0, parts = 0;
  tensor_view<const int64, 1> weights{};
  int64 sum = 0;  // of the weights

  struct share {
    int64 whole;
    uint64 rest;
  };

  GIWA_HOST_DEVICE constexpr int64 weight(int64 part) const { return weights.size() == 0 ? 1 : weights(part); }

  /// Computes the sum of the weights. Errors: those of split_batch().
  GIWA_HOST_DEVICE constexpr status prepare() {
    if (n < 0) return status::invalid("batch", "sizes must not be negative", bound::at_least, 0, n);
    if (const status s = weights.check("weights"); !s.ok()) return s;
    if (weights.size() != 0 && weights.size() != parts)
      return status::invalid("weights", "there must be one weight for each part, or none", bound::exactly, parts,
                             weights.size());
    sum = 0;
    for (int64 i = 0; i < parts; ++i) {
      const int64 w = weight(i);
      if (w < 0) return status::invalid("weights", "weights must not be negative", bound::at_least, 0, w);
      if (w > max_int64 - sum)
        return status::invalid("weights", "the sum of the weights must fit in 64 bits", bound::at_most, max_int64 - sum,
                               w);
      sum += w;
    }
    if (sum == 0) return status::invalid("weights", "at least one weight must be above zero");
    return {};
  }

  /// Returns n * weight / sum and the remainder. Exact: since the product would need 128 bits, it goes bit by bit
  /// through n.
  GIWA_HOST_DEVICE constexpr share share_of(int64 part) const {
    const auto w = static_cast<uint64>(weight(part)), all = static_cast<uint64>(sum);
    uint64 whole = 0, rest = 0;  // rest < all < 2^63
    const auto carry = [&] {
      if (rest < all) return;
      rest -= all;
      ++whole;
    };
    for (int bit = 62; bit >= 0; --bit) {
      whole *= 2;
      rest *= 2;
      carry();
      if ((n >> bit & 1) != 0) rest += w;
      carry();
    }
    return {static_cast<int64>(whole), rest};
  }

  /// Returns the items of a part: its share rounded down, and one more if its remainder is among the largest.
  GIWA_HOST_DEVICE constexpr int64 count_of(int64 part) const {
    const share mine = share_of(part);
    int64 left = n, before = 0;
    for (int64 i = 0; i < parts; ++i) {
      const share other = i == part ? mine : share_of(i);
      left -= other.whole;
      if (other.rest > mine.rest || (other.rest == mine.rest && i < part)) ++before;
    }
    return mine.whole + (before < left ? 1 : 0);
  }
};

}  // namespace detail

/// Splits the items of a batch in proportion to weights. Each part is its exact share, rounded up for the largest remainders
/// (the earlier part first if they are equal) and down for the others. Takes 64 steps for each pair of parts.
///
/// Parameters:
///   - batch: items
///   - weights: in any unit: multiprocessors, items per second, 3 and 1. A weight of zero gets nothing. If it is empty, all
///     parts weigh the same
///   - parts: written: the number of items of each part, in all `batch`. Must not share memory with `weights`
///
/// Errors: `batch` or a weight is negative; all weights are zero; their sum overflows;
/// `parts` and `weights` differ in size.
GIWA_HOST_DEVICE constexpr status split_batch(int64 batch, const tensor_view<const int64, 1>& weights,
                                              const tensor_view<int64, 1>& parts) {
  if (const status s = parts.check("parts"); !s.ok()) return s;
  detail::weighted_batch b{batch, parts.size(), weights, 0};
  if (const status s = b.prepare(); !s.ok()) return s;
  for (int64 i = 0; i < b.parts; ++i) parts(i) = b.count_of(i);
  return {};
}

}  // namespace giwa::inline GIWA_ABI

#endif
