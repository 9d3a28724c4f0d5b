// SPDX-License-Identifier: MIT
// softmax on the CPU: what it promises, and the checks that come before its loop (<giwa/host.hpp>).
#ifndef GIWA_SOFTMAX_HOST_SOFTMAX_HPP
#define GIWA_SOFTMAX_HOST_SOFTMAX_HPP

#include <giwa/device/host.hpp>
#include <giwa/softmax/problem.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {
template <class T, class U>
struct host_rows;  // defined by <giwa/host.hpp>
}

/// The softmax over the last dimension on the CPU: the same conventions and errors as on a stream, and results that agree
/// with those to rounding. Rows are shared among worker threads where they are long or many enough to pay for them. Done
/// when it returns.
template <class T, class U, int Rank>
status softmax(host_t, const tensor_view<T, Rank>& in, const tensor_view<U, Rank>& out) {
  detail::require_softmax<T, U, Rank>();
  using rows = detail::host_rows<stdlib::remove_const_t<T>, U>;
  static_assert(detail::defined<rows>, "giwa::softmax(giwa::host, …) needs #include <giwa/host.hpp>.");
  if (const status s = detail::check_softmax(in, out); !s.ok()) return s;
  if (out.size() == 0) return {};
  rows::run(in.data(), in.stride(Rank - 1), out.data(), out.stride(Rank - 1), in.extent(Rank - 1),
            detail::row_map::of(in, out));
  return {};
}

}  // namespace giwa::inline GIWA_ABI

#endif
