// SPDX-License-Identifier: MIT
// The kernel of merge_attention on the host executor: against double precision, by vectors and by elements.
#include <giwa/attention/sums/merge.cuh>
#include <giwa/base/throw.hpp>
#include <giwa/host_executor.cuh>

#include "host/attention/merge_cases.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::fp16;

namespace {

template <int Count, class T, class O>
std::string on_executor(const merge_data<T, O>& before, merge_data<T, O>& data) {
  O* o = data.o.data();
  float* lse = data.lse.data();
  if constexpr (std::is_same_v<T, O>)
    if (data.c.in_place >= 0) {
      o = data.parts.data() + data.c.in_place * data.c.strides()[0];
      lse = data.parts_lse.data() + data.c.in_place * data.c.rows();
    }
  const giwa::detail::merge_views<T, O> m{data.o_parts(), data.lse_parts(), data.out(o), data.out_lse(lse)};
  if (data.c.size % Count != 0 || data.c.gap % Count != 0) return "";  // vectors do not fit
  using op = giwa::detail::merge_op<T, O, Count>;
  const auto params = giwa::detail::merge_params<op>(m, Count);
  // Fewer blocks than there is work for: each goes round more than once.
  const giwa::status s = giwa::launch(giwa::host, {.grid = 1, .block = op::max_threads}, op{}, params);
  return s.ok() ? before.failure(o, lse) : giwa::format_status(s).c_str();
}

}  // namespace

TEST_CASE("the kernel of merge_attention merges parts") {
  CHECK(merge_failures<float, float>(on_executor<4, float, float>) == "");
  CHECK(merge_failures<float, float>(on_executor<1, float, float>) == "");
  CHECK(merge_failures<fp16, fp16>(on_executor<8, fp16, fp16>) == "");
  CHECK(merge_failures<fp16, float>(on_executor<4, fp16, float>) == "");
}
