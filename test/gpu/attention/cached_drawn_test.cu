// SPDX-License-Identifier: MIT
// attention_cached on a GPU against the reference: problems drawn at random from a number. GIWA_TEST_DRAWS is how many, from
// GIWA_TEST_FIRST_DRAW on.
#include <cstdio>

#include "gpu/attention/cached_draw.hpp"
#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;
using giwa::fp16;

namespace {

/// Empty, or what is wrong with problem `number` in this form.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string fault_of(int number, const Mask& mask = {}, const Score& score = {}) {
  const cached_case_options c = cached_drawer(number, giwa::detail::leaf_keys_of(HeadSize, HeadSizeV, sizeof(Element)))
                                    .draw(sizeof(Element) == 1);
  const std::string fault = cached_fault_on_gpu_of<T, HeadSize, HeadSizeV, Element, O>(c, mask, score);
  return fault.empty() ? "" : "draw " + std::to_string(number) + ": " + fault;
}

std::string fault_of_draw(int number) {
  switch (number % 8) {
    case 0: return fault_of<fp16, 128>(number);
    case 1: return fault_of<fp16, 128>(number, causal::bottom_right);
    case 2: return fault_of<bf16, 64>(number, giwa::sliding_window{1 + number % 200, giwa::alignment::bottom_right});
    case 3: return fault_of<fp16, 80, 40, fp16, float>(number, by_distance{}, own_score{});
    case 4: return fault_of<bf16, 192, 128>(number, causal::bottom_right);
    case 5: return fault_of<bf16, 128, 128, e4m3>(number, causal::bottom_right);
    case 6: return fault_of<fp16, 256>(number);
    default: return fault_of<float, 64>(number, causal::bottom_right);
  }
}

}  // namespace

TEST_CASE("drawn problems") {
  const int first = number_of("GIWA_TEST_FIRST_DRAW", 0), count = number_of("GIWA_TEST_DRAWS", small_mode() ? 16 : 80);
  int faults = 0;
  for (int i = first; i < first + count && faults < 5; ++i) {
    const std::string fault = fault_of_draw(i);
    CHECK(fault == "");
    faults += fault.empty() ? 0 : 1;
  }
  std::printf("draws %d to %d: %d faults\n", first, first + count - 1, faults);
}
