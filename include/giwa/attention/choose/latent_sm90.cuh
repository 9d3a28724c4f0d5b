// SPDX-License-Identifier: MIT
// Kernels of latent rows on Hopper.
#ifndef GIWA_ATTENTION_CHOOSE_LATENT_SM90_CUH
#define GIWA_ATTENTION_CHOOSE_LATENT_SM90_CUH

#include <giwa/attention/call/cached.hpp>
#include <giwa/attention/choose/split_launch.cuh>
#include <giwa/attention/kernels/sm90/latent_sm90.cuh>
#include <giwa/attention/kernels/sm90/latent_wide_sm90.cuh>
#include <giwa/attention/sums/row_tile_partials.cuh>
#include <giwa/attention/sums/sequence_partials.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// The second launch, and that for few sequences.
template <class Call>
struct latent_merges {
  using usual = merge_partials_op<latent_partials<Call>>;
  using few = merge_sequences_op<Call>;
};
/// That of partials that are merged in order.
template <class Call>
  requires merges_in_order<Call>
struct latent_merges<Call> {
  using usual = merge_row_tiles_op<Call, latent_head_size_v>;
  using few = usual;
};

/// The kernel, and the launch that merges its partials.
template <class Op, class Call>
struct prepared_latent {
  using merge_op = typename latent_merges<Call>::usual;
  using merge_few_op = typename latent_merges<Call>::few;
  optional_kernel<prepared_kernel<Op>> attention;
  optional_kernel<prepared_kernel<merge_op>> merge;
  optional_kernel<prepared_kernel<merge_few_op>> merge_few;

  status make(typename Op::params& p, const split_work& work, [[maybe_unused]] int64 multiprocessors) {
    using types = typename Op::types;
    static_assert(shared_bytes_of<Op> <= 227 * 1024);
    if (const status state = choose_copies<types>(p, true); !state.ok()) return state;
    const split_shape& shape = p.splits.shape;
    launch_config config{.grid = {shape.columns, shape.splits}, .block = Op::max_threads, .dependent = true};
    if (const status state = attention.make(config, p); !state.ok() || shape.slots == 0) return state;
    config.block = merge_op::max_threads;
    if constexpr (merges_in_order<Call>) {
      // As many blocks as fit on the multiprocessors that the first launch leaves: they are there before it ends. Else two on each.
      const int64 splits = int64{shape.columns} * shape.splits, left = 2 * (multiprocessors - splits);
      const int64 most = left >= splits ? left : 2 * multiprocessors;
      int64 shares = 1;
      while (2 * shares * splits <= most) shares *= 2;
      config.grid = {shape.columns, shape.splits, shares};
    } else {
      if (!p.splits.call.has_prior())
        config.grid = {shape.columns, shape.splits, types::columns / latent_partials<Call>::columns};
      if ((p.splits.early || (shape.total > 0 && shape.leaves.row_tiles == 1)) &&
          shape.columns * shape.heads_in_column == 1 && work.sequences <= 8) {
        // Two blocks a multiprocessor where splits are no whole nodes, of which a row has more partials: 3 x 10048 24.4 us instead of
        // 29.9, but 3 x 1024 11.0 instead of 10.0 (H200, 2026-11-30).
        const int64 most = are_whole_nodes(shape.most_leaves, work.tile_leaves) ? 128 : 256;
        int64 shares = 1;
        if (!p.splits.call.has_prior())
          while (shares < 16 && 2 * shares * shape.rows * work.sequences <= most) shares *= 2;
        config.block = merge_few_op::max_threads;
        config.grid = {shares, shape.rows, work.sequences};
        return merge_few.make(config, p.splits);
      }
    }
    return merge.make(config, p.splits);
  }
  status launch(cudaStream_t s) const { return launch_all(s, attention, merge, merge_few); }
};

/// The Hopper kernel for few rows whose values are the first columns of their keys. Sequences with more rows have several tiles.
template <class T, class Element, class O, int HeadSize, int HeadSizeV, class Mask, class Score>
struct cached_latent : candidate {
  using call_params = cached_params<T, Element, O, Mask, Score>;
  using op =
      latent_op<T, Element, O, few_rows_policy<latent_head_size, latent_head_size_v, latent_rows, 2>, Mask, Score>;
  using prepared = prepared_latent<op, call_params>;
  static constexpr bool compiled =
      has_sm90 && (stdlib::same_as<T, Element> || latent_format<Element>)&&element_traits<T>::on_tensor_cores &&
      may_be_latent(HeadSize, HeadSizeV);

