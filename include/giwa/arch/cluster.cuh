// SPDX-License-Identifier: MIT
// Thread block clusters: the barrier of a cluster, and the shared memory of its other blocks (compute capability 9.0).
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

/// Arrives at the barrier of the cluster. Earlier writes of this thread are visible to threads that have waited. Every
/// thread of every block arrives once and then waits once in each phase. Source: PTX ISA, "Parallel Synchronization:
/// barrier.cluster".
GIWA_DEVICE inline void cluster_arrive() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}
/// Arrives without ordering memory: it shows only that this thread has arrived, and so that its block runs.
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
/// Arrives at the barrier of the cluster and waits for all its threads.
GIWA_DEVICE inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// Returns the address, in the shared window of the cluster, of the same object in the block of the given rank.
/// `shared_address` is that of the object in this block. Source: PTX ISA, "Data Movement and Conversion: mapa".
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

/// Writes 4 or 8 bytes to an address from cluster_address(). The other block must have started, which a barrier shows,
/// and must not have returned. Source: PTX ISA, "State Spaces: Shared State Space", "Data Movement and Conversion: st".
template <class T>
GIWA_DEVICE void cluster_store(uint32 address, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8,
                "giwa: a store to another block's shared memory must have 4 or 8 bytes.");
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

/// Writes 8 bytes asynchronously. The mbarrier at `barrier`, an address in the same block as `address`, counts the
/// bytes when they are visible there, so that the threads that wait for it can read them. Needs no fence: a release at
/// cluster scope costs a fence of the whole GPU, which waits for all earlier stores of the thread. Source: PTX ISA,
/// "Data Movement and Conversion: st.async".
template <class T>
GIWA_DEVICE void cluster_store_async(uint32 address, T value, uint32 barrier) {
  static_assert(sizeof(T) == 8, "giwa: an asynchronous store to another block's shared memory must have 8 bytes.");
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

/// Reads 4 or 8 bytes from an address from cluster_address(). Source: PTX ISA, "Data Movement and Conversion: ld".
template <class T>
GIWA_DEVICE T cluster_load(uint32 address) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8,
                "giwa: a load of another block's shared memory must have 4 or 8 bytes.");
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
