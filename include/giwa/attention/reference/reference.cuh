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
/// (reference.hpp) for device memory. For tests: it is slow. Asynchronous on `s`, a stream of the current device; it
/// allocates nothing and may be captured. Errors: those of attention_reference on the host, memory that the GPU cannot
/// use, and those of for_all().
template <class Queries, class Keys, class Values, class O, class Mask = full, class Score = plain_score>
status attention_reference(cudaStream_t s, const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                           const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const Mask& mask = {},
                           const Score& score = {}, const attention_options& options = {}) {
  using views = detail::attention_views<stdlib::remove_const_t<Queries>, O>;
  return detail::with_reference(views{q, k, v, o}, mask, score, options, detail::stream_reference{s});
}
/// Computes the same for sequences of several lengths; the arrays that `packed` points to are in device memory.
template <class Queries, class Keys, class Values, class O, int Rank, class Mask = full, class Score = plain_score>
status attention_reference(cudaStream_t s, const sequences& packed, const tensor_view<Queries, Rank>& q,
                           const tensor_view<Keys, Rank>& k, const tensor_view<Values, Rank>& v,
                           const tensor_view<O, Rank>& o, const Mask& mask = {}, const Score& score = {},
                           const attention_options& options = {}) {
  using views = detail::attention_views<stdlib::remove_const_t<Queries>, O>;
  if (const status state = detail::check_sequences(packed, q); !state.ok()) return state;
  return detail::with_reference(views{detail::in_four_dimensions(q), detail::in_four_dimensions(k),
                                      detail::in_four_dimensions(v), detail::in_four_dimensions(o), packed},
                                mask, score, options, detail::stream_reference{s});
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
