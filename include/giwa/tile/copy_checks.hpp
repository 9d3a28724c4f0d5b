// SPDX-License-Identifier: MIT
// Compile-time checks of the views and tiles that a copy gets: each mistake gives one sentence.
#ifndef GIWA_TILE_COPY_CHECKS_HPP
#define GIWA_TILE_COPY_CHECKS_HPP

#include <giwa/numeric/tensor_view.hpp>
#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI::detail {

template <class V>
GIWA_HOST_DEVICE void as_matrix(const tensor_view<V, 2>&);
template <class T, class Shape, class Layout>
GIWA_HOST_DEVICE void as_tile(shared_tile<T, Shape, Layout>&);

/// A tensor_view of two dimensions.
template <class View>
concept matrix_view = requires(const View& view) { as_matrix(view); };

/// Whether Tile is a shared_tile that may be written.
template <class Tile>
inline constexpr bool is_shared_tile = requires(Tile& tile) { as_tile(tile); };

template <class View>
GIWA_HOST_DEVICE constexpr void require_matrix_view() {
  static_assert(
      matrix_view<View>,
      "giwa: a tile is copied from or to a tensor_view of two dimensions: make one, tensor_view<T, 2>{pointer, "
      "{rows, columns}, {row_stride, 1}}. With tensor_copies<> a pipeline takes the map of make_tile_map().");
}

template <class Tile>
GIWA_HOST_DEVICE constexpr void require_shared_tile() {
  static_assert(is_shared_tile<Tile>, "giwa: the target of a load must be a shared_tile that is not const.");
}

template <class V>
GIWA_HOST_DEVICE constexpr void require_output() {
  static_assert(!stdlib::is_const_v<V>,
                "giwa::store: the elements of the target view must not be const: pass tensor_view<T, 2>, not "
                "tensor_view<const T, 2>.");
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
