// SPDX-License-Identifier: MIT
// attention_cached on the CPU where the device's numbers are out of range, inputs are not finite, or a prior is merged.
#include "host/attention/cached_check.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <climits>

#include "support/call_options.hpp"
#include "support/same_bits.hpp"

namespace {

using namespace giwa_test;
using giwa::causal;
using params_t = giwa::detail::cached_params<float, float, float, giwa::causal, giwa::plain_score>;

cached_case_options mixed_case() {
  cached_case_options c;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_size = c.head_size_v = 8;
  c.queries = {1, 3, 0, 2, 40};
  c.packed = true;
  c.page_size = 6;
  c.most = 20;
  c.lengths = {100, 3, 5, 0, 77};
  return c;
}

/// Parameters whose tensors are never read.
params_t params_with(const giwa::kv_cache<const float>& cache, const giwa::detail::packed_queries& packed, int64 batch,
                     int64 rows) {
  static float element[1];
  const tensor_view<float, 4> q(element, {batch, rows, 1, 1});
  return giwa::detail::cached_params_of(giwa::detail::cached_views<float, float, float>{q, q, cache, packed},
                                        giwa::causal::bottom_right, giwa::plain_score{}, {});
}
giwa::kv_cache<const float> cache_of(int64 first, int64 keys) {
  static float element[1];
  const tensor_view<const float, 4> k(element, {first, keys, 1, 1}, {0, 0, 0, 1});
  return {k, k, {}, nullptr, 0, {}};
}

/// Memory whose end is the end of what may be read.
struct guarded_ints {
  int64 page = sysconf(_SC_PAGESIZE);
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(2 * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  guarded_ints() {
    REQUIRE(memory != MAP_FAILED);
    REQUIRE(mprotect(static_cast<char*>(memory) + page, static_cast<std::size_t>(page), PROT_NONE) == 0);
  }
  ~guarded_ints() { munmap(memory, static_cast<std::size_t>(2 * page)); }
  guarded_ints(const guarded_ints&) = delete;
  /// A copy of `numbers` that ends where the memory does.
  int* place(const std::vector<int>& numbers) {
    int* const first = reinterpret_cast<int*>(static_cast<char*>(memory) + page) - numbers.size();
    std::copy(numbers.begin(), numbers.end(), first);
    return first;
  }
};

}  // namespace

TEST_CASE("offsets of queries that are negative, decrease, or end past the rows") {
  const int offsets[] = {-5, 3, 2, 7, 1000, INT_MAX, INT_MIN, 4};
  const params_t p = params_with(cache_of(7, 10), {offsets, 7, 0}, 1, 9);
  const int first[] = {0, 2, 2, 7, 9, 0, 0}, count[] = {3, 0, 5, 2, 0, 0, 4};
  for (int b = 0; b < 7; ++b) {
    const giwa::detail::cached_sequence s = p.at(b);
    INFO(b);
    CHECK(s.batch == b);
    CHECK(s.q_batch == 0);
    CHECK(s.first_query_row == first[b]);
    CHECK(s.queries == count[b]);
    CHECK(s.offset == s.keys - s.queries);
  }
}

TEST_CASE("lengths and lists of pages up to the limits") {
  const int64 limit = giwa::attention_limits::length;
  const int lengths[] = {INT_MAX, INT_MIN, -1, 0, 5};
  auto flat = cache_of(5, limit);
  flat.lengths = lengths;
  const params_t p = params_with(flat, {}, 5, 3);
  const int64 keys[] = {limit, 0, 0, 0, 5};
  for (int b = 0; b < 5; ++b) CHECK(p.at(b).keys == keys[b]);
  CHECK(p.at(0).offset == limit - 3);
  CHECK(p.at(1).offset == -3);
  CHECK(p.at(4).q_batch == 4);
  CHECK(p.row_of(p.at(0), static_cast<int>(limit - 1)).row == limit - 1);
  CHECK(p.row_of(p.at(4), 4).element == 4);

  // Lists: as long as the offsets say, at most `most`, none where they decrease or are negative.
  const int indices[] = {3, 1, 4, 2, 0, 1}, offsets[] = {0, 2, 2, -3, 1, 6}, all[] = {INT_MAX, INT_MAX, 7, 9, 33};
  auto paged = cache_of(5, 10);
  paged.pages = {indices, 0, offsets, 4};
  paged.sequences = 5;
  paged.lengths = all;
  const params_t lists = params_with(paged, {}, 5, 1);
  const int of_list[] = {20, 0, 0, 9, 33};
  for (int b = 0; b < 5; ++b) CHECK(lists.at(b).keys == of_list[b]);
  const int endless[] = {INT_MAX, INT_MAX, INT_MAX, INT_MAX, INT_MAX};  // the pages say how many keys there are
  paged.lengths = endless;
  const params_t clamped = params_with(paged, {}, 5, 1);
  const int of_pages[] = {20, 0, 0, 10, 40};  // the last list has 5 pages, and `most` is 4
  for (int b = 0; b < 5; ++b) CHECK(clamped.at(b).keys == of_pages[b]);
  CHECK(lists.row_of(lists.at(0), 19).element == 1);
  CHECK(lists.row_of(lists.at(0), 19).row == 9);
  CHECK(lists.row_of(lists.at(3), 8).element == 3);
  CHECK(lists.row_of(lists.at(4), 32).element == 0);

  // A page larger than its sequence, and a table of single keys with a row of its own for each sequence.
  auto large = cache_of(2, limit);
  large.pages = {indices + 1, 1, nullptr, 1};
  large.lengths = lengths;
  const params_t one = params_with(large, {}, 5, 1);
  CHECK(one.at(0).keys == limit);
  CHECK(one.row_of(one.at(0), static_cast<int>(limit - 1)).row == limit - 1);
  CHECK(one.row_of(one.at(0), 5).element == 1);
  CHECK(one.row_of(one.at(4), 4).element == 1);
  CHECK(one.page(one.at(1), 0) == -1);  // number 4 of 2 pages
}

TEST_CASE("numbers past the last that is needed are not read") {
  for (const bool lists : {false, true}) {
    cached_case_options options = mixed_case();
    options.lists = lists;
    cached_case<float> c(options);
    auto a = c.views();
    // The table ends with the last page that the last sequence needs.
    const int64 begin = lists ? c.page_offsets[4] : 4 * a.cache.pages.stride;
    const auto needed = static_cast<std::size_t>(begin + giwa::ceil_div(c.keys[4], int64{6}));
    guarded_ints table, lengths, offsets, rows;
    a.cache.pages.indices = table.place({c.indices.begin(), c.indices.begin() + static_cast<std::ptrdiff_t>(needed)});
    a.cache.lengths = lengths.place(options.lengths);
    a.packed.offsets = rows.place(c.q_offsets);
    if (lists) a.cache.pages.offsets = offsets.place(c.page_offsets);
    REQUIRE(cached_of<8, 8>(giwa::host, a, causal::bottom_right, giwa::plain_score{}, c.call_options()).ok());
    CHECK(judge<float>(c, answers_of<float>(c, causal::bottom_right, giwa::plain_score{})).failure == "");
  }
}

TEST_CASE("a page that every sequence has, and pages of zeros alone") {
  cached_case_options options = mixed_case();
  options.shared = true;
  options.most = 17;
  cached_case<float> c(options);
  std::fill(c.indices.begin(), c.indices.end(), 3);
  for (std::size_t b = 0; b < c.element.size(); ++b) std::fill(c.element[b].begin(), c.element[b].end(), 3);
  c.k.for_each([&](std::size_t at) { c.k.memory[at] = 0.5f * static_cast<float>(at % 7); });
  c.v.for_each([&](std::size_t at) { c.v.memory[at] = static_cast<float>(at % 5); });
  CHECK(cached_fault<8>(c, causal::bottom_right) == "");
  for (const int nowhere : {-1, INT_MAX, INT_MIN, 19}) {
    cached_case<float> zeros(options);
    std::fill(zeros.indices.begin(), zeros.indices.end(), nowhere);
    for (std::size_t b = 0; b < zeros.element.size(); ++b)
      std::fill(zeros.element[b].begin(), zeros.element[b].end(), -1);
    CHECK(cached_fault<8>(zeros) == "");
    CHECK(zeros.o.at(zeros.o.memory.data())(0, zeros.q_offsets[0], 0, 0) == 0);
  }
}

TEST_CASE("NaN and infinity in keys and values that some rows see") {
  faults f;
  for (const bool in_k : {true, false})
    for (const float strange : {NAN, HUGE_VALF, -HUGE_VALF})
      for (const int64 key : {0, 30, 76}) {
        cached_case<float> c(mixed_case());
        const int64 page = c.element[4][static_cast<std::size_t>(key / 6)];
        (in_k ? c.k : c.v).view()(page, key % 6, 0, 1) = strange;
        f.add(cached_fault<8>(c, causal::bottom_right));
        c.clear_outputs();
        f.add(cached_fault<8>(c));
      }
  // Rows of q that belong to no sequence.
  cached_case<float> c(mixed_case());
  for (const int64 row : {int64{0}, int64{1}, c.rows() - 1})
    for (int64 head = 0; head < 4; ++head) c.q.view()(0, row, head, 0) = NAN;
  f.add(cached_fault<8>(c));
  for (int64 row = 2; row < c.rows() - 3; ++row) CHECK(std::isfinite(c.o.view()(0, row, 3, 7)));
  CHECK_NO_FAULTS(f);
}

TEST_CASE("NaN in e4m3, and in scales") {
  faults f;
  cached_case_options options = mixed_case();
  options.k_scales = options.v_scales = 7;
  cached_case<float, giwa::e4m3> c(options);
  c.v.view()(c.element[0][2], 1, 0, 3) = giwa::e4m3::from_bits(0x7f);
  f.add(cached_fault<8>(c));
  CHECK(std::isnan(c.o.view()(0, c.q_offsets[0], 0, 3)));
  CHECK(!std::isnan(c.o.view()(0, c.q_offsets[0], 0, 2)));
  c.clear_outputs();
  c.k_scales.view()(c.element[4][0], 0, 1) = NAN;
  f.add(cached_fault<8>(c, causal::bottom_right));
  c.clear_outputs();
  f.add(cached_fault<8>(c));
  CHECK_NO_FAULTS(f);
}

TEST_CASE("the same bits in pages of any size, alone and in a batch, with any workspace") {
  cached_case_options options = mixed_case();
  options.page_size = 0;
  options.keys = 100;
  cached_case<float> flat(options);
  REQUIRE(
      cached_of<8, 8>(giwa::host, flat.views(), causal::bottom_right, giwa::plain_score{}, flat.call_options()).ok());
  for (const int64 size : {1, 6, 7, 64, 100, 128}) {
    options.page_size = size;
    options.most = giwa::ceil_div(int64{100}, size);
    cached_case<float> c(options);
    c.q.memory = flat.q.memory;
    for (int64 b = 0; b < 5; ++b)
      for (int64 key = 0; key < c.keys[static_cast<std::size_t>(b)]; ++key)
        for (int64 head = 0; head < 2; ++head)
          for (int64 d = 0; d < 8; ++d) {
            const int64 page = c.element[static_cast<std::size_t>(b)][static_cast<std::size_t>(key / size)];
            c.k.view()(page, key % size, head, d) = flat.k.view()(b, key, head, d);
            c.v.view()(page, key % size, head, d) = flat.v.view()(b, key, head, d);
          }
    alignas(16) unsigned char memory[48] = {};
    giwa::cached_options o = c.call_options();
    o.workspace = {memory, {size % 48}};
    REQUIRE(cached_of<8, 8>(giwa::host, c.views(), causal::bottom_right, giwa::plain_score{}, o).ok());
    CHECK(same_bits(c.o.memory, flat.o.memory));
    CHECK(same_bits(c.lse.memory, flat.lse.memory));
  }
  const auto a = flat.views();  // the last sequence alone
  const std::vector<float> whole = flat.o.memory, whole_lse = flat.lse.memory;
  flat.clear_outputs();
  const int rows[] = {flat.q_offsets[4], flat.q_offsets[5]};
  auto cache = a.cache;
  for (auto* v : {&cache.k, &cache.v}) *v = {v->data() + 4 * v->stride(0), {1, 100, 2, 8}, v->strides()};
  cache.lengths += 4;
  REQUIRE(giwa::attention_cached<8>(
              giwa::host, cache, without_batch(a.q), without_batch(a.o), causal::bottom_right, giwa::plain_score{},
              giwa_test::with(flat.call_options(), giwa::sequences{.q_offsets = rows, .count = 1, .max_q = 1}))
              .ok());
  int64 compared = 0;
  flat.o.for_each([&](std::size_t at) {
    if (std::isnan(flat.o.memory[at])) return;
    ++compared;
    CHECK(flat.o.memory[at] == whole[at]);
  });
  CHECK(compared == 40 * 4 * 8);
  CHECK(flat.lse.view()(0, 3, rows[1] - 1) ==
        whole_lse[static_cast<std::size_t>(&flat.lse.view()(0, 3, rows[1] - 1) - flat.lse.memory.data())]);
}
