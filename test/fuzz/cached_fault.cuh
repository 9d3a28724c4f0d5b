// SPDX-License-Identifier: MIT
// A drawn problem of attention_cached on a GPU for the fuzz program.
#ifndef GIWA_TEST_FUZZ_CACHED_FAULT_CUH
#define GIWA_TEST_FUZZ_CACHED_FAULT_CUH

#include "fuzz/fuzz.hpp"
#include "fuzz/known_answers.hpp"
#include "fuzz/modes.cuh"
#include "fuzz/strange.hpp"
#include "gpu/attention/cached_draw.hpp"
#include "gpu/attention/cached_gpu.cuh"

namespace giwa_test::fuzz {

/// Two calls with workspaces of different sizes, which give the same bits, one of them in a mode and on few multiprocessors.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T, class Mask = giwa::full,
          class Score = giwa::plain_score>
std::string cached_fault_of(const char* call, uint64 seed, const Mask& mask = {}, const Score& score = {}) {
  cached_case_options options =
      cached_drawer(static_cast<int>(seed), giwa::detail::leaf_keys_of(HeadSize, HeadSizeV, sizeof(Element)))
          .draw(sizeof(Element) == 1);
  options.head_size = HeadSize, options.head_size_v = HeadSizeV;
  cached_case<T, Element, O> c(options);
  const std::string strange = put_strange(seed, c);
  const auto answers = known_answers<attention_answers>(
      call, seed, [&] { return answers_of<plain_type<T, Element>>(c, mask, score); },
      [](attention_answers& a, const auto& visit) {
        visit(a.o), visit(a.plain), visit(a.lse), visit(a.plain_lse), visit(a.scales);
      });
  // Scales that arrive later than elements.
  const uint64 late = (seed * 0xff51afd7ed558ccdull) >> 60;
  const auto of_scales = late == 0 ? array_place::managed : late < 4 ? array_place::pinned : array_place::gpu;
  cached_on_gpu<T, Element, O> gpu(c, of_scales);
  const giwa::stream s = new_stream();
  std::vector<problem_memory> memory{memory_of(gpu.q),        memory_of(gpu.k),       memory_of(gpu.v),
                                     memory_of(gpu.o),        memory_of(gpu.lse),     memory_of(gpu.sinks),
                                     memory_of(gpu.lengths),  memory_of(gpu.indices), memory_of(gpu.page_offsets),
                                     memory_of(gpu.q_offsets)};
  if (of_scales == array_place::gpu)
    memory.push_back(memory_of(gpu.k_scales)), memory.push_back(memory_of(gpu.v_scales));
  const auto reset = [&] {
    for (const problem_memory& m : {memory_of(gpu.o), memory_of(gpu.lse), memory_of(gpu.workspace)})
      check_cuda(cudaMemsetAsync(m.data, 0xff, static_cast<std::size_t>(m.bytes), s));
  };
  const int64 sizes[] = {int64{8} << 20, 0, int64{100} << 10, 16};
  std::vector<O> o;
  std::vector<float> lse;
  const int few = processors_of(seed);
  draw_delay(seed);
  for (const int round : {0, 1}) {
    const with_processors found(round == 0 ? few : 0);
    gpu.clear_outputs();
    const int64 bytes = sizes[(seed / 3 + static_cast<uint64>(round)) % 4];
    const giwa::status state = run_in(
        round == 0 ? mode_of(seed) : run_mode::plain, s, memory,
        [&] { return cached_of<HeadSize, HeadSizeV>(s, gpu.views(), mask, score, gpu.call_options(bytes)); }, reset);
    const std::string about = "; workspace " + std::to_string(bytes) + ", mode " +
                              std::to_string(static_cast<int>(mode_of(seed))) + ", multiprocessors " +
                              std::to_string(few) +
                              (of_scales == array_place::managed  ? ", managed scales, "
                               : of_scales == array_place::pinned ? ", pinned scales, "
                                                                  : ", ") +
                              strange + c.options.text();
    if (!state.ok()) return giwa::format_status(state).c_str() + about;
    gpu.read_back();
    if (round == 1 && (!same_bits(c.o.memory, o) || !same_bits(c.lse.memory, lse))) return "other bits" + about;
    o = c.o.memory, lse = c.lse.memory;
    using plain = plain_type<T, Element>;
    const std::string failure = strange.empty() ? judge<plain>(c, answers).failure : judge_strange<plain>(c, answers);
    if (!failure.empty()) return failure + about;
  }
  return "";
}

}  // namespace giwa_test::fuzz

#endif
