// SPDX-License-Identifier: MIT
// Prepares the Hopper kernel: tensor maps, clusters, and persistent blocks that pull work tiles from a counter.
#ifndef GIWA_ATTENTION_CHOOSE_FORWARD_SM90_CUH
#define GIWA_ATTENTION_CHOOSE_FORWARD_SM90_CUH

#include <giwa/attention/choose/launch.cuh>
#include <giwa/attention/kernels/sm90/forward_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Returns how many blocks run at once. A block that moves registers takes the whole register file of a multiprocessor,
/// so one block fits, and the occupancy query, which takes microseconds, is skipped.
template <class Op>
result<int64> persistent_blocks(int cluster, const gpu_traits& gpu) {
  if constexpr (Op::consumers == 1)
    return blocks_at_once<Op>(cluster);
  else
    return {gpu.multiprocessors < cluster ? cluster : gpu.multiprocessors / cluster * cluster, {}};
}

/// Encodes the tensor maps of k where v is K-major.
template <class Types, class Params, class Element>
void encode_keys(Params& p, const tensor_view<Element, 4>& k, tensor_map_encoder encoder, status& state) {
  if (!state.ok()) return;
  const int64 rows = k.extent(2), of_group = rows < 4 ? 1 : 4;
  p.keys.groups = static_cast<int>(rows / 4);
  const tensor_view<Element, 5> groups(k.data(),
                                       {k.extent(0), k.extent(1), rows < 4 ? 1 : rows / 4, of_group, k.extent(3)},
                                       {k.stride(0), k.stride(1), 4 * k.stride(2), k.stride(2), k.stride(3)});
  using box = tensor_box<typename Types::k_tile>;
  const result<tensor_map> map =
      make_tensor_map(groups, index<5>{1, 1, Types::block_n / 4, 2, box::columns}, box::pattern, "k", encoder);
  p.k = map.value, state = map.state;
  encode_map<typename Types::k_tile>(p.keys.two_rows, k, "k", encoder, state, 2);
}

/// Encodes the tensor maps of k and v, of q if TMA loads it, and of o if TMA can store it.
template <class Op, class O, class Element>
status encode_maps(typename Op::params& p, const tensor_view<Element, 4>& q, const tensor_view<Element, 4>& k,
                   const tensor_view<Element, 4>& v, const tensor_view<O, 4>& o) {
  using types = typename Op::types;
  const result<tensor_map_encoder> encoder = tensor_map_encoder::find("q");
  status state = encoder.state;
  if constexpr (!types::is_split) encode_map<typename types::q_tile>(p.q, q, "q", encoder.value, state);
  if constexpr (types::k_major_v) {
    encode_keys<types>(p, k, encoder.value, state);
    encode_map<typename types::v_tile>(p.v, v.transposed(2, 3), "v", encoder.value, state);
  } else {
    encode_map<typename types::k_tile>(p.k, k, "k", encoder.value, state);
    encode_map<typename types::loaded_v_tile>(p.v, v, "v", encoder.value, state);
  }
  if constexpr (types::stores_tiles) {
    p.stores_by_tma = check_store_map(o, "o").ok();
    if (p.stores_by_tma) encode_map<typename types::o_rows>(p.o, o, "o", encoder.value, state);
  }
  return state;
}

/// Returns why TMA cannot address one of the tensors, if it cannot.
template <class Element>
status check_tensor_maps(const tensor_view<Element, 4>& q, const tensor_view<Element, 4>& k,
                         const tensor_view<Element, 4>& v) {
  status s = check_tensor_map(q, "q");
  if (s.ok()) s = check_tensor_map(k, "k");
  return s.ok() ? check_tensor_map(v, "v") : s;
}

/// A prepared Hopper kernel.
template <class Op>
struct prepared_sm90 {
  using types = typename Op::types;
  typename Op::params params;
  int64 at_once;  // blocks

  const auto& call() const { return params.call; }

  /// From tensors in the order (sequence, head, row, head size) that pass check_tensor_maps(), but for the unused q of fp32.
  template <class Call, class Element>
  static status make(void* to, const Call& call, const gpu_traits& gpu, const tensor_view<Element, 4>& q,
                     const tensor_view<Element, 4>& k, const tensor_view<Element, 4>& v,
                     const typename types::split_or_nothing& split = {}) {
    // Without a mask and with equal lengths all work tiles cost the same, so blocks need no shared counter.
    const bool equal_work = mask_traits<typename types::mask>::keeps_all && !call.ragged;
    typename types::narrow_tiles tiles;
    if constexpr (types::policy::narrows)
      if (is_narrow_faster(wrapping_product(q.extent(0), q.extent(1)), q.extent(2), Op::block_m, equal_work,
                           gpu.multiprocessors))
        tiles.queries -= 64;
    const bool pairs_up = ceil_div(q.extent(2), int64{tiles.queries}) % 2 == 0;
    const int cluster = types::multicasts && equal_work && pairs_up ? 2 : 1;
    // No sequence has more keys than the tensor has rows, whatever the offsets and lengths on the device are.
    const bool chunked = call.views.k.extent(1) > int64{types::tiles_of_chunk} * types::block_n;
    auto* const made = ::new (to)
        prepared_sm90{{.call = call,
                       .schedule = schedule_of<Op>(call, 1, cluster, tiles.queries, types::policy::section_bytes),
                       .work_tiles = 0,
                       .cluster = cluster,
                       .counter = nullptr,
                       .chunked = chunked,
                       .stores_by_tma = false,
                       .split = split,
                       .q = {},
                       .k = {},
                       .v = {},
                       .o = {},
                       .narrow = {},
                       .keys = {}},
                      max_int64};
    typename Op::params& p = made->params;
    if (const status s = encode_maps<Op>(p, q, k, v, heads_first(call.views.o)); !s.ok()) return s;
    if constexpr (types::policy::narrows) p.narrow = tiles;
    const result<int64> at_once = persistent_blocks<Op>(cluster, gpu);
    p.work_tiles = static_cast<int>(p.schedule.work_tiles < most ? p.schedule.work_tiles : most);
    if (at_once.value < int64{p.work_tiles} * cluster && (equal_work || call.counter != nullptr)) {
      made->at_once = at_once.value;
      p.counter = equal_work ? nullptr : call.counter;
    }
    return at_once.state;
  }

  /// One launch, or several for very many work tiles.
  status launch(cudaStream_t s) const {
    const int64 tiles = params.schedule.work_tiles;
    status state = launch_blocks(s, params);
    if (tiles <= most) return state;
    typename Op::params p = params;
    for (p.schedule.first = most; state.ok() && p.schedule.first < tiles; p.schedule.first += most) {
      p.work_tiles = static_cast<int>(tiles - p.schedule.first < most ? tiles - p.schedule.first : most);
      state = launch_blocks(s, p);
    }
    return state;
  }

 private:
  // Work tiles of a launch, so that their counts, and numbers beyond the last, fit.
  static constexpr int64 most = int64{1} << 20;
  static_assert(most <= int64{work_counter::largest_count});

  status launch_blocks(cudaStream_t s, const typename Op::params& p) const {
    const int64 blocks = int64{p.work_tiles} * p.cluster;
    return enqueue_op(s,
                      {.grid = blocks < at_once ? blocks : at_once,
                       .block = Op::max_threads,
                       .cluster = p.cluster,
                       .dependent = true},
                      Op{}, p);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
