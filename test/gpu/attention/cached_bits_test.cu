// SPDX-License-Identifier: MIT
// attention_cached on a GPU gives a row the same bits alone and in a batch, in slices of heads, in pages of any size.
#include <algorithm>

#include "gpu/attention/cached_bits.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::causal;
using giwa::fp16;

namespace {

/// One long sequence with one head of keys, whose scales differ in 8 bits.
template <class Element>
void check_long() {
  for (const int64 page : {0, 64})
    for (const int length : {16384, 20000, 33001}) {
      cached_case_options c = bits_case_of(page, false);
      c.heads = 8;
      c.kv_heads = 1;
      c.queries = {1};
      c.keys = 33001;
      c.most = page == 0 ? 0 : giwa::ceil_div(c.keys, page);
      c.lengths = {length};
      if (sizeof(Element) == 1) c.k_scales = c.v_scales = 7;
      CAPTURE(c.text());
      bits<fp16, Element> x(c);
      const auto all = x.gpu.views();
      const int64 most = giwa::workspace_bytes(
          all.problem(), {.multiprocessors = static_cast<int>(device_attribute(cudaDevAttrMultiProcessorCount))});
      REQUIRE((most > 0 && most <= int64{8} << 20));  // the work tile is divided
      for (const int64 bytes : {int64{0}, int64{16}, most / 10, most / 2, most, int64{8} << 20}) {
        CAPTURE(bytes);
        x.run(all, x.gpu.call_options(bytes));
        CHECK(x.same());
      }
      if (small_mode()) break;
    }
}

/// Gives each key and each value of a case a scale, which no layout changes.
template <class Element>
void give_scales(cached_case<fp16, Element>& x) {
  cached_case_options c = x.options;
  c.k_scales = c.v_scales = 7;
  cached_case<fp16, Element> scaled(c);  // draws scales before q, k and v
  scaled.q = x.q, scaled.k = x.k, scaled.v = x.v, scaled.sinks = x.sinks;
  x = std::move(scaled);
  const int64 size = c.page_size == 0 ? c.keys : c.page_size;
  for (std::size_t b = 0; b < x.keys.size(); ++b)
    for (int64 key = 0; key < x.keys[b]; ++key)
      for (int64 at = x.element[b][static_cast<std::size_t>(key / size)], head = 0; at >= 0 && head < c.kv_heads;
           ++head) {
        x.k_scales.view()(at, key % size, head) = 0.25f + static_cast<float>((31 * key + 17 * head) % 64) / 32;
        x.v_scales.view()(at, key % size, head) = 0.25f + static_cast<float>((37 * key + 11 * head) % 64) / 32;
      }
}

/// Pages and layouts of every kind, all of which have the same numbers. `scaled`: each key and each value has a scale.
template <class Element>
void check_layouts(bool scaled = false) {
  std::vector<fp16> o;
  std::vector<float> lse;
  for (const int64 page : {0, 1, 16, 24, 64, 128, 1000})
    for (const case_layout layout : {case_layout::contiguous, case_layout::heads_first, case_layout::padded})
      for (const int offset : {0, 1}) {
        cached_case_options c = bits_case_of(page, true);
        c.layout.fill(layout);
        c.offset = offset;
        cached_case<fp16, Element> numbers(c);  // of the same seed
        if (scaled) give_scales(numbers);
        bits<fp16, Element> x(std::move(numbers));
        const auto next = x.on_host.o.template elements<fp16>();
        const auto next_lse = x.on_host.lse.template elements<float>();
        CAPTURE(c.text());
        CHECK((o.empty() || same_bits(next, o)));
        CHECK((lse.empty() || same_bits(next_lse, lse)));
        o = next, lse = next_lse;
        if (small_mode() && offset == 0) break;
      }
}

}  // namespace

TEST_CASE("alone, with any workspace, and in slices of heads, on tensor cores") {
  for (const int64 page : {0, 16, 128})
    for (const bool packed : {false, true}) {
      cached_case_options c = bits_case_of(page, packed);
      c.lists = page == 16 && packed;
      check_bits<fp16, fp16>(c);
    }
}

