// SPDX-License-Identifier: MIT
// Matrix product, step 6: fp32 by fp16's tensor cores: each number in two pieces, three products for one. sm_90a.
#pragma once

#include "pieces.cuh"
#include "register_tile.cuh"
#include "wgmma.cuh"

namespace matmul {

// A row of a, or a column of b, gets a power of two that brings its largest element below 2^15, and each of its
// elements, so scaled, becomes two fp16 numbers: numeric/split.hpp. What a and b lose by that, and the product of both
// low pieces, which is left out, changes c_ij by at most
//   3 2^-22 sum_l |a_il b_lj| + 2^-39 (the largest |a_il| sum_l |b_lj| + the largest |b_lj| sum_l |a_il|),
// of which the second counts where elements of a row or column are more than 2^17 apart. Tensor cores cut off what an
// accumulator does not hold, where ordinary sums round: towards zero each time, so that long sums would shrink.
// Therefore they sum 64 products apart, and the sums of 64 are added up in fp32: k / 64 roundings, where a plain sum
// has k. How much they cut NVIDIA does not say. A model that cuts 24 bits below the largest addend puts c, for positive
// elements and k of 8192, off by 2^-20 sum_l |a_il b_lj|, by 2^-13 with one accumulator, and a plain sum by 2^-18; for
// elements of both signs by 2^-26, 2^-20 and 2^-23. Tests hold c to 2^-19 of it and twice the second term, which
// products of fp16 or tf32 miss by far.

/// c = epilogue(a b), as step 5 does it: a cluster of two blocks works on 256 x 128 of c, and shares the tiles of b.
template <class Epilogue>
struct fp32_op {
  // Of 232 registers a thread has 64 for its sums, and twice 64 for products under way: those of one stage are added
  // while those of the next are multiplied. That leaves 128 columns. A stage, 64 KB, keeps the tensor cores busy for
  // 1536 cycles.
  static constexpr int rows = 128, columns = 128, depth = 64, stages = 3, blocks = 2;
  static constexpr int max_threads = 384, min_blocks = 1;
  static constexpr int loader_registers = 40, multiplier_registers = 232;

  using layout = giwa::swizzled<giwa::swizzle::bytes_128>;
  using tile_a = giwa::shared_tile<giwa::fp16, giwa::tile_shape<rows, depth>, layout>;
  using tile_b = giwa::shared_tile<giwa::fp16, giwa::tile_shape<depth, columns>, layout>;

  struct stage {
    tile_a a[2];  // high pieces, low pieces
    tile_b b[2];
  };
  struct shared_storage {
    giwa::pipeline<stage, stages, giwa::tensor_copies<blocks>> pipeline;
  };
  struct params {
    giwa::tensor_map a, b;  // (2, m, k), (2, k, n): the pieces
    const float* largest_of_row;
    const float* largest_of_column;
    output<float, Epilogue> c;  // (m, n)
    cut tiles;                  // each for a cluster
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    share_out<fp32_op>(
        block, s.pipeline, [&] { load(block, p, s); }, [&] { multiply(block, p, s); });
  }

 private:
  template <class Block>
  GIWA_DEVICE static void load(Block block, const params& p, shared_storage& s) {
    auto in = s.pipeline.producer(block);
    for_each_tile<fp32_op>(block, p.tiles, [&](int row, int column) {
      for (int k = 0; k < p.tiles.steps; ++k)
        in.put([&](stage& to, const auto& copies) {
          GIWA_UNROLL
          for (int piece = 0; piece < 2; ++piece) {
            copies.load(p.a, giwa::index<3>{piece, row, k * depth}, to.a[piece]);
            copies.multicast(p.b, giwa::index<3>{piece, k * depth, column}, to.b[piece], giwa::arch::cluster_rank());
          }
        });
    });
  }

  template <class Block>
  GIWA_DEVICE static void multiply(Block block, const params& p, shared_storage& s) {
    const int group = block.warp() / 4 - 1, thread = block.rank() % 128;
    using accumulator = giwa::warpgroup_tile<columns>;
    auto out = s.pipeline.consumer(block);
    for_each_tile<fp32_op>(block, p.tiles, [&](int row, int column) {
      accumulator sum, even, odd;
      const auto start = [&](accumulator& products) {  // the small ones first: a sum still small is cut by less
        const stage& tile = out.wait();
        giwa::arch::fence_operand(products.value);
        giwa::arch::wgmma_fence();
        giwa::multiply(products, tile.a[1], 64 * group, tile.b[0], false);
        giwa::multiply(products, tile.a[0], 64 * group, tile.b[1], true);
        giwa::multiply(products, tile.a[0], 64 * group, tile.b[0], true);
        giwa::arch::wgmma_commit();
      };
      const auto add = [&](accumulator& products) {  // after the wait for them
        giwa::arch::fence_operand(products.value);
        out.release();
        GIWA_UNROLL
        for (int i = 0; i < accumulator::registers; ++i) sum.value[i] += products.value[i];
      };

      sum.fill(0);
      start(even);
      int left = p.tiles.steps - 1;
      for (; left >= 2; left -= 2) {
        start(odd);
        giwa::arch::wgmma_wait<1>();
        add(even);
        start(even);
        giwa::arch::wgmma_wait<1>();
        add(odd);
      }
      if (left == 1) {
        start(odd);
        giwa::arch::wgmma_wait<1>();
        add(even);
        giwa::arch::wgmma_wait<0>();
        add(odd);
      } else {
        giwa::arch::wgmma_wait<0>();
        add(even);
      }

      row += 64 * group;
      sum.for_each(thread, [&](float& x, int r, int c) {
        const int64 at_row = row + r, at_column = column + c;
        if (at_row < p.c.c.extent(0) && at_column < p.c.c.extent(1))
          x = p.c.epilogue(unscaled(x, p.largest_of_row[at_row], p.largest_of_column[at_column]), at_row, at_column);
      });
      giwa::store(thread, sum, p.c.c, giwa::index<2>{row, column});
    });
  }
};

/// Where step 6 keeps in its workspace what it makes of a and b: in bytes from the beginning, multiples of 16.
struct fp32_workspace {
  int64 columns = 0, a = 0, b = 0;  // the largest of b's columns, behind those of a's rows; the pieces of a, and of b
  int64 bytes = 0;

