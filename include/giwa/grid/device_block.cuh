// SPDX-License-Identifier: MIT
// A thread's handle to its block on the device: coordinates, barriers, shuffles, votes and atomics.
#ifndef GIWA_GRID_DEVICE_BLOCK_CUH
#define GIWA_GRID_DEVICE_BLOCK_CUH

#include <giwa/base/std.hpp>
#include <giwa/grid/grid_barrier.hpp>
#include <giwa/numeric/index.hpp>

namespace giwa::inline GIWA_ABI {

/// The `block` that an op receives on the device, an empty type. On the host an op receives a host_block, which has the
/// same members. The members also compile in host code, so that the body of an op compiles for both sides; there they do
/// nothing.
///
/// Positions and sizes are (z, y, x), the last the fastest. A warp is 32 threads of consecutive rank. All threads of the
/// block must reach a barrier, and all lanes of the warp a shuffle or a vote.
struct device_block {
#if defined(__CUDA_ARCH__)
#define GIWA_DETAIL_ON_DEVICE(expression, elsewhere) return expression
#else
#define GIWA_DETAIL_ON_DEVICE(expression, elsewhere) return elsewhere
#endif

  /// Returns the rank of the thread in its block, x fastest.
  GIWA_HOST_DEVICE int rank() const {
    GIWA_DETAIL_ON_DEVICE(static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)), 0);
  }
  /// Returns the number of threads in the block.
  GIWA_HOST_DEVICE int size() const {
    GIWA_DETAIL_ON_DEVICE(static_cast<int>(blockDim.x * blockDim.y * blockDim.z), 1);
  }
  /// Returns the rank of the warp in the block.
  GIWA_HOST_DEVICE int warp() const { return rank() / 32; }
  /// Returns the rank of the thread in its warp, 0 to 31.
  GIWA_HOST_DEVICE int lane() const { return rank() % 32; }

  /// Returns the position of the thread in its block, (z, y, x).
  GIWA_HOST_DEVICE index<3> thread_index() const {
    GIWA_DETAIL_ON_DEVICE((index<3>{threadIdx.z, threadIdx.y, threadIdx.x}), (index<3>{0, 0, 0}));
  }
  /// Returns the sizes of the block in threads, (z, y, x).
  GIWA_HOST_DEVICE index<3> thread_extents() const {
    GIWA_DETAIL_ON_DEVICE((index<3>{blockDim.z, blockDim.y, blockDim.x}), (index<3>{1, 1, 1}));
  }
  /// Returns the position of the block in the grid, (z, y, x).
  GIWA_HOST_DEVICE index<3> block_index() const {
    GIWA_DETAIL_ON_DEVICE((index<3>{blockIdx.z, blockIdx.y, blockIdx.x}), (index<3>{0, 0, 0}));
  }
  /// Returns the sizes of the grid in blocks, (z, y, x).
  GIWA_HOST_DEVICE index<3> block_extents() const {
    GIWA_DETAIL_ON_DEVICE((index<3>{gridDim.z, gridDim.y, gridDim.x}), (index<3>{1, 1, 1}));
  }
  /// Returns the rank of the block in the grid, x fastest.
  GIWA_HOST_DEVICE int64 block_rank() const {
    const index<3> i = block_index(), n = block_extents();
    return (i[0] * n[1] + i[1]) * n[2] + i[2];
  }
  /// Returns the number of blocks in the grid.
  GIWA_HOST_DEVICE int64 block_count() const {
    const index<3> n = block_extents();
    return n[0] * n[1] * n[2];
  }

  /// Waits for all threads of the block. Writes before the barrier are visible to all of them after it.
  GIWA_HOST_DEVICE void sync() const {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
  /// Waits for all lanes of the warp. Writes before the barrier are visible to all of them after it.
  GIWA_HOST_DEVICE void sync_warp() const {
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
  }

  /// Waits for all threads of the grid, which is launched with `.cooperative = true`. Writes before the barrier are visible
  /// to all of them after it. All threads of all blocks call it with the same grid_barrier.
  GIWA_HOST_DEVICE void sync_grid([[maybe_unused]] grid_barrier& barrier) const {
#if defined(__CUDA_ARCH__)
    __syncthreads();
    if (rank() == 0) {
      __threadfence();  // what the block wrote is visible to who sees its arrival
      const auto blocks = static_cast<unsigned long long>(block_count());
      const unsigned long long before = ::atomicAdd(&barrier.state, 1ull);
      if ((before & 0xffffffffu) + 1 == blocks) {
        ::atomicAdd(&barrier.state, (1ull << 32) - blocks);  // the last: no arrivals, and the next generation
      } else {
        while (*static_cast<volatile unsigned long long*>(&barrier.state) >> 32 == before >> 32) {
        }
      }
      __threadfence();  // what others wrote before their arrivals is visible to the block
    }
    __syncthreads();
#endif
  }

  /// Returns the `value` of lane source_lane modulo 32. T is any trivially copyable type (PTX ISA, "shfl.sync").
  template <class T>
  GIWA_HOST_DEVICE T shuffle(T value, int source_lane) const {
    return exchange(value, [=](uint32 word) {
      GIWA_DETAIL_ON_DEVICE(__shfl_sync(~0u, word, source_lane), (void(source_lane), word));
    });
  }
  /// Returns the `value` of the lane `distance` below, distance modulo 32, or the own value if there is no such lane.
  template <class T>
  GIWA_HOST_DEVICE T shuffle_up(T value, int distance) const {
    const auto d = static_cast<unsigned>(distance);
    return exchange(value, [=](uint32 word) { GIWA_DETAIL_ON_DEVICE(__shfl_up_sync(~0u, word, d), (void(d), word)); });
  }
  /// Returns the `value` of the lane `distance` above, distance modulo 32, or the own value if there is no such lane.
  template <class T>
  GIWA_HOST_DEVICE T shuffle_down(T value, int distance) const {
    const auto d = static_cast<unsigned>(distance);
    return exchange(value,
                    [=](uint32 word) { GIWA_DETAIL_ON_DEVICE(__shfl_down_sync(~0u, word, d), (void(d), word)); });
  }
  /// Returns the `value` of the lane whose rank is the own rank XOR lane_mask.
  template <class T>
  GIWA_HOST_DEVICE T shuffle_xor(T value, int lane_mask) const {
    return exchange(value, [=](uint32 word) {
      GIWA_DETAIL_ON_DEVICE(__shfl_xor_sync(~0u, word, lane_mask), (void(lane_mask), word));
    });
  }

  /// Returns whether any lane of the warp votes true.
  GIWA_HOST_DEVICE bool any(bool vote) const { GIWA_DETAIL_ON_DEVICE(__any_sync(~0u, vote) != 0, vote); }
  /// Returns whether all lanes of the warp vote true.
  GIWA_HOST_DEVICE bool all(bool vote) const { GIWA_DETAIL_ON_DEVICE(__all_sync(~0u, vote) != 0, vote); }
  /// Returns the votes of the warp: bit i is the vote of lane i.
  GIWA_HOST_DEVICE uint32 ballot(bool vote) const { GIWA_DETAIL_ON_DEVICE(__ballot_sync(~0u, vote), vote ? 1u : 0u); }

  /// Adds `value` to `target` in shared or device memory and returns the old value. Atomic and relaxed, like the other
  /// atomics below; T is a type that CUDA's function of that name takes (here atomicAdd).
  template <class T>
  GIWA_HOST_DEVICE T atomic_add(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_DEVICE(::atomicAdd(&target, value), (void(value), target));
  }
  /// Replaces `target` by the smaller of it and `value` and returns the old value (atomicMin).
  template <class T>
  GIWA_HOST_DEVICE T atomic_min(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_DEVICE(::atomicMin(&target, value), (void(value), target));
  }
  /// Replaces `target` by the larger of it and `value` and returns the old value (atomicMax).
  template <class T>
  GIWA_HOST_DEVICE T atomic_max(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_DEVICE(::atomicMax(&target, value), (void(value), target));
  }
  /// Replaces `target` by `value` and returns the old value (atomicExch).
  template <class T>
  GIWA_HOST_DEVICE T atomic_exchange(T& target, stdlib::type_identity_t<T> value) const {
    GIWA_DETAIL_ON_DEVICE(::atomicExch(&target, value), (void(value), target));
  }
  /// Replaces `target` by `desired` if it equals `expected`, and returns the old value (atomicCAS).
  template <class T>
  GIWA_HOST_DEVICE T atomic_compare_exchange(T& target, stdlib::type_identity_t<T> expected,
                                             stdlib::type_identity_t<T> desired) const {
    GIWA_DETAIL_ON_DEVICE(::atomicCAS(&target, expected, desired), (void(expected), void(desired), target));
  }
#undef GIWA_DETAIL_ON_DEVICE

 private:
  // Exchanges a value of any size in 32-bit words.
  template <class T, class Exchange>
  GIWA_HOST_DEVICE static T exchange(T value, Exchange exchange_word) {
    static_assert(goes_as_bytes<T>, "giwa: a shuffled value must be trivially copyable: shuffle its members.");
    constexpr int words = (sizeof(T) + 3) / 4;
    uint32 raw[words] = {};
    __builtin_memcpy(raw, &value, sizeof(T));
    for (int i = 0; i < words; ++i) raw[i] = exchange_word(raw[i]);
    __builtin_memcpy(&value, raw, sizeof(T));
    return value;
  }
};

namespace detail {

/// A block whose rank and size are those of one of its warps.
template <class Block>
struct one_warp : Block {
  GIWA_DEVICE explicit one_warp(const Block& b) : Block(b) {}
  GIWA_DEVICE int rank() const { return this->lane(); }
  GIWA_DEVICE static constexpr int size() { return 32; }
};

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
