// SPDX-License-Identifier: MIT
// The kernel for latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_SM90_CUH

#include <giwa/attention/kernels/sm80/few_rows_sm80.cuh>
#include <giwa/attention/kernels/sm80/rows_656_sm80.cuh>
#include <giwa/attention/kernels/sm90/latent_output_sm90.cuh>
#include <giwa/attention/kernels/sm90/latent_scores_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The keys are the 64 rows of wgmma, and 16 packed rows its columns: S^T = K Q^T, O^T = V^T P^T. So 8 or 16 heads are not padded to
/// 64 rows, and K is V without another load. The roles are those of few_rows_op, whose frame this is.
template <class T, class Element, class O, class Policy, class Mask, class Score>
struct latent_op
    : few_rows_frame<latent_types<T, Element, O, Policy, Mask, Score>, latent_scores, latent_output, Mask, Score> {};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
