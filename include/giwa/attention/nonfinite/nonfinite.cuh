// SPDX-License-Identifier: MIT
// NaN and infinity in V: removed from tiles that not every row sees, and added to the rows that see them.
#ifndef GIWA_ATTENTION_NONFINITE_NONFINITE_CUH
#define GIWA_ATTENTION_NONFINITE_NONFINITE_CUH

#include <giwa/attention/problem/traits.hpp>
#include <giwa/attention/score/score_steps.cuh>
#include <giwa/attention/work/packed_rows.hpp>
#include <giwa/grid/device_block.cuh>
#include <giwa/tile/element_run.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Whether an element is infinity or NaN, by its bits.
template <class T>
GIWA_HOST_DEVICE bool is_nonfinite(T x) {
  using traits = element_traits<T>;
  typename traits::bits b;
  __builtin_memcpy(&b, &x, sizeof b);
  return (b & traits::nonfinite) == traits::nonfinite;
}

/// Whether an element is NaN; e4m3 has no infinity.
GIWA_HOST_DEVICE inline bool is_nonfinite(e4m3 x) { return (x.bits() & 0x7f) == 0x7f; }

/// Whether a thread's share of a 16-bit tile in shared memory holds NaN or infinity: 0 times such an element is NaN.
/// Shares follow the order of memory, because the position of an element does not matter here.
template <int Warps, class Tile>
GIWA_DEVICE bool has_nonfinite(int thread, const Tile& tile) {
  using two = decltype(pack<typename Tile::value_type>(0.f, 0.f));
  constexpr int own = Tile::bytes / 16 / (32 * Warps), batch = own % 4 == 0   ? 4
                                                               : own % 3 == 0 ? 3
                                                               : own % 2 == 0 ? 2
                                                                              : 1;
  static_assert(own * Warps * 32 * 16 == Tile::bytes);
  const uint4* const from = reinterpret_cast<const uint4*>(tile.data()) + thread;
  const two zero = pack<typename Tile::value_type>(0.f, 0.f);
  two sum[4] = {zero, zero, zero, zero};
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int i = 0; i < own; i += batch) {
    uint4 read[batch];
    GIWA_UNROLL
    for (int j = 0; j < batch; ++j) read[j] = from[(i + j) * 32 * Warps];
    GIWA_UNROLL
    for (int j = 0; j < batch; ++j) {
      two part[4];
      __builtin_memcpy(part, &read[j], sizeof part);
#if GIWA_ARCH_CAPABILITY >= 80  // older GPUs never run it, and have no such function of bf16
      GIWA_UNROLL
      for (int k = 0; k < 4; ++k) sum[k] = __hfma2(part[k], zero, sum[k]);
#endif
    }
  }
  bool any = false;  // by function: PyTorch's extensions are built without the operators of 16-bit types
  GIWA_UNROLL
  for (int j = 0; j < 4; ++j) any = any || __hneu(sum[j].x, sum[j].x) || __hneu(sum[j].y, sum[j].y);
  return any;
}

/// Whether a thread's share of an e4m3 tile in shared memory holds NaN.
template <int Warps, class Tile>
  requires stdlib::same_as<typename Tile::value_type, e4m3>
GIWA_DEVICE bool has_nonfinite(int thread, const Tile& tile) {
  constexpr int run = Tile::placement::run, runs = Tile::columns / run;
  static_assert(run == 16);
  uint32 found = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int i = thread; i < Tile::rows * runs; i += 32 * Warps) {
    // The order counts only where rows have other bytes between them.
    constexpr bool dense = Tile::bytes == Tile::rows * Tile::columns;
    const uint4 x =
        dense ? reinterpret_cast<const uint4*>(tile.data())[i]
              : *reinterpret_cast<const uint4*>(tile.data() + Tile::placement::offset(i / runs, i % runs * run));
    const uint32 word[4] = {x.x, x.y, x.z, x.w};
    GIWA_UNROLL
    for (int k = 0; k < 4; ++k) found |= (word[k] & 0x7f7f7f7fu) + 0x01010101u;  // a byte of 0x7f becomes 0x80
  }
  return (found & 0x80808080u) != 0;
}

/// Replaces every NaN and infinity of a V tile in shared memory by 0, and adds the number of those in its first `keys` rows to
/// `found`: the rows after them are past the end of a sequence, and no query sees them. Needed for
/// tiles of which not every row sees every key: P is 0 for a masked key, but 0 times such a value is NaN.
/// add_nonfinite() adds the removed values to the output. All threads of the block call it between barriers.
template <class Block, class Tile>
GIWA_HOST_DEVICE void scrub_nonfinite(const Block& block, Tile& tile, int& found, int keys = Tile::rows) {
  using value = typename Tile::value_type;
  constexpr int run = Tile::placement::run, runs = Tile::columns / run;
  for (int i = block.rank(); i < Tile::rows * runs; i += block.size()) {
    value* const at = &tile(i / runs, i % runs * run);
    auto part = element_run<value, run>::read(at);
    bool any = false;
    GIWA_UNROLL
    for (int j = 0; j < run; ++j) any = any || is_nonfinite(part.get(j));
    if (!any) continue;
    if (i < keys * runs) block.atomic_add(found, 1);
    for (int j = 0; j < run; ++j)
      if (is_nonfinite(part.get(j))) at[j] = convert<value>{}(0.f);
  }
}

