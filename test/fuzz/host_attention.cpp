// SPDX-License-Identifier: MIT
// attention_forward, attention_backward and attention_cached on the CPU for the fuzz program.
#include <giwa/host.hpp>

#include <memory>

#include "fuzz/fuzz.hpp"
#include "gpu/attention/backward_draw.hpp"
#include "gpu/attention/cached_draw.hpp"
#include "gpu/attention/host_place.hpp"
#include "gpu/attention/instance.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::attention;
using namespace giwa_test::fuzz;
using giwa::causal;
using giwa::host_t;
using M = mask_kind;
using S = score_kind;

std::string forward_fault(uint64 seed) {
  static const auto list =
      list_of<host_t, instance<float, float, 64, 64, M::causal, S::plain>,
              instance<float, fp16, 33, 33, M::window, S::softcap>, instance<fp16, fp16, 64, 64, M::segments, S::plain>,
              instance<fp16, float, 8, 8, M::prefix, S::alibi>, instance<bf16, bf16, 80, 80, M::scattered, S::bias>,
              instance<bf16, float, 1, 1, M::full, S::capped_bias>,
              instance<bf16, fp16, 192, 128, M::causal, S::alibi>>();
  thread_local std::unique_ptr<host_place> place;
  if (place == nullptr) place = std::make_unique<host_place>(int64{64} << 20);
  const auto& one = list[static_cast<std::size_t>(seed % list.size())];
  const attention_draw d = draw_problem(seed, one.types, {.work = draws_small ? 3 << 17 : 3 << 20});
  return run_problem(*place, d, [&](const call_arguments& a) { return one.call(giwa::host, a); }).failure;
}
const fuzz_with forward("forward", forward_fault);

template <class T, int HeadSize, int HeadSizeV = HeadSize, class O = T, class G = T, class Mask, class Score>
std::string backward_fault_of(uint64 seed, const Mask& mask, const Score& score) {
  const int number = static_cast<int>(seed);
  backward_case<T, O, G> c(draw_backward(number, HeadSize, HeadSizeV));
  draw_backward_outputs(number, c);
  const backward_answers answers = answers_of(c, mask, score);
  c.clear_outputs();
  const giwa::status state = backward_of<HeadSize, HeadSizeV>(giwa::host, c.views(), mask, score, c.call_options());
  return state.ok() ? judge(c, answers) : giwa::format_status(state).c_str() + ("; " + c.of.options.text());
}
std::string backward_fault(uint64 seed) {
  switch (seed % 4) {
    case 0: return backward_fault_of<float, 33>(seed, causal{}, giwa::softcap{5});
    case 1: return backward_fault_of<fp16, 64>(seed, causal{}, giwa::plain_score{});
    case 2: return backward_fault_of<bf16, 72, 8, bf16, float>(seed, scattered_mask{}, wavy_score{});
    default: return backward_fault_of<float, 16, 40>(seed, giwa::full{}, giwa::plain_score{});
  }
}
const fuzz_with backward("backward", backward_fault);

template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string cached_fault_of(uint64 seed, const Mask& mask = {}, const Score& score = {}) {
  using plain = std::conditional_t<std::is_same_v<T, Element> || sizeof(T) == 4, T, giwa::fp16>;
  cached_case_options options = cached_drawer(static_cast<int>(seed), 128).draw(sizeof(Element) == 1);
  options.head_size = HeadSize, options.head_size_v = HeadSizeV;
  cached_case<T, Element, O> c(options);
  const attention_answers answers = answers_of<plain>(c, mask, score);
  c.clear_outputs();
  const giwa::status state = cached_of<HeadSize, HeadSizeV>(giwa::host, c.views(), mask, score, c.call_options());
  return state.ok() ? judge<plain>(c, answers).failure : giwa::format_status(state).c_str() + ("; " + c.options.text());
}
std::string cached_fault(uint64 seed) {
  switch (seed % 5) {
    case 0: return cached_fault_of<fp16, 64>(seed, causal::bottom_right);
    case 1: return cached_fault_of<float, 40, 24>(seed, by_distance{}, own_score{});
    case 2: return cached_fault_of<bf16, 64, 64, giwa::e4m3>(seed, causal::bottom_right);
    case 3:
      return seed / 5 % 2 == 0 ? cached_fault_of<fp16, 64, 64, giwa::int8_code>(seed, causal::bottom_right)
                               : cached_fault_of<fp16, 64, 64, giwa::int4_pair>(seed, causal::bottom_right);
    default: return cached_fault_of<bf16, 96, 96, bf16, float>(seed);
  }
}
const fuzz_with cached("cached", cached_fault);

}  // namespace
