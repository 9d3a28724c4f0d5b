// SPDX-License-Identifier: MIT
// A problem of attention to a cache in host memory, made from a seed, and its answers from keys that are gathered here.
#ifndef GIWA_TEST_SUPPORT_CACHED_CASE_HPP
#define GIWA_TEST_SUPPORT_CACHED_CASE_HPP

#include <giwa/attention/call/cached.hpp>
#include <giwa/numeric/fp8.hpp>
#include <giwa/numeric/int4_pair.hpp>
#include <giwa/numeric/int8_code.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "support/attention.hpp"
#include "support/call_options.hpp"
#include "support/environment.hpp"

namespace giwa_test {

/// A mask from every field of a coordinate.
struct by_distance {
  giwa::alignment align{giwa::alignment::bottom_right};
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const {
    return (c.key + 2 * c.query + c.head + c.batch + c.diagonal) % 3 != 0;
  }
};
/// A score modifier from every field of a coordinate.
struct own_score {
  GIWA_HOST_DEVICE float operator()(float score, giwa::attention_coord c) const {
    return score * 0.5f + static_cast<float>((c.key * 3 + c.query + 5 * c.head + c.batch) % 7) * 0.25f -
           static_cast<float>(c.diagonal % 5);
  }
};

struct cached_case_options {
  uint64 seed = 1;
  int64 heads = 1, kv_heads = 1, head_size = 1, head_size_v = 1;
  std::vector<int64> queries{1};        // of each sequence
  bool packed = false;                  // else all sequences have queries[0] of them
  std::vector<int> lengths;             // as the call gets them: also negative or too long; empty: a null pointer
  int64 keys = 1;                       // of each sequence, in a contiguous cache
  int64 page_size = 0;                  // 0: contiguous
  int64 most = 0;                       // pages of one sequence, at most
  bool lists = false;                   // lists of pages one after the other instead of a block table
  bool shared = false;                  // sequences draw their pages from few
  bool latent = false;                  // v is the first columns of k
  int strange = 0;                      // one of so many page numbers is out of range, if not 0
  int k_scales = -1, v_scales = -1;     // bits: the dimensions in which scales differ; -1: no scales
  std::array<case_layout, 4> layout{};  // of q, k, v, o
  int offset = 0;                       // of each tensor's first element, in elements
  double spread = 1;                    // standard deviation of q and k
  bool lse = true, sinks = false;
  giwa::attention_scale scale{};
  giwa::alignment align{};
  giwa::division division = giwa::division::by_sequence;
  giwa::latent_tile latent_tile = giwa::latent_tile::by_rows;

  int64 sequences() const { return static_cast<int64>(queries.size()); }
  bool paged() const { return page_size > 0; }
  /// The case in a line.
  std::string text() const {
    std::ostringstream s;
    s << "seed " << seed << ", heads " << heads << '/' << kv_heads << ", head size " << head_size << '/' << head_size_v
      << (packed ? ", packed queries" : ", queries");
    for (const int64 n : queries) s << ' ' << n;
    if (paged())
      s << ", " << most << (lists ? " listed" : "") << (shared ? " shared" : "") << " pages of " << page_size;
    else
      s << ", keys " << keys;
    if (strange > 0) s << ", 1 of " << strange << " strange";
    for (std::size_t i = 0; i < lengths.size(); ++i) s << (i == 0 ? ", lengths " : " ") << lengths[i];
    if (k_scales >= 0 || v_scales >= 0) s << ", scales " << k_scales << ' ' << v_scales;
    for (const case_layout l : layout) s << ", " << name_of(l);
    s << (latent ? ", v in k" : "") << ", offset " << offset << ", spread " << spread << (lse ? ", lse" : "")
      << (sinks ? ", sinks" : "") << (division == giwa::division::by_batch ? ", divided by the batch" : "")
      << (latent_tile == giwa::latent_tile::rows_16   ? ", tiles of 16 rows"
          : latent_tile == giwa::latent_tile::rows_64 ? ", tiles of 64 rows"
                                                      : "");
    return s.str();
  }
};

/// The tensors of a case. T is the element type of q, Element of the cache. Rows, pages and entries that no sequence has hold
/// NaN or arbitrary numbers.
template <class T, class Element = T, class O = T>
struct cached_case {
  static constexpr int64 codes = giwa::detail::codes_of<Element>;
  static constexpr bool has_format = giwa::detail::row_format<Element>,
                        is_latent = giwa::detail::latent_format<Element>;
  cached_case_options options;
  case_buffer<T, 4> q;  // (sequences, queries, heads, head size), or (1, rows, heads, head size)
  case_buffer<Element, 4> k, v;
  case_buffer<O, 4> o;
  case_buffer<float, 3> lse, k_scales, v_scales;
  case_buffer<float, 1> sinks;
  std::vector<int> indices, page_offsets, q_offsets;
  std::vector<int64> keys;                  // that each sequence has
  std::vector<std::vector<int64>> element;  // of the cache's first dimension, for each page or sequence; -1: zeros

