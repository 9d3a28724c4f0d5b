// SPDX-License-Identifier: MIT
// Launching attention: the kernels that this program contains, checks of pointers, and a grid for the work tiles.
#ifndef GIWA_ATTENTION_CHOOSE_LAUNCH_CUH
#define GIWA_ATTENTION_CHOOSE_LAUNCH_CUH

#include <giwa/attention/work/work_tiles.hpp>
#include <giwa/base/arch.hpp>
#include <giwa/device/environment.cuh>
#include <giwa/device/pointer.hpp>
#include <giwa/grid/launch.cuh>

#include <new>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Whether this file may run on a GPU without asynchronous copies. Then it contains the portable kernel for every type.
inline constexpr bool runs_below_sm80 = compiled_for(0, 800);

/// Whether this file may contain the Hopper kernel. A build for 90 instead of 90a contains an empty kernel, which is
/// never launched. Newer GPUs do not run its instructions: a file only for them has no such kernel, and the caller's
/// tile applies to the mma.sync kernel.
inline constexpr bool has_sm90 = compiled_for(900, 1000);

/// Returns the tensor-core kernel that this program has for the current GPU. Layouts that TMA cannot address, and head
/// sizes above 256, fall back from the sm_90 kernel to the sm_80 kernel.
inline result<attention_path> path_here() {
  if constexpr (!runs_below_sm80 && !has_sm90) {
    return {attention_path::sm80, {}};
  } else {
    const result<device_code> code = code_for_current_device();
    if (code.value.architecture_specific) return {attention_path::sm90, code.state};
    return {code.value.ptx >= 80 ? attention_path::sm80 : attention_path::simt, code.state};
  }
}

/// Whether the current GPU gives a block at least `bytes` bytes of shared memory.
inline result<bool> has_shared_bytes(int64 bytes) {
  const result<int> device = current_device();
  if (!device.ok()) return {false, device.state};
  const result<int64> limit = attribute(device.value, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return {limit.ok() && limit.value >= bytes, limit.state};
}

/// An op for GPUs that give a block little shared memory. 9.0 is none of them, so code for 90a has no body of it:
/// attention_backward of 128 compiles in 12.0 CPU seconds instead of 13.8 (nvcc 13.0, 2026-11-26).
template <class Op>
struct small_block_op : Op {
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const typename Op::params& p, typename Op::shared_storage& s) const {
#if GIWA_ARCH_HAS_SM90A
    static_cast<void>(block), static_cast<void>(p), static_cast<void>(s);
    __trap();  // never launched: has_shared_bytes() is asked first
#else
    Op::operator()(block, p, s);
#endif
  }
};

/// Returns a tensor with its dimensions in the order of the tensor maps: (sequence, head, row, head size).
template <class T>
tensor_view<T, 4> heads_first(const tensor_view<T, 4>& v) {
  return v.transposed(1, 2);
}

/// Checks that the kernel may use the pointers of a call. The failure names the argument.
template <class Params>
status check_pointers(const Params& call) {
  const auto& a = call.views;
  pointer_checks pointers;
  const auto fails = [&](const auto& x, const char* argument) { return pointers.fails(x, argument); };
  static_cast<void>(fails(a.q, "q") || fails(a.k, "k") || fails(a.v, "v") || fails(a.o, "o") ||
                    fails(call.lse, "lse") || fails(call.sinks, "sinks") || fails(call.counter, "workspace") ||
                    fails(a.packed.q_offsets, "q_offsets") || fails(a.packed.k_offsets, "k_offsets") ||
                    fails(a.packed.q_lengths, "q_lengths") || fails(a.packed.k_lengths, "k_lengths") ||
                    fails(a.packed.k_batch_index, "k_batch_index"));
  if constexpr (drops_weights<stdlib::remove_cvref_t<decltype(call.score)>>)
    static_cast<void>(fails(call.score.offset, "dropout"));
  return pointers.state();
}

/// Returns the work tiles of a call for an op with block_m queries per tile. The tiles of clusters all have the same amount
/// of work, so none must come first: one head of k follows another, and neighbouring blocks read the same keys. 2026-11-27,
/// full, fp16, against sections of 24 MB, at 512 and 1024 tokens: 128 1.05 and 1.03 on an H100, 1.01 and 1.00 on an H200, 256
/// 1.07 and 1.01, 1.02 and 1.025; from 2048 on 0.98 to 1.01.
template <class Op, class T, class O, class Mask, class Score>
attention_schedule schedule_of(const attention_params<T, O, Mask, Score>& call, int slices, int cluster = 1) {
  // No sequence is longer than all queries together, whatever max_q says.
  const int64 all = call.views.q.extent(1), said = call.views.packed.max_q, longest = said < all ? said : all;
  const attention_problem p = call.views.problem();
  const int bytes = static_cast<int>(p.head_size + p.head_size_v) * static_cast<int>(sizeof(T));
  if (cluster > 1)
    return attention_schedule::of(p, longest, Op::block_m * cluster, slices, bytes, p.heads / p.kv_heads, 0);
  return attention_schedule::of(p, longest, Op::block_m, slices, bytes);
}

/// A prepared kernel with one block for each work tile.
template <class Op>
struct prepared_tiles {
  typename Op::params params;

  /// `more` are the members of params after the schedule.
  template <class Call, class... More>
  static status make(void* to, const Call& call, int slices, const More&... more) {
    ::new (to) prepared_tiles{{call, schedule_of<Op>(call, slices), more...}};
    return allow_op<Op>({.grid = 1, .block = Op::max_threads});
  }

  /// One launch, or several if the grid would exceed its limit.
  status launch(cudaStream_t s) const {
    constexpr int64 most = launch_limits::grid_x;
    const int64 tiles = params.schedule.work_tiles;
    status state = launch_blocks(s, params, tiles < most ? tiles : most);
    if (tiles <= most) return state;
    typename Op::params p = params;
    for (p.schedule.first = most; state.ok() && p.schedule.first < tiles; p.schedule.first += most)
      state = launch_blocks(s, p, tiles - p.schedule.first < most ? tiles - p.schedule.first : most);
    return state;
  }

 private:
  static status launch_blocks(cudaStream_t s, const typename Op::params& p, int64 blocks) {
    return enqueue_op(s, {.grid = blocks, .block = Op::max_threads}, Op{}, p);
  }
};

/// Storage for one prepared kernel of several types, or for none. Copied as bytes.
template <class... Kernels>
class prepared_kernel {
 public:
  /// Kernel::make() in this storage.
  template <class Kernel, class... Arguments>
  status make(const Arguments&... arguments) {
    index_ = 0;
    static_cast<void>(((stdlib::same_as<Kernel, Kernels> || (++index_, false)) || ...));
    return Kernel::make(bytes_, arguments...);
  }

  /// Calls f with the kernel, if there is one.
  template <class F>
  void visit(const F& f) const {
    int i = 0;
    static_cast<void>(((i++ == index_ && (f(*reinterpret_cast<const Kernels*>(bytes_)), true)) || ...));
  }
  bool empty() const { return index_ < 0; }
  status launch(cudaStream_t s) const {
    status state;
    visit([&](const auto& kernel) { state = kernel.launch(s); });
    return state;
  }

 private:
  static constexpr stdlib::size_t largest(std::initializer_list<stdlib::size_t> sizes) {
    stdlib::size_t most = 0;
    for (const stdlib::size_t n : sizes) most = n > most ? n : most;
    return most;
  }
  alignas(Kernels...) unsigned char bytes_[largest({sizeof(Kernels)...})];
  int index_ = -1;
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
