// SPDX-License-Identifier: MIT
// Calls of attention_cached on random caches for benchmarks: contiguous, in pages, of uneven lengths, 8-bit; checked.
#pragma once

#include <giwa/attention.cuh>
#include <giwa/cache.cuh>

#include <cmath>
#include <numeric>

#include "alternate.hpp"
#include "random.hpp"

namespace bench {

using giwa::device_array, giwa::fp16, giwa::int64, giwa::tensor_view;

struct cached_shape {
  int64 sequences, heads, kv_heads, keys;
  int64 longest = 0;  // keys of the last sequence, if these are not as many as the others have
  int64 queries = 1;
  int64 page = 0;    // 0: contiguous
  int64 window = 0;  // 0: all keys are seen
  int64 shared = 0;  // first keys of every sequence, in the same pages

  int64 most() const { return longest > 0 ? longest : keys; }
  int64 all_keys() const { return (sequences - 1) * (keys - shared) + most(); }
  std::vector<int> lengths() const {
    std::vector<int> n(static_cast<std::size_t>(sequences), static_cast<int>(keys));
    n.back() = static_cast<int>(most());
    return n;
  }
  /// Keys that are read.
  int64 read() const { return window > 0 ? sequences * (window + queries - 1) : all_keys(); }
  std::string text() const {
    std::string s = std::to_string(sequences) + "x" + std::to_string(heads) + "(" + std::to_string(kv_heads) + ")x" +
                    std::to_string(keys);
    if (longest > 0) s += "+" + std::to_string(longest);
    return s;
  }
};

/// Bytes of keys and values that a call reads.
template <class Element, int HeadSize>
int64 bytes_of_cache(const cached_shape& s) {
  return s.read() * s.kv_heads * 2 * HeadSize * int64{sizeof(Element)};
}

template <class T>
device_array<T> random_array(int64 n, giwa::uint64 seed) {
  auto x = require(device_array<T>::allocate(nullptr, n));
  require(giwa::for_all(nullptr, n, fill_normal<T>{x.data(), giwa::philox(seed)}));
  return x;
}
inline std::vector<int> shuffled(int64 n) {
  std::vector<int> x(static_cast<std::size_t>(n));
  std::iota(x.begin(), x.end(), 0);
  const giwa::philox random(2026);
  for (std::size_t i = x.size(); i > 1; --i) std::swap(x[i - 1], x[random(i).word[0] % i]);
  return x;
}
inline device_array<unsigned char> cached_workspace(const giwa::cached_problem& p) {
  const auto gpu = require(giwa::properties_of(require(giwa::current_device())));
  const int64 bytes = giwa::workspace_bytes(p, {.multiprocessors = gpu.multiprocessors});
  return require(device_array<unsigned char>::allocate(nullptr, bytes));
}

/// Keys and values of all sets: (sets, keys, kv heads, head size) each.
template <class Element, int HeadSize>
struct cache_pool {
  int64 keys, kv_heads;
  int sets;
  device_array<Element> k, v;

  cache_pool(int64 keys_of_set, int64 heads, int count)
      : keys(keys_of_set),
        kv_heads(heads),
        sets(count),
        k(random_array<Element>(size(), 1)),
        v(random_array<Element>(size(), 2)) {}
  int64 set_size() const { return keys * kv_heads * HeadSize; }
  int64 size() const { return sets * set_size(); }
};

/// Keys or values of a head of one sequence, as they count: (keys, head size).
template <class Element>
struct gather {
  tensor_view<const Element, 4> from;
  const int* pages;  // null: those of one element of the first dimension
  int64 first, head;
  float scale;
  fp16* to;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    const int64 size = from.extent(3), length = from.extent(1), key = i / size;
    const int64 at = pages == nullptr ? first : pages[key / length];
    to[i] = giwa::convert<fp16>{}(giwa::convert<float>{}(from(at, key % length, head, i % size)) * scale);
  }
};

/// What calls of one shape need besides keys and values.
template <class Element, int HeadSize, class Mask>
class cached_calls {
 public:
  using keys_and_values = cache_pool<Element, HeadSize>;

  cached_calls(std::shared_ptr<keys_and_values> p, const cached_shape& s, const Mask& mask)
      : pool_(std::move(p)), s_(s), mask_(mask) {
    lengths_ = require(giwa::to_device(nullptr, s_.lengths()));
    if (s_.page > 0) {  // each sequence has its pages at random places
      const std::vector<int> pages = shuffled(pool_->keys / s_.page);
      std::vector<int> table(static_cast<std::size_t>(s_.sequences * stride()), -1);
      auto next = static_cast<std::size_t>(s_.shared / s_.page);
      for (int64 b = 0; b < s_.sequences; ++b)
        for (int64 i = 0; i * s_.page < (b + 1 == s_.sequences ? s_.most() : s_.keys); ++i)
          table[static_cast<std::size_t>(b * stride() + i)] =
              i * s_.page < s_.shared ? pages[static_cast<std::size_t>(i)] : pages[next++];
      table_ = require(giwa::to_device(nullptr, table));
    }
    q_ = random_array<fp16>(s_.sequences * s_.queries * s_.heads * HeadSize, 3);
    o_ = require(device_array<fp16>::allocate(nullptr, q_.size()));
    scale_ = require(giwa::to_device(nullptr, std::vector<float>{scale}));
    workspace_ = cached_workspace({.sequences = s_.sequences,
                                   .queries = s_.queries,
                                   .keys = s_.most(),
                                   .heads = s_.heads,
                                   .kv_heads = s_.kv_heads,
                                   .head_size = HeadSize,
                                   .head_size_v = HeadSize,
                                   .cache_bytes = sizeof(Element),
                                   .page_size = s_.page});
  }

