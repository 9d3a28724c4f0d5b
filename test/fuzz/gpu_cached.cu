// SPDX-License-Identifier: MIT
// attention_cached on a GPU for the fuzz program. GIWA_FUZZ_PART=N compiles the instance N alone.
#include "fuzz/cached_fault.cuh"

namespace {

using namespace giwa_test;
using namespace giwa_test::fuzz;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;
using giwa::fp16;

std::string cached_fault(uint64 seed) {
  const giwa::sliding_window window{static_cast<int>(1 + seed % 200), giwa::alignment::bottom_right};
  static_cast<void>(window);
#if defined(GIWA_FUZZ_PART) && GIWA_FUZZ_PART == 0
  return cached_fault_of<fp16, 128>("cached", seed, causal::bottom_right);
#elif defined(GIWA_FUZZ_PART) && GIWA_FUZZ_PART == 1
  return cached_fault_of<bf16, 128, 128, e4m3>("cached", seed, causal::bottom_right);
#elif defined(GIWA_FUZZ_PART)
  return cached_fault_of<float, 64>("cached", seed, causal::bottom_right);
#else
  switch (seed % 9) {
    case 0: return cached_fault_of<fp16, 128>("cached", seed);
    case 1: return cached_fault_of<fp16, 128>("cached", seed, causal::bottom_right);
    case 2: return cached_fault_of<bf16, 64>("cached", seed, window);
    case 3: return cached_fault_of<fp16, 80, 40, fp16, float>("cached", seed, by_distance{}, own_score{});
    case 4: return cached_fault_of<bf16, 192, 128>("cached", seed, causal::bottom_right);
    case 5: return cached_fault_of<bf16, 128, 128, e4m3>("cached", seed, causal::bottom_right);
    case 6: return cached_fault_of<fp16, 256>("cached", seed);
    case 7:
      return seed / 9 % 2 == 0 ? cached_fault_of<fp16, 64, 64, giwa::int8_code>("cached", seed, causal::bottom_right)
                               : cached_fault_of<fp16, 128, 64, giwa::int4_pair>("cached", seed, causal::bottom_right);
    default: return cached_fault_of<float, 64>("cached", seed, causal::bottom_right);
  }
#endif
}
const fuzz_with added("cached", cached_fault);

}  // namespace
