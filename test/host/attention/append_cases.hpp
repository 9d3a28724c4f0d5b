// SPDX-License-Identifier: MIT
// Rows to append to a cache, and what the cache then holds in double precision: on the CPU, in the host executor, on a GPU.
#ifndef GIWA_TEST_HOST_ATTENTION_APPEND_CASES_HPP
#define GIWA_TEST_HOST_ATTENTION_APPEND_CASES_HPP

#include <giwa/attention/call/append.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/call_options.hpp"
#include "support/random.hpp"

namespace giwa_test {

using giwa::e4m3;
using giwa::int64;
using giwa::int8_code;
using giwa::tensor_view;

enum class rotary_kind { none, base, table, custom };
enum class cache_kind { contiguous, blocks, lists };

/// A user's rotation: angles that grow with the pair, and a factor, as YaRN has one.
struct custom_rotary : giwa::rotary_layout {
  GIWA_HOST_DEVICE giwa::rotation operator()(int64 position, int pair) const {
    // One rounding on host and device: compilers differ in what they fuse.
    const float angle =
        giwa::detail::fused_multiply_add(0.01f, static_cast<float>(position % 1000), static_cast<float>(pair));
    return {1.25f * giwa::cos(angle), 1.25f * giwa::sin(angle)};
  }
};

/// A call. Members that a case leaves out are the simplest.
struct append_case {
  std::vector<int64> rows;              // new ones of each sequence; all the same unless packed
  int64 kv_heads, heads, size, size_v;  // heads 0: no q; size_v 0: no v
  rotary_kind rotary = rotary_kind::none;
  giwa::rotary_layout layout{};
  cache_kind kind = cache_kind::contiguous;
  int64 page_size = 4;  // with pages
  bool packed = false, heads_first = false, fused = false, hostile = false, lengths = true;
  bool slots = false, positions = false, wide = false;
  int64 gap = 0;              // elements between heads: odd ones leave no room for vectors
  int scales = -1;            // bit d: dimension d of the scales has the size of the cache; -1: no scales
  bool finds_scales = false;  // the call finds scales of every size, and writes them
  bool k_mean = false, hadamard = false;
};

/// The memory of a call.
template <class T, class Element>
struct append_memory {
  std::vector<T> k_new, v_new, q, q_to;
  std::vector<Element> k, v;
  std::vector<int> lengths, indices, page_offsets, row_offsets, slots, positions;
  std::vector<int64> wide_slots, wide_positions;
  std::vector<float> k_scales, v_scales, cos, sin, k_mean;
};
/// Where it is.
template <class T, class Element>
struct append_pointers {
  T *k_new, *v_new, *q, *q_to;
  Element *k, *v;
  int *lengths, *indices, *page_offsets, *row_offsets, *slots, *positions;
  int64 *wide_slots, *wide_positions;
  float *k_scales, *v_scales, *cos, *sin, *k_mean;
};
template <class T, class Element>
append_pointers<T, Element> pointers_to(append_memory<T, Element>& m) {
  return {m.k_new.data(),    m.v_new.data(),     m.q.data(),          m.q_to.data(),           m.k.data(),
          m.v.data(),        m.lengths.data(),   m.indices.data(),    m.page_offsets.data(),   m.row_offsets.data(),
          m.slots.data(),    m.positions.data(), m.wide_slots.data(), m.wide_positions.data(), m.k_scales.data(),
          m.v_scales.data(), m.cos.data(),       m.sin.data(),        m.k_mean.data()};
}

template <class T>
double number(T x) {
  return giwa::convert<double>{}(x);
}
template <class T>
bool equal_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Whether two memories are the same bit by bit, except that one NaN is as good as another: processors differ in the one that an operation returns.
template <class T>
bool same_numbers(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0 && !(number(a[i]) != number(a[i]) && number(b[i]) != number(b[i])))
      return false;
  return true;
}

template <class T, class Element>
bool same_memory(const append_memory<T, Element>& a, const append_memory<T, Element>& b) {
  return same_numbers(a.k_new, b.k_new) && same_numbers(a.q, b.q) && same_numbers(a.q_to, b.q_to) &&
         same_numbers(a.k, b.k) && same_numbers(a.v, b.v) && same_numbers(a.k_scales, b.k_scales) &&
         same_numbers(a.v_scales, b.v_scales);
}

