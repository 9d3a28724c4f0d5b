// EXPECT: giwa::ring_attention_forward: elements of q, k and v must be giwa::fp16, bf16 or fp32
// SPDX-License-Identifier: MIT
// Several GPUs have no e4m3.
#include <giwa/host.hpp>
#include <giwa/multi.hpp>

#if defined(GIWA_COMPILE_FAIL)
using element = giwa::e4m3;
#else
using element = giwa::fp16;
#endif

giwa::status attend(const giwa::host_communicator& comm, const giwa::tensor_view<element, 4>& x,
                    const giwa::tensor_view<giwa::fp16, 4>& o) {
  return giwa::ring_attention_forward<64>(giwa::host, comm, {.tokens = 64}, x, x, x, o);
}