TEST_CASE("infinite values whose weights are 0 or not, in a leaf that some rows see whole") {
  for (const int64 page : {0, 16}) {
    cached_case_options options = bits_case_of(page, true);
    options.lengths[4] = 901;  // queries 2 to 7 see all keys of leaf 6, and others share their tiles
    options.spread = 4;
    cached_case<fp16> c(options);
    const int64 size = page == 0 ? c.options.keys : page;
    int infinite = 0;
    for (int64 key = 768; key < 896; ++key) {
      const int64 element = c.element[4][static_cast<std::size_t>(key / size)];
      c.v.view()(element, key % size, key % 2, key % 128) =
          giwa::convert<fp16>{}(key % 3 == 0 ? -HUGE_VALF : HUGE_VALF);
    }
    bits<fp16, fp16> x{cached_case<fp16>(c)};
    for (const fp16 o : x.o) infinite += std::isinf(giwa::convert<float>{}(o)) ? 1 : 0;
    CHECK(infinite > 0);
    check_bits(std::move(c));
  }
}

TEST_CASE("rows past the end of a sequence, in its last page and in shared memory, change no bit") {
  for (const int64 page : {0, 16, 24, 64, 128}) {
    cached_case_options c = bits_case_of(page, page == 16);
    c.lengths = {1499, 130, 5, 0, 801, 255};
    bits<fp16, fp16> x(c);
    check_past_the_end(x);
    bits<giwa::bf16, giwa::bf16> y(c);
    check_past_the_end(y);
    c.k_scales = c.v_scales = page == 16 ? 7 : 4;
    bits<fp16, giwa::e4m3> z(c);
    check_past_the_end(z);
    if (small_mode() && page == 16) return;
  }
}

TEST_CASE("many rows: rows past the end change no bit, with NaN in keys that some rows see, or none") {
  for (const int64 page : {0, 3, 16, 64}) {
    cached_case_options options = bits_case_of(page, page != 64, true);
    options.lengths = {1499, 1130, 5, 0, 1401, 255};
    cached_case<fp16> c(options);
    check_past_the_end(bits<fp16, fp16>(cached_case<fp16>(c)));
    check_past_the_end(bits<fp16, fp16, 128, 128, giwa::full>(cached_case<fp16>(c)));
    for (const std::size_t b : {std::size_t{1}, std::size_t{4}}) {  // the last key of each
      const int64 key = options.lengths[b] - 1, size = page == 0 ? options.keys : page;
      c.v.view()(c.element[b][static_cast<std::size_t>(key / size)], key % size, 1, 5) = giwa::convert<fp16>{}(NAN);
    }
    bits<fp16, fp16> x{cached_case<fp16>(c)};
    const auto is_nan = [](fp16 o) { return std::isnan(giwa::convert<float>{}(o)); };
    CHECK(std::count_if(x.o.begin(), x.o.end(), is_nan) > 0);
    check_past_the_end(x);
    if (small_mode()) return;
  }
}

TEST_CASE("many rows: alone, with any workspace, and in slices of heads") {
  for (const int64 page : {0, 16})
    for (const bool packed : {false, true}) {
      cached_case_options c = bits_case_of(page, packed, true);
      c.lengths = {1500, 1130, 5, 0, 1400, 256};  // up to two splits of 1024 keys
      check_bits<fp16, fp16>(c);
      if (small_mode() && packed) return;
    }
}

TEST_CASE("many rows of one long sequence, whose splits all multiprocessors share") {
  for (const int64 page : {0, 48})
    for (const int64 queries : {64, 200}) {
      cached_case_options c = bits_case_of(page, false);
      c.heads = 8;
      c.kv_heads = 2;
      c.queries = {queries};
      c.keys = 20000;
      c.most = page == 0 ? 0 : giwa::ceil_div(c.keys, page);
      c.lengths = {19999};
      CAPTURE(c.text());
      bits<fp16, fp16> x(c);
      const gpu_array<unsigned char> workspace(std::size_t{64} << 20);
      const auto all = x.gpu.views();
      const int64 most = giwa::workspace_bytes(
          all.problem(), {.multiprocessors = static_cast<int>(device_attribute(cudaDevAttrMultiProcessorCount))});
      REQUIRE((most > 0 && most <= int64{64} << 20));
      for (const int64 bytes : {int64{0}, most / 2, most, int64{64} << 20}) {
        CAPTURE(bytes);
        giwa::cached_options options = x.gpu.call_options();
        options.workspace = {workspace.data(), {bytes}};
        x.run(all, options);
        CHECK(x.same());
      }
      if (small_mode()) break;
    }
}

TEST_CASE("one long sequence with one head of keys, of which every multiprocessor has a split") {
  check_long<fp16>();
  check_long<giwa::e4m3>();
}

TEST_CASE("alone and in slices of heads, of an 8-bit cache") {
  cached_case_options c = bits_case_of(16, true);
  c.k_scales = 7, c.v_scales = 4;
  check_bits<fp16, giwa::e4m3>(c);
}

