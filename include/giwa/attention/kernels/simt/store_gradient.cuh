// SPDX-License-Identifier: MIT
// The last step of the tensor-core kernels of attention_backward: sums in registers become rows of a gradient.
#ifndef GIWA_ATTENTION_KERNELS_SIMT_STORE_GRADIENT_CUH
#define GIWA_ATTENTION_KERNELS_SIMT_STORE_GRADIENT_CUH

#include <giwa/arch/registers.cuh>
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

/// store_gradient() of a warpgroup in a 16-bit type by way of a tile of 64 x 64 in shared memory, of which each warp takes its 16
/// rows: eight lanes store 128 bytes of a row, in a third of the instructions. The rows of the gradient are aligned to
/// 16 bytes, and it has the columns of the sums. The tile may be overwritten by the same warps afterwards.
template <class Block, class Map, class G, class Slab>
GIWA_DEVICE void store_gradient_by_slabs(const Block& block, int thread, register_tile<float, Map>& sums,
                                         const tensor_view<G, 2>& to, int first, float factor, Slab& slab) {
  using run = element_run<G, 8>;
  sums.transform([&](float x) { return x * factor + 0.0f; });
  thread = arch::recomputed_here(thread);  // otherwise addresses are kept from the start of the kernel, and spilled
  const int row = thread / 32 * 16 + thread % 32 / 8, column = thread % 8 * 8;
  G* const at = to.data() + (first + row) * to.stride(0) + column;
  GIWA_UNROLL
  for (int done = 0; done < Map::shape::columns; done += Slab::columns) {
    block.sync_warp();  // what was in the slab has been read
    store(thread, sums, done, slab);
    block.sync_warp();
    GIWA_UNROLL
    for (int i = 0; i < 16; i += 4)
      if (first + row + i < to.extent(0)) run::read(slab.chunk(row + i, column)).write(at + i * to.stride(0) + done);
  }
  block.sync_warp();
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
