// SPDX-License-Identifier: MIT
// How a group of threads copies a tile: runs of neighbouring elements in the widest accesses that addresses allow.
#ifndef GIWA_TILE_COPY_RUNS_CUH
#define GIWA_TILE_COPY_RUNS_CUH

#include <giwa/base/std.hpp>
#include <giwa/numeric/index.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/tile/copy_checks.hpp>
#include <giwa/tile/element_run.hpp>
#include <giwa/tile/instructions.cuh>
#include <giwa/tile/shared_tile.hpp>
#include <giwa/tile/walk.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Reads and writes runs of a tile's row in the widest accesses that its layout allows.
template <int Count, class Tile>
struct tile_run {
  using value = typename Tile::value_type;
  static constexpr int together = Count < Tile::placement::run ? Count : Tile::placement::run;

  GIWA_HOST_DEVICE static void write(Tile& tile, int row, int column, const element_run<value, Count>& from) {
    for (int i = 0; i < Count; i += together) from.template part<together>(i).write(&tile(row, column + i));
  }
  GIWA_HOST_DEVICE static element_run<value, Count> read(const Tile& tile, int row, int column) {
    if constexpr (together == Count) {
      return element_run<value, Count>::read(&tile(row, column));
    } else {
      element_run<value, Count> to;
      for (int i = 0; i < Count; i += together) to.set(i, element_run<value, together>::read(&tile(row, column + i)));
      return to;
    }
  }
};

/// Whether this compilation pass copies runs of this length asynchronously. A single element may have an alignment below
/// its size.
template <class From, class To, int Run>
inline constexpr bool copies_asynchronously =
    GIWA_ARCH_CAPABILITY >= 80 && stdlib::same_as<From, To> &&
    (Run * sizeof(To) == 4 || Run * sizeof(To) == 8 || Run * sizeof(To) == 16) &&
    (Run > 1 || alignof(To) == sizeof(To));

template <int Run, bool Down, bool Async, class Group, class V, class Tile>
GIWA_HOST_DEVICE void load_runs(const Group& group, const tile_region<V>& region, Tile& tile,
                                stdlib::remove_cv_t<V> fill) {
  using from = stdlib::remove_cv_t<V>;
  using to = typename Tile::value_type;
  using walk = tile_walk<Run, Down, Tile>;
  using in_tile = tile_run<Run, Tile>;
  walk::for_each_inner(group, region, [&](int i, int outer, int step, tile_window window, uint64 at, uint64 pitch) {
    if constexpr (Async && in_tile::together == Run && copies_asynchronously<from, to, Run>) {
      constexpr bool widest = Run * sizeof(to) == 16;  // narrower copies do not get unrolled code
      constexpr int constant = widest ? constant_step<walk::inner, walk::outer, Group>() : 0;
      if constexpr (constant > 0) {
        if (window.begin == 0 && window.end == walk::outer) {  // all of it is in the view: unrolled copies
          V* source = region.at(at);
          GIWA_UNROLL
          for (int o = 0; o < walk::outer; o += constant, source += pitch) {
            to* const target = &tile(walk::row(i, outer + o), walk::column(i, outer + o));
            arch::copy_async<Run* static_cast<int>(sizeof(to))>(arch::shared_address(target), source);
          }
          return;
        }
      }
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
      for (int o = outer; o < walk::outer; o += step, at += pitch) {
        to* const target = &tile(walk::row(i, o), walk::column(i, o));
        if (window.contains(o))
          arch::copy_async<Run* static_cast<int>(sizeof(to))>(arch::shared_address(target), region.at(at));
        else
          element_run<to, Run>::filled(fill).write(target);
      }
    } else {
      constexpr int batch = Run * sizeof(from) < 4 ? 8 : 4;  // loads in flight before the first is used
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
      for (int first = outer; first < walk::outer; first += batch * step) {
        element_run<from, Run> values[batch];
        for (int u = 0; u < batch; ++u, at += pitch) {
          values[u] = element_run<from, Run>::filled(fill);
          if (window.contains(first + u * step)) values[u] = element_run<from, Run>::read(region.at(at));
        }
        for (int u = 0; u < batch; ++u) {
          const int o = first + u * step;
          if (o < walk::outer) in_tile::write(tile, walk::row(i, o), walk::column(i, o), convert_run<to>(values[u]));
        }
      }
    }
  });
}

/// Writes a run to the view of a store, in one instruction also where the compiler would split an assignment.
template <class V, int Run>
GIWA_HOST_DEVICE void write_run(const element_run<V, Run>& run, V* to) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof run == 16 && (Run > 1 || alignof(V) == 16)) {  // a single element may have a smaller alignment
    ::uint4 word;
    __builtin_memcpy(&word, &run, sizeof word);
    return arch::store_16_bytes(to, word);
  }
#endif
  run.write(to);
}

template <int Run, bool Down, class Group, class V, class Tile>
GIWA_HOST_DEVICE void store_runs(const Group& group, const tile_region<V>& region, const Tile& tile) {
  using walk = tile_walk<Run, Down, Tile>;
  walk::for_each_inner(group, region, [&](int i, int outer, int step, tile_window window, uint64 at, uint64 pitch) {
    const auto read = [&](int o) {
      return convert_run<V>(tile_run<Run, Tile>::read(tile, walk::row(i, o), walk::column(i, o)));
    };
    constexpr bool widest = Run * sizeof(V) == 16;  // narrower runs do not get unrolled code
    constexpr int constant = widest ? constant_step<walk::inner, walk::outer, Group>() : 0;
    if constexpr (constant > 0) {
      if (window.begin == 0 && window.end == walk::outer) {                            // all of it is in the view
        constexpr int count = walk::outer / constant, batch = count % 4 == 0 ? 4 : 1;  // reads before the first write
        GIWA_UNROLL
        for (int first = 0; first < count; first += batch) {
          element_run<V, Run> values[batch];
          GIWA_UNROLL
          for (int u = 0; u < batch; ++u) values[u] = read(outer + (first + u) * constant);
          GIWA_UNROLL
          for (int u = 0; u < batch; ++u, at += pitch) write_run(values[u], region.at(at));
        }
        return;
      }
    }
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int o = outer; o < window.end; o += step, at += pitch)
      if (o >= window.begin) write_run(read(o), region.at(at));
  });
}

