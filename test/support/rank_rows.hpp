// SPDX-License-Identifier: MIT
// The rows of a tensor that one rank has, for tests of attention on several ranks.
#ifndef GIWA_TEST_SUPPORT_RANK_ROWS_HPP
#define GIWA_TEST_SUPPORT_RANK_ROWS_HPP

#include <giwa/multi/sequence_slices.hpp>

#include <cstring>
#include <vector>

namespace giwa_test {

using giwa::int64;
using giwa::tensor_view;

/// The rows of one rank, in memory of their own, and the whole tensor's.
template <class T>
struct rank_rows {
  std::vector<T> memory;
  tensor_view<T, 4> view;

  rank_rows() = default;
  rank_rows(const tensor_view<T, 4>& whole, const giwa::token_slice& slice) {
    giwa::index<4> e = whole.extents();
    e[1] = slice.count();
    memory.resize(static_cast<std::size_t>(e[0] * e[1] * e[2] * e[3]));
    if (!memory.empty()) std::memset(static_cast<void*>(memory.data()), 0xff, memory.size() * sizeof(T));
    view = {memory.data(), e};
    each(whole, slice, [](T& own, T& all) { own = all; });
  }
  /// f(element of the rank, element of the whole tensor).
  template <class Function>
  void each(const tensor_view<T, 4>& whole, const giwa::token_slice& slice, const Function& f) {
    for (int i = 0; i < 2; ++i) {
      const auto own = slice.rows(i).of(view), all = slice.ranges[i].of(whole);
      for (int64 b = 0; b < own.extent(0); ++b)
        for (int64 r = 0; r < own.extent(1); ++r)
          for (int64 h = 0; h < own.extent(2); ++h)
            for (int64 c = 0; c < own.extent(3); ++c) f(own(b, r, h, c), all(b, r, h, c));
    }
  }
  void gather(const tensor_view<T, 4>& whole, const giwa::token_slice& slice) {
    each(whole, slice, [](T& own, T& all) { all = own; });
  }
};

/// lse (batch, heads, rows) as a tensor (batch, rows, heads, 1).
inline tensor_view<float, 4> as_tensor(const tensor_view<float, 3>& lse) {
  return {
      lse.data(), {lse.extent(0), lse.extent(2), lse.extent(1), 1}, {lse.stride(0), lse.stride(2), lse.stride(1), 1}};
}

}  // namespace giwa_test

#endif
