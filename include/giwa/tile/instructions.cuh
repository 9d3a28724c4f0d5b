// SPDX-License-Identifier: MIT
// The GPU instructions of the portable tile code. A host compiler gets declarations alone: it discards every call.
#ifndef GIWA_TILE_INSTRUCTIONS_CUH
#define GIWA_TILE_INSTRUCTIONS_CUH

#include <giwa/base/arch.hpp>
#include <giwa/base/std.hpp>

#if defined(__CUDACC__)
#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/matrix_load.cuh>
#include <giwa/arch/shared_address.cuh>
#include <giwa/arch/vector_store.cuh>
#else
namespace giwa::inline GIWA_ABI::arch {

uint32 shared_address(const void* p);
template <int Bytes>
void copy_async(uint32 to, const void* from);
void copy_async_commit();
template <int Pending>
void copy_async_wait();
template <bool Transposed = false, int Count>
void store_matrices(uint32 row, const uint32 (&from)[Count]);

}  // namespace giwa::inline GIWA_ABI::arch
#endif

#endif
