// SPDX-License-Identifier: MIT
// The types that attention is tested with: each two of element, head size, mask, modifier and output meet.
#ifndef GIWA_TEST_GPU_ATTENTION_PAIRS_HPP
#define GIWA_TEST_GPU_ATTENTION_PAIRS_HPP

#include "gpu/attention/instance.hpp"

namespace giwa_test::attention {

using M = mask_kind;
using S = score_kind;

template <class... Types>
struct type_list {};

/// The list in parts, a program each; the first `pairs_always` are compiled in every test tree, the others where
/// GIWA_TEST_ALL_PAIRS is set (forward.cmake).
inline constexpr int pairs_parts = 9, pairs_always = 2;
template <int Part>
struct part_of_pairs;

template <>
struct part_of_pairs<0> {
  using instances = type_list<
      instance<bf16, bf16, 1, 1, M::full, S::capped_bias>, instance<float, bf16, 128, 128, M::full, S::plain>,
      instance<fp16, fp16, 80, 80, M::causal, S::alibi>, instance<fp16, fp16, 64, 256, M::causal, S::bias>,
      instance<float, float, 40, 40, M::window, S::capped_bias>, instance<fp16, float, 256, 256, M::window, S::alibi>,
      instance<bf16, bf16, 1, 1, M::prefix, S::softcap>, instance<fp16, fp16, 128, 128, M::prefix, S::softcap>,
      instance<bf16, bf16, 80, 80, M::segments, S::plain>, instance<float, float, 64, 256, M::segments, S::alibi>,
      instance<float, float, 40, 40, M::scattered, S::alibi>, instance<bf16, bf16, 256, 256, M::scattered, S::softcap>>;
};

template <>
struct part_of_pairs<1> {
  using instances = type_list<
      instance<fp16, fp16, 8, 8, M::full, S::plain>, instance<fp16, float, 160, 160, M::full, S::capped_bias>,
      instance<fp16, fp16, 96, 96, M::causal, S::capped_bias>, instance<fp16, fp16, 192, 128, M::causal, S::softcap>,
      instance<float, float, 64, 64, M::window, S::softcap>, instance<fp16, fp16, 320, 320, M::window, S::bias>,
      instance<float, float, 8, 8, M::prefix, S::capped_bias>, instance<float, float, 160, 160, M::prefix, S::alibi>,
      instance<bf16, bf16, 96, 96, M::segments, S::plain>, instance<fp16, fp16, 192, 128, M::segments, S::plain>,
      instance<fp16, float, 64, 64, M::scattered, S::bias>, instance<fp16, fp16, 320, 320, M::scattered, S::plain>>;
};

template <>
struct part_of_pairs<2> {
  using instances = type_list<
      instance<float, float, 33, 33, M::full, S::softcap>, instance<fp16, fp16, 192, 192, M::full, S::softcap>,
      instance<bf16, float, 100, 100, M::causal, S::plain>, instance<bf16, bf16, 72, 72, M::window, S::alibi>,
      instance<bf16, bf16, 512, 512, M::window, S::alibi>, instance<fp16, fp16, 33, 33, M::prefix, S::bias>,
      instance<fp16, fp16, 192, 192, M::prefix, S::plain>, instance<fp16, fp16, 100, 100, M::segments, S::softcap>,
      instance<fp16, fp16, 72, 72, M::scattered, S::bias>, instance<fp16, fp16, 512, 512, M::scattered, S::softcap>>;
};

template <>
struct part_of_pairs<3> {
  using instances =
      type_list<instance<fp16, float, 40, 40, M::full, S::bias>, instance<float, fp16, 256, 256, M::full, S::bias>,
                instance<fp16, fp16, 1, 1, M::causal, S::plain>, instance<fp16, fp16, 128, 128, M::causal, S::bias>,
                instance<float, float, 80, 80, M::window, S::capped_bias>,
                instance<bf16, bf16, 64, 256, M::window, S::plain>, instance<fp16, fp16, 40, 40, M::prefix, S::plain>,
                instance<bf16, bf16, 256, 256, M::prefix, S::softcap>, instance<fp16, fp16, 1, 1, M::segments, S::bias>,
                instance<fp16, fp16, 128, 128, M::segments, S::alibi>,
                instance<bf16, bf16, 80, 80, M::scattered, S::capped_bias>,
                instance<fp16, fp16, 64, 256, M::scattered, S::alibi>>;
};

template <>
struct part_of_pairs<4> {
  using instances = type_list<
      instance<bf16, fp16, 64, 64, M::full, S::alibi>, instance<float, float, 320, 320, M::full, S::alibi>,
      instance<bf16, bf16, 8, 8, M::causal, S::alibi>, instance<bf16, bf16, 160, 160, M::causal, S::bias>,
      instance<float, float, 96, 96, M::window, S::alibi>, instance<float, float, 192, 128, M::window, S::alibi>,
      instance<bf16, bf16, 64, 64, M::prefix, S::capped_bias>, instance<fp16, fp16, 320, 320, M::prefix, S::plain>,
      instance<bf16, bf16, 8, 8, M::segments, S::softcap>, instance<bf16, bf16, 160, 160, M::segments, S::plain>,
      instance<bf16, bf16, 96, 96, M::scattered, S::bias>, instance<fp16, fp16, 192, 128, M::scattered, S::alibi>>;
};

template <>
struct part_of_pairs<5> {
  using instances = type_list<
      instance<bf16, float, 72, 72, M::full, S::plain>, instance<fp16, fp16, 512, 512, M::full, S::capped_bias>,
      instance<float, float, 33, 33, M::causal, S::capped_bias>, instance<bf16, bf16, 192, 192, M::causal, S::alibi>,
      instance<float, float, 100, 100, M::window, S::capped_bias>, instance<fp16, fp16, 72, 72, M::prefix, S::alibi>,
      instance<float, float, 512, 512, M::prefix, S::plain>, instance<float, float, 33, 33, M::segments, S::alibi>,
      instance<bf16, float, 192, 192, M::segments, S::capped_bias>,
      instance<fp16, fp16, 100, 100, M::scattered, S::capped_bias>>;
};

template <>
struct part_of_pairs<6> {
  using instances = type_list<
      instance<bf16, bf16, 80, 80, M::full, S::softcap>, instance<float, float, 64, 256, M::full, S::capped_bias>,
      instance<bf16, bf16, 40, 40, M::causal, S::softcap>, instance<bf16, bf16, 256, 256, M::causal, S::plain>,
      instance<float, float, 1, 1, M::window, S::alibi>, instance<bf16, float, 128, 128, M::window, S::capped_bias>,
      instance<bf16, bf16, 80, 80, M::prefix, S::bias>, instance<bf16, bf16, 64, 256, M::prefix, S::softcap>,
      instance<fp16, fp16, 40, 40, M::segments, S::capped_bias>,
      instance<bf16, bf16, 256, 256, M::segments, S::capped_bias>,
      instance<bf16, bf16, 1, 1, M::scattered, S::capped_bias>, instance<fp16, fp16, 128, 128, M::scattered, S::plain>>;
};

template <>
struct part_of_pairs<7> {
  using instances = type_list<
      instance<bf16, bf16, 96, 96, M::full, S::bias>, instance<bf16, bf16, 192, 128, M::full, S::bias>,
      instance<fp16, float, 64, 64, M::causal, S::bias>, instance<bf16, bf16, 320, 320, M::causal, S::capped_bias>,
      instance<fp16, fp16, 8, 8, M::window, S::bias>, instance<fp16, fp16, 160, 160, M::window, S::softcap>,
      instance<bf16, float, 96, 96, M::prefix, S::softcap>, instance<fp16, fp16, 192, 128, M::prefix, S::capped_bias>,
      instance<bf16, bf16, 64, 64, M::segments, S::plain>, instance<fp16, fp16, 320, 320, M::segments, S::softcap>,
      instance<fp16, fp16, 8, 8, M::scattered, S::plain>, instance<bf16, bf16, 160, 160, M::scattered, S::plain>>;
};

template <>
struct part_of_pairs<8> {
  using instances = type_list<
      instance<fp16, bf16, 100, 100, M::full, S::alibi>, instance<fp16, fp16, 72, 72, M::causal, S::capped_bias>,
      instance<bf16, float, 512, 512, M::causal, S::softcap>, instance<bf16, bf16, 33, 33, M::window, S::plain>,
      instance<float, float, 192, 192, M::window, S::bias>, instance<fp16, fp16, 100, 100, M::prefix, S::bias>,
      instance<float, float, 72, 72, M::segments, S::softcap>, instance<fp16, fp16, 512, 512, M::segments, S::bias>,
      instance<float, float, 33, 33, M::scattered, S::softcap>, instance<fp16, fp16, 192, 192, M::scattered, S::alibi>>;
};

/// One of each modifier and element, and of each mask but `full`, which other programs have: where programs are compiled to see
/// that they compile (GIWA_TEST_FEW_SIZES).
using few_pairs =
    type_list<instance<float, float, 40, 40, M::window, S::capped_bias>,
              instance<fp16, float, 256, 256, M::scattered, S::alibi>,
              instance<fp16, fp16, 64, 256, M::causal, S::bias>, instance<bf16, bf16, 1, 1, M::prefix, S::softcap>,
              instance<bf16, bf16, 80, 80, M::segments, S::plain>>;

template <class Where, class... Instances>
std::vector<callable<Where>> calls_of(type_list<Instances...>) {
  return list_of<Where, Instances...>();
}
template <class... Instances>
std::vector<compiled_types> types_of(type_list<Instances...>) {
  return {Instances::types...};
}

}  // namespace giwa_test::attention

#endif