  /// The leading dimension of pieces: rows that TMA can address.
  GIWA_HOST_DEVICE static constexpr int64 stride(int64 columns) { return giwa::round_up(columns, 8); }

  GIWA_HOST_DEVICE constexpr fp32_workspace(int64 m, int64 n, int64 k) {
    constexpr int64 most = int64{1} << 31, a_piece = sizeof(giwa::fp16), a_sum = sizeof(float);
    if (m > most || n > most || k > most || giwa::product_overflows(m, 16 * stride(k)) ||
        giwa::product_overflows(k, 16 * stride(n))) {
      bytes = giwa::max_int64;
      return;
    }
    columns = giwa::round_up(m, 4) * a_sum;
    a = columns + giwa::round_up(n, 4) * a_sum;
    b = a + 2 * m * stride(k) * a_piece;
    bytes = b + 2 * k * stride(n) * a_piece;
  }
};

/// Bytes of workspace that step 6 takes for a (m, k) and b (k, n); the largest int64 where nothing has so much.
GIWA_HOST_DEVICE constexpr int64 fp32_workspace_bytes(int64 m, int64 n, int64 k) {
  return fp32_workspace(m, n, k).bytes;
}

/// c = epilogue(a b) for fp32, as exact as sums in fp32: by wgmma where this program and the GPU have it, else by step
/// 3. Any sizes, strides and alignment; rows in one piece, from a multiple of 16 bytes on, are fastest. An infinity or
/// NaN in a row of a or a column of b makes the sums of that row or column infinite or NaN, and an infinity may become
/// NaN. `workspace` holds fp32_workspace_bytes(m, n, k) bytes, from a multiple of 16 on, for this call alone until it
/// is done. Asynchronous.
template <class Epilogue = identity>
giwa::status fp32(cudaStream_t stream, const giwa::tensor_view<const float, 2>& a,
                  const giwa::tensor_view<const float, 2>& b, const giwa::tensor_view<float, 2>& c,
                  const giwa::tensor_view<unsigned char, 1>& workspace, const Epilogue& epilogue = {}) {
  using op = fp32_op<Epilogue>;
  if (const giwa::status s = check(a, b, c); !s.ok()) return s;
  if (c.size() == 0) return {};
  const int64 m = c.extent(0), n = c.extent(1), k = a.extent(1);
  const fp32_workspace place(m, n, k);
  if (const giwa::status s = workspace.check("workspace"); !s.ok()) return s;
  if (workspace.size() < place.bytes)
    return giwa::status::invalid("workspace", "it is smaller than fp32_workspace_bytes() says", giwa::bound::at_least,
                                 place.bytes, workspace.size());
  unsigned char* const memory = workspace.data();
  if (workspace.stride(0) != 1 || reinterpret_cast<giwa::uint64>(memory) % 16 != 0)
    return giwa::status::invalid("workspace", "its bytes lie side by side, from a multiple of 16 on");
  const giwa::result<giwa::device_code> code = giwa::code_for_current_device();
  if (!code.ok()) return code.state;
  if (!code.value.architecture_specific || k == 0 || std::max({m, n, k}) > largest_of_wgmma)
    return register_tile(stream, a, b, c, epilogue);

  const auto pieces = [&](int64 at, int64 rows, int64 columns) {
    const int64 stride = fp32_workspace::stride(columns);
    return giwa::tensor_view<giwa::fp16, 3>(reinterpret_cast<giwa::fp16*>(memory + at), {2, rows, columns},
                                            {rows * stride, stride, 1});
  };
  const giwa::tensor_view<giwa::fp16, 3> pieces_of_a = pieces(place.a, m, k), pieces_of_b = pieces(place.b, k, n);
  const auto map_a = giwa::make_tile_map<typename op::tile_a>(pieces_of_a, "a");
  const auto map_b = giwa::make_tile_map<typename op::tile_b>(pieces_of_b, "b");
  if (!map_a.ok()) return map_a.state;
  if (!map_b.ok()) return map_b.state;

  float* const rows = reinterpret_cast<float*>(memory);
  float* const columns = reinterpret_cast<float*>(memory + place.columns);
  const auto bytes = static_cast<std::size_t>(place.a);
  if (const giwa::status s = giwa::to_status(cudaMemsetAsync(memory, 0, bytes, stream)); !s.ok()) return s;
  if (const giwa::status s = split_lines<lines::rows>(stream, a, pieces_of_a, rows); !s.ok()) return s;
  if (const giwa::status s = split_lines<lines::columns>(stream, b, pieces_of_b, columns); !s.ok()) return s;
  return launch_clusters<op>(stream, m, n, k, [&](const cut& tiles) {
    return typename op::params{map_a.value, map_b.value, rows, columns, {c, epilogue}, tiles};
  });
}

}  // namespace matmul
