// SPDX-License-Identifier: MIT
// attention_backward on a stream: the terms of the rows, then one kernel for all gradients, or several.
#ifndef GIWA_ATTENTION_CHOOSE_BACKWARD_CUH
#define GIWA_ATTENTION_CHOOSE_BACKWARD_CUH

#include <giwa/attention/call/backward.hpp>
#include <giwa/attention/choose/backward_sm90.cuh>
#include <giwa/attention/choose/launch.cuh>
#include <giwa/attention/kernels/simt/backward_simt.cuh>
#include <giwa/attention/kernels/simt/dq_of_sums.cuh>
#include <giwa/attention/kernels/simt/row_terms.cuh>
#include <giwa/attention/kernels/sm80/backward_all_sm80.cuh>
#include <giwa/attention/kernels/sm80/backward_sm80.cuh>
#include <giwa/attention/split_fp16/rows_launch.cuh>
#include <giwa/attention/tuning/sm80.hpp>
#include <giwa/attention/work/backward_schedules.hpp>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

template <int HeadSize, int HeadSizeV, class How>
struct stream_backward {
  template <class T, class O, class G, class Mask, class Score>
  static status run(cudaStream_t s, const backward_params<T, O, G, Mask, Score>& given) {
    using params = backward_params<T, O, G, Mask, Score>;
    status state = check_backward_pointers(given);
    params p = given;
    if (const result<bool> together = runs_together(p); !together.ok())
      return together.state;
    else if (!together.value)
      p.workspace.dq = nullptr, p.workspace.of_keys = {};
    if constexpr (element_traits<T>::is_split)
      if (!runs_split(p)) p.split = {};
    const auto failed = [&](const status& next) {
      state = next;
      return !state.ok();
    };
    const auto& in = p.views.in;
    using terms_op = row_terms_op<params, HeadSizeV>;
    if constexpr (element_traits<T>::is_split)
      if (state.ok() && p.split.q.parts != nullptr) state = launch_split_rows<HeadSize, HeadSizeV>(s, p);
    if (!state.ok() ||
        (in.q.size() > 0 && failed(launch_blocks<terms_op>(s, terms_op::params::of(p), in.q.size() / HeadSize))) ||
        failed(run_gradients(s, p)))
      return state;
    if (!is_absent(p.dsinks)) state = launch_blocks<sink_gradient_op<params>>(s, p, in.q.extent(2));
    if constexpr (params::parameters > 0)
      if (state.ok()) state = launch_blocks<parameter_gradient_op<params>>(s, p, in.q.extent(2));
    return state;
  }

 private:
  /// Whether an op's rows of work tiles are needed: a tensor for its gradient, or a modifier that takes one.
  template <gradient Of, class T, class O, class G, class Mask, class Score>
  static bool wants(const backward_params<T, O, G, Mask, Score>& p) {
    if constexpr (Of == gradient::of_q)
      return (!is_absent(p.views.dq) || gradient_of<Score>::wanted) && p.views.in.q.size() > 0;
    return (Of != gradient::of_v && !is_absent(p.views.dk)) || (Of != gradient::of_k && !is_absent(p.views.dv));
  }

  template <class T, class O, class G, class Mask, class Score>
  static status run_gradients(cudaStream_t s, const backward_params<T, O, G, Mask, Score>& p) {
    constexpr bool tensor_cores = runs_on_tensor_cores<T, O>;
    if constexpr (tensor_cores) {
      const result<attention_path> path = path_here();
      if (!path.ok()) return path.state;
      if (path.value != attention_path::simt) {
        const bool hopper = path.value == attention_path::sm90 && runs_on_hopper(p);
        return run_on_tensor_cores(s, p, hopper);
      }
    }
    if constexpr (may_run_split<T, O, Score>)
      if (p.split.q.parts != nullptr) return run_split < stdlib::same_as<How, tf32> ? 1 : 2 > (s, p);
    if constexpr (!tensor_cores || runs_below_sm80) {
      const auto run = [&]<gradient Of>(stdlib::integral_constant<gradient, Of>) {
        return launch_tiles<Of, simt_backward_op<T, O, G, HeadSize, HeadSizeV, Of, Mask, Score>>(s, p);
      };
      status state = run(stdlib::integral_constant<gradient, gradient::of_q>{});
      if (state.ok()) state = run(stdlib::integral_constant<gradient, gradient::of_k>{});
      if (state.ok()) state = run(stdlib::integral_constant<gradient, gradient::of_v>{});
      return state;
    }
    return {};
  }

