// SPDX-License-Identifier: MIT
// The kernel of append_to_cache on the host executor: against double precision and the CPU's bits, by vectors and by elements.
#include <giwa/attention/append/append.cuh>
#include <giwa/base/throw.hpp>
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>

#include "host/attention/append_cases.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

// Runs the op of a rotation.
template <int Count, class T, class Element>
struct launch_op {
  giwa::detail::append_views<T, Element> a;
  int64 heads;  // of a slice

  template <class Rotary>
  std::string operator()(const Rotary& rotary) const {
    using op = giwa::detail::append_op<T, Element, Rotary, Count>;
    if (!giwa::detail::append_fits<Count>(a, rotary)) return left_out;
    const auto p = giwa::detail::append_params_of<Count>(a, rotary, heads);
    if constexpr (giwa::detail::scaled_element<Element>)
      if (a.finds_scales()) {
        using finder = giwa::detail::append_with_scales_op<T, Element, Rotary, Count>;
        const giwa::status s = giwa::launch(giwa::host, {.grid = 2, .block = 64}, finder{}, p);
        return s.ok() ? "" : giwa::format_status(s).c_str();
      }
    // Fewer blocks than there is work for: each goes round more than once.
    const giwa::status s = giwa::launch(giwa::host, {.grid = 2, .block = 64}, op{}, p);
    return s.ok() ? "" : giwa::format_status(s).c_str();
  }
};

template <int Count>
struct on_executor {
  int64 heads;
  int* runs;

  template <class T, class Element>
  std::string operator()(const append_data<T, Element>& data, append_memory<T, Element>& memory) const {
    append_memory<T, Element> of_cpu = memory;
    const auto p = pointers_to(memory);
    const std::string failure = data.with_rotary(p, launch_op<Count, T, Element>{data.views(p), heads});
    *runs += failure != left_out;
    if (!failure.empty()) return failure;
    const giwa::status s = data.call(giwa::host, pointers_to(of_cpu));
    if (!s.ok()) return giwa::format_status(s).c_str();
    return same_memory(memory, of_cpu) ? "" : "not the bits of the CPU";
  }
};

}  // namespace

TEST_CASE("the kernel of append_to_cache appends rows") {
  int vectors = 0, elements = 0;
  CHECK(append_failures<bf16, bf16>(append_cases(), on_executor<8>{1, &vectors}) == "");
  CHECK(append_failures<bf16, bf16>(append_cases(), on_executor<8>{5, &vectors}) == "");
  CHECK(append_failures<fp16, e4m3>(scale_cases(), on_executor<8>{2, &vectors}) == "");
  CHECK(append_failures<fp16, e4m3>(append_cases(), on_executor<8>{8, &vectors}) == "");
  CHECK(append_failures<bf16, int8_code>(scale_cases(), on_executor<8>{3, &vectors}) == "");
  CHECK(append_failures<float, float>(append_cases(), on_executor<4>{3, &vectors}) == "");
  CHECK(vectors > 100);  // the others have sizes or gaps that vectors do not fit
  CHECK(append_failures<bf16, bf16>(append_cases(), on_executor<1>{4, &elements}) == "");
  CHECK(append_failures<fp16, e4m3>(append_cases(), on_executor<1>{1, &elements}) == "");
  CHECK(elements == 76);  // all of them
}

TEST_CASE("the kernel of append_to_cache finds scales") {
  int vectors = 0, elements = 0;
  CHECK(append_failures<bf16, int8_code>(transformed_cases(), on_executor<8>{1, &vectors}) == "");
  CHECK(append_failures<float, e4m3>(transformed_cases(), on_executor<4>{2, &vectors}) == "");
  CHECK(append_failures<bf16, int8_code>(found_scale_cases(), on_executor<8>{5, &vectors}) == "");
  CHECK(vectors > 50);
  CHECK(append_failures<fp16, e4m3>(found_scale_cases(), on_executor<1>{4, &elements}) == "");
  CHECK(elements == 38);
}

TEST_CASE("a thread has several heads where there are many rows, and one where there are few") {
  using op = giwa::detail::append_op<bf16, bf16, giwa::no_rotary, 8>;
  const auto heads_for = [](int64 rows) {
    giwa::detail::append_views<bf16, bf16> a;
    a.k = {nullptr, {1, rows, 8, 128}};
    a.v = a.k;
    a.q = {nullptr, {1, rows, 32, 128}};
    a.cache.k = a.cache.v = {nullptr, {1, rows, 8, 128}};
    return giwa::detail::append_op_params<op, 8>(a, giwa::no_rotary{}).heads_of_slice;
  };
  CHECK(heads_for(1) == 1);
  CHECK(heads_for(64) == 1);
  CHECK(heads_for(16384) == 8);
}
