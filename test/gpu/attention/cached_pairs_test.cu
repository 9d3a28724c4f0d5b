// SPDX-License-Identifier: MIT
// attention_cached on a GPU with 8-bit caches of head size 64, whose tiles may have two heads of keys.
#include "gpu/attention/cached_bits.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;
using giwa::fp16;
using giwa::int4_pair;
using giwa::int8_code;

namespace {

/// Many sequences of head size 64, whose tiles have two heads of keys; one sequence, and one head alone, do not. With a scale for
/// each head, or (7) for each key of it. `spoilt`: a head of each pair has NaN among its keys, and one among its values; scales of
/// keys are the largest, infinite, NaN or 0 in one head.
template <class T, class Element>
cached_case<T, Element> pairs_case_of(int64 group, int64 queries, int64 page, bool spoilt, int scales = 4) {
  cached_case_options c;
  c.kv_heads = 4, c.heads = group * c.kv_heads;
  c.head_size = c.head_size_v = 64;
  c.keys = 2700, c.page_size = page, c.shared = page != 0;
  c.most = page == 0 ? 0 : giwa::ceil_div(c.keys, page);
  c.queries.assign(50, queries);
  c.lengths.assign(50, 2700);
  for (std::size_t b = 0; b < 50; b += 3) c.lengths[b] = static_cast<int>(b * 53);
  c.k_scales = c.v_scales = scales;
  cached_case<T, Element> x(c);
  CHECK(giwa::detail::pairs_of_heads_are_faster(cached_on_gpu<T, Element, T>(x).views().problem()));
  if constexpr (giwa::detail::may_be_nonfinite<Element>)
    for (int64 b = 1; spoilt && b < 50; b += 3) {
      const int64 size = page == 0 ? c.keys : page;
      const int64 element = x.element[static_cast<std::size_t>(b)][static_cast<std::size_t>(300 / size)];
      x.k.view()(element, 300 % size, 1, 5) = Element::from_bits(0x7f);
      x.v.view()(element, 300 % size, 2, 7) = Element::from_bits(0x7f);
    }
  for (int64 b = 1, n = 0; spoilt && scales == 7 && b < 50; b += 2, ++n) {
    const float strange[] = {3e38f, HUGE_VALF, NAN, 0.f, 1e-40f};
    const int64 size = page == 0 ? c.keys : page, key = n % 2 == 0 ? 1301 : c.lengths[static_cast<std::size_t>(b)] - 1;
    if (key < 0 || key >= c.lengths[static_cast<std::size_t>(b)]) continue;
    const int64 element = x.element[static_cast<std::size_t>(b)][static_cast<std::size_t>(key / size)];
    (n % 3 == 0 ? x.k_scales : x.v_scales).view()(element, key % size, n % 4) = strange[n % 5];
  }
  return x;
}

}  // namespace

TEST_CASE("tiles of two heads of keys have the bits of one head") {
  check_bits<64>(pairs_case_of<fp16, e4m3>(4, 1, 16, false));
  if (small_mode()) return;
  check_bits<64>(pairs_case_of<fp16, e4m3>(8, 1, 64, true));
  check_bits<64>(pairs_case_of<fp16, e4m3>(4, 2, 0, true));
  check_bits<64>(pairs_case_of<bf16, int8_code>(2, 3, 16, false));
}

TEST_CASE("tiles of two heads of 4-bit keys have the bits of one head") {
  check_bits<64>(pairs_case_of<fp16, int4_pair>(4, 1, 64, false));
  if (small_mode()) return;
  check_bits<64>(pairs_case_of<fp16, int4_pair>(8, 1, 0, false));
  check_bits<64>(pairs_case_of<bf16, int4_pair>(4, 2, 16, true, 7));
}

TEST_CASE("tiles of two heads of keys have the bits of one head, with a scale for each key") {
  check_bits<64>(pairs_case_of<fp16, e4m3>(4, 2, 16, true, 7));
  if (small_mode()) return;
  check_bits<64>(pairs_case_of<fp16, e4m3>(8, 1, 64, true, 7));
}

TEST_CASE("tiles of two heads of keys, against the reference") {
  for (const int scales : {4, 7}) {
    auto c = pairs_case_of<fp16, e4m3>(4, 1, 64, false, scales);
    CHECK(cached_fault_on_gpu<64, 64>(c, causal::bottom_right, giwa::plain_score{}) == "");
    auto of_pairs = pairs_case_of<fp16, int4_pair>(4, 1, 64, false, scales);
    CHECK(cached_fault_on_gpu<64, 64>(of_pairs, causal::bottom_right, giwa::plain_score{}) == "");
  }
}
