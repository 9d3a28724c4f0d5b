// SPDX-License-Identifier: MIT
// A file compiled with GIWA_ONLY_TMA_LAYOUTS: Hopper refuses what TMA cannot address, with the reason; the rest is as without it.
#define GIWA_ONLY_TMA_LAYOUTS
#include <giwa/attention_backward.cuh>

#include <cmath>
#include <string>

#include "gpu/attention/plain_tensors.cuh"
#include "support/catch.hpp"
#include "support/hopper.cuh"

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::status;

namespace {

constexpr int64 rows = 200, heads = 2, head_size = 64;

bool names_the_macro(const status& s) {
  INFO(giwa::format_status(s).c_str());
  return s.code == giwa::status_code::not_supported &&
         std::string(s.message).find("GIWA_ONLY_TMA_LAYOUTS") != std::string::npos && no_error_left();
}
/// The rows of a tensor but the last, from its second element on.
template <class T>
view_4<T> off_by_one(const view_4<T>& v) {
  return {v.data() + 1, {1, rows - 1, heads, head_size}, v.strides()};
}

}  // namespace

TEST_CASE("only layouts that TMA addresses: a refusal on Hopper, a result elsewhere") {
  const giwa::stream s = new_stream();
  const plain_tensors<fp16> t(1, rows, rows, heads, heads, head_size);
  const gpu_array<fp16> dq(t.q.size()), dk(t.k.size()), dv(t.v.size());
  const auto gradient = [&](const gpu_array<fp16>& a) { return view_4<fp16>(a.data(), t.q_view().extents()); };
  const int64 bytes = giwa::workspace_bytes(t.q_view(), t.k_view(), t.v_view(), t.o_view(), t.q_view(), gradient(dq),
                                            gradient(dk), gradient(dv), giwa::causal{});
  const gpu_array<unsigned char> workspace(static_cast<std::size_t>(bytes));
  const giwa::attention_backward_options options{.lse = t.lse_view(), .workspace = {workspace.data(), {bytes}}};

  REQUIRE(giwa::attention_forward<head_size>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), giwa::causal{},
                                             {.lse = t.lse_view()})
              .ok());
  REQUIRE(giwa::attention_backward<head_size>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), t.q_view(),
                                              gradient(dq), gradient(dk), gradient(dv), giwa::causal{}, options)
              .ok());
  REQUIRE(giwa::synchronize(s).ok());
  const auto o = t.o.to_host(), of_keys = dk.to_host();
  CHECK(o[0] == t.v.to_host()[0]);  // the first query sees the first key alone
  CHECK(!std::isnan(static_cast<float>(of_keys[0])));

  // One key less, so that off_by_one() stays inside the tensor; nothing is written where the call is refused.
  const auto keys = off_by_one(t.k_view()), values = off_by_one(t.v_view());
  const status forward =
      giwa::attention_forward<head_size>(s, t.q_view(), keys, values, t.o_view(), giwa::causal::top_left);
  const status backward = giwa::attention_backward<head_size>(
      s, t.q_view(), keys, values, t.o_view(), t.q_view(), gradient(dq), off_by_one(gradient(dk)),
      off_by_one(gradient(dv)), giwa::causal::top_left, options);
  const bool refuses = giwa::throw_if_failed(giwa::code_for_current_device()).architecture_specific;
  CHECK(forward.ok() == !refuses);
  CHECK(backward.ok() == !refuses);
  if (refuses) {
    CHECK(names_the_macro(forward));
    CHECK(names_the_macro(backward));
    CHECK(same_bits(t.o.to_host(), o));
    CHECK(same_bits(dk.to_host(), of_keys));
  }
}
