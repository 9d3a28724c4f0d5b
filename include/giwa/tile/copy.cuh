// SPDX-License-Identifier: MIT
// Copies between a strided view and a shared tile by a group of threads: load, load_async and store.
#ifndef GIWA_TILE_COPY_CUH
#define GIWA_TILE_COPY_CUH

#include <giwa/base/std.hpp>
#include <giwa/tile/copy_runs.cuh>
#include <giwa/tile/instructions.cuh>

namespace giwa::inline GIWA_ABI {

/// Fills the tile `to` from the view `from`: element (r, c) of the tile is element (origin[0] + r, origin[1] + c) of the view.
///
/// Parameters:
///   - group: the threads that copy; all of them call with the same arguments
///   - from: the view. Elements are converted, rounded to nearest, if the types differ
///   - origin: row and column of the tile's first element. Any part of the tile may lie outside the view, also before its
///     first row and column
///   - to: the tile in shared memory; written
///   - fill: the value of elements that the view does not have
///
/// The tile is complete after the caller's next barrier. Strides and alignment are arbitrary. Rows with a unit stride move in
/// the widest accesses that pointer, strides, origin and sizes allow, at most 16 bytes; a view whose columns have the unit
/// stride is read down its columns. A dimension of size 1 may have any stride.
template <thread_group Group, class V, class T, class Shape, class Layout>
GIWA_HOST_DEVICE void load(const Group& group, const tensor_view<V, 2>& from, const giwa::index<2>& origin,
                           shared_tile<T, Shape, Layout>& to,
                           stdlib::type_identity_t<stdlib::remove_cv_t<V>> fill = stdlib::remove_cv_t<V>{}) {
  detail::load_tile<false>(group, from, origin, to, fill);
}

/// Fills the tile as load() does, with asynchronous copies (cp.async) if the types are equal, accesses have at least 4
/// bytes, and the GPU is sm_80 or later; otherwise it is load(). The tile is complete after copy_commit(), copy_wait() by
/// each thread, and a barrier.
///
/// Parameters:
///   - group, from, origin, to, fill: as for load()
template <thread_group Group, class V, class T, class Shape, class Layout>
GIWA_HOST_DEVICE void load_async(const Group& group, const tensor_view<V, 2>& from, const giwa::index<2>& origin,
                                 shared_tile<T, Shape, Layout>& to,
                                 stdlib::type_identity_t<stdlib::remove_cv_t<V>> fill = stdlib::remove_cv_t<V>{}) {
  detail::load_tile<true>(group, from, origin, to, fill);
}

/// Closes a group of this thread's load_async() calls since the last commit, which may be empty.
GIWA_HOST_DEVICE inline void copy_commit() {
#if GIWA_ARCH_CAPABILITY >= 80
  arch::copy_async_commit();
#endif
}

/// Waits until at most the latest `Pending` groups of this thread are still in flight.
template <int Pending = 0>
GIWA_HOST_DEVICE void copy_wait() {
  static_assert(Pending >= 0, "giwa::copy_wait: Pending must not be negative.");
#if GIWA_ARCH_CAPABILITY >= 80
  arch::copy_async_wait<Pending>();
#endif
}

/// Writes the tile `from` to the view `to`: element (r, c) of the tile goes to element (origin[0] + r, origin[1] + c) of the
/// view. Strides, alignment and conversion are as for load().
///
/// Parameters:
///   - group: the threads that copy; all of them call with the same arguments
///   - from: the tile, which must be complete: a barrier lies between its last write and the call
///   - to: the view; elements outside it are not written
///   - origin: row and column in the view of the tile's first element
template <thread_group Group, class T, class Shape, class Layout, class V>
GIWA_HOST_DEVICE void store(const Group& group, const shared_tile<T, Shape, Layout>& from, const tensor_view<V, 2>& to,
                            const giwa::index<2>& origin) {
  detail::require_output<V>();
  using tile = shared_tile<T, Shape, Layout>;
  const detail::tile_region<V> region(to, origin, tile::rows, tile::columns);
  detail::with_widest_run<detail::longest_run<V, T, tile::columns>>(region, [&](auto length, auto down) {
    detail::store_runs<decltype(length)::value, decltype(down)::value>(group, region, from);
  });
}

#if !defined(GIWA_DOXYGEN)  // calls that do not compile, and the reason
template <thread_group Group, class From, class To, class... Fill>
  requires(!detail::matrix_view<From> || !detail::is_shared_tile<To>)
GIWA_HOST_DEVICE void load(const Group&, const From&, const giwa::index<2>&, To&, const Fill&...) {
  detail::require_matrix_view<From>();
  detail::require_shared_tile<To>();
}
template <thread_group Group, class From, class To, class... Fill>
  requires(!detail::matrix_view<From> || !detail::is_shared_tile<To>)
GIWA_HOST_DEVICE void load_async(const Group&, const From&, const giwa::index<2>&, To&, const Fill&...) {
  detail::require_matrix_view<From>();
  detail::require_shared_tile<To>();
}
template <thread_group Group, class T, class Shape, class Layout, class To>
  requires(!detail::matrix_view<To>)
GIWA_HOST_DEVICE void store(const Group&, const shared_tile<T, Shape, Layout>&, const To&, const giwa::index<2>&) {
  detail::require_matrix_view<To>();
}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
