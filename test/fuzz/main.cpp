// SPDX-License-Identifier: MIT
// Random problems of giwa's calls without end, each against a reference in double: --minutes N --seed S.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "support/environment.hpp"

using namespace giwa_test::fuzz;

namespace {

constexpr const char* help =
    "Draws problems, runs them, and compares the results with references in double precision.\n\n"
    "  --minutes N   for so long; fractions are allowed. Default: 0.1\n"
    "  --count N     at most so many problems of each call\n"
    "  --least N     at least so many, however long it takes\n"
    "  --stop        ends at the first failure\n"
    "  --small       15 of 16 problems are about an eighth of the size; a failure then needs it too\n"
    "  --seed S      the first problem's number. Default: 1. A failure names its own: --seed S --count 1 repeats it\n"
    "  --calls A,B   only these calls; --list names them\n"
    "  --threads N   so many threads at once. Default: one for each core, at most 16\n";

struct options {
  double minutes = 0.1;
  int64 count = giwa::max_int64, least = 0;
  bool stop = false, small = false;
  uint64 seed = 1;
  std::string calls;
  unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
};

options read(int argc, char** argv) {
  options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "--list") {
      if (name == "--help") std::puts(help);
      for (const fuzzed_call& c : fuzzed_calls()) std::printf("%s\n", c.name);
      std::exit(0);
    }
    if (name == "--stop" || name == "--small") {
      (name == "--stop" ? o.stop : o.small) = true;
      continue;
    }
    const char* const value = i + 1 < argc ? argv[++i] : nullptr;
    if (value != nullptr && name == "--minutes")
      o.minutes = std::atof(value);
    else if (value != nullptr && name == "--count")
      o.count = std::atoll(value);
    else if (value != nullptr && name == "--least")
      o.least = std::atoll(value);
    else if (value != nullptr && name == "--seed")
      o.seed = std::strtoull(value, nullptr, 10);
    else if (value != nullptr && name == "--calls")
      o.calls = "," + std::string(value) + ",";
    else if (value != nullptr && name == "--threads")
      o.threads = static_cast<unsigned>(std::max(1, std::atoi(value)));
    else {
      std::fprintf(stderr, "unknown: %s\n%s", name.c_str(), help);
      std::exit(2);
    }
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const options o = read(argc, argv);
  std::vector<fuzzed_call> calls;
  for (const fuzzed_call& c : fuzzed_calls())
    if (o.calls.empty() || o.calls.find("," + std::string(c.name) + ",") != std::string::npos) calls.push_back(c);
  if (calls.empty()) return std::fprintf(stderr, "no call of these names: %s\n", o.calls.c_str()), 2;

  if (o.small) setenv("GIWA_TEST_ARENA", "1", 0);  // on a GPU: test/support/device_arena.cuh
  using clock = std::chrono::steady_clock;
  const auto end =
      clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(o.minutes * 60));
  std::vector<std::atomic<int64>> run(calls.size()), failed(calls.size());
  std::atomic<uint64> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  // The calls take turns. A thread ends after a failure of the device, which is lost to the process.
  const auto work = [&] {
    while (!stop) {
      const uint64 n = next++, round = n / calls.size();
      const auto which = static_cast<std::size_t>(n % calls.size());
      if (static_cast<int64>(round) >= (clock::now() < end ? o.count : o.least)) return;
      std::string fault;
      bool lost = false;
      giwa_test::draws_small = o.small && (o.seed + round) * 0x9e3779b97f4a7c15ull >> 60 != 0;
      try {
        fault = calls[which].fault(o.seed + round);
      } catch (const std::exception& e) {
        fault = e.what(), lost = true;
      }
      ++run[which];
      if (fault.empty()) continue;
      const std::lock_guard lock(mutex);
      if (++failed[which] <= 5)
        std::printf("%s, --seed %llu%s: %s\n", calls[which].name, static_cast<unsigned long long>(o.seed + round),
                    o.small ? " --small" : "", fault.c_str());
      std::fflush(stdout);
      if (lost || o.stop) stop = true;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < o.threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  int64 faults = 0, problems = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    std::printf("%s: %lld problems, %lld failed\n", calls[i].name, static_cast<long long>(run[i]),
                static_cast<long long>(failed[i]));
    faults += failed[i], problems += run[i];
  }
  return faults != 0 || problems == 0;
}
