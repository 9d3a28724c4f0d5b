// SPDX-License-Identifier: MIT
// rotated_queries: a rotary embedding of q inside attention_cached, and how each path rotates the queries that it loads.
#ifndef GIWA_ATTENTION_APPEND_ROTATED_QUERIES_HPP
#define GIWA_ATTENTION_APPEND_ROTATED_QUERIES_HPP

#include <giwa/attention/append/append_unit.hpp>
#include <giwa/attention/problem/score.hpp>
#include <giwa/attention/quantize/codes.hpp>

namespace giwa::inline GIWA_ABI {

/// Rotates q by position inside attention_cached(), in the place of the score modifier: `rotated_queries(rotary_base(10000.0,
/// {.size = 128}))`, or together with a score modifier, `rotated_queries(rotary, softcap{30})`. q is read as it is, and its memory is
/// not written.
///
/// Query i of n of a sequence with m keys has the position m - n + i, as in append_to_cache(), which rotates k by the same `rotary`.
/// `positions` says others; it is needed where a length is above the capacity of the cache, since m is at most the capacity. Rotations
/// are computed in fp32 and rounded once, to the type of q: the result is bit-identical to that of a call with queries that
/// append_to_cache() rotated (`q`, `q_to`).
///
/// attention_forward and attention_backward take none: their rotated queries and keys are needed again for gradients.
template <rotary_embedding Rotary, score_modifier Score = plain_score>
class rotated_queries {
 public:
  static_assert(goes_as_bytes<Rotary>,
                "giwa::rotated_queries: the rotary embedding is copied to the device as bytes: make it trivially "
                "copyable.");
  static_assert(!detail::drops_weights<Score> && !detail::hides_dropout<Score> && !detail::rotates_queries<Score> &&
                    !detail::hides_rotation<Score>,
                "giwa::rotated_queries: the score modifier in it must be neither a dropout nor another rotation.");
  Rotary rotary;  ///< the rotation of each position and pair
  Score score;    ///< changes the scores before the softmax
  /// The position of each row of q, in device memory: number sequence * queries + query, or that of the packed row. None: where the
  /// query is in its sequence.
  row_numbers positions;

  /// The rotation, the score modifier, and the positions.
  ///@{
  GIWA_HOST_DEVICE constexpr explicit rotated_queries(const Rotary& rotary_, const Score& score_ = {},
                                                      const row_numbers& positions_ = {})
      : rotary(rotary_), score(score_), positions(positions_) {}
  GIWA_HOST_DEVICE constexpr rotated_queries(const Rotary& rotary_, const row_numbers& positions_)
    requires(stdlib::same_as<Score, plain_score>)
      : rotary(rotary_), score(), positions(positions_) {}
  ///@}

