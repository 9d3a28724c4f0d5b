// SPDX-License-Identifier: MIT
// A part of the types of attention on a GPU: every pair of lengths about the edges of tiles, and random problems.
#include <giwa/attention.cuh>
#include <giwa/device.hpp>

#include <algorithm>
#include <chrono>

#include "gpu/attention/gpu_place.cuh"
#include "gpu/attention/pairs.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

static_assert(GIWA_TEST_PARTS == pairs_always || GIWA_TEST_PARTS == pairs_parts,
              "forward.cmake and pairs.hpp disagree");

namespace {

std::vector<callable<cudaStream_t>> instances() {
#if defined(GIWA_TEST_FEW_SIZES)
  return calls_of<cudaStream_t>(few_pairs{});
#else
  return calls_of<cudaStream_t>(part_of_pairs<GIWA_TEST_PART>::instances{});
#endif
}

// Counts, and the first failures in words.
struct tally {
  int run = 0, failed = 0, many = 0, empty = 0, on_path[3] = {0, 0, 0};
  bool hopper = giwa::code_for_current_device().value.architecture_specific;
  std::string failures;

  void add(const attention_draw& d, const outcome& result) {
    ++run;
    many += d.scores() >= 1 << 14 ? 1 : 0;
    empty += d.rows() == 0 || d.scores() == 0 ? 1 : 0;
    const bool single = d.types.input == element::of_fp32,
               narrow = std::max(d.types.head_size, d.types.head_size_v) <= 256;
    const bool simt = single && (!d.has_workspace || !narrow || d.seq_k == 0);
    ++on_path[simt ? 0 : hopper && (single || for_hopper(d)) ? 2 : 1];
    if (!result.ok() && ++failed <= 10) failures += result.failure + "\n";
  }
  void print(const char* what) const {
    std::printf(
        "part %d, %s: %d problems, %d with 2^14 scores a head or more, %d empty; simt %d, sm80 %d, sm90 %d; %d "
        "failed\n",
        GIWA_TEST_PART, what, run, many, empty, on_path[0], on_path[1], on_path[2], failed);
    std::fflush(stdout);
  }
};

outcome run(gpu_place& place, const callable<cudaStream_t>& one, const attention_draw& d) {
  try {
    return run_problem(place, d, [&](const call_arguments& a) { return one.call(place.stream(), a); });
  } catch (...) {  // a kernel has died, and with it this process's GPU: say where
    std::printf("died in %s\n", d.describe().c_str());
    std::fflush(stdout);
    throw;
  }
}

int64 bytes_for_tests() { return small_mode() ? int64{192} << 20 : int64{3} << 29; }

}  // namespace

TEST_CASE("random problems") {
  // All parts together make 20 000 and some more, whether only the first are compiled or all of them.
  const int count = small_mode() ? 24 : 21'000 / GIWA_TEST_PARTS;
  const char* wanted = std::getenv("GIWA_TEST_SEED");  // one problem alone, as a failure names it
  const auto list = instances();
  gpu_place place(bytes_for_tests());
  tally t;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    const auto seed = static_cast<uint64>(i) * pairs_parts + GIWA_TEST_PART;
    if (wanted != nullptr && seed != static_cast<uint64>(std::atoll(wanted))) continue;
    const auto& one = list[static_cast<std::size_t>(i) % list.size()];
    const int64 work = small_mode() ? 1 << 20 : (i % 16 == 0 ? int64{1} << 28 : int64{1} << 26);
    const attention_draw d = draw_problem(seed, one.types, {.work = work});
    t.add(d, run(place, one, d));
  }
  t.print("random");
  std::printf("%.1f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  INFO(t.failures);
  CHECK(t.failed == 0);
  if (wanted != nullptr || small_mode()) return;
  CHECK(t.many * 2 >= t.run);
  CHECK(t.empty * 20 <= t.run);
}

TEST_CASE("lengths about the edges of tiles") {
  const std::vector<int64> lengths = {0,   1,   2,   63,  64,  65,  127,  128,  129,
                                      175, 176, 177, 255, 256, 257, 1023, 1024, 1025};
  const auto list = instances();
  gpu_place place(bytes_for_tests());
  tally t;
  const std::size_t step = small_mode() ? 37 : 1;
  for (std::size_t i = 0; i < lengths.size() * lengths.size(); i += step) {
    const int64 queries = lengths[i / lengths.size()], keys = lengths[i % lengths.size()];
    if (small_mode() && queries * keys > 1 << 15) continue;
    const auto& one = list[(i + static_cast<std::size_t>(queries)) % list.size()];
    constexpr int64 ratios[] = {1, 3, 4, 7, 8};
    const attention_draw d = draw_problem(
        1'000'000 + i, one.types, {.work = int64{1} << 28, .seq_q = queries, .seq_k = keys, .ratio = ratios[i % 5]});
    t.add(d, run(place, one, d));
  }
  t.print("pairs of lengths");
  INFO(t.failures);
  CHECK(t.failed == 0);
}