/// A call with its memory, before it runs.
template <class T, class Element>
class append_data {
 public:
  static constexpr int64 capacity = 23, table_rows = 64;  // keys of a sequence, positions of a table
  static constexpr double theta = 10000;

  append_case c;
  append_memory<T, Element> memory;
  bool in_place = false;  // q_to is q

  explicit append_data(const append_case& of, giwa::uint64 seed = 1) : c(of), random_(seed) {
    for (const int64 n : c.rows) all_rows_ += n;
    fill(memory.k_new, c.fused ? all_rows_ * fused_heads() * head(c.size) : all_rows_ * c.kv_heads * head(c.size));
    fill(memory.v_new, all_rows_ * c.kv_heads * head(c.size_v));
    fill(memory.q, all_rows_ * c.heads * head(c.size));
    for (std::size_t i = 3; i < memory.v_new.size(); i += 97)
      memory.v_new[i] = giwa::convert<T>{}(i % 2 == 0 ? INFINITY : NAN);
    memory.q_to = memory.q;
    for (int64 i = 0; i < c.kv_heads * c.size; ++i) memory.k_mean.push_back(0.25f * static_cast<float>(i * 5 % 9 - 4));
    in_place = c.fused;
    make_sequences();
    make_cache();
    make_tables();
  }

  int64 sequences() const { return static_cast<int64>(c.rows.size()); }
  int64 page_rows() const { return c.kind == cache_kind::contiguous ? capacity : c.page_size; }
  int64 most() const { return (capacity + c.page_size - 1) / c.page_size; }
  int64 elements() const { return c.kind == cache_kind::contiguous ? sequences() : sequences() * most() + 3; }

  giwa::detail::append_views<T, Element> views(const append_pointers<T, Element>& p) const {
    giwa::detail::append_views<T, Element> a;
    if (c.fused) {
      a.q = in_rows(p.k_new, c.heads, c.size, fused_heads());
      a.k = in_rows(p.k_new + c.heads * head(c.size), c.kv_heads, c.size, fused_heads());
      a.v = in_rows(p.k_new + (c.heads + c.kv_heads) * head(c.size), c.kv_heads, c.size, fused_heads());
      a.q_to = in_rows(p.k_new, c.heads, c.size, fused_heads());
    } else {
      a.k = in_rows(p.k_new, c.kv_heads, c.size, c.kv_heads);
      if (c.size_v > 0) a.v = in_rows(p.v_new, c.kv_heads, c.size_v, c.kv_heads);
      if (c.heads > 0) a.q = in_rows(p.q, c.heads, c.size, c.heads);
      if (c.heads > 0) a.q_to = in_rows(in_place ? p.q : p.q_to, c.heads, c.size, c.heads);
    }
    a.cache.k = in_cache(p.k, c.size);
    a.cache.v = in_cache(p.v, c.size_v);
    if (c.kind != cache_kind::contiguous) {
      a.cache.pages = giwa::page_table{.indices = p.indices, .most = most()};
      if (c.kind == cache_kind::blocks) a.cache.pages.stride = most() + 2;
      if (c.kind == cache_kind::lists) a.cache.pages.offsets = p.page_offsets;
      a.cache.sequences = sequences();
    }
    if (c.lengths) a.cache.lengths = p.lengths;
    if (c.scales >= 0) a.cache.scales = {scale_view(p.k_scales), scale_view(p.v_scales)};
    const giwa::index<3> sizes{elements(), page_rows(), c.kv_heads};
    if (c.finds_scales) a.k_scales = {p.k_scales, sizes};
    if (c.finds_scales && c.size_v > 0) a.v_scales = {p.v_scales, sizes};
    if (c.k_mean) a.k_mean = {p.k_mean, {c.kv_heads, c.size}};
    a.hadamard = c.hadamard;
    a.is_packed = c.packed;
    if (c.packed) a.packed = {p.row_offsets, sequences(), 0};
    if (c.slots)
      a.slots = c.wide ? giwa::row_numbers(tensor_view<int64, 1>(p.wide_slots, {all_rows_}))
                       : giwa::row_numbers(tensor_view<int, 1>(p.slots, {all_rows_}));
    if (c.positions)
      a.positions = c.wide ? giwa::row_numbers(tensor_view<int64, 1>(p.wide_positions, {all_rows_}))
                           : giwa::row_numbers(tensor_view<int, 1>(p.positions, {all_rows_}));
    return a;
  }

