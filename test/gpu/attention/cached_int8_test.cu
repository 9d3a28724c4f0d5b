// SPDX-License-Identifier: MIT
// attention_cached on a GPU with a cache of 8-bit integers: against the reference, and the bits of a row in any company.
#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;
using giwa::int8_code;

TEST_CASE("caches of 8-bit integers with scales of every shape") {
  CHECK(first_cached_fault<bf16, 128, 128, int8_code>(0, 1, 24, causal::bottom_right) == "");
  CHECK(first_cached_fault<fp16, 64, 64, int8_code, float>(3, 2, 14, by_distance{}, own_score{}) == "");
  CHECK(first_cached_fault<fp16, 256, 256, int8_code>(2, 3, 9, causal::bottom_right) == "");
  CHECK(first_cached_fault<float, 64, 64, int8_code>(1, 4, 8) == "");
}

TEST_CASE("sequences of 8-bit integers alone have the bits that they have in a batch, with 4, 12 and 24 rows") {
  for (const int64 page : {0, 16})
    for (const int64 group : {4, 12, 24}) {
      cached_case_options options;
      options.heads = 2 * group, options.kv_heads = 2;
      options.head_size = options.head_size_v = 128;
      options.queries = {1, 1, 1};
      options.keys = 1300, options.page_size = page,
      options.most = page == 0 ? 0 : giwa::ceil_div(giwa::int64{1300}, page);
      options.lengths = {1300, 517, 256};
      options.k_scales = options.v_scales = 7;
      cached_case<fp16, int8_code> c(options);
      CAPTURE(options.text());
      CHECK(cached_fault_on_gpu<128, 128>(c, giwa::full{}, giwa::plain_score{}) == "");
      const auto together = c.o;
      cached_on_gpu gpu(c);
      const giwa::stream s = new_stream();
      gpu.clear_outputs();
      const auto all = gpu.views();
      for (int64 b = 0; b < 3; ++b)
        for (int64 head = 0; head < 2; ++head)
          for (int64 part = 0; part < group; part += 4) {  // four heads of q: a tile of 8 rows
            auto one = all;
            const auto rows = [&](const auto& x) {
              auto y = x;
              y = {x.data() + b * x.stride(0) + (head * group + part) * x.stride(2), {1, 1, 4, 128}, x.strides()};
              return y;
            };
            one.q = rows(all.q), one.o = rows(all.o);
            const auto of_head = [&](auto& x) {
              auto extents = x.extents();
              if (page == 0) extents[0] = 1;
              extents[2] = 1;
              x = {x.data() + (page == 0 ? b : 0) * x.stride(0) + head * x.stride(2), extents, x.strides()};
            };
            of_head(one.cache.k), of_head(one.cache.v), of_head(one.cache.scales.k), of_head(one.cache.scales.v);
            one.cache.lengths += b;
            if (page != 0) one.cache.pages.indices += b * all.cache.pages.stride, one.cache.sequences = 1;
            REQUIRE(cached_of<128, 128>(s, one, giwa::full{}, giwa::plain_score{}, {}).ok());
          }
      gpu.read_back();
      CHECK(same_bits(c.o.memory, together.memory));
    }
}
