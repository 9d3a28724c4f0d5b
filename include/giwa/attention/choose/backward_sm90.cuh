// SPDX-License-Identifier: MIT
// Prepares the Hopper kernels of attention_backward: tensor maps, and a block for each multiprocessor.
#ifndef GIWA_ATTENTION_CHOOSE_BACKWARD_SM90_CUH
#define GIWA_ATTENTION_CHOOSE_BACKWARD_SM90_CUH

#include <giwa/attention/choose/launch.cuh>
#include <giwa/attention/kernels/sm90/backward_sm90.cuh>
#include <giwa/attention/work/backward_schedules.hpp>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// The tensors that the kernels read, as (sequence, head, row, head size): those of the call, or their split fp16.
template <class Element>
struct backward_map_tensors {
  tensor_view<const Element, 4> q, k, v, dout;
};
template <bool Split, class Params>
auto tensors_of_maps(const Params& p) {
  if constexpr (Split) {
    return backward_map_tensors<fp16>{p.split.q.view(), p.split.k.view(), p.split.v.view(), p.split.dout.view()};
  } else {
    const auto& in = p.views.in;
    using element = stdlib::remove_const_t<typename stdlib::remove_cvref_t<decltype(in.q)>::element_type>;
    return backward_map_tensors<element>{heads_first(in.q), heads_first(in.k), heads_first(in.v),
                                         heads_first(p.views.dout)};
  }
}

/// Whether TMA can address the tensors that the kernels read.
template <bool Split, class Params>
bool has_backward_maps(const Params& p) {
  const auto in = tensors_of_maps<Split>(p);
  return check_tensor_map(in.q, "q").ok() && check_tensor_map(in.k, "k").ok() && check_tensor_map(in.v, "v").ok() &&
         check_tensor_map(in.dout, "dout").ok();
}

/// Whether several sequences or heads share an element of the gradient of a tiled bias.
template <class Params>
bool sums_bias(const Params& p) {
  const auto& q = p.views.in.q;
  const gradient_sharing shared = gradient_of<stdlib::remove_cvref_t<decltype(p.call.score)>>::shared(p.call.score);
  return (shared.sequences && q.extent(0) > 1) || (shared.heads && q.extent(2) > 1);
}
/// Whether these can add to it in turn: there is room for their order, and all of them see the same tiles, so that each waits for the one
/// before it.
template <class Params>
bool may_add_in_turn(const Params& p) {
  using mask = mask_traits<stdlib::remove_cvref_t<decltype(p.call.mask)>>;
  return p.order.added != nullptr && !p.views.in.is_ragged() && mask::any_head && !mask::has_blocks &&
         mask::known_on_host(p.call.mask);
}

/// Whether the kernel of all gradients reads the bias of a call by TMA, and gives its gradient: not after a bias of each query, nor a
/// sum in fixed order over sequences or heads that may see different tiles.
template <class Params>
bool has_tiled_bias(const Params& p) {
  const auto& score = p.call.score;
  using tiled = tiled_bias<stdlib::remove_cvref_t<decltype(score)>>;
  const auto& in = p.views.in;
  const auto& values = tiled::of(score).values.values;
  const auto& gradient = tiled::of(score).gradient_;
  if (in.is_packed() || !check_tensor_map(values, "bias").ok()) return false;
  if constexpr (tiled::has_key_term)
    if (score.first.values.extent(2) != 1) return false;
  if constexpr (tiled::adds) {
    const bool by_fours = reinterpret_cast<uint64>(gradient.data()) % 16 == 0 && gradient.stride(3) == 1 &&
                          (gradient.extent(3) | gradient.stride(0) | gradient.stride(1) | gradient.stride(2)) % 4 == 0;
    return by_fours && (p.workspace.any_order || !sums_bias(p) || may_add_in_turn(p));
  } else {
    return check_store_map(gradient, "bias gradient").ok();
  }
}

