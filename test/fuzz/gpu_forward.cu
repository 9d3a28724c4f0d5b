// SPDX-License-Identifier: MIT
// attention_forward on a GPU for the fuzz program. GIWA_FUZZ_PART=N compiles the instance N alone.
#include <giwa/attention.cuh>
#include <giwa/device.hpp>

#include <memory>

#include "fuzz/fuzz.hpp"
#include "fuzz/modes.cuh"
#include "gpu/attention/gpu_place.cuh"
#include "gpu/attention/instance.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::attention;
using namespace giwa_test::fuzz;
using M = mask_kind;
using S = score_kind;

std::vector<callable<cudaStream_t>> instances() {
#if !defined(GIWA_FUZZ_PART)
  return list_of<
      cudaStream_t, instance<fp16, fp16, 64, 64, M::causal, S::plain>,
      instance<bf16, float, 128, 128, M::window, S::softcap>, instance<float, float, 64, 64, M::causal, S::plain>,
      instance<fp16, fp16, 256, 256, M::segments, S::bias>, instance<bf16, bf16, 192, 128, M::prefix, S::alibi>,
      instance<fp16, fp16, 80, 80, M::scattered, S::plain>, instance<float, fp16, 33, 33, M::full, S::capped_bias>,
      instance<bf16, bf16, 512, 512, M::full, S::plain>, instance<float, float, 160, 160, M::prefix, S::alibi>>();
#elif GIWA_FUZZ_PART == 0
  return list_of<cudaStream_t, instance<fp16, fp16, 64, 64, M::causal, S::plain>>();
#elif GIWA_FUZZ_PART == 1
  return list_of<cudaStream_t, instance<bf16, float, 128, 128, M::window, S::softcap>>();
#elif GIWA_FUZZ_PART == 2
  return list_of<cudaStream_t, instance<float, float, 64, 64, M::causal, S::plain>>();
#elif GIWA_FUZZ_PART == 3
  return list_of<cudaStream_t, instance<fp16, fp16, 256, 256, M::segments, S::bias>>();
#else
  return list_of<cudaStream_t, instance<float, float, 160, 160, M::prefix, S::alibi>>();
#endif
}

std::string forward_fault(uint64 seed) {
  static const std::vector<callable<cudaStream_t>> list = instances();
  thread_local std::unique_ptr<gpu_place> place;
  if (place == nullptr) place = std::make_unique<gpu_place>(int64{480} << 20);
  const auto& one = list[static_cast<std::size_t>(seed % list.size())];
  const attention_draw d =
      draw_problem(seed, one.types, {.work = int64{1} << ((seed % 16 == 0 ? 27 : 25) - (draws_small ? 3 : 0))});
  const cudaStream_t s = place->stream();
  const with_processors few(processors_of(seed));
  draw_delay(seed);
  const run_mode mode = mode_of(seed);
  const auto call = [&](const call_arguments& a) {
    const auto reset = [&] {
      check_cuda(cudaMemsetAsync(a.o, 0xff, static_cast<std::size_t>(d.o.size * bytes_of(d.types.output)), s));
      check_cuda(cudaMemsetAsync(a.lse, 0xff, static_cast<std::size_t>(d.lse.size * 4), s));
      if (a.workspace != nullptr)
        check_cuda(cudaMemsetAsync(a.workspace, 0xff, static_cast<std::size_t>(a.workspace_bytes), s));
    };
    return run_in(
        mode, s, {{static_cast<unsigned char*>(place->begin()), place->used()}}, [&] { return one.call(s, a); }, reset);
  };
  const outcome result = run_problem(*place, d, call);
  return result.ok() ? "" : "mode " + std::to_string(static_cast<int>(mode)) + ": " + result.failure;
}
const fuzz_with added("forward", forward_fault);

}  // namespace