  explicit cached_case(const cached_case_options& given) : options(given), random_(given.seed) {
    const cached_case_options& c = options;
    int64 rows = 0;
    q_offsets.assign(1, c.packed ? 2 : 0);  // the first two rows of packed queries belong to no sequence
    for (const int64 n : c.queries)
      q_offsets.push_back(q_offsets.back() + static_cast<int>(c.packed ? n : c.queries[0]));
    rows = q_offsets.back() + (c.packed ? 3 : 0);
    const int64 batch = c.packed ? 1 : c.sequences(), seq_q = c.packed ? rows : c.queries[0];
    q = new_buffer<T, 4>({batch, seq_q, c.heads, c.head_size}, c.layout[0], c.offset, false);
    o = new_buffer<O, 4>({batch, seq_q, c.heads, c.head_size_v}, c.layout[3], c.offset, true);
    lse = new_buffer<float, 3>({batch, c.heads, seq_q}, c.layout[3], c.offset, true);
    sinks = new_buffer<float, 1>({c.heads}, case_layout::contiguous, c.offset, false);
    if (c.paged())
      make_tables();
    else
      make_sequences();
    const int64 first = c.paged() ? pool() : c.sequences(), length = c.paged() ? c.page_size : c.keys;
    k = new_buffer<Element, 4>({first, length, c.kv_heads, stored(c.head_size)}, c.layout[1], c.offset, false);
    v = new_buffer<Element, 4>({first, length, c.kv_heads, stored(c.head_size_v)}, c.layout[2], c.offset, false);
    k_scales = scales_of(c.k_scales);
    v_scales = scales_of(c.v_scales);
    q.for_each([&](std::size_t at) { q.memory[at] = giwa::convert<T>{}(c.spread * normal()); });
    sinks.for_each([&](std::size_t at) { sinks.memory[at] = static_cast<float>(2 * normal()); });
    if constexpr (is_latent) {
      for_each_row([&](int64 at, int64 row, int64 head) { fill_row(&k.view()(at, row, head, 0)); });
    } else if constexpr (has_format) {
      for (auto* of : {&k, &v})
        for_each_row(
            [&](int64 at, int64 row, int64 head) { fill_blocks(&of->view()(at, row, head, 0), of->extents[3]); });
    } else {
      fill(k, c.head_size, c.spread);
      fill(v, c.head_size_v, 1);
    }
    if (c.latent) share_values();
  }

  /// Makes v the first columns of k: on the host a copy. Again after k is written.
  void share_values() {
    v = k;
    v.extents[3] = stored(options.head_size_v);
  }
  /// Elements of a row of so many numbers.
  static int64 stored(int64 numbers) {
    if constexpr (is_latent)
      return numbers == Element::head_size ? Element::row_bytes : Element::rest_at;
    else if constexpr (has_format)
      return numbers / Element::block * Element::block_bytes;
    else
      return numbers / codes;
  }
  /// f(element of the first dimension, row, head) for the rows that a sequence has.
  template <class F>
  void for_each_row(const F& f) {
    const int64 size = options.paged() ? options.page_size : options.keys;
    for (std::size_t b = 0; b < keys.size(); ++b)
      for (int64 key = 0; key < keys[b]; ++key) {
        const int64 at = element[b][static_cast<std::size_t>(key / size)];
        for (int64 head = 0; at >= 0 && head < options.kv_heads; ++head) f(at, key % size, head);
      }
  }

