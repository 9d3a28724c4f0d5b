// SPDX-License-Identifier: MIT
// The parameters of the kernels of attention_cached, the sizes of one sequence, and where its keys lie.
#ifndef GIWA_ATTENTION_PROBLEM_CACHED_PARAMS_HPP
#define GIWA_ATTENTION_PROBLEM_CACHED_PARAMS_HPP

#include <giwa/attention/problem/cached_views.hpp>
#include <giwa/attention/problem/checks.hpp>
#include <giwa/attention/problem/key_selection.hpp>
#include <giwa/attention/problem/mask_combinators.hpp>
#include <giwa/attention/problem/masks.hpp>
#include <giwa/numeric/fast_division.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// One sequence of a call.
struct cached_sequence {
  int batch;            // number of the sequence; with a selection, of the query
  int first_query_row;  // row of q and o of its first query
  int queries, keys;
  int offset;         // diagonal - query; with a selection, the end of the numbers that name a row or key
  int q_batch;        // index into the batch of q and o: 0 for packed queries
  int64 first_entry;  // of its pages in the page table; with a selection of keys without pages, the sequence
};

/// Where a key lies: element of the cache's first dimension, -1 for a key that reads as zeros, and row in it.
struct cache_row {
  int element, row;
};

/// The sequence whose rows contain a packed row, -1 for none. With any numbers in the offsets the search ends, at a sequence
/// that contains the row or at none.
GIWA_HOST_DEVICE inline int64 sequence_of_row(const packed_queries& packed, int64 row) {
  const int* const offsets = packed.offsets;
  int64 first = 0;
  for (int64 end = packed.count; end - first > 1;) {
    const int64 middle = (first + end) / 2;
    (offsets[middle] <= row ? first : end) = middle;
  }
  return packed.count > 0 && offsets[first] <= row && row < offsets[first + 1] ? first : -1;
}

/// The entries of a page table that a sequence has: `count` from `first` on.
struct page_entries {
  int64 first, count;
};
GIWA_HOST_DEVICE inline page_entries entries_of(const page_table& pages, int64 sequence) {
  if (pages.offsets == nullptr) return {sequence * pages.stride, pages.most};
  const int64 first = pages.offsets[sequence] < 0 ? 0 : pages.offsets[sequence];
  const int64 count = pages.offsets[sequence + 1] - first;
  return {first, count < 0 ? 0 : count < pages.most ? count : pages.most};
}
/// A page's number, -1 if it is none of the cache's `page_count`.
GIWA_HOST_DEVICE inline int valid_page(int number, int64 page_count) {
  return number >= 0 && number < page_count ? number : -1;
}
/// The number of the page of an entry, -1 if it is none of the cache's `page_count`.
GIWA_HOST_DEVICE inline int page_at(const page_table& pages, int64 entry, int64 page_count) {
  return valid_page(pages.indices[entry], page_count);
}

/// Where the scale of a key of a head is; `scales` is not empty.
GIWA_HOST_DEVICE inline const float* scale_at(const tensor_view<const float, 3>& scales, const cache_row& key,
                                              int kv_head) {
  const auto offset = [&](int d, int i) { return scales.extent(d) == 1 ? 0 : i * scales.stride(d); };
  return scales.data() + (offset(0, key.element) + offset(1, key.row) + offset(2, kv_head));
}

