// SPDX-License-Identifier: MIT
// Prepares launches of splits of a cache: their shape, and how they copy keys and values.
#ifndef GIWA_ATTENTION_CHOOSE_SPLIT_LAUNCH_CUH
#define GIWA_ATTENTION_CHOOSE_SPLIT_LAUNCH_CUH

#include <giwa/attention/choose/launch.cuh>
#include <giwa/attention/kernels/sm80/few_rows_types_sm80.cuh>
#include <giwa/attention/work/cached_workspace.hpp>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Whether rows of a view begin at multiples of 16 bytes.
template <class T>
bool rows_begin_at_16_bytes(const tensor_view<T, 4>& v) {
  bool aligned = reinterpret_cast<uint64>(v.data()) % 16 == 0;
  for (int d = 0; d < 3; ++d) aligned = aligned && (v.extent(d) == 1 || v.stride(d) * int64{sizeof(T)} % 16 == 0);
  return aligned;
}

/// The splits of a call for `most` of them or multiprocessors: alike where the host knows all lengths.
template <class Call, class Most>
split_shape shape_of_call(const Call& call, split_work work, const Most& most, int leaf_keys, int tile_rows) {
  const int64 available = call.workspace == nullptr ? 0 : call.workspace_bytes;
  if (!work.exact) return shape_of_splits(work, most, available);
  const cached_sequence first = call.at(0);
  const sequence_leaves leaves = leaves_of(call, first, leaf_keys, tile_rows);
  work.tile_leaves = leaves.count();
  split_shape shape = shape_of_splits(work, most, available);
  shape.set_alike(first, leaves, work.sequences);
  return shape;
}
/// Whether the host knows the leaves of a call whose lengths it knows.
template <class Params>
bool knows_leaves(const Params& call) {
  using mask = stdlib::remove_cvref_t<decltype(call.mask)>;
  return !call.is_ragged() && (!mask_bounds_leaves<mask> || mask_traits<mask>::known_on_host(call.mask));
}
/// Whether the host knows so much of the splits that blocks find theirs without what the previous kernel writes.
template <class Params>
bool finds_splits_before_wait(const Params& call, const split_shape& shape) {
  using mask = stdlib::remove_cvref_t<decltype(call.mask)>;
  return shape.total > 0 && (Params::selects || mask_traits<mask>::known_on_host(call.mask));
}
/// The parameters of splits whose leaves and tiles are those of `Types`.
template <class Types, class Call>
split_params<Call> params_of_splits(const Call& call, const split_shape& shape, bool early) {
  return {call,
          shape,
          reinterpret_cast<float*>(call.workspace),
          fast_divisor(call.heads_per_kv),
          Types::leaf_keys,
          Types::rows,
          Types::columns,
          early};
}

/// Chooses TMA where it can address the cache, and the kernel has boxes, with boxes of 16 rows or more; they are pages or parts of them.
template <class Types>
status choose_copies(typename Types::params& p, bool has_tma) {
  const auto& views = p.splits.call.views;
  constexpr bool copies_v = !Types::values_are_keys;
  if (rows_begin_at_16_bytes(views.cache.k) && (!copies_v || rows_begin_at_16_bytes(views.cache.v)))
    p.copies = key_copies::chunks;
  if constexpr (Types::has_boxes) {
    const auto k = heads_first(views.cache.k), v = heads_first(views.cache.v);
    if (views.is_paged())
      p.box_rows = common_power_of_two(static_cast<int>(views.cache.k.extent(1)), 0, Types::leaf_keys);
    if (!has_tma || p.box_rows < 16 || !check_tensor_map(k, "k").ok()) return {};
    if (copies_v && !check_tensor_map(v, "v").ok()) return {};
    const result<tensor_map_encoder> encoder = tensor_map_encoder::find("k");
    status state = encoder.state;
    const auto promotion = l2_promotion::bytes_128;
    encode_map<typename Types::k_tile>(p.k, k, "k", encoder.value, state, p.box_rows, promotion);
    if constexpr (copies_v)
      encode_map<typename Types::v_tile>(p.v, v, "v", encoder.value, state, p.box_rows, promotion);
    p.copies = key_copies::boxes;
    // A warp takes some 70 cycles to start a box. 32 sequences of 8192 keys in pages of 16: 248 us with four warps, 269 with one
    // (H200, 2026-11-23).
    p.issuers_log2 = p.box_rows < Types::leaf_keys ? 2 : 0;
    return state;
  }
  return {};
}

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
