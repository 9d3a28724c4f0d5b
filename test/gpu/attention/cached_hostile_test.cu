// SPDX-License-Identifier: MIT
// attention_cached on a GPU where the device's numbers are out of range, inputs are not finite, or there is nothing to do.
#include <climits>

#include "gpu/attention/cached_gpu.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;

namespace {

cached_case_options mixed_case(int64 page_size) {
  cached_case_options c;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_size = c.head_size_v = 64;
  c.queries = {1, 3, 0, 2, 20};
  c.packed = true;
  c.page_size = page_size;
  c.keys = 600;
  c.most = page_size == 0 ? 0 : giwa::ceil_div(c.keys, page_size);
  c.lengths = {600, 3, 5, 0, 277};
  return c;
}

/// Sequences of one head and at most 100 keys.
cached_case_options in_small_pages(int64 page_size) {
  cached_case_options c;
  c.heads = c.kv_heads = 1;
  c.head_size = c.head_size_v = 64;
  c.keys = 100;
  c.page_size = page_size;
  c.most = giwa::ceil_div(c.keys, page_size);
  return c;
}

// bf16 on tensor cores, also with a cache of e4m3; fp32 without.
template <class T, class Element, class Mask = giwa::full>
std::string fault(cached_case<T, Element>& c, const Mask& mask = {}) {
  return cached_fault_on_gpu<64, 64>(c, mask, giwa::plain_score{});
}

template <class T, class Element>
void set_every_page(cached_case<T, Element>& c, int number, int64 element) {
  std::fill(c.indices.begin(), c.indices.end(), number);
  for (auto& of_sequence : c.element) std::fill(of_sequence.begin(), of_sequence.end(), element);
}

template <class T, class Element = T>
void check_strange_pages() {
  for (const int64 page : {6, 64}) {
    cached_case_options options = mixed_case(page);
    for (const int nowhere : {-1, INT_MAX, INT_MIN}) {
      cached_case<T, Element> c(options);
      set_every_page(c, nowhere, -1);
      CHECK(fault(c) == "");
    }
    options.strange = 3;
    options.lengths = {INT_MAX, INT_MIN, -1, 601, 599};
    for (const bool lists : {false, true}) {
      options.lists = lists;
      cached_case<T, Element> c(options);
      CHECK(fault(c) == "");
      CHECK(fault(c, causal::bottom_right) == "");
    }
    options.shared = true;
    options.strange = 0;
    options.lists = false;
    cached_case<T, Element> c(options);  // a page that every sequence has
    set_every_page(c, 3, 3);
    c.k.for_each(
        [&](std::size_t at) { c.k.memory[at] = giwa::convert<Element>{}(0.25f * static_cast<float>(at % 7)); });
    c.v.for_each([&](std::size_t at) { c.v.memory[at] = giwa::convert<Element>{}(static_cast<float>(at % 5)); });
    CHECK(fault(c, causal::bottom_right) == "");
  }
}

template <class T, class Element = T>
void check_nonfinite() {
  for (const bool in_k : {true, false})
    for (const float strange : {NAN, HUGE_VALF, -HUGE_VALF})
      for (const int64 key : {0, 130, 276}) {  // of the last sequence, which has 20 queries
        const int64 page_size = key == 130 ? 0 : 24;
        cached_case<T, Element> c(mixed_case(page_size));
        const int64 size = page_size == 0 ? 600 : page_size;
        const int64 element = c.element[4][static_cast<std::size_t>(key / size)];
        (in_k ? c.k : c.v).view()(element, key % size, 0, 1) = giwa::convert<Element>{}(strange);
        CHECK(fault(c, causal::bottom_right) == "");
        CHECK(fault(c) == "");
        if (small_mode()) return;
      }
}

}  // namespace

TEST_CASE("page numbers and lengths out of range, and pages that all sequences share") {
  check_strange_pages<bf16>();
  check_strange_pages<bf16, e4m3>();
  check_strange_pages<float>();
}

TEST_CASE("NaN and infinity in keys and values that some rows see") {
  check_nonfinite<bf16>();
  check_nonfinite<bf16, e4m3>();  // whose infinity is 448
  check_nonfinite<float>();
}

