// SPDX-License-Identifier: MIT
// A thread's view of its block, on the device: who it is, barriers, shuffles, votes and atomics.
#ifndef GIWA_GRID_DEVICE_BLOCK_CUH
#define GIWA_GRID_DEVICE_BLOCK_CUH

#include <giwa/base/std.hpp>
#include <giwa/numeric/index.hpp>

namespace giwa::inline GIWA_ABI {

/// The `block` that an op receives on the device: an empty type. On the host an op receives a host_block with the same
/// members. Members are callable in host code as well, so that an op's body compiles for both; there they do nothing.
///
/// Positions are (z, y, x), the last running fastest, as everywhere in giwa. A warp is 32 threads of consecutive rank.
/// Barriers must be reached by all threads of the block, shuffles and votes by all threads of the warp.
struct device_block {
#if defined(__CUDA_ARCH__)
#define GIWA_DETAIL_ON_DEVICE(expression, elsewhere) return expression
#else
#define GIWA_DETAIL_ON_DEVICE(expression, elsewhere) return elsewhere
#endif

  /// The thread's rank in its block, and the number of threads in a block.
  GIWA_HOST_DEVICE int rank() const {
    GIWA_DETAIL_ON_DEVICE(static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)), 0);
  }
  /// The number of threads in the block.
  GIWA_HOST_DEVICE int size() const {
    GIWA_DETAIL_ON_DEVICE(static_cast<int>(blockDim.x * blockDim.y * blockDim.z), 1);
  }
  /// The warp's rank in the block, and the thread's in its warp.
  GIWA_HOST_DEVICE int warp() const { return rank() / 32; }
  /// The rank of the thread in its warp.
  GIWA_HOST_DEVICE int lane() const { return rank() % 32; }

  /// The thread's position in its block, and the block's sizes in threads.
  GIWA_HOST_DEVICE index<3> thread_index() const {
    GIWA_DETAIL_ON_DEVICE((index<3>{threadIdx.z, threadIdx.y, threadIdx.x}), (index<3>{0, 0, 0}));
  }
  /// The sizes of the block in threads, (z, y, x).
  GIWA_HOST_DEVICE index<3> thread_extents() const {
    GIWA_DETAIL_ON_DEVICE((index<3>{blockDim.z, blockDim.y, blockDim.x}), (index<3>{1, 1, 1}));
  }
  /// The block's position in the grid, and the grid's sizes in blocks.
  GIWA_HOST_DEVICE index<3> block_index() const {
    GIWA_DETAIL_ON_DEVICE((index<3>{blockIdx.z, blockIdx.y, blockIdx.x}), (index<3>{0, 0, 0}));
  }
  /// The sizes of the grid in blocks, (z, y, x).
  GIWA_HOST_DEVICE index<3> block_extents() const {
    GIWA_DETAIL_ON_DEVICE((index<3>{gridDim.z, gridDim.y, gridDim.x}), (index<3>{1, 1, 1}));
  }
  /// The block's rank in the grid, and the number of blocks.
  GIWA_HOST_DEVICE int64 block_rank() const {
    const index<3> i = block_index(), n = block_extents();
    return (i[0] * n[1] + i[1]) * n[2] + i[2];
  }
  /// The number of blocks.
  GIWA_HOST_DEVICE int64 block_count() const {
    const index<3> n = block_extents();
    return n[0] * n[1] * n[2];
  }

  /// A barrier of the whole block; what was written before it is seen after it.
  GIWA_HOST_DEVICE void sync() const {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
  /// The same for the warp.
  GIWA_HOST_DEVICE void sync_warp() const {
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
  }

  /// The value of another lane, for any trivially copyable T. Lanes and distances count modulo 32; shuffle_up and
  /// shuffle_down answer with the own value where the source would lie outside the warp (PTX ISA, shfl.sync).
  template <class T>
  GIWA_HOST_DEVICE T shuffle(T value, int source_lane) const {
    return exchange(value, [=](uint32 word) { GIWA_DETAIL_ON_DEVICE(__shfl_sync(~0u, word, source_lane), word); });
  }
  /// From the lane so many below.
  template <class T>
  GIWA_HOST_DEVICE T shuffle_up(T value, int distance) const {
    const auto d = static_cast<unsigned>(distance);
    return exchange(value, [=](uint32 word) { GIWA_DETAIL_ON_DEVICE(__shfl_up_sync(~0u, word, d), (void(d), word)); });
  }
  /// From the lane so many above.
  template <class T>
  GIWA_HOST_DEVICE T shuffle_down(T value, int distance) const {
    const auto d = static_cast<unsigned>(distance);
    return exchange(value,
                    [=](uint32 word) { GIWA_DETAIL_ON_DEVICE(__shfl_down_sync(~0u, word, d), (void(d), word)); });
  }
  /// From the lane whose rank differs in the bits of the mask.
  template <class T>
  GIWA_HOST_DEVICE T shuffle_xor(T value, int lane_mask) const {
    return exchange(value, [=](uint32 word) { GIWA_DETAIL_ON_DEVICE(__shfl_xor_sync(~0u, word, lane_mask), word); });
  }

  /// Votes of the warp; bit i of ballot is lane i's.
  GIWA_HOST_DEVICE bool any(bool vote) const { GIWA_DETAIL_ON_DEVICE(__any_sync(~0u, vote) != 0, vote); }
  /// Whether all lanes vote yes; and the votes, a bit for each lane.
  ///@{
  GIWA_HOST_DEVICE bool all(bool vote) const { GIWA_DETAIL_ON_DEVICE(__all_sync(~0u, vote) != 0, vote); }
  GIWA_HOST_DEVICE uint32 ballot(bool vote) const { GIWA_DETAIL_ON_DEVICE(__ballot_sync(~0u, vote), vote ? 1u : 0u); }
  ///@}

  /// Atomic updates of shared or device memory, relaxed; each returns the old value. T as in CUDA's atomicAdd & co.
  template <class T>
  GIWA_HOST_DEVICE T atomic_add(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_DEVICE(::atomicAdd(&target, value), (void(value), target));
  }
  /// The smaller of the two; answers with the old value.
  template <class T>
  GIWA_HOST_DEVICE T atomic_min(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_DEVICE(::atomicMin(&target, value), (void(value), target));
  }
  /// The larger of the two; answers with the old value.
  template <class T>
  GIWA_HOST_DEVICE T atomic_max(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_DEVICE(::atomicMax(&target, value), (void(value), target));
  }
  /// Puts the value there; answers with the old one.
  template <class T>
  GIWA_HOST_DEVICE T atomic_exchange(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_DEVICE(::atomicExch(&target, value), (void(value), target));
  }
  /// Writes `desired` if the target holds `expected`.
  template <class T>
  GIWA_HOST_DEVICE T atomic_compare_exchange(T& target, stdlib::type_identity_t<T> expected,
                                             stdlib::type_identity_t<T> desired) const {
    GIWA_DETAIL_ON_DEVICE(::atomicCAS(&target, expected, desired), (void(expected), void(desired), target));
  }
#undef GIWA_DETAIL_ON_DEVICE

 private:
  // Moves a value of any size through a 32-bit exchange, word by word.
  template <class T, class Exchange>
  GIWA_HOST_DEVICE static T exchange(T value, Exchange exchange_word) {
    static_assert(goes_as_bytes<T>, "giwa: only trivially copyable values can be shuffled.");
    constexpr int words = (sizeof(T) + 3) / 4;
    uint32 raw[words] = {};
    __builtin_memcpy(raw, &value, sizeof(T));
    for (int i = 0; i < words; ++i) raw[i] = exchange_word(raw[i]);
    __builtin_memcpy(&value, raw, sizeof(T));
    return value;
  }
};

}  // namespace giwa::inline GIWA_ABI

#endif
