// SPDX-License-Identifier: MIT
// The swizzles of shared memory that TMA writes and wgmma reads, as XORs of address bits.
#ifndef GIWA_ARCH_SWIZZLE_HPP
#define GIWA_ARCH_SWIZZLE_HPP

#include <giwa/base/macros.hpp>

namespace giwa::inline GIWA_ABI {

/// A permutation of the 16-byte chunks of a row that places the same chunk of eight rows in different banks. The value
/// is the span within which chunks move, in bytes. Source: PTX ISA, "Swizzling Modes".
enum class swizzle : int { none = 16, bytes_32 = 32, bytes_64 = 64, bytes_128 = 128 };

/// Returns the span in bytes. Without a swizzle it is one chunk.
GIWA_HOST_DEVICE constexpr int span_of(swizzle s) { return static_cast<int>(s); }

/// Returns the swizzled offset of byte `offset` of a tile: bits 4 to 6 are XORed with bits 7 to 9, or only the lower
/// two or one of them. Offsets are from an address that is a multiple of 8 spans.
GIWA_HOST_DEVICE constexpr int swizzled_offset(swizzle s, int offset) {
  return offset ^ ((offset >> 3) & (span_of(s) - 16));
}

}  // namespace giwa::inline GIWA_ABI

#endif