  bool packed() const { return options.packed; }
  /// Rows of q and o.
  int64 rows() const { return q.extents[0] * q.extents[1]; }

  giwa::detail::cached_views<T, Element, O> views() {
    const cached_case_options& c = options;
    const auto given = [](const std::vector<int>& list) { return list.empty() ? nullptr : list.data(); };
    giwa::kv_cache<const Element> cache{k.view(), values_at(k.memory.data(), v.memory.data()), {}, given(c.lengths), 0,
                                        {}};
    if (c.paged()) {
      cache.pages.indices = indices.data();
      cache.pages.stride = stride();
      cache.pages.offsets = given(page_offsets);
      cache.pages.most = c.most;
      cache.sequences = c.sequences();
    }
    if (c.k_scales >= 0) cache.scales.k = k_scales.view();
    if (c.v_scales >= 0) cache.scales.v = v_scales.view();
    giwa::detail::packed_queries q_rows{};
    if (c.packed) q_rows = {q_offsets.data(), c.sequences(), *std::max_element(c.queries.begin(), c.queries.end())};
    return {q.view(), o.view(), cache, q_rows};
  }
  /// The view of v, whose memory is that of k where it is the first columns of k.
  tensor_view<Element, 4> values_at(Element* keys_memory, Element* values_memory) const {
    return v.at(options.latent ? keys_memory : values_memory);
  }
  giwa::cached_options call_options() {
    giwa::cached_options a{};
    a.scale = options.scale;
    a.align = options.align;
    a.division = options.division;
    a.latent_tile = options.latent_tile;
    if (options.lse) a.lse = lse.view();
    if (options.sinks) a.sinks = sinks.view();
    return a;
  }
  void clear_outputs() {
    o.fill(0xff);
    lse.fill(0xff);
  }

  /// Element d of key `key` of a sequence: its value times its scale, 0 outside the cache.
  float value(case_buffer<Element, 4>& of, case_buffer<float, 3>& scales, int shape, int64 b, int64 key, int64 head,
              int64 d) {
    const int64 size = options.paged() ? options.page_size : options.keys;
    const int64 at = element[static_cast<std::size_t>(b)][static_cast<std::size_t>(key / size)], row = key % size;
    if (at < 0) return 0;
    const float x = giwa::detail::number_of_row<float>(&of.view()(at, row, head, 0), d);
    if (shape < 0) return x;
    return x * scales.view()((shape & 1) != 0 ? at : 0, (shape & 2) != 0 ? row : 0, (shape & 4) != 0 ? head : 0);
  }

 private:
  random_sequence random_;
  uint64 drawn_ = 0;

  double normal() { return normal_at(giwa::philox(options.seed, 7), drawn_++); }
  int64 pool() const { return options.shared ? options.most + 2 : options.sequences() * options.most + 2; }
  int64 stride() const { return options.most + 3; }
  int length_of(int64 b) const {
    return options.lengths.empty() ? 2147483647 : options.lengths[static_cast<std::size_t>(b)];
  }

  void make_sequences() {
    for (int64 b = 0; b < options.sequences(); ++b) {
      element.push_back({b});
      keys.push_back(std::clamp<int64>(length_of(b), 0, options.keys));
    }
  }
  /// Page numbers in random order. Entries that no key needs are arbitrary, and a list ends where the last one does.
  void make_tables() {
    const cached_case_options& c = options;
    std::vector<int64> free_pages;
    for (int64 p = 0; p < pool(); ++p) free_pages.push_back(p);
    for (std::size_t i = free_pages.size(); i > 1; --i)
      std::swap(free_pages[i - 1], free_pages[static_cast<std::size_t>(random_.below(static_cast<int64>(i)))]);
    if (c.lists) page_offsets.push_back(0);
    for (int64 b = 0; b < c.sequences(); ++b) {
      const int64 listed = c.lists ? random_.below(c.most + 2) : c.most;  // one more than `most` does not count
      keys.push_back(std::clamp<int64>(length_of(b), 0, std::min(listed, c.most) * c.page_size));
      const int64 needed = giwa::ceil_div(keys.back(), c.page_size);
      element.emplace_back();
      for (int64 n = 0; n < (c.lists ? listed : stride()); ++n) {
        int64 page = random_.below(1000) - 500;
        if (n < needed && c.strange > 0 && random_.below(c.strange) == 0) {
          const int64 strange[] = {-1, 2147483647, -2147483648LL, pool()};
          page = strange[random_.below(4)];
          element.back().push_back(-1);
        } else if (n < needed) {
          page = c.shared ? random_.below(pool()) : free_pages[static_cast<std::size_t>(b * c.most + n)];
          element.back().push_back(page);
        }
        indices.push_back(static_cast<int>(page));
      }
      if (c.lists) page_offsets.push_back(static_cast<int>(indices.size()));
    }
    if (indices.empty()) indices.push_back(0);  // a null pointer says that there is no table
    indices.shrink_to_fit();
  }