/// Calls copy(run, down) with constants: the widest run along the rows that the addresses allow, or single elements down the
/// columns if only the columns have a unit stride. All threads take the same branch.
template <int Run, class V, class Copy>
GIWA_HOST_DEVICE void with_widest_run(const tile_region<V>& region, Copy copy) {
  using down = stdlib::bool_constant<true>;
  using along = stdlib::bool_constant<false>;
  if constexpr (Run > 1) {
    if (region.column == 1 && region.alignment_bits() % (Run * sizeof(V)) == 0)
      copy(stdlib::integral_constant<int, Run>{}, along{});
    else
      with_widest_run<Run / 2>(region, copy);
  } else {
    if (region.column != 1 && region.row == 1)
      copy(stdlib::integral_constant<int, 1>{}, down{});
    else
      copy(stdlib::integral_constant<int, 1>{}, along{});
  }
}

/// The longest run of a tile's row that has at most 16 bytes in both types and divides the row.
template <class From, class To, int Columns>
inline constexpr int longest_run =
    common_power_of_two(Columns, 0, sizeof(From) > sizeof(To) ? elements_of_16_bytes<From> : elements_of_16_bytes<To>);

/// The common case of load_async, which a few instructions recognise: all of the tile lies in the view, rows are aligned to
/// 16 bytes, and the size of the group is a constant (with_threads). Copies with unrolled code and constant offsets and
/// returns true. In every other case does nothing and returns false.
template <class Group, class V, class Tile>
GIWA_HOST_DEVICE bool load_whole_tile([[maybe_unused]] const Group& group, const tensor_view<V, 2>& view,
                                      const giwa::index<2>& origin, [[maybe_unused]] Tile& tile) {
  using element = typename Tile::value_type;
  constexpr int run = elements_of_16_bytes<element>, inner = Tile::columns / run;
  if constexpr (GIWA_ARCH_CAPABILITY >= 80 && stdlib::same_as<stdlib::remove_cv_t<V>, element> &&
                run * sizeof(element) == 16 && Tile::placement::run == run && Tile::columns % run == 0 &&
                requires { typename stdlib::integral_constant<int, Group::size()>; }) {
    constexpr int size = Group::size(), chunks = Tile::rows * inner;
    const int64 stride = view.stride(0);  // read once, also if the view is in memory
    // Unsigned, because the offset of a tile outside the view may overflow.
    const uint64 offset = static_cast<uint64>(origin[0]) * static_cast<uint64>(stride) + static_cast<uint64>(origin[1]);
    const uint64 bits = (reinterpret_cast<uint64>(view.data()) + offset * sizeof(element)) |
                        static_cast<uint64>(stride) * sizeof(element);
    if (view.stride(1) != 1 || bits % 16 != 0 || origin[0] < 0 || origin[1] < 0 ||
        origin[0] > view.extent(0) - Tile::rows || origin[1] > view.extent(1) - Tile::columns)
      return false;
    V* const first = view.data() + static_cast<int64>(offset);
    const int rank = group.rank();
    constexpr int step = size >= inner ? size / inner : 1;
    if constexpr (size % inner == 0 && Tile::rows % step == 0) {
      const int64 pitch = step * stride;
      V* source = first + (rank / inner * stride + rank % inner * run);
      GIWA_UNROLL
      for (int row = 0; row < Tile::rows; row += step, source += pitch)
        arch::copy_async<16>(arch::shared_address(&tile(row + rank / inner, rank % inner * run)), source);
    } else {
      GIWA_UNROLL
      for (int i = 0; i < chunks; i += size) {
        const int row = (i + rank) / inner, column = (i + rank) % inner * run;
        if (i + size <= chunks || i + rank < chunks)
          arch::copy_async<16>(arch::shared_address(&tile(row, column)), first + (row * stride + column));
      }
    }
    return true;
  }
  return false;
}

template <bool Async, class Group, class V, class Tile>
GIWA_HOST_DEVICE void load_tile(const Group& group, const tensor_view<V, 2>& view, const giwa::index<2>& origin,
                                Tile& tile, stdlib::remove_cv_t<V> fill) {
  using from = stdlib::remove_cv_t<V>;
  using to = typename Tile::value_type;
  if constexpr (Async)
    if (load_whole_tile(group, view, origin, tile)) return;
  // An asynchronous copy cannot split a run.
  constexpr bool whole = Async && stdlib::same_as<from, to> && Tile::placement::run * sizeof(to) >= 4;
  constexpr int in_view = longest_run<from, to, Tile::columns>, in_tile = Tile::placement::run;
  constexpr int run = whole && in_tile < in_view ? in_tile : in_view;
  const tile_region<V> region(view, origin, Tile::rows, Tile::columns);
  with_widest_run<run>(region, [&](auto length, auto down) {
    load_runs<decltype(length)::value, decltype(down)::value, Async>(group, region, tile, fill);
  });
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
