// SPDX-License-Identifier: MIT
// Calls of quantize in host memory, of every layout and with hostile numbers, and what double precision says of the results.
#ifndef GIWA_TEST_HOST_ATTENTION_QUANTIZE_CASES_HPP
#define GIWA_TEST_HOST_ATTENTION_QUANTIZE_CASES_HPP

#include <giwa/attention/call/quantize.hpp>

#include <cmath>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "support/attention_case.hpp"
#include "support/random.hpp"

namespace giwa_test {

using giwa::int4_pair;
using giwa::int8_code;

/// Rows of a scale; channels: scales are those of channels.
constexpr int channels = -1;

struct quantize_case {
  giwa::index<4> sizes{1, 1, 1, 1};  // batch, rows, heads, head size
  int rows = 1;                      // of a scale, or channels
  case_layout layout = case_layout::contiguous;
  int offset = 0;        // of the first elements
  bool k_major = false;  // codes
  bool hostile = false;  // NaN, infinity, rows of zeros, numbers at the ends of the range

  std::string text() const {
    std::ostringstream s;
    s << sizes[0] << " x " << sizes[1] << " x " << sizes[2] << " x " << sizes[3] << ", rows " << rows << ", "
      << name_of(layout) << ", offset " << offset << (k_major ? ", K-major" : "") << (hostile ? ", hostile" : "");
    return s.str();
  }
};

/// A number rounded to a code.
template <class Code>
double rounded_to(double x) {
  if constexpr (std::is_same_v<Code, int4_pair>)
    return Code(static_cast<float>(x))[0];
  else
    return static_cast<double>(Code(x));
}

template <class T, class Code>
struct quantize_data {
  static constexpr int64 pair = giwa::detail::codes_of<Code>;  // numbers of an element of codes
  quantize_case options;
  case_buffer<T, 4> x;
  case_buffer<Code, 4> codes;
  case_buffer<float, 3> scales;   // of rows
  case_buffer<float, 2> channel;  // of channels

  explicit quantize_data(const quantize_case& c) : options(c) {
    const auto& n = c.sizes;
    const int64 groups = c.rows == channels || c.rows == 0 ? 1 : giwa::ceil_div(n[1], int64{c.rows});
    const case_layout written = c.layout == case_layout::broadcast ? case_layout::contiguous : c.layout;
    x = new_buffer<T, 4>(n, c.layout, c.offset, false);
    codes = new_buffer<Code, 4>({n[0], n[1], n[2], n[3] / pair}, c.k_major ? case_layout::k_major : written, c.offset,
                                true);
    scales = new_buffer<float, 3>({n[0], groups, n[2]}, written, c.offset, true);
    channel = new_buffer<float, 2>({n[2], n[3]}, written, c.offset, true);
    random_sequence random(static_cast<uint64>(n[3] + c.rows + 7));
    const auto view = x.view();
    for (int64 b = 0; b < n[0]; ++b)
      for (int64 row = 0; row < n[1]; ++row)
        for (int64 head = 0; head < n[2]; ++head) {
          const int64 kind = random.below(12);  // of a row
          for (int64 i = 0; i < n[3]; ++i)
            view(b, row, head, i) = giwa::convert<T>{}(number(random, c.hostile ? kind : 11, head));
        }
  }

  template <class Where>
  giwa::status call(const Where& where, const T* from, Code* to, float* rows, float* of_channels) {
    const tensor_view<const T, 4> in = x.at(const_cast<T*>(from));
    if (options.rows == channels) return giwa::quantize(where, in, codes.at(to), channel.at(of_channels));
    return giwa::quantize(where, in, codes.at(to), scales.at(rows), {.rows = options.rows});
  }

