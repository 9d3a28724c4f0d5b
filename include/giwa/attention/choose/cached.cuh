// SPDX-License-Identifier: MIT
// attention_cached on a stream: chooses the kernel, the way keys are copied, and the shape of the runs.
#ifndef GIWA_ATTENTION_CHOOSE_CACHED_CUH
#define GIWA_ATTENTION_CHOOSE_CACHED_CUH

#include <giwa/attention/call/cached.hpp>
#include <giwa/attention/choose/many_rows_sm90.cuh>
#include <giwa/attention/kernels/simt/cached_simt.cuh>
#include <giwa/attention/kernels/sm80/few_rows_sm80.cuh>
#include <giwa/attention/kernels/sm80/merge_runs_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Checks that the kernel may use the pointers of a call. The failure names the argument.
template <class Params>
status check_cached_pointers(const Params& call) {
  const auto& a = call.views;
  pointer_checks pointers;
  const auto fails = [&](const auto& x, const char* argument) { return pointers.fails(x, argument); };
  static_cast<void>(fails(a.q, "q") || fails(a.cache.k, "k") || fails(a.cache.v, "v") || fails(a.o, "o") ||
                    fails(call.lse, "lse") || fails(call.sinks, "sinks") || fails(call.prior_o, "prior") ||
                    fails(call.prior_lse, "prior") || fails(call.workspace, "workspace") ||
                    fails(a.packed.offsets, "queries") || fails(a.cache.scales.k, "scales") ||
                    fails(a.cache.scales.v, "scales") || fails(a.cache.lengths, "lengths") ||
                    fails(a.cache.pages.indices, "pages") || fails(a.cache.pages.offsets, "pages"));
  return pointers.state();
}

template <int HeadSize, int HeadSizeV, class Which>
struct stream_cached {
  template <class T, class Element, class O, class Mask, class Score>
  static status run(cudaStream_t s, const cached_params<T, Element, O, Mask, Score>& call) {
    if (const status state = check_cached_pointers(call); !state.ok()) return state;
    if constexpr (element_traits<T>::on_tensor_cores)
      return run_16_bits(s, call);
    else
      return run_simt(s, call);
  }

 private:
  // GPUs of capability 9.0 to 11.x have the shared memory that the kernel for few rows needs; not all others do.
  static constexpr bool may_lack_shared_memory = compiled_for(0, 900) || compiled_for(1200, 1 << 20);

  // A sequence with many rows has its own launch, another one is not computed there. Packed queries may be both.
  template <class T, class Element, class O, class Mask, class Score>
  static status run_16_bits(cudaStream_t s, const cached_params<T, Element, O, Mask, Score>& call) {
    const result<attention_path> path = path_here();
    if (!path.ok()) return path.state;
    if constexpr (has_sm90 && stdlib::same_as<T, Element> && stdlib::same_as<Which, any_queries> &&
                  has_many_rows(HeadSize, HeadSizeV))
      if (path.value == attention_path::sm90 && may_have_many_rows(call.views.problem())) {
        const result<bool> launched = launch_many_rows<HeadSize, HeadSizeV>(s, call);
        if (!launched.ok() || (launched.value && !call.views.is_packed())) return launched.state;
        if (launched.value) {
          cached_params<T, T, O, Mask, Score> others = call;
          others.most_queries = few_queries_of_sequence;
          return run_few_rows(s, others, path.value);
        }
      }
    return run_few_rows(s, call, path.value);
  }

  // Both tiles give the same bits. Packed queries may be more than `most` says: then a sequence has several tiles.
  template <class T, class Element, class O, class Mask, class Score>
  static status run_few_rows(cudaStream_t s, const cached_params<T, Element, O, Mask, Score>& call,
                             attention_path path) {
    int rows = run_tiles_of(call.views.problem()).rows;
    if constexpr (may_lack_shared_memory) {
      const result<bool> fits_16 = has_shared_bytes(few_rows_bytes(HeadSize, HeadSizeV, 16, sizeof(Element))),
                         fits_32 = has_shared_bytes(few_rows_bytes(HeadSize, HeadSizeV, 32, sizeof(Element)));
      if (!fits_16.ok()) return fits_16.state;
      if (!fits_16.value || path == attention_path::simt) return run_simt(s, call);
      if (!fits_32.value) rows = 16;
    }
    return rows == 16 ? run_rows<16>(s, call, path) : run_rows<32>(s, call, path);
  }

  template <class T, class Element, class O, class Mask, class Score>
  static status run_simt(cudaStream_t s, const cached_params<T, Element, O, Mask, Score>& call) {
    using op = cached_simt_op<T, Element, O, HeadSize, HeadSizeV, Mask, Score>;
    constexpr int64 most = 1 << 20;  // blocks: each computes several rows if there are more
    const int64 rows = op::rows_of_heads(call);
    return launch(s, {.grid = rows < most ? rows : most, .block = op::max_threads}, op{}, call);
  }

