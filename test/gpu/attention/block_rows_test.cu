// SPDX-License-Identifier: MIT
// attention_cached on a GPU with rows of blocks, against the reference.
#include <giwa/cache.cuh>
#include <giwa/host.hpp>

#include "gpu/attention/cached_gpu.cuh"
#include "support/append_blocks.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;
using giwa::q4_0;
using giwa::q8_0;

TEST_CASE("caches of q8_0 and q4_0") {
  CHECK(first_cached_fault<fp16, 128, 128, q8_0>(0, 1, 12, causal::bottom_right) == "");
  CHECK(first_cached_fault<bf16, 64, 64, q4_0>(3, 2, 12, causal::bottom_right) == "");
  CHECK(first_cached_fault<float, 96, 32, q8_0>(1, 5, 9, by_distance{}, own_score{}) == "");
}

TEST_CASE("rows are appended on the GPU to caches of blocks, with the bits of the CPU") {
  const auto fault = [](auto x, const auto& rotary) -> std::string {
    const gpu_array k_new(x.k_new), v_new(x.v_new), q(x.q), q_to(x.q_to);
    const gpu_array k(x.k), v(x.v);
    const gpu_array<int> table(x.table), lengths(x.lengths);
    const giwa::stream s = new_stream();
    const giwa::status state = x.call(s, k_new.data(), v_new.data(), q.data(), q_to.data(), k.data(), v.data(),
                                      table.data(), lengths.data(), rotary);
    if (!state.ok()) return giwa::format_status(state).c_str();
    check_cuda(cudaStreamSynchronize(s));
    if (const giwa::status of_host = x.call_on_host(rotary); !of_host.ok()) return giwa::format_status(of_host).c_str();
    if (!same_bits(k.to_host(), x.k) || !same_bits(v.to_host(), x.v) || !same_bits(q_to.to_host(), x.q_to))
      return "not the bits of the CPU";
    return x.fault(rotary);
  };
  const giwa::rotary_base inner(10000.0, {.size = 36, .interleaved = true, .first = 10});
  CHECK(fault(new_blocks<bf16, q8_0>{}, giwa::no_rotary{}) == "");
  CHECK(fault(new_blocks<fp16, q8_0>{}, giwa::rotary_base(10000.0, {.size = 96})) == "");
  CHECK(fault(new_blocks<float, q4_0>{}, inner) == "");
  CHECK(fault(new_blocks<bf16, q4_0>{}, giwa::rotary_base(10000.0, {.size = 64, .first = 16})) == "");
}
