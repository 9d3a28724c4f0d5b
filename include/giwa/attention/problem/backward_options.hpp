// SPDX-License-Identifier: MIT
// The options of attention_backward, and the workspace that it needs on a stream.
#ifndef GIWA_ATTENTION_PROBLEM_BACKWARD_OPTIONS_HPP
#define GIWA_ATTENTION_PROBLEM_BACKWARD_OPTIONS_HPP

#include <giwa/attention/problem/bias_gradient.hpp>
#include <giwa/attention/problem/gradient.hpp>
#include <giwa/attention/problem/options.hpp>
#include <giwa/attention/problem/problem.hpp>
#include <giwa/attention/problem/workspace.hpp>
#include <giwa/attention/split_fp16/layout.hpp>

namespace giwa::inline GIWA_ABI {

/// The options of attention_backward(): `{.lse = lse, .workspace = workspace}`. The scale, the sinks, the alignment and the
/// sequences must be those of the forward call.
struct attention_backward_options {
  attention_scale scale{};  ///< multiplies q k^T; 1 / sqrt(head size) where none is given
  /// What attention_forward wrote there, required: fp32, (batch, heads, queries), for packed sequences (1, heads, all
  /// queries).
  tensor_view<const float, 3> lse{};
  tensor_view<const float, 1> sinks{};  ///< (heads), or empty; see attention_options
  alignment align{};                    ///< of the diagonal; see attention_options
  /// Scratch memory for this call alone until it is done, 16-byte aligned. On a stream at least least_workspace_bytes() bytes
  /// are required; with workspace_bytes() the call is faster, and fp32 runs on tensor cores on Hopper. Its bytes for
  /// `any_order` make calls in any order faster still where kv heads are few, or without a mask and not packed; those for
  /// `split_heads` are what that option needs. Not used on giwa::host. Its contents do not matter.
  tensor_view<unsigned char, 1> workspace{};
  giwa::sequences sequences{};  ///< where the rows of each sequence are; required for tensors of rank 3
  /// The gradient of the loss with respect to lse, shaped like lse, or empty: lse did not enter the loss.
  tensor_view<const float, 3> dlse{};
  tensor_view<float, 1> dsinks{};  ///< (heads): receives the gradient of the sinks; not computed where empty
  /// Adds to dq, dk, dv and dsinks instead of overwriting them. dq, dk and dv must be fp32 then: sums in 16 bits would
  /// be rounded in each call.
  bool accumulate = false;
  /// Lets the parts of dq, and those of the gradient of a bias that sequences or heads share, be added in any order where one
  /// kernel computes all gradients (workspace_bytes()): the last bits of these then change from run to run, and those of dk and
  /// dv may depend on the batch and on the GPU's number of multiprocessors. Without it every run gives the same bits.
  bool any_order = false;
  /// Lets blocks split the query heads of a kv head where few kv heads and keys would leave multiprocessors idle, on Hopper in
  /// fp16 and bf16 up to head size 128, with the bytes of workspace_bytes() for it. Every run still gives the same bits, but those
  /// of dk and dv then depend on how many sequences, keys and kv heads the call has. `any_order` does so too.
  bool split_heads = false;
};

namespace detail {

/// What the backward pass needs of a row of q besides the tensors.
struct alignas(8) row_terms {
  float lse;    // natural logarithm; +inf where the row sees no key, so that e^(score - lse) is 0
  float delta;  // sum of dout * o over the row, minus dlse
};

/// The rows of q of all heads.
GIWA_HOST_DEVICE constexpr int64 rows_of_heads(const attention_problem& p) {
  return saturated_product(p.seq_q < 0 ? p.rows_q : saturated_product(p.batch, p.seq_q), p.heads);
}

/// Whether one kernel computes all gradients for these head sizes, in 16 bits on GPUs that have it. k may not be narrower than
/// the columns that a consumer takes.
GIWA_HOST_DEVICE constexpr bool has_kernel_of_all(int64 head_size, int64 head_size_v) {
  return head_size <= 128 && head_size_v <= 128 && (head_size > 64 || head_size_v <= 64);
}
/// Whether the mma.sync kernel does: also for wider heads. A block of either has more shared memory than GPUs below 9.0 give it.
inline constexpr int64 all_gradients_bytes = gpu_traits::of(90).shared_bytes;
GIWA_HOST_DEVICE constexpr bool has_sm80_kernel_of_all(int64 head_size, int64 head_size_v) {
  return head_size <= 256 && head_size_v <= 256 && (head_size > 64 || head_size_v <= 64);
}

/// Sums of dk and dv in fp32 that blocks of the kernel of all gradients pass on. With few kv heads and keys, `sharers` work tiles
/// divide the query heads that read a tile of 128 keys; the last to end adds what all leave here. Otherwise `sharers` is 1, and
/// there is room, but for packed sequences, for work tiles that divide the queries of the last tiles of keys
/// (backward_schedules::divided_tiles).
struct shared_key_sums {
  static constexpr int rows_of_tile = shared_key_rows, warps = 8;
  // H200, 2026-11-24, fp16, 128, causal, TFLOP/s without sharing, with it, and with twice as many of both: 16/1 heads, 4 x 1024
  // 88, 212, 158; 32/8 heads, 1 x 4096 366, 439, 427.
  static constexpr int64 most_work_tiles = 512, most_sharers = 8;
  // The multiprocessors of an H100: divided work tiles are at most one round of the blocks.
  static constexpr int64 most_parts = 132;
  float* sums = nullptr;   // (kv heads, tiles, sharers, warps, floats_of_warp), or (parts, warps, floats_of_warp)
  int* arrived = nullptr;  // (kv heads, tiles, warps), or (divided tiles, warps): how many sharers have left their sums
  int sharers = 1;
  int64 tiles = 0;     // of keys of all sequences
  int64 counters = 0;  // of `arrived`
  int64 parts = 0;     // of `sums`, if they are of divided work tiles

