// SPDX-License-Identifier: MIT
// attention_forward on a stream: its kernels, the best one first.
#ifndef GIWA_ATTENTION_CHOOSE_FORWARD_CUH
#define GIWA_ATTENTION_CHOOSE_FORWARD_CUH

#include <giwa/attention/call/forward.hpp>
#include <giwa/attention/choose/forward_split.cuh>
#include <giwa/attention/tuning/sm120.hpp>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// The portable kernel.
template <class T, class O, int HeadSize, int HeadSizeV, class Mask, class Score>
struct forward_simt : candidate {
  using op = simt_attention_op<T, O, HeadSize, HeadSizeV, Mask, Score>;
  using prepared = prepared_tiles<op>;
  static constexpr bool compiled = !element_traits<T>::on_tensor_cores || runs_below_sm80, asks_gpu = false;

  template <class Call>
  static status make(void* to, const Call& call, const gpu_traits&) {
    return prepared::make(to, {call, schedule_of<op>(call, 1)});
  }
};

/// The mma.sync kernel with a tile of tuning/, or the caller's, which is an error where it does not fit. `OnHopper`: whether 9.0 runs
/// it where it has code for 90a.
template <class Op, class Policy, bool OnHopper, bool IsCallers = false>
struct forward_sm80 : candidate {
  using prepared = prepared_tiles<Op>;

  static bool runs_on(const gpu_traits& gpu) {
    return gpu.mma && (OnHopper || !gpu.wgmma) && (IsCallers || gpu.shared_bytes >= shared_bytes_of<Op>);
  }
  template <class Call>
  static status make(void* to, const Call& call, const gpu_traits&) {
    return prepared::make(to, {call, schedule_of<Op>(call, Policy::slices)});
  }
};
/// The same with the tile for GPUs of little shared memory, of which 9.0 is none, if it is another one than that of `Larger`.
template <class Op, class Policy, class Larger>
struct forward_sm120 : forward_sm80<no_sm90a_op<Op>, Policy, false> {
  static constexpr bool compiled = !stdlib::same_as<Op, Larger> && (shared_bytes_of<Larger> > least_shared_bytes);
  static_assert(!compiled || shared_bytes_of<Op> <= least_shared_bytes);
};

/// The wgmma kernel with a tile of tuning/.
template <class T, class O, class Policies, class Mask, class Score, bool Compiled>
struct forward_sm90 : candidate {
  using op = sm90_attention_op<T, O, typename Policies::type, Mask, Score>;
  using prepared = prepared_sm90<op>;
  static constexpr bool compiled = Compiled;

  template <class Call>
  static status suits(const Call& call) {
    // P is rounded before it is multiplied by V, so it has no scales of keys. Those of k begin at multiples of 64 of the tensor's rows.
    if constexpr (element_traits<T>::has_scales)
      if (call.scales.v_rows != 0 || (call.scales.k_rows != 0 && call.views.is_packed())) return fits_another_tile;
    const auto v = heads_first(call.views.v);
    if constexpr (op::types::k_major_v) {
      // TMA copies from keys that are multiples of 16 on, and packed sequences begin anywhere.
      if (v.stride(2) != 1 || call.views.is_packed()) return fits_another_tile;
      return check_tensor_maps(heads_first(call.views.q), heads_first(call.views.k), v.transposed(2, 3));
    } else {
      return check_tensor_maps(heads_first(call.views.q), heads_first(call.views.k), v);
    }
  }
  static result<gpu_traits> gpu() { return current_gpu(path_of<op>()); }
  static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }
  template <class Call>
  static status make(void* to, const Call& call, const gpu_traits& gpu) {
    return prepared::make(to, call, gpu, heads_first(call.views.q), heads_first(call.views.k),
                          heads_first(call.views.v));
  }
};
/// The same with the tile for some numbers of keys. Calls whose lengths only the device knows keep one tile: the bits of a
/// sequence must not depend on how it is padded. Not for the masks and modifiers with which it was not measured, because each
/// kernel adds 1.5 s to the time to compile a call.
template <class T, class O, int HeadSize, int HeadSizeV, class Tile, class Mask, class Score, bool Compiled>
struct forward_sm90_by_keys
    : forward_sm90<T, O, sm90_second_policy_of<HeadSize, HeadSizeV, mask_traits<Mask>::is_causal>, Mask, Score,
                   Compiled> {
  using policies = sm90_second_policy_of<HeadSize, HeadSizeV, mask_traits<Mask>::is_causal>;
  static constexpr bool compiled = Compiled && stdlib::same_as<Tile, automatic_tile> && is_plain_score<Score> &&
                                   !drops_weights<Score> && policies::exists &&
                                   (mask_traits<Mask>::keeps_all || mask_traits<Mask>::is_causal);

  template <class Call>
  static status suits(const Call& call) {
    const auto& a = call.views;
    if (a.is_packed() || a.packed.k_lengths != nullptr || !policies::suits(a.k.extent(1))) return fits_another_tile;
    return forward_sm90_by_keys::forward_sm90::suits(call);
  }
};
/// The same with the tile for masks of small blocks.
template <class T, class O, int HeadSize, int HeadSizeV, class Tile, class Mask, class Score, bool Compiled>
struct forward_sm90_by_blocks : forward_sm90<T, O, sm90_blocks_policy_of<HeadSize, HeadSizeV>, Mask, Score, Compiled> {
  using policies = sm90_blocks_policy_of<HeadSize, HeadSizeV>;
  static constexpr bool compiled =
      Compiled && stdlib::same_as<Tile, automatic_tile> && mask_traits<Mask>::has_blocks && policies::exists;

