// SPDX-License-Identifier: MIT
// What a block_map is made from score by score: a matrix of booleans, and masks; 32 blocks of a row at once.
#ifndef GIWA_ATTENTION_BLOCKS_SCORE_SOURCES_HPP
#define GIWA_ATTENTION_BLOCKS_SCORE_SOURCES_HPP

#include <giwa/attention/blocks/sources.hpp>
#include <giwa/attention/problem/checks.hpp>
#include <giwa/numeric/vector_access.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The bits of 32 blocks, f(scores of a block, alone) -> tile_keep, the same in all lanes.
template <class F>
GIWA_HOST_DEVICE block_bits bits_of_blocks(const block_map& map, const block_place& at, const F& f) {
  block_bits bits{};
  const auto end = [](int first, int size, int length) { return length - first < size ? length : first + size; };
  for (int i = 0, column; i < 32 && (column = 32 * at.word + i) < map.columns(); ++i) {
    const int query = at.row * map.block_queries, key = column * map.block_keys;
    const tile_keep keep = f(score_tile{at.batch, at.head, query, end(query, map.block_queries, map.queries) - 1, key,
                                        end(key, map.block_keys, map.keys) - 1, 0});
    if (keep != tile_keep::none) bits.visible |= uint32{1} << i;
    if (keep == tile_keep::all) bits.full |= uint32{1} << i;
  }
  return bits;
}
/// What of a block is visible: `found` and `missing` are what a lane has seen.
template <class Team>
GIWA_HOST_DEVICE tile_keep keep_of_block(const Team& team, bool found, bool missing) {
  const uint32 seen = team.any_bits((found ? 1u : 0u) | (missing ? 2u : 0u));
  return seen == 1 ? tile_keep::all : seen == 2 ? tile_keep::none : tile_keep::some;
}

template <>
struct block_source<tensor_view<const bool, 4>> : block_source_base {
  using matrix = tensor_view<const bool, 4>;

  GIWA_HOST_DEVICE static status check(const block_map& map, const matrix& visible) {
    const int sizes[] = {map.batch, map.heads, map.queries, map.keys};
    return check_view(visible, sizes, 4, map, "source");
  }
  template <class Team>
  GIWA_HOST_DEVICE static block_bits word(const Team& team, const block_map& map, const matrix& visible,
                                          const block_place& at, row_state&) {
    const bool* const of_head = visible.data() + (at.batch * visible.stride(0) + at.head * visible.stride(1));
    const int64 row_step = visible.stride(2), step = visible.stride(3);
    const bool in_vectors = step == 1 && map.block_keys % width == 0 && row_step % width == 0 &&
                            reinterpret_cast<uint64>(of_head) % width == 0;
    if constexpr (Team::lanes > 1)
      if (map.block_keys < strip) return of_strips(team, map, of_head, row_step, step, in_vectors, at);
    int shift = 0;  // a row of a block has 1 << shift vectors
    while (width << shift < map.block_keys) ++shift;
    return bits_of_blocks(map, at, [&](const score_tile& t) {
      const int rows = t.last_query - t.first_query + 1, keys = t.last_key - t.first_key + 1;
      const bool* const first = of_head + (t.first_query * row_step + t.first_key * step);
      bool found = false, missing = false;
      if (in_vectors && keys % width == 0) {
        uint64 any = 0, zeros = 0;
        const int64 all = int64{rows} << shift;
        for (int64 i = team.lane(); i < all; i += at_once * Team::lanes) {
          vector x[unsigned{at_once}];
          GIWA_UNROLL
          for (int k = 0; k < at_once; ++k) {
            // Instead of what is not in the block its first vector again.
            const int64 n = i + k * Team::lanes, row = n >> shift, key = (n - (row << shift)) * width;
            x[k] = load_vector<vector>(n < all && key < keys ? first + (row * row_step + key) : first);
          }
          GIWA_UNROLL
          for (int k = 0; k < at_once; ++k)
            for (int j = 0; j < 2; ++j) any |= x[k].bytes[j], zeros |= zero_bytes(x[k].bytes[j]);
        }
        found = any != 0, missing = zeros != 0;
      } else {
        for (int64 i = team.lane(); i < int64{rows} * keys; i += Team::lanes)
          (first[i / keys * row_step + i % keys * step] ? found : missing) = true;
      }
      return keep_of_block(team, found, missing);
    });
  }