  case_buffer<float, 3> scales_of(int shape) {
    if (shape < 0) return {};
    const auto size = [&](int d) { return (shape >> d & 1) != 0 ? k.extents[d] : 1; };
    auto scales = new_buffer<float, 3>({size(0), size(1), size(2)}, case_layout::padded, 0, false);
    // Few bits: the product with a number of 8 bits is exact in every type.
    scales.for_each([&](std::size_t at) { scales.memory[at] = 0.25f * static_cast<float>(1 + random_.below(6)); });
    return scales;
  }

  /// Fills the rows that a sequence has.
  // Integers get numbers that rounding leaves apart, and some beyond their largest.
  void fill(case_buffer<Element, 4>& of, int64 width, double spread) {
    if (std::is_same_v<Element, giwa::int8_code>) spread *= &of == &k ? 4 : 50;
    if (codes == 2) spread *= &of == &k ? 2 : 4;
    for_each_row([&](int64 at, int64 row, int64 head) {
      for (int64 d = 0; d < width / codes; ++d) {
        const float first = static_cast<float>(spread * normal());
        if constexpr (codes == 2)
          of.view()(at, row, head, d) = Element(first, static_cast<float>(spread * normal()));
        else
          of.view()(at, row, head, d) = giwa::convert<Element>{}(first);
      }
    });
  }
  /// Blocks of integers whose products with the scale have the 8 bits of bf16.
  void fill_blocks(Element* row, int64 bytes) {
    for (int64 i = 0; i < bytes; ++i)
      row[i].byte = static_cast<unsigned char>(Element::block_bytes == 34 ? random_.below(63) - 31
                                                                          : random_.below(256));  // q8_0, q4_0
    for (int64 i = 0; i < bytes; i += Element::block_bytes) {
      const auto scale = giwa::convert<giwa::fp16>{}(
          options.spread * 0.03125 * static_cast<double>(1 + random_.below(6)) * (Element::block_bytes == 34 ? 1 : 4));
      std::memcpy(row + i, &scale, 2);
    }
  }
  /// A row of 656 bytes whose numbers are exact in every type: scales of few bits.
  void fill_row(Element* row) {
    for (int d = 0; d < Element::codes; ++d)
      row[d].byte = giwa::e4m3(static_cast<float>(options.spread * normal())).bits();
    for (int i = 0; i < Element::codes / Element::group; ++i) {
      const float scale = 0.25f * static_cast<float>(1 + random_.below(6));
      std::memcpy(row + Element::scales_at + 4 * i, &scale, 4);
    }
    for (int d = 0; d < Element::rest; ++d) {
      const auto x = giwa::convert<giwa::bf16>{}(static_cast<float>(options.spread * normal()));
      std::memcpy(row + Element::rest_at + 2 * d, &x, 2);
    }
  }
};

/// The tensors of a case as attention_forward takes them: packed, gathered, in P, which must hold all numbers exactly.
template <class P>
struct gathered_case {
  case_buffer<P, 4> q, k, v;
  std::vector<int> k_offsets{0};

