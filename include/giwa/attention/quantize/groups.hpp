// SPDX-License-Identifier: MIT
// Codes with scales of groups of rows: a team of threads for each group, or for each chunk of a large one.
#ifndef GIWA_ATTENTION_QUANTIZE_GROUPS_HPP
#define GIWA_ATTENTION_QUANTIZE_GROUPS_HPP

#include <giwa/attention/quantize/codes.hpp>
#include <giwa/numeric/fast_division.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The tensors of a call, and how they are divided. A run is `Count` neighbouring elements of a row.
template <class T, class Code>
struct row_groups {
  tensor_view<const T, 4> x;     // (batch, rows, heads, head size)
  tensor_view<Code, 4> codes;    // as x
  tensor_view<float, 3> scales;  // (batch, groups, heads)
  int rows;                      // of a group; the last one of a sequence may have fewer
  int runs;                      // of a row; at first of as many numbers as an element of codes has
  fast_divisor heads, groups;    // heads; groups of a sequence and head
  int chunk_rows;                // of a chunk of a group; one chunk is the whole group
  fast_divisor chunks;           // of a group

  /// How many chunks there are.
  GIWA_HOST_DEVICE int64 count() const { return x.extent(0) * groups.divisor() * heads.divisor() * chunks.divisor(); }
};

/// A thread that computes alone.
struct team_of_one {
  GIWA_HOST_DEVICE static constexpr int rank() { return 0; }
  GIWA_HOST_DEVICE static constexpr int size() { return 1; }
  GIWA_HOST_DEVICE static float largest(float x) { return x; }
  GIWA_HOST_DEVICE static float exchange(float x, int) { return x; }
};

/// What a kernel does with a chunk: all, if it is a whole group; or the first or second half for chunks of a group.
enum class quantize_pass : int { all, raise_scale, write_codes };

/// The runs of a chunk that a thread of a team has: its own number, and every team.size()-th after it.
struct run_position {
  int row, run, step_rows, step_runs, runs;

  template <class Team>
  GIWA_HOST_DEVICE run_position(const Team& team, int runs_of_row)
      : row(team.rank() / runs_of_row),
        run(team.rank() % runs_of_row),
        step_rows(team.size() / runs_of_row),
        step_runs(team.size() % runs_of_row),
        runs(runs_of_row) {}
  GIWA_HOST_DEVICE void step() {
    row += step_rows, run += step_runs;
    if (run >= runs) run -= runs, ++row;
  }
};

/// Computes chunk number `number` of `count`. All threads of the team call it with their first run, also for a number past the chunks,
/// which is none. A thread holds `Held` runs in registers, and reads further ones twice. raise(scale, to) raises the scale of a group.
template <int Count, int Held, quantize_pass Pass, class Team, class T, class Code, class Raise>
GIWA_HOST_DEVICE void quantize_chunk(const Team& team, const row_groups<T, Code>& p, int64 number, int64 count,
                                     const run_position& first, const Raise& raise) {
  using run = element_run<T, Count>;
  const bool exists = number < count;
  const int64 known = exists ? number : 0, row_of_chunks = known / p.heads;
  const int64 head = known - row_of_chunks * p.heads.divisor();
  const int64 row_of_groups = Pass == quantize_pass::all ? row_of_chunks : row_of_chunks / p.chunks;
  const int64 batch = row_of_groups / p.groups, group = row_of_groups - batch * p.groups.divisor();
  const int64 in_group = (row_of_chunks - row_of_groups * p.chunks.divisor()) * p.chunk_rows;
  const int64 first_row = group * p.rows + in_group, of_sequence = p.x.extent(1) - first_row;
  const int64 of_group = p.rows - in_group < of_sequence ? p.rows - in_group : of_sequence;
  const int rows = !exists || of_group <= 0 ? 0 : static_cast<int>(of_group < p.chunk_rows ? of_group : p.chunk_rows);
  const int64 valid_row = rows == 0 ? 0 : first_row;
  const T* const from = &p.x(batch, valid_row, head, 0);
  Code* const to = &p.codes(batch, valid_row, head, 0);
  float& scale_of_group = p.scales(batch, group, head);
  const auto read = [&](const run_position& at) { return run::read(from + at.row * p.x.stride(1) + at.run * Count); };

  run held[stdlib::size_t{Held}]{};
  run_position at = first;
  GIWA_UNROLL
  for (int n = 0; n < Held; ++n, at.step())
    if (at.row < rows) held[n] = read(at);
  const run_position first_read_twice = at;
  float scale;
  if constexpr (Pass == quantize_pass::write_codes) {
    scale = scale_of_group;
  } else {
    float largest = 0;
    GIWA_UNROLL
    for (int n = 0; n < Held; ++n) largest = larger_finite(largest, held[n]);
    for (; at.row < rows; at.step()) largest = larger_finite(largest, read(at));
    scale = scale_of<Code>(team.largest(largest));
    if (rows > 0 && team.rank() == 0) raise(scale, scale_of_group);
    if (Pass == quantize_pass::raise_scale) return;
  }
  const float reciprocal = scale_divisor::of(scale).reciprocal;
  const auto write = [&](const run& r, const run_position& place) {
    float x[stdlib::size_t{Count}];
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) x[i] = convert<float>{}(r.get(i));
    // Single codes may be K-major.
    const int64 column = Count == 1 ? place.run * p.codes.stride(3) : place.run * Count / codes_of<Code>;
    round_run<Code, Count>(to + place.row * p.codes.stride(1) + column, x,
                           [&](int, float y) { return fma_with_subnormals(y, reciprocal, -0.0f); });
  };
  at = first;
  GIWA_UNROLL
  for (int n = 0; n < Held; ++n, at.step())
    if (at.row < rows) write(held[n], at);
  for (at = first_read_twice; at.row < rows; at.step()) write(read(at), at);
}

/// Stores the scale of a whole group.
struct store_scale {
  GIWA_HOST_DEVICE void operator()(float scale, float& to) const { to = scale; }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