/// The parameters of every kernel and of the CPU path, after the checks. What is read from the device's memory
/// (offsets, lengths, page numbers) is not checked: out of range it gives no rows or zeros, never memory outside the
/// tensors.
template <class T, class Element, class O, class Mask, class Score>
struct cached_params {
  static constexpr bool selects = selects_keys<Mask>;
  using views_type = stdlib::conditional_t<selects, selected_views<T, Element, O>, cached_views<T, Element, O>>;
  views_type views;
  Mask mask;
  Score score;
  float scale;
  tensor_view<float, 3> lse;  // (batch, heads, queries), or empty
  const float* sinks;         // (heads) or null
  int64 sink_stride;
  // (batch, queries, heads, head size of v) and (batch, heads, queries), or both empty. They may be o and lse: a row's
  // prior is read before that row of o and lse is written.
  tensor_view<const O, 4> prior_o;
  tensor_view<const float, 3> prior_lse;
  unsigned char* workspace;  // or null
  int64 workspace_bytes;
  bool bottom_right;              // the offset of the diagonal is keys - queries, else diagonal_offset
  giwa::division division;        // of latent rows
  giwa::latent_tile latent_tile;  // the same
  int diagonal_offset;            // of all sequences
  int heads_per_kv;               // heads of q for each of k and v
  int capacity;                   // keys of one sequence, at most
  fast_divisor page_size;         // 1 without pages
  int most_queries = 2147483647;  // sequences with more have another launch (many_rows.hpp)

  /// Whether only the device knows how many queries and keys sequences have.
  GIWA_HOST_DEVICE bool is_ragged() const {
    const bool of_cache = views.cache.lengths != nullptr || views.cache.pages.offsets != nullptr;
    if constexpr (selects)
      return mask.counts != nullptr || (mask.names != key_numbers::pool_rows && (views.has_offsets() || of_cache));
    else
      return views.is_packed() || of_cache;
  }
  /// Heads of q for each head of k and v that has a scale. The keys of two heads may be seen as one head's (pairs_of_heads).
  GIWA_HOST_DEVICE int heads_of_scale() const {
    return views.cache.scales.v.extent(2) > views.cache.v.extent(2) ? heads_per_kv / 2 : heads_per_kv;
  }
  GIWA_HOST_DEVICE bool has_prior() const { return prior_lse.data() != nullptr; }
  /// Sizes, and what the options say of latent rows.
  GIWA_HOST_DEVICE constexpr cached_problem problem() const {
    cached_problem p = views.problem();
    p.division = division, p.latent_tile = latent_tile;
    return p;
  }

  /// Keys of sequence b.
  GIWA_HOST_DEVICE int keys_of(int b) const {
    int64 most = capacity;
    if constexpr (selects) most = views.keys_of_sequence();
    if (views.is_paged() && views.cache.pages.offsets != nullptr)
      most = entries_of(views.cache.pages, b).count * page_size.divisor();
    if (views.cache.lengths == nullptr) return static_cast<int>(most);
    const int length = views.cache.lengths[b];
    return length < 0 ? 0 : length < most ? length : static_cast<int>(most);
  }

  /// Sequence b.
  GIWA_HOST_DEVICE cached_sequence at(int b) const {
    if constexpr (selects) return query_at(b);
    cached_sequence s{b, 0, static_cast<int>(views.q.extent(1)), keys_of(b), diagonal_offset, b, 0};
    if (views.is_packed()) {
      const int rows = s.queries;
      const auto cut = [](int x, int most) { return x < 0 ? 0 : x > most ? most : x; };
      const int end = cut(views.packed.offsets[b + 1], rows);
      s.first_query_row = cut(views.packed.offsets[b], end);
      s.queries = end - s.first_query_row;
      s.q_batch = 0;
    }
    if (bottom_right) s.offset = s.keys - s.queries;
    if (views.is_paged()) s.first_entry = entries_of(views.cache.pages, b).first;
    return s;
  }

  /// The number of page n of a sequence, -1 if it is not in the cache. n is the page of one of the sequence's keys:
  /// entries past that are not read.
  GIWA_HOST_DEVICE int page(const cached_sequence& s, int n) const {
    return page_at(views.cache.pages, s.first_entry + n, views.cache.k.extent(0));
  }

  /// Where a key of a sequence lies, 0 <= key < s.keys.
  GIWA_HOST_DEVICE cache_row row_of(const cached_sequence& s, int key) const {
    if constexpr (selects) return selected_row(s, key);
    if (!views.is_paged()) return {s.batch, key};
    const int n = static_cast<int>(int64{key} / page_size);
    return {page(s, n), key - n * static_cast<int>(page_size.divisor())};
  }

