// SPDX-License-Identifier: MIT
// What the tests of attention share: cases, the answers they are compared with, and the comparison.
#ifndef GIWA_TEST_SUPPORT_ATTENTION_HPP
#define GIWA_TEST_SUPPORT_ATTENTION_HPP

#include <giwa/attention/reference/reference.hpp>

#include "support/attention_case.hpp"
#include "support/attention_tolerance.hpp"

namespace giwa_test {

/// The reference and the plain implementation, in row-major order of (batch, queries, heads, head size of v), with scales and
/// lse in the order of (batch, queries, heads); the batch of packed sequences is 1. Rows in no sequence stay NaN.
struct attention_answers {
  std::vector<double> o, plain;
  std::vector<float> lse, plain_lse;
  std::vector<row_scale> scales;
};

/// (batch, heads, queries) to the order of rows of o, (batch, queries, heads).
template <class U>
std::vector<U> rows_of(const std::vector<U>& lse, const case_options& c) {
  std::vector<U> rows;
  for (int64 b = 0; b < c.batch; ++b)
    for (int64 i = 0; i < c.seq_q; ++i)
      for (int64 h = 0; h < c.heads; ++h)
        rows.push_back(lse[static_cast<std::size_t>((b * c.heads + h) * c.seq_q + i)]);
  return rows;
}

/// Both answers, one row after the other on the CPU.
template <class T, class O, class Mask, class Score>
attention_answers answers_of(attention_case<T, O>& c, const Mask& mask, const Score& score) {
  const case_options& s = c.options;
  const giwa::index<4> shape{s.batch, s.seq_q, s.heads, s.head_size_v};
  const giwa::index<3> lse_shape{s.batch, s.heads, s.seq_q};
  auto o = new_buffer<double, 4>(shape, case_layout::contiguous, 0, true);
  auto plain = new_buffer<O, 4>(shape, case_layout::contiguous, 0, true);
  auto lse = new_buffer<float, 3>(lse_shape, case_layout::contiguous, 0, true), plain_lse = lse;

  giwa::attention_options options = c.call_options();
  const auto from = c.views();
  options.lse = lse.view();
  const auto reference_params = giwa::detail::params_of(
      giwa::detail::attention_views<T, double>{from.q, from.k, from.v, o.view(), from.packed}, mask, score, options);
  options.lse = plain_lse.view();
  const auto plain_params = giwa::detail::params_of(
      giwa::detail::attention_views<T, O>{from.q, from.k, from.v, plain.view(), from.packed}, mask, score, options);

  attention_answers a;
  a.scales.resize(static_cast<std::size_t>(s.batch * s.seq_q * s.heads), row_scale{0, 0, 0});
  for (int64 batch = 0; batch < c.sequence_count(); ++batch)
    for (int64 head = 0; head < s.heads; ++head) {
      const auto exact = reference_params.at(static_cast<int>(batch), static_cast<int>(head));
      const auto rounded = plain_params.at(static_cast<int>(batch), static_cast<int>(head));
      const int64 first = c.packed() ? c.q_offsets[static_cast<std::size_t>(batch)] : batch * s.seq_q;
      for (int query = 0; query < exact.queries(); ++query) {
        giwa::detail::attention_reference_row(reference_params, exact, query);
        a.scales[static_cast<std::size_t>((first + query) * s.heads + head)] =
            attention_plain_row(plain_params, rounded, query);
      }
    }
  a.o = o.template elements<double>();
  a.plain = plain.template elements<double>();
  a.lse = rows_of(lse.template elements<float>(), s);
  a.plain_lse = rows_of(plain_lse.template elements<float>(), s);
  return a;
}

/// What the case's o and lse hold, against the answers; also that nothing outside of them was written.
template <class T, class O>
attention_verdict judge(const attention_case<T, O>& c, const attention_answers& a) {
  const case_options& s = c.options;
  attention_verdict verdict =
      judge_attention<rounded_to<T>, O>(s.head_size_v, c.o.template elements<double>(), a.o, a.plain, a.scales);
  if (verdict.ok() && s.lse) {
    const attention_verdict of_lse =
        judge_lse(rows_of(c.lse.template elements<float>(), s), a.lse, a.plain_lse, a.scales);
    verdict.failure = of_lse.failure;
  }
  const int64 outside = c.o.written_outside() + (s.lse ? c.lse.written_outside() : c.lse.written());
  if (verdict.ok() && outside != 0)
    verdict.failure = std::to_string(outside) + " bytes were written outside the output";
  if (!verdict.ok()) verdict.failure += "; " + s.text();
  return verdict;
}

}  // namespace giwa_test

#endif