/// Replaces NaN and infinity by 0 in a tile of keys of which some row does not see all; returns whether there were any. Rows from `keys`
/// on are no keys of the sequence. They hold what the cache has there, or what was in shared memory before, and become zeros first: P is 0
/// for them, and add_nonfinite() would look for a NaN among them in all keys of the tile, in memory. `Warps` warps call it; `thread` is
/// the rank among them. They meet in sync(), after which TMA and wgmma may use what they wrote.
template <int Warps, class Block, class Tile, class Sync>
GIWA_DEVICE bool scrub_keys(const Block& block, int thread, Tile& tile, int keys, int& found, const Sync& sync) {
  using value = typename Tile::value_type;
  constexpr int run = Tile::placement::run, runs = Tile::columns / run;
  if (thread == 0) found = 0;
  if (keys < Tile::rows) {
    GIWA_NO_UNROLL
    for (int i = keys * runs + thread; i < Tile::rows * runs; i += 32 * Warps)
      *reinterpret_cast<uint4*>(tile.chunk(i / runs, i % runs * run)) = uint4{0, 0, 0, 0};
  }
  sync();
  if (block.any(has_nonfinite<Warps>(thread, tile)) && block.lane() == 0) found = 1;
  sync();
  if (found == 0) return false;
  for (int i = thread; i < Tile::rows * runs; i += 32 * Warps) {
    value* const elements = &tile(i / runs, i % runs * run);
    for (int j = 0; j < run; ++j)
      if (is_nonfinite(elements[j])) elements[j] = convert<value>{}(0.f);
  }
  sync();
  return true;
}

/// Clears the rows of two tiles, or of x alone, of which one has NaN or infinity, and calls mark(row). A warp calls it. Rare, so
/// written for small code.
template <bool Both, class XTile, class YTile, class Mark>
GIWA_DEVICE void clear_nonfinite_rows(XTile& x, YTile& y, int lane, const Mark& mark) {
  GIWA_NO_UNROLL
  for (int row = lane; row < XTile::rows; row += 32) {
    bool any = false;
    GIWA_NO_UNROLL
    for (int i = 0; i < XTile::columns; ++i) any = any || is_nonfinite(x(row, i));
    GIWA_NO_UNROLL
    for (int i = 0; Both && i < YTile::columns; ++i) any = any || is_nonfinite(y(row, i));
    if (!any) continue;
    const auto zero = convert<typename XTile::value_type>{}(0.0f);
    GIWA_NO_UNROLL
    for (int i = 0; i < XTile::columns; ++i) x(row, i) = zero;
    GIWA_NO_UNROLL
    for (int i = 0; Both && i < YTile::columns; ++i) y(row, i) = zero;
    mark(row);
  }
}

/// Adds the values that scrub_nonfinite() removed to the output in global memory: to columns [first_column,
/// first_column + columns) of rows [first_row, first_row + rows), if the row sees the key. taken(n) tells whether tile
/// n of the list was scrubbed. It is written for small code, not for speed, because few inputs have such values.
/// `block` has written those rows.
template <class Block, class T, class O, class Mask, class Score, class Taken>
GIWA_HOST_DEVICE void add_nonfinite(const Block& block, const score_steps<Mask, Score>& steps,
                                    const attention_head<T, O>& head, const key_tiles<Mask>& list, int first_row,
                                    int rows, int first_column, int columns, const Taken& taken) {
  const typename score_steps<Mask, Score>::bounds bounds(head);
  const int width = static_cast<int>(head.v.extent(1));
  const int end = columns < width - first_column ? first_column + columns : width;
  const int last_row = rows < head.queries() - first_row ? first_row + rows : head.queries();
  for (int n = list.next(0); n < list.count(); n = list.next(n + 1)) {
    if (!taken(n)) continue;
    for (int key = n * list.columns(); key < (n + 1) * list.columns() && key < head.keys(); ++key)
      for (int column = first_column + block.rank(); column < end; column += block.size()) {
        const T v = head.v(key, column);
        if (!is_nonfinite(v)) continue;
        for (int row = first_row; row < last_row; ++row)
          if (steps.keeps(bounds, row, key))
            head.o(row, column) = convert<O>{}(convert<float>{}(head.o(row, column)) + convert<float>{}(v));
      }
  }
}

/// Adds the NaN and infinity that were removed from V tiles to those of rows [begin, end) of o that see them. It is written for
/// small code, because few caches have such values. The warp that calls it has written these rows.
template <class Block, class Params, class Steps, class List>
GIWA_DEVICE void add_nonfinite(const Block& block, const Params& call, const Steps& steps, const cached_sequence& s,
                               int kv_head, const packed_rows& rows, const List& list, int begin, int end) {
  const auto& v = call.views.cache.v;
  auto& o = call.views.o;
  using element = stdlib::remove_cvref_t<decltype(*v.data())>;
  using output = stdlib::remove_cvref_t<decltype(*o.data())>;
  end = end < rows.rows ? end : rows.rows;
  for (int n = list.next(0); n < list.count(); n = list.next(n + 1)) {
    if (list.keep(n) != tile_keep::some) continue;
    for (int key = n * list.columns(); key < (n + 1) * list.columns() && key < s.keys; ++key) {
      const cache_row from = call.row_of(s, key);
      if (from.element < 0) continue;
      for (int column = block.lane(); column < v.extent(3); column += 32) {
        const element x = v(from.element, from.row, kv_head, column);
        if (!is_nonfinite(x)) continue;
        for (int row = begin; row < end; ++row)
          if (steps.keeps(rows, row, key)) {
            output& to = o(s.q_batch, s.first_query_row + rows.query(row), rows.head(row), column);
            to = convert<output>{}(convert<float>{}(to) + convert<float>{}(x));
          }
      }
    }
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
