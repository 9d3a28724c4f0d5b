// SPDX-License-Identifier: MIT
// Copies between global memory and a shared tile, by a group of threads: any place, strides and alignment, with fill.
#ifndef GIWA_TILE_COPY_CUH
#define GIWA_TILE_COPY_CUH

#include <giwa/base/std.hpp>
#include <giwa/numeric/index.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/tile/element_run.hpp>
#include <giwa/tile/instructions.cuh>
#include <giwa/tile/shared_tile.hpp>
#include <giwa/tile/walk.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Runs of a tile's row, in as large accesses as its layout allows.
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

/// Whether this pass copies such runs asynchronously. A single element may be aligned to less than its size.
template <class From, class To, int Run>
inline constexpr bool copies_asynchronously =
    GIWA_ARCH_CAPABILITY >= 80 && stdlib::same_as<From, To> &&
    (Run * sizeof(To) == 4 || Run * sizeof(To) == 8 || Run * sizeof(To) == 16) &&
    (Run > 1 || alignof(To) == sizeof(To));

template <int Run, bool Down, bool Async, class Group, class V, class Tile>
GIWA_HOST_DEVICE void load_runs(const Group& group, const tile_place<V>& place, Tile& tile,
                                stdlib::remove_cv_t<V> fill) {
  using from = stdlib::remove_cv_t<V>;
  using to = typename Tile::value_type;
  using walk = tile_walk<Run, Down, Tile>;
  using in_tile = tile_run<Run, Tile>;
  walk::each_inner(group, place, [&](int i, int outer, int step, tile_window window, uint64 at, uint64 hop) {
    if constexpr (Async && in_tile::together == Run && copies_asynchronously<from, to, Run>) {
      constexpr bool widest = Run * sizeof(to) == 16;  // no more code for slower copies
      constexpr int constant = widest ? constant_step<walk::inner, walk::outer, Group>() : 0;
      if constexpr (constant > 0) {
        if (window.begin == 0 && window.end == walk::outer) {  // all of it is there: a straight line of copies
          V* source = place.at(at);
          GIWA_UNROLL
          for (int o = 0; o < walk::outer; o += constant, source += hop) {
            to* const target = &tile(walk::row(i, outer + o), walk::column(i, outer + o));
            arch::copy_async<Run* static_cast<int>(sizeof(to))>(arch::shared_address(target), source);
          }
          return;
        }
      }
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
      for (int o = outer; o < walk::outer; o += step, at += hop) {
        to* const target = &tile(walk::row(i, o), walk::column(i, o));
        if (window.contains(o))
          arch::copy_async<Run* static_cast<int>(sizeof(to))>(arch::shared_address(target), place.at(at));
        else
          element_run<to, Run>::filled(fill).write(target);
      }
    } else {
      constexpr int batch = Run * sizeof(from) < 4 ? 8 : 4;  // loads under way before the first is used
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
      for (int first = outer; first < walk::outer; first += batch * step) {
        element_run<from, Run> values[batch];
        for (int u = 0; u < batch; ++u, at += hop) {
          values[u] = element_run<from, Run>::filled(fill);
          if (window.contains(first + u * step)) values[u] = element_run<from, Run>::read(place.at(at));
        }
        for (int u = 0; u < batch; ++u) {
          const int o = first + u * step;
          if (o < walk::outer) in_tile::write(tile, walk::row(i, o), walk::column(i, o), convert_run<to>(values[u]));
        }
      }
    }
  });
}

template <int Run, bool Down, class Group, class V, class Tile>
GIWA_HOST_DEVICE void store_runs(const Group& group, const tile_place<V>& place, const Tile& tile) {
  using walk = tile_walk<Run, Down, Tile>;
  walk::each_inner(group, place, [&](int i, int outer, int step, tile_window window, uint64 at, uint64 hop) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int o = outer; o < window.end; o += step, at += hop)
      if (o >= window.begin)
        convert_run<V>(tile_run<Run, Tile>::read(tile, walk::row(i, o), walk::column(i, o))).write(place.at(at));
  });
}

/// Calls copy(run, down) with constants: the widest run that the addresses allow along the rows, or elements down the columns
/// where only these have a unit stride. All threads take the same branch.
template <int Run, class V, class Copy>
GIWA_HOST_DEVICE void with_widest_run(const tile_place<V>& place, Copy copy) {
  using down = stdlib::bool_constant<true>;
  using along = stdlib::bool_constant<false>;
  if constexpr (Run > 1) {
    if (place.column == 1 && place.alignment_bits() % (Run * sizeof(V)) == 0)
      copy(stdlib::integral_constant<int, Run>{}, along{});
    else
      with_widest_run<Run / 2>(place, copy);
  } else {
    if (place.column != 1 && place.row == 1)
      copy(stdlib::integral_constant<int, 1>{}, down{});
    else
      copy(stdlib::integral_constant<int, 1>{}, along{});
  }
}

/// The longest run of a tile's row that has at most 16 bytes on either side and divides the row.
template <class From, class To, int Columns>
inline constexpr int longest_run =
    common_power_of_two(Columns, 0, sizeof(From) > sizeof(To) ? elements_of_16_bytes<From> : elements_of_16_bytes<To>);

