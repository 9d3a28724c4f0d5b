// SPDX-License-Identifier: MIT
// Storage for a value that is written later: what shared memory, which runs no constructors, can have as a member.
#ifndef GIWA_BASE_UNINITIALIZED_HPP
#define GIWA_BASE_UNINITIALIZED_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Storage for a trivially copyable Value whose default constructor is not trivial. It starts uninitialised; get() is
/// valid after put().
template <class Value>
struct uninitialized {
  alignas(Value) unsigned char bytes[sizeof(Value)];
  GIWA_HOST_DEVICE void put(const Value& v) { __builtin_memcpy(bytes, &v, sizeof v); }
  GIWA_HOST_DEVICE const Value& get() const { return *reinterpret_cast<const Value*>(bytes); }
  GIWA_HOST_DEVICE Value& get() { return *reinterpret_cast<Value*>(bytes); }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
