// SPDX-License-Identifier: MIT
// What the caller of attention_cached says: a cache of keys and values, contiguous or in pages, and the options.
#ifndef GIWA_ATTENTION_PROBLEM_CACHE_HPP
#define GIWA_ATTENTION_PROBLEM_CACHE_HPP

#include <giwa/attention/problem/options.hpp>
#include <giwa/attention/problem/rows_656.hpp>
#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI {

/// Which pages of the cache a sequence has, in the order of its keys: page n of sequence b is number indices[first(b) +
/// n] of the cache's first dimension. Every array is read by the kernel when it runs.
///
/// A block table, (sequences, stride), with a row of indices for each sequence, as in vLLM and FlashAttention:
/// `page_table{.indices = table, .stride = stride, .most = stride}`. Lists one after the other, as in FlashInfer:
/// `page_table{.indices = list, .offsets = offsets, .most = n}`. Sequences may share pages.
///
/// Only the indices of pages that contain keys within the length are read. An index outside the cache is a page of
/// zeros, and no memory is accessed for it.
struct page_table {
  const int* indices = nullptr;  ///< numbers of pages, device memory; null: the cache has no pages
  int64 stride = 0;              ///< without offsets, first(b) = b * stride; with 0, all sequences have the same pages
  /// (sequences + 1), device memory: first(b) = offsets[b], and sequence b has at most offsets[b + 1] - offsets[b]
  /// pages. They must not reach past the end of `indices`. Null: the stride counts.
  const int* offsets = nullptr;
  /// Pages of one sequence, at most, from 1 on: with the page size it bounds the lengths. Entries of a list past that
  /// number do not count.
  int64 most = 0;
};

/// The scales of an 8-bit cache: an element stands for its value times the scale of its key and head. An empty view is
/// a scale of 1. A dimension of size 1 serves all sequences or pages, all keys, or all heads.
struct cache_scales {
  tensor_view<const float, 3> k{};  ///< (sequences or pages, keys of one, kv heads), device memory
  tensor_view<const float, 3> v{};  ///< (sequences or pages, keys of one, kv heads), device memory
};

/// Keys and values of all sequences, with room for more. T is const or not: append_to_cache writes, attention_cached
/// reads.
///
/// Contiguous: k and v have one element of the first dimension for each sequence, (sequences, keys, kv heads, head
/// size). In pages: (pages, keys of a page, kv heads, head size), with a page_table, and any page size from 1 on.
/// Strides give every layout: heads before keys, padding, or the layers of a model interleaved. The last stride is 1.
///
/// `lengths` is read by the kernel when it runs, so a captured graph may be replayed with other lengths. A length below
/// 0 counts as 0; one beyond the keys that the tensor or the page table gives a sequence is cut to them. Keys past the
/// length do not affect the result, whatever they contain.
template <class T>
struct kv_cache {
  tensor_view<T, 4> k;           ///< (sequences, keys, kv heads, head size) or (pages, keys of a page, …)
  tensor_view<T, 4> v{};         ///< as k, with the head size of v; may be the first columns of k; rows_656 have none
  page_table pages{};            ///< which pages each sequence has; without indices the cache is contiguous
  const int* lengths = nullptr;  ///< (sequences), device memory: keys of each sequence; null: all, without pages only
  int64 sequences = 0;           ///< with a page table, the number of sequences; else 0
  cache_scales scales{};         ///< of 8-bit elements

  /// The same cache, for reading.
  template <class Const>
    requires(stdlib::same_as<Const, const T> && !stdlib::same_as<Const, T>)
  GIWA_HOST_DEVICE constexpr operator kv_cache<Const>() const {
    return {k, v, pages, lengths, sequences, scales};
  }
};

