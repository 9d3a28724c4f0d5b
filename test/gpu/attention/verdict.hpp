// SPDX-License-Identifier: MIT
// Whether the findings of a problem's rows are within the tolerance of attention.
#ifndef GIWA_TEST_GPU_ATTENTION_VERDICT_HPP
#define GIWA_TEST_GPU_ATTENTION_VERDICT_HPP

#include <giwa/softmax/state.hpp>

#include <algorithm>
#include <cstdio>

#include "gpu/attention/row_check.hpp"
#include "support/attention_tolerance.hpp"

namespace giwa_test::attention {

inline double ulp_of(element e, double x) {
  return e == element::of_fp32   ? attention_ulp<float>(x)
         : e == element::of_fp16 ? attention_ulp<fp16>(x)
                                 : attention_ulp<bf16>(x);
}

/// The sequence, head and query of a row.
inline std::string row_name(const attention_draw& d, int64 row) {
  std::size_t b = 0;
  while (b + 1 < d.sequences.size() && d.sequences[b + 1].first_row <= row) ++b;
  const auto& s = d.sequences[b];
  std::ostringstream name;
  name << "sequence " << b << " head " << (row - s.first_row) / s.q_length << " query "
       << (row - s.first_row) % s.q_length;
  return name.str();
}

/// The rule of judge_attention() and judge_lse(), on what check_row() found, with one unit more a row: a row of one element is
/// 3.5 standard deviations of the rounding of its weights away from one ulp, and there are tens of millions of rows. Empty
/// where all is well.
inline std::string judge(const attention_draw& d, const std::vector<row_finding>& rows) {
  const auto known = [](double x) { return std::isfinite(x) ? x : 0; };
  const bool in_pieces =
      d.types.input == element::of_fp32 && d.has_workspace && std::max(d.types.head_size, d.types.head_size_v) <= 256;
  const bool capped = d.types.score == score_kind::softcap || d.types.score == score_kind::capped_bias;
  const double cap = capped ? 4 * static_cast<double>(d.cap) : 0;  // a softcap rounds as at its largest value
  const double width = d.types.head_size_v;
  const bool equal_terms = d.v.stride[1] == 0 || d.k.stride[1] == 0 || d.values == value_kind::constant ||
                           d.values == value_kind::tiny || d.values == value_kind::sparse;
  const auto arithmetic = [&](const row_finding& f) {
    // A sum's rounding errors, which may cancel in the plain program: of few elements, luck decides. Equal terms are all
    // rounded the same way.
    const double of_sums = equal_terms ? f.kept / 8.0 : std::sqrt(static_cast<double>(f.kept)) / width;
    // The largest weight is 1 or more. One is rounded to 2^-25 where it is a subnormal fp16, or to 2^-39 where that is its low piece; below
    // 2^-126 it may be flushed to 0.
    const double of_weights = d.types.input == element::of_fp16 ? 0x1p-24 : in_pieces ? 0x1p-38 : 0x1p-122;
    return known(0x1p-24 * (4 + f.score + cap + of_sums) * f.sum + of_weights * f.values) + 0x1p-126;
  };
  double largest = 0, error = 0, plain_error = 0, fp32_part = 0, plain_lse = 0, root = 0;
  std::size_t worst = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const row_finding& f = rows[r];
    largest = std::max(largest, f.largest);
    root = std::max(root, known(f.root));
    if (f.error > error) error = f.error, worst = r;
    plain_error = std::max(plain_error, f.plain_error);
    plain_lse = std::max(plain_lse, f.plain_lse_error);
    fp32_part = std::max(fp32_part, arithmetic(f));
  }
  const auto fail = [&](std::size_t row, const char* what, double a, double limit) {
    const row_finding& f = rows[row];
    char text[400];
    std::snprintf(
        text, sizeof text,
        "%s: %s %.6g, allowed %.6g; element %d: got %.9g, reference %.9g, plain %.9g; lse: got %.9g, reference "
        "%.9g; plain's largest error in the problem %.6g\n  ",
        row_name(d, static_cast<int64>(row)).c_str(), what, a, limit, f.column, static_cast<double>(f.got), f.wanted,
        f.plain, static_cast<double>(f.got_lse), f.lse, plain_error);
    return text + d.describe();
  };
  // A problem of few elements may owe its plain error to luck, and its largest element to cancellation.
  const bool few = static_cast<double>(rows.size()) * width < 4096;
  const double unit = std::max(ulp_of(d.types.input, largest), few ? 2 * ulp_of(d.types.input, root) : 0);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const row_finding& f = rows[r];
    if (f.wrong_kind != 0) return fail(r, "elements that are finite and should not be, or not finite", f.wrong_kind, 0);
    if (f.error_without_plain > 4 * unit) return fail(r, "plain is not finite: error", f.error_without_plain, 4 * unit);
    const double in_row = std::max(f.largest, known(f.root));
    const double limit =
        2 * std::sqrt(f.plain_squares) + (ulp_of(d.types.input, in_row) + arithmetic(f)) * (std::sqrt(width) + 1);
    if (!(std::sqrt(f.error_squares) <= limit))
      return fail(r, "L2 error of the row", std::sqrt(f.error_squares), limit);
    // The tensor cores cut a sum every 16 products.
    const double of_cuts = d.types.input == element::of_fp32 && !in_pieces ? 1 : 1 + d.types.head_size / 1024.0;
    const double lse_limit = 2 * plain_lse + 0x1p-22 * of_cuts * std::max(1.0, known(std::abs(f.lse) + f.score) + cap);
    if (f.wrong_lse) return fail(r, "lse is wrong in kind", 1, 0);
    if (!(f.lse_error <= lse_limit)) return fail(r, "error of lse", f.lse_error, lse_limit);
  }
  const double limit = 2 * plain_error + unit + fp32_part;
  if (!(error <= limit)) return fail(worst, "error", error, limit);
  return "";
}

}  // namespace giwa_test::attention

#endif
