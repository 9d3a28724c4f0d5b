// SPDX-License-Identifier: MIT
// The first rule that an attention_cached call breaks, found without touching memory.
#ifndef GIWA_ATTENTION_PROBLEM_CACHED_CHECKS_HPP
#define GIWA_ATTENTION_PROBLEM_CACHED_CHECKS_HPP

#include <giwa/attention/append/rotated_queries.hpp>
#include <giwa/attention/problem/cached_views.hpp>
#include <giwa/attention/problem/checks.hpp>

namespace giwa::inline GIWA_ABI::detail {

inline constexpr int64 most_few_rows = 32;  // queries of all heads that share keys, in a call for few queries

/// The indices of a page table. Of lists one after the other only the first index is known to be there.
GIWA_HOST_DEVICE constexpr tensor_view<const int, 2> indices_of(const page_table& pages, int64 sequences) {
  if (pages.offsets != nullptr || pages.most == 0) return {pages.indices, {1, pages.most == 0 ? 0 : 1}};
  return {pages.indices, {sequences, pages.most}, {pages.stride, 1}};
}

/// What belongs to a page table is there with one, and only with one.
template <class Element>
GIWA_HOST_DEVICE constexpr status check_page_table(const kv_cache<Element>& cache) {
  const page_table& pages = cache.pages;
  if (pages.indices == nullptr) {
    if (pages.most != 0)
      return status::invalid("pages", "the pointer to the indices is null, so the number of pages must be 0",
                             bound::exactly, 0, pages.most);
    if (pages.offsets != nullptr)
      return status::invalid("pages", "the pointer to the indices is null, so there must be no offsets");
    if (cache.sequences != 0)
      return status::invalid("sequences", "a cache without pages has the sequences of k: the number must be 0",
                             bound::exactly, 0, cache.sequences);
    return {};
  }
  if (cache.lengths == nullptr)
    return status::invalid("lengths", "the pointer is null: a cache with pages needs the lengths of its sequences");
  if (cache.sequences < 0)
    return status::invalid("sequences", "the number of sequences is negative", bound::at_least, 0, cache.sequences);
  if (pages.most < 0)
    return status::invalid("pages", "the number of pages of a sequence is negative", bound::at_least, 0, pages.most);
  if (pages.most == 0 && cache.sequences > 0)
    return status::invalid("pages", "a page table needs `most`, the most pages of one sequence", bound::at_least, 1, 0);
  return {};
}

/// The size of a page, and how many keys the table gives a sequence. k has been checked.
template <class Element>
GIWA_HOST_DEVICE constexpr status check_reach(const kv_cache<Element>& cache) {
  const int64 size = cache.k.extent(1), most = attention_limits::length;
  if (cache.pages.indices == nullptr) return {};
  if (size < 1) return status::invalid("k", "a page must have at least one key", bound::at_least, 1, size);
  if (cache.pages.most > most / size)
    return status::invalid("pages", "the pages of a sequence have too many keys", bound::at_most, most / size,
                           cache.pages.most);
  return indices_of(cache.pages, cache.sequences).check("pages");
}

/// The scales: each dimension has size 1 or that of the cache. Empty means none.
template <class Element>
GIWA_HOST_DEVICE constexpr status check_scales(const kv_cache<Element>& cache) {
  constexpr const char* messages[3] = {
      "scales are (sequences or pages, keys, kv heads): the first size must be 1 or that of k",
      "scales are (sequences or pages, keys, kv heads): there must be 1 or one for each row of k",
      "scales are (sequences or pages, keys, kv heads): there must be 1 or one for each head of k"};
  const tensor_view<const float, 3> of_both[2] = {cache.scales.k, cache.scales.v};
  for (const tensor_view<const float, 3>& scales : of_both) {
    if (!is_given(scales)) continue;
    if (!element_traits<stdlib::remove_const_t<Element>>::has_scales)
      return status::invalid("scales", "only a cache of 8-bit or 4-bit numbers has scales");
    if (const status s = scales.check("scales"); !s.ok()) return s;
    for (int d = 0; d < 3; ++d)
      if (scales.extent(d) != 1 && scales.extent(d) != cache.k.extent(d))
        return status::invalid("scales", messages[d], bound::exactly, cache.k.extent(d), scales.extent(d));
  }
  return {};
}

/// Whether a view is another one's, so that each element is read before it is written.
template <class T, int Rank>
GIWA_HOST_DEVICE constexpr bool same_elements(const tensor_view<const T, Rank>& a, const tensor_view<T, Rank>& b) {
  if (a.data() != b.data()) return false;
  for (int d = 0; d < Rank; ++d)
    if (a.extent(d) != b.extent(d) || (a.extent(d) != 1 && a.stride(d) != b.stride(d))) return false;
  return true;
}

/// Whether v is the first columns of k, as of latent attention. A cache without elements has no other values.
template <class Element>
GIWA_HOST_DEVICE constexpr bool values_are_first_columns(const kv_cache<Element>& cache) {
  if (cache.k.size() == 0) return true;
  bool same = cache.k.data() == cache.v.data() && cache.v.extent(3) <= cache.k.extent(3);
  for (int d = 0; d < 3; ++d) same = same && (cache.k.extent(d) <= 1 || cache.k.stride(d) == cache.v.stride(d));
  return same;
}
/// Head sizes of q and k above that of all other calls are those of latent attention.
template <class Element>
GIWA_HOST_DEVICE constexpr status check_latent_values(const kv_cache<Element>& cache) {
  if (head_size_of(cache.k) <= attention_limits::head_size || values_are_first_columns(cache)) return {};
  return status::invalid("v", "above a head size of 512, v must be the first columns of k");
}

/// v may be the first columns of k. Where both have the same strides, another overlap is an error of the caller's;
/// other strides tell nothing.
template <class Element>
GIWA_HOST_DEVICE status check_shared_values(const kv_cache<Element>& cache) {
  auto extents = cache.k.extents();
  extents[3] = cache.k.extent(3) < cache.v.extent(3) ? cache.k.extent(3) : cache.v.extent(3);
  for (int d = 0; d < 3; ++d)
    if (extents[d] != 1 && cache.k.stride(d) != cache.v.stride(d)) return {};
  const tensor_view<Element, 4> k(cache.k.data(), extents, cache.k.strides()),
      v(cache.v.data(), extents, cache.k.strides());
  if (k.data() == v.data() && cache.v.extent(3) <= cache.k.extent(3)) return {};
  return check_apart(k, v, "v", "v shares memory with k and is not its first columns");
}

/// A tensor that the call writes shares no memory with an input of the call, `prior` aside. `message` names the tensor.
template <class T, class Element, class O, class Score, class Written, int Rank>
GIWA_HOST_DEVICE status check_apart_from_inputs(const cached_views<T, Element, O>& a,
                                                [[maybe_unused]] const Score& score, const cached_options& options,
                                                const tensor_view<Written, Rank>& w, const char* message) {
  first_failure broken;
  const auto shares = [&](const auto& x, const char* argument) { return broken(check_apart(x, w, argument, message)); };
  const kv_cache<const Element>& c = a.cache;
  const int64 count = a.sequence_count();
  static_cast<void>(shares(a.q, "q") || shares(c.k, "k") || shares(c.v, "v") ||
                    shares(view_of(a.packed.offsets, count + 1), "q_offsets") ||
                    shares(view_of(c.lengths, count), "lengths") ||
                    (a.is_paged() && (shares(indices_of(c.pages, count), "pages") ||
                                      shares(view_of(c.pages.offsets, count + 1), "pages"))) ||
                    shares(c.scales.k, "scales") || shares(c.scales.v, "scales") || shares(options.sinks, "sinks"));
  if constexpr (rotates_queries<Score>) {
    if (!broken.state.ok()) return broken.state;
    const auto tables = tables_of(score.rotary);
    static_cast<void>(shares(score.positions.narrow(), "positions") || shares(score.positions.wide(), "positions") ||
                      shares(tables.cos, "cos") || shares(tables.sin, "sin"));
  }
  return broken.state;
}

/// The prior: sizes and elements of o and lse. Its views may be those that the call writes.
template <class T, class Element, class O>
GIWA_HOST_DEVICE status check_prior(const cached_views<T, Element, O>& a, const cached_options& options) {
  const tensor_view<const float, 3>& lse = options.prior.lse;
  const bool has_lse = is_given(lse);
  if (options.prior.o.empty()) return has_lse ? status::invalid("prior", "there is an lse without its o") : status{};
  if (!has_lse) return status::invalid("prior", "there is an o without its lse");
  if (!options.prior.o.template holds<O>())
    return status::invalid("prior", "its o must have the element type of the o that the call writes");
  const tensor_view<const O, 4> o = options.prior.o.template view<O>();
  if (const status s = check_rows(o, "prior"); !s.ok()) return s;
  if (const status s = lse.check("prior"); !s.ok()) return s;
  for (int d = 0; d < 4; ++d)
    if (o.extent(d) != a.o.extent(d))
      return status::invalid("prior", "its o must have the sizes of the o that the call writes", bound::exactly,
                             a.o.extent(d), o.extent(d));
  const int64 sizes[3] = {a.q.extent(0), a.q.extent(2), a.q.extent(1)};
  for (int d = 0; d < 3; ++d)
    if (lse.extent(d) != sizes[d])
      return status::invalid("prior", "its lse is (batch, heads, queries), the batch 1 if packed", bound::exactly,
                             sizes[d], lse.extent(d));
  if ((may_share(o, a.o) && !same_elements(o, a.o)) || may_share(lse, a.o))
    return status::invalid("prior", "prior overlaps o and is not the same view");
  if ((may_share(lse, options.lse) && !same_elements(lse, options.lse)) || may_share(o, options.lse))
    return status::invalid("prior", "prior overlaps lse and is not the same view");
  if (may_share(o, options.workspace) || may_share(lse, options.workspace))
    return status::invalid("prior", "prior overlaps the workspace");
  return {};
}

/// The workspace: any size, aligned, without overlap with another output. Empty means none.
template <class O>
GIWA_HOST_DEVICE status check_workspace(const cached_options& options, const tensor_view<O, 4>& o) {
  const tensor_view<unsigned char, 1>& w = options.workspace;
  if (w.extent(0) == 0) return {};
  if (const status s = w.check("workspace"); !s.ok()) return s;
  if (w.stride(0) != 1)
    return status::invalid("workspace", "the workspace must be contiguous (stride 1)", bound::exactly, 1, w.stride(0));
  if (reinterpret_cast<uint64>(w.data()) % workspace_layout::alignment != 0)
    return status::invalid("workspace", "the workspace must be 16-byte aligned");
  if (may_share(w, o)) return status::invalid("workspace", "the workspace overlaps o");
  return check_apart(w, options.lse, "workspace", "the workspace overlaps lse");
}

/// With offsets, rows need the number of sequences.
GIWA_HOST_DEVICE constexpr status check_count(const packed_queries& packed, int64 rows) {
  if (packed.offsets == nullptr || packed.count != 0 || rows == 0) return {};
  return status::invalid("sequences", "count is 0: with offsets, rows need the number of sequences", bound::at_least, 1,
                         0);
}

/// The members of `sequences` that a call with a cache has. Packed tensors have rank 3, and may lack offsets; `batch`
/// is that of others.
GIWA_HOST_DEVICE constexpr status check_sequences_of_cache(const sequences& p, bool packed, int64 batch) {
  if (p.k_offsets != nullptr)
    return status::invalid("k_offsets", "keys of a cache have no offsets: their lengths are kv_cache::lengths");
  if (p.k_lengths != nullptr)
    return status::invalid("k_lengths", "the lengths of keys of a cache are kv_cache::lengths");
  if (p.k_batch_index != nullptr)
    return status::invalid("k_batch_index", "a cache has an element, or pages, for each sequence: use a page table");
  if (p.q_lengths != nullptr)
    return status::invalid("q_lengths", "queries have offsets, not lengths, in a call with a cache");
  if (p.count < 0)
    return status::invalid("sequences", "the number of sequences is negative", bound::at_least, 0, p.count);
  if (p.max_q < 0) return status::invalid("sequences", "max_q is negative", bound::at_least, 0, p.max_q);
  return packed ? status{} : check_padded(p, batch);
}
template <int Rank>
GIWA_HOST_DEVICE constexpr status check_sequences_of_cache(const sequences& p, int64 batch) {
  static_assert(
      Rank == 3 || Rank == 4,
      "giwa: queries of a cache have rank 3 (packed: all rows, heads, head size) or rank 4 (sequences, queries, "
      "heads, head size).");
  return check_sequences_of_cache(p, Rank == 3, batch);
}

/// Tensors of rank 3 are packed.
template <int Rank, class T, class Element, class O>
GIWA_HOST_DEVICE constexpr status check_rank(const cached_views<T, Element, O>& a) {
  if (Rank == 4 || a.is_packed()) return {};
  return status::invalid("q_offsets", "the pointer is null: tensors of rank 3 need the offsets of their sequences");
}

/// Sizes of the tensors, of the cache and of packed queries.
template <class T, class Element, class O>
GIWA_HOST_DEVICE constexpr status check_shapes(const cached_views<T, Element, O>& a, int64 head_size,
                                               int64 head_size_v) {
  first_failure broken;
  const kv_cache<const Element>& c = a.cache;
  if (const status counted = check_count(a.packed, a.q.extent(1)); !counted.ok()) return counted;
  if (broken(check_page_table(c)) ||
      broken(check_tensors(a.q, c.k, c.v, a.o, head_size, head_size_v, !a.is_packed() && !a.is_paged())))
    return broken.state;
  const int64 sequences = a.is_paged() ? c.sequences : c.k.extent(0);
  if (sequences != a.sequence_count())
    return status::invalid(a.is_paged() ? "sequences" : "k", "the cache must have as many sequences as q",
                           bound::exactly, a.sequence_count(), sequences);
  if (broken(check_reach(c)) || broken(check_scales(c))) return broken.state;
  return check_sizes(a.problem(), 0);
}

/// The rows of a call for few queries: a head of k serves this many queries of a sequence.
template <class T, class Element, class O>
GIWA_HOST_DEVICE constexpr status check_few_queries(const cached_views<T, Element, O>& a) {
  const cached_problem p = a.problem();
  if (p.kv_heads == 0) return {};
  if (a.is_packed() && p.queries == 0 && p.rows > 0)
    return status::invalid("max_q", "a call for few queries needs the most queries of one sequence", bound::at_least, 1,
                           0);
  const int64 rows = saturated_product(p.heads / p.kv_heads, p.queries);
  if (rows <= most_few_rows) return {};
  return status::invalid("few_queries", "too many queries times heads for each head of k", bound::at_most,
                         most_few_rows, rows);
}

/// The first rule that an attention_cached call breaks. Whether the device can use the pointers is checked elsewhere.
template <class T, class Element, class O, class Mask, class Score>
GIWA_HOST_DEVICE status check_cached(const cached_views<T, Element, O>& a, const Mask& mask, const Score& score,
                                     const cached_options& options, int64 head_size, int64 head_size_v) {
  first_failure broken;
  if (broken(check_shapes(a, head_size, head_size_v)) || broken(check_shared_values(a.cache)) ||
      broken(check_latent_values(a.cache)) || broken(check_written(a.o, "o")) || broken(check_scale(options.scale)) ||
      broken(check_sinks_view(options.sinks, a.q.extent(2))) || broken(check_lse_view(options.lse, a.q, a.o)) ||
      broken(check_workspace(options, a.o)) || broken(check_rotated_queries(score, a.q)) ||
      broken(check_apart_from_inputs(a, score, options, a.o, "must not overlap o, which the call writes")) ||
      broken(check_apart_from_inputs(a, score, options, options.lse, "must not overlap lse, which the call writes")) ||
      broken(check_apart_from_inputs(a, score, options, options.workspace, "must not overlap the workspace")) ||
      broken(check_prior(a, options)))
    return broken.state;
  const int64 queries = a.q.extent(1), keys = a.capacity(), packed = -1;
  if (broken(check_both(mask, score,
                        attention_sizes{a.sequence_count(), a.q.extent(2), a.is_packed() ? packed : queries, keys})))
    return broken.state;
  const bool lengths_agree = !a.is_packed() && !a.is_paged() && a.cache.lengths == nullptr && queries == keys;
  return check_alignment(mask, score, options.align, lengths_agree, queries, keys);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
