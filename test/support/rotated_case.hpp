// SPDX-License-Identifier: MIT
// The queries of a cached_case rotated by append_to_cache, and rotations drawn from a number.
#ifndef GIWA_TEST_SUPPORT_ROTATED_CASE_HPP
#define GIWA_TEST_SUPPORT_ROTATED_CASE_HPP

#include <giwa/host.hpp>

#include "support/cached_case.hpp"
#include "support/random.hpp"

namespace giwa_test {

/// A user's rotation, which computes no four pairs at once.
struct turn_by_pair : giwa::rotary_layout {
  GIWA_HOST_DEVICE giwa::rotation operator()(int64 position, int pair) const {
    // One rounding on host and device: compilers differ in what they fuse.
    const float angle = giwa::detail::fused_multiply_add(0.013f, static_cast<float>(position % 1000),
                                                         0.5f * static_cast<float>(pair % 11));
    return {1.25f * giwa::cos(angle), 1.25f * giwa::sin(angle)};
  }
};

/// Which elements of a head are rotated: whole runs of 8 and 4 elements, parts of runs, none, all.
inline giwa::rotary_layout drawn_layout(int64 head_size, random_sequence& random) {
  giwa::rotary_layout r;
  r.interleaved = random.below(2) == 0;
  const int all = static_cast<int>(head_size) / 2 * 2;
  switch (random.below(6)) {
    case 0: r.size = 2 * static_cast<int>(random.below(head_size / 2 + 1)); break;
    case 1: r.size = all / 2 / 2 * 2; break;
    case 2: r.size = all / 16 * 16; break;
    default: r.size = all;
  }
  const int64 room = head_size - r.size;
  if (room > 0) r.first = static_cast<int>(random.below(3) == 0 ? room / 8 * 8 : random.below(room + 1));
  return r;
}

/// The position that each row of q has in its sequence; that of rows in no sequence is 0.
template <class T, class Element, class O>
std::vector<int64> positions_in_sequences(const cached_case<T, Element, O>& c) {
  std::vector<int64> positions(static_cast<std::size_t>(c.rows()));
  for (std::size_t b = 0; b < c.keys.size(); ++b)
    for (int64 row = c.q_offsets[b]; row < c.q_offsets[b + 1]; ++row)
      positions[static_cast<std::size_t>(row)] = c.keys[b] - (c.q_offsets[b + 1] - row);
  return positions;
}

/// Rotates q of a case in place on the CPU, by append_to_cache without rows that are written.
template <class T, class Element, class O, class Rotary>
giwa::status rotate(cached_case<T, Element, O>& c, const Rotary& rotary, std::vector<int64> positions) {
  std::vector<int64> slots(positions.size(), -1);
  const auto rows = [](std::vector<int64>& x) {
    return giwa::row_numbers(tensor_view<int64, 1>(x.data(), {static_cast<int64>(x.size())}));
  };
  case_buffer<T, 4> keys = c.q;  // only their sizes matter
  keys.extents[2] = c.options.kv_heads;
  const tensor_view<const T, 4> of_k = keys.view();
  const tensor_view<T, 4> q = c.q.view();
  return giwa::append_to_cache(
      giwa::host, giwa::kv_cache<Element>{.k = c.k.view(), .v = c.v.view()}, of_k, tensor_view<const T, 4>(), rotary,
      giwa::append_options<T>{.q = q, .q_to = q, .positions = rows(positions), .slots = rows(slots)});
}

}  // namespace giwa_test

#endif
