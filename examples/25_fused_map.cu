// SPDX-License-Identifier: MIT
// Three functions of every element in one pass over memory, compared with one pass for each: the same bits, fewer bytes.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/25_fused_map.cu -o 25_fused_map
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: an elementwise pass costs what it moves, not what it computes. Three passes write what the next one
// reads back; `fuse(f, g, h)` passes it in a register. It takes ten lines, because for_all accepts any function of
// values. If the arrays fit into the L2 cache, as small ones do, the three passes lose less by their bytes and more by
// their launches. Fusion changes bits only if a sum in one function uses a product of the function before: the compiler
// then sees both and may contract them into one rounding (fma). This does not happen here, so all bits agree;
// -fmad=false or __fmul_rn prevents it elsewhere.
//
// Expected output, with the times of your machine; on a CPU there are fewer elements:
//   y = h(g(f(a, b))): three passes move 28 bytes an element, one pass 12; 2.33 times as many
//       elements   three: ms      GB/s     one: ms      GB/s   times as fast
//          65536      0.0105     175.4      0.0036     220.6   2.93
//      134217728      0.8852    4245.6      0.3702    4350.6   2.39
//   device: NVIDIA H200
//   check:  right
#include "support/place.cuh"

#include <cstring>

using giwa::int64, giwa::throw_if_failed;

// fuse(f, g, h)(x…) is h(g(f(x…))).
template <class First, class... Rest>
struct fused {
  First first;
  fused<Rest...> rest;
  template <class... T>
  GIWA_HOST_DEVICE constexpr auto operator()(const T&... x) const {
    return rest(first(x...));
  }
};
template <class Last>
struct fused<Last> : Last {};

template <class First, class... Rest>
constexpr fused<First, Rest...> fuse(First first, Rest... rest) {
  if constexpr (sizeof...(Rest) == 0)
    return {first};
  else
    return {first, fuse(rest...)};
}

// What is fused: a sum, cut to a range, and scaled.
struct sum {
  GIWA_HOST_DEVICE constexpr float operator()(float a, float b) const { return a + b; }
};
struct cut {
  float from, to;
  GIWA_HOST_DEVICE constexpr float operator()(float x) const { return x < from ? from : to < x ? to : x; }
};
struct times {
  float factor;
  GIWA_HOST_DEVICE constexpr float operator()(float x) const { return factor * x; }
};
constexpr sum f{};
constexpr cut g{-1.5f, 3};
constexpr times h{0.7f};
static_assert(fuse(f)(1.0f, 2.0f) == 3.0f && fuse(f, g)(4.0f, 5.0f) == 3.0f && fuse(f, g, h)(-4.0f, 1.0f) == h(-1.5f));

template <class Place>
bool compare(const Place& place, int64 n, int repeats) {
  auto a = place.template make<float>(n), b = place.template make<float>(n);
  auto by_three = place.template make<float>(n), by_one = place.template make<float>(n);
  throw_if_failed(giwa::for_all(place.where(), n, example::fill<float>{a.data(), 1}));
  throw_if_failed(giwa::for_all(place.where(), n, example::fill<float>{b.data(), 2}));

  const auto three_passes = [&] {
    const auto in_place = giwa::elementwise{by_three, by_three};
    if (const giwa::status s = giwa::for_all(place.where(), giwa::elementwise{by_three, a, b}, f); !s.ok()) return s;
    if (const giwa::status s = giwa::for_all(place.where(), in_place, g); !s.ok()) return s;
    return giwa::for_all(place.where(), in_place, h);
  };
  const auto one_pass = [&] { return giwa::for_all(place.where(), giwa::elementwise{by_one, a, b}, fuse(f, g, h)); };
  const double ms_three = place.milliseconds(three_passes, repeats), ms_one = place.milliseconds(one_pass, repeats);
  const double moved_three = sizeof(float) * (3.0 + 2 + 2) * static_cast<double>(n),
               moved_one = sizeof(float) * 3.0 * static_cast<double>(n);
  std::printf("%12lld %11.4f %9.1f %11.4f %9.1f   %.2f\n", static_cast<long long>(n), ms_three,
              moved_three * 1e-6 / ms_three, ms_one, moved_one * 1e-6 / ms_one, ms_three / ms_one);

  // The reference is a loop on the CPU, which has the same bits too: sums and products are IEEE 754's on both.
  const std::vector<float> x = place.get(a), y = place.get(b), three = place.get(by_three), one = place.get(by_one);
  std::vector<float> expected(x.size());
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = 0.7f * std::clamp(x[i] + y[i], -1.5f, 3.0f);
  const std::size_t bytes = expected.size() * sizeof(float);
  return std::memcmp(one.data(), three.data(), bytes) == 0 && std::memcmp(one.data(), expected.data(), bytes) == 0;
}

template <class Place>
bool run(const Place& place) {
  std::printf("y = h(g(f(a, b))): three passes move 28 bytes an element, one pass 12; %.2f times as many\n", 28.0 / 12);
  std::printf("    elements   three: ms      GB/s     one: ms      GB/s   times as fast\n");
  const bool small = compare(place, 1 << 16, /*repeats=*/20);
  return compare(place, Place::is_gpu ? 1 << 27 : 1 << 22, /*repeats=*/1) && small;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
