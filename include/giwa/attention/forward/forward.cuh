// SPDX-License-Identifier: MIT
// attention_forward on a stream: chooses the kernel and its tile.
#ifndef GIWA_ATTENTION_FORWARD_FORWARD_CUH
#define GIWA_ATTENTION_FORWARD_FORWARD_CUH

#include <giwa/attention/forward/forward.hpp>
#include <giwa/attention/forward/forward_simt.cuh>
#include <giwa/attention/forward/forward_sm80.cuh>
#include <giwa/attention/forward/launch_sm90.cuh>
#include <giwa/attention/split_fp16/launch.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

template <int HeadSize, int HeadSizeV, class Tile>
struct stream_attention {
  template <class T, class O, class Mask, class Score>
  static status run(cudaStream_t s, const attention_params<T, O, Mask, Score>& call) {
    if (const status state = check_pointers(call); !state.ok()) return state;
    if constexpr (stdlib::same_as<T, fp32>) {
      return run_fp32(s, call);
    } else {
      return run_16_bits(s, call);
    }
  }

 private:
  template <class T, class O, class Mask, class Score>
  static status run_16_bits(cudaStream_t s, const attention_params<T, O, Mask, Score>& call) {
    const result<attention_path> path = path_here();
    if (!path.ok()) return path.state;
    if constexpr (has_sm90 && HeadSize <= 256 && HeadSizeV <= 256)
      if (path.value == attention_path::sm90) {
        using policy = typename sm90_policy_of<HeadSize, HeadSizeV, Tile>::type;
        const result<bool> launched = launch_sm90<sm90_attention_op<T, O, policy, Mask, Score>>(
            s, call, heads_first(call.views.q), heads_first(call.views.k), heads_first(call.views.v));
        if (launched.value || !launched.ok()) return launched.state;
      }
    if constexpr (runs_below_sm80)
      if (path.value == attention_path::simt)
        return launch_work_tiles<simt_attention_op<T, O, HeadSize, HeadSizeV, Mask, Score>>(s, call, 1);
    using choice = sm80_policy_of<HeadSize, HeadSizeV, stdlib::conditional_t<has_sm90, automatic_tile, Tile>>;
    using op = sm80_attention_op<T, O, typename choice::type, Mask, Score>;
    using smaller_op = sm80_attention_op<T, O, typename choice::smaller, Mask, Score>;
    if constexpr (!stdlib::same_as<op, smaller_op> && shared_bytes_of<op> > least_shared_bytes) {
      static_assert(shared_bytes_of<smaller_op> <= least_shared_bytes);
      const result<bool> fits = has_shared_bytes(shared_bytes_of<op>);
      if (!fits.ok()) return fits.state;
      if (!fits.value) return launch_work_tiles<smaller_op>(s, call, choice::smaller::slices);
    }
    return launch_work_tiles<op>(s, call, choice::type::slices);
  }

  /// Runs on tensor cores, and then the fallback kernel for the heads that split fp16 cannot represent. Without a
  /// workspace all heads run in the fallback kernel.
  template <class O, class Mask, class Score>
  static status run_fp32(cudaStream_t s, const attention_params<fp32, O, Mask, Score>& call) {
    split_tensors split;
    if constexpr (!stdlib::same_as<Tile, fp32_exact> && HeadSize <= 256 && HeadSizeV <= 256) {
      // Within this range the exponents of split fp16, at least -54 each, and of the scale add up to a normal float.
      const float size = call.scale < 0 ? -call.scale : call.scale;
      const bool reached = size == 0 || (size >= 0x1p-18f && size <= 0x1p60f);
      // Exponents and fallback flags belong to one sequence, so no sequence may read the keys of another.
      const bool own_keys = call.views.packed.k_batch_index == nullptr;
      if (call.counter != nullptr && reached && own_keys && call.views.k.extent(1) > 0) {
        const result<attention_path> path = path_here();
        if (!path.ok()) return path.state;
        const result<split_tensors> done = run_split(s, call, path.value);
        if (!done.ok()) return done.state;
        split = done.value;
      }
    }
    using op = simt_attention_op<fp32, O, HeadSize, HeadSizeV, Mask, Score>;
    return launch_work_tiles<op>(s, call, 1, split.fallback, split.any_fallback);
  }

  /// Returns the split tensors, whose flags say which heads are left to the fallback kernel. Without flags all heads
  /// are.
  template <class O, class Mask, class Score>
  static result<split_tensors> run_split(cudaStream_t s, const attention_params<fp32, O, Mask, Score>& call,
                                         attention_path path) {
    constexpr int parts = stdlib::same_as<Tile, tf32> ? 1 : 2, widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
    using tile = stdlib::conditional_t<is_attention_tile<Tile>, Tile, automatic_tile>;
    if constexpr (has_sm90)
      if (path == attention_path::sm90) {
        using policies = stdlib::conditional_t<parts == 1, sm90_policy_of<HeadSize, HeadSizeV, tile>,
                                               sm90_split_policy_of<HeadSize, HeadSizeV, tile>>;
        using policy = typename policies::type;
        using op = sm90_attention_op<fp32, O, policy, Mask, Score>;
        const split_tensors in = carve_split_tensors(call, parts, 64, policy::block_n);
        constexpr int group = policy::block_n > 64 ? policy::block_n : 64;
        if (const status state = launch_split_pass<split_op<parts, widest, group>>(s, call, in); !state.ok())
          return {{}, state};
        const result<bool> launched = launch_sm90<op>(s, call, in.q.view(), in.k.view(), in.v.view(), in);
        return {launched.value ? in : split_tensors{}, launched.state};
      }
    if (path == attention_path::simt) return {};
    using choice = stdlib::conditional_t<parts == 1, sm80_policy_of<HeadSize, HeadSizeV, automatic_tile>,
                                         sm80_split_policy_of<HeadSize, HeadSizeV>>;
    using policy = typename choice::type;
    using op = sm80_attention_op<fp32, O, policy, Mask, Score>;
    if constexpr (shared_bytes_of<op> > least_shared_bytes) {
      const result<bool> fits = has_shared_bytes(shared_bytes_of<op>);
      if (!fits.value) return {{}, fits.state};
    }
    const split_tensors in = carve_split_tensors(call, parts, policy::block_m, policy::block_n);
    constexpr int group = policy::block_n > policy::block_m ? policy::block_n : policy::block_m;
    if (const status state = launch_split_pass<split_op<parts, widest, group>>(s, call, in); !state.ok())
      return {{}, state};
    return {in, launch_work_tiles<op>(s, call, policy::slices, in)};
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