  GIWA_HOST_DEVICE static constexpr int floats_of_warp(int64 head_size, int64 head_size_v) {
    return rows_of_tile / warps * static_cast<int>(round_up(head_size, int64{16}) + round_up(head_size_v, int64{16}));
  }
  GIWA_HOST_DEVICE static constexpr int64 tiles_of(const attention_problem& p) {
    return p.seq_k < 0 ? p.rows_k / rows_of_tile + p.batch
                       : saturated_product(p.batch, ceil_div(p.seq_k, int64{rows_of_tile}));
  }
  /// Each sharer but the last has the same number of heads, and the last not more.
  GIWA_HOST_DEVICE static constexpr int sharers_of(const attention_problem& p) {
    const int64 tiles_of_heads = saturated_product(tiles_of(p), p.kv_heads);
    if (tiles_of_heads == 0) return 1;
    const int64 group = p.heads / p.kv_heads, fit = most_work_tiles / tiles_of_heads;
    const int64 most = fit < most_sharers ? fit : most_sharers;
    if (most < 2 || group < 2) return 1;
    return static_cast<int>(ceil_div(group, ceil_div(group, most)));
  }
  /// `divides`: there may be work tiles that divide queries.
  GIWA_HOST_DEVICE static constexpr shared_key_sums take(workspace_layout& layout, const attention_problem& p,
                                                         bool divides) {
    const int sharers = sharers_of(p);
    const int64 tiles = tiles_of(p), all = saturated_product(tiles, p.kv_heads);
    if (sharers == 1 && (!divides || p.seq_q < 0 || p.seq_k < 0)) return {};
    const int64 divided = sharers > 1 || all < most_parts / 2 ? all : most_parts / 2;  // of `all`
    const int64 parts = sharers > 1                       ? divided * sharers
                        : all < most_parts / most_sharers ? all * most_sharers
                                                          : most_parts;
    float* const sums =
        layout.take_lines<float>(saturated_product(parts * warps, floats_of_warp(p.head_size, p.head_size_v)));
    return {sums, layout.take<int>(divided * warps), sharers, tiles, divided * warps, parts};
  }
};

/// Turns of the sequences or heads that share the gradient of a bias, which the kernel of all gradients adds in their order: how many
/// have added to 16 keys and 64 queries, for each sequence or head that does not share it.
struct bias_order {
  static constexpr int keys = 16, queries = 64;
  int* added = nullptr;
  int groups_of_keys = 0, groups_of_queries = 0, count = 0;
  bool sums = false,
       in_turn = false;  // whether several scores of the call have the same element, and add to it in order