  template <class T, class O>
  static constexpr bool runs_on_tensor_cores =
      element_traits<T>::on_tensor_cores && stdlib::same_as<T, O> && HeadSize <= 256 && HeadSizeV <= 256;

  /// Whether the Hopper kernels can do a call: there are queries, TMA addresses the tensors, and the numbers of work tiles of
  /// all kernels, and steps beyond the last, fit in int.
  template <class T, class O, class G, class Mask, class Score>
  static bool runs_on_hopper(const backward_params<T, O, G, Mask, Score>& p) {
    constexpr int64 most = int64{1} << 30;
    return p.views.in.q.size() > 0 && has_backward_maps<element_traits<T>::is_split>(p) &&
           backward_schedules::schedule_of_rows<gradient::of_q>(p, 128).work_tiles <= most &&
           backward_schedules::schedule_of_rows<gradient::of_k>(p, 128).work_tiles <= most;
  }

  template <class T, class G, class Mask, class Score>
  static status run_on_tensor_cores(cudaStream_t s, const backward_params<T, T, G, Mask, Score>& p, bool hopper) {
    status state;
    int launched = 0;
    constexpr bool sums_both = sm80_backward_sums_both(HeadSize, HeadSizeV);
    const auto run = [&]<gradient Of>(stdlib::integral_constant<gradient, Of>) {
      if (!state.ok() || !wants<Of>(p)) return;
      // What a modifier takes is given by the mma.sync kernel of dq alone. The others sum wide dk and dv separately.
      constexpr bool of_both = Of == gradient::of_k_and_v;
      if constexpr (has_sm90 && (of_both || (Of == gradient::of_q && !gradient_of<Score>::wanted))) {
        using op = sm90_backward_op<T, G, HeadSize, HeadSizeV, Of, Mask, Score>;
        const attention_schedule schedule = backward_schedules::schedule_of_rows<Of>(p, op::block_m);
        if (hopper) {
          if (schedule.work_tiles == 0) return;
          state = launch_backward_sm90<op>(s, p, schedule, p.workspace.counters + launched, launched == 0);
          ++launched;
          return;
        }
      }
      if constexpr (!of_both || sums_both) state = run_sm80<Of>(s, p);
    };
    if constexpr (has_sm80_kernel_of_all(HeadSize, HeadSizeV) && !gradient_of<Score>::wanted)
      if (p.workspace.dq != nullptr) return run_together(s, p, hopper);
    run(stdlib::integral_constant<gradient, gradient::of_q>{});
    if (sums_both || hopper) run(stdlib::integral_constant<gradient, gradient::of_k_and_v>{});
    if constexpr (!sums_both)
      if (!hopper) {
        run(stdlib::integral_constant<gradient, gradient::of_k>{});
        run(stdlib::integral_constant<gradient, gradient::of_v>{});
      }
    return state;
  }

  /// Whether one kernel computes all gradients: that of Hopper, or that of mma.sync where its tiles fit in shared memory.
  /// On Hopper not for short sequences with wide heads and a mask, where two kernels are faster (128, causal, 512 tokens:
  /// 204 TFLOP/s instead of 189; 1024: 277, 262; H200, 2026-11-23); for packed ones only the device knows the lengths.
  /// And not where several sequences read the same keys, whose parts of dq have no order.
  template <class T, class O, class G, class Mask, class Score>
  static result<bool> runs_together(const backward_params<T, O, G, Mask, Score>& p) {
    if constexpr (!runs_on_tensor_cores<T, O> || !has_sm80_kernel_of_all(HeadSize, HeadSizeV) ||
                  gradient_of<Score>::wanted) {
      return {false, {}};
    } else {
      const auto& v = p.views;
      if (p.workspace.dq == nullptr || is_absent(v.dq) || is_absent(v.dk) || is_absent(v.dv) ||
          v.in.packed.k_batch_index != nullptr || v.in.q.size() == 0 || v.in.k.size() == 0 ||
          v.in.sequence_count() == 0)
        return {false, {}};
      const result<attention_path> path = path_here();
      if (!path.ok() || path.value == attention_path::simt) return {false, path.state};
      if (path.value == attention_path::sm90 && runs_on_hopper(p)) {
        const bool is_short = HeadSize + HeadSizeV > 128 && !mask_traits<Mask>::keeps_all && !v.in.is_packed() &&
                              v.in.k.extent(1) <= 1024 && p.workspace.of_keys.sharers == 1;
        return {has_kernel_of_all(HeadSize, HeadSizeV) && !is_short, {}};
      }
      using op = sm80_all_gradients_op<T, G, HeadSize, HeadSizeV, Mask, Score>;
      if (backward_schedules::schedule_of_rows<gradient::of_all>(p, op::block_m).work_tiles > int64{1} << 30)
        return {false, {}};
      return has_shared_bytes(shared_bytes_of<op>);
    }
  }

