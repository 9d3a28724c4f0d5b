// SPDX-License-Identifier: MIT
// The merged state of earlier chunks of keys, while the next chunk is summed separately.
#ifndef GIWA_ATTENTION_FORWARD_CHUNKS_CUH
#define GIWA_ATTENTION_FORWARD_CHUNKS_CUH

#include <giwa/attention/split_fp16/exponents.cuh>
#include <giwa/softmax/online.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// m, l and O of a thread's rows. They are volatile, in local memory, so that they take no registers while the current
/// chunk is summed. `QueryRows` computes a chunk (sm90_query_rows).
template <class QueryRows>
struct earlier_chunks {
  using softmax_state = typename QueryRows::softmax_state;
  using output_registers = typename QueryRows::output_registers;
  static constexpr int rows = softmax_state::rows, registers = output_registers::registers;
  volatile float m[rows], l[rows], o[registers];
  volatile int exponent_of_scores, exponent_of_values;
  volatile bool has_nonfinite;

  GIWA_DEVICE void save(const QueryRows& chunk) {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m[r] = chunk.softmax.m[r], l[r] = chunk.softmax.l[r];
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) o[i] = chunk.o.value[i];
    exponent_of_scores = chunk.exponents.scores, exponent_of_values = chunk.exponents.values;
    has_nonfinite = chunk.has_nonfinite;
  }

  /// Merges the saved state into the state of the current chunk, in fp32.
  template <class Block, class Steps>
  GIWA_DEVICE void add_to(const Block& block, QueryRows& chunk, const Steps& steps) const {
    float earlier_m[rows], earlier_l[rows], of_earlier[rows], of_own[rows];
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) earlier_m[r] = m[r], earlier_l[r] = l[r];
    const split_exponents earlier{exponent_of_scores, exponent_of_values};
    if constexpr (QueryRows::is_split) chunk.exponents.convert_scores(earlier, steps, earlier_m);
    chunk.softmax.merge(earlier_m, earlier_l, steps.scale_log2(), of_earlier, of_own);
    if constexpr (QueryRows::is_split) chunk.exponents.convert_values(earlier, of_earlier);
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) {
      const int r = output_registers::map::slot(i);
      chunk.o.value[i] = fused_multiply_add(o[i], of_earlier[r], chunk.o.value[i] * of_own[r]);
    }
    const bool earlier_nonfinite = has_nonfinite;
    chunk.has_nonfinite =
        block.any(chunk.has_nonfinite | earlier_nonfinite);  // by a vote, so that branches on it are uniform
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
