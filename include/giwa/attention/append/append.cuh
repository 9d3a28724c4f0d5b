// SPDX-License-Identifier: MIT
// append_to_cache on a stream: a thread has two runs of 16 bytes of some heads of a row.
#ifndef GIWA_ATTENTION_APPEND_APPEND_CUH
#define GIWA_ATTENTION_APPEND_APPEND_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/call/append.hpp>
#include <giwa/device/pointer.hpp>
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

/// Few rows are shared by many threads; with many rows, a thread computes its rotations once for up to 8 heads.
template <class Op, int Count, class T, class Element, class Rotary>
typename Op::params append_op_params(const append_views<T, Element>& a, const Rotary& rotary) {
  constexpr int64 enough = 1 << 18;  // threads, about those that a GPU runs at once
  auto p = append_params_of<Count>(a, rotary, 1);
  for (int64 heads = 8; heads > 1; heads /= 2)
    if (const auto q = append_params_of<Count>(a, rotary, heads); Op::threads(q) >= enough) return q;
  return p;
}

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
        (a.has_v() && fails(a.cache.v, "v")) || fails(a.q, "q") || fails(a.q_to, "q_to"))
      return bad;
    constexpr int count = 16 / static_cast<int>(sizeof(T));
    return append_fits<count>(a, rotary) ? launch_op<count>(s, a, rotary) : launch_op<codes_of<Element>>(s, a, rotary);
  }

 private:
  template <int Count, class T, class Element>
  static status launch_op(cudaStream_t s, const append_views<T, Element>& a, const Rotary& rotary) {
    using op = append_op<T, Element, Rotary, Count>;
    const auto p = append_op_params<op, Count>(a, rotary);
    constexpr int64 most = 1 << 20;  // blocks: the others are rounds of these
    const int64 blocks = ceil_div(op::threads(p), int64{op::max_threads});
    // Code for 9.0 waits for the kernel before, so it may begin before that one ends: 2.5 us instead of 2.7 in a graph.
    const int64 grid = blocks < most ? blocks : most;
    return launch(s, {.grid = grid, .block = op::max_threads, .dependent = true}, op{}, p);
  }
};

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI::detail

#endif
