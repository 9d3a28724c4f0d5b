// SPDX-License-Identifier: MIT
// attention_backward on a stream: its kernels, the best ones first. One kernel computes all gradients, or several do.
#ifndef GIWA_ATTENTION_CHOOSE_BACKWARD_CUH
#define GIWA_ATTENTION_CHOOSE_BACKWARD_CUH

#include <giwa/attention/call/backward.hpp>
#include <giwa/attention/choose/backward_sm90.cuh>
#include <giwa/attention/choose/backward_steps.cuh>
#include <giwa/attention/kernels/simt/backward_simt.cuh>
#include <giwa/attention/kernels/simt/store_gradient.cuh>
#include <giwa/attention/kernels/sm80/backward_all_sm80.cuh>
#include <giwa/attention/kernels/sm80/backward_sm80.cuh>
#include <giwa/attention/tuning/sm120.hpp>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// The gradient `Of` by an op with a block for each work tile, if the call wants it. `OnHopper`: whether code for 90a has it.
template <gradient Of, class Op, bool OnHopper = true>
struct gradient_by : candidate {
  using prepared = prepared_tiles<Op>;
  static constexpr int64 by_default = 48 << 10;  // what a block may have on every GPU
  static bool runs_on(const gpu_traits& gpu) {
    return (OnHopper || !gpu.wgmma) && (shared_bytes_of<Op> <= by_default || gpu.shared_bytes >= shared_bytes_of<Op>);
  }
  template <class Params>
  static status make(void* to, const Params& p, const gpu_traits&) {
    return prepared::make(to, {p, backward_schedules::schedule_of_rows<Of>(p, Op::block_m)});
  }
};
/// The same for GPUs of little shared memory, where `Larger` is too much for them.
template <gradient Of, class Op, class Larger>
struct gradient_by_smaller : gradient_by<Of, Op> {
  static constexpr bool compiled = shared_bytes_of<Larger> > least_shared_bytes;
  static_assert(shared_bytes_of<Op> <= least_shared_bytes);
};

/// In the place of a gradient that another kernel computes.
struct no_gradient {
  template <gradient>
  using of = no_kernel;
};

/// What the candidates of a call know of it.
template <class Params, int HeadSize, int HeadSizeV>
struct backward_way;
template <class T, class O, class G, class Mask, class Score, int HeadSize, int HeadSizeV>
struct backward_way<backward_params<T, O, G, Mask, Score>, HeadSize, HeadSizeV> : candidate {
  using params = backward_params<T, O, G, Mask, Score>;
  using steps = backward_steps<params, HeadSize, HeadSizeV>;
  template <bool IsLong = false>
  using dq_op = dq_of_sums_op<params, HeadSize, HeadSizeV, IsLong>;
  static constexpr bool on_tensor_cores =
      element_traits<T>::on_tensor_cores && stdlib::same_as<T, O> && HeadSize <= 256 && HeadSizeV <= 256;
  static constexpr bool sums_dq =
      on_tensor_cores && has_sm80_kernel_of_all(HeadSize, HeadSizeV) && !gradient_of<Score>::wanted;
  static constexpr bool has_tiled_bias = has_tiled_bias_of<Score, T>;
  static constexpr int64 most_work_tiles = int64{1} << 30;

  template <gradient Of>
  using op_sm90 = sm90_backward_op<T, G, HeadSize, HeadSizeV, Of, Mask, Score>;
  template <gradient Of, class Tiles>
  using op_sm80 = sm80_backward_op<T, G, HeadSize, HeadSizeV, Of, typename Tiles::type, Mask, Score>;
  /// Hopper needs these kernels for layouts that TMA cannot address, and then runs the one for little shared memory, at 0.87 of the
  /// speed: 128, causal, compiles in 1.05 CPU seconds less (nvcc 13.0, 2026-11-28).
  template <gradient Of>
  struct sm80_ops {
    using larger = op_sm80<Of, sm80_backward_tile_of<Of, HeadSize, HeadSizeV>>;
    using smaller = op_sm80<Of, sm120_backward_tile_of<HeadSize, HeadSizeV>>;
    static constexpr bool takes_larger = shared_bytes_of<larger> <= least_shared_bytes;
    template <class Op, bool OnHopper>
    using op = stdlib::conditional_t<OnHopper, any_layout_op<Op>, no_sm90a_op<Op>>;
    using type = prepared_call<gradient_by<Of, op<larger, takes_larger>, takes_larger>,
                               gradient_by_smaller<Of, op<smaller, !takes_larger>, larger>>;
  };
  template <gradient Of>
  using by_sm80 = typename sm80_ops<Of>::type;

