// SPDX-License-Identifier: MIT
// The kernels of attention_cached, the best one first.
#ifndef GIWA_ATTENTION_CHOOSE_CACHED_CUH
#define GIWA_ATTENTION_CHOOSE_CACHED_CUH

#include <giwa/attention/call/cached.hpp>
#include <giwa/attention/choose/latent_sm90.cuh>
#include <giwa/attention/choose/many_rows_sm90.cuh>
#include <giwa/attention/kernels/simt/cached_simt.cuh>
#include <giwa/attention/kernels/sm80/few_rows_sm80.cuh>
#include <giwa/attention/sums/few_rows_partials.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

template <class T, class Element, class O, class Mask, class Score>
status check_pointers(const cached_params<T, Element, O, Mask, Score>& call) {
  const auto& a = call.views;
  status s = check_named_pointers({{a.q, "q"},
                                   {a.cache.k, "k"},
                                   {a.cache.v, "v"},
                                   {a.o, "o"},
                                   {call.lse, "lse"},
                                   {call.sinks, "sinks"},
                                   {call.prior_o, "prior"},
                                   {call.prior_lse, "prior"},
                                   {call.workspace, "workspace"},
                                   {a.packed.offsets, "q_offsets"},
                                   {a.cache.scales.k, "scales"},
                                   {a.cache.scales.v, "scales"},
                                   {a.cache.lengths, "lengths"},
                                   {a.cache.pages.indices, "pages"},
                                   {a.cache.pages.offsets, "pages"}});
  if constexpr (selects_keys<Mask>)
    if (s.ok()) s = check_named_pointers({{call.mask.indices, "indices"}, {call.mask.counts, "counts"}});
  if constexpr (rotates_queries<Score>) {
    const auto tables = tables_of(call.score.rotary);
    if (s.ok())
      s = check_named_pointers({{call.score.positions.narrow(), "positions"},
                                {call.score.positions.wide(), "positions"},
                                {tables.cos, "cos"},
                                {tables.sin, "sin"}});
  }
  return s;
}

/// The portable kernel: several rows for a block if there are very many.
template <class T, class Element, class O, int HeadSize, int HeadSizeV, class Mask, class Score>
struct cached_simt : candidate {
  using op = cached_simt_op<T, Element, O, HeadSize, HeadSizeV, Mask, Score>;
  using prepared = prepared_kernel<op>;
  static constexpr bool compiled = !element_traits<T>::on_tensor_cores || may_lack_shared_memory || row_format<Element>,
                        asks_gpu = false;

  template <class Call>
  static status make(void* to, const Call& call, const gpu_traits&) {
    constexpr int64 most = 1 << 20;  // blocks
    const int64 rows = op::rows_of_heads(call);
    return prepared::make(to, {.grid = rows < most ? rows : most, .block = op::max_threads}, call);
  }
};

/// The kernel for few rows with tiles of Rows packed rows, and the launch that merges its partials. All tiles give the same
/// bits, so 16 rows, which need less shared memory than 32, suit every call. Packed queries may be more than `max` says: then
/// a sequence has several tiles. Heads: of keys in a tile, 1 or 2.
template <class T, class Element, class O, int HeadSize, int HeadSizeV, class Mask, class Score, int Rows,
          int Heads = 1>
