// SPDX-License-Identifier: MIT
// Launches the pass that splits the tensors of an fp32 call of attention_backward into its workspace.
#ifndef GIWA_ATTENTION_SPLIT_FP16_ROWS_LAUNCH_CUH
#define GIWA_ATTENTION_SPLIT_FP16_ROWS_LAUNCH_CUH

#include <giwa/attention/split_fp16/rows_pass.cuh>
#include <giwa/grid/launch.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Splits q, k, v and dout of a call that has elements of each.
template <int HeadSize, int HeadSizeV, class Params>
status launch_split_rows(cudaStream_t s, const Params& call) {
  using op = split_rows_op<(HeadSize > HeadSizeV ? HeadSize : HeadSizeV)>;
  typename op::params p;
  int64 blocks = 0;
  int n = 0;
  const auto add = [&](const tensor_view<const float, 4>& from, const split_rows& to) {
    p.jobs[n++] = {from, to, fast_divisor(to.heads), fast_divisor(to.length), from.size() / from.extent(3), blocks};
    blocks += ceil_div(from.size() / from.extent(3), int64{op::rows_of_block});
  };
  const auto& in = call.views.in;
  add(in.q, call.split.q), add(in.k, call.split.k), add(in.v, call.split.v), add(call.views.dout, call.split.dout);
  return launch(s, {.grid = blocks, .block = op::max_threads}, op{}, p);
}

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
