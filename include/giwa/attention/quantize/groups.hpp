// SPDX-License-Identifier: MIT
// Codes with scales of groups of rows: a team of threads for each group.
#ifndef GIWA_ATTENTION_QUANTIZE_GROUPS_HPP
#define GIWA_ATTENTION_QUANTIZE_GROUPS_HPP

#include <giwa/attention/quantize/codes.hpp>
#include <giwa/numeric/fast_division.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The tensors of a call, and how they are divided. A run is `Count` neighbouring elements of a row.
template <class T, class Code>
struct row_groups {
  tensor_view<const T, 4> x;         // (batch, rows, heads, head size)
  tensor_view<Code, 4> codes;        // as x
  tensor_view<float, 3> scales;      // (batch, groups, heads)
  int64 rows;                        // of a group; the last one of a sequence may have fewer
  fast_divisor heads, groups, runs;  // heads; groups of a sequence and head; runs of a row

  /// How many groups there are.
  GIWA_HOST_DEVICE int64 count() const { return x.extent(0) * groups.divisor() * heads.divisor(); }
};

/// A thread that computes alone.
struct team_of_one {
  GIWA_HOST_DEVICE static constexpr int rank() { return 0; }
  GIWA_HOST_DEVICE static constexpr int size() { return 1; }
  GIWA_HOST_DEVICE static float largest(float x) { return x; }
};

/// Finds the scale of group number `number` and writes its codes. All threads of the team call it, also for a number past the
/// groups, which is no group. Each holds its first `Held` runs in registers, and reads further ones twice.
template <int Count, int Held, class Team, class T, class Code>
GIWA_HOST_DEVICE void quantize_group(const Team& team, const row_groups<T, Code>& p, int64 number) {
  using run = element_run<T, Count>;
  const bool exists = number < p.count();
  const int64 known = exists ? number : 0, row_of_groups = known / p.heads;
  const int64 head = known - row_of_groups * p.heads.divisor(), batch = row_of_groups / p.groups;
  const int64 group = row_of_groups - batch * p.groups.divisor(), first_row = group * p.rows;
  const int64 left = p.x.extent(1) - first_row, rows = left < p.rows ? left : p.rows;
  const int64 runs = exists ? rows * p.runs.divisor() : 0;
  const T* const from = &p.x(batch, first_row, head, 0);
  Code* const to = &p.codes(batch, first_row, head, 0);
  const auto offset = [&](int64 i, int64 stride) {
    const int64 row = i / p.runs;
    return row * stride + (i - row * p.runs.divisor()) * Count;
  };
  const auto read = [&](int64 i) { return run::read(from + offset(i, p.x.stride(1))); };
  const auto largest_of_run = [](const run& r, float largest) {
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) largest = larger_finite(largest, convert<float>{}(r.get(i)));
    return largest;
  };

  run held[stdlib::size_t{Held}]{};
  float largest = 0;
  const int64 first_read_twice = team.rank() + int64{Held} * team.size();
  GIWA_UNROLL
  for (int n = 0; n < Held; ++n)
    if (const int64 i = team.rank() + int64{n} * team.size(); i < runs) held[n] = read(i);
  GIWA_UNROLL
  for (int n = 0; n < Held; ++n) largest = largest_of_run(held[n], largest);
  for (int64 i = first_read_twice; i < runs; i += team.size()) largest = largest_of_run(read(i), largest);

  const float scale = scale_of<Code>(team.largest(largest));
  const scale_divisor divide = scale_divisor::of(scale);
  const auto write = [&](const run& r, int64 at) {
    float x[stdlib::size_t{Count}];
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) x[i] = convert<float>{}(r.get(i));
    round_run<Code, Count>(to + offset(at, p.codes.stride(1)), x, [&](int, float y) { return divide(y); });
  };
  GIWA_UNROLL
  for (int n = 0; n < Held; ++n)
    if (const int64 i = team.rank() + int64{n} * team.size(); i < runs) write(held[n], i);
  for (int64 i = first_read_twice; i < runs; i += team.size()) write(read(i), i);
  if (exists && team.rank() == 0) p.scales(batch, group, head) = scale;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
