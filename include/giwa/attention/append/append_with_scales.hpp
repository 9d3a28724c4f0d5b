// SPDX-License-Identifier: MIT
// The work of append_to_cache on heads of a new row whose scales it finds, after a mean and a Hadamard transform.
#ifndef GIWA_ATTENTION_APPEND_APPEND_WITH_SCALES_HPP
#define GIWA_ATTENTION_APPEND_APPEND_WITH_SCALES_HPP

#include <giwa/attention/append/append_rows.hpp>
#include <giwa/attention/quantize/codes.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The Hadamard transform of a head, divided by the root of its size, in the team's registers: x[n] has the runs of unit
/// team.rank() + n team.size(). All threads of the team call it, with the same number of units, a power of two; those of another tensor
/// keep theirs. Sums are in the order of the bits of a column's number, so that teams of any size have the same bits.
template <int Count, int Held, class Team>
GIWA_HOST_DEVICE void transform_head(const Team& team, int units, bool transforms,
                                     float (&x)[stdlib::size_t{Held}][stdlib::size_t{2 * Count}]) {
  const auto combine = [](float& a, float& b) {
    const float sum = a + b;
    b = a - b, a = sum;
  };
  const auto each = [&](const auto& f) {
    GIWA_UNROLL
    for (int n = 0; n < Held; ++n) {
      GIWA_UNROLL
      for (int i = 0; i < 2 * Count; ++i) f(n, i);
    }
  };
  GIWA_UNROLL
  for (int step = 1; step < Count; step *= 2)
    each([&](int n, int i) {
      if (transforms && (i & step) == 0) combine(x[n][i], x[n][i | step]);
    });
  for (int step = 1; step < team.size() && step < units; step *= 2)
    each([&](int n, int i) {
      const float other = team.exchange(x[n][i], step);
      if (transforms) x[n][i] = (team.rank() & step) != 0 ? other - x[n][i] : x[n][i] + other;
    });
  GIWA_UNROLL
  for (int step = 1; step < Held; step *= 2)
    each([&](int n, int i) {
      if (transforms && step * team.size() < units && (n & step) == 0) combine(x[n][i], x[n | step][i]);
    });
  float share = 1;
  for (int n = 2 * Count * units; n > 1; n /= 4) share *= n == 2 ? 0.70710678f : 0.5f;
  each([&](int n, int i) {
    if (!transforms) return;
    if (i < Count) combine(x[n][i], x[n][i + Count]);
  });
  each([&](int n, int i) {
    if (transforms) x[n][i] *= share;
  });
}

