// SPDX-License-Identifier: MIT
// attention_cached with caches of 8 and 4 bits on a GPU for the fuzz program.
#include "fuzz/cached_fault.cuh"

namespace {

using namespace giwa_test;
using namespace giwa_test::fuzz;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;
using giwa::fp16;
using giwa::int4_pair;
using giwa::int8_code;

std::string cached_bytes_fault(uint64 seed) {
  constexpr const char* call = "cached_bytes";
  switch (seed % 6) {
    case 0: return cached_fault_of<fp16, 64, 64, e4m3>(call, seed, causal::bottom_right);
    case 1: return cached_fault_of<bf16, 128, 128, int8_code>(call, seed, causal::bottom_right);
    case 2: return cached_fault_of<fp16, 128, 128, int4_pair>(call, seed, causal::bottom_right);
    case 3: return cached_fault_of<fp16, 128, 128, e4m3, float>(call, seed);
    case 4: return cached_fault_of<bf16, 256, 256, int8_code>(call, seed, causal::bottom_right);
    default: return cached_fault_of<bf16, 64, 64, int4_pair>(call, seed);
  }
}
const fuzz_with added("cached_bytes", cached_bytes_fault);

}  // namespace
