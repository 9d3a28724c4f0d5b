// SPDX-License-Identifier: MIT
// read_cache on a GPU: the numbers of every element type.
#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"
#include "support/read_cache_case.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

template <class T, class Element>
std::string fault_of(int64 head_size, int64 head_size_v) {
  for (int i = 0; i < 20; ++i) {
    read_cache_case<T, Element> x(
        read_cache_options(i, head_size, head_size_v, giwa::detail::takes_scales<Element> && sizeof(Element) == 1),
        i % 2 == 0 ? 100 : 70, i % 4 == 3 ? giwa::detail::codes_of<Element> : 8);
    const cached_on_gpu gpu(x.c);
    const gpu_array<T> keys(x.keys), values(x.values);
    const giwa::stream s = new_stream();
    const giwa::status state = giwa::read_cache(static_cast<cudaStream_t>(s), gpu.views().cache,
                                                x.view(keys.data(), head_size), x.view(values.data(), head_size_v));
    if (!state.ok()) return giwa::format_status(state).c_str();
    check_cuda(cudaStreamSynchronize(s));
    x.keys = keys.to_host(), x.values = values.to_host();
    if (const std::string fault = x.fault(); !fault.empty()) return fault;
  }
  return "";
}

}  // namespace

TEST_CASE("caches become numbers") {
  CHECK(fault_of<fp16, giwa::e4m3>(64, 64) == "");
  CHECK(fault_of<float, giwa::e4m3>(24, 40) == "");
  CHECK(fault_of<bf16, giwa::int8_code>(128, 96) == "");
  CHECK(fault_of<fp16, giwa::int4_pair>(64, 32) == "");
  CHECK(fault_of<float, giwa::q8_0>(64, 96) == "");
  CHECK(fault_of<float, giwa::q4_0>(96, 64) == "");
  CHECK(fault_of<fp16, fp16>(64, 64) == "");
}

TEST_CASE("memory of the host is refused on a stream, by name") {
  if (device_attribute(cudaDevAttrPageableMemoryAccess) != 0) return;
  read_cache_case<fp16, giwa::e4m3> x(read_cache_options(0, 64, 64, true), 90, 0);
  const cached_on_gpu gpu(x.c);
  const gpu_array<fp16> values(x.values);
  const giwa::stream s = new_stream();
  CHECK(std::string(giwa::read_cache(static_cast<cudaStream_t>(s), gpu.views().cache, x.view(x.keys.data(), 64),
                                     x.view(values.data(), 64))
                        .argument) == "keys");
}
