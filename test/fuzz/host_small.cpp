// SPDX-License-Identifier: MIT
// append_to_cache, merge_attention, softmax and for_all on the CPU for the fuzz program.
#include <giwa/host.hpp>

#include "fuzz/fuzz.hpp"
#include "fuzz/small_calls.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::fuzz;
using giwa::bf16;
using giwa::e4m3;
using giwa::fp16;

std::string text_of(const giwa::status& s) { return s.ok() ? "" : giwa::format_status(s).c_str(); }

template <class T, class Element>
std::string append_on_host(uint64 seed) {
  return append_fault_of<T, Element>(seed, [](append_data<T, Element>& data, append_memory<T, Element>& memory) {
    return text_of(data.call(giwa::host, pointers_to(memory)));
  });
}
std::string append_fault(uint64 seed) {
  switch (seed % 4) {
    case 0: return append_on_host<fp16, fp16>(seed);
    case 1: return append_on_host<bf16, e4m3>(seed);
    case 2: return append_on_host<float, float>(seed);
    default: return append_on_host<bf16, bf16>(seed);
  }
}
const fuzz_with append("append", append_fault);

template <class T, class O>
std::string merge_on_host(uint64 seed) {
  return merge_fault_of<T, O>(seed, [](const merge_data<T, O>& before, merge_data<T, O>& data) -> std::string {
    O* to = data.o.data();
    float* to_lse = data.lse.data();
    if constexpr (std::is_same_v<T, O>)
      if (data.c.in_place >= 0) {
        to = data.parts.data() + data.c.in_place * data.c.strides()[0];
        to_lse = data.parts_lse.data() + data.c.in_place * data.c.rows();
      }
    const giwa::status state =
        giwa::merge_attention(giwa::host, data.o_parts(), data.lse_parts(), data.out(to), data.out_lse(to_lse));
    return state.ok() ? before.failure(to, to_lse) : text_of(state);
  });
}
std::string merge_fault(uint64 seed) {
  switch (seed % 4) {
    case 0: return merge_on_host<fp16, fp16>(seed);
    case 1: return merge_on_host<bf16, bf16>(seed);
    case 2: return merge_on_host<float, float>(seed);
    default: return merge_on_host<float, bf16>(seed);
  }
}
const fuzz_with merge("merge", merge_fault);

template <class T, class U>
std::string softmax_on_host(uint64 seed) {
  return softmax_fault_of<T, U>(seed, [](fuzz_matrix<T>& in, fuzz_matrix<U>& out) {
    return text_of(giwa::softmax(giwa::host, giwa::tensor_view<const T, 2>(in.view(in.memory.data())),
                                 out.view(out.memory.data())));
  });
}
std::string softmax_fault(uint64 seed) {
  switch (seed % 4) {
    case 0: return softmax_on_host<fp16, fp16>(seed);
    case 1: return softmax_on_host<bf16, float>(seed);
    case 2: return softmax_on_host<float, float>(seed);
    default: return softmax_on_host<float, bf16>(seed);
  }
}
const fuzz_with softmax("softmax", softmax_fault);

std::string for_all_fault(uint64 seed) {
  const for_all_sizes n(seed);
  std::vector<unsigned char> counts(static_cast<std::size_t>(n.count()), 0);
  const auto touch = [&](int64 i) { ++counts[static_cast<std::size_t>(i)]; };
  giwa::status state;
  if (n.rank == 1)
    state = giwa::for_all(giwa::host, n.of[0], touch);
  else if (n.rank == 2)
    state = giwa::for_all(giwa::host, giwa::extents{n.of[0], n.of[1]},
                          [&](const giwa::index<2>& i) { touch(i[0] * n.of[1] + i[1]); });
  else
    state = giwa::for_all(giwa::host, giwa::extents{n.of[0], n.of[1], n.of[2]},
                          [&](const giwa::index<3>& i) { touch((i[0] * n.of[1] + i[1]) * n.of[2] + i[2]); });
  if (!state.ok()) return text_of(state) + n.text();
  for (const unsigned char c : counts)
    if (c != 1) return n.text() + ": an index was reached " + std::to_string(c) + " times";
  return "";
}
const fuzz_with all("for_all", for_all_fault);

}  // namespace
