// SPDX-License-Identifier: MIT
// Drawn problems about the numbers of keys from which calls have a second tile on Hopper, against double precision.
#include <giwa/attention.cuh>
#include <giwa/device.hpp>

#include "gpu/attention/gpu_place.cuh"
#include "gpu/attention/instance.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

namespace {

/// Counts problems of Instance, and tells the first failures in words.
template <class Instance>
void check_lengths(gpu_place& place, const std::vector<int64>& keys, int times) {
  const auto call = [&](const call_arguments& a) { return Instance::call(place.stream(), a); };
  constexpr int64 ratios[] = {1, 8, 3, 7, 4};
  int failed = 0, with_second_tile = 0;
  std::string failures;
  for (const int64 length : keys) {
    for (const int64 queries : {1, 64, 65, 129, 193, 577}) {
      for (int i = 0; i < (small_mode() ? 1 : times); ++i) {
        const auto seed = static_cast<uint64>(2'000'000 + 10'000 * length + 10 * queries + i);
        const attention_draw d = draw_problem(seed, Instance::types,
                                              {.work = int64{1} << (small_mode() ? 26 : 36),
                                               .seq_q = queries,
                                               .seq_k = length,
                                               .ratio = ratios[i % 5],
                                               .plain_layout = i % 3 != 2});
        with_second_tile += for_hopper(d) && !d.packed && d.k_lengths.empty() ? 1 : 0;
        const outcome result = run_problem(place, d, call);
        if (!result.ok() && ++failed <= 5) failures += result.failure + "\n";
      }
    }
  }
  INFO(failures);
  CHECK(failed == 0);
  CHECK(with_second_tile > 0);
}

}  // namespace

TEST_CASE("keys about the borders of the second tile") {
  gpu_place place(int64{3} << 29);
  const std::vector<int64> many{4095, 4096, 4097, 4096 + 111, 4480}, more{8191, 8192, 8193, 8192 + 79, 8400};
  check_lengths<instance<fp16, fp16, 128, 128, mask_kind::full, score_kind::plain>>(place, more, 6);
  check_lengths<instance<bf16, float, 120, 128, mask_kind::full, score_kind::plain>>(place, more, 3);
  check_lengths<instance<fp16, fp16, 128, 128, mask_kind::causal, score_kind::plain>>(place, {8191, 8192, 8300}, 3);
  check_lengths<instance<fp16, fp16, 96, 96, mask_kind::causal, score_kind::plain>>(place, many, 6);
  check_lengths<instance<bf16, bf16, 80, 80, mask_kind::full, score_kind::plain>>(place, many, 6);
  check_lengths<instance<bf16, float, 72, 80, mask_kind::causal, score_kind::plain>>(place, many, 3);
  check_lengths<instance<fp16, fp16, 256, 256, mask_kind::causal, score_kind::plain>>(place, {256, 257, 512, 513}, 3);
}
