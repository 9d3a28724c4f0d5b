// SPDX-License-Identifier: MIT
// attention_backward on a GPU for the fuzz program. GIWA_FUZZ_PART=N compiles the instance N alone.
#include "fuzz/fuzz.hpp"
#include "fuzz/known_answers.hpp"
#include "fuzz/modes.cuh"
#include "fuzz/strange.hpp"
#include "gpu/attention/backward_draw.hpp"
#include "gpu/attention/backward_gpu.cuh"

namespace {

using namespace giwa_test;
using namespace giwa_test::attention;
using namespace giwa_test::fuzz;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;

/// Twice, the first time in a mode and on few multiprocessors. In a fixed order both give the same bits.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class O = T, class G = T, class Mask, class Score>
std::string fault_of(uint64 seed, const case_options& drawn, const Mask& mask, const Score& score) {
  backward_case<T, O, G> c(drawn);
  draw_backward_outputs(static_cast<int>(seed), c);
  const std::string strange = put_strange(seed, c);
  const auto answers = known_answers<backward_answers>(
      "backward", seed, [&] { return answers_of(c, mask, score); },
      [&](backward_answers& a, const auto& visit) {
        for (gradient_answers* g : {&a.dq, &a.dk, &a.dv}) visit(g->reference), visit(g->plain), visit(g->scales);
        visit(a.dsinks), visit(a.plain_dsinks), visit(a.sink_units);
        visit(c.of.o.memory), visit(c.of.lse.memory);
      });
  const int few = processors_of(seed);
  const std::string about = "; mode " + std::to_string(static_cast<int>(mode_of(seed))) + ", multiprocessors " +
                            std::to_string(few) + ", " + strange + c.of.options.text();
  draw_delay(seed);
  std::vector<G> dq, dk, dv;
  for (const int round : {0, 1}) {
    c.clear_outputs();
    const with_processors found(round == 0 || c.any_order ? few
                                                          : 0);  // on which the bits of dk and dv depend in any order
    const backward_on_gpu<T, O, G> gpu(c), before(c);
    const giwa::stream s = new_stream();
    const std::vector<problem_memory> memory{memory_of(gpu.q),         memory_of(gpu.k),         memory_of(gpu.v),
                                             memory_of(gpu.o),         memory_of(gpu.dout),      memory_of(gpu.dq),
                                             memory_of(gpu.dk),        memory_of(gpu.dv),        memory_of(gpu.lse),
                                             memory_of(gpu.dlse),      memory_of(gpu.sinks),     memory_of(gpu.dsinks),
                                             memory_of(gpu.q_offsets), memory_of(gpu.k_offsets), memory_of(gpu.q_used),
                                             memory_of(gpu.k_used),    memory_of(gpu.k_index)};
    const auto reset = [&] {
      const auto put_back = [&](const auto& to, const auto& from) {
        check_cuda(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDeviceToDevice, s));
      };
      put_back(gpu.dq, before.dq), put_back(gpu.dk, before.dk), put_back(gpu.dv, before.dv);
      put_back(gpu.dsinks, before.dsinks), put_back(gpu.workspace, before.workspace);
    };
    const giwa::status state = run_in(
        round == 0 ? mode_of(seed) : run_mode::plain, s, memory,
        [&] { return backward_of<HeadSize, HeadSizeV>(s, gpu.views(), mask, score, gpu.call_options()); }, reset);
    if (!state.ok()) return giwa::format_status(state).c_str() + about;
    gpu.read_back();
    if (round == 1 &&
        !((c.any_order || same_bits(dq, c.dq.memory)) && same_bits(dk, c.dk.memory) && same_bits(dv, c.dv.memory)))
      return "other bits in the second call" + about;
    dq = c.dq.memory, dk = c.dk.memory, dv = c.dv.memory;
    const std::string fault = strange.empty() ? judge(c, answers) : judge_strange(c, answers);
    if (!fault.empty()) return fault + about;
  }
  return "";
}

template <class T, int HeadSize, int HeadSizeV = HeadSize, class O = T, class G = T, class Mask, class Score>
std::string fault_of(uint64 seed, const Mask& mask, const Score& score) {
  return fault_of<T, HeadSize, HeadSizeV, O, G>(seed, draw_backward(static_cast<int>(seed), HeadSize, HeadSizeV), mask,
                                                score);
}
/// With tiles of 80 queries.
[[maybe_unused]] std::string long_fault(uint64 seed) {
  using giwa::detail::long_sequences;
  const int number = static_cast<int>(seed);
  if (seed % 8 != 7)
    return fault_of<bf16, 128>(seed, draw_long_backward(number, 128, long_sequences::full), giwa::full{},
                               giwa::plain_score{});
  return fault_of<fp16, 128>(seed, draw_long_backward(number, 128, long_sequences::causal), causal{},
                             giwa::plain_score{});
}

std::string backward_fault(uint64 seed) {
#if defined(GIWA_FUZZ_PART) && GIWA_FUZZ_PART == 0
  return fault_of<fp16, 64>(seed, causal{}, giwa::plain_score{});
#elif defined(GIWA_FUZZ_PART) && GIWA_FUZZ_PART == 1
  return fault_of<bf16, 128>(seed, giwa::full{}, giwa::plain_score{});
#elif defined(GIWA_FUZZ_PART) && GIWA_FUZZ_PART == 2
  return fault_of<fp16, 256>(seed, causal{}, giwa::softcap{5});
#elif defined(GIWA_FUZZ_PART) && GIWA_FUZZ_PART == 3
  return fault_of<float, 33>(seed, causal{}, giwa::softcap{5});
#elif defined(GIWA_FUZZ_PART) && GIWA_FUZZ_PART == 5
  return long_fault(seed);
#elif defined(GIWA_FUZZ_PART)
  return fault_of<bf16, 72, 8, bf16, float>(seed, scattered_mask{}, wavy_score{});
#else
  if (!draws_small && seed % 72 == 37) return long_fault(seed / 72);
  switch (seed % 9) {
    case 0: return fault_of<fp16, 64>(seed, causal{}, giwa::plain_score{});
    case 1: return fault_of<bf16, 128>(seed, giwa::full{}, giwa::plain_score{});
    case 2: return fault_of<float, 33>(seed, causal{}, giwa::softcap{5});
    case 3: return fault_of<fp16, 192, 128>(seed, giwa::sliding_window{40} | giwa::prefix{9}, giwa::plain_score{});
    case 4: return fault_of<bf16, 72, 8, bf16, float>(seed, scattered_mask{}, wavy_score{});
    case 5: return fault_of<fp16, 256>(seed, causal{}, giwa::softcap{5});
    case 6: return fault_of<float, 64>(seed, causal{}, giwa::plain_score{});
    case 7: return fault_of<fp16, 120, 56>(seed, causal{}, giwa::plain_score{});
    default: return fault_of<fp16, 512, 512, float>(seed, causal{}, giwa::plain_score{});
  }
#endif
}
const fuzz_with added("backward", backward_fault);

}  // namespace
