// SPDX-License-Identifier: MIT
// Caches for read_cache, and what it must write.
#ifndef GIWA_TEST_SUPPORT_READ_CACHE_CASE_HPP
#define GIWA_TEST_SUPPORT_READ_CACHE_CASE_HPP

#include <cstring>
#include <string>
#include <vector>

#include "support/cached_case.hpp"

namespace giwa_test {

/// A cache, and tensors of T for its keys and values, whose rows are `gap` elements longer.
template <class T, class Element>
struct read_cache_case {
  cached_case<giwa::bf16, Element> c;
  int64 rows, gap;
  std::vector<T> keys, values;

  read_cache_case(const cached_case_options& options, int64 row_count, int64 gap_of_rows)
      : c(options), rows(row_count), gap(gap_of_rows) {
    const auto all = [&](int64 width) {
      std::vector<T> x(static_cast<std::size_t>(options.sequences() * rows * options.kv_heads * (width + gap)));
      std::memset(static_cast<void*>(x.data()), 0x5a, x.size() * sizeof(T));
      return x;
    };
    keys = all(options.head_size), values = all(options.head_size_v);
  }
  tensor_view<T, 4> view(T* at, int64 width) const {
    const int64 row = c.options.kv_heads * (width + gap);
    return {at, {c.options.sequences(), rows, c.options.kv_heads, width}, {rows * row, row, width + gap, 1}};
  }

  /// Empty, or what is wrong with the tensors after the call.
  std::string fault() {
    const auto of = [&](std::vector<T>& got, case_buffer<Element, 4>& from, case_buffer<float, 3>& scales, int shape,
                        int64 width) -> std::string {
      std::vector<T> want(got.size());
      std::memset(static_cast<void*>(want.data()), 0x5a, want.size() * sizeof(T));
      const auto to = view(want.data(), width);
      for (int64 b = 0; b < c.options.sequences(); ++b)
        for (int64 key = 0; key < std::min(rows, c.keys[static_cast<std::size_t>(b)]); ++key)
          for (int64 h = 0; h < c.options.kv_heads; ++h)
            for (int64 d = 0; d < width; ++d)
              to(b, key, h, d) = giwa::convert<T>{}(c.value(from, scales, shape, b, key, h, d) + 0.f);
      for (std::size_t i = 0; i < got.size(); ++i)
        if (std::memcmp(&got[i], &want[i], sizeof(T)) != 0 &&
            giwa::convert<float>{}(got[i]) != giwa::convert<float>{}(want[i]))
          return "element " + std::to_string(i) + ": " + std::to_string(giwa::convert<float>{}(got[i])) +
                 " instead of " + std::to_string(giwa::convert<float>{}(want[i])) + "; " + c.options.text();
      return "";
    };
    const cached_case_options& o = c.options;
    const std::string of_keys = of(keys, c.k, c.k_scales, o.k_scales, o.head_size),
                      of_values = of(values, c.v, c.v_scales, o.v_scales, o.head_size_v);
    return !of_keys.empty() ? "keys, " + of_keys : !of_values.empty() ? "values, " + of_values : "";
  }
};

/// Case i: pages or none, lengths, layouts, scales of every shape.
inline cached_case_options read_cache_options(int i, int64 head_size, int64 head_size_v, bool has_scales) {
  cached_case_options c;
  c.seed = static_cast<uint64>(i + 1);
  c.kv_heads = 1 + i % 3, c.heads = c.kv_heads;
  c.queries = {1, 1, 1};
  c.page_size = i % 3 == 0 ? 0 : 5 * i;
  c.keys = 90;
  c.most = c.page_size == 0 ? 0 : 90 / c.page_size + 1;
  c.lengths = {90, 0, 65};
  c.strange = i % 3 == 1 ? 4 : 0;
  c.lists = i % 4 == 2;
  c.offset = i % 2;
  c.layout[1] = i % 2 == 0 ? case_layout::contiguous : case_layout::heads_first;
  c.head_size = head_size, c.head_size_v = head_size_v;
  if (has_scales) c.k_scales = i % 9 - 1, c.v_scales = (i + 3) % 9 - 1;
  return c;
}

/// The faults of call(x), which reads the cache of x, a read_cache_case, into its keys and values, of every element.
template <class T, class Element, class Call>
std::string read_cache_fault(int64 head_size, int64 head_size_v, const Call& call) {
  constexpr bool has_scales = giwa::detail::takes_scales<Element> && sizeof(Element) == 1;
  for (int i = 0; i < 20; ++i) {
    read_cache_case<T, Element> x(read_cache_options(i, head_size, head_size_v, has_scales), i % 2 == 0 ? 100 : 70,
                                  i % 4 == 3 ? giwa::detail::codes_of<Element> : 8);
    const giwa::status state = call(x);
    if (!state.ok()) return giwa::format_status(state).c_str();
    if (const std::string fault = x.fault(); !fault.empty()) return fault;
  }
  return "";
}
template <class Call>
std::string read_cache_faults(const Call& call) {
  using namespace giwa;
  return read_cache_fault<fp16, e4m3>(64, 64, call) + read_cache_fault<float, e4m3>(24, 40, call) +
         read_cache_fault<bf16, int8_code>(128, 96, call) + read_cache_fault<fp16, int4_pair>(64, 32, call) +
         read_cache_fault<float, int4_pair>(34, 64, call) + read_cache_fault<float, q8_0>(64, 96, call) +
         read_cache_fault<float, q4_0>(96, 64, call) + read_cache_fault<fp16, fp16>(64, 64, call);
}

}  // namespace giwa_test

#endif
