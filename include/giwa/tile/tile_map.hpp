// SPDX-License-Identifier: MIT
// The tensor maps with which TMA loads shared tiles from a view, or stores them to it.
#ifndef GIWA_TILE_TILE_MAP_HPP
#define GIWA_TILE_TILE_MAP_HPP

#include <giwa/device/tensor_map.hpp>
#include <giwa/tile/tensor_box.hpp>

namespace giwa::inline GIWA_ABI {

/// Returns a tensor map with the box and the swizzle of a Tile, whose rows and columns are the last two dimensions of the
/// view: `make_tile_map<decltype(stage::a)>(view, "a")`.
///
/// Parameters:
///   - view: the tensor
///   - argument: its name in errors
///   - by, promotion: as for make_tensor_map()
///   - rows: of one copy, at most those of the tile: several copies fill a tile whose rows are in different places, as the pages
///     of a cache are
///
/// Errors: those of make_tensor_map(); rows out of range.
template <class Tile, class T, int Rank>
result<tensor_map> make_tile_map(const tensor_view<T, Rank>& view, const char* argument = "view",
                                 tensor_map_encoder by = {}, int rows = Tile::rows,
                                 l2_promotion promotion = l2_promotion::bytes_256) {
  static_assert(stdlib::is_same_v<stdlib::remove_const_t<T>, typename Tile::value_type>,
                "giwa::make_tile_map: TMA does not convert: give the tile and the view the same element type.");
  using box = tensor_box<Tile>;
  giwa::index<Rank> sizes = box::template sizes<Rank>();
  sizes[Rank - 2] = rows;
  result<tensor_map> r;
  if (rows < 1)
    r.state = status::invalid("rows", "a copy of TMA must have at least one row", bound::at_least, 1, rows);
  else if (rows > Tile::rows)
    r.state = status::invalid("rows", "a copy of TMA must not have more rows than the tile", bound::at_most, Tile::rows,
                              rows);
  else
    r = make_tensor_map(view, sizes, box::pattern, argument, by, promotion);
  return r;
}

/// Returns a tensor map as make_tile_map() does, for tiles that are stored to the view.
/// Errors: those of make_tile_map() and check_store_map().
template <class Tile, class T, int Rank>
result<tensor_map> make_store_map(const tensor_view<T, Rank>& view, const char* argument = "view") {
  static_assert(!stdlib::is_const_v<T>,
                "giwa::make_store_map: the elements of the view must not be const, because stores write them.");
  result<tensor_map> r;
  r.state = check_store_map(view, argument);
  if (!r.ok()) return r;
  return make_tile_map<Tile>(view, argument);
}

#if !defined(GIWA_DOXYGEN)  // a call that does not compile, and the reason
template <class Tile, class T, class... Arguments>
result<tensor_map> make_tile_map(T*, const Arguments&...) {
  static_assert(detail::always_false<T>,
                "giwa::make_tile_map: a pointer has no sizes: pass tensor_view<T, 2>{pointer, {rows, columns}}.");
  return {};
}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
