// SPDX-License-Identifier: MIT
// attention_forward on the CPU.
#ifndef GIWA_ATTENTION_CPU_FORWARD_HPP
#define GIWA_ATTENTION_CPU_FORWARD_HPP

#include <giwa/attention/call/forward.hpp>
#include <giwa/attention/cpu/run.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Runs attention_forward on the CPU; the arguments are checked already.
template <int HeadSize, int HeadSizeV>
struct host_attention {
  template <class T, class O, class Mask, class Score>
  static status run(const attention_params<T, O, Mask, Score>& params) {
    const attention_problem sizes = params.views.problem();
    int64 longest = params.views.q.extent(1), keys = params.views.k.extent(1);
    if (params.views.is_packed()) {
      longest = 0;
      for (int64 i = 0; i < sizes.batch; ++i) {
        const int queries = params.at(static_cast<int>(i), 0).queries();
        longest = queries > longest ? queries : longest;
      }
      keys = ceil_div(keys, sizes.batch);
    }
    return run_host_rows(params, {sizes.batch, sizes.heads, longest, keys, !params.ragged});
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
