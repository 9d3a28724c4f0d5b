// SPDX-License-Identifier: MIT
// Launches the Hopper kernel: tensor maps, clusters, and persistent blocks that pull work tiles from a counter.
#ifndef GIWA_ATTENTION_FORWARD_LAUNCH_SM90_CUH
#define GIWA_ATTENTION_FORWARD_LAUNCH_SM90_CUH

#include <giwa/attention/forward/forward_sm90.cuh>
#include <giwa/attention/forward/launch.cuh>
#include <giwa/tile/tile_map.hpp>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Returns how many blocks run at once. A block that moves registers takes the whole register file of a multiprocessor,
/// so one block fits, and the occupancy query, which takes microseconds, is skipped.
template <class Op>
result<int64> persistent_blocks(int cluster) {
  if constexpr (Op::consumers == 1) {
    return blocks_at_once<Op>(cluster);
  } else {
    const result<int> device = current_device();
    if (!device.ok()) return {0, device.state};
    const result<int64> processors = attribute(device.value, cudaDevAttrMultiProcessorCount);
    return {processors.value / cluster * cluster, processors.state};
  }
}

/// Encodes the tensor maps of q, k and v, and of o if TMA can store it.
template <class Op, class O, class Element>
status encode_maps(typename Op::params& p, const tensor_view<Element, 4>& q, const tensor_view<Element, 4>& k,
                   const tensor_view<Element, 4>& v, const tensor_view<O, 4>& o) {
  using types = typename Op::types;
  const result<tensor_map_encoder> encoder = tensor_map_encoder::find("q");
  if (!encoder.ok()) return encoder.state;
  status state;
  const auto encode = [&]<class Tile>(tensor_map& to, const auto& view, const char* argument, Tile*) {
    const result<tensor_map> map = make_tile_map<Tile>(view, argument, encoder.value);
    to = map.value;
    state = map.state;
    return state.ok();
  };
  if (!encode(p.q, q, "q", static_cast<typename types::q_tile*>(nullptr)) ||
      !encode(p.k, k, "k", static_cast<typename types::k_tile*>(nullptr)) ||
      !encode(p.v, v, "v", static_cast<typename types::v_tile*>(nullptr)))
    return state;
  if constexpr (types::stores_tiles) {
    p.stores_by_tma = check_store_map(o, "o").ok();
    if (p.stores_by_tma) encode(p.o, o, "o", static_cast<typename types::o_tile*>(nullptr));
  }
  return state;
}

/// Launches the op on tensors in the order (sequence, head, row, head size). Returns false without an error if TMA
/// cannot address them.
template <class Op, class T, class O, class Mask, class Score, class Element>
result<bool> launch_sm90(cudaStream_t s, const attention_params<T, O, Mask, Score>& call,
                         const tensor_view<Element, 4>& q, const tensor_view<Element, 4>& k,
                         const tensor_view<Element, 4>& v, const typename Op::types::split_or_nothing& split = {}) {
  if (!check_tensor_map(q, "q").ok() || !check_tensor_map(k, "k").ok() || !check_tensor_map(v, "v").ok())
    return {false, {}};
  // Without a mask and with equal lengths all work tiles cost the same, so blocks need no shared counter.
  const bool equal_work = stdlib::same_as<Mask, full> && !call.ragged;
  const bool pairs_up = ceil_div(q.extent(2), int64{Op::block_m}) % 2 == 0;
  const int cluster = Op::types::multicasts && equal_work && pairs_up ? 2 : 1;
  // No sequence has more keys than the tensor has rows, whatever the offsets and lengths on the device are.
  const bool chunked = call.views.k.extent(1) > int64{Op::types::tiles_of_chunk} * Op::types::block_n;
  typename Op::params p{.call = call,
                        .schedule = schedule_of<Op>(call, 1, cluster),
                        .work_tiles = 0,
                        .cluster = cluster,
                        .counter = nullptr,
                        .chunked = chunked,
                        .stores_by_tma = false,
                        .split = split,
                        .q = {},
                        .k = {},
                        .v = {},
                        .o = {}};
  status state = encode_maps<Op>(p, q, k, v, heads_first(call.views.o));
  if (!state.ok()) return {false, state};
  const result<int64> at_once = persistent_blocks<Op>(cluster);
  if (!at_once.ok()) return {false, at_once.state};
  constexpr int64 most = int64{1} << 30;  // so that the numbers of work tiles, and steps beyond the last, fit in int
  for (; state.ok() && p.schedule.first < p.schedule.work_tiles; p.schedule.first += most) {
    const int64 left = p.schedule.work_tiles - p.schedule.first;
    p.work_tiles = static_cast<int>(left < most ? left : most);
    int64 blocks = int64{p.work_tiles} * cluster;
    if (at_once.value < blocks && (equal_work || call.counter != nullptr)) {
      blocks = at_once.value;
      p.counter = equal_work ? nullptr : call.counter;
      if (p.counter != nullptr) state = consume(cudaMemsetAsync(p.counter, 0, sizeof(int), s));
      if (!state.ok()) break;
    }
    // After a memset node the kernel cannot begin early; a launch that resets the counter is slower than that node.
    const bool dependent = p.counter == nullptr;
    state = launch(s, {.grid = blocks, .block = Op::max_threads, .cluster = cluster, .dependent = dependent}, Op{}, p);
  }
  return {true, state};
}

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
