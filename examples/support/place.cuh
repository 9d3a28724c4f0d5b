// SPDX-License-Identifier: MIT
// Where an example runs, a GPU or the CPU: memory, copies and a clock by the same names; and tensors of random numbers.
#pragma once

#if defined(__CUDACC__)
#include <giwa/giwa.cuh>
#else
#include <giwa/device.hpp>
#endif
#include <giwa/host.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace example {

using giwa::int64;
using giwa::throw_if_failed;

#if defined(__CUDACC__)
/// Memory, and what runs, on the current GPU.
struct on_gpu {
  static constexpr bool is_gpu = true;
  giwa::stream stream = throw_if_failed(giwa::stream::create());

  cudaStream_t where() const { return stream; }
  void wait() const { throw_if_failed(giwa::synchronize(stream)); }
  template <class T>
  giwa::device_array<T> make(int64 size) const {
    return throw_if_failed(giwa::device_array<T>::allocate(stream, size));
  }
  template <class T>
  giwa::device_array<T> put(const std::vector<T>& from) const {
    return throw_if_failed(giwa::to_device(stream, from));
  }
  template <class T>
  std::vector<T> get(const giwa::device_array<T>& from) const {
    std::vector<T> to(static_cast<std::size_t>(from.size()));
    throw_if_failed(giwa::to_host(stream, from, to));
    return to;
  }
  /// Of one call; the median of 15.
  template <class Work>
  double milliseconds(Work work, int repeats = 1) const {
    return throw_if_failed(giwa::time_on(stream, work, /*warm_up=*/3, repeats)).median;
  }
};
#endif

/// The same on the CPU.
struct on_cpu {
  static constexpr bool is_gpu = false;

  giwa::host_t where() const { return giwa::host; }
  void wait() const {}
  template <class T>
  std::vector<T> make(int64 size) const {
    return std::vector<T>(static_cast<std::size_t>(size));
  }
  template <class T>
  std::vector<T> put(const std::vector<T>& from) const {
    return from;
  }
  template <class T>
  std::vector<T> get(const std::vector<T>& from) const {
    return from;
  }
  /// Of one call; the median of 5, or of as many as half a second has room for.
  template <class Work>
  double milliseconds(Work work, int /*repeats*/ = 1) const {
    std::vector<double> times;
    for (double total = 0; times.size() < 5 && total < 500; total += times.back()) {
      const auto start = std::chrono::steady_clock::now();
      throw_if_failed(work());
      times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
  }
};

#if defined(__CUDACC__)
using giwa::choose_device;
#else
/// What a host compiler makes of an example has no kernels: it runs on the CPU.
using on_gpu = on_cpu;
struct device_choice {
  struct {
    const char* advice = "compiled for the CPU alone; nvcc compiles the kernels for a GPU";
    struct {
      const char* name = "";
    } properties;
  } found;
  bool on_gpu() const { return false; }
};
inline device_choice choose_device() { return {}; }
inline void print(const device_choice& choice) { std::printf("device: CPU\n        %s\n", choice.found.advice); }
#endif

/// Evenly distributed over [-2, 2), the same wherever it is computed.
template <class T>
struct fill {
  T* to;
  giwa::uint64 seed;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    to[i] = giwa::convert<T>{}(4 * giwa::philox{2026, seed}.uniform<float>(static_cast<giwa::uint64>(i)) - 2);
  }
};

/// A tensor in a place's memory: (batch, length, heads, head size), or (rows, heads, head size).
template <class T, int Rank, class Place>
class tensor {
 public:
  /// Random numbers.
  tensor(const Place& place, const giwa::index<Rank>& sizes, giwa::uint64 seed) : tensor(place, sizes) {
    throw_if_failed(giwa::for_all(place.where(), view().size(), fill<T>{memory_.data(), seed}));
  }
  /// What is left in the memory.
  tensor(const Place& place, const giwa::index<Rank>& sizes)
      : sizes_(sizes), memory_(place.template make<T>(giwa::tensor_view<T, Rank>(nullptr, sizes).size())) {}

  giwa::tensor_view<T, Rank> view() { return {memory_.data(), sizes_}; }
  std::vector<T> on_host(const Place& place) const { return place.get(memory_); }
  const giwa::index<Rank>& sizes() const { return sizes_; }

 private:
  giwa::index<Rank> sizes_;
  decltype(std::declval<const Place&>().template make<T>(0)) memory_;
};

/// `return example::run_anywhere([](const auto& place) { … return right; });` on the GPU if there is one, else on the CPU; also
/// where `cpu` asks for that.
template <class Body>
int run_anywhere(Body body, bool cpu = false) try {
  const auto choice = choose_device();
  const bool right = choice.on_gpu() && !cpu ? body(on_gpu{}) : body(on_cpu{});
  if (cpu)
    std::printf("device: CPU, as asked for\n");
  else
    print(choice);
  std::printf("check:  %s\n", right ? "right" : "FAILED");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

}  // namespace example