  template <class Call>
  static status suits(const Call& call) {
    if (!policies::suits(mask_traits<Mask>::queries_of_block(call.mask))) return fits_another_tile;
    return forward_sm90_by_blocks::forward_sm90::suits(call);
  }
};

/// The wgmma kernel for head sizes above 256: a launch for each part of v's columns, with all of S in each.
template <class T, class O, class Policies, class Mask, class Score, bool Compiled>
struct forward_sm90_by_columns : forward_sm90<T, O, Policies, Mask, Score, Compiled> {
  using part = typename forward_sm90_by_columns::forward_sm90::prepared;
  struct prepared {
    optional_kernel<part> parts[stdlib::size_t{Policies::launches}];
    const auto& call() const { return parts[0].value().call(); }
    status launch(cudaStream_t s) const {
      status state;
      for (int i = 0; state.ok() && i < Policies::launches; ++i) state = parts[i].launch(s);
      return state;
    }
  };

  template <class Call>
  static status make(void* to, const Call& call, const gpu_traits& gpu) {
    auto* const made = ::new (to) prepared;
    for (int i = 0; i < Policies::launches; ++i) {
      Call columns = call;
      columns.views.v = columns_of(call.views.v, i);
      columns.views.o = columns_of(call.views.o, i);
      if (i > 0) columns.lse = {};
      const status state = made->parts[i].make(columns, gpu, heads_first(columns.views.q), heads_first(columns.views.k),
                                               heads_first(columns.views.v));
      if (!state.ok()) return state;
    }
    return {};
  }

 private:
  /// The columns of launch i.
  template <class View>
  static View columns_of(const View& v, int i) {
    auto extents = v.extents();
    const int64 first = int64{i} * Policies::columns, left = extents[3] - first;
    extents[3] = left < Policies::columns ? left : Policies::columns;
    return {v.data() + first, extents, v.strides()};
  }
};