  /// f(rotation of the case).
  template <class F>
  auto with_rotary(const append_pointers<T, Element>& p, const F& f) const {
    const tensor_view<const float, 2> cos(p.cos, {table_rows, c.layout.size / 2}),
        sin(p.sin, {table_rows, c.layout.size / 2});
    switch (c.rotary) {
      case rotary_kind::none: return f(giwa::no_rotary{});
      case rotary_kind::base: return f(giwa::rotary_base(theta, c.layout));
      case rotary_kind::table: return f(giwa::rotary_table(cos, sin, c.layout));
      default: return f(custom_rotary{c.layout});
    }
  }

  /// The public call.
  template <class Where>
  giwa::status call(const Where& where, const append_pointers<T, Element>& p) const {
    const auto a = views(p);
    return with_rotary(p, [&](const auto& rotary) {
      giwa::append_options<T> options{.positions = a.positions, .slots = a.slots};
      options.k_scales = a.k_scales, options.v_scales = a.v_scales, options.k_mean = a.k_mean;
      options.hadamard = a.hadamard;
      if (!c.packed) {
        if (c.heads > 0) options.q = a.q, options.q_to = a.q_to;
        return giwa::append_to_cache(where, a.cache, a.k, a.v, rotary, options);
      }
      if (c.heads > 0) options.q = packed(a.q), options.q_to = packed(a.q_to);
      const auto k = packed(a.k), v = packed(a.v);
      return a.needs_sequences(c.layout.size > 0)
                 ? giwa::append_to_cache(where, a.cache, k, v, rotary,
                                         giwa_test::with(options, giwa_test::sequences_of(a.packed)))
                 : giwa::append_to_cache(where, a.cache, k, v, rotary, options);
    });
  }

  /// Empty, or what is wrong with the memory after the call.
  std::string failure(append_memory<T, Element>& after) {
    const auto before = views(pointers_to(memory)), got = views(pointers_to(after));
    std::vector<bool> k_written(memory.k.size()), v_written(memory.v.size());
    for (int64 row = 0; row < all_rows_; ++row) {
      const auto [batch, r] = source_of(row);
      const int64 position = position_of(row);
      for (int64 h = 0; h < c.heads; ++h) {
        const std::vector<expected> want = changed(before.q, batch, r, h, position, false);
        for (int64 d = 0; d < c.size; ++d) {
          const std::string wrong = in_sequence(row)
                                        ? difference(got.q_to(batch, r, h, d), want[static_cast<std::size_t>(d)], 1)
                                        : difference(got.q_to(batch, r, h, d), {before.q_to(batch, r, h, d)}, 1);
          if (!wrong.empty()) return "q " + at(row, h, d) + wrong;
        }
      }
      const auto [element, key] = place_of(row);
      if (element < 0) continue;
      const giwa::cache_scales& scales = c.finds_scales ? got.cache.scales : before.cache.scales;
      for (int64 h = 0; h < c.kv_heads; ++h) {
        const std::vector<expected> want = changed(before.k, batch, r, h, position, true);
        if (c.finds_scales) {
          double of_k = 0, of_v = 0;
          for (const expected& e : want) of_k = larger(of_k, e.want);
          for (int64 d = 0; d < (before.has_v() ? c.size_v : 0); ++d)
            of_v = larger(of_v, number(before.v(batch, r, h, d)));
          if (!is_scale(scales.k(element, key, h), of_k) ||
              (before.has_v() && !is_scale(scales.v(element, key, h), of_v)))
            return "scale " + at(row, h, 0);
        }
        for (int64 d = 0; d < c.size; ++d) {
          const std::string wrong = difference(got.cache.k(element, key, h, d), want[static_cast<std::size_t>(d)],
                                               scale(scales.k, element, key, h));
          if (!wrong.empty()) return "k " + at(row, h, d) + wrong;
          k_written[static_cast<std::size_t>(&got.cache.k(element, key, h, d) - after.k.data())] = true;
        }
        for (int64 d = 0; d < (before.has_v() ? c.size_v : 0); ++d) {
          const std::string wrong =
              difference(got.cache.v(element, key, h, d), {before.v(batch, r, h, d)}, scale(scales.v, element, key, h));
          if (!wrong.empty()) return "v " + at(row, h, d) + wrong;
          v_written[static_cast<std::size_t>(&got.cache.v(element, key, h, d) - after.v.data())] = true;
        }
      }
    }
    for (std::size_t i = 0; i < memory.k.size(); ++i)
      if (!k_written[i] && !equal_bits(after.k[i], memory.k[i]))
        return "element " + std::to_string(i) + " of k written";
    for (std::size_t i = 0; i < memory.v.size(); ++i)
      if (!v_written[i] && !equal_bits(after.v[i], memory.v[i]))
        return "element " + std::to_string(i) + " of v written";
    return "";
  }
  static double larger(double largest, double x) { return std::isfinite(x) ? std::max(largest, std::abs(x)) : largest; }
  /// Whether it is the scale of numbers up to `largest`.
  static bool is_scale(float scale, double largest) {
    double most = 1;
    if constexpr (sizeof(Element) == 1) most = static_cast<double>(giwa::detail::largest_of(Element::from_bits(0)));
    const double want = std::max(largest / most, 0x1p-126);
    return std::abs(static_cast<double>(scale) - want) <= 2e-5 * want;
  }
  /// How many rows the call writes.
  int64 written_rows() const {
    int64 n = 0;
    for (int64 row = 0; row < all_rows_; ++row) n += place_of(row).first >= 0;
    return n;
  }

