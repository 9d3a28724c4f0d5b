// SPDX-License-Identifier: MIT
// Rows of 656 bytes on the CPU: attention_cached against the double reference, append_to_cache, and what is refused.
#include "host/attention/cached_check.hpp"
#include "support/append_rows.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::rows_656;

TEST_CASE("rows of 656 bytes") {
  faults f;
  for (int i = 0; i < 12; ++i) {
    cached_case_options c;
    c.seed = static_cast<uint64>(i);
    c.heads = 1 + i % 5;
    c.queries = {2, 2, 2};
    c.page_size = i % 3 == 0 ? 0 : 5 * i;
    c.keys = 90;
    c.most = c.page_size == 0 ? 0 : 90 / c.page_size + 1;
    c.lengths = {90, 0, 65};
    c.latent = true;
    f.add(cached_fault_of<giwa::bf16, 576, 512, giwa::rows_656>(c));
    f.add(cached_fault_of<float, 576, 512, giwa::rows_656>(c, giwa::causal::bottom_right));
    f.add(cached_fault_of<giwa::fp16, 576, 512, giwa::rows_656>(c, giwa::causal::bottom_right));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("append_to_cache makes rows of 656 bytes") {
  faults f;
  for (const bool interleaved : {false, true})
    for (const int offset : {0, 1}) {  // 1: by single elements
      new_rows<bf16> rows(offset);
      const auto cache = rows.cache();
      const giwa::rotary_base rotary(10000.0, {.size = 64, .interleaved = interleaved, .first = 512});
      REQUIRE(giwa::append_to_cache(giwa::host, cache, rows.k(), tensor_view<bf16, 4>(), rotary).ok());
      f.add(rows.fault(rotary));
    }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("rows of 656 bytes that are refused") {
  alignas(16) static rows_656 bytes[2 * 1000];
  static float q[576], o[512];
  const tensor_view<const float, 4> queries(q, {1, 1, 1, 576});
  const tensor_view<float, 4> to(o, {1, 1, 1, 512});
  const auto state_of = [&](const tensor_view<const rows_656, 4>& k) {
    return giwa::attention_cached<giwa::head_sizes<576, 512>>(giwa::host, giwa::kv_cache<const rows_656>{.k = k},
                                                              queries, to);
  };
  CHECK(state_of({bytes, {1, 2, 1, 656}}).ok());
  const auto says = [](const giwa::status& s, const char* words) {
    return std::string(s.message).find(words) != std::string::npos;
  };
  CHECK(says(state_of({bytes, {1, 2, 1, 640}}), "must be the bytes of a row"));
  CHECK(says(state_of({bytes + 1, {1, 1, 1, 656}}), "must begin at multiples of 16 bytes"));
  CHECK(says(state_of({bytes, {1, 2, 1, 656}, {1000, 700, 656, 1}}), "so must a stride"));
  const giwa::kv_cache<rows_656> cache{.k = {bytes, {1, 2, 1, 656}}};
  const tensor_view<const float, 4> k_new(q, {1, 1, 1, 576}), v_new(q, {1, 1, 1, 512});
  CHECK(giwa::append_to_cache(giwa::host, cache, k_new, tensor_view<const float, 4>()).ok());
  CHECK(says(giwa::append_to_cache(giwa::host, cache, k_new, v_new), "pass no v_new"));
  const giwa::kv_cache<rows_656> shifted{.k = {bytes + 1, {1, 2, 1, 656}}};
  CHECK(
      says(giwa::append_to_cache(giwa::host, shifted, k_new, tensor_view<const float, 4>()), "multiples of 16 bytes"));
  static float read[2 * 576];
  const auto read_of = [&](const tensor_view<const rows_656, 4>& k) {
    return giwa::read_cache(giwa::host, giwa::kv_cache<const rows_656>{.k = k},
                            tensor_view<float, 4>(read, {1, k.extent(1), 1, 576}), {});
  };
  CHECK(read_of({bytes, {1, 2, 1, 656}}).ok());
  CHECK(says(read_of({bytes, {1, 2, 1, 640}}), "must be the bytes of a row"));
  CHECK(says(read_of({bytes + 1, {1, 1, 1, 656}}), "must begin at multiples of 16 bytes"));
  CHECK(!giwa::append_to_cache(giwa::host, cache, k_new, tensor_view<const float, 4>(),
                               giwa::rotary_base(10000.0, {.size = 64}))
             .ok());
}
