// SPDX-License-Identifier: MIT
// The project's attention for all of its files: only declared, so that a change to them compiles no kernel.
#ifndef ATTEND_HPP
#define ATTEND_HPP

#include <giwa/host.hpp>  // the types of a call; a host compiler is enough

using tensor = giwa::tensor_view<giwa::fp16, 4>;  // (batch, length, heads, head size)

/// Computes attention on a stream, for the head sizes and masks that CMakeLists.txt lists; others do not link.
/// Example: attend<64, giwa::causal>(stream, q, k, v, o).
template <int HeadSize, class Mask>
giwa::status attend(cudaStream_t stream, tensor q, tensor k, tensor v, tensor o,
                    const giwa::attention_options& options = {});

#endif
