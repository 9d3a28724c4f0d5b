// SPDX-License-Identifier: MIT
// tensor_map: the description of a tensor for TMA, 128 bytes that the driver encodes.
#ifndef GIWA_ARCH_TENSOR_MAP_HPP
#define GIWA_ARCH_TENSOR_MAP_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// The description of a tensor for TMA: sizes, strides, element type, and the box of one copy. make_tensor_map() makes
/// it. A kernel takes it in a parameter, such as the params of an op, and passes it by reference: a copy in a local
/// variable is not valid.
struct alignas(64) tensor_map {
  uint64 words[16];  ///< encoded by the driver
};

}  // namespace giwa::inline GIWA_ABI

#endif
