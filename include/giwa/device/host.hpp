// SPDX-License-Identifier: MIT
// giwa::host: the argument that selects the CPU, in the place of a stream.
#ifndef GIWA_DEVICE_HOST_HPP
#define GIWA_DEVICE_HOST_HPP

#include <giwa/base/macros.hpp>

namespace giwa::inline GIWA_ABI {

/// The type of giwa::host.
struct host_t {
  explicit host_t() = default;
};

/// Selects the CPU, as in `for_all(giwa::host, ...)`. The work is done when the call returns.
inline constexpr host_t host{};

namespace detail {

/// Whether T is defined: whether the header that runs work on the host has been included.
template <class T>
concept defined = requires { sizeof(T); };

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