 private:
  // What an element should be before it is divided and rounded: a number with its error, or one of the source's.
  struct expected {
    T source{};
    bool copied = true;
    double want = 0, slack = 0;
    expected(T x) : source(x), want(number(x)) {}
    expected(double w, double s) : copied(false), want(w), slack(s) {}
  };

  int64 head(int64 size) const { return size + c.gap; }
  int64 fused_heads() const { return c.heads + 2 * c.kv_heads; }
  template <class Any>
  void fill(std::vector<Any>& x, int64 n) {
    x.resize(static_cast<std::size_t>(n));
    for (Any& e : x) e = giwa::convert<Any>{}(static_cast<float>(random_.below(16000) - 8000) / 1000);
  }

  tensor_view<T, 4> in_rows(T* at, int64 heads, int64 size, int64 row_heads) const {
    const int64 rows = c.packed ? all_rows_ : c.rows[0], row = row_heads * head(size);
    return {at, {c.packed ? 1 : sequences(), rows, heads, size}, {rows * row, row, head(size), 1}};
  }
  tensor_view<Element, 4> in_cache(Element* at, int64 size) const {
    const int64 h = head(size), element = 2 * page_rows() * c.kv_heads * h;  // as with another layer in between
    return {at,
            {elements(), page_rows(), c.kv_heads, size},
            {element, c.heads_first ? h : c.kv_heads * h, c.heads_first ? page_rows() * h : h, 1}};
  }
  tensor_view<const float, 3> scale_view(const float* at) const {
    return {at,
            {(c.scales & 1) != 0 ? elements() : 1, (c.scales & 2) != 0 ? page_rows() : 1,
             (c.scales & 4) != 0 ? c.kv_heads : 1}};
  }
  static double scale(const tensor_view<const float, 3>& s, int64 element, int64 key, int64 h) {
    if (s.data() == nullptr) return 1;
    return static_cast<double>(s(element % s.extent(0), s.extent(1) == 1 ? 0 : key, s.extent(2) == 1 ? 0 : h));
  }
  template <class Any>
  static tensor_view<Any, 3> packed(const tensor_view<Any, 4>& v) {
    return {v.data(), {v.extent(1), v.extent(2), v.extent(3)}, {v.stride(1), v.stride(2), v.stride(3)}};
  }

