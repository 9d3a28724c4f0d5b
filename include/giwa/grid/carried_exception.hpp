// SPDX-License-Identifier: MIT
// Carries an exception from a fiber or a worker thread to the caller.
#ifndef GIWA_GRID_CARRIED_EXCEPTION_HPP
#define GIWA_GRID_CARRIED_EXCEPTION_HPP

#include <giwa/base/macros.hpp>

#include <exception>

namespace giwa::inline GIWA_ABI::detail {

/// Calls f and returns the exception that leaves it, or null. The caller passes it to std::rethrow_exception.
template <class F>
std::exception_ptr carry_exception(F&& f) {
#if defined(__cpp_exceptions)
  try {
    f();
  } catch (...) {
    return std::current_exception();
  }
#else
  f();
#endif
  return nullptr;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
