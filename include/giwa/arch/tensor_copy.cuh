// SPDX-License-Identifier: MIT
// TMA: asynchronous copies of boxes of a tensor between global and shared memory, with completion on an mbarrier.
#ifndef GIWA_ARCH_TENSOR_COPY_CUH
#define GIWA_ARCH_TENSOR_COPY_CUH

#include <giwa/arch/l2_policy.hpp>
#include <giwa/arch/mbarrier.cuh>
#include <giwa/arch/tensor_map.hpp>

namespace giwa::inline GIWA_ABI::arch {

// One thread issues a copy. `map` is in a __grid_constant__ parameter (device/tensor_map.hpp). `c` are the coordinates
// of the first element of the box, innermost dimension first; the innermost is a multiple of 16 bytes. A box may extend
// past the tensor: the elements outside are loaded as zero and count as transferred, and stores skip them. Two limits
// of stores: a negative coordinate is an illegal instruction (H200, 2026-11-21), and whole chunks of 16 bytes are
// written, including the chunk in which a row of the tensor ends. sm_90. PTX ISA, "Data Movement and Conversion
// Instructions: Tensor copy".

/// Prefetches the map into the cache from which TMA reads it.
GIWA_DEVICE inline void prefetch_tensor_map(const tensor_map& map) {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// One instruction for each rank: `head` rank "d" `middle` {coordinates} `tail`. The coordinates are operands 0 to 4,
// also for smaller ranks; the other operands follow.
#if GIWA_ARCH_CAPABILITY >= 90
#define GIWA_DETAIL_COPY_OF_RANK(rank, head, middle, list, tail, ...)                                    \
  if constexpr (Rank == rank)                                                                            \
  asm volatile(head #rank "d" middle "{" list "}" tail ::"r"(c[0]), "r"(c[Rank > 1 ? 1 : 0]),            \
               "r"(c[Rank > 2 ? 2 : 0]), "r"(c[Rank > 3 ? 3 : 0]), "r"(c[Rank > 4 ? 4 : 0]), __VA_ARGS__ \
               : "memory")
#define GIWA_DETAIL_TENSOR_COPY(head, middle, tail, ...)                          \
  GIWA_DETAIL_COPY_OF_RANK(1, head, middle, "%0", tail, __VA_ARGS__);             \
  GIWA_DETAIL_COPY_OF_RANK(2, head, middle, "%0, %1", tail, __VA_ARGS__);         \
  GIWA_DETAIL_COPY_OF_RANK(3, head, middle, "%0, %1, %2", tail, __VA_ARGS__);     \
  GIWA_DETAIL_COPY_OF_RANK(4, head, middle, "%0, %1, %2, %3", tail, __VA_ARGS__); \
  GIWA_DETAIL_COPY_OF_RANK(5, head, middle, "%0, %1, %2, %3, %4", tail, __VA_ARGS__)
#else
#define GIWA_DETAIL_TENSOR_COPY(head, middle, tail, ...) __trap()
#endif

/// Loads a box from global to shared memory at `to`. `full` counts the bytes of the box, which arrive_and_expect()
/// announces.
template <int Rank>
GIWA_DEVICE void load_box(void* to, const tensor_map& map, const int (&c)[Rank], mbarrier& full,
                          l2_policy policy = l2_policy::normal) {
  GIWA_DETAIL_TENSOR_COPY(
      "cp.async.bulk.tensor.", ".shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%5], [%6, ",
      "], [%7], %8;", "r"(shared_address(to)), "l"(&map), "r"(full.address()), "l"(static_cast<uint64>(policy)));
}

/// Loads a box into the shared memory of every block of the cluster whose bit is set in `blocks`: at the same offset as
/// `to`, with the barrier at the same offset as `full`.
template <int Rank>
GIWA_DEVICE void load_box_multicast(void* to, const tensor_map& map, const int (&c)[Rank], mbarrier& full,
                                    uint32 blocks, l2_policy policy = l2_policy::normal) {
  GIWA_DETAIL_TENSOR_COPY(
      "cp.async.bulk.tensor.",
      ".shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%5], [%6, ",
      "], [%7], %8, %9;", "r"(shared_address(to)), "l"(&map), "r"(full.address()),
      "h"(static_cast<unsigned short>(blocks)), "l"(static_cast<uint64>(policy)));
}

/// Stores a box from shared to global memory, in the bulk group that commit_stores() closes.
template <int Rank>
GIWA_DEVICE void store_box(const tensor_map& map, const int (&c)[Rank], const void* from) {
  GIWA_DETAIL_TENSOR_COPY("cp.async.bulk.tensor.", ".global.shared::cta.bulk_group [%6, ", "], [%5];",
                          "r"(shared_address(from)), "l"(&map));
}

/// Prefetches a box to the L2 cache.
template <int Rank>
GIWA_DEVICE void prefetch_box(const tensor_map& map, const int (&c)[Rank]) {
  GIWA_DETAIL_TENSOR_COPY("cp.async.bulk.prefetch.tensor.", ".L2.global.tile [%5, ", "];", "l"(&map));
}

#undef GIWA_DETAIL_TENSOR_COPY
#undef GIWA_DETAIL_COPY_OF_RANK

/// Loads `bytes` contiguous bytes, a multiple of 16, from global to shared memory, both aligned to 16 bytes. `full`
/// counts them.
GIWA_DEVICE inline void load_bytes(void* to, const void* from, int bytes, mbarrier& full) {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(full.address())
               : "memory");
#else
  __trap();
#endif
}

/// The same with a policy of the L2 cache.
GIWA_DEVICE inline void load_bytes(void* to, const void* from, int bytes, mbarrier& full, l2_policy policy) {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(full.address()), "l"(static_cast<uint64>(policy))
      : "memory");
#else
  __trap();
#endif
}

/// Stores `bytes` contiguous bytes, a multiple of 16, from shared to global memory, both aligned to 16 bytes, in the bulk
/// group that commit_stores() closes.
GIWA_DEVICE inline void store_bytes(void* to, const void* from, int bytes) {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
#else
  __trap();
#endif
}
/// Adds fp32 numbers in shared memory to those in global memory, as store_bytes() stores them. Each addition is atomic.
GIWA_DEVICE inline void add_floats(float* to, const float* from, int bytes) {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
#else
  __trap();
#endif
}

/// Closes the bulk group of this thread's stores.
GIWA_DEVICE inline void commit_stores() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// Waits until at most `Pending` of this thread's bulk groups, the latest, still read shared memory.
template <int Pending>
GIWA_DEVICE void wait_stores_read() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
#endif
}
/// Waits until at most `Pending` of this thread's bulk groups, the latest, are incomplete.
template <int Pending>
GIWA_DEVICE void wait_stores() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

/// Orders earlier writes of this thread to shared memory before accesses by TMA and wgmma that follow the next barrier.
/// Source: PTX ISA, "membar / fence: fence.proxy.async".
GIWA_DEVICE inline void fence_async_proxy() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// The same for global memory.
GIWA_DEVICE inline void fence_async_proxy_global() {
#if GIWA_ARCH_CAPABILITY >= 90
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

}  // namespace giwa::inline GIWA_ABI::arch

#endif