  template <int Rows, class Params>
  static status run_rows(cudaStream_t s, const Params& call, attention_path path) {
    return launch_both<few_rows_policy<HeadSize, HeadSizeV, Rows, 2>>(s, call, path);
  }

  template <class Policy, class T, class Element, class O, class Mask, class Score>
  static status launch_both(cudaStream_t s, const cached_params<T, Element, O, Mask, Score>& call,
                            attention_path path) {
    using op = few_rows_op<T, Element, O, Policy, Mask, Score>;
    using types = typename op::types;
    static_assert(shared_bytes_of<op> <= few_rows_bytes(HeadSize, HeadSizeV, types::rows, sizeof(Element)));
    const result<int> device = current_device();
    if (!device.ok()) return device.state;
    const result<int64> processors = attribute(device.value, cudaDevAttrMultiProcessorCount);
    if (!processors.ok()) return processors.state;
    const run_work work = work_of<types>(call);
    run_shape shape = shape_of_runs(work, processors.value, call.workspace == nullptr ? 0 : call.workspace_bytes);
    if (work.exact) {
      const cached_sequence first = call.at(0);
      const sequence_leaves l = leaves_of(call, first, types::leaf_keys, types::rows);
      shape.set_alike(first, l, work.sequences);
    }
    using run_parameters = run_params<cached_params<T, Element, O, Mask, Score>>;
    typename op::params p{
        .runs =
            run_parameters{call, shape, reinterpret_cast<float*>(call.workspace), fast_divisor(call.heads_per_kv),
                           types::leaf_keys, types::rows, types::columns,
                           path == attention_path::sm90 && may_find_early(call, shape, types::leaf_keys, types::rows)},
        .copies = key_copies::elements,
        .box_rows = types::leaf_keys,
        .issuers_log2 = 0,
        .q_aligned = rows_begin_at_16_bytes(call.views.q),
        .keys_once = call.views.problem().queries * call.heads_per_kv <= types::rows,
        .k_scales = call.views.differ_in_a_sequence(call.views.cache.scales.k),
        .v_scales = call.views.differ_in_a_sequence(call.views.cache.scales.v),
        .k = {},
        .v = {}};
    if (const status state = choose_copies<types>(p, path); !state.ok()) return state;
    launch_config config{.grid = {shape.columns, shape.runs}, .block = op::max_threads};
    config.dependent = path == attention_path::sm90;  // each kernel begins while the one before ends
    if (const status state = launch(s, config, op{}, p); !state.ok() || shape.states == 0) return state;
    using merge = merge_runs_op<cached_params<T, Element, O, Mask, Score>>;
    config.block = merge::max_threads;
    return launch(s, config, merge{}, p.runs);
  }

  template <class Types, class Params>
  static run_work work_of(const Params& call) {
    constexpr run_tiles tiles{Types::leaf_keys, Types::rows, Types::columns};
    const bool exact = !call.is_ragged() && !mask_bounds_leaves<stdlib::remove_cvref_t<decltype(call.mask)>>;
    return detail::work_of(call.views.problem(), tiles, exact);
  }

  /// TMA where it can address the cache; its boxes are pages or parts of them.
  template <class Types, class Params>
  static status choose_copies(Params& p, attention_path path) {
    const auto& cache = p.runs.call.views.cache;
    const auto k = heads_first(cache.k), v = heads_first(cache.v);
    if (rows_begin_at_16_bytes(cache.k) && rows_begin_at_16_bytes(cache.v)) p.copies = key_copies::chunks;
    if (p.runs.call.views.is_paged())
      p.box_rows = common_power_of_two(static_cast<int>(cache.k.extent(1)), 0, Types::leaf_keys);
    if (path != attention_path::sm90 || p.box_rows < least_box_rows || !check_tensor_map(k, "k").ok() ||
        !check_tensor_map(v, "v").ok())
      return {};
    const result<tensor_map_encoder> encoder = tensor_map_encoder::find("k");
    if (!encoder.ok()) return encoder.state;
    const auto of_k = make_tile_map<typename Types::k_tile>(k, "k", encoder.value, p.box_rows, l2_promotion::bytes_128);
    const auto of_v = make_tile_map<typename Types::v_tile>(v, "v", encoder.value, p.box_rows, l2_promotion::bytes_128);
    p.k = of_k.value, p.v = of_v.value;
    p.copies = key_copies::boxes;
    // A warp takes some 70 cycles to start a box. 32 sequences of 8192 keys in pages of 16: 248 us with four warps, 269 with one
    // (H200, 2026-11-23).
    p.issuers_log2 = p.box_rows < Types::leaf_keys ? 2 : 0;
    return of_k.ok() ? of_v.state : of_k.state;
  }
  static constexpr int least_box_rows = 16;  // with pages of 8 keys TMA is slower than cp.async: 391 us instead of 382
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
