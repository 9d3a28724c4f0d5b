// SPDX-License-Identifier: MIT
// Calls of attention, for the spills of GPUs and toolkits that registers.txt does not have (spills.py): CALL is 0 (forward),
// 1 (gradients) or 2 (caches).
#include <giwa/attention.cuh>
#include <giwa/attention_backward.cuh>
#include <giwa/cache.cuh>

using giwa::causal, giwa::e4m3, giwa::fp16;
using tensor = giwa::tensor_view<fp16, 4>;
using exact_tensor = giwa::tensor_view<float, 4>;

template <class... States>
giwa::status first_failure(const States&... states) {
  giwa::status failure;
  static_cast<void>(((states.ok() ? true : (failure = states, false)) && ...));
  return failure;
}

#if CALL == 0
giwa::status attend(cudaStream_t s, const tensor& x, const exact_tensor& y, const giwa::attention_options& options) {
  const auto call = [&]<int HeadSize>(const auto& t) {
    return giwa::attention_forward<HeadSize>(s, t, t, t, t, causal{}, options);
  };
  return first_failure(call.operator()<64>(x), call.operator()<128>(x), call.operator()<256>(x),
                       call.operator()<512>(x), call.operator()<128>(y), call.operator()<256>(y));
}
#elif CALL == 1
giwa::status gradients(cudaStream_t s, const tensor& x, const exact_tensor& y,
                       const giwa::attention_backward_options& options) {
  const auto call = [&]<int HeadSize>(const auto& t) {
    return giwa::attention_backward<HeadSize>(s, t, t, t, t, t, t, t, t, causal{}, options);
  };
  return first_failure(call.operator()<64>(x), call.operator()<128>(x), call.operator()<256>(x),
                       call.operator()<64>(y));
}
#else
giwa::status decode(cudaStream_t s, const tensor& x, const exact_tensor& y, const giwa::kv_cache<const fp16>& cache,
                    const giwa::kv_cache<const e4m3>& small, const giwa::kv_cache<const float>& exact,
                    const giwa::cached_options& options) {
  const auto call = [&]<int HeadSize>(const auto& keys, const auto& t) {
    return giwa::attention_cached<HeadSize>(s, keys, t, t, causal::bottom_right, options);
  };
  return first_failure(call.operator()<64>(cache, x), call.operator()<128>(cache, x), call.operator()<256>(cache, x),
                       call.operator()<128>(small, x), call.operator()<128>(exact, y));
}
#endif