  /// Where the number at a place of the list of a query is, and where the key that a number names lies. `end` and `first_entry`: the
  /// members `offset` and `first_entry` of the query.
  ///@{
  GIWA_HOST_DEVICE const int* place_of_number(const cached_sequence& s, int place) const {
    return mask.indices + (s.batch * mask.stride + place);
  }
  GIWA_HOST_DEVICE cache_row row_of_number(int number, int end, int64 first_entry) const {
    if (!selection_mask::is_named(number, end)) return {-1, 0};
    const bool of_pool = mask.names == key_numbers::pool_rows;
    if (!of_pool && !views.is_paged()) return {static_cast<int>(first_entry), number};
    const int n = static_cast<int>(int64{number} / page_size), row = number - n * static_cast<int>(page_size.divisor());
    return {of_pool ? n : page_at(views.cache.pages, first_entry + n, views.cache.k.extent(0)), row};
  }
  ///@}

 private:
  /// Query n of all, as a sequence whose keys are its list. Without rows if it belongs to no sequence.
  GIWA_HOST_DEVICE cached_sequence query_at(int n) const {
    const int queries = static_cast<int>(views.q.extent(1)), batch = n / queries;
    cached_sequence s{n, n - batch * queries, 1, capacity, 0, batch, 0};
    if (mask.counts != nullptr) {
      const int count = mask.counts[n];
      s.keys = count < 0 ? 0 : count < capacity ? count : capacity;
    }
    constexpr int64 most = 2147483647;
    if (mask.names == key_numbers::pool_rows) {
      const int64 rows = saturated_product(views.cache.k.extent(0), views.cache.k.extent(1));
      s.offset = static_cast<int>(rows < most ? rows : most);
      return s;
    }
    const int64 sequence = views.has_offsets() ? sequence_of_row(views.packed, n) : batch;
    if (sequence < 0) {
      s.queries = s.keys = 0;
      return s;
    }
    s.offset = keys_of(static_cast<int>(sequence));
    s.first_entry = views.is_paged() ? entries_of(views.cache.pages, sequence).first : sequence;
    return s;
  }
  GIWA_HOST_DEVICE cache_row selected_row(const cached_sequence& s, int place) const {
    return row_of_number(*place_of_number(s, place), s.offset, s.first_entry);
  }
};

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
template <class T, class Element, class O, class Mask, class Score>
cached_params<T, Element, O, Mask, Score> cached_params_of(const cached_views<T, Element, O>& views, const Mask& mask,
                                                           const Score& score, const cached_options& options) {
  const auto a = [&] {
    if constexpr (selects_keys<Mask>)
      return selected_views<T, Element, O>{views, mask.most};
    else
      return views;
  }();
  const bool has_rows = (a.is_paged() || selects_keys<Mask>)&&a.cache.k.extent(1) > 0;
  const alignment align = diagonal_of(mask, score, options.align);
  const bool has_prior = !options.prior.o.empty();
  return {a,
          mask,
          score,
          options.scale.of(a.q.extent(3)),
          options.lse,
          options.sinks.data(),
          options.sinks.stride(0),
          has_prior ? options.prior.o.template view<O>() : tensor_view<const O, 4>(),
          has_prior ? options.prior.lse : tensor_view<const float, 3>(),
          options.workspace.extent(0) == 0 ? nullptr : options.workspace.data(),
          options.workspace.extent(0),
          align.is_bottom_right(),
          options.division,
          options.latent_tile,
          align.fixed_offset(),
          static_cast<int>(a.cache.k.extent(2) == 0 ? 1 : a.q.extent(2) / a.cache.k.extent(2)),
          static_cast<int>(a.capacity()),
          fast_divisor(has_rows ? a.cache.k.extent(1) : 1)};
}
#endif

}  // namespace giwa::inline GIWA_ABI::detail

#endif
