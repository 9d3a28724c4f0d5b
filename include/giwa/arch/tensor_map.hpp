// SPDX-License-Identifier: MIT
// What the copy engine is told about a tensor: 128 bytes that the driver writes and a kernel takes as a parameter.
#ifndef GIWA_ARCH_TENSOR_MAP_HPP
#define GIWA_ARCH_TENSOR_MAP_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// Sizes, strides, element type, and the box that one copy moves. device/tensor_map.hpp makes it; it goes to the kernel
/// inside the params of an op, and is handed on by reference: a copy of it in a kernel is no tensor map.
struct alignas(64) tensor_map {
  uint64 words[16];  ///< as the driver has encoded them
};

}  // namespace giwa::inline GIWA_ABI

#endif