/// An op of sm90_backward_op for all work tiles of a schedule, at most 2^30, with one block for each multiprocessor: a block takes
/// the whole register file.
template <class Op>
struct prepared_backward_sm90 : prepared_kernel<Op> {
  using types = typename Op::types;

  /// `counter` is 0 when the kernel begins. The `first` such kernel of a call waits for the terms of the rows; a later one needs
  /// nothing of those before it, and begins where their last blocks leave multiprocessors idle.
  template <class Params>
  static status make(void* to, const Params& call, const gpu_traits& gpu, const attention_schedule& schedule,
                     int* counter, bool first, bool narrow = false) {
    typename Op::params p{call, schedule, 0, counter, first, {}, {}, {}, {}, {}, {}, {}, false, {}};
    if (const status state = encode_maps(p); !state.ok()) return state;
    p.work_tiles = static_cast<int>(schedule.work_tiles);
    if constexpr (types::policy::narrows) p.narrow = narrow;
    if constexpr (types::adds_dq) {
      const int64 tiles = ceil_div(call.views.in.q.extent(1), int64{types::columns});
      p.last = backward_schedules::divided_tiles(call, p.work_tiles, static_cast<int>(gpu.multiprocessors), tiles);
      p.work_tiles += (p.work_tiles - p.last.first) * (p.last.parts - 1);
    }
    int64 blocks = p.work_tiles;
    if constexpr (types::adds_dq)
      if (call.call.ragged) blocks = call.workspace.keys.room * schedule.heads.divisor();
    if (blocks > gpu.multiprocessors) blocks = gpu.multiprocessors;
    const launch_config config{.grid = blocks, .block = Op::max_threads, .dependent = true};
    ::new (to) prepared_backward_sm90{{config, p}};
    return allow_op<Op>(config);
  }

 private:
  static status encode_maps(typename Op::params& p) {
    const result<tensor_map_encoder> encoder = tensor_map_encoder::find("q");
    status state = encoder.state;
    const auto& [q, k, v, dout] = tensors_of_maps<types::is_split>(p.call);
    constexpr bool by_keys = types::rows_are_keys;
    encode_map<typename types::a_tile>(p.a, by_keys ? k : q, by_keys ? "k" : "q", encoder.value, state);
    encode_map<typename types::b_tile>(p.b, by_keys ? v : dout, by_keys ? "v" : "dout", encoder.value, state);
    encode_map<typename types::x_tile>(p.x, by_keys ? q : k, by_keys ? "q" : "k", encoder.value, state);
    encode_map<typename types::y_tile>(p.y, by_keys ? dout : v, by_keys ? "dout" : "v", encoder.value, state);
    if constexpr (types::stores_tiles) {
      const auto& dq = p.call.views.dq;
      p.stores_by_tma = !is_absent(dq) && check_store_map(heads_first(dq), "dq").ok();
      if (p.stores_by_tma) encode_map<typename types::dq_of_warp>(p.dq, heads_first(dq), "dq", encoder.value, state);
    }
    if constexpr (types::stages_keys) {
      const auto &dk = p.call.views.dk, &dv = p.call.views.dv;
      p.stores_by_tma = !is_absent(dk) && !is_absent(dv) && check_store_map(heads_first(dk), "dk").ok() &&
                        check_store_map(heads_first(dv), "dv").ok();
      if (p.stores_by_tma) {
        encode_map<typename types::dk_of_warp>(p.dk, heads_first(dk), "dk", encoder.value, state);
        encode_map<typename types::dv_of_warp>(p.dv, heads_first(dv), "dv", encoder.value, state);
      }
    }
    if constexpr (types::reads_bias) {
      const auto& bias = types::bias_type::of(p.call.call.score);
      encode_map<typename types::ds_tile>(p.bias.values, bias.values.values, "bias", encoder.value, state);
      if constexpr (types::stores_bias)
        encode_map<typename types::ds_tile>(p.bias.gradient, bias.gradient_, "bias gradient", encoder.value, state);
    }
    return state;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
