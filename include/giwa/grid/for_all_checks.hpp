// SPDX-License-Identifier: MIT
// Compile-time checks of the arguments of for_all, on a stream and on the CPU: each mistake gives one sentence.
#ifndef GIWA_GRID_FOR_ALL_CHECKS_HPP
#define GIWA_GRID_FOR_ALL_CHECKS_HPP

#include <giwa/base/arch.hpp>
#include <giwa/base/status.hpp>
#include <giwa/device/host.hpp>
#include <giwa/numeric/extents.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Whether for_all iterates over a What: a count, extents, sizes in braces, or elementwise, which specialises it.
template <class What>
inline constexpr bool is_iterable = stdlib::integral<What>;
template <int64... Sizes>
inline constexpr bool is_iterable<extents<Sizes...>> = true;
template <stdlib::size_t Rank>
inline constexpr bool is_iterable<int64[Rank]> = true;

/// A __device__ lambda. Its type in host code has no call operator.
template <class F>
inline constexpr bool is_device_lambda =
#if defined(__CUDACC_EXTENDED_LAMBDA__)
    __nv_is_extended_device_lambda_closure_type(F);
#else
    false;
#endif

/// Whether nvcc compiles F for the host alone because it is a lambda without annotation. nvcc's own answer is only about
/// annotated lambdas, but its name of the type begins with "lambda [". False for other compilers.
template <class F>
constexpr bool asks_host_lambda() {
#if defined(__CUDACC_EXTENDED_LAMBDA__)
  if (__nv_is_extended_device_lambda_closure_type(F) || __nv_is_extended_host_device_lambda_closure_type(F))
    return false;
#endif
  const char *const start = "F = lambda [", *wanted = start;
  for (const char* name = __PRETTY_FUNCTION__; *name != 0 && *wanted != 0; ++name)
    wanted = *name == *wanted ? wanted + 1 : *name == *start ? start + 1 : start;
  return *wanted == 0;
}

template <class F>
constexpr void refuse_device_lambda() {
  static_assert(!is_device_lambda<F>,
                "giwa::for_all(giwa::host, ...): this lambda is __device__ only and would do nothing on the CPU: "
                "mark it __host__ __device__ (GIWA_HOST_DEVICE).");
}

template <class F, class Index>
constexpr void require_function_of_index() {
  static_assert(is_device_lambda<F> || stdlib::is_invocable_v<const F&, Index>,
                "giwa::for_all: f is called as f(int64) for a count and as f(index<rank>) for extents: give it such a "
                "parameter, and make its call operator const (no mutable lambda).");
}

template <class F, class... Element>
constexpr void require_function_of_elements() {
  static_assert(is_device_lambda<F> || stdlib::is_invocable_v<const F&, const Element&...>,
                "giwa::for_all: f is called with one element of each input array of elementwise: give it as many "
                "parameters, of their types, and make its call operator const (no mutable lambda).");
}

template <class What>
constexpr void refuse_for_all_over() {
  static_assert(always_false<What>,
                "giwa::for_all: pass an integer count, extents{...} or elementwise{...} before f. A tensor_view goes "
                "into elementwise{...}, or its sizes into extents{...}.");
}

/// Sizes in braces as extents.
template <stdlib::size_t Rank, int64... Sizes>
constexpr auto extents_of(const int64 (&sizes)[Rank]) {
  if constexpr (sizeof...(Sizes) < Rank) {
    return extents_of<Rank, Sizes..., dynamic>(sizes);
  } else {
    index<static_cast<int>(Rank)> all{};
    for (stdlib::size_t d = 0; d < Rank; ++d) all[static_cast<int>(d)] = sizes[d];
    return extents<Sizes...>::from(all);
  }
}

}  // namespace detail

inline namespace GIWA_ARCH_TAG {
/// Takes sizes in braces: `for_all(where, {height, width}, f)` is for_all(where, extents{height, width}, f).
///
/// Parameters:
///   - where, f: as there
///   - sizes: of 1 to 4 dimensions
template <class Where, stdlib::size_t Rank, class F>
status for_all(const Where& where, const int64 (&sizes)[Rank], const F& f) {
  return for_all(where, detail::extents_of(sizes), f);
}
}  // namespace GIWA_ARCH_TAG

#if !defined(GIWA_DOXYGEN)  // calls that do not compile, and the reason
template <class What, class F>
status for_all(const What&, const F&) {
  static_assert(detail::always_false<What>,
                "giwa::for_all: pass a stream or giwa::host as the first argument: for_all(stream, n, f).");
  return {};
}

#if !defined(__CUDACC__)
template <class Stream, class What, class F>
  requires(!stdlib::is_same_v<Stream, host_t>)
status for_all(const Stream&, const What&, const F&) {
  static_assert(detail::always_false<Stream>,
                "giwa::for_all: for_all on a stream needs nvcc: compile this file as CUDA, or pass giwa::host.");
  return {};
}
#endif

template <class R, class What, class F>
status for_all(const result<R>&, const What&, const F&) {
  static_assert(detail::always_false<R>,
                "giwa::for_all: the first argument is a result: giwa::throw_if_failed(s) is its stream.");
  return {};
}

template <class What, class F>
  requires(!detail::is_iterable<What>)
status for_all(host_t, const What&, const F&) {
  detail::refuse_for_all_over<What>();
  return {};
}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