  /// Whether an op's rows of work tiles are needed: a tensor for its gradient, or a modifier that takes one.
  template <gradient Of>
  static bool wants(const params& p) {
    if constexpr (Of == gradient::of_q)
      return (!is_absent(p.views.dq) || gradient_of<Score>::wanted) && p.views.in.q.size() > 0;
    return (Of != gradient::of_v && !is_absent(p.views.dk)) || (Of != gradient::of_k && !is_absent(p.views.dv));
  }
  /// Whether one kernel may compute all gradients: there is a workspace for its sums, and all are wanted. Not where several
  /// sequences read the same keys, whose parts of dq have no order.
  static bool may_sum_dq(const params& p) {
    const auto& v = p.views;
    return p.workspace.dq != nullptr && !is_absent(v.dq) && !is_absent(v.dk) && !is_absent(v.dv) &&
           v.in.packed.k_batch_index == nullptr && v.in.q.size() > 0 && v.in.k.size() > 0 && v.in.sequence_count() > 0;
  }
  /// Whether the Hopper kernels can do a call: there are queries, TMA addresses the tensors, and the numbers of work tiles of
  /// all kernels, and steps beyond the last, fit in int.
  static bool suits_sm90(const params& p) {
    return p.views.in.q.size() > 0 && has_backward_maps<element_traits<T>::is_split>(p) &&
           backward_schedules::schedule_of_rows<gradient::of_q>(p, 128).work_tiles <= most_work_tiles &&
           backward_schedules::schedule_of_rows<gradient::of_k>(p, 128).work_tiles <= most_work_tiles;
  }
  static status suits_if(bool suits) { return suits ? status{} : fits_another_tile; }

  /// dq from its sums. Code for GPUs below 9.0 does not wait for the kernel before it.
  template <class Op>
  static status make_dq(optional_kernel<prepared_kernel<Op>>& dq, const params& p, const gpu_traits& gpu,
                        int keys_of_tile = 0) {
    const int64 tiles = ceil_div(p.views.in.q.extent(1), int64{Op::rows_of_tile});
    const int64 blocks = Op::parts * p.views.in.q.extent(2) * p.workspace.tiles;
    const launch_config config{.grid = blocks < launch_limits::grid_x ? blocks : launch_limits::grid_x,
                               .block = Op::max_threads,
                               .dependent = gpu.wgmma};
    return dq.make(config,
                   typename Op::params{p, fast_divisor(tiles), fast_divisor(p.views.in.q.extent(2)), keys_of_tile});
  }
  /// A gradient, if the call wants it. `launched`: how many Hopper kernels of the call there are before; each has a counter.
  ///@{
  template <gradient Of, class Op>
  static status make_gradient(optional_kernel<prepared_backward_sm90<Op>>& kernel, const params& p,
                              const gpu_traits& gpu, int& launched) {
    if (!wants<Of>(p)) return {};
    attention_schedule schedule = backward_schedules::schedule_of_rows<Of>(p, Op::block_m);
    if (schedule.work_tiles == 0) return {};
    const bool narrow = Op::policy::narrows && 2 * schedule.work_tiles <= gpu.multiprocessors;
    if (narrow) schedule = backward_schedules::schedule_of_rows<Of>(p, Op::block_m / 2);
    const int n = launched++;
    return kernel.make(p, gpu, schedule, p.workspace.counters + n, n == 0, narrow);
  }
  template <gradient Of, class List>
  static status make_gradient(first_candidate<List>& kernel, const params& p, const gpu_traits& gpu, int&) {
    return wants<Of>(p) ? kernel.prepare(p, gpu) : status{};
  }
  ///@}
};

/// All gradients by one Hopper kernel: of_all, or of_all_long.
template <class Params, class Mask, class Score, int HeadSize, int HeadSizeV, gradient Of>
struct backward_all_sm90 : backward_way<Params, HeadSize, HeadSizeV> {
  using way = backward_way<Params, HeadSize, HeadSizeV>;
  using op = typename way::template op_sm90<Of>;
  static constexpr bool is_long = Of == gradient::of_all_long;
  struct prepared {
    typename way::steps steps;
    optional_kernel<prepared_backward_sm90<op>> all;
    optional_kernel<prepared_kernel<typename way::template dq_op<is_long>>> dq;
    status launch(cudaStream_t s) const { return steps.launch(s, all, dq); }
  };
  static constexpr bool compiled =
      has_sm90 && way::on_tensor_cores && (way::sums_dq || way::has_tiled_bias) &&
      has_kernel_of_all(HeadSize, HeadSizeV) &&
      (!is_long || (long_sequences::has_kernel(HeadSize, HeadSizeV) && is_plain_score<Score> && !drops_weights<Score> &&
                    (mask_traits<Mask>::keeps_all || mask_traits<Mask>::is_causal)));

