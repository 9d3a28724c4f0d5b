// SPDX-License-Identifier: MIT
// The transpose of a matrix: tiles go through shared memory, so that rows are read and rows are written.
#pragma once

#include <giwa/grid.cuh>
#include <giwa/tile.cuh>

#include <cstdint>

namespace tiled {

using giwa::int64;

/// 16 bytes of a row: what one access moves, here and in the tile.
template <class T>
struct alignas(16) packet {
  static constexpr int size = 16 / static_cast<int>(sizeof(T));
  T element[size];
};

/// A layout of one's own. Rows lie one after the other, the packets of a row are exchanged with each other by the number of
/// their row, in steps of a packet: then 8 lanes that write the same packet of rows `size` apart, and 8 lanes that read
/// neighbouring packets of a row, reach all 32 banks.
struct exchanged_packets {
  template <class T, class Shape>
  struct of {
    static constexpr int run = packet<T>::size, elements = Shape::size, alignment = 128;
    static_assert(Shape::columns % (8 * run) == 0, "the exchange is among 8 packets");
    GIWA_HOST_DEVICE static constexpr int offset(int row, int column) {
      return row * Shape::columns + (column ^ row / run % 8 * run);
    }
  };
};

template <class T>
struct transpose_params {
  giwa::tensor_view<const T, 2> in;  // (rows, columns)
  giwa::tensor_view<T, 2> out;       // (columns, rows)
  int tile_rows;                     // how many tiles of `in` lie below each other

  /// The element of `in` where the tile of block number `i` begins. Down the columns of tiles: the blocks that are under way
  /// together then write neighbouring parts of the same rows, which matters more than that they read such. fp32 32768 x 32768
  /// on an H200, 2026-11-21, in percent of a copy's speed: down the columns 96, along the rows 93, in squares of 16 or 32
  /// rows of tiles 88 to 90.
  GIWA_HOST_DEVICE giwa::index<2> origin(int64 i, int rows, int columns) const {
    const int block = static_cast<int>(i);
    return {int64{block % tile_rows} * rows, int64{block / tile_rows} * columns};
  }
};

/// Any sizes, strides and alignment, in three lines: a tile is loaded as it lies in `in`, and stored as it lies in `out`,
/// which is `in`'s shape seen with the strides exchanged. The layout `transposable` frees both ways of bank conflicts.
template <class T>
struct any_transpose {
  using params = transpose_params<T>;
  static constexpr int rows = 64, columns = 64, max_threads = 256, min_blocks = 4;
  struct shared_storage {
    giwa::shared_tile<T, giwa::tile_shape<rows, columns>, giwa::transposable> tile;
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const giwa::index<2> origin = p.origin(block.block_rank(), rows, columns);
    const giwa::tensor_view<T, 2> out(p.out.data(), p.in.extents(), {p.out.stride(1), p.out.stride(0)});
    giwa::load(giwa::with_threads<max_threads>(block), p.in, origin, s.tile);
    block.sync();
    giwa::store(giwa::with_threads<max_threads>(block), s.tile, out, origin);
  }
};

/// Where rows on both sides consist of whole aligned packets. Each thread reads a square of the tile, one packet a row; turns
/// it in its registers, which costs fp32 nothing and 16-bit elements a byte permutation for two; and writes it to the tile,
/// which is then the transpose, and leaves by rows.
template <class T, int Rows, int Columns>
struct packet_transpose {
  using params = transpose_params<T>;
  static constexpr int rows = Rows, columns = Columns, side = packet<T>::size;
  static constexpr int max_threads = rows * columns / (side * side), min_blocks = 1024 / max_threads;
  struct shared_storage {
    giwa::shared_tile<T, giwa::tile_shape<columns, rows>, exchanged_packets> tile;
  };

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const auto [first_row, first_column] = p.origin(block.block_rank(), rows, columns);
    {
      const int row = block.rank() / (columns / side) * side, column = block.rank() % (columns / side) * side;
      packet<T> in[side];
      const int64 left = p.in.extent(0) - first_row - row;  // rows; all of a square or none are inside
      if (left > 0 && first_column + column < p.in.extent(1)) {
        const T* from = &p.in(first_row + row, first_column + column);
        GIWA_UNROLL
        for (int i = 0; i < side; ++i) in[i] = *reinterpret_cast<const packet<T>*>(from + i * p.in.stride(0));
        GIWA_UNROLL
        for (int j = 0; j < side; ++j) {
          packet<T> turned;
          GIWA_UNROLL
          for (int i = 0; i < side; ++i) turned.element[i] = in[i].element[j];
          *reinterpret_cast<packet<T>*>(s.tile.chunk(column + j, row)) = turned;
        }
      }
    }
    block.sync();
    GIWA_UNROLL
    for (int i = 0; i < side; ++i) {
      const int at = i * max_threads + block.rank();  // packets of the turned tile, row by row
      const int row = at / (rows / side), column = at % (rows / side) * side;
      if (first_column + row < p.out.extent(0) && first_row + column < p.out.extent(1))
        *reinterpret_cast<packet<T>*>(&p.out(first_column + row, first_row + column)) =
            *reinterpret_cast<const packet<T>*>(s.tile.chunk(row, column));
    }
  }
};

/// Whether a view's rows consist of whole packets at aligned addresses.
template <class T>
bool made_of_packets(const giwa::tensor_view<T, 2>& view) {
  constexpr int size = packet<T>::size;
  return view.stride(1) == 1 && view.extent(0) % size == 0 && view.extent(1) % size == 0 &&
         view.stride(0) % size == 0 && reinterpret_cast<std::uintptr_t>(view.data()) % sizeof(packet<T>) == 0;
}

template <class Op, class Where, class T>
giwa::status run_transpose(const Where& where, const giwa::tensor_view<const T, 2>& in,
                           const giwa::tensor_view<T, 2>& out) {
  const int64 tile_rows = giwa::ceil_div(in.extent(0), Op::rows),
              tile_columns = giwa::ceil_div(in.extent(1), Op::columns);
  if (giwa::product_overflows(tile_rows, tile_columns) || tile_rows * tile_columns > giwa::launch_limits::grid_x)
    return giwa::status::invalid("in", "the matrix has more tiles than a grid has blocks");
  return giwa::launch(where, {.grid = tile_rows * tile_columns, .block = Op::max_threads}, Op{},
                      {in, out, static_cast<int>(tile_rows)});
}

/// out(j, i) = in(i, j), for elements of 2 or 4 bytes; any sizes and strides. The two must not overlap. `where` is a stream,
/// on which it is asynchronous, or giwa::host.
template <class T, class Where>
giwa::status transpose(const Where& where, const giwa::tensor_view<const T, 2>& in,
                       const giwa::tensor_view<T, 2>& out) {
  if (const giwa::status s = in.check("in"); !s.ok()) return s;
  if (const giwa::status s = out.check("out"); !s.ok()) return s;
  for (const int d : {0, 1})
    if (out.extent(1 - d) != in.extent(d))
      return giwa::status::invalid("out", "the sizes are those of `in`, exchanged", giwa::bound::exactly, in.extent(d),
                                   out.extent(1 - d));
  if (in.size() == 0) return {};
  constexpr int tile = sizeof(T) == 4 ? 64 : 128;  // 256 threads; 256 bytes of a row, both ways
  if (made_of_packets(in) && made_of_packets(out))
    return run_transpose<packet_transpose<T, tile, tile>>(where, in, out);
  return run_transpose<any_transpose<T>>(where, in, out);
}

}  // namespace tiled
