// SPDX-License-Identifier: MIT
// The tensors of an attention_cached call in four dimensions, and the sizes that follow from them.
#ifndef GIWA_ATTENTION_PROBLEM_CACHED_VIEWS_HPP
#define GIWA_ATTENTION_PROBLEM_CACHED_VIEWS_HPP

#include <giwa/attention/problem/block_rows.hpp>
#include <giwa/attention/problem/cache.hpp>
#include <giwa/attention/problem/cached_problem.hpp>
#include <giwa/attention/problem/views.hpp>
#include <giwa/attention/problem/workspace.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Which rows of packed q and o each sequence has: [offsets[b], offsets[b + 1]); beyond the rows of q they are cut.
struct packed_queries {
  const int* offsets = nullptr;  // (count + 1), first rows, device memory
  int64 count = 0;               // of sequences
  int64 most = 0;                // queries of one sequence: more are computed too, perhaps more slowly
};
GIWA_HOST_DEVICE constexpr packed_queries packed_queries_of(const sequences& s) {
  return s.q_offsets == nullptr ? packed_queries{} : packed_queries{s.q_offsets, s.count, s.max_q};
}

/// The tensors of a call: T is the element type of q, Element that of the cache. With packed queries the batch extent of q
/// and o is 1.
template <class T, class Element, class O>
struct cached_views {
  tensor_view<const T, 4> q;  // (batch, queries, heads, head size)
  tensor_view<O, 4> o;        // (batch, queries, heads, head size of v)
  kv_cache<const Element> cache;
  packed_queries packed{};

  GIWA_HOST_DEVICE constexpr bool is_packed() const { return packed.offsets != nullptr; }
  GIWA_HOST_DEVICE constexpr bool is_paged() const { return cache.pages.indices != nullptr; }
  GIWA_HOST_DEVICE constexpr int64 sequence_count() const { return is_packed() ? packed.count : q.extent(0); }
  /// Keys of one sequence, at most; the largest number where no 64-bit number holds it.
  GIWA_HOST_DEVICE constexpr int64 capacity() const {
    return is_paged() ? saturated_product(cache.pages.most, cache.k.extent(1)) : cache.k.extent(1);
  }
  /// Whether the keys, or the values, of a sequence and a head have several scales.
  GIWA_HOST_DEVICE constexpr bool differ_in_a_sequence(const tensor_view<const float, 3>& scales) const {
    return scales.data() != nullptr && (scales.extent(1) != 1 || (is_paged() && scales.extent(0) != 1));
  }
  GIWA_HOST_DEVICE constexpr cached_problem problem() const {
    return {.sequences = sequence_count(),
            .queries = is_packed() ? packed.most : q.extent(1),
            .rows = is_packed() ? q.extent(1) : 0,
            .keys = capacity(),
            .heads = q.extent(2),
            .kv_heads = cache.k.extent(2),
            .head_size = q.extent(3),
            .head_size_v = head_size_of(cache.v),
            .element_bytes = int64{sizeof(T)},
            .cache_bytes = int64{sizeof(Element)},
            .page_size = is_paged() ? cache.k.extent(1) : 0};
  }
};

/// The cache with its values, which rows of a format contain.
template <class Element>
GIWA_HOST_DEVICE constexpr kv_cache<Element> with_values(kv_cache<Element> cache) {
  using rows = stdlib::remove_const_t<Element>;
  if constexpr (latent_format<rows>) {
    auto extents = cache.k.extents();
    if (extents[3] == rows::row_bytes) extents[3] = rows::rest_at;
    cache.v = {cache.k.data(), extents, cache.k.strides()};
  }
  return cache;
}

/// Rows in a custom format.
template <class Element>
GIWA_HOST_DEVICE constexpr status check_row_format(const tensor_view<Element, 4>& k) {
  using rows = stdlib::remove_const_t<Element>;
  if constexpr (latent_format<rows>) {
    if (k.extent(3) != rows::row_bytes)
      return status::invalid("k", "the last dimension must be the bytes of a row", bound::exactly, rows::row_bytes,
                             k.extent(3));
    for (int d = 0; d < 3; ++d)
      if (k.extent(d) > 1 && k.stride(d) % 16 != 0)
        return status::invalid("k", "rows of bytes must begin at multiples of 16 bytes: so must a stride", bound::none,
                               0, k.stride(d));
  }
  return {};
}
/// Their address.
template <class Element>
GIWA_HOST_DEVICE status check_row_address(const tensor_view<Element, 4>& k) {
  if (!latent_format<stdlib::remove_const_t<Element>> || reinterpret_cast<uint64>(k.data()) % 16 == 0) return {};
  return status::invalid("k", "rows of bytes must begin at multiples of 16 bytes");
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
