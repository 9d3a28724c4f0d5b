// SPDX-License-Identifier: MIT
// attention_cached with lists of keys, made from a problem whose sequences are queries with pages of one key.
#ifndef GIWA_TEST_SUPPORT_SELECTION_CASE_HPP
#define GIWA_TEST_SUPPORT_SELECTION_CASE_HPP

#include "support/cached_case.hpp"

namespace giwa_test {

struct selection_options {
  uint64 seed = 1;
  int64 sequences = 2, queries = 1, heads = 16, kv_heads = 1;
  int64 most = 100;     // numbers of a list
  int64 page_size = 1;  // of the pool
  giwa::key_numbers names = giwa::key_numbers::pool_rows;
  bool packed = false, paged = true, counts = true, sinks = false, lse = true;
  int strange = 3;  // one of so many numbers names nothing; 0: none, 1: all
};

/// The lists are those of a cached_case with pages of one key, among numbers that name nothing.
template <class T, class Element = T, class O = T>
struct selection_case {
  selection_options options;
  cached_case<T, Element, O> keys;
  std::vector<int> indices, counts, table, lengths, q_offsets;
  int64 pool;  // rows

  explicit selection_case(const selection_options& given, int64 head_size, int64 head_size_v)
      : options(given),
        keys(case_of(given, head_size, head_size_v)),
        pool(keys.k.extents[0] / given.page_size * given.page_size) {
    random_sequence random(given.seed + 77);
    const int64 pages = pool / given.page_size;
    for (int64 i = 0; i < pages; ++i) table.push_back(static_cast<int>(i));
    for (int64 i = pages; i > 1; --i)
      std::swap(table[static_cast<std::size_t>(i - 1)], table[static_cast<std::size_t>(random.below(i))]);
    std::vector<int64> place(static_cast<std::size_t>(pages));
    for (int64 i = 0; i < pages; ++i) place[static_cast<std::size_t>(table[static_cast<std::size_t>(i)])] = i;
    for (int64 n = 0; n < given.sequences * given.queries; ++n) {
      const std::vector<int64>& rows = keys.element[static_cast<std::size_t>(n)];
      const int64 wanted = keys.keys[static_cast<std::size_t>(n)];
      int64 listed = 0;
      for (int64 i = 0; i < given.most; ++i) {
        const int strange[] = {-1, -2147483647 - 1, 2147483647, static_cast<int>(pool), -7};
        int64 number = strange[random.below(5)];
        if (given.strange == 0 && given.counts && i >= wanted) number = random.below(pool);  // the count leaves it out
        const int64 left = given.most - i, needed = wanted - listed;
        if (needed > 0 && (given.strange == 0 || left == needed || random.below(left) < needed)) {
          const int64 row = rows[static_cast<std::size_t>(listed++)];
          number =
              given.names == giwa::key_numbers::pool_rows
                  ? row
                  : place[static_cast<std::size_t>(row / given.page_size)] * given.page_size + row % given.page_size;
        }
        indices.push_back(static_cast<int>(number));
      }
      for (int i = 0; i < 3; ++i) indices.push_back(static_cast<int>(random.below(pool)));  // not of the list
      counts.push_back(static_cast<int>(given.strange == 0     ? (wanted == 0 && n % 2 == 1 ? -1 : wanted)
                                        : random.below(2) == 0 ? given.most
                                                               : given.most + 5));
    }
    lengths.assign(static_cast<std::size_t>(given.sequences), static_cast<int>(pool));
    for (int64 b = 0; b <= given.sequences; ++b) q_offsets.push_back(static_cast<int>(b * given.queries));
  }