  static status suits(const Params& p) {
    if (is_long && !backward_schedules::prefers_long(p)) return fits_another_tile;
    constexpr int columns = sm90_backward_policy<gradient::of_q, HeadSize, HeadSizeV>::columns;
    const bool separate = backward_schedules::prefers_separate(p, HeadSize + HeadSizeV, columns);
    if constexpr (way::has_tiled_bias)
      return way::suits_if(way::may_sum_dq(p) && way::suits_sm90(p) && has_tiled_bias(p));
    return way::suits_if(way::may_sum_dq(p) && !separate && way::suits_sm90(p));
  }
  static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }
  static status make(void* to, Params p, const gpu_traits& gpu) {
    auto* const made = ::new (to) prepared;
    if constexpr (Params::adds_bias) {
      p.order.sums = sums_bias(p);
      p.order.in_turn = p.order.sums && !p.workspace.any_order && may_add_in_turn(p);
    }
    // With a window fixed order is the faster one. H100, 2026-11-26, 1024 keys, 4096 tokens, 128: 338, in any order 319 TFLOP/s.
    if constexpr (has_first_key<Mask>)
      if (p.workspace.of_keys.sharers == 1) p.workspace.any_order = false;
    if constexpr (is_long) p.workspace.tiles = long_sequences::tiles_of(p.views.in.q.extent(0), p.views.in.q.extent(1));
    if (p.call.ragged) p.workspace.together = backward_schedules::sequences_together<Of>(p, op::block_m);
    int launched = 0;
    status state = made->steps.make(p, gpu);
    if (state.ok()) state = way::template make_gradient<Of>(made->all, p.of_keys(), gpu, launched);
    const int keys = backward_schedules::ends_are_known(p) ? op::block_m : 0;
    return state.ok() ? way::make_dq(made->dq, p, gpu, keys) : state;
  }
};

/// All gradients by the mma.sync kernel, where its tiles fit in shared memory. Not on Hopper, where it would only be for layouts that
/// TMA cannot address: 128, causal, compiles in 1.8 of 11 CPU seconds less (nvcc 13.0, 2026-11-28).
template <class Params, class Op, int HeadSize, int HeadSizeV>
struct backward_all_sm80 : backward_way<Params, HeadSize, HeadSizeV> {
  using way = backward_way<Params, HeadSize, HeadSizeV>;
  struct prepared {
    typename way::steps steps;
    optional_kernel<prepared_kernel<Op>> all;
    optional_kernel<prepared_kernel<typename way::template dq_op<>>> dq;
    status launch(cudaStream_t s) const { return steps.launch(s, all, dq); }
  };
  static constexpr bool compiled = way::sums_dq;

  static attention_schedule schedule_of(const Params& p) {
    return backward_schedules::schedule_of_rows<gradient::of_all>(p, Op::block_m);
  }
  static status suits(const Params& p) {
    return way::suits_if(way::may_sum_dq(p) && schedule_of(p).work_tiles <= way::most_work_tiles);
  }
  static bool runs_on(const gpu_traits& gpu) {
    return gpu.mma && !gpu.wgmma && gpu.shared_bytes >= shared_bytes_of<Op>;
  }
  static status make(void* to, Params p, const gpu_traits& gpu) {
    auto* const made = ::new (to) prepared;
    p.workspace.of_keys = {};
    const attention_schedule schedule = schedule_of(p);
    status state = made->steps.make(p, gpu);
    if (state.ok())
      state = made->all.make(launch_config{.grid = schedule.work_tiles, .block = Op::max_threads},
                             typename Op::params{p.of_keys(), schedule, p.workspace.counters});
    return state.ok() ? way::make_dq(made->dq, p, gpu) : state;
  }
};

/// A kernel each for dq, dk and dv, or one for dk with dv: Kernels::of<Of>.
template <class Params, class Kernels, int HeadSize, int HeadSizeV>
struct backward_separate : backward_way<Params, HeadSize, HeadSizeV> {
  using way = backward_way<Params, HeadSize, HeadSizeV>;
  static constexpr bool compiled = Kernels::compiled, asks_gpu = Kernels::asks_gpu, sums_both = Kernels::sums_both;
  static constexpr gradient second = sums_both ? gradient::of_k_and_v : gradient::of_k;
  struct prepared {
    typename way::steps steps;
    typename Kernels::template of<gradient::of_q> dq;
    typename Kernels::template of<second> dk;
    typename stdlib::conditional_t<sums_both, no_gradient, Kernels>::template of<gradient::of_v> dv;
    status launch(cudaStream_t s) const { return steps.launch(s, dq, dk, dv); }
  };