  static status suits(const call_params& call) {
    return values_are_first_columns(call.views.cache) ? status{} : fits_another_tile;
  }
  static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }

  static status make(void* to, const call_params& call, const gpu_traits& gpu) {
    using types = typename op::types;
    const cached_problem problem = call.problem();
    const split_work work = latent_work(problem, knows_leaves(call));
    split_shape shape =
        shape_of_call(call, work, latent_splits(work, gpu.multiprocessors), types::leaf_keys, types::rows);
    // 128 x 1024 keys, 16 heads, 46.9 us instead of 50.6; 1 x 32768 21.3 instead of 20.6 (H200, 2026-11-30).
    const bool early = may_find_early(call, shape, types::leaf_keys, types::rows, types::early_sequences);
    if (const int64 each = ceil_div(work.sequences, int64{shape.splits});
        early && work.kv_heads == 1 && work.sequences > 32 && 3 * ceil_div(work.sequences, each) >= 2 * shape.splits) {
      shape.early_tiles = static_cast<int>(each);
      // Few leaves: then the host knows that there is nothing to merge.
      if (shape.whole_tiles > 0 && each * work.tile_leaves <= 16) shape.slots = 0;
    }
    typename op::params p{.splits = params_of_splits<types>(call, shape, early),
                          .copies = key_copies::elements,
                          .box_rows = types::leaf_keys,
                          .issuers_log2 = 0,
                          .q_aligned = rows_begin_at_16_bytes(call.views.q),
                          .keys_once = call.views.problem().queries * call.heads_per_kv <= types::rows &&
                                       (!call_params::selects || call.views.q.extent(1) == 1),
                          .k = {}};
    p.splits.waits_late = early || finds_splits_before_wait(call, shape);
    return (::new (to) prepared)->make(p, work, gpu.multiprocessors);
  }
};

/// The Hopper kernel for many latent rows. Sequences of packed queries that have few are computed by the one above.
template <class T, class Element, class O, int HeadSize, int HeadSizeV, class Mask, class Score, class Which>
struct cached_latent_wide : candidate {
  using call_params = cached_params<T, Element, O, Mask, Score>;
  using op = latent_wide_op<T, Element, O, few_rows_policy<latent_head_size, latent_head_size_v, latent_wide_rows, 2>,
                            Mask, Score>;
  using types = typename op::types;
  using wide_call = typename types::call_params;
  using narrow = cached_latent<T, Element, O, HeadSize, HeadSizeV, Mask, Score>;
  struct prepared {
    prepared_latent<op, wide_call> many;
    prepared_call<narrow> few;
    status launch(cudaStream_t s) const { return launch_all(s, many, few); }
  };
  static constexpr bool compiled = narrow::compiled && stdlib::same_as<Which, any_queries>;

  static status suits(const call_params& call) {
    const cached_problem problem = call.problem();
    return problem.queries > latent_few_queries(problem) ? narrow::suits(call) : fits_another_tile;
  }
  static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }

  static status make(void* to, const call_params& call, const gpu_traits& gpu) {
    const cached_problem problem = call.problem();
    const bool packed = call.views.is_packed();
    const int few_queries = packed ? latent_few_queries(problem) : 0;
    const int leaf_keys = latent_wide_leaf(problem, gpu.multiprocessors);
    const split_work work = latent_wide_work(problem, leaf_keys, knows_leaves(call));
    const int64 tiles = work.kv_heads / problem.kv_heads;
    const int walk_rows = packed ? types::rows : 2147483647;
    const split_shape shape = shape_of_call(call, work, latent_splits(work, gpu.multiprocessors), leaf_keys, walk_rows);
    typename op::params p{
        .splits = {{{call, few_queries},
                    shape,
                    reinterpret_cast<float*>(call.workspace),
                    fast_divisor(call.heads_per_kv),
                    leaf_keys,
                    walk_rows,
                    types::columns,
                    may_find_early(call, shape, leaf_keys, walk_rows)},
                   types::rows,
                   packed ? 0 : static_cast<int>(tiles)},
        .copies = key_copies::elements,
        .box_rows = types::leaf_keys,
        .issuers_log2 = 0,
        .q_aligned = rows_begin_at_16_bytes(call.views.q),
        // In three slots of the work tile that a split begins, of which it hands on only the one before these (ordered_partials).
        .sums_in_workspace = shape.slots > 0 && 3 * partial_slot::floats(shape.rows, types::columns) >=
                                                    int64{types::rows} * types::columns,
        .k = {}};
    auto* const made = ::new (to) prepared;
    if (const status state = made->many.make(p, work, gpu.multiprocessors); !state.ok() || few_queries == 0)
      return state;
    call_params others = call;
    others.most_queries = few_queries;
    return made->few.prepare(others, gpu);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