  /// Of whole tiles of 128 x 128. None of packed sequences, nor where an int does not number them.
  GIWA_HOST_DEVICE static constexpr bias_order take(workspace_layout& layout, const attention_problem& p) {
    if (p.seq_q < 0 || p.seq_k < 0) return {};
    const int64 of_keys = ceil_div(p.seq_k, int64{128}) * (128 / keys),
                of_queries = ceil_div(p.seq_q, int64{128}) * (128 / queries);
    const int64 all = saturated_product(saturated_product(of_keys, of_queries), p.batch < p.heads ? p.heads : p.batch);
    if (all > 0x7fffffff) return {};
    return {layout.take<int>(all), static_cast<int>(of_keys), static_cast<int>(of_queries), static_cast<int>(all)};
  }
};

/// When all gradients come from the kernel with tiles of dq_parts::long_rows queries: head sizes 96 and 128, a full or causal mask, no
/// score modifier, and from so many queries and keys on, unless these tiles have 2 % more rows. H200, 2026-11-29, fp16, 16 heads, times
/// as fast as tiles of 64, 1024, 2048, 4096, 8192, 16384, 32768 tokens: 128 full 1.00, 1.03, 1.05, 1.06, 1.09, 1.05, causal 0.93, 0.95,
/// 0.99, 1.03, 1.06, 1.08; 96 up to 16384 full 1.01, 1.03, 1.05, 1.07, 1.08, causal 0.90, 0.94, 0.98, 1.02, 1.05. 128, full, 8192 queries
/// with 77, 256, 512, 1024 keys 0.98, 1.00, 1.02, 1.05.
struct long_sequences {
  static constexpr int64 full = 2048, causal = 8192, keys = 256;
  GIWA_HOST_DEVICE static constexpr bool has_kernel(int64 head_size, int64 head_size_v) {
    return head_size == head_size_v && (head_size == 96 || head_size == 128);
  }
  GIWA_HOST_DEVICE static constexpr bool suits(int64 queries, int64 least) {
    const auto rest = [&](int64 rows) { return (rows - queries % rows) % rows; };  // of the last tile
    return queries >= least && rest(dq_parts::long_rows) - rest(64) <= queries / 50;
  }
  GIWA_HOST_DEVICE static constexpr int64 tiles_of(int64 sequences, int64 queries) {
    return saturated_product(sequences, ceil_div(queries, int64{dq_parts::long_rows}));
  }
};

/// What blocks of the kernel of all gradients share, so that they pass sums on.
enum class key_sharing : int { none, heads, heads_and_queries };
GIWA_HOST_DEVICE constexpr key_sharing sharing_of(bool any_order, bool split_heads) {
  return any_order ? key_sharing::heads_and_queries : split_heads ? key_sharing::heads : key_sharing::none;
}

/// The work tiles of the kernel of all gradients from `first` on are divided by queries into `parts` work tiles each.
struct last_work_tiles {
  int first, parts;
};

/// The tiles of all sequences, of keys or of queries, where only the device knows the lengths (list_tiles), with the rows of the sequence.
struct alignas(16) listed_tile {
  int sequence, tile;
  int first_query_row = 0, first_key_row = 0, queries = 0, keys = 0;
};
struct tile_list {
  listed_tile* tiles = nullptr;
  int* count = nullptr;
  uint32 room = 0;
};

/// The parts of the workspace.
struct backward_workspace {
  static constexpr int counter_count = 4;
  row_terms* terms;       // (batch, heads, rows of q)
  int* counters;          // of the work tiles that are claimed in each launch
  float* parameter_sums;  // (batch, heads, rows of q, parameters of the score modifier)
  float* dq;              // (heads, tiles of dq_parts, parts of a tile, 64 x 64), or null
  int* added;      // of each part: 1 + the last tile of keys that has been added; in any order, 1 + the first or 1
  int64 tiles;     // of dq_parts, of a head
  bool any_order;  // the tiles of keys after the first are added as they come
  shared_key_sums of_keys;
  tile_list keys, queries;  // tiles of shared_key_rows keys, and of dq_parts
  int together = 1;         // sequences of which tiles of keys alternate

