// SPDX-License-Identifier: MIT
// The last step of the tensor-core kernels of attention_backward: sums in registers become rows of a gradient.
#ifndef GIWA_ATTENTION_BACKWARD_STORE_GRADIENT_CUH
#define GIWA_ATTENTION_BACKWARD_STORE_GRADIENT_CUH

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

}  // namespace giwa::inline GIWA_ABI::detail

#endif
