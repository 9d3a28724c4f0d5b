// SPDX-License-Identifier: MIT
// One problem on the CPU path, compared with the reference: what the tests of attention_forward(giwa::host, …) are made of.
#ifndef GIWA_TEST_HOST_ATTENTION_CHECK_HPP
#define GIWA_TEST_HOST_ATTENTION_CHECK_HPP

#include <giwa/base/throw.hpp>
#include <giwa/host.hpp>

#include "support/attention.hpp"
#include "support/catch.hpp"

namespace giwa_test {

/// Runs the case's forward pass; the call's message where it is refused.
template <int HeadSize, int HeadSizeV = HeadSize, class T, class O, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string run(attention_case<T, O>& c, const Mask& mask = {}, const Score& score = {}) {
  const giwa::status s = forward_of<HeadSize, HeadSizeV>(giwa::host, c.views(), mask, score, c.call_options());
  return s.ok() ? "" : giwa::format_status(s).c_str();
}

/// Empty, or what is wrong with the result, and the case.
template <int HeadSize, int HeadSizeV = HeadSize, class T, class O, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string fault(attention_case<T, O>& c, const Mask& mask = {}, const Score& score = {}) {
  const std::string refused = run<HeadSize, HeadSizeV>(c, mask, score);
  if (!refused.empty()) return refused + "; " + c.options.text();
  return judge(c, answers_of(c, mask, score)).failure;
}

/// The same of a case made from options, whose head sizes are filled in.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class O = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string fault_of(case_options options, const Mask& mask = {}, const Score& score = {}) {
  options.head_size = HeadSize;
  options.head_size_v = HeadSizeV;
  attention_case<T, O> c(options);
  return fault<HeadSize, HeadSizeV>(c, mask, score);
}

/// Collects faults: one check at the end instead of thousands.
struct faults {
  std::string first;
  int count = 0, cases = 0;
  void add(const std::string& fault) {
    ++cases;
    if (fault.empty()) return;
    if (count++ == 0) first = fault;
  }
};
#define CHECK_NO_FAULTS(f)                                                              \
  do {                                                                                  \
    INFO((f).count << " of " << (f).cases << " cases are wrong; first: " << (f).first); \
    CHECK((f).count == 0);                                                              \
    CHECK((f).cases > 0);                                                               \
  } while (false)

}  // namespace giwa_test

#endif
