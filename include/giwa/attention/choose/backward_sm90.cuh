// SPDX-License-Identifier: MIT
// Launches the Hopper kernels of attention_backward: tensor maps, and a block for each multiprocessor.
#ifndef GIWA_ATTENTION_CHOOSE_BACKWARD_SM90_CUH
#define GIWA_ATTENTION_CHOOSE_BACKWARD_SM90_CUH

#include <giwa/attention/choose/launch.cuh>
#include <giwa/attention/kernels/sm90/backward_sm90.cuh>
#include <giwa/attention/work/backward_schedules.hpp>
#include <giwa/tile/tile_map.hpp>

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

/// Launches an op of sm90_backward_op for all work tiles of the schedule, at most 2^30, with one block for each multiprocessor: a
/// block takes the whole register file. `counter` is 0. The `first` such kernel of a call waits for the terms of the rows; a
/// later one needs nothing of those before it, and begins where their last blocks leave multiprocessors idle.
template <class Op, class Params>
status launch_backward_sm90(cudaStream_t s, const Params& call, const attention_schedule& schedule, int* counter,
                            bool first) {
  using types = typename Op::types;
  const result<int> device = current_device();
  if (!device.ok()) return device.state;
  const result<int64> processors = attribute(device.value, cudaDevAttrMultiProcessorCount);
  if (!processors.ok()) return processors.state;
  const result<tensor_map_encoder> encoder = tensor_map_encoder::find("q");
  if (!encoder.ok()) return encoder.state;
  typename Op::params p{call, schedule, 0, counter, first, {}, {}, {}, {}, {}, false, {}};
  status state;
  // Tensors as (sequence, head, row, head size).
  const auto encode = [&]<class Tile>(tensor_map& to, const auto& view, const char* argument, Tile*) {
    const result<tensor_map> map = make_tile_map<Tile>(view, argument, encoder.value);
    to = map.value;
    state = map.state;
    return state.ok();
  };
  const auto& [q, k, v, dout] = tensors_of_maps<types::is_split>(call);
  constexpr typename types::a_tile* a = nullptr;
  constexpr typename types::b_tile* b = nullptr;
  constexpr typename types::x_tile* x = nullptr;
  constexpr typename types::y_tile* y = nullptr;
  if constexpr (types::rows_are_keys) {
    if (!encode(p.a, k, "k", a) || !encode(p.b, v, "v", b) || !encode(p.x, q, "q", x) || !encode(p.y, dout, "dout", y))
      return state;
  } else {
    if (!encode(p.a, q, "q", a) || !encode(p.b, dout, "dout", b) || !encode(p.x, k, "k", x) || !encode(p.y, v, "v", y))
      return state;
  }
  if constexpr (types::stores_tiles) {
    const auto& dq = call.views.dq;
    p.stores_by_tma = !is_absent(dq) && check_store_map(heads_first(dq), "dq").ok();
    if (p.stores_by_tma && !encode(p.dq, heads_first(dq), "dq", static_cast<typename types::dq_of_warp*>(nullptr)))
      return state;
  }
  p.work_tiles = static_cast<int>(schedule.work_tiles);
  if constexpr (types::adds_dq) {
    const auto& in = call.views.in;
    const int64 tiles = ceil_div(in.q.extent(1), int64{types::columns});
    p.last = backward_schedules::divided_tiles(call, p.work_tiles, static_cast<int>(processors.value), tiles);
    p.work_tiles += (p.work_tiles - p.last.first) * (p.last.parts - 1);
  }
  const int64 blocks = p.work_tiles < processors.value ? p.work_tiles : processors.value;
  return launch(s, {.grid = blocks, .block = Op::max_threads, .dependent = true}, Op{}, p);
}

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
