// SPDX-License-Identifier: MIT
// What the ten steps share: the problem, the check against attention_reference, and the clock.
#pragma once

#include "../support/attention_compare.hpp"
#include "../support/place.cuh"

#include <giwa/grid.cuh>
#include <giwa/host_executor.cuh>
#include <giwa/softmax/online.cuh>
#include <giwa/tile.cuh>

namespace steps {

using giwa::int64;

inline constexpr int head_size = 64;
inline constexpr float scale = 0.125f;                     // 1 / sqrt(head_size)
inline constexpr float scale_log2 = scale * 1.442695041f;  // e^(scale x) is 2^(scale_log2 x)

/// Attention without a mask: each row of o is the sum of the rows of v of its head, weighted by the softmax of scale q k.
/// Heads lie one after the other, and the tokens of a head are a multiple of 128, so that no tile needs a bounds check.
template <class T>
struct problem {
  giwa::tensor_view<const T, 2> q, k, v;  // (heads * tokens, head_size)
  giwa::tensor_view<T, 2> o;              // (heads * tokens, head_size)
  int64 tokens;

  /// Returns the first key of the head to which a query belongs.
  GIWA_HOST_DEVICE int64 first_key(int64 query) const { return query / tokens * tokens; }
  /// Returns how many tiles of keys a head has.
  GIWA_HOST_DEVICE int tiles(int block_n) const { return static_cast<int>(tokens) / block_n; }
};

/// Solves one problem by attend(where, problem), compares the last `checked` queries of each head, and prints the speed
/// under `what` if it is not null.
template <class T, class Place, class Attend>
bool solve(const Place& place, const Attend& attend, int64 heads, int64 tokens, int64 checked, const char* what) {
  using tensor = example::tensor<T, 4, Place>;
  const giwa::index<4> sizes{heads, tokens, 1, head_size};
  tensor q(place, sizes, 1), k(place, sizes, 2), v(place, sizes, 3), o(place, sizes, 4);
  const auto rows = [&](tensor& x) {
    return giwa::tensor_view<T, 2>(x.view().data(), {heads * tokens, int64{head_size}});
  };
  const problem<T> p{rows(q), rows(k), rows(v), rows(o), tokens};
  const auto work = [&] { return attend(place.where(), p); };
  example::throw_if_failed(work());
  const std::vector<T> qs = q.on_host(place), ks = k.on_host(place), vs = v.on_host(place), os = o.on_host(place);
  const auto view = [&](const std::vector<T>& x) { return giwa::tensor_view<const T, 4>(x.data(), sizes); };
  const example::comparison c =
      example::compare<T>(view(qs), view(ks), view(vs), view(os), giwa::full{}, giwa::plain_score{}, checked);
  if (!c.good())
    std::printf("%s: the error is %.1e, at most %.1e is allowed\n", Place::is_gpu ? "GPU" : "CPU", c.error,
                2 * c.plain + c.ulp);
  if (what != nullptr) {
    const double ms = place.milliseconds(work);
    const double flops = 4.0 * static_cast<double>(heads * tokens * tokens * head_size);
    std::printf("%s: %lld heads of %lld tokens, %.3f ms, %.4g TFLOP/s\n", what, static_cast<long long>(heads),
                static_cast<long long>(tokens), ms, flops / ms * 1e-9);
  }
  return c.good();
}

/// The main of a step that runs anywhere: a small problem on the CPU, and the same and a large one on the GPU if there is one.
template <class T, class Attend>
int run(const char* what, const Attend& attend) {
  return example::run_anywhere([&]<class Place>(const Place& place) {
    if constexpr (Place::is_gpu)
      return solve<T>(example::on_cpu{}, attend, 2, 256, 256, nullptr) &&
             solve<T>(place, attend, 2, 256, 256, nullptr) && solve<T>(place, attend, 16, 4096, 8, what);
    else
      return solve<T>(place, attend, 2, 256, 256, what);
  });
}

#if defined(__CUDACC__)
/// The main of a step for GPUs, or for Hopper alone. Returns 77 where it cannot run, which CTest counts as skipped.
template <class T, class Attend>
int run_on_gpu(const char* what, const Attend& attend, bool only_hopper = false) {
  const giwa::device_choice choice = giwa::choose_device();
  if (!choice.on_gpu() || (only_hopper && !choice.found.code.architecture_specific)) {
    giwa::print(choice);
    std::printf("check:  skipped; this step needs %s\n",
                only_hopper ? "an H100 or H200, and -gencode arch=compute_90a,code=sm_90a" : "a GPU");
    return 77;
  }
  return example::run_anywhere([&]<class Place>(const Place& place) {
    if constexpr (Place::is_gpu)
      return solve<T>(place, attend, 2, 256, 256, nullptr) && solve<T>(place, attend, 16, 4096, 8, what);
    else
      return false;
  });
}
#endif

}  // namespace steps