  /// See score_modifier.
  ///@{
  GIWA_HOST_DEVICE constexpr float operator()(float x, attention_coord c) const { return score(x, c); }
  GIWA_HOST_DEVICE constexpr detail::alignment_request requested_alignment() const { return detail::request_of(score); }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const { return detail::check_callable(score, s); }
  ///@}
};

namespace detail {

template <class Rotary, class Score>
inline constexpr bool is_plain_score<rotated_queries<Rotary, Score>> = is_plain_score<Score>;
template <class Rotary, class Score>
inline constexpr bool rotates_queries<rotated_queries<Rotary, Score>> = true;

/// The position of a query of a cached_sequence, in a call whose score modifier is a rotated_queries.
template <class Call, class Sequence>
GIWA_HOST_DEVICE int64 position_of_query(const Call& call, const Sequence& s, int query) {
  const row_numbers& positions = call.score.positions;
  if (!positions.given()) return int64{s.keys} - s.queries + query;
  return positions[s.q_batch * call.views.q.extent(1) + s.first_query_row + query];
}

/// Calls use(i, rotation) for the pairs pair + i, 0 <= i < Count. `pair` is a multiple of Count.
template <int Count, class Rotary, class Use>
GIWA_HOST_DEVICE void for_each_pair(const Rotary& rotary, int64 position, int pair, const Use& use) {
  if constexpr (Count % 4 == 0 && has_fours<Rotary>) {
    GIWA_UNROLL
    for (int j = 0; j < Count; j += 4)
      rotary.of_four_pairs(position, pair + j, [&](int i, const rotation& r) { use(j + i, r); });
  } else {
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) use(i, rotary(position, pair + i));
  }
}

/// Writes the elements [column, column + Count) of a row of q to `to`, rotated, those from column + count on as 0. `column` is a
/// multiple of Count. `aligned`: the row is aligned to runs of Count elements, as `to` is.
template <int Count, class T, class Rotary>
GIWA_HOST_DEVICE void read_rotated(const T* row, int column, int count, bool aligned, const Rotary& rotary,
                                   int64 position, T* to) {
  using run = element_run<T, Count>;
  const rotary_layout& r = rotary;
  const int first = column - r.first, half = r.size / 2;
  if (!aligned || count < Count || r.size % (2 * Count) != 0 || r.first % Count != 0) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int i = 0; i < Count; ++i)
      to[i] = i < count ? rotated_element(row, column + i, rotary, position) : convert<T>{}(0.f);
    return;
  }
  const run own = run::read(row + column);
  if (first < 0 || first >= r.size) return own.write(to);
  float x[stdlib::size_t{Count}];
  if (r.interleaved) {
    for_each_pair<Count / 2>(rotary, position, first / 2, [&](int i, const rotation& angle) {
      x[2 * i] = convert<float>{}(own.get(2 * i)), x[2 * i + 1] = convert<float>{}(own.get(2 * i + 1));
      rotate_pair(angle, x[2 * i], x[2 * i + 1]);
    });
  } else {
    const bool second = first >= half;
    const run other = run::read(row + (second ? column - half : column + half));
    for_each_pair<Count>(rotary, position, second ? first - half : first, [&](int i, const rotation& angle) {
      const float a = convert<float>{}(own.get(i)), b = convert<float>{}(other.get(i));
      float of_first = second ? b : a, of_second = second ? a : b;
      rotate_pair(angle, of_first, of_second);
      x[i] = second ? of_second : of_first;
    });
  }
  round_run<T, Count>(to, x, nothing{});
}

/// Loads the packed rows of a work tile into a tile of `tile_rows` rows, rotated, with zeros past their end and past the head size.
/// `Threads` threads call it, each with its rank. Not unrolled: 32 rows would spill.
template <int Threads, class Call, class Work, class Rows, class Tile>
GIWA_HOST_DEVICE void load_rotated_rows(int thread, const Call& call, const Work& work, const Rows& rows, int tile_rows,
                                        bool aligned, Tile& tile) {
  using element = typename Tile::value_type;
  constexpr int run = 16 / static_cast<int>(sizeof(element)), chunks = Tile::columns / run;
  const auto& q = call.views.q;
  const int width = static_cast<int>(q.extent(3));
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int i = thread; i < tile_rows * chunks; i += Threads) {
    const int row = i / chunks, column = i % chunks * run;
    element* const to = tile.chunk(row, column);
    if (row >= rows.rows || column >= width) {
      element_run<element, run>::filled(convert<element>{}(0.f)).write(to);
      continue;
    }
    const int query = rows.query(row);
    read_rotated<run>(&q(work.sequence.q_batch, work.sequence.first_query_row + query, rows.head(row), 0), column,
                      width - column < run ? width - column : run, aligned, call.score.rotary,
                      position_of_query(call, work.sequence, query), to);
  }
}