 private:
  /// The bits of blocks of fewer keys than a strip, which is read at once: all vectors of a lane are in one block, and its bits are joined
  /// with those of the others once, for all 32 blocks.
  template <class Team>
  GIWA_HOST_DEVICE static block_bits of_strips(const Team& team, const block_map& map, const bool* of_head,
                                               int64 row_step, int64 step, bool in_vectors, const block_place& at) {
    const int size = map.block_keys, wide = size < strip / 32 ? 32 * size : strip, in_row = strip / width;
    const int query = at.row * map.block_queries, left = map.queries - query,
              rows = left < map.block_queries ? left : map.block_queries;
    const int row = team.lane() / in_row, vector_key = team.lane() % in_row * width, step_rows = Team::lanes / in_row;
    const int64 begin = int64{32} * at.word * size, all = begin + int64{32} * size,
                end = all < map.keys ? all : map.keys;
    const auto bit_of = [&](int key) { return uint32{1} << (map.column_of(key) & 31); };
    uint32 found = 0, missing = 0;  // of this lane, a bit for each block
    for (int64 key = begin; key < end; key += wide) {
      const int first_key = static_cast<int>(key), keys = map.keys - first_key < wide ? map.keys - first_key : wide;
      const bool* const first = of_head + (query * row_step + key * step);
      if (in_vectors && keys % width == 0) {
        if (vector_key >= keys) continue;
        uint64 any = 0, zeros = 0;
        const bool* from = first + (row * row_step + vector_key);
        for (int r = row; r < rows; r += at_once * step_rows, from += at_once * step_rows * row_step) {
          vector x[unsigned{at_once}];
          GIWA_UNROLL
          for (int k = 0; k < at_once; ++k)  // past the rows the first one again
            x[k] = load_vector<vector>(from + (r + k * step_rows < rows ? k * step_rows * row_step : 0));
          GIWA_UNROLL
          for (int k = 0; k < at_once; ++k)
            for (int j = 0; j < 2; ++j) any |= x[k].bytes[j], zeros |= zero_bytes(x[k].bytes[j]);
        }
        const uint32 own = row < rows ? bit_of(first_key + vector_key) : 0;
        found |= any != 0 ? own : 0, missing |= zeros != 0 ? own : 0;
      } else {
        for (int64 i = team.lane(); i < int64{rows} * keys; i += Team::lanes) {
          const int of_row = static_cast<int>(i % keys);
          (first[i / keys * row_step + of_row * step] ? found : missing) |= bit_of(first_key + of_row);
        }
      }
    }
    found = team.any_bits(found), missing = team.any_bits(missing);
    return {found, found & ~missing};
  }

  static constexpr int width = 16;
  static constexpr int at_once = 8;  // loads of a lane
  static constexpr int strip = 128;  // keys
  struct alignas(width) vector {
    uint64 bytes[2];
  };
  /// Not 0 if one of eight bytes is.
  GIWA_HOST_DEVICE static constexpr uint64 zero_bytes(uint64 bytes) {
    return (bytes - 0x0101010101010101u) & ~bytes & 0x8080808080808080u;
  }
};

/// Any mask. Its scores are asked where classify() does not know, or is not correct for any range.
template <attention_mask Mask>
struct block_source<Mask> : block_source_base {
  GIWA_HOST_DEVICE static status check(const block_map& map, const Mask& mask) {
    if (const status s = check_callable(mask, {map.batch, map.heads, map.queries, map.keys}); !s.ok()) return s;
    return check_alignment(mask, plain_score{}, {}, map.queries == map.keys, map.queries, map.keys);
  }
  template <class Team>
  GIWA_HOST_DEVICE static block_bits word(const Team& team, const block_map& map, const Mask& mask,
                                          const block_place& at, row_state&) {
    const alignment align = diagonal_of(mask, plain_score{}, {});
    const int offset = align.is_bottom_right() ? map.keys - map.queries : align.fixed_offset();
    return bits_of_blocks(map, at, [&](score_tile t) {
      t.offset = offset;
      // A mask without any_range knows tiles of kernels, and a block may be larger.
      tile_keep keep = tile_keep::some;
      if constexpr (mask_traits<Mask>::any_range) keep = classify(mask, t);
      if (keep != tile_keep::some) return keep;
      const int keys = t.last_key - t.first_key + 1;
      const int64 scores = int64{t.last_query - t.first_query + 1} * keys;
      bool found = false, missing = false;
      for (int64 i = team.lane(); i < scores; i += Team::lanes) {
        const int query = t.first_query + static_cast<int>(i / keys), key = t.first_key + static_cast<int>(i % keys);
        (mask(attention_coord{at.batch, at.head, query, key, query + offset}) ? found : missing) = true;
      }
      return keep_of_block(team, found, missing);
    });
  }
};

/// What make_block_map() takes.
template <class Source>
concept block_map_source =
    requires(const block_map& map, const Source& source) { block_source<Source>::check(map, source); };

}  // namespace giwa::inline GIWA_ABI::detail

#endif
