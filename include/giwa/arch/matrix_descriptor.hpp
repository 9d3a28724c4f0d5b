// SPDX-License-Identifier: MIT
// How wgmma is told where a matrix lies in shared memory: 64 bits.
#ifndef GIWA_ARCH_MATRIX_DESCRIPTOR_HPP
#define GIWA_ARCH_MATRIX_DESCRIPTOR_HPP

#include <giwa/arch/swizzle.hpp>
#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// A matrix in shared memory, but for its address: the swizzle of its tile (bits 62-63) and two distances (16-29 and 32-45,
/// in units of 16 bytes). The tile starts at a multiple of eight rows of a span. PTX ISA, "wgmma: Matrix Descriptor Format"
/// and "Strides".
///   along k    rows of a span run along k; stride_bytes leads from eight rows to the next eight; leading_bytes unused, 16
///   along mn   rows of a span run along the other dimension; stride_bytes leads from eight rows (of k) to the next eight,
///              leading_bytes from one slab of the tile to the next
GIWA_HOST_DEVICE constexpr uint64 matrix_descriptor(swizzle pattern, int leading_bytes, int stride_bytes) {
  const uint64 mode = pattern == swizzle::bytes_128  ? 1u
                      : pattern == swizzle::bytes_64 ? 2u
                      : pattern == swizzle::bytes_32 ? 3u
                                                     : 0u;
  return mode << 62 | static_cast<uint64>(stride_bytes >> 4) << 32 | static_cast<uint64>(leading_bytes >> 4) << 16;
}

/// The same at a shared address (bits 0-13), a multiple of 16.
GIWA_HOST_DEVICE constexpr uint64 placed_at(uint64 descriptor, uint32 address) {
  return descriptor | (address & 0x3ffff) >> 4;
}

/// The descriptor of the same tile `bytes` further on. The address's 14 bits do not overflow: one addition of 32 bits.
GIWA_HOST_DEVICE constexpr uint64 advance(uint64 descriptor, int bytes) {
  const uint32 low = static_cast<uint32>(descriptor) + static_cast<uint32>(bytes >> 4);
  return (descriptor >> 32 << 32) | low;
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