  /// All gradients by one kernel, and dq from its sums.
  template <class T, class G, class Mask, class Score>
  static status run_together(cudaStream_t s, backward_params<T, T, G, Mask, Score> p, bool hopper) {
    using params = backward_params<T, T, G, Mask, Score>;
    using dq_op = dq_of_sums_op<params, HeadSize, HeadSizeV>;
    status state;
    if (!hopper) p.workspace.of_keys = {};
    // With a window fixed order is the faster one. H100, 2026-11-26, 1024 keys, 4096 tokens, 128: 338, in any order 319 TFLOP/s.
    if constexpr (has_first_key<Mask>)
      if (hopper && p.workspace.of_keys.sharers == 1) p.workspace.any_order = false;
    if constexpr (has_sm90 && has_kernel_of_all(HeadSize, HeadSizeV)) {
      using op = sm90_backward_op<T, G, HeadSize, HeadSizeV, gradient::of_all, Mask, Score>;
      const attention_schedule schedule = backward_schedules::schedule_of_rows<gradient::of_all>(p, op::block_m);
      if (hopper && schedule.work_tiles > 0)
        state = launch_backward_sm90<op>(s, p, schedule, p.workspace.counters, true);
    }
    if (!hopper) {
      using op = sm80_all_gradients_op<T, G, HeadSize, HeadSizeV, Mask, Score>;
      const attention_schedule schedule = backward_schedules::schedule_of_rows<gradient::of_all>(p, op::block_m);
      if (schedule.work_tiles > 0)
        state = launch(s, {.grid = schedule.work_tiles, .block = op::max_threads}, op{},
                       typename op::params{p, schedule, p.workspace.counters});
    }
    if (!state.ok()) return state;
    const attention_schedule queries = backward_schedules::schedule_of_rows<gradient::of_q>(p, dq_op::rows_of_tile);
    const int64 blocks = dq_op::parts * queries.rows * queries.query_tiles;
    const int64 grid = blocks < launch_limits::grid_x ? blocks : launch_limits::grid_x;
    return launch(s, {.grid = grid, .block = dq_op::max_threads, .dependent = true}, dq_op{},
                  typename dq_op::params{p, queries.query_tiles});
  }

  template <class T, class O, class Score>
  static constexpr bool may_run_split =
      has_sm90 && !stdlib::same_as<How, fp32_exact> && element_traits<T>::is_split && stdlib::same_as<O, T> &&
      has_split_kernels(HeadSize, HeadSizeV) && !gradient_of<Score>::wanted;

  /// Whether an fp32 call runs on tensor cores. A scale outside of this range could take scores out of float's range on the way.
  template <class O, class G, class Mask, class Score>
  static bool runs_split(const backward_params<fp32, O, G, Mask, Score>& p) {
    if constexpr (!may_run_split<fp32, O, Score>) {
      return false;
    } else {
      const float size = p.call.scale < 0 ? -p.call.scale : p.call.scale;
      if (p.split.q.parts == nullptr || !(size == 0 || (size >= 0x1p-18f && size <= 0x1p60f)) ||
          p.views.in.packed.k_batch_index != nullptr || p.views.in.k.size() == 0)
        return false;
      const result<attention_path> path = path_here();
      return path.ok() && path.value == attention_path::sm90 && runs_on_hopper(p);
    }
  }