struct cached_few_rows : candidate {
  using call_params = cached_params<T, Element, O, Mask, Score>;
  using policy = stdlib::conditional_t<Heads == 1, few_rows_policy<HeadSize, HeadSizeV, Rows, 2>,
                                       few_rows_pairs_policy<HeadSize, HeadSizeV, Rows, 2>>;
  using few_rows = few_rows_op<T, Element, O, policy, Mask, Score>;
  // Latent rows of 16 bits have another kernel where code for 90a runs.
  static constexpr bool is_latent = stdlib::same_as<T, Element> && may_be_latent(HeadSize, HeadSizeV);
  using op = stdlib::conditional_t<is_latent, no_sm90a_op<few_rows>, few_rows>;
  using merge_op = merge_partials_op<few_rows_partials<call_params>>;
  using merge_many_op = merge_partials_op<few_rows_partials<call_params, true>>;
  struct prepared {
    optional_kernel<prepared_kernel<op>> attention;
    optional_kernel<prepared_kernel<merge_op>> merge;
    optional_kernel<prepared_kernel<merge_many_op>> merge_many;
    status launch(cudaStream_t s) const { return launch_all(s, attention, merge, merge_many); }
  };
  static constexpr bool compiled =
      element_traits<T>::on_tensor_cores && !row_format<Element> &&
      (Heads == 1 || (has_sm90 && takes_pairs_of_heads(HeadSize, HeadSizeV, element_traits<Element>::bytes) &&
                      is_plain_score<Score> && (mask_traits<Mask>::keeps_all || mask_traits<Mask>::is_causal)));
  static constexpr int64 bytes =
      few_rows_bytes(Heads * HeadSize, Heads* HeadSizeV, Rows < 16 ? 16 : Rows, element_traits<Element>::bytes) +
      (Heads - 1) * few_rows_scale_bytes * leaf_keys_of(HeadSize, HeadSizeV, element_traits<Element>::bytes);

  static status suits(const call_params& call) {
    if constexpr (Heads == 2) {
      const auto& cache = call.views.cache;
      const cached_problem p = call.views.problem();
      const bool fits = p.head_size == HeadSize && p.head_size_v == HeadSizeV && pairs_of_heads::suit(cache.k) &&
                        pairs_of_heads::suit(cache.v) && pairs_of_heads_are_faster(p);
      // 4 bits with a scale for each key, 32 x 64(8) x 8192: 116.7 us instead of 104.3 (H200, 2026-11-30).
      const bool is_slower =
          codes_of<Element> > 1 && Rows == 16 &&
          (call.views.differ_in_a_sequence(cache.scales.k) || call.views.differ_in_a_sequence(cache.scales.v));
      return fits && !is_slower && few_rows_tile_of(problem_of_pairs(p)).rows == Rows ? status{} : fits_another_tile;
    }
    return Rows == 16 || few_rows_tile_of(call.views.problem()).rows == Rows ? status{} : fits_another_tile;
  }
  static bool runs_on(const gpu_traits& gpu) {
    return gpu.mma && gpu.shared_bytes >= bytes && (Heads == 1 || gpu.wgmma);
  }

  static status make(void* to, const call_params& of_caller, const gpu_traits& gpu) {
    using types = typename op::types;
    static_assert(shared_bytes_of<op> <= bytes);
    call_params call = of_caller;
    if constexpr (Heads == 2) {
      call.views.cache.k = pairs_of_heads::of(call.views.cache.k);
      call.views.cache.v = pairs_of_heads::of(call.views.cache.v);
      call.heads_per_kv *= 2;
    }
    constexpr few_rows_tile tiles{types::leaf_keys, types::rows, types::columns};
    const split_work work = work_of(call.views.problem(), tiles, knows_leaves(call));
    const split_shape shape = shape_of_call(call, work, gpu.multiprocessors, types::leaf_keys, types::rows);
    const bool early = gpu.wgmma && may_find_early(call, shape, types::leaf_keys, types::rows);
    typename op::params p{.splits = params_of_splits<types>(call, shape, early),
                          .copies = key_copies::elements,
                          .box_rows = types::leaf_keys,
                          .issuers_log2 = 0,
                          .q_aligned = rows_begin_at_16_bytes(call.views.q),
                          .keys_once = call.views.problem().queries * call.heads_per_kv <= types::rows,
                          .k_scales = call.views.differ_in_a_sequence(call.views.cache.scales.k),
                          .v_scales = call.views.differ_in_a_sequence(call.views.cache.scales.v),
                          .k = {},
                          .v = {},
                          .k_strides = scale_strides::of(call.views.cache.scales.k),
                          .v_strides = scale_strides::of(call.views.cache.scales.v)};
    // Nothing that the previous kernel writes is read for this. 128 sequences of 1024 keys 123.7 us instead of 125.5, 32 of 8192 at head
    // size 64 123.2 instead of 124.8 (H200, 2026-11-29).
    p.splits.waits_late = early || (gpu.wgmma && finds_splits_before_wait(call, shape));
    // Pages of 8 keys: 391 us by TMA, 382 by cp.async (H200, 2026-11-23); of 16, among the peers' calls, 252 and 279 (2026-11-30).
    if (const status state = choose_copies<types>(p, gpu.wgmma); !state.ok()) return state;
    // On 9.0 each kernel begins while the one before ends.
    launch_config config{.grid = {shape.columns, shape.splits}, .block = op::max_threads, .dependent = gpu.wgmma};
    auto* const made = ::new (to) prepared;
    if (const status state = made->attention.make(config, p); !state.ok() || shape.slots == 0) return state;
    config.block = merge_op::max_threads;
    if (work.tiles * shape.heads_in_column == 1 && work.tile_leaves > fold_levels::largest_span())
      return made->merge_many.make(config, p.splits);
    return made->merge.make(config, p.splits);
  }
};

