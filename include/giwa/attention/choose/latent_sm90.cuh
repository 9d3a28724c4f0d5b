// SPDX-License-Identifier: MIT
// Kernels of latent rows on Hopper.
#ifndef GIWA_ATTENTION_CHOOSE_LATENT_SM90_CUH
#define GIWA_ATTENTION_CHOOSE_LATENT_SM90_CUH

#include <giwa/attention/call/cached.hpp>
#include <giwa/attention/choose/split_launch.cuh>
#include <giwa/attention/kernels/sm90/latent_sm90.cuh>
#include <giwa/attention/kernels/sm90/latent_wide_sm90.cuh>
#include <giwa/attention/sums/few_rows_partials.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// The Hopper kernel for few rows whose values are the first columns of their keys. Sequences with more rows have several tiles.
template <class T, class Element, class O, int HeadSize, int HeadSizeV, class Mask, class Score>
struct cached_latent : candidate {
  using call_params = cached_params<T, Element, O, Mask, Score>;
  using op = latent_op<T, O, few_rows_policy<latent_head_size, latent_head_size_v, latent_rows, 2>, Mask, Score>;
  using merge_op = merge_partials_op<latent_partials<call_params>>;
  struct prepared {
    optional_kernel<prepared_kernel<op>> attention;
    optional_kernel<prepared_kernel<merge_op>> merge;
    status launch(cudaStream_t s) const { return launch_all(s, attention, merge); }
  };
  static constexpr bool compiled = has_sm90 && stdlib::same_as<T, Element> && element_traits<T>::on_tensor_cores &&
                                   may_be_latent(HeadSize, HeadSizeV);

  static status suits(const call_params& call) {
    return values_are_first_columns(call.views.cache) ? status{} : fits_another_tile;
  }
  static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }

  static status make(void* to, const call_params& call, const gpu_traits& gpu) {
    using types = typename op::types;
    static_assert(shared_bytes_of<op> <= 227 * 1024);
    const cached_problem problem = call.views.problem();
    const split_work work = work_of(problem, latent_tile_of(problem), knows_leaves(call));
    const split_shape shape =
        shape_of_call(call, work, latent_splits(work, gpu.multiprocessors), types::leaf_keys, types::rows);
    const bool early = may_find_early(call, shape, types::leaf_keys, types::rows);
    typename op::params p{.splits = params_of_splits<types>(call, shape, early),
                          .copies = key_copies::elements,
                          .box_rows = types::leaf_keys,
                          .issuers_log2 = 0,
                          .q_aligned = rows_begin_at_16_bytes(call.views.q),
                          .keys_once = call.views.problem().queries * call.heads_per_kv <= types::rows,
                          .k = {}};
    if (const status state = choose_copies<types>(p, true, 16); !state.ok()) return state;
    launch_config config{.grid = {shape.columns, shape.splits}, .block = op::max_threads, .dependent = true};
    auto* const made = ::new (to) prepared;
    if (const status state = made->attention.make(config, p); !state.ok() || shape.slots == 0) return state;
    config.block = merge_op::max_threads;
    if (!call.has_prior())
      config.grid = {shape.columns, shape.splits, types::columns / latent_partials<call_params>::columns};
    return made->merge.make(config, p.splits);
  }
};

/// The Hopper kernel for many latent rows. Sequences of packed queries that have few are computed by the one above.
template <class T, class Element, class O, int HeadSize, int HeadSizeV, class Mask, class Score, class Which>
struct cached_latent_wide : candidate {
  using call_params = cached_params<T, Element, O, Mask, Score>;
  using op =
      latent_wide_op<T, O, few_rows_policy<latent_head_size, latent_head_size_v, latent_wide_rows, 2>, Mask, Score>;
  using types = typename op::types;
  using wide_call = typename types::call_params;
  using partials = latent_partials<wide_call>;
  using merge_op = merge_partials_op<partials>;
  using narrow = cached_latent<T, Element, O, HeadSize, HeadSizeV, Mask, Score>;
  struct prepared {
    optional_kernel<prepared_kernel<op>> attention;
    optional_kernel<prepared_kernel<merge_op>> merge;
    prepared_call<narrow> few;
    status launch(cudaStream_t s) const { return launch_all(s, attention, merge, few); }
  };
  static constexpr bool compiled = narrow::compiled && stdlib::same_as<Which, any_queries>;

  static status suits(const call_params& call) {
    const cached_problem problem = call.views.problem();
    return problem.queries > latent_few_queries(problem) ? narrow::suits(call) : fits_another_tile;
  }
  static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }

  static status make(void* to, const call_params& call, const gpu_traits& gpu) {
    static_assert(shared_bytes_of<op> <= 227 * 1024);
    const cached_problem problem = call.views.problem();
    const bool packed = call.views.is_packed();
    const int few_queries = packed ? latent_few_queries(problem) : 0;
    const split_work work = latent_wide_work(problem, knows_leaves(call));
    const int64 tiles = work.kv_heads / problem.kv_heads;
    const int walk_rows = packed ? types::rows : 2147483647;
    const split_shape shape =
        shape_of_call(call, work, latent_splits(work, gpu.multiprocessors), latent_wide_leaf_keys, walk_rows);
    typename op::params p{.splits = {{{call, few_queries},
                                      shape,
                                      reinterpret_cast<float*>(call.workspace),
                                      fast_divisor(call.heads_per_kv),
                                      latent_wide_leaf_keys,
                                      walk_rows,
                                      types::columns,
                                      false},
                                     types::rows,
                                     packed ? 0 : static_cast<int>(tiles)},
                          .copies = key_copies::elements,
                          .box_rows = types::leaf_keys,
                          .issuers_log2 = 0,
                          .q_aligned = rows_begin_at_16_bytes(call.views.q),
                          .k = {}};
    if (const status state = choose_copies<types>(p, true, 16); !state.ok()) return state;
    launch_config config{.grid = {shape.columns, shape.splits}, .block = op::max_threads, .dependent = true};
    auto* const made = ::new (to) prepared;
    if (const status state = made->attention.make(config, p); !state.ok()) return state;
    if (few_queries > 0) {
      call_params others = call;
      others.most_queries = few_queries;
      if (const status state = made->few.prepare(others, gpu); !state.ok()) return state;
    }
    if (shape.slots == 0) return {};
    config.block = merge_op::max_threads;
    if (!call.has_prior()) config.grid = {shape.columns, shape.splits, types::columns / partials::columns};
    return made->merge.make(config, p.splits);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
