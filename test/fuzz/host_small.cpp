// SPDX-License-Identifier: MIT
// append_to_cache, merge_attention, softmax and for_all on the CPU for the fuzz program.
#include <giwa/host.hpp>

#include "fuzz/fuzz.hpp"
#include "fuzz/small_calls.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::fuzz;

struct on_host {
  template <class T, class Element>
  static std::string append(uint64, append_data<T, Element>& data, append_memory<T, Element>& memory) {
    return text_of(data.call(giwa::host, pointers_to(memory)));
  }
  template <class T, class O>
  static std::string merge(uint64, const merge_data<T, O>& before, merge_data<T, O>& data) {
    const merge_target<O> to(data, data.parts.data(), data.parts_lse.data(), data.o.data(), data.lse.data());
    const giwa::status state =
        giwa::merge_attention(giwa::host, data.o_parts(), data.lse_parts(), data.out(to.o), data.out_lse(to.lse));
    return state.ok() ? before.failure(to.o, to.lse) : text_of(state);
  }
  template <class T, class U>
  static std::string softmax(uint64, fuzz_matrix<T>& in, fuzz_matrix<U>& out) {
    return text_of(giwa::softmax(giwa::host, giwa::tensor_view<const T, 2>(in.view(in.memory.data())),
                                 out.view(out.memory.data())));
  }
  static std::string for_all(uint64, const for_all_sizes& n) {
    std::vector<unsigned char> counts(static_cast<std::size_t>(n.count()), 0);
    const giwa::status state =
        touch_all(giwa::host, n, [at = counts.data()](int64 i) { ++at[static_cast<std::size_t>(i)]; });
    if (!state.ok()) return text_of(state);
    for (const unsigned char c : counts)
      if (c != 1) return "an index was reached " + std::to_string(c) + " times";
    return "";
  }
};
const small_fuzz<on_host> added;

}  // namespace