  void make_sequences() {
    int first = c.packed && c.hostile ? 2 : 0;  // rows before the first sequence are in none
    memory.row_offsets = {first};
    for (std::size_t b = 0; b < c.rows.size(); ++b) {
      first += static_cast<int>(c.rows[b]);
      memory.row_offsets.push_back(first);
      const int n = static_cast<int>(c.rows[b]);
      int length = n + static_cast<int>(random_.below(capacity - n + 1));
      const int odd[] = {-5, n - 1, 0, static_cast<int>(capacity) + 2, std::numeric_limits<int>::max(), n};
      if (c.hostile) length = b % 2 == 0 ? odd[b / 2 % 6] : length;
      memory.lengths.push_back(length);
    }
  }
  void make_cache() {
    const int64 n = 2 * elements() * page_rows() * c.kv_heads;
    fill(memory.k, n * head(c.size));
    fill(memory.v, n * head(c.size_v));
    std::vector<int> pages(static_cast<std::size_t>(elements()));
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int>(i);
    for (std::size_t i = pages.size(); i > 1; --i)
      std::swap(pages[i - 1], pages[static_cast<std::size_t>(random_.below(static_cast<int64>(i)))]);
    const bool lists = c.kind == cache_kind::lists;
    memory.page_offsets = {0};
    for (int64 b = 0, next = 0; c.kind != cache_kind::contiguous && b < sequences(); ++b) {
      const int64 own = lists && c.hostile ? b % (most() + 1) : most();
      for (int64 i = 0; i < (lists ? own : most() + 2); ++i) {
        const int odd[] = {-1, std::numeric_limits<int>::max(), static_cast<int>(elements()),
                           std::numeric_limits<int>::min()};
        const bool bad = i >= own || (c.hostile && random_.below(4) == 0);
        memory.indices.push_back(bad ? odd[random_.below(4)] : pages[static_cast<std::size_t>(next++)]);
      }
      memory.page_offsets.push_back(static_cast<int>(memory.indices.size()));
    }
    if (memory.indices.empty()) memory.indices.push_back(-1);  // a null pointer says that there are no pages
    for (int i = 0; i < (elements() * page_rows() * c.kv_heads); ++i) {
      memory.k_scales.push_back(0.01f + 0.0001f * static_cast<float>(random_.below(10000)));
      memory.v_scales.push_back(i % 3 == 0 ? 0.5f : 0.02f + 0.0001f * static_cast<float>(random_.below(10000)));
    }
  }
  void make_tables() {
    std::vector<int> places(static_cast<std::size_t>(elements() * page_rows()));
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int>(i);
    for (std::size_t i = places.size(); i > 1; --i)
      std::swap(places[i - 1], places[static_cast<std::size_t>(random_.below(static_cast<int64>(i)))]);
    for (int64 row = 0; row < all_rows_; ++row) {
      const int64 odd[] = {-1, -7, elements() * page_rows(), std::numeric_limits<int>::max()};
      int64 slot = c.hostile && row % 3 == 0 ? odd[row / 3 % 4] : places[static_cast<std::size_t>(row)];
      memory.slots.push_back(static_cast<int>(slot));
      if (c.hostile && row % 5 == 4) slot = int64{1} << 40;
      memory.wide_slots.push_back(slot);
      memory.positions.push_back(static_cast<int>(random_.below(table_rows)));
      memory.wide_positions.push_back(c.rotary == rotary_kind::base && row % 2 == 0 ? 10000000 - row
                                                                                    : memory.positions.back());
    }
    for (int64 n = 0; n < table_rows; ++n)
      for (int i = 0; i < c.layout.size / 2; ++i) {
        const double angle = static_cast<double>(n) * std::pow(theta, -2.0 * i / c.layout.size);
        memory.cos.push_back(static_cast<float>(std::cos(angle)));
        memory.sin.push_back(static_cast<float>(std::sin(angle)));
      }
  }