  /// What is wrong with the codes and scales in memory, or "".
  std::string fault() {
    const auto& n = options.sizes;
    const bool of_channels = options.rows == channels;
    std::ostringstream s;
    if (codes.written_outside() != 0 || scales.written_outside() != 0 || channel.written_outside() != 0)
      return options.text() + ": memory beside the tensors is written";
    if ((of_channels ? scales.written() : channel.written()) != 0) return options.text() + ": other scales are written";
    const auto in = x.view();
    const auto out = codes.view();
    const auto of_rows = scales.view();
    const auto of_channel = channel.view();
    const int64 rows = options.rows > 0 ? options.rows : n[1];
    const auto scale_at = [&](int64 b, int64 row, int64 head, int64 i) {
      return of_channels ? of_channel(head, i) : of_rows(b, row / rows, head);
    };
    // The largest finite magnitude of each scale's numbers.
    std::vector<double> largest(static_cast<std::size_t>(of_channels ? n[2] * n[3] : n[0] * of_rows.extent(1) * n[2]));
    const auto number_of_scale = [&](int64 b, int64 row, int64 head, int64 i) {
      return static_cast<std::size_t>(of_channels ? head * n[3] + i
                                                  : (b * of_rows.extent(1) + row / rows) * n[2] + head);
    };
    const auto for_each = [&](const auto& f) {
      for (int64 b = 0; b < n[0]; ++b)
        for (int64 row = 0; row < n[1]; ++row)
          for (int64 head = 0; head < n[2]; ++head)
            for (int64 i = 0; i < n[3]; ++i) f(b, row, head, i);
    };
    for_each([&](int64 b, int64 row, int64 head, int64 i) {
      const double size = std::abs(giwa::convert<double>{}(in(b, row, head, i)));
      double& most = largest[number_of_scale(b, row, head, i)];
      if (std::isfinite(size)) most = std::max(most, size);
    });
    const double limit = pair == 2 ? 7 : std::is_same_v<Code, int8_code> ? 127 : 448;
    int64 faults = 0;
    for_each([&](int64 b, int64 row, int64 head, int64 i) {
      const double scale = scale_at(b, row, head, i), number = giwa::convert<double>{}(in(b, row, head, i));
      const double wanted = std::max(largest[number_of_scale(b, row, head, i)] / limit, 0x1p-126);
      const double code = code_at(out, b, row, head, i), exact = number / scale, slack = 1e-6 * std::abs(exact);
      bool right = std::abs(scale - wanted) <= 0x1p-22 * wanted;
      if (std::isnan(number))
        right = right && (std::is_same_v<Code, giwa::e4m3> ? std::isnan(code) : code == 0);
      else if (std::isinf(number))
        right = right && code == std::copysign(limit, number);
      else  // half of the distance between codes, but for a number that is almost halfway
        right = right && rounded_to<Code>(exact - slack) <= code && code <= rounded_to<Code>(exact + slack);
      if (right || faults++ > 0) return;
      s << options.text() << ": element " << b << ' ' << row << ' ' << head << ' ' << i << " is " << number
        << ", its code " << code << ", its scale " << scale << ", which should be " << wanted;
    });
    if (faults > 1) s << ", and " << faults - 1 << " more";
    return s.str();
  }

 private:
  static double code_at(const tensor_view<Code, 4>& codes, int64 b, int64 row, int64 head, int64 i) {
    if constexpr (pair == 1)
      return static_cast<double>(codes(b, row, head, i));
    else
      return giwa::detail::number_of_row<double>(&codes(b, row, head, 0), i);
  }
  static double number(random_sequence& random, int64 kind, int64 head) {
    const double unit = static_cast<double>(random.below(1 << 20)) / (1 << 19) - 1;  // [-1, 1)
    const int64 some = random.below(9);
    switch (kind) {
      case 0: return 0;
      case 1: return some == 0 ? std::nan("") : unit;
      case 2: return some == 0 ? INFINITY : some == 1 ? -INFINITY : unit;
      case 3: return some < 5 ? std::nan("") : -INFINITY;
      case 4: return unit * 0x1p-24;  // subnormal in fp16
      case 5: return unit * 65504;
      case 6: return std::round(unit * 127);  // int8 codes, and ties of e4m3
      case 7: return std::is_same_v<T, giwa::fp16> ? unit : unit * 0x1p-130;
      case 8: return std::is_same_v<T, giwa::fp16> ? unit : unit * 0x1.fep127;
      default: return unit * static_cast<double>(head + 1) * (some == 0 ? 30 : 1);
    }
  }
};

inline std::vector<quantize_case> quantize_cases() {
  std::vector<quantize_case> all;
  const giwa::index<4> sizes[] = {{2, 70, 3, 128}, {1, 200, 2, 64},  {3, 5, 2, 96}, {1, 9, 5, 40},
                                  {2, 3, 1, 600},  {1, 131, 2, 256}, {1, 1, 1, 1},  {2, 300, 1, 33}};
  int i = 0;
  for (const auto& n : sizes)
    for (const int rows : {1, 2, 64, 128, 0, channels}) {
      all.push_back({.sizes = n, .rows = rows, .hostile = i % 3 == 0});
      const auto layout = static_cast<case_layout>(1 + i % (static_cast<int>(case_layout::count) - 1));
      all.push_back({.sizes = n, .rows = rows, .layout = layout, .offset = i % 4 == 0 ? 3 : 0, .hostile = i % 2 == 0});
      all.push_back({.sizes = n, .rows = rows, .k_major = true, .hostile = i % 2 == 0});
      all.push_back({.sizes = n, .rows = rows, .layout = layout, .offset = i % 3 == 0 ? 4 : i % 5, .k_major = true});
      ++i;
    }
  return all;
}

/// The first fault of all cases; run(data) calls quantize, and returns an error or "".
template <class T, class Code, class Run>
std::string quantize_fault(const Run& run) {
  for (const quantize_case& c : quantize_cases()) {
    quantize_data<T, Code> data(c);
    if (data.pair > 1 && c.k_major) continue;
    if (data.pair > 1 && (c.sizes[3] % 2 != 0 || !giwa::detail::rows_are_aligned(data.x.view(), 2 * sizeof(T))))
      continue;
    if (const std::string error = run(data); !error.empty()) return c.text() + ": " + error;
    if (const std::string fault = data.fault(); !fault.empty()) return fault;
  }
  return "";
}

}  // namespace giwa_test

#endif
