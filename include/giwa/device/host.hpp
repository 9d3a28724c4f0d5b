// SPDX-License-Identifier: MIT
// giwa::host, the CPU as a place to run: the argument that stands where a stream would.
#ifndef GIWA_DEVICE_HOST_HPP
#define GIWA_DEVICE_HOST_HPP

#include <giwa/base/macros.hpp>

namespace giwa::inline GIWA_ABI {

/// The type of giwa::host.
struct host_t {
  explicit host_t() = default;
};

/// `for_all(giwa::host, …)`, `launch(giwa::host, …)`: on the CPU, done when the call returns.
inline constexpr host_t host{};

namespace detail {

/// Whether the header that defines T, and with it a way to run on the host, has been included.
template <class T>
concept defined = requires { sizeof(T); };

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