  std::pair<int64, int64> source_of(int64 row) const {
    if (c.packed) return {0, row};
    return {row / c.rows[0], row % c.rows[0]};
  }
  // The sequence of a row, and which key of it the row is; -1 for none.
  std::pair<int64, int64> key_of(int64 row) const {
    for (int64 b = 0, first = memory.row_offsets[0]; b < sequences(); ++b) {
      const int64 n = c.rows[static_cast<std::size_t>(b)];
      if (first <= row && row < first + n) {
        const int64 length = c.lengths ? memory.lengths[static_cast<std::size_t>(b)] : capacity;
        return {b, length - n + (row - first)};
      }
      first += n;
    }
    return {-1, 0};
  }
  bool in_sequence(int64 row) const {
    return (c.slots && (c.positions || c.layout.size == 0)) || key_of(row).first >= 0;
  }
  int64 position_of(int64 row) const {
    const auto i = static_cast<std::size_t>(row);
    if (c.positions) return c.wide ? memory.wide_positions[i] : memory.positions[i];
    return key_of(row).second;
  }
  std::pair<int64, int64> place_of(int64 row) const {
    if (!in_sequence(row)) return {-1, 0};
    if (c.slots) {
      const int64 slot =
          c.wide ? memory.wide_slots[static_cast<std::size_t>(row)] : memory.slots[static_cast<std::size_t>(row)];
      if (slot < 0 || slot >= elements() * page_rows()) return {-1, 0};
      return {slot / page_rows(), slot % page_rows()};
    }
    const auto [b, key] = key_of(row);
    if (b < 0 || key < 0) return {-1, 0};
    if (c.kind == cache_kind::contiguous) return {key < capacity ? b : -1, key};
    const int64 page = key / c.page_size;
    const bool lists = c.kind == cache_kind::lists;
    const int64 first = lists ? memory.page_offsets[static_cast<std::size_t>(b)] : b * (most() + 2);
    const int64 count = lists ? memory.page_offsets[static_cast<std::size_t>(b + 1)] - first : most();
    if (page >= std::min(count, most())) return {-1, 0};
    const int index = memory.indices[static_cast<std::size_t>(first + page)];
    return {index >= 0 && index < elements() ? index : -1, key % c.page_size};
  }

  expected rotated(const tensor_view<const T, 4>& x, int64 batch, int64 r, int64 h, int64 d, int64 position) const {
    const int64 i = d - c.layout.first, half = c.layout.size / 2;
    if (i < 0 || i >= c.layout.size) return {x(batch, r, h, d)};
    const int64 pair = c.layout.interleaved ? i / 2 : i % half;
    const bool second = c.layout.interleaved ? i % 2 == 1 : i >= half;
    const int64 other = c.layout.first + (c.layout.interleaved ? i ^ 1 : second ? i - half : i + half);
    double angle = static_cast<double>(position) * std::pow(theta, -2.0 * static_cast<double>(pair) / c.layout.size),
           factor = 1;
    if (c.rotary == rotary_kind::custom) {
      angle = 0.01 * static_cast<double>(position % 1000) + static_cast<double>(pair);
      factor = 1.25;
    }
    if (c.rotary == rotary_kind::table && (position < 0 || position >= table_rows)) return {NAN, 0};
    const double own = number(x(batch, r, h, d)), with = number(x(batch, r, h, other));
    return {factor * (own * std::cos(angle) + (second ? 1 : -1) * with * std::sin(angle)),
            4e-6 * (std::abs(own) + std::abs(with))};
  }

  /// A head after the rotation, the mean and the Hadamard transform.
  std::vector<expected> changed(const tensor_view<const T, 4>& x, int64 batch, int64 r, int64 h, int64 position,
                                bool of_k) const {
    std::vector<expected> row;
    for (int64 d = 0; d < c.size; ++d) {
      row.push_back(rotated(x, batch, r, h, d, position));
      expected& e = row.back();
      if (of_k && c.k_mean)
        e = {e.want - static_cast<double>(memory.k_mean[static_cast<std::size_t>(h * c.size + d)]), e.slack + 1e-6};
    }
    if (!c.hadamard) return row;
    double slack = 0;
    for (std::size_t step = 1; step < row.size(); step *= 2)
      for (std::size_t i = 0; i < row.size(); ++i)
        if ((i & step) == 0) {
          const double a = row[i].want, b = row[i | step].want;
          row[i].want = a + b, row[i | step].want = a - b;
          slack = std::max({slack, std::abs(a), std::abs(b)});
        }
    const double root = std::sqrt(static_cast<double>(row.size()));
    for (expected& e : row) e = {e.want / root, 1e-5 * slack / root + 1e-5};
    return row;
  }

  template <class Any>
  static std::string difference(Any got, const expected& e, double scale) {
    const double have = number(got);
    const std::string text = ": " + std::to_string(have) + " instead of " + std::to_string(e.want / scale);
    if constexpr (std::is_same_v<Any, T>)
      if (e.copied) return equal_bits(got, e.source) ? "" : text;
    const double want = e.want / scale;
    if (std::isnan(want)) return (std::is_same_v<Any, int8_code> ? have == 0 : std::isnan(have)) ? "" : text;
    const double slack = std::isinf(want) ? 0 : e.slack / scale + 1e-6 * std::abs(want);
    if constexpr (sizeof(Any) == 1) {
      // Half of the distance between numbers, but for a number that is almost halfway.
      const double low = number(Any(want - slack)), high = number(Any(want + slack));
      return (e.copied && scale == 1 ? have == number(Any(want)) : low <= have && have <= high) ? "" : text;
    } else {
      const double unit = std::ldexp(1.0, -giwa::precision_of<Any>::significand_bits);
      return std::abs(have - want) <= slack + unit * std::abs(want) + 0x1p-25 ? "" : text;
    }
  }
  static std::string at(int64 row, int64 h, int64 d) {
    return "(" + std::to_string(row) + ", " + std::to_string(h) + ", " + std::to_string(d) + ")";
  }

