// SPDX-License-Identifier: MIT
// read_cache on the CPU: every element type, and what is refused.
#include <giwa/host.hpp>

#include "support/catch.hpp"
#include "support/read_cache_case.hpp"

using namespace giwa_test;
using giwa::fp16;

TEST_CASE("caches become numbers") {
  const std::string faults = read_cache_faults([](auto& x) {
    return giwa::read_cache(giwa::host, x.c.views().cache, x.view(x.keys.data(), x.c.options.head_size),
                            x.view(x.values.data(), x.c.options.head_size_v));
  });
  CHECK(faults == "");
}

TEST_CASE("calls of read_cache that are refused") {
  static giwa::e4m3 k[2 * 8 * 64], v[2 * 8 * 64];
  static fp16 keys[2 * 8 * 64], values[2 * 8 * 64];
  static int pages[2], lengths[2];
  giwa::kv_cache<const giwa::e4m3> cache{.k = {k, {2, 8, 1, 64}}, .v = {v, {2, 8, 1, 64}}};
  const auto argument = [&](const giwa::index<4>& of_keys, const giwa::index<4>& of_values) {
    const giwa::status s = giwa::read_cache(giwa::host, cache, giwa::tensor_view<fp16, 4>(keys, of_keys),
                                            giwa::tensor_view<fp16, 4>(values, of_values));
    return std::string(s.ok() ? "" : s.argument);
  };
  CHECK(argument({2, 8, 1, 64}, {2, 8, 1, 64}) == "");
  CHECK(argument({1, 8, 1, 64}, {1, 8, 1, 64}) == "keys");
  CHECK(argument({2, 8, 2, 32}, {2, 8, 1, 64}) == "keys");
  CHECK(argument({2, 8, 1, 32}, {2, 8, 1, 64}) == "keys");
  CHECK(argument({2, 8, 1, 64}, {2, 7, 1, 64}) == "values");
  CHECK(argument({2, 8, 1, 64}, {2, 8, 1, 63}) == "values");
  cache.pages = {.indices = pages, .stride = 1, .most = 1}, cache.sequences = 2;
  CHECK(argument({2, 8, 1, 64}, {2, 8, 1, 64}) == "lengths");
  cache.lengths = lengths;
  CHECK(argument({2, 8, 1, 64}, {2, 8, 1, 64}) == "");
  const giwa::status none = giwa::read_cache(giwa::host, cache, giwa::tensor_view<fp16, 4>(keys, {2, 8, 1, 64}), {});
  CHECK(none.ok());
  const giwa::status shared = giwa::read_cache(giwa::host, cache, giwa::tensor_view<fp16, 4>(keys, {2, 8, 1, 64}),
                                               giwa::tensor_view<fp16, 4>(keys, {2, 8, 1, 64}));
  CHECK(std::string(shared.argument) == "values");
}

