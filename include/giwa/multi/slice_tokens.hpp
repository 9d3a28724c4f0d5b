// SPDX-License-Identifier: MIT
// slice_tokens and gather_tokens: copies between a whole sequence and the rows of one rank.
#ifndef GIWA_MULTI_SLICE_TOKENS_HPP
#define GIWA_MULTI_SLICE_TOKENS_HPP

#include <giwa/multi/row_groups.hpp>
#include <giwa/multi/sequence_slices.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The rows of a rank, in a tensor that has all of them and in one that has no others.
template <class T>
status check_slice(const token_slice& slice, const tensor_view<T, 4>& whole, const tensor_view<T, 4>& own) {
  if (const status s = whole.check("whole"); !s.ok()) return s;
  if (const status s = own.check("own"); !s.ok()) return s;
  index<4> sizes = whole.extents();
  sizes[1] = slice.count();
  if (const status s = own.check_extents(sizes, "own", "own must have the sizes of whole, with the rows of the slice");
      !s.ok())
    return s;
  for (const token_range& r : slice.ranges)
    if (r.count > 0 && r.end() > whole.extent(1))
      return status::invalid("whole", "the slice has tokens past the end of the sequence", bound::at_most,
                             whole.extent(1), r.end());
  return {};
}

}  // namespace detail

/// Copies the tokens of a slice out of a whole sequence. The tensors have any strides and must not overlap.
///
/// Parameters:
///   - where: a stream, of whose GPU both are memory; or giwa::host, with which the call returns when it is done
///   - slice: the tokens of a rank
///   - whole: (batch, tokens, heads, head size)
///   - own: (batch, tokens of the slice, heads, head size); written
///
/// Errors: sizes that do not fit together.
template <detail::attention_place Where, class T, class Own>
  requires(stdlib::same_as<stdlib::remove_const_t<T>, Own>)
status slice_tokens(const Where& where, const token_slice& slice, const tensor_view<T, 4>& whole,
                    const tensor_view<Own, 4>& own) {
  const tensor_view<const Own, 4> source = whole;
  status s = detail::check_slice<const Own>(slice, source, own);
  for (int i = 0; i < 2 && s.ok(); ++i) s = detail::copy_rows(where, slice.ranges[i].of(source), slice.rows(i).of(own));
  return s;
}
/// Copies the tokens of a slice to their places in a whole sequence; see slice_tokens().
///
/// Parameters:
///   - where, slice, own: as there
///   - whole: written, in the places of the slice
template <detail::attention_place Where, class T, class Whole>
  requires(stdlib::same_as<stdlib::remove_const_t<T>, Whole>)
status gather_tokens(const Where& where, const token_slice& slice, const tensor_view<T, 4>& own,
                     const tensor_view<Whole, 4>& whole) {
  const tensor_view<const Whole, 4> source = own;
  status s = detail::check_slice<const Whole>(slice, whole, source);
  for (int i = 0; i < 2 && s.ok(); ++i)
    s = detail::copy_rows(where, slice.rows(i).of(source), slice.ranges[i].of(whole));
  return s;
}

}  // namespace giwa::inline GIWA_ABI

#endif
