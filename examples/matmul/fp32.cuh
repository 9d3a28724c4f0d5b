// SPDX-License-Identifier: MIT
// Matrix product, step 6: fp32 by split fp16 on tensor cores: hi and lo of each number, three products for one. sm_90a.
#pragma once

#include "register_tile.cuh"
#include "split_fp16.cuh"
#include "wgmma.cuh"

namespace matmul {

// Each row of a and each column of b is scaled by a power of two that brings its largest element below 2^15; each scaled
// element is split into two fp16 numbers, hi and lo (numeric/split.hpp). The split of a and b, and the product lo lo, which is
// omitted, change c_ij by at most
//   3 2^-22 sum_l |a_il b_lj| + 2^-39 (max |a_il| sum_l |b_lj| + max |b_lj| sum_l |a_il|).
// The second term matters if elements of a row or column differ by more than 2^17.
//
// Tensor-core accumulation truncates toward zero, so that long sums would shrink. Therefore the tensor cores sum 64 products
// at a time, and fp32 adds these sums: k / 64 roundings, where a plain sum has k. NVIDIA does not document the truncation. In
// a model that truncates 24 bits below the largest addend, for positive elements and k = 8192, the error of c is 2^-20
// sum_l |a_il b_lj|; with one accumulator it is 2^-13, and for a plain sum 2^-18. For elements of both signs the three are
// 2^-26, 2^-20 and 2^-23. The tests allow 2^-19 and twice the second term, which products of fp16 or tf32 exceed by far.

/// Computes c = epilogue(a b) as step 5: a cluster of two blocks computes 256 x 128 of c and shares the tiles of b.
template <class Epilogue>
struct fp32_op {
  // Of the 232 registers of a thread 64 hold sums and two times 64 hold products in flight: those of one stage are added
  // while those of the next are multiplied. So a tile has 128 columns. A stage of 64 KB takes 1536 cycles of the tensor
  // cores.
  static constexpr int rows = 128, columns = 128, depth = 64, stages = 3, blocks = 2;
  static constexpr int max_threads = 384, min_blocks = 1;
  static constexpr int loader_registers = 40, multiplier_registers = 232;

  using layout = giwa::swizzled<giwa::swizzle::bytes_128>;
  using tile_a = giwa::shared_tile<giwa::fp16, giwa::tile_shape<rows, depth>, layout>;
  using tile_b = giwa::shared_tile<giwa::fp16, giwa::tile_shape<depth, columns>, layout>;

