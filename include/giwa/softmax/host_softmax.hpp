// SPDX-License-Identifier: MIT
// softmax on the CPU: its contract, and the checks before its loop (<giwa/host.hpp>).
#ifndef GIWA_SOFTMAX_HOST_SOFTMAX_HPP
#define GIWA_SOFTMAX_HOST_SOFTMAX_HPP

#include <giwa/device/host.hpp>
#include <giwa/softmax/problem.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {
template <class T, class U>
struct host_rows;  // defined by <giwa/host.hpp>
}

/// Computes the softmax over the last dimension on the CPU: out[..., j] = e^(in[..., j] - m) / sum over k of e^(in[...,
/// k] - m), where m is the row's largest element. Needs `#include <giwa/host.hpp>`.
///
/// Parameters:
///   - in: 1 to 4 dimensions, any sizes and strides
///   - out: the same sizes; written. Its elements must not overlap. May be `in` itself, with the same strides and element size
///
/// Elements are fp16, bf16, fp32 or fp64, each view its own; computed in fp32, or in fp64 if either view is fp64. A row of -inf gives 0; a NaN or +inf in a
/// row makes the whole row NaN. Results agree with those on a stream to rounding; docs/softmax.md has the error bound.
/// Compile with -march=native or similar:
/// without it the compiler uses SSE, at about 0.65 of the speed of AVX-512.
///
/// Worker threads share the rows if there are enough elements to pay for them. Returns when `out` is written. Errors,
/// as a status with the argument, the limit and the value seen, before anything is written: a null or misaligned
/// pointer, a negative size, sizes that differ, `out` overlapping itself, `out` overlapping `in` without being `in`.
template <class T, class U, int Rank>
status softmax(host_t, const tensor_view<T, Rank>& in, const tensor_view<U, Rank>& out) {
  detail::require_softmax<T, U, Rank>();
  using rows = detail::host_rows<stdlib::remove_const_t<T>, U>;
  static_assert(detail::defined<rows>, "giwa::softmax(giwa::host, ...): add #include <giwa/host.hpp>.");
  if (const status s = detail::check_softmax(in, out); !s.ok()) return s;
  if (out.size() == 0) return {};
  rows::run(in.data(), in.stride(Rank - 1), out.data(), out.stride(Rank - 1), in.extent(Rank - 1),
            detail::row_map::of(in, out));
  return {};
}

}  // namespace giwa::inline GIWA_ABI

#endif
