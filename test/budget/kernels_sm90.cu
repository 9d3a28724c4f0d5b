// SPDX-License-Identifier: MIT
// The Hopper kernels of attention_backward, for the table of registers: for 9.0a alone, and without the mma.sync kernels,
// which a call compiles too. Also those of attention_cached for 8-bit caches, which have no register to spare, and for latent
// rows, and those of attention_forward for e4m3.
#include <giwa/attention.cuh>
#include <giwa/attention_backward.cuh>
#include <giwa/cache.cuh>

namespace detail = giwa::detail;

template <class Op, class Params>
bool launch_op(cudaStream_t s, const Params& p) {
  detail::optional_kernel<detail::prepared_backward_sm90<Op>> kernel;
  int* const counter = nullptr;
  return kernel.make(p, detail::gpu_traits{}, detail::attention_schedule{}, counter, true).ok() &&
         kernel.launch(s).ok();
}
template <int HeadSize, class Mask = giwa::full, class Score = giwa::plain_score>
struct backward {
  template <class T, class Input, detail::gradient... Of>
  static bool launch_ops(cudaStream_t s, const void* p) {
    const auto& call = *static_cast<const detail::backward_params<Input, Input, Input, Mask, Score>*>(p);
    return (launch_op<detail::sm90_backward_op<T, Input, HeadSize, HeadSize, Of, Mask, Score>>(s, call) && ...);
  }
  /// dq from its sums.
  template <bool IsLong>
  static bool launch_dq(cudaStream_t s, const void* p) {
    using params = detail::backward_params<giwa::fp16, giwa::fp16, giwa::fp16, Mask, Score>;
    using op = detail::dq_of_sums_op<params, HeadSize, HeadSize, IsLong>;
    detail::optional_kernel<detail::prepared_kernel<op>> kernel;
    return kernel.make(giwa::launch_config{}, typename op::params{*static_cast<const params*>(p), {}, {}, 0}).ok() &&
           kernel.launch(s).ok();
  }
  static bool launch(cudaStream_t s, const void* p) {
    using enum detail::gradient;
    using giwa::fp16;
    if constexpr (detail::long_sequences::has_kernel(HeadSize, HeadSize) && detail::is_plain_score<Score>)
      return launch_ops<fp16, fp16, of_q, of_k_and_v, of_all, of_all_long>(s, p) && launch_dq<false>(s, p) &&
             launch_dq<true>(s, p);
    else if constexpr (detail::has_kernel_of_all(HeadSize, HeadSize))
      return launch_ops<fp16, fp16, of_q, of_k_and_v, of_all>(s, p) && launch_dq<false>(s, p);
    else
      return launch_ops<fp16, fp16, of_q, of_k_and_v>(s, p);
  }
};
/// In fp32.
template <int HeadSize, class Mask>
struct split_backward : backward<HeadSize, Mask> {
  static bool launch(cudaStream_t s, const void* p) {
    using enum detail::gradient;
    using parts = detail::split_parts<2>;
    using kernels = backward<HeadSize, Mask>;
    if constexpr (detail::split_backward_sums_both(HeadSize, HeadSize))
      return kernels::template launch_ops<parts, float, of_q, of_k_and_v>(s, p);
    else
      return kernels::template launch_ops<parts, float, of_q, of_k, of_v>(s, p);
  }
};

giwa::status decode(cudaStream_t s, const giwa::kv_cache<const giwa::e4m3>& cache,
                    const giwa::tensor_view<__half, 4>& x, const giwa::cached_options& options) {
  const giwa::tensor_view<const __half, 4> q = x;
  const giwa::status state = giwa::attention_cached<64>(s, cache, q, x, giwa::full{}, giwa::plain_score{}, options);
  return state.ok() ? giwa::attention_cached<128>(s, cache, q, x, giwa::full{}, giwa::plain_score{}, options) : state;
}

giwa::status decode_integers(cudaStream_t s, const giwa::kv_cache<const giwa::int8_code>& cache,
                             const giwa::tensor_view<__half, 4>& x, const giwa::cached_options& options) {
  const giwa::tensor_view<const __half, 4> q = x;
  return giwa::attention_cached<128>(s, cache, q, x, giwa::full{}, giwa::plain_score{}, options);
}

giwa::status decode_pairs(cudaStream_t s, const giwa::kv_cache<const giwa::int4_pair>& cache,
                          const giwa::tensor_view<__half, 4>& x, const giwa::cached_options& options) {
  const giwa::tensor_view<const __half, 4> q = x;
  return giwa::attention_cached<128>(s, cache, q, x, giwa::full{}, giwa::plain_score{}, options);
}

giwa::status attend(cudaStream_t s, const giwa::tensor_view<const giwa::e4m3, 4>& x,
                    const giwa::tensor_view<__half, 4>& o) {
  const giwa::status states[] = {giwa::attention_forward<64>(s, x, x, x, o, giwa::causal{}),
                                 giwa::attention_forward<128>(s, x, x, x, o, giwa::causal{}),
                                 giwa::attention_forward<128>(s, x, x, x, o),
                                 giwa::attention_forward<256>(s, x, x, x, o, giwa::causal{})};
  for (const giwa::status& state : states)
    if (!state.ok()) return state;
  return {};
}

giwa::status decode_latent(cudaStream_t s, const giwa::kv_cache<const __half>& cache,
                           const giwa::tensor_view<const __half, 4>& q, const giwa::tensor_view<__half, 4>& o,
                           const giwa::cached_options& options) {
  return giwa::attention_cached<giwa::head_sizes<576, 512>>(s, cache, q, o, giwa::full{}, giwa::plain_score{}, options);
}

template <class... Kernels>
bool launch_all(cudaStream_t s, const void* p) {
  return (Kernels::launch(s, p) && ...);
}

using giwa::alibi, giwa::causal, giwa::sliding_window, giwa::softcap;
// clang-format off
template bool launch_all<
    backward<64>, backward<64, causal>, backward<64, causal, softcap>, backward<64, sliding_window, alibi>,
    backward<128>, backward<128, causal>, backward<128, causal, softcap>, backward<128, sliding_window, alibi>,
    backward<256, causal>, split_backward<64, causal>, split_backward<128, causal>
>(cudaStream_t, const void*);
// clang-format on
