// SPDX-License-Identifier: MIT
// read_cache on the CPU: every element type, and what is refused.
#include <giwa/host.hpp>

#include "support/catch.hpp"
#include "support/read_cache_case.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

template <class T, class Element>
std::string fault_of(int64 head_size, int64 head_size_v) {
  for (int i = 0; i < 20; ++i) {
    read_cache_case<T, Element> x(
        read_cache_options(i, head_size, head_size_v, giwa::detail::takes_scales<Element> && sizeof(Element) == 1),
        i % 2 == 0 ? 100 : 70, i % 4 == 3 ? (giwa::detail::codes_of<Element>) : 8);
    const giwa::status state = giwa::read_cache(giwa::host, x.c.views().cache, x.view(x.keys.data(), head_size),
                                                x.view(x.values.data(), head_size_v));
    if (!state.ok()) return giwa::format_status(state).c_str();
    if (const std::string fault = x.fault(); !fault.empty()) return fault;
  }
  return "";
}

}  // namespace

TEST_CASE("caches become numbers") {
  CHECK(fault_of<fp16, giwa::e4m3>(64, 64) == "");
  CHECK(fault_of<float, giwa::e4m3>(24, 40) == "");
  CHECK(fault_of<bf16, giwa::int8_code>(128, 96) == "");
  CHECK(fault_of<fp16, giwa::int4_pair>(64, 32) == "");
  CHECK(fault_of<float, giwa::int4_pair>(34, 64) == "");
  CHECK(fault_of<float, giwa::q8_0>(64, 96) == "");
  CHECK(fault_of<float, giwa::q4_0>(96, 64) == "");
  CHECK(fault_of<fp16, fp16>(64, 64) == "");
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
