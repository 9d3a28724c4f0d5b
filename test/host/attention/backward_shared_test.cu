// SPDX-License-Identifier: MIT
// The policies of attention_backward on Hopper count all that a block puts into shared memory.
#include <giwa/attention/kernels/sm90/backward_types_sm90.cuh>
#include <giwa/attention/problem/mask_combinators.hpp>
#include <giwa/attention/problem/masks.hpp>
#include <giwa/attention/problem/score.hpp>

#include "support/catch.hpp"

using namespace giwa::detail;
using giwa::fp16;

namespace {

int checked = 0;

/// G is the type of the gradients. No kernel is compiled: only the types of its shared memory.
template <class T, class G, gradient Of, int HeadSize, int HeadSizeV, class Mask, class Score>
void check_storage() {
  using types = sm90_backward_types<T, G, HeadSize, HeadSizeV, Of, Mask, Score>;
  ++checked;
  CAPTURE(HeadSize, HeadSizeV, static_cast<int>(Of), types::is_split, sizeof(G));
  CHECK(static_cast<int>(sizeof(typename types::shared_storage)) <= types::policy::shared_bytes);
}

template <class Mask, class Score, int HeadSize, int HeadSizeV>
void check_pair() {
  const auto check = [&]<class G>(G*) {
    check_storage<fp16, G, gradient::of_q, HeadSize, HeadSizeV, Mask, Score>();
    check_storage<fp16, G, gradient::of_k_and_v, HeadSize, HeadSizeV, Mask, Score>();
    if constexpr (has_kernel_of_all(HeadSize, HeadSizeV))
      check_storage<fp16, G, gradient::of_all, HeadSize, HeadSizeV, Mask, Score>();
    if constexpr (long_sequences::has_kernel(HeadSize, HeadSizeV))
      check_storage<fp16, G, gradient::of_all_long, HeadSize, HeadSizeV, Mask, Score>();
  };
  check(static_cast<fp16*>(nullptr));
  check(static_cast<float*>(nullptr));
  if constexpr (has_split_kernels(HeadSize, HeadSizeV)) {
    using both = split_parts<2>;
    check_storage<both, float, gradient::of_q, HeadSize, HeadSizeV, Mask, Score>();
    check_storage<both, float, gradient::of_k_and_v, HeadSize, HeadSizeV, Mask, Score>();
    if constexpr (!split_backward_sums_both(HeadSize, HeadSizeV)) {
      check_storage<both, float, gradient::of_k, HeadSize, HeadSizeV, Mask, Score>();
      check_storage<both, float, gradient::of_v, HeadSize, HeadSizeV, Mask, Score>();
    }
  }
}

/// Tiles take whole slabs of 64 columns, so other head sizes have the storage of one of these, or less; except where the sum of
/// both, rounded to 16, is at most 256 and that of their slabs is not: then dk and dv are summed in another way.
template <class Mask, class Score>
void check_sizes() {
  const auto with = [&]<int HeadSize>() {
    check_pair<Mask, Score, HeadSize, 64>();
    check_pair<Mask, Score, HeadSize, 128>();
    check_pair<Mask, Score, HeadSize, 192>();
    check_pair<Mask, Score, HeadSize, 256>();
    check_pair<Mask, Score, HeadSize, 40>();
    check_pair<Mask, Score, HeadSize, 120>();
  };
  with.template operator()<64>();
  with.template operator()<128>();
  with.template operator()<192>();
  with.template operator()<256>();
  with.template operator()<40>();
  with.template operator()<120>();
  check_pair<Mask, Score, 96, 96>();
  check_pair<Mask, Score, 48, 208>();
  check_pair<Mask, Score, 112, 144>();
  check_pair<Mask, Score, 144, 112>();
  check_pair<Mask, Score, 208, 48>();
}

}  // namespace

TEST_CASE("a policy counts the shared memory of its kernel") {
  check_sizes<giwa::full, giwa::plain_score>();
  check_sizes<decltype(giwa::causal{} & giwa::sliding_window{4} & giwa::segment_ids{}), giwa::alibi>();
  CHECK(checked > 200);
}
