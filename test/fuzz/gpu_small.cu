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
using giwa::bf16;
using giwa::e4m3;
using giwa::fp16;

template <class T>
void copy_again(const gpu_array<T>& to, const gpu_array<T>& from, cudaStream_t s) {
  check_cuda(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDeviceToDevice, s));
}
std::string text_of(const giwa::status& s) { return s.ok() ? "" : giwa::format_status(s).c_str(); }

template <class T, class Element>
std::string append_on_gpu(uint64 seed) {
  return append_fault_of<T, Element>(seed, [&](append_data<T, Element>& data, append_memory<T, Element>& memory) {
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
  });
}
std::string append_fault(uint64 seed) {
  switch (seed % 4) {
    case 0: return append_on_gpu<fp16, fp16>(seed);
    case 1: return append_on_gpu<bf16, e4m3>(seed);
    case 2: return append_on_gpu<float, float>(seed);
    default: return append_on_gpu<bf16, bf16>(seed);
  }
}
const fuzz_with append("append", append_fault);

template <class T, class O>
std::string merge_on_gpu(uint64 seed) {
  return merge_fault_of<T, O>(seed, [&](const merge_data<T, O>& before, merge_data<T, O>& data) -> std::string {
    const giwa::stream s = new_stream();
    const gpu_array<T> parts(data.parts), parts_before(data.parts);
    const gpu_array<float> parts_lse(data.parts_lse), lse(data.lse), lse_before(data.parts_lse);
    const gpu_array<O> o(data.o);
    O* to = o.data();
    float* to_lse = lse.data();
    if constexpr (std::is_same_v<T, O>)
      if (data.c.in_place >= 0) {
        to = parts.data() + data.c.in_place * data.c.strides()[0];
        to_lse = parts_lse.data() + data.c.in_place * data.c.rows();
      }
    const giwa::status state = run_in(
        mode_of(seed), s, {memory_of(parts), memory_of(parts_lse), memory_of(lse), memory_of(o)},
        [&] {
          return giwa::merge_attention(s, data.o_parts(parts.data()), data.lse_parts(parts_lse.data()), data.out(to),
                                       data.out_lse(to_lse));
        },
        [&] { copy_again(parts, parts_before, s), copy_again(parts_lse, lse_before, s); });
    if (!state.ok()) return text_of(state);
    check_cuda(cudaStreamSynchronize(s));
    std::vector<O> result(data.o.size());
    std::vector<float> result_lse(data.lse.size());
    check_cuda(cudaMemcpy(result.data(), to, result.size() * sizeof(O), cudaMemcpyDeviceToHost));
    check_cuda(cudaMemcpy(result_lse.data(), to_lse, result_lse.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return before.failure(result.data(), result_lse.data());
  });
}
std::string merge_fault(uint64 seed) {
  switch (seed % 4) {
    case 0: return merge_on_gpu<fp16, fp16>(seed);
    case 1: return merge_on_gpu<bf16, bf16>(seed);
    case 2: return merge_on_gpu<float, float>(seed);
    default: return merge_on_gpu<float, bf16>(seed);
  }
}
const fuzz_with merge("merge", merge_fault);

template <class T, class U>
std::string softmax_on_gpu(uint64 seed) {
  return softmax_fault_of<T, U>(seed, [&](fuzz_matrix<T>& in, fuzz_matrix<U>& out) -> std::string {
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
  });
}
std::string softmax_fault(uint64 seed) {
  switch (seed % 5) {
    case 0: return softmax_on_gpu<fp16, fp16>(seed);
    case 1: return softmax_on_gpu<bf16, bf16>(seed);
    case 2: return softmax_on_gpu<float, float>(seed);
    case 3: return softmax_on_gpu<fp16, float>(seed);
    default: return softmax_on_gpu<float, bf16>(seed);
  }
}
const fuzz_with softmax("softmax", softmax_fault);

template <int Rank>
struct count_index {
  unsigned char* counters;
  giwa::index<Rank> sizes;
  GIWA_DEVICE void operator()(const giwa::index<Rank>& i) const {
    int64 at = 0;
    for (int d = 0; d < Rank; ++d) at = at * sizes[d] + i[d];
    count_byte(counters, at);
  }
};
struct count_number {
  unsigned char* counters;
  GIWA_DEVICE void operator()(int64 i) const { count_byte(counters, i); }
};
std::string for_all_fault(uint64 seed) {
  const for_all_sizes n(seed);
  const giwa::stream s = new_stream();
  touch_counter counter(n.count());
  const auto call = [&] {
    if (n.rank == 1) return giwa::for_all(s, n.of[0], count_number{counter.data()});
    if (n.rank == 2)
      return giwa::for_all(s, giwa::extents{n.of[0], n.of[1]}, count_index<2>{counter.data(), {n.of[0], n.of[1]}});
    return giwa::for_all(s, giwa::extents{n.of[0], n.of[1], n.of[2]},
                         count_index<3>{counter.data(), {n.of[0], n.of[1], n.of[2]}});
  };
  const run_mode mode = mode_of(seed) == run_mode::late ? run_mode::plain : mode_of(seed);
  const giwa::status state = run_in(mode, s, {}, call, [] {});
  if (!state.ok()) return text_of(state) + n.text();
  check_cuda(cudaStreamSynchronize(s));
  const int64 wrong = counter.wrong(mode == run_mode::graph ? 2 : 1);
  return wrong == 0 ? "" : n.text() + ": " + std::to_string(wrong) + " indices not reached exactly once";
}
const fuzz_with all("for_all", for_all_fault);

}  // namespace
