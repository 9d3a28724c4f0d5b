// SPDX-License-Identifier: MIT
// for_all on the CPU: what it promises, and the checks that come before its loop (<giwa/host.hpp>).
#ifndef GIWA_GRID_HOST_FOR_ALL_HPP
#define GIWA_GRID_HOST_FOR_ALL_HPP

#include <giwa/base/status.hpp>
#include <giwa/device/host.hpp>
#include <giwa/numeric/extents.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <class F>
struct host_loop;  // defined by <giwa/host.hpp>

template <class F>
constexpr void refuse_device_lambda() {
#if defined(__CUDACC_EXTENDED_LAMBDA__)
  static_assert(!__nv_is_extended_device_lambda_closure_type(F),
                "giwa::for_all(giwa::host, …): this lambda is __device__ only and would do nothing on the CPU: "
                "mark it __host__ __device__ (GIWA_HOST_DEVICE).");
#endif
}

template <class F, class Index>
constexpr void require_host_body() {
  refuse_device_lambda<F>();
  static_assert(stdlib::is_invocable_v<const F&, Index>,
                "giwa::for_all: f is called as f(int64) for a number, as f(index<rank>) for extents; it must be const: "
                "no `mutable` lambda.");
  static_assert(defined<host_loop<F>>, "giwa::for_all(giwa::host, …) needs #include <giwa/host.hpp>.");
}

}  // namespace detail

/// Calls f(i) for each int64 i in [0, n), on the CPU, and returns when all are done. Worker threads share the range where
/// it is long enough to pay for them, from 131072 elements; each has its own copy of f. An exception of f reaches the
/// caller, and some elements are then left out. Status: n is negative, or larger than an int64.
template <stdlib::integral Size, class F>
status for_all(host_t, Size n, F f) {
  detail::require_host_body<F, int64>();
  const result<int64> size = detail::checked_count(n);
  if (!size.ok()) return size.state;
  detail::host_loop<F>::run(size.value, f);
  return {};
}

/// Calls f(index<rank>) for each position of the extents: `for_all(giwa::host, giwa::extents{height, width}, f)`. A worker
/// walks along the last dimension, without a division per element. Status: a size is negative, or their product is larger
/// than an int64. For the rest see above.
template <int64... Sizes, class F>
status for_all(host_t, const extents<Sizes...>& e, F f) {
  detail::require_host_body<F, index<sizeof...(Sizes)>>();
  const result<int64> size = e.checked_size();
  if (!size.ok()) return size.state;
  detail::host_loop<F>::run(e, size.value, f);
  return {};
}

}  // namespace giwa::inline GIWA_ABI

#endif
