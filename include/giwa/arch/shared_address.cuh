// SPDX-License-Identifier: MIT
// Addresses in the shared window, which instructions on shared memory take instead of pointers.
#ifndef GIWA_ARCH_SHARED_ADDRESS_CUH
#define GIWA_ARCH_SHARED_ADDRESS_CUH

#include <giwa/base/arch.hpp>
#include <giwa/base/std.hpp>

// Every file of this layer wraps one family of instructions. If the architecture of the compiler pass lacks an
// instruction, its wrapper compiles to a trap: every file compiles for every architecture, and no kernel continues with
// a wrong result. Wrappers that only wait, fence or prefetch for such an instruction compile to nothing.

namespace giwa::inline GIWA_ABI::arch {

/// Returns the 32-bit address of an object in the shared memory of this block. Source: PTX ISA, "cvta".
GIWA_DEVICE inline uint32 shared_address(const void* p) { return static_cast<uint32>(__cvta_generic_to_shared(p)); }

/// Loads two numbers from an address in shared memory that is a multiple of 8. The compiler does not order this with
/// other accesses:
/// an address from compute_here() keeps it behind the wait before that.
GIWA_DEVICE inline float2 load_shared(uint32 address) {
  float2 two;
  asm("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(address));
  return two;
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