  /// The gradients of split fp16.
  template <int Parts, class G, class Mask, class Score>
  static status run_split(cudaStream_t s, const backward_params<fp32, fp32, G, Mask, Score>& p) {
    status state;
    int launched = 0;
    const auto run = [&]<gradient Of>(stdlib::integral_constant<gradient, Of>) {
      if (!state.ok() || !wants<Of>(p)) return;
      using op = sm90_backward_op<split_parts<Parts>, G, HeadSize, HeadSizeV, Of, Mask, Score>;
      const attention_schedule schedule = backward_schedules::schedule_of_rows<Of>(p, op::block_m);
      if (schedule.work_tiles == 0) return;
      state = launch_backward_sm90<op>(s, p, schedule, p.workspace.counters + launched, launched == 0);
      ++launched;
    };
    run(stdlib::integral_constant<gradient, gradient::of_q>{});
    if constexpr (split_backward_sums_both(HeadSize, HeadSizeV)) {
      run(stdlib::integral_constant<gradient, gradient::of_k_and_v>{});
    } else {
      run(stdlib::integral_constant<gradient, gradient::of_k>{});
      run(stdlib::integral_constant<gradient, gradient::of_v>{});
    }
    return state;
  }

  template <gradient Of, class T, class G, class Mask, class Score>
  static status run_sm80(cudaStream_t s, const backward_params<T, T, G, Mask, Score>& p) {
    using tiles = sm80_backward_tile_of<Of, HeadSize, HeadSizeV>;
    using op = sm80_backward_op<T, G, HeadSize, HeadSizeV, Of, typename tiles::type, Mask, Score>;
    using smaller_op =
        small_block_op<sm80_backward_op<T, G, HeadSize, HeadSizeV, Of, typename tiles::smaller, Mask, Score>>;
    if constexpr (shared_bytes_of<op> > least_shared_bytes) {
      static_assert(shared_bytes_of<smaller_op> <= least_shared_bytes);
      const result<bool> fits = has_shared_bytes(shared_bytes_of<op>);
      if (!fits.ok()) return fits.state;
      if (!fits.value) return launch_tiles<Of, smaller_op>(s, p);
    }
    return launch_tiles<Of, op>(s, p);
  }

  /// Launches an op with a block for each work tile, in several launches if the grid would exceed its limit.
  template <gradient Of, class Op, class Params>
  static status launch_tiles(cudaStream_t s, const Params& p) {
    if (!wants<Of>(p)) return {};
    typename Op::params all{p, backward_schedules::schedule_of_rows<Of>(p, Op::block_m)};
    for (; all.schedule.first < all.schedule.work_tiles; all.schedule.first += launch_limits::grid_x) {
      const int64 left = all.schedule.work_tiles - all.schedule.first;
      const int64 grid = left < launch_limits::grid_x ? left : launch_limits::grid_x;
      if (const status state = launch(s, {.grid = grid, .block = Op::max_threads}, Op{}, all); !state.ok())
        return state;
    }
    return {};
  }

  /// Launches an op that reads rows of q alone: a block for a head, or blocks that take several groups of rows.
  template <class Op, class Params>
  static status launch_blocks(cudaStream_t s, const Params& p, int64 count) {
    int64 most = launch_limits::grid_x;
    if constexpr (requires { Op::rows_of_block; })
      count = ceil_div(count, int64{Op::rows_of_block}), most = Op::most_blocks;
    const int64 grid = count < most ? count : most;
    return launch(s, {.grid = grid, .block = Op::max_threads}, Op{}, p);
  }

  /// Checks that the kernels may use the pointers of a call. The failure names the argument.
  template <class Params>
  static status check_backward_pointers(const Params& p) {
    if (const status s = check_pointers(p.call); !s.ok()) return s;
    pointer_checks pointers;
    const auto fails = [&](const auto& x, const char* argument) { return pointers.fails(x, argument); };
    static_cast<void>(fails(p.views.lse, "lse") || fails(p.views.dout, "dout") || fails(p.views.dq, "dq") ||
                      fails(p.views.dk, "dk") || fails(p.views.dv, "dv") || fails(p.dlse, "dlse") ||
                      fails(p.dsinks, "dsinks") || fails(p.workspace.terms, "workspace"));
    using gradients = gradient_of<stdlib::remove_cvref_t<decltype(p.call.score)>>;
    if constexpr (gradients::parameters > 0)
      for (int i = 0; i < gradients::parameters; ++i)
        static_cast<void>(fails(&gradients::output(p.call.score, i, 0), "parameter_gradients"));
    return pointers.state();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