TEST_CASE("NaN in e4m3, and in scales") {
  cached_case_options options = mixed_case(6);
  options.k_scales = options.v_scales = 7;
  cached_case<bf16, e4m3> c(options);
  c.v.view()(c.element[0][2], 1, 0, 3) = e4m3::from_bits(0x7f);
  CHECK(cached_fault_on_gpu<64, 64>(c, causal::bottom_right, giwa::plain_score{}) == "");
  CHECK(std::isnan(giwa::convert<float>{}(c.o.view()(0, c.q_offsets[0], 0, 3))));
  CHECK(!std::isnan(giwa::convert<float>{}(c.o.view()(0, c.q_offsets[0], 0, 2))));
  c.k_scales.view()(c.element[4][46 - 1], 5, 1) = NAN;  // key 275 of 277, which the last two queries see
  CHECK(cached_fault_on_gpu<64, 64>(c, causal::bottom_right, giwa::plain_score{}) == "");
}

TEST_CASE("a scale does not affect rows that do not see its key, however large it is") {
  cached_case_options options = mixed_case(6);
  options.k_scales = options.v_scales = 7;
  cached_case<bf16, e4m3> c(options);
  const auto run = [&] {
    cached_on_gpu gpu(c);
    gpu.clear_outputs();
    const giwa::stream s = new_stream();
    REQUIRE(cached_of<64, 64>(s, gpu.views(), causal::bottom_right, giwa::plain_score{}, gpu.call_options()).ok());
    gpu.read_back();
  };
  run();
  const std::vector<bf16> expected = c.o.memory;
  const int64 first = c.q_offsets[4];  // key 276 is the last of 277: only the last of 20 queries sees it
  for (const float scale : {1e30f, HUGE_VALF, NAN, 0.f})
    for (const bool of_k : {true, false}) {
      CAPTURE(scale, of_k);
      float& changed = (of_k ? c.k_scales : c.v_scales).view()(c.element[4][46], 0, 0);
      const float before = changed;
      changed = scale;
      run();
      changed = before;
      bool same = true, last_is_nan = true;
      for (int64 query = 0; query < 20; ++query)
        for (int64 head = 0; head < 4; ++head)
          for (int64 d = 0; d < 64; ++d) {
            const auto* const x = &c.o.view()(0, first + query, head, d);
            const std::size_t at = static_cast<std::size_t>(x - c.o.memory.data());
            if (query < 19 || head > 1) same = same && same_bits(std::vector{*x}, std::vector{expected[at]});
            if (query == 19 && head < 2) last_is_nan = last_is_nan && std::isnan(giwa::convert<float>{}(*x));
          }
      CHECK(same);
      if (std::isnan(scale)) CHECK(last_is_nan);
    }
}

TEST_CASE("a scale of the only key of a leaf does not affect a row that sees no key of that leaf") {
  cached_case_options options;
  options.head_size = options.head_size_v = 64;
  options.queries = {2}, options.lengths = {257}, options.keys = 257;  // a leaf has 256 keys
  options.k_scales = options.v_scales = 7;
  cached_case<bf16, e4m3> c(options);
  std::vector<bf16> rows[2];
  for (const bool large : {false, true}) {
    if (large) c.v_scales.view()(0, 256, 0) = 1e30f;
    cached_on_gpu gpu(c);
    gpu.clear_outputs();
    const giwa::stream s = new_stream();
    REQUIRE(cached_of<64, 64>(s, gpu.views(), causal::bottom_right, giwa::plain_score{}, gpu.call_options()).ok());
    gpu.read_back();
    for (int64 d = 0; d < 64; ++d) rows[large ? 1 : 0].push_back(c.o.view()(0, 0, 0, d));
  }
  CHECK(same_bits(rows[0], rows[1]));
}

TEST_CASE("offsets of queries that are negative or end past the rows, and NaN in rows of no sequence") {
  for (const bool on_tensor_cores : {true, false}) {
    const auto check = [](auto& c) {
      for (const int64 row : {int64{0}, int64{1}, c.rows() - 1})
        for (int64 head = 0; head < 4; ++head)
          c.q.memory[static_cast<std::size_t>(&c.q.view()(0, row, head, 0) - c.q.memory.data())] = c.o.memory[0];
      CHECK(fault(c) == "");
      // Cut to the rows there are: the first sequence gains rows 0 and 1, the last one the three after it.
      cached_on_gpu gpu(c);
      auto offsets = c.q_offsets;
      offsets.front() = -7, offsets.back() = INT_MAX;
      check_cuda(cudaMemcpy(gpu.q_offsets.data(), offsets.data(), gpu.q_offsets.bytes(), cudaMemcpyHostToDevice));
      const giwa::stream s = new_stream();
      REQUIRE(cached_of<64, 64>(s, gpu.views(), giwa::full{}, giwa::plain_score{}, gpu.call_options(1 << 20)).ok());
      gpu.read_back();
      c.q_offsets.front() = 0, c.q_offsets.back() = static_cast<int>(c.rows());
      const auto answers =
          answers_of<std::remove_cvref_t<decltype(c.q.memory[0])>>(c, giwa::full{}, giwa::plain_score{});
      CHECK(judge<std::remove_cvref_t<decltype(c.q.memory[0])>>(c, answers).failure == "");
    };
    if (on_tensor_cores) {
      cached_case<bf16> c(mixed_case(16));
      check(c);
    } else {
      cached_case<float> c(mixed_case(16));
      check(c);
    }
  }
}