template <class T, class Element, class O, int HeadSize, int HeadSizeV, class Mask, class Score>
using prepared_few_rows = prepared_call<cached_few_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score, 32>,
                                        cached_few_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score, 8>,
                                        cached_few_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score, 16>,
                                        cached_simt<T, Element, O, HeadSize, HeadSizeV, Mask, Score>>;

/// The kernel for many rows. A sequence with few rows is not computed there: packed queries may be both, and have another launch.
template <class T, class Element, class O, int HeadSize, int HeadSizeV, class Mask, class Score, class Which>
struct cached_many_rows : candidate {
  using call_params = cached_params<T, Element, O, Mask, Score>;
  struct prepared {
    prepared_many_rows<HeadSize, HeadSizeV, T, O, Mask, Score> many;
    prepared_few_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score> few;
    status launch(cudaStream_t s) const { return launch_all(s, many, few); }
  };
  static constexpr bool compiled = has_sm90 && stdlib::same_as<T, Element> && element_traits<T>::on_tensor_cores &&
                                   stdlib::same_as<Which, any_queries> && has_many_rows(HeadSize, HeadSizeV) &&
                                   !call_params::selects;

  static status suits(const call_params& call) {
    if (!may_have_many_rows(call.views.problem())) return fits_another_tile;
    status s = check_tensor_map(call.views.q, "q");
    if (s.ok()) s = check_tensor_map(heads_first(call.views.cache.k), "k");
    return s.ok() ? check_tensor_map(heads_first(call.views.cache.v), "v") : s;
  }
  static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }
  static status make(void* to, const call_params& call, const gpu_traits& gpu) {
    auto* const made = ::new (to) prepared;
    if (const status state = made->many.make(call, gpu); !state.ok() || !call.views.is_packed()) return state;
    call_params others = call;
    others.most_queries = few_queries_of_sequence;
    return made->few.prepare(others);
  }
};

template <int HeadSize, int HeadSizeV, class Which>
struct stream_cached {
  template <class T, class Element, class O, class Mask, class Score>
  using prepared = prepared_call<cached_many_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score, Which>,
                                 cached_latent_wide<T, Element, O, HeadSize, HeadSizeV, Mask, Score, Which>,
                                 cached_latent<T, Element, O, HeadSize, HeadSizeV, Mask, Score>,
                                 cached_few_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score, 8, 2>,
                                 cached_few_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score, 16, 2>,
                                 cached_few_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score, 32>,
                                 cached_few_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score, 8>,
                                 cached_few_rows<T, Element, O, HeadSize, HeadSizeV, Mask, Score, 16>,
                                 cached_simt<T, Element, O, HeadSize, HeadSizeV, Mask, Score>>;

  template <class Target, class T, class Element, class O, class Mask, class Score>
  static status run(const Target& target, const cached_params<T, Element, O, Mask, Score>& call) {
    return run_call<prepared<T, Element, O, Mask, Score>>(target, call);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
