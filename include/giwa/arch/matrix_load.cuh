// SPDX-License-Identifier: MIT
// Loads and stores of 8x8 matrices of 16-bit elements: shared memory to the registers of a warp (ldmatrix, stmatrix).
#ifndef GIWA_ARCH_MATRIX_LOAD_CUH
#define GIWA_ARCH_MATRIX_LOAD_CUH

#include <giwa/arch/shared_address.cuh>

namespace giwa::inline GIWA_ABI::arch {

// All lanes of a warp call these together. Matrix m has 8 rows of 16 bytes; lane 8 m + r passes the address of its row
// r, a multiple of 16. Register m of lane l holds element (l / 4, 2 (l % 4)) of matrix m in its lower half and element
// (l / 4, 2 (l % 4) + 1) in its upper half; if Transposed, those of the transposed matrix. tile/fragment.hpp has these
// maps as functions.

/// Loads 1, 2 or 4 matrices. The addresses of lanes from 8 * Count on are ignored. Source: PTX ISA, "ldmatrix".
template <bool Transposed = false, int Count>
GIWA_DEVICE void load_matrices([[maybe_unused]] uint32 (&to)[Count], [[maybe_unused]] uint32 row) {
  static_assert(Count == 1 || Count == 2 || Count == 4, "giwa: ldmatrix loads 1, 2 or 4 matrices.");
  if constexpr (Count == 1 && !Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(row) : "memory");
  if constexpr (Count == 1 && Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(row) : "memory");
  if constexpr (Count == 2 && !Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(row)
                 : "memory");
  if constexpr (Count == 2 && Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(row)
                 : "memory");
  if constexpr (Count == 4 && !Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
  if constexpr (Count == 4 && Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

/// Stores 1, 2 or 4 matrices, the reverse of load_matrices(). sm_90 and newer. Source: PTX ISA, "stmatrix".
template <bool Transposed = false, int Count>
GIWA_DEVICE void store_matrices([[maybe_unused]] uint32 row, [[maybe_unused]] const uint32 (&from)[Count]) {
  static_assert(Count == 1 || Count == 2 || Count == 4, "giwa: stmatrix stores 1, 2 or 4 matrices.");
#if GIWA_ARCH_CAPABILITY >= 90
  if constexpr (Count == 1 && !Transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(row), "r"(from[0]) : "memory");
  if constexpr (Count == 1 && Transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(row), "r"(from[0]) : "memory");
  if constexpr (Count == 2 && !Transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(from[0]), "r"(from[1])
                 : "memory");
  if constexpr (Count == 2 && Transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(from[0]), "r"(from[1])
                 : "memory");
  if constexpr (Count == 4 && !Transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
  if constexpr (Count == 4 && Transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
#else
  __trap();
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
