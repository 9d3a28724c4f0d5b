// SPDX-License-Identifier: MIT
// Contenders for the same work, measured in turn in one run and reported through Google Benchmark.
#pragma once

#include <giwa/giwa.cuh>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace bench {

inline constexpr int rounds = 21;

/// Ends the program with the status in words: a benchmark that failed has no number.
inline void require(const giwa::status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  std::exit(1);
}
template <class T>
T require(giwa::result<T>&& r) {
  require(r.state);
  return std::move(r.value);
}
inline void require(cudaError_t e) { require(giwa::to_status(e)); }

inline double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

/// What a call costs: seconds of one call, measured over `calls` of them.
using stopwatch = std::function<double(const std::function<void()>& call, int calls)>;

/// Device time, by events.
inline double device_seconds(const std::function<void()>& call, int calls) {
  static const giwa::event first = require(giwa::event::create()), last = require(giwa::event::create());
  call();  // the first event then follows work, and no launch latency is in the measurement
  require(first.record(nullptr));
  for (int i = 0; i < calls; ++i) call();
  require(last.record(nullptr));
  require(last.synchronize());
  return static_cast<double>(require(giwa::milliseconds_between(first, last))) * 1e-3 / calls;
}

/// Host time: how long the calls keep the calling thread. The queue of launches must not fill: 200 calls are few enough.
inline double host_seconds(const std::function<void()>& call, int calls) {
  require(cudaDeviceSynchronize());
  const auto first = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - first;
  require(cudaDeviceSynchronize());
  return spent.count() / calls;
}

/// How much one call does, and the unit of so much in a second.
struct work {
  double amount;
  const char* unit = "GB/s";
  double of_unit = 1e9;
  work(double bytes) : amount(bytes) {}
  static work of_flops(double flops) {
    work w(flops);
    w.unit = "TFLOP/s";
    w.of_unit = 1e12;
    return w;
  }
};

/// One kind of work and all who do it, each compared with one of the others.
class contest {
 public:
  struct contender {
    std::string name, peer;              // known before anything is prepared, so that the benchmarks can be listed
    std::function<void(int set)> run{};  // on the default stream, with buffer set number `set`
    std::vector<double> seconds{};
  };

  /// Makes the buffers, gives every contender its `run`, and returns what keeps the buffers alive.
  using prepare_function = std::function<std::shared_ptr<void>(std::vector<contender>&)>;

  contest(std::string name, std::vector<contender> contenders, int sets, int calls, work per_call, stopwatch watch,
          prepare_function prepare)
      : name_(std::move(name)),
        contenders_(std::move(contenders)),
        sets_(sets),
        calls_(calls),
        per_call_(per_call),
        watch_(std::move(watch)),
        prepare_(std::move(prepare)) {}

  /// Registers one benchmark a contender; the first of them to run measures all in turn.
  static void add(std::shared_ptr<contest> c) {
    for (std::size_t i = 0; i < c->contenders_.size(); ++i)
      benchmark::RegisterBenchmark((c->name_ + "/" + c->contenders_[i].name).c_str(),
                                   [c, i](benchmark::State& state) { c->report(state, i); })
          ->UseManualTime()
          ->Iterations(rounds)
          ->Unit(benchmark::kMicrosecond);
  }

 private:
  void measure() {
    std::shared_ptr<void> buffers = prepare_(contenders_);
    int set = 0;
    for (contender& c : contenders_)  // warm-up: code loaded, clocks up, every buffer touched
      for (int i = 0; i < 2 * sets_; ++i) c.run(set++ % sets_);
    for (int round = 0; round < rounds; ++round)
      for (contender& c : contenders_) c.seconds.push_back(watch_([&] { c.run(set++ % sets_); }, calls_));
    require(cudaDeviceSynchronize());
    for (contender& c : contenders_) c.run = nullptr;
  }

  void report(benchmark::State& state, std::size_t i) {
    if (contenders_[0].seconds.empty()) measure();
    const contender& c = contenders_[i];
    const contender& peer = *std::find_if(contenders_.begin(), contenders_.end(),
                                          [&](const contender& other) { return other.name == c.peer; });
    std::size_t round = 0;
    for ([[maybe_unused]] auto _ : state) state.SetIterationTime(c.seconds[round++]);
    std::vector<double> ratios;  // of speeds, round by round: above 1 is faster than the peer
    for (std::size_t r = 0; r < c.seconds.size(); ++r) ratios.push_back(peer.seconds[r] / c.seconds[r]);
    state.counters["median_us"] = median(c.seconds) * 1e6;
    state.counters["speed_ratio"] = median(ratios);
    if (per_call_.amount > 0) state.counters[per_call_.unit] = per_call_.amount / median(c.seconds) / per_call_.of_unit;
    state.SetLabel(c.peer);
  }

  std::string name_;
  std::vector<contender> contenders_;
  int sets_, calls_;
  work per_call_;
  stopwatch watch_;
  prepare_function prepare_;
};

/// The main of a benchmark program: `register_all` adds the contests, a machine without a GPU runs none of them.
inline int run(int argc, char** argv, const std::function<void()>& register_all) {
  register_all();
  const giwa::environment e = giwa::check_environment();
  benchmark::AddCustomContext("giwa", std::to_string(GIWA_VERSION));
  benchmark::AddCustomContext("gpu", e.properties.name);
  benchmark::AddCustomContext("cuda",
                              "toolkit " + std::to_string(e.toolkit) + ", driver supports " + std::to_string(e.driver));
  benchmark::AddCustomContext("code", "sm_" + std::to_string(e.code.architecture));
  const bool only_lists = std::any_of(
      argv, argv + argc, [](const char* a) { return std::string(a).rfind("--benchmark_list_tests", 0) == 0; });
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  if (!e.verdict.ok() && !only_lists) {
    std::printf("Nothing is measured. %s\n", e.advice);
    return 0;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace bench
