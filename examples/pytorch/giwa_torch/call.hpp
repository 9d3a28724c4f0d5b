// SPDX-License-Identifier: MIT
// What the binding to PyTorch hands to a kernel library: one call, as plain data. Neither side's headers are needed for it.
#ifndef GIWA_TORCH_CALL_HPP
#define GIWA_TORCH_CALL_HPP

#include <cstddef>
#include <cstdint>

namespace giwa_torch {

enum pass : int { pass_forward, pass_backward, pass_cached, pass_append, pass_block_map };
// The variant of a library of pass_append is append_tables_of_float or 0, of pass_block_map 0; of the others, score_flag.
enum append_flag : int { append_tables_of_float = 1 };
enum mask_kind : int { mask_full, mask_causal, mask_band, mask_tensor, mask_data, mask_blocks };
enum score_flag : int {
  score_softcap = 1,
  score_alibi = 2,
  score_bias = 4,
  score_alibi_gradient = 8,
  score_bias_gradient = 16,
  score_dropout = 32,
  score_bias_float = 64,  // the bias is float, and q is not
};
// Joined with the flags of a library of pass_cached and of pass_append, unless the elements of the cache are those of q.
enum cache_flag : int { cache_e4m3 = 128, cache_int8 = 256, cache_int4 = 512 };

struct tensor {
  void* data;                         // null: there is none
  std::int64_t sizes[4], strides[4];  // (batch, length, heads, head size); packed: a batch of 1. Strides in elements
};

struct call {
  tensor q, k, v, o;
  float* lse;  // (batch, heads, length)
  void* stream;
  int threads;  // of the CPU, at most
  void* workspace;
  std::int64_t workspace_bytes;
  // Which keys a query sees: `left` before its diagonal and `right` after it, and those that the mask keeps.
  int left, right;
  bool bottom_right;
  tensor mask;  // of bool
  // Packed bits: of each sequence the keys of a query, and the first byte; without offsets all sequences have the same bits.
  const unsigned char* bits;
  const int *bit_keys, *bit_offsets;
  const int *q_segments, *k_segments;  // ids of documents
  std::int64_t q_segment_stride, k_segment_stride;
  // A map of blocks, in whose partial blocks the masks above are asked; and the lists that it is made from, full and partial.
  void* block_words;
  int blocks[7];                 // batch, heads, queries, keys, a block's queries and keys, by_keys
  tensor counts[2], indices[2];  // (batch, heads, rows of blocks, 1 or capacity), int
  // Scores.
  bool has_scale;
  double scale;
  float softcap;
  tensor bias;  // of the element type, or float
  const float* slopes;
  std::int64_t slopes_stride;
  const float* sinks;
  float dropout;  // the probability
  const std::uint64_t* dropout_seed;
  // Sequences of different lengths.
  const int *q_offsets, *k_offsets, *q_lengths, *k_lengths, *k_batch_index;
  std::int64_t sequences, max_q;
  // Gradients; those without data are not computed.
  tensor dout, dq, dk, dv, dbias;
  const float* dlse;
  float *dslopes, *dsinks;
  bool any_order;  // of the sums of dq
  // A cache, (sequences or pages, keys of one, kv heads, head size), whose lengths are k_lengths.
  tensor k_cache, v_cache;
  // Of float: of an 8-bit cache, (sequences or pages, keys of one, kv heads, 1); of q, k and v of e4m3, (sequences or 1, 1, heads, 1).
  tensor q_scales, k_scales, v_scales;
  bool finds_scales;  // append_to_cache() writes k_scales and v_scales
  const int* pages;   // (sequences, pages_most)
  std::int64_t pages_stride, pages_most;
  // Rows k and v appended to it; q is rotated into o. Of each row: its position, its slot in the cache.
  const int *positions, *slots;
  const void *cos, *sin;  // (positions, pairs)
  std::int64_t table_sizes[2], cos_strides[2], sin_strides[2];
  bool interleaved;
};

}  // namespace giwa_torch

#endif