  random_sequence random_;
  int64 all_rows_ = 0;
};

inline std::vector<append_case> append_cases() {
  using enum rotary_kind;
  using enum cache_kind;
  const std::vector<int64> same{3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}, ones(13, 1),
      ragged{3, 0, 7, 1, 0, 5, 2, 4, 6, 1, 1, 3, 2};
  return {
      {.rows = {5}, .kv_heads = 1, .heads = 0, .size = 8, .size_v = 8},
      {.rows = same, .kv_heads = 2, .heads = 4, .size = 32, .size_v = 32, .rotary = base, .layout = {32}},
      {.rows = same,
       .kv_heads = 2,
       .heads = 3,
       .size = 64,
       .size_v = 16,
       .rotary = table,
       .layout = {32, true, 32},
       .heads_first = true},
      {.rows = same,
       .kv_heads = 3,
       .heads = 0,
       .size = 48,
       .size_v = 40,
       .rotary = base,
       .layout = {16, false, 8},
       .lengths = false},
      {.rows = same,
       .kv_heads = 2,
       .heads = 6,
       .size = 32,
       .size_v = 32,
       .rotary = base,
       .layout = {32},
       .fused = true},
      {.rows = ragged,
       .kv_heads = 1,
       .heads = 2,
       .size = 32,
       .size_v = 32,
       .rotary = custom,
       .layout = {16, true},
       .kind = blocks,
       .page_size = 1,
       .packed = true,
       .fused = true},
      {.rows = ragged,
       .kv_heads = 9,
       .heads = 10,
       .size = 16,
       .size_v = 16,
       .rotary = base,
       .layout = {16, true},
       .kind = blocks,
       .packed = true},
      {.rows = ragged,
       .kv_heads = 2,
       .heads = 4,
       .size = 33,
       .size_v = 7,
       .rotary = base,
       .layout = {10, false, 3},
       .kind = lists,
       .page_size = 3,
       .packed = true},
      {.rows = ragged,
       .kv_heads = 2,
       .heads = 4,
       .size = 32,
       .size_v = 32,
       .rotary = base,
       .layout = {30, true},
       .kind = lists,
       .page_size = 16,
       .packed = true,
       .heads_first = true,
       .hostile = true},
      {.rows = same,
       .kv_heads = 2,
       .heads = 1,
       .size = 32,
       .size_v = 32,
       .rotary = table,
       .layout = {32},
       .kind = blocks,
       .page_size = 5,
       .hostile = true},
      {.rows = same,
       .kv_heads = 2,
       .heads = 2,
       .size = 32,
       .size_v = 32,
       .rotary = base,
       .layout = {32},
       .hostile = true,
       .gap = 8},
      {.rows = same,
       .kv_heads = 2,
       .heads = 2,
       .size = 32,
       .size_v = 32,
       .rotary = base,
       .layout = {32},
       .kind = blocks,
       .page_size = 7,
       .gap = 5},
      {.rows = ones,
       .kv_heads = 4,
       .heads = 8,
       .size = 32,
       .size_v = 32,
       .rotary = base,
       .layout = {32},
       .kind = blocks,
       .page_size = 100,
       .packed = true},
      {.rows = ones,
       .kv_heads = 4,
       .heads = 8,
       .size = 32,
       .size_v = 32,
       .rotary = base,
       .layout = {32},
       .kind = blocks,
       .packed = true,
       .slots = true,
       .wide = true},
      {.rows = ragged,
       .kv_heads = 4,
       .heads = 8,
       .size = 32,
       .size_v = 32,
       .rotary = base,
       .layout = {32},
       .kind = blocks,
       .page_size = 16,
       .packed = true,
       .hostile = true,
       .slots = true,
       .positions = true,
       .wide = true},
      {.rows = ragged,
       .kv_heads = 4,
       .heads = 8,
       .size = 32,
       .size_v = 32,
       .rotary = table,
       .layout = {16},
       .packed = true,
       .hostile = true,
       .slots = true,
       .positions = true},
      {.rows = ragged,
       .kv_heads = 2,
       .heads = 0,
       .size = 24,
       .size_v = 24,
       .kind = lists,
       .packed = true,
       .slots = true},
      {.rows = same,
       .kv_heads = 1,
       .heads = 16,
       .size = 576,
       .size_v = 0,
       .rotary = table,
       .layout = {64, true, 512},
       .positions = true},
      {.rows = {1, 1},
       .kv_heads = 1,
       .heads = 2,
       .size = 512,
       .size_v = 512,
       .rotary = base,
       .layout = {512},
       .heads_first = true},
      {.rows = {2, 2}, .kv_heads = 2, .heads = 2, .size = 2, .size_v = 1, .rotary = base, .layout = {2}},
      // v wider than k, and than q.
      {.rows = {3, 3}, .kv_heads = 2, .heads = 2, .size = 16, .size_v = 96, .rotary = base, .layout = {16}},
      {.rows = {5}, .kv_heads = 1, .heads = 0, .size = 8, .size_v = 520},
  };
}

