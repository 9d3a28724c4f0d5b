// SPDX-License-Identifier: MIT
// The merged state of earlier chunks of keys, while the next chunk is summed separately.
#ifndef GIWA_ATTENTION_SUMS_CHUNKS_CUH
#define GIWA_ATTENTION_SUMS_CHUNKS_CUH

#include <giwa/attention/split_fp16/exponents.cuh>
#include <giwa/attention/sums/row_sums.cuh>

namespace giwa::inline GIWA_ABI::detail {

// A chunk is a split of a row's keys in attention_forward, where the word split stands for fp32 as two fp16 numbers.

/// The partial of a thread's rows. `QueryRows` computes a chunk (sm90_query_rows).
template <class QueryRows>
struct earlier_chunks {
  using map = typename QueryRows::output_registers::map;
  static constexpr int rows = map::rows;
  local_partial<map> partial;
  volatile int exponent_of_scores, exponent_of_values;
  volatile bool has_nonfinite;

  GIWA_DEVICE void save(const QueryRows& chunk) {
    partial.save(chunk.softmax.m, chunk.softmax.l, chunk.o.value);
    exponent_of_scores = chunk.exponents.scores, exponent_of_values = chunk.exponents.values;
    has_nonfinite = chunk.has_nonfinite;
  }

  /// Merges the partial into the state of the current chunk, in fp32.
  template <class Block, class Steps>
  GIWA_DEVICE void add_to(const Block& block, QueryRows& chunk, const Steps& steps) const {
    float earlier_m[rows], earlier_l[rows], of_earlier[rows], of_chunk[rows];
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) earlier_m[r] = partial.m[r], earlier_l[r] = partial.l[r];
    const split_exponents earlier{exponent_of_scores, exponent_of_values};
    if constexpr (QueryRows::is_split) chunk.exponents.convert_scores(earlier, steps, earlier_m);
    chunk.softmax.merge(earlier_m, earlier_l, steps.scale_log2(), of_earlier, of_chunk);
    if constexpr (QueryRows::is_split) chunk.exponents.convert_values(earlier, of_earlier);
    merge_outputs<map>(partial.o, of_earlier, chunk.o.value, of_chunk, chunk.o.value);
    const bool earlier_nonfinite = has_nonfinite;
    chunk.has_nonfinite =
        block.any(chunk.has_nonfinite | earlier_nonfinite);  // by a vote, so that branches on it are uniform
  }
};

/// O of earlier chunks, for a kernel whose softmax runs on over all keys (forward_sm80.cuh); relative to m, in local
/// memory as above. Its loops are rolled, or in steps that a barrier separates: otherwise ptxas loads far ahead, and
/// spills registers of the main loop.
template <class QueryRows>
struct earlier_output {
  using map = typename QueryRows::output_registers::map;
  static constexpr int rows = QueryRows::softmax_state::rows, registers = QueryRows::output_registers::registers;
  volatile float m[rows], o[registers];
  volatile int exponent_of_scores, exponent_of_values;

  /// Takes over the sums of the current chunk, which begin again at 0. `first`: there is no earlier chunk.
  template <class Block, class Steps>
  GIWA_DEVICE void take_from(const Block& block, QueryRows& current, const Steps& steps, bool first) {
    if (first) {
#pragma unroll 1
      for (int i = 0; i < registers; ++i) o[i] = 0;
    } else {
      rescale(current, steps);
    }
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) {
      o[i] = o[i] + current.o.value[i];
      if (i % 4 == 3) block.sync_warp();
    }
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m[r] = current.softmax.m[r];
    exponent_of_scores = current.exponents.scores, exponent_of_values = current.exponents.values;
    current.o.fill(0);
  }

  /// Adds the earlier chunks to O of the last one.
  template <class Steps>
  GIWA_DEVICE void add_to(QueryRows& current, const Steps& steps) {
    rescale(current, steps);
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) current.o.value[i] += o[i];
  }

 private:
  /// Makes o relative to the current m.
  template <class Steps>
  GIWA_DEVICE void rescale(const QueryRows& current, const Steps& steps) {
    float earlier_m[rows], factor[rows], of_current[rows];
    const float no_l[rows]{};
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) earlier_m[r] = m[r];
    const split_exponents earlier{exponent_of_scores, exponent_of_values};
    if constexpr (QueryRows::is_split) current.exponents.convert_scores(earlier, steps, earlier_m);
    auto softmax = current.softmax;
    softmax.merge(earlier_m, no_l, steps.scale_log2(), factor, of_current);  // of_current is 1: m only grows
    if constexpr (QueryRows::is_split) current.exponents.convert_values(earlier, factor);
    volatile float factors[rows];
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) factors[r] = factor[r];
#pragma unroll 1
    for (int i = 0; i < registers; ++i) o[i] = o[i] * factors[map::slot(i)];
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