  GIWA_HOST_DEVICE static constexpr backward_workspace take(workspace_layout& layout, const attention_problem& p,
                                                            int64 parameters, bool with_dq, key_sharing sharing) {
    const int64 rows = rows_of_heads(p);
    row_terms* const terms_of_rows = layout.take<row_terms>(rows);
    int* const counters_of_launches = layout.take<int>(counter_count);
    float* const sums = parameters == 0 ? nullptr : layout.take<float>(saturated_product(rows, parameters));
    if (!with_dq) return {terms_of_rows, counters_of_launches, sums, nullptr, nullptr, 0, false, {}, {}, {}};
    const int64 rows_of_tile = dq_parts::rows_of_tile(p.head_size, p.head_size_v);
    const int64 tiles =
        p.seq_q < 0 ? p.rows_q / rows_of_tile + p.batch : saturated_product(p.batch, ceil_div(p.seq_q, rows_of_tile));
    const int64 parts = saturated_product(saturated_product(tiles, p.heads), dq_parts::of_tile(p.head_size));
    int64 floats = saturated_product(parts, dq_parts::floats);
    if (long_sequences::has_kernel(p.head_size, p.head_size_v) &&
        long_sequences::suits(p.seq_q, long_sequences::full)) {
      const int64 long_parts =
          saturated_product(saturated_product(long_sequences::tiles_of(p.batch, p.seq_q), p.heads), 2);
      const int64 others = saturated_product(long_parts, dq_parts::long_floats);
      if (floats < others) floats = others;
    }
    float* const dq = layout.take_lines<float>(floats);
    int* const added = layout.take<int>(parts);
    shared_key_sums shared;
    if (sharing != key_sharing::none)
      shared = shared_key_sums::take(layout, p, sharing == key_sharing::heads_and_queries);
    const auto list = [&](int64 room) {
      return tile_list{layout.take<listed_tile>(room), layout.take<int>(1), static_cast<uint32>(room)};
    };
    const tile_list keys = list(shared_key_sums::tiles_of(p)), queries = list(tiles);
    return {terms_of_rows, counters_of_launches, sums, dq, added, tiles, false, shared, keys, queries};
  }
};

/// Whether fp32 gradients run on tensor cores for these head sizes, on GPUs that have the kernels.
GIWA_HOST_DEVICE constexpr bool has_split_kernels(int64 head_size, int64 head_size_v) {
  return head_size <= 128 && head_size_v <= 128;
}

/// The tensors that a backward call in fp32 reads, as split fp16: the last part of its workspace.
struct split_backward_tensors {
  split_rows q, k, v, dout;

