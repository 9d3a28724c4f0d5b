// SPDX-License-Identifier: MIT
// Launching attention: the kernels that this program contains, checks of pointers, and a grid for the work tiles.
#ifndef GIWA_ATTENTION_FORWARD_LAUNCH_CUH
#define GIWA_ATTENTION_FORWARD_LAUNCH_CUH

#include <giwa/attention/schedule/work_tiles.hpp>
#include <giwa/base/arch.hpp>
#include <giwa/device/environment.cuh>
#include <giwa/device/pointer.hpp>
#include <giwa/grid/launch.cuh>

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

/// Returns a tensor with its dimensions in the order of the tensor maps: (sequence, head, row, head size).
template <class T>
tensor_view<T, 4> heads_first(const tensor_view<T, 4>& v) {
  return v.transposed(1, 2);
}

/// Checks that the kernel may use the pointers of a call. The failure names the argument.
template <class Params>
status check_pointers(const Params& call) {
  const auto& a = call.views;
  status s;
  const auto bad = [&](const auto& view, const char* argument) {
    if (view.size() > 0 && view.data() != nullptr) s = check_device_pointer(view.data(), argument);
    return !s.ok();
  };
  if (bad(a.q, "q") || bad(a.k, "k") || bad(a.v, "v") || bad(a.o, "o") || bad(call.lse, "lse")) return s;
  const auto bad_pointer = [&](const void* pointer, const char* argument) {
    if (pointer != nullptr) s = check_device_pointer(pointer, argument);
    return !s.ok();
  };
  static_cast<void>(bad_pointer(call.sinks, "sinks") || bad_pointer(call.counter, "workspace") ||
                    bad_pointer(a.packed.q_offsets, "q_offsets") || bad_pointer(a.packed.k_offsets, "k_offsets") ||
                    bad_pointer(a.packed.q_lengths, "q_lengths") || bad_pointer(a.packed.k_lengths, "k_lengths") ||
                    bad_pointer(a.packed.k_batch_index, "k_batch_index"));
  if constexpr (drops_weights<stdlib::remove_cvref_t<decltype(call.score)>>)
    if (s.ok()) static_cast<void>(bad_pointer(call.score.offset, "dropout"));
  return s;
}

/// Returns the work tiles of a call for an op with block_m queries per tile.
template <class Op, class T, class O, class Mask, class Score>
attention_schedule schedule_of(const attention_params<T, O, Mask, Score>& call, int slices, int cluster = 1) {
  // No sequence is longer than all queries together, whatever max_q says.
  const int64 all = call.views.q.extent(1), said = call.views.packed.max_q, longest = said < all ? said : all;
  const attention_problem p = call.views.problem();
  const int bytes = static_cast<int>(p.head_size + p.head_size_v) * static_cast<int>(sizeof(T));
  return attention_schedule::of(p, longest, Op::block_m * cluster, slices, bytes);
}

/// Launches an op with one block for each work tile, in several launches if the grid would exceed its limit. `more` are
/// the members of its params after the schedule.
template <class Op, class Params, class... More>
status launch_work_tiles(cudaStream_t s, const Params& call, int slices, const More&... more) {
  typename Op::params p{call, schedule_of<Op>(call, slices), more...};
  for (; p.schedule.first < p.schedule.work_tiles; p.schedule.first += launch_limits::grid_x) {
    const int64 left = p.schedule.work_tiles - p.schedule.first;
    const int64 grid = left < launch_limits::grid_x ? left : launch_limits::grid_x;
    if (const status state = launch(s, {.grid = grid, .block = Op::max_threads}, Op{}, p); !state.ok()) return state;
  }
  return {};
}

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
