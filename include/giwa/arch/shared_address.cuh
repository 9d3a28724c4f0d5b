// SPDX-License-Identifier: MIT
// Addresses in the shared window: what every instruction on shared memory takes in place of a pointer.
#ifndef GIWA_ARCH_SHARED_ADDRESS_CUH
#define GIWA_ARCH_SHARED_ADDRESS_CUH

#include <giwa/base/arch.hpp>
#include <giwa/base/std.hpp>

// Every file of this floor wraps one family of instructions. Where the pass's architecture lacks an instruction its wrapper
// compiles to a trap, so that every file compiles for every architecture, and no kernel goes on with a wrong answer. Only
// what merely waits, fences or prefetches for such an instruction compiles to nothing there.

namespace giwa::inline GIWA_ABI::arch {

/// The 32-bit address of an object in this block's shared memory (PTX ISA, "cvta").
GIWA_DEVICE inline uint32 shared_address(const void* p) { return static_cast<uint32>(__cvta_generic_to_shared(p)); }

}  // namespace giwa::inline GIWA_ABI::arch

#endif