  GIWA_HOST_DEVICE static constexpr split_backward_tensors take(workspace_layout& layout, const attention_problem& p) {
    const bool packed = p.seq_q < 0;
    const int64 sequences = packed ? 1 : p.batch, queries = packed ? p.rows_q : p.seq_q,
                keys = p.seq_k < 0 ? p.rows_k : p.seq_k;
    return {split_rows::take(layout, sequences, p.heads, queries, p.head_size),
            split_rows::take(layout, sequences, p.kv_heads, keys, p.head_size),
            split_rows::take(layout, sequences, p.kv_heads, keys, p.head_size_v),
            split_rows::take(layout, sequences, p.heads, queries, p.head_size_v)};
  }
};

/// Whether a GPU of this compute capability may run a kernel that sums dq in the workspace. 0: a GPU that is not known.
GIWA_HOST_DEVICE constexpr bool sums_dq(const attention_problem& p, int capability) {
  const gpu_traits gpu = gpu_traits::of(capability);
  if (!are_on_tensor_cores(p.element_bytes)) return false;
  if (capability != 0 && gpu.shared_bytes < all_gradients_bytes) return false;
  return gpu.wgmma ? has_kernel_of_all(p.head_size, p.head_size_v) : has_sm80_kernel_of_all(p.head_size, p.head_size_v);
}

/// Whether it may run the Hopper kernel of all gradients, whose work tiles share keys.
GIWA_HOST_DEVICE constexpr bool shares_keys(const attention_problem& p, int capability) {
  return are_on_tensor_cores(p.element_bytes) && (capability == 0 || gpu_traits::of(capability).wgmma) &&
         has_kernel_of_all(p.head_size, p.head_size_v);
}

/// The bytes of a call's workspace, with what only the fastest kernels need or without. `adds_bias`: the gradient of a bias is added.
GIWA_HOST_DEVICE constexpr int64 backward_bytes(const attention_problem& p, int64 parameters, bool fastest,
                                                int capability = 0, bool any_order = false, bool split_heads = false,
                                                bool adds_bias = false) {
  if (!check_sizes(p, 0).ok() || p.element_bytes == element_traits<e4m3>::bytes) return 0;
  workspace_layout layout;
  backward_workspace::take(layout, p, parameters, fastest && sums_dq(p, capability),
                           shares_keys(p, capability) ? sharing_of(any_order, split_heads) : key_sharing::none);
  if (fastest && are_split(p.element_bytes) && has_split_kernels(p.head_size, p.head_size_v) &&
      (capability == 0 || gpu_traits::of(capability).wgmma))
    split_backward_tensors::take(layout, p);
  if (fastest && adds_bias && shares_keys(p, capability)) bias_order::take(layout, p);
  return layout.bytes;
}

/// Whether a kernel that sums dq in the workspace gives what a score modifier takes: nothing, or a bias on Hopper.
template <class Score>
GIWA_HOST_DEVICE constexpr bool sums_dq_with(const attention_problem& p, int capability) {
  return !gradient_of<Score>::wanted || (tiled_bias<Score>::exists && shares_keys(p, capability));
}

/// The bytes of workspace with which a call is fastest, and those that it requires.
///@{
template <score_modifier Score>
GIWA_HOST_DEVICE constexpr int64 backward_workspace_bytes(const attention_problem& p, const Score&, int capability = 0,
                                                          bool any_order = false, bool split_heads = false) {
  return backward_bytes(p, gradient_of<Score>::parameters, sums_dq_with<Score>(p, capability), capability, any_order,
                        split_heads, tiled_bias<Score>::adds);
}
GIWA_HOST_DEVICE constexpr int64 backward_workspace_bytes(const attention_problem& p, int capability = 0,
                                                          bool any_order = false, bool split_heads = false) {
  return backward_bytes(p, 0, true, capability, any_order, split_heads);
}
template <class Score = plain_score>
GIWA_HOST_DEVICE constexpr int64 least_backward_workspace_bytes(const attention_problem& p, const Score& = {}) {
  return backward_bytes(p, gradient_of<Score>::parameters, false);
}
///@}
}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