/// A view of o of an earlier call: (batch, queries, heads, head size of v), or packed (all rows, heads, head size of
/// v). Its elements are those of o of the call that gets it.
class prior_output {
 public:
  /// None.
  constexpr prior_output() = default;
  /// A view with elements of fp16, bf16 or fp32.
  template <class O, int Rank>
    requires((Rank == 3 || Rank == 4) && floating_element<stdlib::remove_const_t<O>>)
  GIWA_HOST_DEVICE constexpr prior_output(const tensor_view<O, Rank>& v)
      : data_(v.data()), significand_bits_(precision_of<stdlib::remove_const_t<O>>::significand_bits), rank_(Rank) {
    extents_[0] = 1;
    for (int d = 0; d < Rank; ++d) {
      extents_[4 - Rank + d] = v.extent(d);
      strides_[4 - Rank + d] = v.stride(d);
    }
  }

  /// Returns whether no view was given.
  GIWA_HOST_DEVICE constexpr bool empty() const { return rank_ == 0; }
  /// Returns the rank of the view: 3 or 4, 0 for none.
  GIWA_HOST_DEVICE constexpr int rank() const { return rank_; }
  /// Returns whether the elements are O.
  template <class O>
  GIWA_HOST_DEVICE constexpr bool holds() const {
    return significand_bits_ == precision_of<O>::significand_bits;
  }
  /// Returns the view with a batch, of size 1 for packed rows. The elements must be O.
  template <class O>
  GIWA_HOST_DEVICE tensor_view<const O, 4> view() const {
    return {static_cast<const O*>(data_), extents_, strides_};
  }

 private:
  const void* data_ = nullptr;
  index<4> extents_{}, strides_{};
  int significand_bits_ = 0;  // differs between the element types
  int rank_ = 0;
};

/// The result of attention to keys that are not in the cache, a shared prefix for example. It is merged with that of
/// the cache's keys as merge_attention() would do, without another launch: the call reads o of the prior where it writes o.
struct attention_prior {
  prior_output o{};  ///< its output; may be the o that the call writes, the same view
  /// Its lse: natural logarithms, (batch, heads, queries), packed (1, heads, all rows). -inf where there were no keys;
  /// o is not read there. May be the lse that the call writes, the same view.
  tensor_view<const float, 3> lse{};
};

/// How attention_cached() divides the keys of latent rows among multiprocessors where a sequence has more than 32 queries times heads.
enum class division : unsigned char {
  /// By 2048 keys, so that the bits of a sequence do not depend on the others.
  by_sequence,
  /// By a number that the host chooses for the call's number of sequences, queries and heads, the room for keys and the GPU. Faster,
  /// and the bits depend on all of these, but neither on lengths nor on the workspace.
  by_batch
};

/// The rows (queries times heads) of a tile of latent rows. Kernels with different tiles sum in another order.
enum class latent_tile : unsigned char {
  by_rows,  ///< 16 rows for sequences with up to 32 rows, else 64
  rows_16,  ///< of all sequences
  rows_64   ///< the same, except where few_queries is the template argument
};

/// The options of attention_cached(): `{.lse = lse, .workspace = workspace}`.
struct cached_options {
  attention_scale scale{};  ///< multiplies q k^T; 1 / sqrt(head size) where none is given
  /// Receives the natural logarithm of the sum of e^score over the keys that are kept, fp32, -inf for a row without
  /// keys. (batch, heads, queries), for packed queries (1, heads, all rows). An empty view is not written.
  tensor_view<float, 3> lse{};
  /// (heads): the score of a virtual key of each head, whose value is 0. It counts in lse.
  tensor_view<const float, 1> sinks{};
  /// The diagonal of masks and score modifiers that leave theirs unset, and of user-defined ones. bottom_right if that
  /// is unset too.
  alignment align{};
  /// Scratch memory for this call alone until it is done, 16-byte aligned, or empty. Any size is correct and gives the
  /// same bits; workspace_bytes() is the largest that a call uses. Its contents do not matter.
  tensor_view<unsigned char, 1> workspace{};
  /// Which rows of packed q and o each sequence has: q_offsets, count and max_q; the other members stay unset. Required for
  /// tensors of rank 3.
  giwa::sequences sequences{};
  /// The result for keys that are not in the cache. They count in o and lse, but not for masks and the diagonal.
  attention_prior prior{};
  giwa::division division{};        ///< of the keys of latent rows
  giwa::latent_tile latent_tile{};  ///< rows of their tiles
};

}  // namespace giwa::inline GIWA_ABI

#endif
