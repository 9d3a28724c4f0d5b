// SPDX-License-Identifier: MIT
// append_to_cache and read_cache on a stream: a thread has two runs of 16 bytes of some heads of a row, or one of k and v.
#ifndef GIWA_ATTENTION_APPEND_APPEND_CUH
#define GIWA_ATTENTION_APPEND_APPEND_CUH

#include <giwa/arch/convert_fp8.cuh>
#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/append/append_with_scales.hpp>
#include <giwa/attention/call/append.hpp>
#include <giwa/attention/call/read_cache.hpp>
#include <giwa/device/pointer.hpp>
#include <giwa/grid/for_all.cuh>
#include <giwa/grid/launch.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Appends rows, `Count` elements at once. Neighbouring threads have neighbouring units of a head, then other heads, then
/// other rows.
template <class T, class Element, class Rotary, int Count>
struct append_op {
  static constexpr int max_threads = 256, min_blocks = 2;

  using params = append_params<T, Element, Rotary>;
  static constexpr bool params_go_as_bytes = goes_as_bytes<Rotary>;
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    for (const int64 i : grid_stride(block, threads(p))) {
      const int64 head = i / p.units, row = head / p.slices;
      append_slice<Count>(p, row, static_cast<int>(head - row * p.slices.divisor()),
                          static_cast<int>(i - head * p.units.divisor()));
    }
  }

  GIWA_HOST_DEVICE static int64 threads(const params& p) { return p.rows * p.slices.divisor() * p.units.divisor(); }
};

/// Appends rows to a cache whose scales it finds: a team of lanes, one for each unit of a head up to 32, has some heads of a row.
template <class T, class Element, class Rotary, int Count>
struct append_with_scales_op {
  static constexpr int max_threads = 256, min_blocks = 2;

  using params = append_params<T, Element, Rotary>;
  static constexpr bool params_go_as_bytes = goes_as_bytes<Rotary>;
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    const int lanes = lanes_of(p), teams = block.size() / lanes;
    const int64 count = p.rows * p.slices.divisor(), step = block.block_count() * teams;
    int64 of_warp = block.block_rank() * teams + block.warp() * (32 / lanes);  // the same in all lanes of a warp
    for (; of_warp < count; of_warp += step)
      append_with_scales<Count, 1>(lanes_of_warp<Block>{block, lanes}, p, of_warp + block.lane() / lanes, count);
  }

  GIWA_HOST_DEVICE static int lanes_of(const params& p) {
    int lanes = 1;
    while (lanes < 32 && lanes < p.units.divisor()) lanes *= 2;
    return lanes;
  }
  GIWA_HOST_DEVICE static int64 threads(const params& p) { return p.rows * p.slices.divisor() * lanes_of(p); }
};

/// Few rows are shared by many threads; with many rows, a thread computes its rotations once for up to 8 heads.
template <class Op, int Count, class T, class Element, class Rotary>
typename Op::params append_op_params(const append_views<T, Element>& a, const Rotary& rotary) {
  constexpr int64 enough = 1 << 18;  // threads, about those that a GPU runs at once
  auto p = append_params_of<Count>(a, rotary, 1);
  for (int64 heads = 8; heads > 1; heads /= 2)
    if (const auto q = append_params_of<Count>(a, rotary, heads); Op::threads(q) >= enough) return q;
  return p;
}

#if defined(__CUDA_ARCH__)
GIWA_DEVICE inline void widen_four(const element_run<e4m3, 4>& from, float* to) {
  uint32 pair[2];
  arch::e4m3_to_fp16(from.bits, pair);
  GIWA_UNROLL
  for (int i = 0; i < 4; ++i) to[i] = convert<float>{}(reinterpret_cast<const fp16*>(pair)[i]);
}
#endif

inline namespace GIWA_ARCH_TAG {

template <class Rotary>
struct stream_append {
  template <class T, class Element>
  static status run(cudaStream_t s, const append_views<T, Element>& a, const Rotary& rotary) {
    status bad;
    const auto fails = [&](const auto& view, const char* argument) {
      bad = check_named_pointers({{view, argument}});
      return !bad.ok();
    };
    if (any_append_input(a, rotary, a.needs_sequences(rotary.size > 0), fails) || fails(a.cache.k, "k") ||
        (a.has_v() && fails(a.cache.v, "v")) || fails(a.q, "q") || fails(a.q_to, "q_to") ||
        fails(a.k_scales, "k_scales") || fails(a.v_scales, "v_scales"))
      return bad;
    constexpr int count = 16 / static_cast<int>(sizeof(T));
    return append_fits<count>(a, rotary) ? launch_op<count>(s, a, rotary) : launch_op<codes_of<Element>>(s, a, rotary);
  }

 private:
  template <int Count, class T, class Element>
  static status launch_op(cudaStream_t s, const append_views<T, Element>& a, const Rotary& rotary) {
    if constexpr (scaled_element<Element>)
      if (a.finds_scales()) {
        using op = append_with_scales_op<T, Element, Rotary, Count>;
        return launch_rows<op>(s, append_op_params<op, Count>(a, rotary));
      }
    using op = append_op<T, Element, Rotary, Count>;
    return launch_rows<op>(s, append_op_params<op, Count>(a, rotary));
  }
  template <class Op>
  static status launch_rows(cudaStream_t s, const typename Op::params& p) {
    constexpr int64 most = 1 << 20;  // blocks: the others are rounds of these
    const int64 blocks = ceil_div(Op::threads(p), int64{Op::max_threads});
    // Code for 9.0 waits for the kernel before, so it may begin before that one ends: 2.5 us instead of 2.7 in a graph.
    const int64 grid = blocks < most ? blocks : most;
    return launch(s, {.grid = grid, .block = Op::max_threads, .dependent = true}, Op{}, p);
  }
};

template <class T>
struct stream_read_cache {
  template <class Element, int Count, class Sizes>
  static status run(cudaStream_t s, const read_cache_run<T, Element, Count>& f, const Sizes& sizes) {
    const auto& v = f.call.views;
    const kv_cache<const Element>& c = v.cache;
    if (const status bad = check_named_pointers({{c.k, "k"},
                                                 {c.v, "v"},
                                                 {f.k, "keys"},
                                                 {v.o, "values"},
                                                 {c.scales.k, "scales"},
                                                 {c.scales.v, "scales"},
                                                 {c.lengths, "lengths"},
                                                 {c.pages.indices, "pages"},
                                                 {c.pages.offsets, "pages"}});
        !bad.ok())
      return bad;
    return for_all(s, sizes, f);
  }
};

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI::detail

#endif
