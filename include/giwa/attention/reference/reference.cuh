// SPDX-License-Identifier: MIT
// attention_reference on a stream: the definition, one thread for each row.
#ifndef GIWA_ATTENTION_REFERENCE_REFERENCE_CUH
#define GIWA_ATTENTION_REFERENCE_REFERENCE_CUH

#include <giwa/attention/choose/forward.cuh>
#include <giwa/attention/reference/reference.hpp>
#include <giwa/grid/for_all.cuh>

namespace giwa::inline GIWA_ABI {

namespace detail::inline GIWA_ARCH_TAG {

struct stream_reference {
  cudaStream_t stream;
  template <class T, class O, class Mask, class Score>
  status operator()(const attention_params<T, O, Mask, Score>& params) const {
    if (const status state = check_pointers(params); !state.ok()) return state;
    const attention_problem sizes = params.views.problem();
    return for_all(stream, extents{sizes.batch, sizes.heads, params.views.q.extent(1)},
                   attention_reference_rows<attention_params<T, O, Mask, Score>>{params});
  }
};

}  // namespace detail::inline GIWA_ARCH_TAG

inline namespace GIWA_ARCH_TAG {

/// Computes attention by its definition on the GPU, one thread for each row of o, in fp64: attention_reference
/// (reference.hpp) for device memory. For tests: it is slow. Asynchronous; allocates nothing and may be captured. Errors: those of
/// attention_reference on the host, memory that the GPU cannot use, and those of for_all().
/// Parameters:
///   - s, q, k, v, o, mask, score, options: a stream of the current device, and the arguments on the host
template <class Queries, class Keys, class Values, class O, int Rank, class Mask = attention_options,
          class Score = attention_options>
status attention_reference(cudaStream_t s, const tensor_view<Queries, Rank>& q, const tensor_view<Keys, Rank>& k,
                           const tensor_view<Values, Rank>& v, const tensor_view<O, Rank>& o, const Mask& mask = {},
                           const Score& score = {}, const attention_options& options = {}) {
  return detail::reference_call(q, k, v, o, mask, score, options, detail::stream_reference{s});
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
