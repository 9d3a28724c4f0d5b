// SPDX-License-Identifier: MIT
// Thread block clusters: the cluster's barrier, and the shared memory of its other blocks (compute capability 9.0).
#ifndef GIWA_ARCH_CLUSTER_CUH
#define GIWA_ARCH_CLUSTER_CUH

#include <giwa/arch/shared_address.cuh>

namespace giwa::inline GIWA_ABI::arch {

/// Returns the block's rank in its cluster (PTX ISA, "Special Registers: %cluster_ctarank").
GIWA_DEVICE inline int cluster_rank() {
  uint32 rank = 0;
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
  return static_cast<int>(rank);
}
/// Returns the number of blocks in the cluster (PTX ISA, "Special Registers: %cluster_nctarank").
GIWA_DEVICE inline int cluster_size() {
  uint32 size = 0;
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
  return static_cast<int>(size);
}

/// Arrives at the cluster's barrier: what this thread wrote before is seen by who has waited. Every thread of every block
/// arrives, and then waits, once for each time (PTX ISA, "Parallel Synchronization: barrier.cluster").
GIWA_DEVICE inline void cluster_arrive() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}
/// The same, ordering no memory: says only that this thread has come so far, and so that its block runs.
GIWA_DEVICE inline void cluster_arrive_relaxed() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}
/// Waits until all threads of the cluster have arrived.
GIWA_DEVICE inline void cluster_wait() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}
/// Arrives and waits.
GIWA_DEVICE inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// The address, in the cluster's shared window, that an object of this block's shared memory has in the block of the
/// given rank (PTX ISA, "Data Movement and Conversion: mapa").
GIWA_DEVICE inline uint32 cluster_address(uint32 shared_address, int rank) {
  uint32 address = shared_address;
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
#elif defined(__CUDA_ARCH__)
  static_cast<void>(rank);
  __trap();
#endif
  return address;
}

/// Writes 4 or 8 bytes to an address of cluster_address. The block must run, which a barrier tells, and must not have
/// returned (PTX ISA, "State Spaces: Shared State Space", "Data Movement and Conversion: st").
template <class T>
GIWA_DEVICE void cluster_store(uint32 address, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "giwa: a store to another block's shared memory has 4 or 8 bytes.");
#if GIWA_ARCH_CAPABILITY >= 90
  if constexpr (sizeof(T) == 4) {
    uint32 word;
    __builtin_memcpy(&word, &value, 4);
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
  } else {
    uint64 word;
    __builtin_memcpy(&word, &value, 8);
    asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(address), "l"(word) : "memory");
  }
#else
  static_cast<void>(address), static_cast<void>(value);
#if defined(__CUDA_ARCH__)
  __trap();
#endif
#endif
}

/// The same without a fence: the barrier (mbarrier) at `barrier`, an address in the same block, counts the bytes once they
/// can be read there; who has waited for it sees them. A release over the cluster costs a fence of the whole GPU, which
/// waits for everything that the thread has ever stored (PTX ISA, "Data Movement and Conversion: st.async").
template <class T>
GIWA_DEVICE void cluster_store_async(uint32 address, T value, uint32 barrier) {
  static_assert(sizeof(T) == 8, "giwa: an asynchronous store to another block's shared memory has 8 bytes.");
#if GIWA_ARCH_CAPABILITY >= 90
  uint64 word;
  __builtin_memcpy(&word, &value, 8);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(address), "l"(word),
               "r"(barrier)
               : "memory");
#else
  static_cast<void>(address), static_cast<void>(value), static_cast<void>(barrier);
#if defined(__CUDA_ARCH__)
  __trap();
#endif
#endif
}

/// Reads 4 or 8 bytes from such an address (PTX ISA, "Data Movement and Conversion: ld").
template <class T>
GIWA_DEVICE T cluster_load(uint32 address) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "giwa: a load of another block's shared memory has 4 or 8 bytes.");
  T value{};
#if GIWA_ARCH_CAPABILITY >= 90
  if constexpr (sizeof(T) == 4) {
    uint32 word;
    asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    __builtin_memcpy(&value, &word, 4);
  } else {
    uint64 word;
    asm volatile("ld.shared::cluster.b64 %0, [%1];" : "=l"(word) : "r"(address) : "memory");
    __builtin_memcpy(&value, &word, 8);
  }
#else
  static_cast<void>(address);
#if defined(__CUDA_ARCH__)
  __trap();
#endif
#endif
  return value;
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
