// SPDX-License-Identifier: MIT
// The tensor maps with which TMA makes a kind of shared tile out of a view, or stores it there.
#ifndef GIWA_TILE_TILE_MAP_HPP
#define GIWA_TILE_TILE_MAP_HPP

#include <giwa/device/tensor_map.hpp>
#include <giwa/tile/tensor_box.hpp>

namespace giwa::inline GIWA_ABI {

/// make_tensor_map() with the box and the swizzle of a Tile, whose rows and columns are the view's last two dimensions:
/// `make_tile_map<decltype(stage::a)>(view, "a")`. The same errors.
template <class Tile, class T, int Rank>
result<tensor_map> make_tile_map(const tensor_view<T, Rank>& view, const char* argument = "view",
                                 tensor_map_encoder by = {}) {
  static_assert(stdlib::is_same_v<stdlib::remove_const_t<T>, typename Tile::value_type>,
                "giwa::make_tile_map: TMA converts nothing: the tile's and the view's elements have one type.");
  using box = tensor_box<Tile>;
  return make_tensor_map(view, box::template sizes<Rank>(), box::pattern, argument, by);
}

/// make_tile_map() for tiles that are stored. Errors: also what check_store_map() finds.
template <class Tile, class T, int Rank>
result<tensor_map> make_store_map(const tensor_view<T, Rank>& view, const char* argument = "view") {
  result<tensor_map> r;
  r.state = check_store_map(view, argument);
  if (!r.ok()) return r;
  return make_tile_map<Tile>(view, argument);
}

}  // namespace giwa::inline GIWA_ABI

#endif
