// SPDX-License-Identifier: MIT
// How a gradient is stored: from the sums in the registers of a kernel on tensor cores, and dq from those in the workspace.
#ifndef GIWA_ATTENTION_KERNELS_SIMT_STORE_GRADIENT_CUH
#define GIWA_ATTENTION_KERNELS_SIMT_STORE_GRADIENT_CUH

#include <giwa/arch/acquire_release.cuh>
#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/registers.cuh>
#include <giwa/attention/problem/backward_params.hpp>
#include <giwa/attention/work/visible_tiles.hpp>
#include <giwa/grid/op.hpp>
#include <giwa/numeric/fast_division.hpp>
#include <giwa/tile/element_run.hpp>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Stores sums times `factor` to the rows of a gradient from `first` on, or adds them if `accumulate`. + 0 makes -0 positive,
/// so that the result does not depend on masked scores. `thread` is the rank in the group that holds the sums.
template <class Block, class Map, class G>
GIWA_DEVICE void store_gradient(const Block& block, int thread, register_tile<float, Map>& sums,
                                const tensor_view<G, 2>& to, int first, float factor, bool accumulate,
                                int first_column = 0) {
  sums.transform([&](float x) { return x * factor + 0.0f; });
  if constexpr (sizeof(G) == 4)
    if (accumulate)
      sums.for_each(thread, [&](float& x, int row, int column) {
        if (first + row < to.extent(0) && first_column + column < to.extent(1))
          x += to.data()[(first + row) * to.stride(0) + first_column + column];
      });
  store_rows(block, thread, sums, to, {first, first_column});
}

/// store_gradient() of a warpgroup in a 16-bit type by way of shared memory, 64 columns at a time: eight lanes that follow each other
/// store 128 bytes of a row. Each warp uses 16 columns of the first 64 rows of a tile with 128 bytes a row, whose 16-byte chunks are
/// swizzled. The rows of the gradient are aligned to 16 bytes, and it has the columns of the sums. The warp may overwrite its columns
/// afterwards.
template <class Block, class Map, class G, class Slab>
GIWA_DEVICE void store_gradient_by_slabs(const Block& block, int thread, register_tile<float, Map>& sums,
                                         const tensor_view<G, 2>& to, int first, float factor, Slab& slab) {
  using run = element_run<G, 8>;
  static_assert(Slab::rows >= 64 && Slab::columns == 64 && sizeof(G) == 2);
  sums.transform([&](float x) { return x * factor + 0.0f; });
  thread = arch::recomputed_here(thread);  // otherwise addresses are kept from the start of the kernel, and spilled
  const uint32 lane = static_cast<uint32>(thread) % 32, warp = static_cast<uint32>(thread) / 32;
  // The byte of the slab at which eight columns of a row of the warp begin. The eight chunks of a row are in different banks, and one
  // chunk of eight rows too.
  const auto place = [&](uint32 row, uint32 eight) {
    const uint32 x = (row ^ eight) % 8;
    return 128 * (8 * eight + x) + 16 * ((2 * warp + row / 8) ^ x);
  };
  const uint32 to_write = place(lane % 16, lane / 16), to_read = place(lane / 8, lane % 8);
  const int row = first + static_cast<int>(16 * warp + lane / 8), rows = static_cast<int>(to.extent(0));
  const int64 four_rows = 4 * to.stride(0);
  G* const at = to.data() + row * to.stride(0) + static_cast<int>(8 * (lane % 8));
  GIWA_UNROLL
  for (int done = 0; done < Map::shape::columns; done += 64) {
    block.sync_warp();  // what was in the slab has been read
    GIWA_UNROLL
    for (uint32 i = 0; i < 4; ++i) {  // chunks 2 i and 2 i + 1
      const float* const v = sums.value + done / 2 + 8 * i;
      const uint32 words[4] = {packed_word<G>(v[0], v[1]), packed_word<G>(v[2], v[3]), packed_word<G>(v[4], v[5]),
                               packed_word<G>(v[6], v[7])};
      arch::store_matrices(arch::shared_address(slab.data()) + (to_write ^ (2 * i * (128 + 16))) + 2 * i * 1024, words);
    }
    block.sync_warp();
    GIWA_UNROLL
    for (uint32 i = 0; i < 4; ++i) {  // rows lane / 8 + 4 i
      const auto eight = run::read(slab.data() + (to_read ^ (i % 2 * 4 * (128 + 16)) ^ (i / 2 * 16)) / sizeof(G));
      if (row + static_cast<int>(4 * i) < rows) store_vector_whole(at + i * four_rows + done, eight);
    }
  }
  block.sync_warp();
}