/// Rotates the first `rows` rows of a tile of queries in shared memory. `Threads` threads call it, each with its rank; each has
/// neighbouring rows, and computes the rotations of a unit once for all that have one position. position_of(row).
template <int Threads, int Count, class Tile, class Rotary, class PositionOf>
GIWA_HOST_DEVICE void rotate_tile_by(int thread, Tile& tile, int rows, const Rotary& rotary,
                                     const PositionOf& position_of) {
  using element = typename Tile::value_type;
  const int units = rotary.size / 2 / Count, groups = units < Threads ? Threads / units : 1;
  const int each = ceil_div(rows, groups);
  const auto at = [&](int row, int column) {
    if constexpr (Count == 1)
      return &tile(row, column);
    else
      return tile.chunk(row, column);
  };
  for (int i = thread; i < units * groups; i += Threads) {
    const append_unit unit = append_unit_of<Count>(rotary, true, Tile::columns, i % units);
    const int begin = i / units * each, end = begin + each < rows ? begin + each : rows;
    unit_rotations<Count> rotations{};
    int64 last = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int row = begin; row < end; ++row) {
      const int64 position = position_of(row);
      if (row == begin || position != last) rotations.fill(rotary, position, unit);
      last = position;
      element *const to = at(row, unit.first), *const to_second = at(row, unit.second);
      const auto a = element_run<element, Count>::read(to), b = element_run<element, Count>::read(to_second);
      float x[stdlib::size_t{2 * Count}];
      GIWA_UNROLL
      for (int j = 0; j < Count; ++j) x[j] = convert<float>{}(a.get(j)), x[j + Count] = convert<float>{}(b.get(j));
      rotations.rotate(x, rotary.interleaved);
      round_run<element, Count>(to, x, nothing{});
      round_run<element, Count>(to_second, x + Count, nothing{});
    }
  }
}
template <int Threads, class Tile, class Rotary, class PositionOf>
GIWA_HOST_DEVICE void rotate_tile(int thread, Tile& tile, int rows, const Rotary& rotary,
                                  const PositionOf& position_of) {
  constexpr int count = 8;  // elements of a chunk of 16 bytes
  static_assert(sizeof(typename Tile::value_type) * count == 16);
  if (rotary.size == 0) return;
  if (rotary.size % (2 * count) == 0 && rotary.first % count == 0)
    rotate_tile_by<Threads, count>(thread, tile, rows, rotary, position_of);
  else
    rotate_tile_by<Threads, 1>(thread, tile, rows, rotary, position_of);
}

/// The elements that are rotated, and a rotation's own rules.
template <class Rotary>
GIWA_HOST_DEVICE constexpr status check_rotary(const Rotary& r, int64 head_size, const char* past_head_size) {
  const rotary_layout& layout = r;
  if (layout.size < 0)
    return status::invalid("rotary", "the number of rotated elements is negative", bound::at_least, 0, layout.size);
  if (layout.size % 2 != 0)
    return status::invalid("rotary", "the number of rotated elements must be even", bound::multiple_of, 2, layout.size);
  if (layout.first < 0)
    return status::invalid("rotary", "the first rotated element is negative", bound::at_least, 0, layout.first);
  if (layout.size > 0 && int64{layout.first} + layout.size > head_size)
    return status::invalid("rotary", past_head_size, bound::at_most, head_size, int64{layout.first} + layout.size);
  if constexpr (requires {
                  { r.check() } -> stdlib::same_as<status>;
                })
    return r.check();
  else
    return {};
}

/// Numbers of rows: one for each.
GIWA_HOST_DEVICE constexpr status check_row_numbers(const row_numbers& numbers, int64 rows, const char* argument,
                                                    const char* message) {
  if (!numbers.given()) return {};
  if (const status s = numbers.narrow().check(argument); !s.ok()) return s;
  if (const status s = numbers.wide().check(argument); !s.ok()) return s;
  const int64 count = numbers.narrow().size() + numbers.wide().size();
  return count == rows ? status{} : status::invalid(argument, message, bound::exactly, rows, count);
}

/// The tables of a rotation; empty views if it has none.
template <class Rotary>
GIWA_HOST_DEVICE constexpr auto tables_of([[maybe_unused]] const Rotary& r) {
  if constexpr (requires {
                  r.cosines();
                  r.sines();
                }) {
    using view = stdlib::remove_cvref_t<decltype(r.cosines())>;
    struct tables {
      view cos, sin;
    };
    return r.size > 0 ? tables{r.cosines(), r.sines()} : tables{};
  } else {
    struct tables {
      tensor_view<const float, 2> cos, sin;
    };
    return tables{};
  }
}

/// The rules for the rotation of queries, if the score modifier is one. q is (batch, queries, heads, head size).
template <class Score, class Queries>
GIWA_HOST_DEVICE constexpr status check_rotated_queries([[maybe_unused]] const Score& score,
                                                        [[maybe_unused]] const Queries& q) {
  if constexpr (rotates_queries<Score>) {
    if (const status s = check_rotary(score.rotary, q.extent(3), "the rotated elements reach past the head size of q");
        !s.ok())
      return s;
    return check_row_numbers(score.positions, q.extent(0) * q.extent(1), "positions",
                             "there must be one number for each row of q");
  }
  return {};
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
