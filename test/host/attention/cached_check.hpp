// SPDX-License-Identifier: MIT
// One problem of attention_cached(giwa::host, …), compared with the reference over gathered keys.
#ifndef GIWA_TEST_HOST_ATTENTION_CACHED_CHECK_HPP
#define GIWA_TEST_HOST_ATTENTION_CACHED_CHECK_HPP

#include <giwa/attention/reference/cached.hpp>

#include "host/attention/check.hpp"
#include "support/cached_case.hpp"
#include "support/call_options.hpp"

namespace giwa_test {

/// Empty, or what is wrong with the result, and the case. All sums are in fp32, so rounding of q, k and P is none.
template <int HeadSize, int HeadSizeV = HeadSize, class T, class Element, class O, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string cached_fault(cached_case<T, Element, O>& c, const Mask& mask = {}, const Score& score = {}) {
  const giwa::status s = cached_of<HeadSize, HeadSizeV>(giwa::host, c.views(), mask, score, c.call_options());
  if (!s.ok()) return giwa::format_status(s).c_str() + ("; " + c.options.text());
  const attention_answers answers = answers_of<float>(c, mask, score);
  std::string failure = judge<float>(c, answers).failure;
  if (!failure.empty()) return failure;

  // The reference over the cache does the same as that over gathered keys, to the bit.
  auto o = new_buffer<double, 4>(c.o.extents, case_layout::contiguous, 0, true);
  auto lse = new_buffer<float, 3>(c.lse.extents, case_layout::contiguous, 0, true);
  giwa::cached_options options = c.call_options();
  options.lse = lse.view();
  const auto a = c.views();
  const giwa::status r =
      a.is_packed()
          ? giwa::attention_cached_reference(giwa::host, a.cache, without_batch(a.q), without_batch(o.view()), mask,
                                             score, giwa_test::with(options, giwa_test::sequences_of(a.packed)))
          : giwa::attention_cached_reference(giwa::host, a.cache, a.q, o.view(), mask, score, options);
  if (!r.ok()) return giwa::format_status(r).c_str() + ("; reference, " + c.options.text());
  const auto same = [](const auto& x, const auto& y) {
    for (std::size_t i = 0; i < x.size(); ++i)
      if (!(x[i] == y[i]) && !(std::isnan(x[i]) && std::isnan(y[i]))) return false;
    return x.size() == y.size();
  };
  if (!same(o.template elements<double>(), answers.o) || !same(rows_of_lse<float>(lse), answers.lse))
    return "the references differ; " + c.options.text();
  return "";
}

/// The same of a case made from options, whose head sizes are filled in.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string cached_fault_of(cached_case_options options, const Mask& mask = {}, const Score& score = {}) {
  options.head_size = HeadSize;
  options.head_size_v = HeadSizeV;
  cached_case<T, Element, O> c(options);
  return cached_fault<HeadSize, HeadSizeV>(c, mask, score);
}

}  // namespace giwa_test

#endif