/// Writes dq from its sums, a block for each part (dq_parts) of a head.
template <class Params, int HeadSize, int HeadSizeV, bool IsLong = false>
struct dq_of_sums_op {
  using gradient_element = typename decltype(Params::views.dq)::element_type;
  static constexpr int max_threads = 128;
  // 12.0 has shared memory for six blocks; with the registers of eight it spills 72 bytes at head size 64.
  static constexpr int min_blocks = sizeof(gradient_element) == 4 ? 4 : GIWA_ARCH_CAPABILITY >= 120 ? 6 : 8;
  static constexpr int rows_of_tile = IsLong ? dq_parts::long_rows : dq_parts::rows_of_tile(HeadSize, HeadSizeV);
  static constexpr bool by_queries = rows_of_tile == 128;
  static constexpr int parts = dq_parts::of_tile(HeadSize);
  struct params {
    Params call;
    fast_divisor tiles, heads;  // of a sequence
    // Of the kernel that adds, each of whose blocks is resident then: a block waits for its part alone (backward_schedules::ends_are_known),
    // so that the multiprocessors that the last items leave idle write dq. 0: for that kernel's end.
    int keys_of_tile;
  };
  // Sums come by way of shared memory, which copies do without a place in the L1 cache: the kernel that adds leaves 28 KB of that, and
  // loads to registers in flight need room there. A call of 512 tokens of head size 64 takes 1 % less (H200, 2026-11-30).
  struct staged_part {
    alignas(16) float sums[dq_parts::floats];
  };
  using shared_storage = stdlib::conditional_t<IsLong, no_shared_storage, staged_part>;

  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    arch::launch_dependents();
    if (p.keys_of_tile == 0) arch::wait_for_previous_kernel();
    const tile_list& listed = p.call.workspace.queries;
    const bool is_listed = p.call.call.ragged;
    const int64 all =
        parts * p.heads.divisor() * (is_listed ? *listed.count : p.call.views.in.sequence_count() * p.tiles.divisor());
    for (int64 i = block.block_rank(); i < all; i += block.block_count()) {
      const int64 of_head = i / parts, row = of_head / (is_listed ? p.heads : p.tiles);
      const int index = static_cast<int>(i - of_head * parts);
      int sequence = static_cast<int>(row / p.heads), head = static_cast<int>(row - sequence * p.heads.divisor()),
          at = static_cast<int>(of_head - row * p.tiles.divisor());
      if (is_listed) {  // the heads of a tile follow each other, as they end
        const listed_tile tile = listed.tiles[row];
        sequence = tile.sequence, head = static_cast<int>(of_head - row * p.heads.divisor()), at = tile.tile;
      }
      const bool is_sum = await_sums(block, p, sequence, head, at, index);
      write(block, p, arch::recomputed_here(sequence), arch::recomputed_here(head), arch::recomputed_here(at), index,
            is_sum, s);
    }
    // A kernel is complete when those before it are.
    if (p.keys_of_tile != 0 && block.block_rank() + 1 == block.block_count()) arch::wait_for_previous_kernel();
  }

 private:
  /// Waits until the last of the tiles of keys that part `index` of tile n gets sums of has added to it. Returns whether there are sums.
  template <class Block>
  GIWA_DEVICE static bool await_sums(const Block& block, const params& p, int sequence, int head, int n, int index) {
    const auto h = p.call.call.place_of(sequence, head);
    const int first = p.call.dq_part_of(h, n, rows_of_tile);
    // The mma.sync kernel has a word for all parts of a tile.
    if (p.keys_of_tile == 0) return p.call.workspace.added[first] != 0;
    using mask = stdlib::remove_cvref_t<decltype(p.call.call.mask)>;
    const key_tiles<mask> keys(p.call.call.mask, h, n * rows_of_tile, rows_of_tile, p.keys_of_tile);
    const int last = keys.previous(keys.count());
    // One thread asks: a multiprocessor may wait for long, and writers need these words.
    if (last >= 0 && block.rank() == 0)
      while (arch::load_acquire(p.call.workspace.added + first + index) != last + 1) {
      }
    block.sync();
    return last >= 0;
  }
  /// Eight columns of a query for each thread, of a part that has columns by queries; `from` is null where the sums are 0.
  template <class Block, class G>
  GIWA_DEVICE static void write_long(const Block& block, const Params& p, const tensor_view<G, 2>& dq, int first_row,
                                     int first_column, const float* from) {
    constexpr int run = 16 / static_cast<int>(sizeof(G)), runs = 64 / run;
    const int columns = dq_parts::columns_of(HeadSize, HeadSizeV, first_column / 64);
    const bool aligned = reinterpret_cast<uint64>(dq.data()) % 16 == 0 && dq.stride(0) % run == 0;
    for (int i = block.rank(); i < rows_of_tile * runs; i += max_threads) {
      const int query = i / runs, row = first_row + query, of_part = i % runs * run;
      if (row >= dq.extent(0)) return;
      if (of_part >= columns) continue;
      const int thread = of_part / 16 * 32 + of_part % 8 * 4 + query % 8 / 2;
      const int at = dq_parts::long_offset(thread, query / 8) + of_part % 16 / 8 * 2 + query % 2;
      G* const to = dq.data() + row * dq.stride(0) + first_column + of_part;
      element_run<G, run> values;
      GIWA_UNROLL
      for (int k = 0; k < run; ++k) {
        float x = (from == nullptr ? 0.0f : from[at + dq_parts::long_offset(4 * k, 0)]) * p.call.scale + 0.0f;
        if constexpr (sizeof(G) == 4)
          if (p.accumulate) x += to[k];
        values.set(k, convert<G>{}(x));
      }
      if (aligned)
        values.write(to);
      else
        for (int k = 0; k < run; ++k) to[k] = values.get(k);
    }
  }
  template <class Block>
  GIWA_DEVICE static void write(const Block& block, const params& all, int sequence, int head, int n, int index,
                                bool is_sum, [[maybe_unused]] shared_storage& s) {
    const Params& p = all.call;
    const auto h = p.call.at(sequence, head);
    const int first = p.dq_part_of(h, n, rows_of_tile), part = first + index;
    if constexpr (IsLong) {
      write_long(block, p, p.query_rows(p.views.dq, h), n * rows_of_tile, 64 * index,
                 is_sum ? p.workspace.dq + static_cast<int64>(part) * dq_parts::long_floats : nullptr);
    } else {
      register_tile<float, warpgroup_map<64>> sums;
      sums.fill(0);
      const int columns = dq_parts::columns_of(HeadSize, HeadSizeV, index);
      if (is_sum) {
        const float* const from = p.workspace.dq + static_cast<int64>(part) * dq_parts::floats;
        // A thread reads the sums that it has copied, before it starts the copies of the next part: no thread waits for others.
        GIWA_UNROLL
        for (int i = 0; i < 8; ++i) {
          if (8 * i >= columns) break;
          const int at = dq_parts::offset(block.rank(), i);
          arch::copy_async<16>(arch::shared_address(s.sums + at), from + at);
        }
        arch::copy_async_commit();
        arch::copy_async_wait<0>();
        GIWA_UNROLL
        for (int i = 0; i < 8; ++i) {
          if (8 * i >= columns) break;
          const float4 four = *reinterpret_cast<const float4*>(s.sums + dq_parts::offset(block.rank(), i));
          sums.value[4 * i] = four.x, sums.value[4 * i + 1] = four.y;
          sums.value[4 * i + 2] = four.z, sums.value[4 * i + 3] = four.w;
        }
      }
      store_gradient(block, block.rank(), sums, p.query_rows(p.views.dq, h),
                     n * rows_of_tile + (by_queries ? 64 * index : 0), p.call.scale, p.accumulate,
                     by_queries ? 0 : 64 * index);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
