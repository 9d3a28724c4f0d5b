// EXPECT: giwa::head_parallel_attention_backward: score modifiers that receive gradients are not supported
// SPDX-License-Identifier: MIT
// Each rank would have its part of the gradient of the slopes.
#include <giwa/host.hpp>
#include <giwa/multi.hpp>

giwa::status gradients(const giwa::host_communicator& comm, const giwa::tensor_view<float, 4>& x,
                       const giwa::tensor_view<float, 3>& lse, const float* slopes,
                       [[maybe_unused]] const giwa::tensor_view<float, 1>& of_slopes) {
#if defined(GIWA_COMPILE_FAIL)
  const giwa::alibi_with_gradient score(slopes, of_slopes);
#else
  const giwa::alibi score{slopes};
#endif
  return giwa::head_parallel_attention_backward<64>(giwa::host, comm, {.tokens = 8}, x, x, x, x, lse, x, x, x, x,
                                                    giwa::causal{}, score);
}