/// All cases, with scales that the call finds.
inline std::vector<append_case> found_scale_cases() {
  std::vector<append_case> cases = append_cases();
  for (append_case& c : cases) c.scales = 7, c.finds_scales = true;
  return cases;
}

/// The same with a mean of k and the Hadamard transform, of the heads that have one.
inline std::vector<append_case> transformed_cases() {
  std::vector<append_case> cases;
  for (const int64 size : {16, 32, 64, 128, 256})
    for (const auto rotary : {rotary_kind::none, rotary_kind::base, rotary_kind::table})
      cases.push_back({.rows = {3, 3, 3, 3, 3},
                       .kv_heads = 3,
                       .heads = 2,
                       .size = size,
                       .size_v = size == 64 ? 96 : size,
                       .rotary = rotary,
                       .layout = {rotary == rotary_kind::none ? 0 : static_cast<int>(size), size % 64 == 32},
                       .kind = size == 128 ? cache_kind::blocks : cache_kind::contiguous,
                       .hostile = size == 32,
                       .scales = 7,
                       .finds_scales = true,
                       .k_mean = size != 256,
                       .hadamard = rotary != rotary_kind::table || size != 64});
  return cases;
}

/// Each shape that scales may have, with and without a rotation.
inline std::vector<append_case> scale_cases() {
  std::vector<append_case> cases;
  for (int scales = -1; scales < 8; ++scales)
    for (const auto kind : {cache_kind::contiguous, cache_kind::blocks})
      cases.push_back({.rows = {3, 3, 3, 3, 3, 3},
                       .kv_heads = 3,
                       .heads = 2,
                       .size = 48,
                       .size_v = 32,
                       .rotary = scales % 2 == 0 ? rotary_kind::none : rotary_kind::base,
                       .layout = {scales % 2 == 0 ? 0 : 32, scales % 4 == 1},
                       .kind = kind,
                       .page_size = 6,
                       .heads_first = scales % 3 == 0,
                       .gap = scales == 5 ? 3 : 0,
                       .scales = scales});
  return cases;
}

/// What a run returns that does not take a case.
inline const std::string left_out = "left out";

/// run(data, memory) for each case with a copy of its memory; returns a line for each that is wrong.
template <class T, class Element, class Run>
std::string append_failures(const std::vector<append_case>& cases, const Run& run) {
  std::string failures;
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (const bool in_place : {false, true}) {
      append_data<T, Element> data(cases[i], i + 1);
      if (in_place && (data.in_place || cases[i].heads == 0)) continue;
      data.in_place = data.in_place || in_place;
      append_memory<T, Element> memory = data.memory;
      std::string failure = run(data, memory);
      if (failure == left_out) continue;
      if (failure.empty()) failure = data.failure(memory);
      if (failure.empty() && data.written_rows() == 0) failure = "the case writes no row";
      if (!failure.empty()) failures += "case " + std::to_string(i) + ": " + failure + "\n";
    }
  return failures;
}

}  // namespace giwa_test

#endif
