// SPDX-License-Identifier: MIT
// Compiles attend() once for each instance that CMakeLists.txt lists: GIWA_INSTANCE is a head size and a mask.
#include "attend.hpp"

#include <giwa/attention.cuh>

template <int HeadSize, class Mask>
giwa::status attend(cudaStream_t stream, tensor q, tensor k, tensor v, tensor o,
                    const giwa::attention_options& options) {
  return giwa::attention_forward<HeadSize>(stream, q, k, v, o, Mask{}, options);
}

template giwa::status attend<GIWA_INSTANCE>(cudaStream_t, tensor, tensor, tensor, tensor,
                                            const giwa::attention_options&);
