// SPDX-License-Identifier: MIT
// What the L2 cache keeps of a copy.
#ifndef GIWA_ARCH_L2_POLICY_HPP
#define GIWA_ARCH_L2_POLICY_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// The policy of the L2 cache for the lines of a copy. The values are those that createpolicy returns for a whole
/// access.
enum class l2_policy : uint64 {
  normal = 0x1000000000000000,
  evict_first = 0x12F0000000000000,
  evict_last = 0x14F0000000000000
};

}  // namespace giwa::inline GIWA_ABI::arch

#endif
