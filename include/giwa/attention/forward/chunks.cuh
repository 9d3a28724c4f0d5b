// SPDX-License-Identifier: MIT
// The merged state of earlier chunks of keys, while the next chunk is summed by itself.
#ifndef GIWA_ATTENTION_FORWARD_CHUNKS_CUH
#define GIWA_ATTENTION_FORWARD_CHUNKS_CUH

#include <giwa/attention/split_fp16/exponents.cuh>
#include <giwa/softmax/online.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// m, l and O of a thread's rows, in local memory: volatile, so that they take no registers beside those of the present chunk.
template <class Softmax, class Output, bool IsSplit>
struct earlier_chunks {
  static constexpr int rows = Softmax::rows, registers = Output::registers;
  volatile float m[rows], l[rows], o[registers];
  split_exponents exponents;

  /// Saves the state, and resets it for the next chunk.
  GIWA_DEVICE void save(Softmax& softmax, Output& own, const split_exponents& own_exponents) {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m[r] = softmax.m[r], l[r] = softmax.l[r];
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) o[i] = own.value[i];
    exponents = own_exponents;
    softmax.reset();
    own.fill(0);
  }

  /// Merges the saved state into that of the present chunk, in fp32.
  template <class Block, class Mask, class Score>
  GIWA_DEVICE void add_to(const Block& block, Softmax& softmax, Output& own, const split_exponents& own_exponents,
                          const score_steps<Mask, Score>& steps) const {
    float earlier_m[rows], earlier_l[rows], of_earlier[rows], of_own[rows];
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) earlier_m[r] = m[r], earlier_l[r] = l[r];
    if constexpr (IsSplit) own_exponents.convert_scores(exponents, steps, earlier_m);
    softmax.merge(earlier_m, earlier_l, steps.scale_log2(), of_earlier, of_own);
    if constexpr (IsSplit) own_exponents.convert_values(exponents, of_earlier);
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) {
      if (i % 8 == 0) block.sync_warp();  // else all loads come first, and spill what is in registers
      const int r = Output::map::slot(i);
      own.value[i] = fused_multiply_add(o[i], of_earlier[r], own.value[i] * of_own[r]);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
