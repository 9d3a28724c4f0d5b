// SPDX-License-Identifier: MIT
// The 64-bit descriptor of a matrix in shared memory, an operand of wgmma.
#ifndef GIWA_ARCH_MATRIX_DESCRIPTOR_HPP
#define GIWA_ARCH_MATRIX_DESCRIPTOR_HPP

#include <giwa/arch/swizzle.hpp>
#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Returns a matrix descriptor without the address: the swizzle of the tile (bits 62-63) and two distances in units of
/// 16 bytes (bits 16-29 and 32-45). The tile starts at a multiple of eight rows of a span. PTX ISA, "wgmma: Matrix
/// Descriptor Format" and "Strides".
///   K-major    rows of a span run along k; stride_bytes is the distance of groups of 8 rows; leading_bytes unused, 16
///   MN-major   rows of a span run along the other dimension; stride_bytes is the distance of groups of 8 rows (of k),
///              leading_bytes is the distance of the slabs of the tile
GIWA_HOST_DEVICE constexpr uint64 matrix_descriptor(swizzle pattern, int leading_bytes, int stride_bytes) {
  const uint64 mode = pattern == swizzle::bytes_128  ? 1u
                      : pattern == swizzle::bytes_64 ? 2u
                      : pattern == swizzle::bytes_32 ? 3u
                                                     : 0u;
  return mode << 62 | static_cast<uint64>(stride_bytes >> 4) << 32 | static_cast<uint64>(leading_bytes >> 4) << 16;
}

/// Returns the descriptor of a matrix at a shared address (bits 0-13), a multiple of 16.
GIWA_HOST_DEVICE constexpr uint64 descriptor_at(uint64 descriptor, uint32 address) {
  return descriptor | (address & 0x3ffff) >> 4;
}

/// Returns the descriptor of a matrix that starts `bytes` later in the same tile. One addition: the 14 bits of the address do not
/// overflow. Of 32 bits, or of all 64, for which ptxas has one instruction of a warp.
///@{
GIWA_HOST_DEVICE constexpr uint64 advance(uint64 descriptor, int bytes) {
  const uint32 low = static_cast<uint32>(descriptor) + static_cast<uint32>(bytes >> 4);
  return (descriptor >> 32 << 32) | low;
}
GIWA_HOST_DEVICE constexpr uint64 advance_by_64_bits(uint64 descriptor, int bytes) {
  return descriptor + static_cast<uint64>(static_cast<int64>(bytes >> 4));
}
///@}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
