// SPDX-License-Identifier: MIT
// The transpose of a matrix by way of tiles in shared memory, so that reads and writes both run along rows.
#pragma once

#include <giwa/grid.cuh>
#include <giwa/tile.cuh>

#include <cstdint>

namespace tiled {

using giwa::int64;

/// 16 bytes of a row, which one access moves in global and shared memory.
template <class T>
struct alignas(16) packet {
  static constexpr int size = 16 / static_cast<int>(sizeof(T));
  T element[size];
};

/// A custom layout. Rows are contiguous; the packets of a row are permuted by the number of the row. So 8 lanes that
/// write the same packet of rows at a distance of `size` reach all 32 banks, and so do 8 lanes that read neighbouring
/// packets of a row.
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
  int tile_rows;                     // number of rows of tiles of `in`

  /// Returns the first element of `in` of the tile of block number `i`. Blocks go down the columns of tiles: concurrent blocks
  /// then write neighbouring parts of the same rows, which matters more than reading them. fp32 32768 x 32768 on an H200,
  /// 2026-11-21, in percent of the speed of a copy: 96 down the columns, 93 along the rows, 88 to 90 in squares of 16 or 32
  /// rows of tiles.
  GIWA_HOST_DEVICE giwa::index<2> origin(int64 i, int rows, int columns) const {
    const int block = static_cast<int>(i);
    return {int64{block % tile_rows} * rows, int64{block / tile_rows} * columns};
  }
};

/// Transposes with any sizes, strides and alignment: loads a tile from `in` and stores it to a view of `out` with exchanged
/// strides, which has the shape of `in`. The layout `transposable` makes both free of bank conflicts.
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

/// Transposes if the rows of both matrices consist of aligned packets. Each thread reads a square of the tile, one packet for
/// each row, transposes it in registers (free in fp32, one byte permutation for two 16-bit elements), and writes it to the
/// tile. The tile then holds the transpose and is stored by rows.
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
      const int64 left = p.in.extent(0) - first_row - row;  // rows; a square is inside as a whole or not at all
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

/// Returns whether the rows of a view consist of packets at aligned addresses.
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

/// Computes out(j, i) = in(i, j) for elements of 2 or 4 bytes, any sizes and strides. `in` and `out` must not overlap. `where`
/// is a stream, and the call is asynchronous, or giwa::host.
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
