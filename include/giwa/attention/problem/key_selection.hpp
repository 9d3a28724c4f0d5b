// SPDX-License-Identifier: MIT
// Which keys each query of attention_cached sees, by lists of numbers.
#ifndef GIWA_ATTENTION_PROBLEM_KEY_SELECTION_HPP
#define GIWA_ATTENTION_PROBLEM_KEY_SELECTION_HPP

#include <giwa/attention/problem/cached_views.hpp>
#include <giwa/attention/problem/masks.hpp>

namespace giwa::inline GIWA_ABI {

/// What the numbers of a key_selection name.
enum class key_numbers : int {
  pool_rows,  ///< rows of the cache: page times keys of a page, plus the row in the page; without pages the sequence counts as one
  sequence_keys,  ///< keys of the query's sequence, from 0 on, in its pages
};

/// The keys that each query sees, the top k of an indexer for example: attention_cached takes it in the place of the mask. Query n of
/// all, in the order of the rows of q, has the list indices[n * stride, n * stride + most), which all heads share. A number below 0, or
/// of no row or key, is none: nothing is read for it. A key that is listed twice counts twice. Lists are read when the kernel runs.
struct key_selection {
  const int* indices = nullptr;  ///< (queries, stride), device memory
  int64 stride = 0;              ///< numbers from one query's list to the next one's; 0: all queries have the same
  int64 most = 0;                ///< numbers of a list, at least 1
  const int* counts =
      nullptr;  ///< (queries), device memory: how many numbers of each list count, from its beginning; null: all
  key_numbers names = key_numbers::pool_rows;  ///< what the numbers are
};

namespace detail {

/// The mask of a call with a selection. Its keys are places in a list. A query is a separate sequence (selected_views), whose
/// diagonal is the end of the numbers that name something.
struct selection_mask : key_selection {
  GIWA_HOST_DEVICE bool operator()(attention_coord c) const {
    return is_named(indices[c.batch * stride + c.key], c.diagonal);
  }
  GIWA_HOST_DEVICE static constexpr bool is_named(int number, int end) { return number >= 0 && number < end; }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    if (most < 1 && s.seq_q != 0)
      return status::invalid("most", "a list of keys must have room for at least one number", bound::at_least, 1, most);
    if (most > attention_limits::length)
      return status::invalid("most", "a list of keys is too long", bound::at_most, attention_limits::length, most);
    return indices == nullptr && s.seq_q != 0 ? status::invalid("indices", "the pointer is null") : status{};
  }
};

template <class Mask>
inline constexpr bool selects_keys = stdlib::same_as<Mask, selection_mask>;
/// The type of the mask in a kernel.
template <class Mask>
using mask_in_kernel = stdlib::conditional_t<stdlib::same_as<Mask, key_selection>, selection_mask, Mask>;

/// The tensors of a call with a selection: each query is a separate sequence.
template <class T, class Element, class O>
struct selected_views : cached_views<T, Element, O> {
  using base = cached_views<T, Element, O>;
  int64 most;  // numbers of a list

  GIWA_HOST_DEVICE constexpr bool has_offsets() const { return base::is_packed(); }
  GIWA_HOST_DEVICE constexpr int64 keys_of_sequence() const { return base::capacity(); }
  GIWA_HOST_DEVICE constexpr bool is_packed() const { return false; }
  GIWA_HOST_DEVICE constexpr int64 sequence_count() const { return this->q.extent(0) * this->q.extent(1); }
  GIWA_HOST_DEVICE constexpr int64 capacity() const { return most; }
  GIWA_HOST_DEVICE constexpr cached_problem problem() const {
    cached_problem p = base::problem();
    p.sequences = sequence_count(), p.queries = 1, p.rows = 0, p.keys = most;
    return p;
  }
};

/// Rows of a pool have no sequences.
template <class Element>
GIWA_HOST_DEVICE constexpr kv_cache<Element> cache_of_selection(kv_cache<Element> cache, const key_selection& keys) {
  if (keys.names == key_numbers::pool_rows) cache.pages = {}, cache.lengths = nullptr, cache.sequences = 0;
  return cache;
}

/// Whether the keys of a query do not belong to its sequence.
template <class Mask>
GIWA_HOST_DEVICE constexpr bool selects_pool_rows(const Mask& mask) {
  if constexpr (selects_keys<Mask>) return mask.names == key_numbers::pool_rows;
  return false;
}

/// The lists of a selection share no memory with what the call writes.
template <class T, class Element, class O, class Mask>
GIWA_HOST_DEVICE status check_selection(const cached_views<T, Element, O>& a, const Mask& mask,
                                        const cached_options& options) {
  first_failure broken;
  if constexpr (selects_keys<Mask>) {
    const int64 queries = a.q.extent(0) * a.q.extent(1);
    if (queries > attention_limits::length)
      return status::invalid("q", "too many queries with lists", bound::at_most, attention_limits::length, queries);
    if (const status s = mask.check({1, 1, queries, mask.most}); !s.ok()) return s;
    const tensor_view<const int, 2> lists(mask.indices, {queries, mask.most}, {mask.stride, 1});
    if (const status s = lists.check("indices"); !s.ok()) return s;
    const auto shares = [&](const auto& written, const char* message) {
      return broken(check_apart(lists, written, "indices", message)) ||
             broken(check_apart(view_of(mask.counts, queries), written, "counts", message));
    };
    static_cast<void>(shares(a.o, "must not overlap o, which the call writes") ||
                      shares(options.lse, "must not overlap lse, which the call writes") ||
                      shares(options.workspace, "must not overlap the workspace"));
  }
  return broken.state;
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
