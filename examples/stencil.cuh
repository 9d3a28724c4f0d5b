// SPDX-License-Identifier: MIT
// Jacobi sweeps for Laplace's equation: one at a time from global memory, and several on a tile in shared memory.
#pragma once

#include <giwa/grid.cuh>
#include <giwa/tile.cuh>

namespace tiled {

using giwa::int64;

/// Returns whether an element is computed. Elements on the border of the grid are fixed.
GIWA_HOST_DEVICE constexpr bool is_inner(int64 row, int64 column, const giwa::index<2>& extents) {
  return 0 < row && row < extents[0] - 1 && 0 < column && column < extents[1] - 1;
}
/// A range of rows or columns of a tile.
struct span {
  int begin, end;
  GIWA_HOST_DEVICE constexpr bool contains(int i) const { return begin <= i && i < end; }
};
/// Returns the part of [origin, origin + size) in [begin, end), counted from the origin.
GIWA_HOST_DEVICE constexpr span clip(int64 begin, int64 end, int64 origin, int size) {
  const int64 first = begin - origin, last = end - origin;
  return {static_cast<int>(first < 0 ? 0 : first < size ? first : size), static_cast<int>(last < size ? last : size)};
}
/// Returns the mean of the four neighbours. No product is added to a sum, so there is nothing to fuse, and every machine
/// rounds it the same way.
GIWA_HOST_DEVICE constexpr float mean(float up, float down, float left, float right) {
  return 0.25f * ((up + down) + (left + right));
}

/// One sweep from global memory, for for_all. Neighbours come from the caches.
struct plain_sweep {
  giwa::tensor_view<const float, 2> in;
  giwa::tensor_view<float, 2> out;
  GIWA_HOST_DEVICE void operator()(giwa::index<2> at) const {
    const auto [row, column] = at;
    out[at] = is_inner(row, column, in.extents())
                  ? mean(in(row - 1, column), in(row + 1, column), in(row, column - 1), in(row, column + 1))
                  : in[at];
  }
};

/// `Sweeps` sweeps on a tile in shared memory. The tile is loaded with a halo of at least Sweeps elements. Each sweep
/// invalidates one ring of the halo, and the valid middle is written. So global memory is read and written once for all
/// sweeps.
template <int Sweeps>
struct staged_sweeps {
  static constexpr int halo = giwa::round_up(Sweeps, 4);  // a multiple of 16 bytes, so that rows are aligned
  static constexpr int all_rows = 64, all_columns = 128;  // of the tile with its halo
  static constexpr int rows = all_rows - 2 * halo, columns = all_columns - 2 * halo;
  static constexpr int parts = 4, rows_each = all_rows / parts;
  static constexpr int max_threads = parts * all_columns, min_blocks = 3;
  static_assert(rows > 0, "a tile has no more than 28 sweeps in it");

  struct params {
    giwa::tensor_view<const float, 2> in;  // (rows, columns) of the grid
    giwa::tensor_view<float, 2> out;
    int tile_columns;  // number of columns of tiles
  };
  struct shared_storage {
    giwa::shared_tile<float, giwa::tile_shape<all_rows, all_columns>> u[2];  // before and after a sweep, alternating
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int tile = static_cast<int>(block.block_rank());
    // The first element of the halo. That of the first tiles is outside the grid; load() reads zeros there, which are not used.
    const giwa::index<2> origin{int64{tile / p.tile_columns} * rows - halo,
                                int64{tile % p.tile_columns} * columns - halo};
    giwa::load(giwa::with_threads<max_threads>(block), p.in, origin, s.u[0]);
    block.sync();

    // The computed and the written part, in the coordinates of the tile.
    const span inner_rows = clip(1, p.in.extent(0) - 1, origin[0], all_rows),
               inner_columns = clip(1, p.in.extent(1) - 1, origin[1], all_columns),
               out_rows = clip(origin[0] + halo, p.out.extent(0), origin[0], halo + rows),
               out_columns = clip(origin[1] + halo, p.out.extent(1), origin[1], halo + columns);
    const int column = block.rank() % all_columns, first_row = block.rank() / all_columns * rows_each;
    GIWA_UNROLL
    for (int sweep = 0; sweep < Sweeps; ++sweep) {
      const auto& from = s.u[sweep % 2];
      auto& to = s.u[1 - sweep % 2];
      const int edge = sweep + 1;  // rings that are invalid after this sweep
      const bool current = edge <= column && column < all_columns - edge;
      // Each thread goes down its column and keeps the elements that it has read.
      float up = current && first_row > 0 ? from(first_row - 1, column) : 0, here = from(first_row, column);
      GIWA_UNROLL
      for (int i = 0; i < rows_each; ++i) {
        const int row = first_row + i;
        const float down = row + 1 < all_rows ? from(row + 1, column) : 0;
        if (current && edge <= row && row < all_rows - edge) {
          const bool inner = inner_rows.contains(row) && inner_columns.contains(column);
          const float next = inner ? mean(up, down, from(row, column - 1), from(row, column + 1)) : here;
          if (sweep + 1 < Sweeps)
            to(row, column) = next;
          else if (out_rows.contains(row) && out_columns.contains(column))
            p.out(origin[0] + row, origin[1] + column) = next;
        }
        up = here;
        here = down;
      }
      if (sweep + 1 < Sweeps) block.sync();
    }
  }
};

/// Computes `Sweeps` Jacobi sweeps from `in` to `out`, two grids of equal size with any strides that must not overlap. `where`
/// is a stream, and the call is asynchronous, or giwa::host.
template <int Sweeps, class Where>
giwa::status sweep(const Where& where, const giwa::tensor_view<const float, 2>& in,
                   const giwa::tensor_view<float, 2>& out) {
  using op = staged_sweeps<Sweeps>;
  if (const giwa::status s = in.check("in"); !s.ok()) return s;
  if (const giwa::status s = out.check("out"); !s.ok()) return s;
  for (const int d : {0, 1})
    if (out.extent(d) != in.extent(d))
      return giwa::status::invalid("out", "the grids have the same size", giwa::bound::exactly, in.extent(d),
                                   out.extent(d));
  if (in.size() == 0) return {};
  const int64 down = giwa::ceil_div(in.extent(0), op::rows), across = giwa::ceil_div(in.extent(1), op::columns);
  if (giwa::product_overflows(down, across) || down * across > giwa::launch_limits::grid_x)
    return giwa::status::invalid("in", "the grid has more tiles than a launch has blocks");
  return giwa::launch(where, {.grid = down * across, .block = op::max_threads}, op{},
                      {in, out, static_cast<int>(across)});
}

}  // namespace tiled