TEST_CASE("each rule of read_cache has its sentence") {
  static giwa::int8_code codes[4096];
  static float numbers[4096], scales[64];
  static int pages[4], lengths[2];
  struct call {
    giwa::kv_cache<const giwa::int8_code> cache{.k = {codes, {2, 8, 2, 16}}, .v = {codes + 1024, {2, 8, 2, 16}}};
    giwa::tensor_view<float, 4> keys{numbers, {2, 8, 2, 16}}, values{numbers + 1024, {2, 8, 2, 16}};
  };
  const auto refused = [](const auto& change, const std::string& argument, const std::string& words) {
    call c;
    change(c);
    const giwa::status s = giwa::read_cache(giwa::host, c.cache, c.keys, c.values);
    INFO(giwa::format_status(s).c_str() << " / " << argument << ": " << words);
    CHECK((!s.ok() && s.argument == argument && std::string(s.message).find(words) != std::string::npos));
  };
  CHECK(giwa::read_cache(giwa::host, call{}.cache, call{}.keys, call{}.values).ok());
  const giwa::index<4> sizes[] = {{1, 8, 2, 16}, {2, 7, 2, 16}, {2, 8, 1, 16}, {2, 8, 2, 15}};
  const char* const rules[] = {"as many sequences as keys", "as many rows as keys", "as many heads as the cache",
                               "the head size of the cache"};
  for (int d = 0; d < 4; ++d) {
    refused([&](call& c) { c.values = {numbers + 1024, sizes[d]}; }, "values", rules[d]);
    if (d >= 2) refused([&](call& c) { c.keys = {numbers, sizes[d]}; }, "keys", rules[d]);
    if (d < 3)
      refused(
          [&](call& c) {
            c.cache.v = {codes + 1024, sizes[d]};
          },
          "v",
          d == 0   ? "as many sequences or pages as k"
          : d == 1 ? "as many rows as k"
                   : "as many heads as k");
  }
  const giwa::index<4> all{2, 8, 2, 16};
  refused([&](call& c) { c.keys = c.values = {numbers, {1, 8, 2, 16}}; }, "values", "overlaps keys");
  refused(
      [&](call& c) {
        c.keys = {numbers, {1, 8, 2, 16}}, c.values = {numbers + 1024, {1, 8, 2, 16}};
      },
      "keys", "as many sequences as the cache");
  refused([&](call& c) { c.cache.k = {nullptr, all}; }, "k", "null");
  refused([&](call& c) { c.cache.v = {nullptr, all}; }, "v", "null");
  refused([&](call& c) { c.keys = {nullptr, all}; }, "keys", "null");
  refused([&](call& c) { c.cache.k = {codes, all, {256, 32, 16, 2}}; }, "k", "stride 1");
  refused([&](call& c) { c.keys = {numbers, all, {256, 32, 16, 2}}; }, "keys", "stride 1");
  refused([&](call& c) { c.values = {numbers + 1024, all, {256, 32, 16, 2}}; }, "values", "stride 1");
  for (const bool of_keys : {true, false})
    refused(
        [&](call& c) {
          (of_keys ? c.keys : c.values) = {numbers + (of_keys ? 0 : 1024), all, {256, 0, 16, 1}};
        },
        of_keys ? "keys" : "values", "must not be zero");
  const auto in_pages = [&](call& c) {
    c.cache.pages = {.indices = pages, .stride = 2, .most = 2}, c.cache.sequences = 2, c.cache.lengths = lengths;
  };
  refused([&](call& c) { in_pages(c), c.cache.lengths = nullptr; }, "lengths", "");
  refused([&](call& c) { in_pages(c), c.cache.sequences = 3; }, "keys", "as many sequences as the cache");
  refused([&](call& c) { in_pages(c), c.cache.pages.most = giwa::attention_limits::length; }, "pages",
          "the pages of a sequence have too many keys");
  // What the call reads shares no memory with what it writes.
  const auto as_codes = [](float* x) { return reinterpret_cast<giwa::int8_code*>(x); };
  const auto as_numbers = [](float* x) { return reinterpret_cast<int*>(x); };
  for (const bool of_keys : {true, false}) {
    float* const written = numbers + (of_keys ? 100 : 1124);
    const std::string words = of_keys ? "must not overlap keys" : "must not overlap values";
    refused([&](call& c) { c.cache.k = {as_codes(written), all}; }, "k", words);
    refused([&](call& c) { c.cache.v = {as_codes(written), all}; }, "v", words);
    refused([&](call& c) { c.cache.lengths = as_numbers(written); }, "lengths", words);
    refused([&](call& c) { in_pages(c), c.cache.pages.indices = as_numbers(written); }, "pages", words);
    refused([&](call& c) { c.cache.scales.k = {written, {2, 8, 2}}; }, "scales", words);
    refused([&](call& c) { c.cache.scales.v = {written, {2, 8, 2}}; }, "scales", words);
  }
  refused([&](call& c) { c.cache.scales.k = {scales, {2, 7, 2}}; }, "scales", "");
  refused([&](call& c) { c.cache.scales.v = {scales, {2, 1, 3}}; }, "scales", "");
}