  /// The call's views and options from those of the problem, in the same memory, and the arrays.
  struct arrays {
    const int *indices, *counts, *table, *lengths, *q_offsets;
  };
  arrays own() const { return {indices.data(), counts.data(), table.data(), lengths.data(), q_offsets.data()}; }
  template <int HeadSize, int HeadSizeV, class Where>
  giwa::status run(const Where& where, const giwa::detail::cached_views<T, Element, O>& a, giwa::cached_options call,
                   const arrays& x) const {
    return with_call(
        a, call, x, [&](const auto& cache, const auto& q, const auto& o, const auto& selection, const auto& all) {
          return giwa::attention_cached<giwa::head_sizes<HeadSize, HeadSizeV>>(where, cache, q, o, selection, all);
        });
  }
  /// f(cache, q, o, selection, options), packed or not.
  template <class Views, class F>
  giwa::status with_call(const Views& a, giwa::cached_options call, const arrays& x, const F& f) const {
    const selection_options& c = options;
    const bool of_sequence = c.names == giwa::key_numbers::sequence_keys;
    giwa::key_selection selection{x.indices, c.most + 3, c.most, c.counts ? x.counts : nullptr, c.names};
    auto cache = a.cache;
    const int64 page = c.page_size;
    const auto in_pages = [&](auto& view) {
      view = {view.data(),
              {pool / page, page, view.extent(2), view.extent(3)},
              {page * view.stride(0), view.stride(0), view.stride(2), view.stride(3)}};
    };
    in_pages(cache.k), in_pages(cache.v);
    cache.pages = {}, cache.lengths = nullptr, cache.sequences = 0;
    if (of_sequence) {
      cache.pages.indices = x.table, cache.pages.most = pool / page, cache.lengths = x.lengths;
      cache.sequences = c.sequences;
    }
    const auto q = a.q;
    const int64 rows = c.sequences * c.queries;
    if (c.packed) {
      if (of_sequence) call.sequences.q_offsets = x.q_offsets, call.sequences.count = c.sequences;
      call.sequences.max_q = c.queries;
      call.lse = {call.lse.data(), {1, c.heads, rows}, {0, 1, c.heads}};
      if (!c.lse) call.lse = {};
      return f(cache, tensor_view<const T, 3>(q.data(), {rows, c.heads, q.extent(3)}), view_of_rows<3>(a.o, rows),
               selection, call);
    }
    call.lse = {call.lse.data(), {c.sequences, c.heads, c.queries}, {c.queries * c.heads, 1, c.heads}};
    if (!c.lse) call.lse = {};
    return f(cache, tensor_view<const T, 4>(q.data(), {c.sequences, c.queries, c.heads, q.extent(3)}),
             view_of_rows<4>(a.o, rows), selection, call);
  }

 private:
  template <int Rank, class View>
  auto view_of_rows(const View& o, int64 rows) const {
    using element = std::remove_reference_t<decltype(*o.data())>;
    if constexpr (Rank == 3)
      return tensor_view<element, 3>(o.data(), {rows, options.heads, o.extent(3)});
    else
      return tensor_view<element, 4>(o.data(), {options.sequences, options.queries, options.heads, o.extent(3)});
  }
  static cached_case_options case_of(const selection_options& c, int64 head_size, int64 head_size_v) {
    cached_case_options k;
    k.seed = c.seed;
    k.heads = c.heads, k.kv_heads = c.kv_heads, k.head_size = head_size, k.head_size_v = head_size_v;
    const int64 rows = c.sequences * c.queries;
    k.queries.assign(static_cast<std::size_t>(rows), 1);
    k.page_size = 1, k.most = c.most;
    k.shared = c.seed % 2 == 1;  // keys are listed twice
    k.latent = head_size > head_size_v;
    k.sinks = c.sinks, k.lse = c.lse;
    random_sequence random(c.seed + 5);
    for (int64 n = 0; n < rows; ++n) {
      int64 length = c.strange == 0 && !c.counts ? c.most : random.below(c.most + 1);
      if (c.strange == 1 || (c.strange > 1 && random.below(6) == 0)) length = 0;
      k.lengths.push_back(static_cast<int>(length));
    }
    return k;
  }
};

}  // namespace giwa_test

#endif
