// SPDX-License-Identifier: MIT
// Prepares the kernel for many rows: tensor maps, persistent blocks, and the launch that merges partials.
#ifndef GIWA_ATTENTION_CHOOSE_MANY_ROWS_SM90_CUH
#define GIWA_ATTENTION_CHOOSE_MANY_ROWS_SM90_CUH

#include <giwa/attention/choose/split_launch.cuh>
#include <giwa/attention/kernels/sm90/many_rows_sm90.cuh>
#include <giwa/attention/sums/many_rows_partials.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Encodes the tensor maps: q in boxes of a consumer's queries and heads, k and v in boxes of rows of one page.
template <class Types, class Params>
status encode_maps_of_cache(Params& p) {
  const auto& views = p.call.views;
  const result<tensor_map_encoder> encoder = tensor_map_encoder::find("q");
  if (!encoder.ok()) return encoder.state;
  using box = tensor_box<typename Types::q_tile>;
  const giwa::index<4> of_q{1, p.shape.tile.queries, p.shape.tile.heads, box::columns};
  const int rows = p.box_rows;
  const auto q = make_tensor_map(views.q, of_q, box::pattern, "q", encoder.value);
  status state = q.state;
  p.q = q.value;
  encode_map<typename Types::k_tile>(p.k, heads_first(views.cache.k), "k", encoder.value, state, rows);
  encode_map<typename Types::v_tile>(p.v, heads_first(views.cache.v), "v", encoder.value, state, rows);
  if constexpr (Types::stores_tiles)
    if (check_store_map(views.o, "o").ok()) {
      using o_box = tensor_box<typename Types::o_tile>;
      const giwa::index<4> of_o{1, p.shape.tile.queries, p.shape.tile.heads, o_box::columns};
      const auto o = make_tensor_map(views.o, of_o, o_box::pattern, "o", encoder.value);
      p.o = o.value, p.o_by_tma = o.ok();
    }
  return state;
}

/// The kernel for many rows, and the launch that merges the partials of divided work tiles. For views that TMA can address.
template <int HeadSize, int HeadSizeV, class T, class O, class Mask, class Score>
class prepared_many_rows {
  using call_params = cached_params<T, T, O, Mask, Score>;
  using op = many_rows_op<T, O, many_rows_policy<HeadSize, HeadSizeV>, Mask, Score>;
  using merge_op = merge_partials_op<many_rows_partials<call_params, Mask, Score>>;
  optional_kernel<prepared_kernel<op>> attention_;
  optional_kernel<prepared_kernel<merge_op>> merge_;

 public:
  status make(const call_params& call, const gpu_traits& gpu) {
    using types = typename op::types;
    const auto& views = call.views;
    const int page_rows = static_cast<int>(call.page_size.divisor());
    const int box_rows =
        views.is_paged() ? common_power_of_two(page_rows, types::block_n, types::block_n) : types::block_n;
    // A thread takes some 100 cycles to start a box: 1024 queries and 8192 keys in pages of 1 key take 3060 us by TMA and 500 by
    // cp.async (H200, 2026-11-23).
    const bool by_chunks = box_rows < types::least_box_rows;
    const many_rows_shape shape =
        shape_of_many_rows(views.problem(), static_cast<int>(gpu.multiprocessors),
                           call.workspace == nullptr ? 0 : call.workspace_bytes, types::multicasts && !by_chunks);
    const group_mask<Mask> mask{call.mask, call.heads_per_kv};
    const many_rows_params<call_params> both{
        call,        shape,         fast_divisor(shape.tile.heads), reinterpret_cast<float*>(call.workspace),
        op::block_m, types::columns};
    typename op::params p{both,  mask, box_rows, page_rows, by_chunks, rows_begin_at_16_bytes(views.o),
                          false, {},   {},       {},        {}};
    if (const status state = encode_maps_of_cache<types>(p); !state.ok()) return state;
    // Each kernel begins while the one before ends.
    launch_config config{
        .grid = int64{shape.blocks} * shape.cluster, .block = op::max_threads, .cluster = shape.cluster};
    config.dependent = true;
    if (const status state = attention_.make(config, p); !state.ok() || shape.slots == 0) return state;
    config.grid = shape.slots < 4 * int64{shape.blocks} ? shape.slots : 4 * int64{shape.blocks};
    config.block = merge_op::max_threads, config.cluster = 1;
    return merge_.make(config, typename merge_op::params{both, mask});
  }
  status launch(cudaStream_t s) const { return launch_all(s, attention_, merge_); }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
