// SPDX-License-Identifier: MIT
// part_of_keys: a call of attention_forward that computes some of the keys of its rows, and merges them with the others.
#ifndef GIWA_ATTENTION_PROBLEM_PART_OF_KEYS_HPP
#define GIWA_ATTENTION_PROBLEM_PART_OF_KEYS_HPP

#include <giwa/attention/problem/params.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// In the place of the score modifier: the keys of the call are one part of those of its rows, and the kernel merges its result with
/// that of the parts before it at the end of each row, by the rule of merge_attention(). Rows that later parts follow go to `o` in
/// fp32, the others to the o of the call. Each row's element is read and written by one thread, so that both are in place.
template <class Score>
struct part_of_keys {
  Score score;
  tensor_view<float, 4> o;       // (batch, queries, heads, head size of v): the result of the parts so far
  tensor_view<float, 3> lse;     // (batch, heads, queries)
  bool follows;                  // there are earlier parts
  int first_open = 0, end_open;  // the queries that later parts follow

  GIWA_HOST_DEVICE constexpr float operator()(float x, attention_coord c) const { return score(x, c); }
  GIWA_HOST_DEVICE constexpr alignment_request requested_alignment() const { return request_of(score); }
  GIWA_HOST_DEVICE constexpr bool is_open(int query) const { return query >= first_open && query < end_open; }

  /// The output and the log-sum-exp of the parts so far, of a query of a head of a sequence (head_place).
  ///@{
  template <class Head>
  GIWA_HOST_DEVICE float* row(const Head& h, int query) const {
    return o.data() +
           (h.sequence * o.stride(0) + int64{h.first_query_row + query} * o.stride(1) + h.head * o.stride(2));
  }
  template <class Head>
  GIWA_HOST_DEVICE float& lse_of(const Head& h, int query) const {
    return lse
        .data()[h.sequence * lse.stride(0) + h.head * lse.stride(1) + int64{h.first_query_row + query} * lse.stride(2)];
  }
  ///@}

  /// Takes rows that calls of the kernels of Hopper and mma.sync for 16 bits compute in one launch: they are in place. fp32 is
  /// computed again for heads that split fp16 does not hold, and wider heads in slices of columns.
  GIWA_HOST_DEVICE static constexpr bool suits(int64 element_bytes, int64 head_size, int64 head_size_v) {
    return element_bytes == 2 && head_size <= 256 && head_size_v <= 256;
  }
};

/// The earlier parts of the rows of a head, with the names of head_rows of a cache; for other calls their rows.
///@{
template <class Score, class Head>
struct part_head_rows {
  static constexpr bool has_prior = true;
  const part_of_keys<Score>& part;
  const Head& head;
  strided_rows<const float> prior_o;
  GIWA_HOST_DEVICE float prior_lse(int query) const {
    return part.follows ? part.lse_of(head, query) : -infinity_of<float>;
  }
  /// Takes the result of the parts with this one, a row of fp32.
  GIWA_HOST_DEVICE void put(int query, const float* from, int count, float lse) const {
    part.lse_of(head, query) = lse;
    float* const to = part.row(head, query);
    for (int i = 0; i < count && part.is_open(query); ++i) to[i] = from[i];
  }
};
template <class Score, class Head, class Rows>
GIWA_HOST_DEVICE const Rows& prior_rows(const Score&, const Head&, const Rows& rows) {
  return rows;
}
template <class Score, class Head, class Rows>
GIWA_HOST_DEVICE part_head_rows<Score, Head> prior_rows(const part_of_keys<Score>& part, const Head& h, const Rows&) {
  const auto& o = part.o;
  return {part, h, strided_rows<const float>({part.row(h, 0), {h.queries(), o.extent(3)}, {o.stride(1), 1}})};
}
///@}

template <class Score>
inline constexpr bool is_plain_score<part_of_keys<Score>> = is_plain_score<Score>;
/// Whether a call computes a part of the keys.
template <class Score>
inline constexpr bool is_part = false;
template <class Score>
inline constexpr bool is_part<part_of_keys<Score>> = true;

}  // namespace giwa::inline GIWA_ABI::detail

#endif