  template <class T, class Element, class O>
  explicit gathered_case(cached_case<T, Element, O>& c) {
    const cached_case_options& s = c.options;
    for (const int64 n : c.keys) k_offsets.push_back(k_offsets.back() + static_cast<int>(n));
    const int64 all = k_offsets.back();
    q = new_buffer<P, 4>({1, c.rows(), s.heads, s.head_size}, case_layout::contiguous, 0, true);
    k = new_buffer<P, 4>({1, all, s.kv_heads, s.head_size}, case_layout::contiguous, 0, true);
    v = new_buffer<P, 4>({1, all, s.kv_heads, s.head_size_v}, case_layout::contiguous, 0, true);
    const std::vector<float> of_q = c.q.template elements<float>();
    std::size_t next = 0;
    q.for_each([&](std::size_t at) { q.memory[at] = giwa::convert<P>{}(of_q[next++]); });
    for (std::size_t b = 0; b < c.keys.size(); ++b)
      for (int64 key = 0; key < c.keys[b]; ++key)
        for (int64 head = 0; head < s.kv_heads; ++head) {
          const auto sequence = static_cast<int64>(b);
          for (int64 d = 0; d < s.head_size; ++d)
            k.view()(0, k_offsets[b] + key, head, d) =
                giwa::convert<P>{}(c.value(c.k, c.k_scales, s.k_scales, sequence, key, head, d));
          for (int64 d = 0; d < s.head_size_v; ++d)
            v.view()(0, k_offsets[b] + key, head, d) =
                giwa::convert<P>{}(c.value(c.v, c.v_scales, s.v_scales, sequence, key, head, d));
        }
  }
  template <class O>
  giwa::detail::attention_views<P, O> views(const std::vector<int>& q_offsets, tensor_view<O, 4> o) {
    giwa::detail::attention_views<P, O> a{q.view(), k.view(), v.view(), o};
    a.packed.q_offsets = q_offsets.data(), a.packed.k_offsets = k_offsets.data();
    a.packed.count = static_cast<int64>(k_offsets.size()) - 1;
    return a;
  }
};

/// (batch, heads, queries) to the order of rows of o.
template <class U>
std::vector<U> rows_of_lse(const case_buffer<float, 3>& lse) {
  std::vector<U> rows;
  const std::vector<U> all = lse.template elements<U>();
  const auto [batch, heads, queries] = std::array{lse.extents[0], lse.extents[1], lse.extents[2]};
  for (int64 b = 0; b < batch; ++b)
    for (int64 i = 0; i < queries; ++i)
      for (int64 h = 0; h < heads; ++h) rows.push_back(all[static_cast<std::size_t>((b * heads + h) * queries + i)]);
  return rows;
}

/// Both answers of attention_answers for a case, in P. Rows in no sequence stay NaN.
template <class P, class T, class Element, class O, class Mask, class Score>
attention_answers answers_of(cached_case<T, Element, O>& c, const Mask& mask, const Score& score) {
  const cached_case_options& s = c.options;
  const giwa::index<4> shape{1, c.rows(), s.heads, s.head_size_v};
  auto o = new_buffer<double, 4>(shape, case_layout::contiguous, 0, true);
  auto plain = new_buffer<O, 4>(shape, case_layout::contiguous, 0, true);
  auto lse = new_buffer<float, 3>({1, s.heads, c.rows()}, case_layout::contiguous, 0, true), plain_lse = lse;
  gathered_case<P> gathered(c);
  giwa::attention_options options{};
  options.scale = s.scale;
  options.align = s.align;
  if (s.sinks) options.sinks = c.sinks.view();
  options.lse = lse.view();
  const auto exact = giwa::detail::params_of(gathered.views(c.q_offsets, o.view()), mask, score, options);
  options.lse = plain_lse.view();
  const auto rounded = giwa::detail::params_of(gathered.views(c.q_offsets, plain.view()), mask, score, options);

  attention_answers a;
  a.scales.resize(static_cast<std::size_t>(c.rows() * s.heads), row_scale{0, 0, 0});
  std::atomic<int64> next{0};
  const auto compute_heads = [&] {
    for (int64 i = next++; i < s.sequences() * s.heads; i = next++) {
      const int64 b = i / s.heads, head = i % s.heads;
      const auto h = exact.at(static_cast<int>(b), static_cast<int>(head));
      const auto r = rounded.at(static_cast<int>(b), static_cast<int>(head));
      for (int query = 0; query < h.queries(); ++query) {
        giwa::detail::attention_reference_row(exact, h, query);
        const int64 row = c.q_offsets[static_cast<std::size_t>(b)] + query;
        row_scale& scale = a.scales[static_cast<std::size_t>(row * s.heads + head)];
        scale = attention_plain_row(rounded, r, query);
        if (s.v_scales > 0)
          scale.values *= 3;  // weights times scales, which differ by a factor of up to 6, are rounded
      }
    }
  };
  std::vector<std::thread> threads;  // a case can take minutes of one thread
  for (unsigned i = 1; i < (small_mode() || draws_small ? 1 : std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
       ++i)
    threads.emplace_back(compute_heads);
  compute_heads();
  for (std::thread& t : threads) t.join();
  a.o = o.template elements<double>();
  a.plain = plain.template elements<double>();
  a.lse = rows_of_lse<float>(lse);
  a.plain_lse = rows_of_lse<float>(plain_lse);
  return a;
}

/// What the case's o and lse hold, against the answers in P; also that nothing outside of them was written.
template <class P, class T, class Element, class O>
attention_verdict judge(const cached_case<T, Element, O>& c, const attention_answers& a) {
  attention_verdict verdict =
      judge_attention<P, O>(c.options.head_size_v, c.o.template elements<double>(), a.o, a.plain, a.scales);
  if (verdict.ok() && c.options.lse)
    verdict.failure = judge_lse(rows_of_lse<float>(c.lse), a.lse, a.plain_lse, a.scales).failure;
  const int64 outside = c.o.written_outside() + (c.options.lse ? c.lse.written_outside() : c.lse.written());
  if (verdict.ok() && outside != 0)
    verdict.failure = std::to_string(outside) + " bytes were written outside the output";
  if (!verdict.ok()) verdict.failure += "; " + c.options.text();
  return verdict;
}

/// attention_cached on views that lie where `where` runs.
template <int HeadSize, int HeadSizeV, class Which = giwa::any_queries, class Where, class T, class Element, class O,
          class Mask, class Score>
giwa::status cached_of(const Where& where, const giwa::detail::cached_views<T, Element, O>& a, const Mask& mask,
                       const Score& score, const giwa::cached_options& options) {
  if (a.is_packed())
    return giwa::attention_cached<giwa::head_sizes<HeadSize, HeadSizeV>, Which>(
        where, a.cache, without_batch(a.q), without_batch(a.o), mask, score,
        giwa_test::with(options, giwa_test::sequences_of(a.packed)));
  return giwa::attention_cached<giwa::head_sizes<HeadSize, HeadSizeV>, Which>(where, a.cache, a.q, a.o, mask, score,
                                                                              options);
}

/// The keys [first, last) of a cache without pages.
template <class Element>
giwa::kv_cache<Element> part_of(giwa::kv_cache<Element> cache, int64 first, int64 last) {
  for (auto* v : {&cache.k, &cache.v})
    *v = {v->data() + first * v->stride(1), {v->extent(0), last - first, v->extent(2), v->extent(3)}, v->strides()};
  return cache;
}

/// run(views, options) for the keys between `cuts` in turn: the prior of each call is the result of the one before it. The
/// last result is in a.o and options.lse, every second one in other_o and other_lse, which may be the same views.
template <class T, class Element, class O, class Run>
giwa::status run_in_parts(const giwa::detail::cached_views<T, Element, O>& a, giwa::cached_options options,
                          const tensor_view<O, 4>& other_o, const tensor_view<float, 3>& other_lse,
                          const std::vector<int64>& cuts, const Run& run) {
  const tensor_view<float, 3> lse = options.lse;
  int64 first = 0;
  for (std::size_t i = 0; i <= cuts.size(); ++i) {
    const int64 last = i < cuts.size() ? cuts[i] : a.cache.k.extent(1);
    const bool here = (cuts.size() - i) % 2 == 0;
    auto views = a;
    views.o = here ? a.o : other_o;
    views.cache = part_of(a.cache, first, last);
    options.lse = here ? lse : other_lse;
    if (const giwa::status s = run(views, options); !s.ok()) return s;
    options.prior = {views.o, options.lse};
    if (a.is_packed()) options.prior.o = without_batch(views.o);
    options.sinks = {};  // they belong to one part
    first = last;
  }
  return {};
}

}  // namespace giwa_test

#endif
