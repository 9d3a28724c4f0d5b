// SPDX-License-Identifier: MIT
// Drawn problems of head sizes 257 to 512, which Hopper computes in parts of v's columns, against double precision.
#include <giwa/attention.cuh>
#include <giwa/device.hpp>

#include "gpu/attention/gpu_place.cuh"
#include "gpu/attention/instance.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

namespace {

/// Counts drawn problems of Instance, and tells the first failures in words.
template <class Instance>
void check(gpu_place& place, int count) {
  const auto call = [&](const call_arguments& a) { return Instance::call(place.stream(), a); };
  int failed = 0, hopper = 0;
  std::string failures;
  for (int i = 0; i < (small_mode() ? 4 : count); ++i) {
    const auto seed = static_cast<uint64>(5'000'000 + 1000 * Instance::types.head_size + i);
    draw_limits limits{.work = int64{1} << (i % 8 == 0 ? 29 : 27), .plain_layout = i % 2 == 0};
    if (i % 5 == 1) limits.seq_k = 63 + i % 3;
    const attention_draw d = draw_problem(seed, Instance::types, limits);
    hopper += for_hopper(d) ? 1 : 0;
    const outcome result = run_problem(place, d, call);
    if (!result.ok() && ++failed <= 5) failures += result.failure + "\n";
  }
  INFO(failures);
  CHECK(failed == 0);
  CHECK(hopper > 0);
}

}  // namespace

TEST_CASE("head sizes above 256") {
  gpu_place place(int64{3} << 29);
  check<instance<bf16, bf16, 512, 512, mask_kind::full, score_kind::plain>>(place, 60);
  check<instance<fp16, fp16, 512, 512, mask_kind::causal, score_kind::plain>>(place, 60);
  check<instance<bf16, float, 320, 320, mask_kind::causal, score_kind::plain>>(place, 60);
  check<instance<fp16, fp16, 264, 40, mask_kind::full, score_kind::softcap>>(place, 60);
  check<instance<fp16, fp16, 300, 511, mask_kind::window, score_kind::plain>>(place, 60);
}

TEST_CASE("a head size of v above 256 alone, and masks of any kind") {
  gpu_place place(int64{3} << 29);
  check<instance<fp16, fp16, 64, 288, mask_kind::causal, score_kind::plain>>(place, 60);
  check<instance<fp16, fp16, 512, 512, mask_kind::scattered, score_kind::softcap>>(place, 40);
  check<instance<bf16, bf16, 512, 512, mask_kind::segments, score_kind::alibi>>(place, 40);
}
