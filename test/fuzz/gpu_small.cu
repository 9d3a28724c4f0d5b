// SPDX-License-Identifier: MIT
// append_to_cache, merge_attention, softmax and for_all on a GPU for the fuzz program.
#include <giwa/attention.cuh>
#include <giwa/cache.cuh>
#include <giwa/grid.cuh>
#include <giwa/softmax.cuh>

#include "fuzz/fuzz.hpp"
#include "fuzz/modes.cuh"
#include "fuzz/small_calls.hpp"
#include "gpu/attention/append_gpu.cuh"
#include "support/gpu.cuh"
#include "support/same_bits.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::fuzz;

template <class T>
void copy_again(const gpu_array<T>& to, const gpu_array<T>& from, cudaStream_t s) {
  check_cuda(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDeviceToDevice, s));
}
struct count_touch {
  unsigned char* counters;
  GIWA_HOST_DEVICE void operator()([[maybe_unused]] int64 i) const {
#if defined(__CUDA_ARCH__)
    count_byte(counters, i);
#endif
  }
};

struct on_gpu {
  template <class T, class Element>
  static std::string append(uint64 seed, append_data<T, Element>& data, append_memory<T, Element>& memory) {
    const giwa::stream s = new_stream();
    const gpu_memory<T, Element> gpu(memory), before(memory);
    const std::vector<problem_memory> all{memory_of(gpu.k_new),
                                          memory_of(gpu.v_new),
                                          memory_of(gpu.q),
                                          memory_of(gpu.q_to),
                                          memory_of(gpu.k),
                                          memory_of(gpu.v),
                                          memory_of(gpu.lengths),
                                          memory_of(gpu.indices),
                                          memory_of(gpu.page_offsets),
                                          memory_of(gpu.row_offsets),
                                          memory_of(gpu.slots),
                                          memory_of(gpu.positions),
                                          memory_of(gpu.wide_slots),
                                          memory_of(gpu.wide_positions),
                                          memory_of(gpu.k_scales),
                                          memory_of(gpu.v_scales),
                                          memory_of(gpu.cos),
                                          memory_of(gpu.sin)};
    const giwa::status state = run_in(
        mode_of(seed), s, all, [&] { return data.call(s, gpu.pointers()); },
        [&] {
          copy_again(gpu.k_new, before.k_new, s), copy_again(gpu.q, before.q, s), copy_again(gpu.q_to, before.q_to, s);
          copy_again(gpu.k, before.k, s), copy_again(gpu.v, before.v, s);
        });
    check_cuda(cudaStreamSynchronize(s));
    gpu.read_back(memory);
    return text_of(state);
  }
  template <class T, class O>
  static std::string merge(uint64 seed, const merge_data<T, O>& before, merge_data<T, O>& data) {
    const giwa::stream s = new_stream();
    const gpu_array<T> parts(data.parts), parts_before(data.parts);
    const gpu_array<float> parts_lse(data.parts_lse), lse(data.lse), lse_before(data.parts_lse);
    const gpu_array<O> o(data.o);
    const merge_target<O> to(data, parts.data(), parts_lse.data(), o.data(), lse.data());
    const giwa::status state = run_in(
        mode_of(seed), s, {memory_of(parts), memory_of(parts_lse), memory_of(lse), memory_of(o)},
        [&] {
          return giwa::merge_attention(s, data.o_parts(parts.data()), data.lse_parts(parts_lse.data()), data.out(to.o),
                                       data.out_lse(to.lse));
        },
        [&] { copy_again(parts, parts_before, s), copy_again(parts_lse, lse_before, s); });
    if (!state.ok()) return text_of(state);
    check_cuda(cudaStreamSynchronize(s));
    std::vector<O> result(data.o.size());
    std::vector<float> result_lse(data.lse.size());
    check_cuda(cudaMemcpy(result.data(), to.o, result.size() * sizeof(O), cudaMemcpyDeviceToHost));
    check_cuda(cudaMemcpy(result_lse.data(), to.lse, result_lse.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return before.failure(result.data(), result_lse.data());
  }
  template <class T, class U>
  static std::string softmax(uint64 seed, fuzz_matrix<T>& in, fuzz_matrix<U>& out) {
    const giwa::stream s = new_stream();
    const gpu_array<T> from(in.memory);
    const gpu_array<U> to(out.memory);
    const giwa::status state = run_in(
        mode_of(seed), s, {memory_of(from), memory_of(to)},
        [&] { return giwa::softmax(s, giwa::tensor_view<const T, 2>(in.view(from.data())), out.view(to.data())); },
        [&] { check_cuda(cudaMemsetAsync(to.data(), 0xff, to.bytes(), s)); });
    check_cuda(cudaStreamSynchronize(s));
    if (!same_bits(from.to_host(), in.memory)) return "the input was written";
    out.memory = to.to_host();
    return text_of(state);
  }
  static std::string for_all(uint64 seed, const for_all_sizes& n) {
    const giwa::stream s = new_stream();
    touch_counter counter(n.count());
    const run_mode mode = mode_of(seed) == run_mode::late ? run_mode::plain : mode_of(seed);
    const giwa::status state = run_in(
        mode, s, {}, [&] { return touch_all(s, n, count_touch{counter.data()}); }, [] {});
    if (!state.ok()) return text_of(state);
    check_cuda(cudaStreamSynchronize(s));
    const int64 wrong = counter.wrong(mode == run_mode::graph ? 2 : 1);
    return wrong == 0 ? "" : std::to_string(wrong) + " indices not reached exactly once";
  }
};
const small_fuzz<on_gpu> added;

}  // namespace
