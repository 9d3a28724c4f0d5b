// SPDX-License-Identifier: MIT
// read_cache on a GPU: the numbers of every element type.
#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"
#include "support/read_cache_case.hpp"

using namespace giwa_test;
using giwa::fp16;

TEST_CASE("caches become numbers") {
  const std::string faults = read_cache_faults([](auto& x) {
    const cached_on_gpu gpu(x.c);
    const gpu_array keys(x.keys), values(x.values);
    const giwa::stream s = new_stream();
    const giwa::status state =
        giwa::read_cache(static_cast<cudaStream_t>(s), gpu.views().cache, x.view(keys.data(), x.c.options.head_size),
                         x.view(values.data(), x.c.options.head_size_v));
    check_cuda(cudaStreamSynchronize(s));
    x.keys = keys.to_host(), x.values = values.to_host();
    return state;
  });
  CHECK(faults == "");
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