/// The candidates by element type, the best one first.
template <class T, class O, int HeadSize, int HeadSizeV, class Tile, class Mask, class Score>
struct forward_kernels {
  static constexpr bool narrow = HeadSize <= 256 && HeadSizeV <= 256;
  using tile = stdlib::conditional_t<has_sm90, automatic_tile, Tile>;  // of the mma.sync kernel
  using sm80 = typename sm80_policy_of<HeadSize, HeadSizeV, tile>::type;
  using sm120 = typename sm120_policy_of<HeadSize, HeadSizeV, tile>::type;
  static constexpr bool wide = has_sm90 && !narrow && stdlib::same_as<Tile, automatic_tile>;
  static constexpr bool alone = !narrow && !wide;  // no Hopper kernel takes part
  using sm80_op = any_layout_op<sm80_attention_op<T, O, sm80, Mask, Score>, alone>;
  using sm120_op = sm80_attention_op<T, O, sm120, Mask, Score>;
  static constexpr bool is_plain_causal =
      mask_traits<Mask>::is_causal && is_plain_score<Score> && !drops_weights<Score>;
  using sm90 = stdlib::conditional_t<mask_traits<Mask>::keeps_all, sm90_policy_of<HeadSize, HeadSizeV, Tile>,
                                     sm90_masked_policy_of<HeadSize, HeadSizeV, Tile, is_plain_causal>>;
  using type = prepared_call<
      forward_sm90_by_keys<T, O, HeadSize, HeadSizeV, Tile, Mask, Score, has_sm90 && narrow>,
      forward_sm90_by_blocks<T, O, HeadSize, HeadSizeV, Tile, Mask, Score, has_sm90 && narrow>,
      forward_sm90<T, O, sm90, Mask, Score, has_sm90 && narrow>,
      forward_sm90_by_columns<T, O, sm90_wide_policy_of<HeadSize, HeadSizeV>, Mask, Score, wide>,
      forward_sm80<sm80_op, sm80, takes_every_layout || (!narrow && !wide), !stdlib::same_as<tile, automatic_tile>>,
      forward_sm120<sm120_op, sm120, sm80_op>, forward_simt<T, O, HeadSize, HeadSizeV, Mask, Score>>;
};
template <class T, class O, int HeadSize, int HeadSizeV, class Tile, class Mask, class Score>
  requires(element_traits<T>::is_split)
struct forward_kernels<T, O, HeadSize, HeadSizeV, Tile, Mask, Score> {
  static constexpr bool may_split = !stdlib::same_as<Tile, fp32_exact> && HeadSize <= 256 && HeadSizeV <= 256;
  static constexpr int parts = stdlib::same_as<Tile, tf32> ? 1 : 2;
  using tile = stdlib::conditional_t<is_attention_tile<Tile>, Tile, automatic_tile>;
  using sm80 = stdlib::conditional_t<parts == 1, sm80_policy_of<HeadSize, HeadSizeV, automatic_tile>,
                                     sm80_split_policy_of<HeadSize, HeadSizeV>>;
  using sm90 = stdlib::conditional_t<parts == 1, sm90_policy_of<HeadSize, HeadSizeV, tile>,
                                     sm90_split_policy_of<HeadSize, HeadSizeV, tile>>;
  using type =
      prepared_call<forward_split_sm90<O, HeadSize, HeadSizeV, sm90, Mask, Score, parts, may_split && has_sm90>,
                    forward_split_sm80<O, HeadSize, HeadSizeV, sm80, Mask, Score, parts, may_split>,
                    forward_simt<T, O, HeadSize, HeadSizeV, Mask, Score>>;
};
template <class T, class O, int HeadSize, int HeadSizeV, class Tile, class Mask, class Score>
  requires(!element_traits<T>::on_tensor_cores && !element_traits<T>::is_split)
struct forward_kernels<T, O, HeadSize, HeadSizeV, Tile, Mask, Score> {
  static constexpr bool has_bytes =
      has_sm90 && HeadSize <= 256 && HeadSizeV <= 256 && !stdlib::same_as<Tile, fp32_exact>;
  using tile = stdlib::conditional_t<is_attention_tile<Tile>, Tile, automatic_tile>;
  template <bool KMajorV>
  using sm90 = sm90_bytes_policy_of<HeadSize, HeadSizeV, tile, KMajorV>;
  // The decisions of dropout are in another order than the keys of a K-major V.
  using type = prepared_call<forward_sm90<T, O, sm90<false>, Mask, Score, has_bytes>,
                             forward_sm90<T, O, sm90<true>, Mask, Score, has_bytes && !drops_weights<Score>>,
                             forward_simt<T, O, HeadSize, HeadSizeV, Mask, Score>>;
};
template <class T, class O, int HeadSize, int HeadSizeV, class Tile, class Mask, class Score>
using prepared_forward = typename forward_kernels<T, O, HeadSize, HeadSizeV, Tile, Mask, Score>::type;

template <int HeadSize, int HeadSizeV, class Tile>
struct stream_attention {
  template <class Target, class T, class O, class Mask, class Score>
  static status run(const Target& target, const attention_params<T, O, Mask, Score>& call) {
    return run_call<prepared_forward<T, O, HeadSize, HeadSizeV, Tile, Mask, Score>>(target, call);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
