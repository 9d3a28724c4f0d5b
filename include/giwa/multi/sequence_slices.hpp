// SPDX-License-Identifier: MIT
// How the tokens of a sequence are divided among ranks: contiguous slices, or zigzag slices for causal masks.
#ifndef GIWA_MULTI_SEQUENCE_SLICES_HPP
#define GIWA_MULTI_SEQUENCE_SLICES_HPP

#include <giwa/base/status.hpp>
#include <giwa/numeric/integer.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI {

/// Consecutive tokens, or consecutive rows of a tensor.
struct token_range {
  int64 first = 0;  ///< the first one
  int64 count = 0;  ///< how many

  /// The first one past the range.
  GIWA_HOST_DEVICE constexpr int64 end() const { return first + count; }
  /// Returns these rows of a tensor (batch, rows, heads, head size).
  template <class T>
  GIWA_HOST_DEVICE constexpr tensor_view<T, 4> of(const tensor_view<T, 4>& whole) const {
    index<4> extents = whole.extents();
    extents[1] = count;
    return {whole.data() == nullptr ? nullptr : whole.data() + first * whole.stride(1), extents, whole.strides()};
  }
};

/// The tokens of one rank: two ranges in ascending order, of which the second may be empty. The rows of the rank's
/// tensors are the tokens of `ranges[0]`, then those of `ranges[1]`.
struct token_slice {
  token_range ranges[2];  ///< positions in the whole sequence

  /// The number of tokens, and of rows of the rank's tensors.
  GIWA_HOST_DEVICE constexpr int64 count() const { return ranges[0].count + ranges[1].count; }
  /// The rows of the rank's tensors that are the tokens of `ranges[i]`.
  GIWA_HOST_DEVICE constexpr token_range rows(int i) const { return {i == 0 ? 0 : ranges[0].count, ranges[i].count}; }
};

/// Which tokens each rank has.
enum class slicing : int {
  contiguous,  ///< rank r of n has piece r of n
  /// Rank r of n has the pieces r and 2 n - 1 - r of 2 n. Under a causal mask all ranks then have the same work, in
  /// every step of a ring.
  zigzag,
};

/// Divides the tokens of a sequence among ranks: `sequence_slices{.tokens = 131072}`. All ranks must give the same.
struct sequence_slices {
  int64 tokens = 0;                 ///< of the whole sequence
  slicing order = slicing::zigzag;  ///< which pieces a rank has
  /// The end of each piece, ascending, the last one `tokens`: (pieces), on the host. A piece may be empty. If the view
  /// is empty, the lengths of two pieces differ by at most one token.
  tensor_view<const int64, 1> ends{};

  /// The number of pieces for a number of ranks.
  GIWA_HOST_DEVICE constexpr int64 pieces(int ranks) const {
    return order == slicing::zigzag ? 2 * int64{ranks} : int64{ranks};
  }
  /// The tokens of a piece.
  GIWA_HOST_DEVICE constexpr token_range piece(int64 i, int ranks) const {
    const int64 first = i == 0 ? 0 : end_of(i - 1, ranks);
    return {first, end_of(i, ranks) - first};
  }
  /// The tokens of a rank.
  GIWA_HOST_DEVICE constexpr token_slice of(int rank, int ranks) const {
    if (order == slicing::contiguous) return {{piece(rank, ranks), {}}};
    return {{piece(rank, ranks), piece(2 * int64{ranks} - 1 - rank, ranks)}};
  }
  /// The number of tokens of the rank that has most.
  GIWA_HOST_DEVICE constexpr int64 most(int ranks) const {
    int64 n = 0;
    for (int r = 0; r < ranks; ++r) {
      const int64 own = of(r, ranks).count();
      n = own > n ? own : n;
    }
    return n;
  }

  /// The slices of groups of `ranks` neighbouring ranks: group g has the tokens of ranks g ranks to (g + 1) ranks - 1, in order.
  GIWA_HOST_DEVICE constexpr sequence_slices of_groups(int ranks) const {
    sequence_slices groups = *this;
    if (ends.size() > 0)
      groups.ends = {ends.data() + (ranks - 1) * ends.stride(0), {ends.extent(0) / ranks}, {ranks * ends.stride(0)}};
    return groups;
  }

  /// Returns the first rule that the slices break for a number of ranks.
  GIWA_HOST_DEVICE constexpr status check(int ranks) const {
    constexpr int64 limit = (int64{1} << 31) - 1 - 4096;
    if (ranks < 1) return status::invalid("communicator", "there must be at least one rank", bound::at_least, 1, ranks);
    if (tokens < 0 || tokens > limit)
      return status::invalid("slices", "the number of tokens is out of range",
                             tokens < 0 ? bound::at_least : bound::at_most, tokens < 0 ? 0 : limit, tokens);
    if (ends.data() == nullptr && ends.size() == 0) return {};
    if (const status s = ends.check("slices"); !s.ok()) return s;
    if (ends.extent(0) != pieces(ranks))
      return status::invalid("slices", "there must be one end for each piece: ranks, or twice as many for zigzag",
                             bound::exactly, pieces(ranks), ends.extent(0));
    int64 before = 0;
    for (int64 i = 0; i < ends.extent(0); ++i) {
      if (ends(i) < before)
        return status::invalid("slices", "the ends of the pieces must not decrease", bound::at_least, before, ends(i));
      before = ends(i);
    }
    if (before != tokens)
      return status::invalid("slices", "the last piece must end at the last token", bound::exactly, tokens, before);
    return {};
  }

 private:
  GIWA_HOST_DEVICE constexpr int64 end_of(int64 i, int ranks) const {
    return ends.size() != 0 ? ends(i) : tokens * (i + 1) / pieces(ranks);
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
