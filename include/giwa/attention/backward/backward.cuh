// SPDX-License-Identifier: MIT
// attention_backward on a stream: the terms of the rows, then one kernel for each gradient.
#ifndef GIWA_ATTENTION_BACKWARD_BACKWARD_CUH
#define GIWA_ATTENTION_BACKWARD_BACKWARD_CUH

#include <giwa/attention/backward/backward.hpp>
#include <giwa/attention/backward/backward_simt.cuh>
#include <giwa/attention/backward/row_terms.cuh>
#include <giwa/attention/forward/launch.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

template <int HeadSize, int HeadSizeV>
struct stream_backward {
  template <class T, class O, class G, class Mask, class Score>
  static status run(cudaStream_t s, const backward_params<T, O, G, Mask, Score>& p) {
    using params = backward_params<T, O, G, Mask, Score>;
    status state = check_backward_pointers(p);
    const auto failed = [&](const status& next) {
      state = next;
      return !state.ok();
    };
    const auto& in = p.views.in;
    const bool wants_q = !is_absent(p.views.dq) || gradient_of<Score>::wanted;
    if (!state.ok() || (in.q.size() > 0 && failed(launch_blocks<row_terms_op<params>>(s, p, in.q.size() / HeadSize))))
      return state;
    if (wants_q && in.q.size() > 0 &&
        failed(launch_tiles<simt_backward_op<T, O, G, HeadSize, HeadSizeV, gradient::of_q, Mask, Score>>(
            s, p, in.problem(), in.packed.max_q)))
      return state;
    if (!is_absent(p.views.dk) &&
        failed(launch_tiles<simt_backward_op<T, O, G, HeadSize, HeadSizeV, gradient::of_k, Mask, Score>>(
            s, p, by_keys(p), longest_keys(p))))
      return state;
    if (!is_absent(p.views.dv) &&
        failed(launch_tiles<simt_backward_op<T, O, G, HeadSize, HeadSizeV, gradient::of_v, Mask, Score>>(
            s, p, by_keys(p), longest_keys(p))))
      return state;
    if (!is_absent(p.dsinks)) state = launch_blocks<sink_gradient_op<params>>(s, p, in.q.extent(2));
    return state;
  }

 private:
  /// The problem with queries and keys exchanged: work tiles of keys, of all sequences and heads of k.
  template <class Params>
  static attention_problem by_keys(const Params& p) {
    attention_problem keys = p.views.in.problem();
    keys.batch = p.key_sequences();
    keys.heads = keys.kv_heads;
    const int64 queries = keys.seq_q;
    keys.seq_q = keys.seq_k, keys.seq_k = queries;
    return keys;
  }
  /// About the length of the longest packed sequence of keys: that of queries, or the average if it is more.
  template <class Params>
  static int64 longest_keys(const Params& p) {
    const auto& in = p.views.in;
    const int64 mean = in.packed.count > 0 ? ceil_div(in.k.extent(1), in.packed.count) : 0;
    const int64 longest = in.packed.max_q > mean ? in.packed.max_q : mean;
    return longest < in.k.extent(1) ? longest : in.k.extent(1);
  }

  /// Launches an op with a block for each work tile, in several launches if the grid would exceed its limit.
  template <class Op, class Params>
  static status launch_tiles(cudaStream_t s, const Params& p, const attention_problem& sizes, int64 longest) {
    if (sizes.batch == 0 || sizes.heads == 0) return {};
    const int bytes = (HeadSize + HeadSizeV) * static_cast<int>(sizeof(float));
    typename Op::params all{p, attention_schedule::of(sizes, longest, Op::block_m, 1, bytes)};
    for (; all.schedule.first < all.schedule.work_tiles; all.schedule.first += launch_limits::grid_x) {
      const int64 left = all.schedule.work_tiles - all.schedule.first;
      const int64 grid = left < launch_limits::grid_x ? left : launch_limits::grid_x;
      if (const status state = launch(s, {.grid = grid, .block = Op::max_threads}, Op{}, all); !state.ok())
        return state;
    }
    return {};
  }

  /// Launches an op that reads rows of q alone: a block for a head, or for eight rows.
  template <class Op, class Params>
  static status launch_blocks(cudaStream_t s, const Params& p, int64 count) {
    if constexpr (requires { Op::rows_of_block; }) count = ceil_div(count, int64{Op::rows_of_block});
    const int64 grid = count < launch_limits::grid_x ? count : launch_limits::grid_x;
    return launch(s, {.grid = grid, .block = Op::max_threads}, Op{}, p);
  }

  /// Checks that the kernels may use the pointers of a call. The failure names the argument.
  template <class Params>
  static status check_backward_pointers(const Params& p) {
    status s = check_pointers(p.call);
    if (!s.ok()) return s;
    const auto bad = [&](const auto& view, const char* argument) {
      if (view.size() > 0 && view.data() != nullptr) s = check_device_pointer(view.data(), argument);
      return !s.ok();
    };
    static_cast<void>(bad(p.views.lse, "lse") || bad(p.views.dout, "dout") || bad(p.views.dq, "dq") ||
                      bad(p.views.dk, "dk") || bad(p.views.dv, "dv") || bad(p.dlse, "dlse") || bad(p.dsinks, "dsinks"));
    if (s.ok() && p.terms != nullptr) s = check_device_pointer(p.terms, "workspace");
    return s;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