  static status suits(const Params& p) { return way::suits_if(Kernels::suits(p)); }
  static bool runs_on(const gpu_traits& gpu) { return Kernels::runs_on(gpu); }
  static status make(void* to, Params p, const gpu_traits& gpu) {
    auto* const made = ::new (to) prepared;
    p.workspace.dq = nullptr, p.workspace.of_keys = {};
    if constexpr (!Kernels::reads_split) p.split = {};
    int launched = 0;
    status state = made->steps.make(p, gpu);
    if (state.ok()) state = way::template make_gradient<gradient::of_q>(made->dq, p, gpu, launched);
    if (state.ok()) state = way::template make_gradient<second>(made->dk, p.of_keys(), gpu, launched);
    if constexpr (!sums_both)
      if (state.ok()) state = way::template make_gradient<gradient::of_v>(made->dv, p.of_keys(), gpu, launched);
    return state;
  }
};

/// The candidates, the best one first.
template <class Params, int HeadSize, int HeadSizeV, class How>
struct backward_kernels;
template <class T, class O, class G, class Mask, class Score, int HeadSize, int HeadSizeV, class How>
struct backward_kernels<backward_params<T, O, G, Mask, Score>, HeadSize, HeadSizeV, How> {
  using params = backward_params<T, O, G, Mask, Score>;
  using way = backward_way<params, HeadSize, HeadSizeV>;

  struct sm90 {
    static constexpr bool compiled = has_sm90 && way::on_tensor_cores, sums_both = true, reads_split = false,
                          asks_gpu = true;
    static bool suits(const params& p) { return way::suits_sm90(p); }
    static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }
    template <gradient Of>
    using of = optional_kernel<prepared_backward_sm90<typename way::template op_sm90<Of>>>;
  };
  struct sm80 {
    static constexpr bool compiled = way::on_tensor_cores, sums_both = sm80_backward_sums_both(HeadSize, HeadSizeV),
                          reads_split = false, asks_gpu = true;
    static bool suits(const params&) { return true; }
    static bool runs_on(const gpu_traits& gpu) { return gpu.mma && (takes_every_layout || !gpu.wgmma); }
    template <gradient Of>
    using of = typename way::template by_sm80<Of>;
  };
  // fp32 as split fp16 on tensor cores.
  struct split_sm90 {
    static constexpr bool compiled = has_sm90 && !stdlib::same_as<How, fp32_exact> && element_traits<T>::is_split &&
                                     stdlib::same_as<O, T> && has_split_kernels(HeadSize, HeadSizeV) &&
                                     !gradient_of<Score>::wanted;
    static constexpr bool sums_both = split_backward_sums_both(HeadSize, HeadSizeV), reads_split = true,
                          asks_gpu = true;
    static bool suits(const params& p) {
      // A scale outside of this range could take scores out of float's range on the way.
      const float size = p.call.scale < 0 ? -p.call.scale : p.call.scale;
      const bool reached = size == 0 || (size >= 0x1p-18f && size <= 0x1p60f);
      return p.split.q.parts != nullptr && reached && p.views.in.packed.k_batch_index == nullptr &&
             p.views.in.k.size() > 0 && way::suits_sm90(p);
    }
    static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }
    using parts = split_parts<stdlib::same_as<How, tf32> ? 1 : 2>;
    template <gradient Of>
    using of =
        optional_kernel<prepared_backward_sm90<sm90_backward_op<parts, G, HeadSize, HeadSizeV, Of, Mask, Score>>>;
  };
  struct simt {
    static constexpr bool compiled = !way::on_tensor_cores || runs_below_sm80, sums_both = false, reads_split = false,
                          asks_gpu = false;
    static bool suits(const params&) { return true; }
    static bool runs_on(const gpu_traits&) { return true; }
    template <gradient Of>
    using of = prepared_call<gradient_by<Of, simt_backward_op<T, O, G, HeadSize, HeadSizeV, Of, Mask, Score>>>;
  };
  using type = prepared_call<
      backward_all_sm90<params, Mask, Score, HeadSize, HeadSizeV, gradient::of_all_long>,
      backward_all_sm90<params, Mask, Score, HeadSize, HeadSizeV, gradient::of_all>,
      backward_separate<params, sm90, HeadSize, HeadSizeV>,
      backward_all_sm80<params, no_sm90a_op<sm80_all_gradients_op<T, G, HeadSize, HeadSizeV, Mask, Score>>, HeadSize,
                        HeadSizeV>,
      backward_separate<params, sm80, HeadSize, HeadSizeV>, backward_separate<params, split_sm90, HeadSize, HeadSizeV>,
      backward_separate<params, simt, HeadSize, HeadSizeV>>;
};

template <int HeadSize, int HeadSizeV, class How>
struct stream_backward {
  template <class Params>
  using prepared = typename backward_kernels<Params, HeadSize, HeadSizeV, How>::type;

  template <class Target, class Params>
  static status run(const Target& target, const Params& call) {
    return run_call<prepared<Params>>(target, call);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
