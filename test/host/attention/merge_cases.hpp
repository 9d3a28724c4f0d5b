// SPDX-License-Identifier: MIT
// Parts of attention to merge, and what they merge to in double precision: on the CPU, in the host executor, on a GPU.
#ifndef GIWA_TEST_HOST_ATTENTION_MERGE_CASES_HPP
#define GIWA_TEST_HOST_ATTENTION_MERGE_CASES_HPP

#include <giwa/attention/call/merge.hpp>
#include <giwa/numeric/philox.hpp>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace giwa_test {

using giwa::int64;
using giwa::tensor_view;

/// How a merge's tensors lie in memory: `gap` elements are added to the rows of o, so that vectors do not fit if it is odd.
struct merge_case {
  int64 parts, batch, queries, heads, size;
  int64 gap = 0;
  bool heads_first = false;  // (parts, batch, heads, queries, head size) in memory
  int in_place = -1;         // the part that o and lse are

  giwa::index<5> strides() const {
    const int64 row = size + gap, rows = queries * heads * row;
    return {batch * rows, rows, heads_first ? row : heads * row, heads_first ? queries * row : row, 1};
  }
  int64 elements() const { return batch * queries * heads * (size + gap); }  // of one part
  int64 rows() const { return batch * queries * heads; }
};

/// The tensors of a merge in host memory. Some parts have no key for some rows, whose o is NaN; one row has none at all.
template <class T, class O>
struct merge_data {
  merge_case c;
  std::vector<T> parts;
  std::vector<float> parts_lse, lse;
  std::vector<O> o;

  explicit merge_data(const merge_case& of, giwa::uint64 seed = 1) : c(of) {
    const giwa::philox random(seed);
    parts.resize(static_cast<std::size_t>(c.parts * c.elements()));
    parts_lse.resize(static_cast<std::size_t>(c.parts * c.rows()));
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = giwa::convert<T>{}(4 * random.uniform<float>(i) - 2);
    for (std::size_t i = 0; i < parts_lse.size(); ++i) parts_lse[i] = 12 * random.uniform<float>(parts.size() + i) - 3;
    lse.assign(static_cast<std::size_t>(c.rows()), 77.0f);
    o.assign(static_cast<std::size_t>(c.elements()), giwa::convert<O>{}(77.0f));
    const auto l = lse_parts();
    for (int64 b = 0; b < c.batch; ++b)
      for (int64 h = 0; h < c.heads; ++h)
        for (int64 q = 0; q < c.queries; ++q)
          for (int64 i = 0; i < c.parts; ++i)
            if ((b + h + q) % 5 == 3 || (i + q) % 4 == 1) no_keys(i, b, q, h);
    static_cast<void>(l);
  }
  void no_keys(int64 i, int64 b, int64 q, int64 h) {
    const_cast<float&>(lse_parts()(i, b, h, q)) = -HUGE_VALF;
    for (int64 d = 0; d < c.size; ++d) const_cast<T&>(o_parts()(i, b, q, h, d)) = giwa::convert<T>{}(NAN);
  }

  // Views of these vectors, or of copies of them that begin at these pointers.
  tensor_view<const T, 5> o_parts(const T* at = nullptr) const {
    return {at != nullptr ? at : parts.data(), {c.parts, c.batch, c.queries, c.heads, c.size}, c.strides()};
  }
  tensor_view<const float, 4> lse_parts(const float* at = nullptr) const {
    return {at != nullptr ? at : parts_lse.data(), {c.parts, c.batch, c.heads, c.queries}};
  }
  tensor_view<O, 4> out(O* at) const {
    const auto s = c.strides();
    return {at, {c.batch, c.queries, c.heads, c.size}, {s[1], s[2], s[3], s[4]}};
  }
  tensor_view<float, 3> out_lse(float* at) const { return {at, {c.batch, c.heads, c.queries}}; }

  /// Empty, or what is wrong with results in memory of the host. `parts` and `parts_lse` are those before the merge.
  std::string failure(const O* result, const float* result_lse) const {
    const auto x = o_parts();
    const auto l = lse_parts();
    const auto got = out(const_cast<O*>(result));
    const auto got_lse = out_lse(const_cast<float*>(result_lse));
    const double unit = std::is_same_v<O, giwa::bf16> ? 0x1p-8 : std::is_same_v<O, giwa::fp16> ? 0x1p-11 : 0x1p-21;
    for (int64 b = 0; b < c.batch; ++b)
      for (int64 q = 0; q < c.queries; ++q)
        for (int64 h = 0; h < c.heads; ++h) {
          const std::string at = "(" + std::to_string(b) + ", " + std::to_string(q) + ", " + std::to_string(h) + ")";
          double sum = 0;
          for (int64 i = 0; i < c.parts; ++i) sum += std::exp(static_cast<double>(l(i, b, h, q)));
          const double want_lse = std::log(sum), off = std::fabs(static_cast<double>(got_lse(b, h, q)) - want_lse);
          if (std::isinf(want_lse) ? got_lse(b, h, q) != -HUGE_VALF : !(off <= 2e-6 * (1 + std::fabs(want_lse))))
            return "lse of " + at;
          for (int64 d = 0; d < c.size; ++d) {
            double want = 0;
            for (int64 i = 0; i < c.parts; ++i)
              if (l(i, b, h, q) != -HUGE_VALF)
                want += std::exp(static_cast<double>(l(i, b, h, q))) / sum *
                        static_cast<double>(giwa::convert<float>{}(x(i, b, q, h, d)));
            const double have = static_cast<double>(giwa::convert<float>{}(got(b, q, h, d)));
            if (!(std::fabs(have - want) <= 2.5 * unit))
              return "element " + std::to_string(d) + " of " + at + ": " + std::to_string(have) + " instead of " +
                     std::to_string(want);
          }
        }
    return "";
  }
};

inline std::vector<merge_case> merge_cases() {
  return {{1, 1, 1, 1, 1},
          {2, 2, 5, 3, 64},
          {3, 1, 9, 2, 128, 8},
          {4, 2, 3, 2, 40, 0, true},
          {2, 1, 7, 3, 33},
          {5, 1, 4, 2, 80, 3},
          {2, 3, 4, 1, 512},
          {3, 1, 2, 2, 1100, 3, false, 2},
          {9, 1, 6, 2, 8, 0, true},
          {2, 2, 5, 3, 64, 0, false, 0},
          {3, 1, 9, 2, 100, 5, true, 2},
          {2, 1, 70, 3, 16, 0, false, 1},
          {3, 2, 1, 5, 7, 0, true, 1}};
}

/// run(data, o, lse) for a copy of each case; `failures` gets a line for each that is wrong.
template <class T, class O, class Run>
std::string merge_failures(const Run& run) {
  std::string failures;
  for (const merge_case& c : merge_cases()) {
    if (c.in_place >= 0 && !std::is_same_v<T, O>) continue;
    const merge_data<T, O> before(c);
    merge_data<T, O> data = before;
    const std::string failure = run(before, data);
    if (!failure.empty())
      failures += std::to_string(c.parts) + " parts of " + std::to_string(c.size) + ": " + failure + "\n";
  }
  return failures;
}

}  // namespace giwa_test

#endif