/// The common case of load_async, told apart in a few instructions: all of the tile lies in the view, in rows of whole 16 bytes,
/// and the group's size is known (with_threads). A straight line of copies, whose places are constants apart. False, and
/// nothing done, in every other case.
template <class Group, class V, class Tile>
GIWA_HOST_DEVICE bool load_whole_tile([[maybe_unused]] const Group& group, const tensor_view<V, 2>& view,
                                      const giwa::index<2>& origin, [[maybe_unused]] Tile& tile) {
  using element = typename Tile::value_type;
  constexpr int run = elements_of_16_bytes<element>, inner = Tile::columns / run;
  if constexpr (GIWA_ARCH_CAPABILITY >= 80 && stdlib::same_as<stdlib::remove_cv_t<V>, element> &&
                Tile::placement::run == run && Tile::columns % run == 0 &&
                requires { typename stdlib::integral_constant<int, Group::size()>; }) {
    constexpr int size = Group::size(), chunks = Tile::rows * inner;
    const int64 stride = view.stride(0);  // read once, wherever the view lies
    // In numbers that wrap: only a tile inside the view has an address.
    const uint64 offset = static_cast<uint64>(origin[0]) * static_cast<uint64>(stride) + static_cast<uint64>(origin[1]);
    const uint64 bits = (reinterpret_cast<uint64>(view.data()) + offset * sizeof(element)) |
                        static_cast<uint64>(stride) * sizeof(element);
    if (view.stride(1) != 1 || bits % 16 != 0 || origin[0] < 0 || origin[1] < 0 ||
        origin[0] > view.extent(0) - Tile::rows || origin[1] > view.extent(1) - Tile::columns)
      return false;
    V* const first = view.data() + static_cast<int64>(offset);
    const int rank = group.rank();
    if constexpr (size % inner == 0 && Tile::rows % (size / inner) == 0) {
      constexpr int step = size / inner;
      const int64 hop = step * stride;
      V* source = first + (rank / inner * stride + rank % inner * run);
      GIWA_UNROLL
      for (int row = 0; row < Tile::rows; row += step, source += hop)
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
  // An asynchronous copy cannot write a run in parts.
  constexpr bool whole = Async && stdlib::same_as<from, to> && Tile::placement::run * sizeof(to) >= 4;
  constexpr int in_view = longest_run<from, to, Tile::columns>, in_tile = Tile::placement::run;
  constexpr int run = whole && in_tile < in_view ? in_tile : in_view;
  const tile_place<V> place(view, origin, Tile::rows, Tile::columns);
  with_widest_run<run>(place, [&](auto length, auto down) {
    load_runs<decltype(length)::value, decltype(down)::value, Async>(group, place, tile, fill);
  });
}

}  // namespace detail

// The tile's element (r, c) belongs to the view's element (origin[0] + r, origin[1] + c); any part of the tile may lie
// outside the view, before its first row or column too. All threads of the group call with the same arguments; what they
// write is seen by the others after the caller's barrier (and, for load_async, after copy_wait). Strides and alignment are
// arbitrary. Rows with a unit stride are moved in the widest accesses that pointer, strides, origin and sizes allow, at most
// 16 bytes; views with a unit stride down the columns are read along those; a row and column of size 1 may have any stride.
// Elements are converted, rounded to nearest, where the types differ.

/// Fills all of the tile; elements outside the view become `fill`.
template <thread_group Group, class V, class T, class Shape, class Layout>
GIWA_HOST_DEVICE void load(const Group& group, const tensor_view<V, 2>& from, const giwa::index<2>& origin,
                           shared_tile<T, Shape, Layout>& to,
                           stdlib::type_identity_t<stdlib::remove_cv_t<V>> fill = stdlib::remove_cv_t<V>{}) {
  detail::load_tile<false>(group, from, origin, to, fill);
}

/// The same, running on behind the threads where it can (sm_80, equal types, runs of 4 bytes or more); elsewhere as load().
/// The tile is there after copy_commit(), copy_wait() by each thread, and a barrier.
template <thread_group Group, class V, class T, class Shape, class Layout>
GIWA_HOST_DEVICE void load_async(const Group& group, const tensor_view<V, 2>& from, const giwa::index<2>& origin,
                                 shared_tile<T, Shape, Layout>& to,
                                 stdlib::type_identity_t<stdlib::remove_cv_t<V>> fill = stdlib::remove_cv_t<V>{}) {
  detail::load_tile<true>(group, from, origin, to, fill);
}

/// Closes a group of this thread's load_async calls, if only of none.
GIWA_HOST_DEVICE inline void copy_commit() {
#if GIWA_ARCH_CAPABILITY >= 80
  arch::copy_async_commit();
#endif
}

/// Waits until at most `Pending` of this thread's latest groups are under way.
template <int Pending = 0>
GIWA_HOST_DEVICE void copy_wait() {
  static_assert(Pending >= 0, "giwa::copy_wait: the number of groups under way is not negative.");
#if GIWA_ARCH_CAPABILITY >= 80
  arch::copy_async_wait<Pending>();
#endif
}

/// Writes the part of the tile that lies in the view, and nothing else.
template <thread_group Group, class T, class Shape, class Layout, class V>
GIWA_HOST_DEVICE void store(const Group& group, const shared_tile<T, Shape, Layout>& from, const tensor_view<V, 2>& to,
                            const giwa::index<2>& origin) {
  using tile = shared_tile<T, Shape, Layout>;
  static_assert(!stdlib::is_const_v<V>, "giwa::store writes to a view: its elements cannot be const.");
  const detail::tile_place<V> place(to, origin, tile::rows, tile::columns);
  detail::with_widest_run<detail::longest_run<V, T, tile::columns>>(place, [&](auto length, auto down) {
    detail::store_runs<decltype(length)::value, decltype(down)::value>(group, place, from);
  });
}

}  // namespace giwa::inline GIWA_ABI

#endif
