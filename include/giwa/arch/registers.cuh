// SPDX-License-Identifier: MIT
// Registers: moved between the warpgroups of a block, from a producer to the consumers (setmaxnreg), and kept free.
#ifndef GIWA_ARCH_REGISTERS_CUH
#define GIWA_ARCH_REGISTERS_CUH

#include <giwa/base/arch.hpp>
#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI::arch {

// All four warps of a warpgroup call these, in a kernel with both launch bounds; ptxas ignores them in other kernels
// (C7508). Count is a multiple of 8 from 24 to 256. PTX ISA, "setmaxnreg".

/// Reduces the registers of each thread of this warpgroup to `Count`.
template <int Count>
GIWA_DEVICE void release_registers() {
  static_assert(Count % 8 == 0 && Count >= 24 && Count <= 256,
                "giwa: setmaxnreg takes a multiple of 8 registers from 24 to 256.");
#if GIWA_ARCH_HAS_SM90A
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#else
  __trap();
#endif
}

/// Raises the registers of each thread of this warpgroup to `Count`. Waits until other warpgroups have released enough.
template <int Count>
GIWA_DEVICE void claim_registers() {
  static_assert(Count % 8 == 0 && Count >= 24 && Count <= 256,
                "giwa: setmaxnreg takes a multiple of 8 registers from 24 to 256.");
#if GIWA_ARCH_HAS_SM90A
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#else
  __trap();
#endif
}

/// Returns the same value, from which the compiler computes what follows here, not once before a loop to keep it. Generates no
/// instruction.
GIWA_DEVICE inline int recomputed_here(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// Tells the compiler to compute a number or a pointer here, not where it is used. Generates no instruction.
template <class T>
GIWA_DEVICE void compute_here(T& value) {
  static_assert(sizeof value == 4 || sizeof value == 8);
  if constexpr (stdlib::same_as<T, float>)
    asm volatile("" : "+f"(value));
  else if constexpr (sizeof value == 8)
    asm volatile("" : "+l"(value));
  else
    asm volatile("" : "+r"(value));
}

/// Reads the rank of the thread in a block of one dimension. What is computed from it does not stay in registers until the next
/// call, which the compiler takes for another number.
GIWA_DEVICE inline int read_thread_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(rank));
  return rank;
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