  struct stage {
    tile_a a[2];  // hi, lo
    tile_b b[2];
  };
  struct shared_storage {
    giwa::pipeline<stage, stages, giwa::tensor_copies<blocks>> pipeline;
  };
  struct params {
    giwa::tensor_map a, b;  // (2, m, k), (2, k, n): hi and lo
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
          for (int part = 0; part < 2; ++part) {
            copies.load(p.a, giwa::index<3>{part, row, k * depth}, to.a[part]);
            copies.multicast(p.b, giwa::index<3>{part, k * depth, column}, to.b[part], giwa::arch::cluster_rank());
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
      const auto start = [&](accumulator& products) {  // small products first: a small sum is truncated by less
        const stage& tile = out.wait();
        giwa::arch::fence_operand(products.value);
        giwa::arch::wgmma_fence();
        giwa::multiply(products, tile.a[1], 64 * group, tile.b[0], false);
        giwa::multiply(products, tile.a[0], 64 * group, tile.b[1], true);
        giwa::multiply(products, tile.a[0], 64 * group, tile.b[0], true);
        giwa::arch::wgmma_commit();
      };
      const auto add = [&](accumulator& products) {  // after the wait for the products
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

/// The layout of the workspace of step 6: offsets in bytes, multiples of 16.
struct fp32_workspace {
  int64 columns = 0, a = 0, b = 0;  // the maxima of b's columns, after those of a's rows; hi and lo of a, and of b
  int64 bytes = 0;

  /// Returns the leading dimension of hi and lo, so that TMA can address the rows.
  GIWA_HOST_DEVICE static constexpr int64 stride(int64 columns) { return giwa::round_up(columns, 8); }

  GIWA_HOST_DEVICE constexpr fp32_workspace(int64 m, int64 n, int64 k) {
    constexpr int64 most = int64{1} << 31, part_bytes = sizeof(giwa::fp16), sum_bytes = sizeof(float);
    if (m > most || n > most || k > most || giwa::product_overflows(m, 16 * stride(k)) ||
        giwa::product_overflows(k, 16 * stride(n))) {
      bytes = giwa::max_int64;
      return;
    }
    columns = giwa::round_up(m, 4) * sum_bytes;
    a = columns + giwa::round_up(n, 4) * sum_bytes;
    b = a + 2 * m * stride(k) * part_bytes;
    bytes = b + 2 * k * stride(n) * part_bytes;
  }
};

/// Returns the bytes of workspace that step 6 needs for a (m, k) and b (k, n), or the largest int64 if the sizes are too large.
GIWA_HOST_DEVICE constexpr int64 fp32_workspace_bytes(int64 m, int64 n, int64 k) {
  return fp32_workspace(m, n, k).bytes;
}

/// Computes c = epilogue(a b) for fp32 with the precision of fp32 sums. Uses wgmma if the program and the GPU have it,
/// otherwise step 3. Any sizes, strides and alignment; contiguous rows aligned to 16 bytes are fastest. An infinity or NaN in
/// a row of a or a column of b makes the sums of that row or column infinite or NaN; an infinity may become NaN. `workspace`
/// has fp32_workspace_bytes(m, n, k) bytes, is aligned to 16 bytes, and must not be used by anything else until the call is
/// done. Asynchronous on `stream`.
template <class Epilogue = identity>
giwa::status fp32(cudaStream_t stream, const giwa::tensor_view<const float, 2>& a,
                  const giwa::tensor_view<const float, 2>& b, const giwa::tensor_view<float, 2>& c,
                  const giwa::tensor_view<unsigned char, 1>& workspace, const Epilogue& epilogue = {}) {
  using op = fp32_op<Epilogue>;
  if (const giwa::status s = check(a, b, c); !s.ok()) return s;
  if (c.size() == 0) return {};
  const int64 m = c.extent(0), n = c.extent(1), k = a.extent(1);
  const fp32_workspace layout(m, n, k);
  if (const giwa::status s = workspace.check("workspace"); !s.ok()) return s;
  if (workspace.size() < layout.bytes)
    return giwa::status::invalid("workspace", "the size must be at least fp32_workspace_bytes()", giwa::bound::at_least,
                                 layout.bytes, workspace.size());
  unsigned char* const memory = workspace.data();
  if (workspace.stride(0) != 1 || reinterpret_cast<giwa::uint64>(memory) % 16 != 0)
    return giwa::status::invalid("workspace", "the bytes must be contiguous and 16-byte aligned");
  const giwa::result<giwa::device_code> code = giwa::code_for_current_device();
  if (!code.ok()) return code.state;
  if (!code.value.architecture_specific || k == 0 || std::max({m, n, k}) > largest_of_wgmma)
    return register_tile(stream, a, b, c, epilogue);

  const auto hi_and_lo = [&](int64 at, int64 rows, int64 columns) {
    const int64 stride = fp32_workspace::stride(columns);
    return giwa::tensor_view<giwa::fp16, 3>(reinterpret_cast<giwa::fp16*>(memory + at), {2, rows, columns},
                                            {rows * stride, stride, 1});
  };
  const giwa::tensor_view<giwa::fp16, 3> split_a = hi_and_lo(layout.a, m, k), split_b = hi_and_lo(layout.b, k, n);
  const auto map_a = giwa::make_tile_map<typename op::tile_a>(split_a, "a");
  const auto map_b = giwa::make_tile_map<typename op::tile_b>(split_b, "b");
  if (!map_a.ok()) return map_a.state;
  if (!map_b.ok()) return map_b.state;

  float* const rows = reinterpret_cast<float*>(memory);
  float* const columns = reinterpret_cast<float*>(memory + layout.columns);
  const auto bytes = static_cast<std::size_t>(layout.a);
  if (const giwa::status s = giwa::to_status(cudaMemsetAsync(memory, 0, bytes, stream)); !s.ok()) return s;
  if (const giwa::status s = split_lines<lines::rows>(stream, a, split_a, rows); !s.ok()) return s;
  if (const giwa::status s = split_lines<lines::columns>(stream, b, split_b, columns); !s.ok()) return s;
  return launch_clusters<op>(stream, m, n, k, [&](const cut& tiles) {
    return typename op::params{map_a.value, map_b.value, rows, columns, {c, epilogue}, tiles};
  });
}

}  // namespace matmul
