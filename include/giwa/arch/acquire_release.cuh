// SPDX-License-Identifier: MIT
// Loads and stores that order the accesses of blocks to global memory.
#ifndef GIWA_ARCH_ACQUIRE_RELEASE_CUH
#define GIWA_ARCH_ACQUIRE_RELEASE_CUH

#include <giwa/base/arch.hpp>

namespace giwa::inline GIWA_ABI::arch {

/// Loads a number that another block of the GPU stored by store_release(), whose earlier accesses come before the later ones of
/// this thread. Source: PTX ISA, "ld", "Memory Consistency Model".
GIWA_DEVICE inline int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
/// Loads a number that another block stores, in relaxed order: what follows may not read what that block wrote before.
GIWA_DEVICE inline int load_relaxed(const int* from) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
/// The same of four numbers at a multiple of 16 bytes. The compiler keeps the order of these loads.
GIWA_DEVICE inline void load_relaxed(float (&to)[4], const float* from) {
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "l"(from)
               : "memory");
}
/// Adds to four numbers at a multiple of 16 bytes, each atomically, on GPUs of 9.0 and newer.
GIWA_DEVICE inline void add_relaxed([[maybe_unused]] float* to, [[maybe_unused]] const float (&values)[4]) {
#if GIWA_ARCH_HAS_SM90A
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
#endif
}
/// Stores a number after all earlier accesses of this thread.
GIWA_DEVICE inline void store_release(int* to, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
/// Adds to a number after all earlier accesses of this thread and before the later ones, and returns what it was.
GIWA_DEVICE inline int add_acquire_release(int* to, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(value) : "memory");
  return before;
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