TEST_CASE("alone and in slices of heads, of an 8-bit cache with scales of each key") {
  for (const int64 page : {0, 16})
    for (const bool hostile : {false, true}) {
      cached_case_options options = bits_case_of(page, page == 16);
      options.k_scales = options.v_scales = 7;
      cached_case<fp16, giwa::e4m3> c(options);
      // Leaf 3 of sequence 4 with scales that some rows do not see: largest, infinite, NaN and 0.
      if (hostile) {
        const int64 size = page == 0 ? c.options.keys : page;
        const float scales[4] = {3e38f, HUGE_VALF, NAN, 0.f};
        for (int64 key = 794; key < 800; ++key)
          c.v_scales.view()(c.element[4][static_cast<std::size_t>(key / size)], key % size, key % 2) = scales[key % 4];
        c.v_scales.view()(c.element[0][static_cast<std::size_t>(300 / size)], 300 % size, 0) = 3e30f;
        c.v_scales.view()(c.element[0][static_cast<std::size_t>(700 / size)], 700 % size, 1) = HUGE_VALF;
      }
      check_bits(std::move(c));
    }
}

TEST_CASE("a batch in reverse order, and 60 copies of it") {
  for (const int64 page : {0, 64}) {
    const cached_case_options c = bits_case_of(page, false);
    bits<fp16, fp16> x(c);
    const auto all = x.gpu.views();
    auto a = all;
    giwa::cached_options options = x.gpu.call_options(1 << 20);
    a.q = reversed(all.q), a.o = reversed(all.o);
    options.lse = reversed(options.lse);
    const std::vector<int> lengths(c.lengths.rbegin(), c.lengths.rend());
    const gpu_array<int> reversed_lengths(lengths);
    a.cache.lengths = reversed_lengths.data();
    if (page == 0) {
      a.cache.k = reversed(all.cache.k), a.cache.v = reversed(all.cache.v);
    } else {
      a.cache.pages.indices += 5 * all.cache.pages.stride;
      a.cache.pages.stride = -all.cache.pages.stride;
    }
    x.run(a, options);
    CHECK(x.same());
    if (page == 0) continue;
    // 360 sequences: a batch stride of 0 would make rows of o overlap, so q, the table and o are copied.
    std::vector<int> many_lengths, indices;
    for (int n = 0; n < 60; ++n) {
      many_lengths.insert(many_lengths.end(), c.lengths.begin(), c.lengths.end());
      indices.insert(indices.end(), x.on_host.indices.begin(), x.on_host.indices.end());
    }
    const gpu_array<int> gpu_lengths(many_lengths), gpu_indices(indices);
    const std::vector<fp16> of_q = x.on_host.q.elements<fp16>(), expected = x.on_host.o.elements<fp16>();
    std::vector<fp16> q;
    for (int n = 0; n < 60; ++n) q.insert(q.end(), of_q.begin(), of_q.end());
    const gpu_array<fp16> gpu_q(q), gpu_o(q.size());
    const giwa::index<4> shape{360, 3, c.heads, 128};
    a = all;
    a.q = tensor_view<const fp16, 4>(gpu_q.data(), shape);
    a.o = tensor_view<fp16, 4>(gpu_o.data(), shape);
    a.cache.lengths = gpu_lengths.data();
    a.cache.pages.indices = gpu_indices.data();
    a.cache.sequences = 360;
    options = x.gpu.call_options(1 << 20);
    options.lse = {};
    x.run(a, options);
    const std::vector<fp16> o = gpu_o.to_host();
    int copies = 0;
    for (std::size_t n = 0; n < 60; ++n)
      copies += same_bits(std::vector<fp16>(o.begin() + static_cast<std::ptrdiff_t>(n * expected.size()),
                                            o.begin() + static_cast<std::ptrdiff_t>((n + 1) * expected.size())),
                          expected);
    CHECK(copies == 60);
  }
}

TEST_CASE("many rows: pages of every size") {
  std::vector<fp16> o;
  for (const int64 page : {0, 1, 3, 16, 24, 64, 100, 256}) {
    cached_case_options c = bits_case_of(page, true, true);
    bits<fp16, fp16> x(c);  // the numbers of the same seed
    const auto next = x.on_host.o.template elements<fp16>();
    CAPTURE(c.text());
    CHECK((o.empty() || same_bits(next, o)));
    o = next;
  }
}

TEST_CASE("TMA, cp.async and copies of elements: pages and layouts of every kind") {
  check_layouts<fp16>();
  check_layouts<giwa::e4m3>();
  check_layouts<giwa::e4m3>(true);
}
