// SPDX-License-Identifier: MIT
// for_all on the CPU: its contract and its checks. The loop itself comes with <giwa/host.hpp>.
#ifndef GIWA_GRID_HOST_FOR_ALL_HPP
#define GIWA_GRID_HOST_FOR_ALL_HPP

#include <giwa/grid/for_all_checks.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <class F>
struct host_loop;  // defined by <giwa/host.hpp>

template <class F, class Index>
constexpr void require_host_body() {
  refuse_device_lambda<F>();
  require_function_of_index<F, Index>();
  static_assert(defined<host_loop<F>>, "giwa::for_all(giwa::host, ...) needs #include <giwa/host.hpp>.");
}

}  // namespace detail

/// Calls f(i) on the CPU for each int64 i in [0, n) and returns when all calls are done. From 131072 elements on, worker
/// threads share the range. An exception of f reaches the caller; some elements are then left out.
///
/// Parameters:
///   - n: how many indices
///   - f: a const callable, of which each worker thread has its own copy
///
/// Errors: n is negative or larger than an int64.
template <stdlib::integral Size, class F>
status for_all(host_t, Size n, F f) {
  detail::require_host_body<F, int64>();
  const result<int64> size = detail::checked_count(n);
  if (!size.ok()) return size.state;
  detail::host_loop<F>::run(size.value, f);
  return {};
}

/// Calls f(index<rank>) on the CPU for each position inside the extents: `for_all(giwa::host, giwa::extents{height, width},
/// f)`. Threads and exceptions are as for a count. The last dimension is the inner loop, without a division per element.
///
/// Parameters:
///   - e: the sizes
///   - f: as for a count, with an index<rank>
///
/// Errors: a size is negative, or the product of the sizes is larger than an int64.
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