  tensor_view<const fp16, 4> q() const { return {q_.data(), {s_.sequences, s_.queries, s_.heads, HeadSize}}; }
  tensor_view<fp16, 4> o() { return {o_.data(), q().extents()}; }
  tensor_view<const Element, 4> keys(const device_array<Element>& all, int set) const {
    const Element* const from = all.data() + set * pool_->set_size();
    const int64 row = s_.kv_heads * HeadSize;
    if (s_.page > 0) return {from, {pool_->keys / s_.page, s_.page, s_.kv_heads, HeadSize}};
    // Sequence b begins at key b * keys; the views of the shorter ones reach into the next ones.
    return {from, {s_.sequences, s_.most(), s_.kv_heads, HeadSize}, {s_.keys * row, row, HeadSize, 1}};
  }
  giwa::kv_cache<const Element> cache(int set) const {
    giwa::kv_cache<const Element> c{.k = keys(pool_->k, set), .v = keys(pool_->v, set)};
    if (s_.page > 0 || s_.longest > 0) c.lengths = lengths_.data();
    if (s_.page > 0) {
      c.pages.indices = table_.data();
      c.pages.stride = c.pages.most = stride();
      c.sequences = s_.sequences;
    }
    if constexpr (sizeof(Element) == 1) c.scales.k = c.scales.v = {scale_.data(), {1, 1, 1}};
    return c;
  }

  void operator()(cudaStream_t stream, int set) {
    require(giwa::attention_cached<HeadSize>(stream, cache(set), q(), o(), mask_,
                                             {.workspace = {workspace_.data(), {workspace_.size()}}}));
  }

  /// Ends the program unless `run` writes the right o of set 0: the last sequence and head of keys, against attention in
  /// double.
  template <class Run>
  void require_right(const Run& run) {
    const int64 group = s_.heads / s_.kv_heads, b = s_.sequences - 1, head = s_.kv_heads - 1, n = s_.most() * HeadSize;
    require(cudaMemsetAsync(o_.data(), 0xff, static_cast<std::size_t>(o_.size()) * sizeof(fp16), nullptr));
    run(nullptr, 0);
    auto k = require(device_array<fp16>::allocate(nullptr, n));
    auto v = require(device_array<fp16>::allocate(nullptr, n));
    const int* const pages = s_.page > 0 ? table_.data() + b * stride() : nullptr;
    const float factor = sizeof(Element) == 1 ? scale : 1;
    require(giwa::for_all(nullptr, n, gather<Element>{keys(pool_->k, 0), pages, b, head, factor, k.data()}));
    require(giwa::for_all(nullptr, n, gather<Element>{keys(pool_->v, 0), pages, b, head, factor, v.data()}));
    const giwa::index<4> rows{1, s_.queries, group, HeadSize}, sizes{1, s_.most(), 1, HeadSize};
    const int64 first = b * s_.queries * s_.heads * HeadSize + head * group * HeadSize;
    const giwa::index<4> strides{0, s_.heads * HeadSize, HeadSize, 1};
    auto exact = require(device_array<float>::allocate(nullptr, s_.queries * group * HeadSize));
    require(giwa::attention_reference(cudaStream_t{}, tensor_view<const fp16, 4>(q_.data() + first, rows, strides),
                                      tensor_view<const fp16, 4>(k.data(), sizes),
                                      tensor_view<const fp16, 4>(v.data(), sizes),
                                      tensor_view<float, 4>(exact.data(), rows), mask_));
    std::vector<float> expected(static_cast<std::size_t>(exact.size()));
    std::vector<fp16> got(static_cast<std::size_t>(o_.size()));
    require(giwa::to_host(nullptr, exact, expected));
    require(giwa::to_host(nullptr, o_, got));
    double worst = 0, largest = 0;
    for (int64 i = 0; i < exact.size(); ++i) {
      const int64 query = i / (group * HeadSize), at = first + query * s_.heads * HeadSize + i % (group * HeadSize);
      const double x = expected[static_cast<std::size_t>(i)];
      const double off = std::abs(giwa::convert<double>{}(got[static_cast<std::size_t>(at)]) - x);
      worst = std::max(worst, std::isnan(off) ? 1e9 : off);
      largest = std::max(largest, std::abs(x));
    }
    if (worst < 4e-3 * largest) return;
    std::fprintf(stderr, "attention_cached: %s, pages of %lld, is off by %g, with %g the largest number\n",
                 s_.text().c_str(), static_cast<long long>(s_.page), worst, largest);
    std::exit(1);
  }

 private:
  static constexpr float scale = 0.5f;  // of 8-bit elements
  int64 stride() const { return giwa::ceil_div(s_.most(), s_.page); }

  std::shared_ptr<keys_and_values> pool_;
  cached_shape s_;
  Mask mask_;
  device_array<fp16> q_, o_;
  device_array<int> table_, lengths_;
  device_array<float> scale_;
  device_array<unsigned char> workspace_;
};

}  // namespace bench
