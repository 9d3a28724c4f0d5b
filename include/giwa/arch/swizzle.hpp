// SPDX-License-Identifier: MIT
// The three swizzles of shared memory that TMA writes and wgmma reads, as the XOR of address bits that they are.
#ifndef GIWA_ARCH_SWIZZLE_HPP
#define GIWA_ARCH_SWIZZLE_HPP

#include <giwa/base/macros.hpp>

namespace giwa::inline GIWA_ABI {

/// How the 16-byte chunks of a row are permuted, so that the same chunk of eight rows lies in different banks. The number is
/// the bytes of a row, the span within which chunks move. PTX ISA, "Swizzling Modes".
enum class swizzle : int { none = 16, bytes_32 = 32, bytes_64 = 64, bytes_128 = 128 };

/// The bytes of a row that belong together. Without swizzle a row is one chunk.
GIWA_HOST_DEVICE constexpr int span_of(swizzle s) { return static_cast<int>(s); }

/// Where byte `offset` of an unswizzled tile goes: bits 4 to 6 are XORed with bits 7 to 9, or the lower two or one of them.
/// Offsets count from an address that is a multiple of 8 spans.
GIWA_HOST_DEVICE constexpr int swizzled_offset(swizzle s, int offset) {
  return offset ^ ((offset >> 3) & (span_of(s) - 16));
}

}  // namespace giwa::inline GIWA_ABI

#endif
