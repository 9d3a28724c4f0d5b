// SPDX-License-Identifier: MIT
// Options of attention calls with one more member, and the accuracy and the tile of a type that is either.
#ifndef GIWA_TEST_SUPPORT_CALL_OPTIONS_HPP
#define GIWA_TEST_SUPPORT_CALL_OPTIONS_HPP

#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/problem/cached_views.hpp>

#include <type_traits>

namespace giwa_test {

template <class Options>
Options with(Options options, const giwa::sequences& sequences) {
  options.sequences = sequences;
  return options;
}
template <class Options>
Options with_lse(Options options, const giwa::tensor_view<const float, 3>& lse) {
  options.lse = lse;
  return options;
}

inline giwa::sequences sequences_of(const giwa::detail::packed_queries& p) {
  return {.q_offsets = p.offsets, .count = p.count, .max_q = p.most};
}

/// The template arguments of a call for a type that is an accuracy or a tile.
///@{
template <class Choice>
using accuracy_of = std::conditional_t<giwa::detail::is_fp32_accuracy<Choice>, Choice, giwa::fp32>;
template <class Choice>
using tile_of = std::conditional_t<giwa::detail::is_fp32_accuracy<Choice>, giwa::automatic_tile, Choice>;
///@}

}  // namespace giwa_test

#endif