/// Appends slice `number` of `count` of all rows, some heads of k, of v, or queries, to a cache whose scales the call finds: the largest
/// number of a head, rotated, gives its scale. All threads of a team call it, also for a number past the slices, which is none. A thread
/// holds `Held` units of a head in registers, and reads further ones twice.
template <int Count, int Held, class Team, class T, class Element, class Rotary>
GIWA_HOST_DEVICE void append_with_scales(const Team& team, const append_params<T, Element, Rotary>& p, int64 number,
                                         int64 count) {
  using numbers = float[stdlib::size_t{2 * Count}];
  const append_views<T, Element>& v = p.views;
  const int64 known = number < count ? number : 0, row = known / p.slices;
  const int slice = static_cast<int>(known - row * p.slices.divisor());
  const bool of_k = slice < p.k_slices, of_q = slice >= p.k_slices + p.v_slices;
  const int first = (of_k ? slice : of_q ? slice - p.k_slices - p.v_slices : slice - p.k_slices) * p.heads_of_slice;
  const auto from = of_k   ? append_source<T>::of(v.k, p.rotates())
                    : of_q ? append_source<T>::of(v.q, p.rotates())
                           : append_source<T>::of(v.v, false);
  const append_place place = p.place_of(row);
  const int64 batch = row / p.new_rows, row_of_batch = row - batch * p.new_rows.divisor();
  const bool writes = number < count && place.known && (of_q || place.element >= 0);
  const int units = writes ? append_units<Count>(p.rotary, from.rotates, from.size) : 0;
  const int heads = from.heads - first < p.heads_of_slice ? from.heads - first : p.heads_of_slice;
  const T* const source = from.data + batch * from.batch + row_of_batch * from.row + first * from.head;
  const auto unit_of = [&](int n) { return append_unit_of<Count>(p.rotary, from.rotates, from.size, n); };

  element_run<T, Count> run[stdlib::size_t{Held}][2]{};
  unit_rotations<Count> rotations[stdlib::size_t{Held}]{};
  const auto read = [&](int head, const append_unit& unit, element_run<T, Count>(&to)[2]) {
    to[0] = to[0].read(source + head * from.head + unit.first);
    if (unit.second >= 0) to[1] = to[1].read(source + head * from.head + unit.second);
  };
  const auto change = [&](int head, const append_unit& unit, const element_run<T, Count>(&from_run)[2],
                          const unit_rotations<Count>& by, numbers& x) {
    GIWA_UNROLL
    for (int i = 0; i < 2 * Count; ++i)
      x[i] = i >= Count && unit.second < 0 ? 0.f : convert<float>{}(from_run[i / Count].get(i % Count));
    if (unit.pair >= 0) by.rotate(x, p.rotary.interleaved);
    if (!of_k || v.k_mean.data() == nullptr) return;
    GIWA_UNROLL
    for (int i = 0; i < 2 * Count; ++i)
      if (i < Count || unit.second >= 0)
        x[i] -= v.k_mean(first + head, i < Count ? unit.first + i : unit.second + i - Count);
  };
  const auto write_to = [&](auto* to, const append_unit& unit, const float* x, const auto& divide) {
    using element = stdlib::remove_reference_t<decltype(*to)>;
    round_run<element, Count>(to + unit.first / codes_of<element>, x, divide);
    if (unit.second >= 0) round_run<element, Count>(to + unit.second / codes_of<element>, x + Count, divide);
  };
  const auto write = [&](int head, const append_unit& unit, const float* x, float reciprocal) {
    if (of_q)
      write_to(&v.q_to(batch, row_of_batch, first + head, 0), unit, x, nothing{});
    else
      write_to(&(of_k ? v.cache.k : v.cache.v)(place.element, place.row, first + head, 0), unit, x,
               [&](int, float y) { return fma_with_subnormals(y, reciprocal, -0.0f); });
  };
  // f(n, number of the unit) of those in registers; g(number) of the others.
  const auto for_held = [&](const auto& f) {
    GIWA_UNROLL
    for (int n = 0; n < Held; ++n)
      if (team.rank() + n * team.size() < units) f(n, team.rank() + n * team.size());
  };
  const auto for_others = [&](int head, const auto& g) {
    for (int u = team.rank() + Held * team.size(); u < units; u += team.size()) {
      const append_unit unit = unit_of(u);
      element_run<T, Count> own[2]{};
      unit_rotations<Count> by{};
      numbers x;
      read(head, unit, own);
      if (unit.pair >= 0) by.fill(p.rotary, place.position, unit);
      change(head, unit, own, by, x);
      g(unit, x);
    }
  };
  const auto larger_of_unit = [](float largest, const numbers& x) {
    GIWA_UNROLL
    for (int i = 0; i < 2 * Count; ++i) largest = larger_finite(largest, x[i]);
    return largest;
  };

  for_held([&](int n, int u) {
    const append_unit unit = unit_of(u);
    read(0, unit, run[n]);
    if (unit.pair >= 0) rotations[n].fill(p.rotary, place.position, unit);
  });
  for (int head = 0; head < p.heads_of_slice; ++head) {  // as many for all teams, which exchange numbers
    const bool exists = head < heads;
    numbers x[stdlib::size_t{Held}] = {};
    float largest = 0;
    for_held([&](int n, int u) {
      const append_unit unit = unit_of(u);
      if (exists) change(head, unit, run[n], rotations[n], x[n]);
      if (head + 1 < heads) read(head + 1, unit, run[n]);
    });
    if (v.hadamard)
      transform_head<Count, Held>(team, append_units<Count>(p.rotary, p.rotates(), static_cast<int>(v.k.extent(3))),
                                  of_k || of_q, x);
    GIWA_UNROLL
    for (int n = 0; n < Held; ++n) largest = larger_of_unit(largest, x[n]);
    if (exists) for_others(head, [&](const append_unit&, const numbers& y) { largest = larger_of_unit(largest, y); });
    const float scale = scale_of<Element>(team.largest(largest)), reciprocal = scale_divisor::of(scale).reciprocal;
    if (!exists) continue;
    for_held([&](int n, int u) { write(head, unit_of(u), x[n], reciprocal); });
    for_others(head, [&](const append_unit& unit, const numbers& y) { write(head, unit, y, reciprocal); });
    if (units > 0 && !of_q && team.rank() == 0)
      (of_k ? v.k_scales : v.v_scales)(place.element, place.row, first + head) = scale;
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