TEST_CASE("no keys, no queries, no sequences") {
  cached_case_options options = mixed_case(16);
  options.lengths = {0, -1, INT_MIN, 0, 0};
  options.sinks = true;
  cached_case<bf16> empty(options);
  CHECK(fault(empty) == "");
  options.queries = {0, 0, 0, 0, 0};
  cached_case<float> none(options);
  CHECK(fault(none, causal::bottom_right) == "");
  cached_on_gpu gpu(empty);
  gpu.clear_outputs();
  const giwa::stream s = new_stream();
  auto a = gpu.views();
  a.cache.sequences = a.packed.count = 0;
  const giwa::status forgotten = cached_of<64, 64>(s, a, giwa::full{}, giwa::plain_score{}, gpu.call_options());
  CHECK((!forgotten.ok() && forgotten.argument == std::string("sequences")));  // rows without sequences
  CHECK(same_bits(gpu.o.to_host(), gpu_array<bf16>(gpu.o.size()).to_host()));
}

// A block's items: keys in small pages, then none. What it does at the end of the first must not wait for the keys of the second.
TEST_CASE("many queries of sequences without keys after sequences with keys") {
  const int64 processors = device_attribute(cudaDevAttrMultiProcessorCount);
  for (const int64 page_size : {4, 16}) {
    cached_case_options c = in_small_pages(page_size);
    for (const int times : {2, 3}) {  // as many sequences as blocks with keys, then without
      c.queries.assign(static_cast<std::size_t>(times * processors), 16);
      c.lengths.assign(c.queries.size(), 0);
      std::fill_n(c.lengths.begin(), processors, 100);
      cached_case<bf16> of(c);
      CHECK(fault(of) == "");
    }
  }
}

// The items of a block: keys, then none five times. The warps that copy must have copied those keys before they wait
// for space for more items.
TEST_CASE("few queries of sequences without keys after a sequence with keys") {
  const int64 processors = device_attribute(cudaDevAttrMultiProcessorCount);
  for (const int64 page_size : {4, 16}) {
    cached_case_options c = in_small_pages(page_size);
    c.queries.assign(static_cast<std::size_t>(6 * processors), 1);
    c.lengths.assign(c.queries.size(), 0);
    for (std::size_t b = 0; b < c.lengths.size(); b += 6) c.lengths[b] = 100;
    cached_case<bf16> of(c);
    CHECK(fault(of) == "");
  }
}

TEST_CASE("memory of the host is refused on a stream, by name") {
  if (device_attribute(cudaDevAttrPageableMemoryAccess) != 0) return;
  cached_case_options options = mixed_case(16);
  options.k_scales = options.v_scales = 0;
  cached_case<bf16, e4m3> c(options);
  cached_on_gpu gpu(c);
  const giwa::stream s = new_stream();
  const auto of_host = c.views();
  const auto refused = [&](const auto& spoil, const char* argument) {
    auto a = gpu.views();
    spoil(a);
    const giwa::status state = cached_of<64, 64>(s, a, causal::bottom_right, giwa::plain_score{}, gpu.call_options());
    INFO(giwa::format_status(state).c_str());
    return state.argument == std::string(argument) && no_error_left();
  };
  CHECK(refused([&](auto& a) { a.q = of_host.q; }, "q"));
  CHECK(refused([&](auto& a) { a.cache.k = of_host.cache.k; }, "k"));
  CHECK(refused([&](auto& a) { a.cache.v = of_host.cache.v; }, "v"));
  CHECK(refused([&](auto& a) { a.o = of_host.o; }, "o"));
  CHECK(refused([&](auto& a) { a.cache.lengths = of_host.cache.lengths; }, "lengths"));
  CHECK(refused([&](auto& a) { a.cache.pages.indices = of_host.cache.pages.indices; }, "pages"));
  CHECK(refused([&](auto& a) { a.cache.scales.v = of_host.cache.scales.v; }, "scales"));
  CHECK(refused([&](auto& a) { a.packed.offsets = of_host.packed.offsets; }, "q_offsets"));
}
