// SPDX-License-Identifier: MIT
// Every refusal of attention_cached, with its argument, message and numbers; nothing is written then. Limits of supports().
#include "host/attention/cached_check.hpp"

#include <functional>
#include <string>

#include "support/call_options.hpp"
#include "support/same_bits.hpp"

namespace {

using namespace giwa_test;
using giwa::bound;
using giwa::status;
using giwa::status_code;

/// A right call, to be spoiled: 3 sequences, 4 heads over 2, 2 queries, pages of 5 keys, head sizes 8 and 4.
template <class Element>
struct call_of {
  cached_case<float, Element> c;
  giwa::detail::cached_views<float, Element, float> a;
  giwa::cached_options options;
  std::vector<float> prior_o, prior_lse;
  alignas(16) unsigned char memory[64] = {};

  explicit call_of(const cached_case_options& given = sizes(5))
      : c(given), a(c.views()), options(c.call_options()), prior_o(3 * 2 * 4 * 4), prior_lse(3 * 4 * 2) {}
  static cached_case_options sizes(int64 page_size) {
    cached_case_options c;
    c.heads = 4;
    c.kv_heads = 2;
    c.queries = {2, 2, 2};
    c.head_size = 8;
    c.head_size_v = 4;
    c.page_size = page_size;
    c.keys = 12;
    c.most = page_size == 0 ? 0 : 3;
    c.lengths = {11, 0, 7};
    c.sinks = true;
    c.k_scales = c.v_scales = sizeof(Element) == 1 ? 7 : -1;
    return c;
  }
  void set_prior() {
    options.prior = {tensor_view<float, 4>(prior_o.data(), a.o.extents()),
                     tensor_view<const float, 3>(prior_lse.data(), {3, 4, 2})};
  }
  template <class Which = giwa::any_queries, class Mask = giwa::full, class Score = giwa::plain_score>
  status run(const Mask& mask = {}, const Score& score = {}) const {
    return cached_of<8, 4, Which>(giwa::host, a, mask, score, options);
  }
  int64 written() const { return c.o.written() + c.lse.written(); }
};
using call_t = call_of<float>;
call_t contiguous() { return call_t(call_t::sizes(0)); }
call_t packed(int64 page_size = 5) {
  auto sizes = call_t::sizes(page_size);
  sizes.packed = true;
  return call_t(sizes);
}

template <class T, int Rank>
tensor_view<T, Rank> resized(const tensor_view<T, Rank>& v, int d, int64 size) {
  auto extents = v.extents();
  extents[d] = size;
  return {v.data(), extents, v.strides()};
}
template <class T, int Rank>
tensor_view<T, Rank> restrided(const tensor_view<T, Rank>& v, int d, int64 stride) {
  auto strides = v.strides();
  strides[d] = stride;
  return {v.data(), v.extents(), strides};
}
template <class T, int Rank>
tensor_view<T, Rank> moved(const tensor_view<T, Rank>& v, const void* to) {
  return {static_cast<T*>(const_cast<void*>(to)), v.extents(), v.strides()};
}

struct expectation {
  const char* argument;
  const char* words;  // part of the message
  bound relation = bound::none;
  int64 expected = 0, got = 0;
};

template <class Call>
void refused(const Call& call, const status& s, const expectation& e) {
  INFO(giwa::format_status(s).c_str() << " / " << e.argument << ": " << e.words);
  CHECK(s.code == status_code::invalid_argument);
  CHECK(s.argument == std::string(e.argument));
  CHECK(std::string(s.message).find(e.words) != std::string::npos);
  CHECK(s.relation == e.relation);
  if (e.relation != bound::none) {
    CHECK(s.expected == e.expected);
    CHECK(s.got == e.got);
  }
  CHECK(call.written() == 0);
}
/// The same after `spoil(call)`, of a call without a mask.
void refused_after(const std::function<void(call_t&)>& spoil, const expectation& e, call_t call = call_t()) {
  spoil(call);
  refused(call, call.run(), e);
}

}  // namespace

TEST_CASE("the calls that are spoiled below are right") {
  for (call_t call : {call_t(), contiguous(), packed(), packed(0)}) {
    call.a = call.c.views();  // of the copy
    call.options = call.c.call_options();
    CHECK(call.run().ok());
    CHECK(call.run<giwa::few_queries>().ok());
    CHECK(call.written() > 0);
  }
  CHECK(call_of<giwa::e4m3>().run().ok());
}

TEST_CASE("page tables and lengths") {
  const auto exactly = bound::exactly, at_least = bound::at_least;
  refused_after([](call_t& c) { c.a.cache.lengths = nullptr; }, {"lengths", "needs the lengths"});
  refused_after([](call_t& c) { c.a.cache.pages.indices = nullptr; },
                {"pages", "the pointer to the indices is null", exactly, 0, 3});
  refused_after([](call_t& c) { c.a.cache.pages.most = 2; }, {"pages", "the indices is null", exactly, 0, 2},
                contiguous());
  refused_after([](call_t& c) { c.a.cache.pages.offsets = c.c.options.lengths.data(); },
                {"pages", "the indices is null, so there must be no offsets"}, contiguous());
  refused_after([](call_t& c) { c.a.cache.sequences = 3; }, {"sequences", "must be 0", exactly, 0, 3}, contiguous());
  refused_after([](call_t& c) { c.a.cache.sequences = -1; }, {"sequences", "is negative", at_least, 0, -1});
  refused_after([](call_t& c) { c.a.cache.pages.most = -1; }, {"pages", "is negative", at_least, 0, -1});
  refused_after([](call_t& c) { c.a.cache.pages.most = 0; }, {"pages", "needs `most`", at_least, 1, 0});
  refused_after([](call_t& c) { c.a.cache.pages.most = 0; }, {"pages", "needs `most`", at_least, 1, 0}, packed());
  refused_after([](call_t& c) { c.a.cache.sequences = 2; }, {"sequences", "as many sequences as q", exactly, 3, 2});
  refused_after([](call_t& c) { c.a.packed.count = 2; }, {"sequences", "as many sequences as q", exactly, 2, 3},
                packed());
  refused_after([](call_t& c) { c.a.packed.count = 2; }, {"k", "as many sequences as q", exactly, 2, 3}, packed(0));
  refused_after([](call_t& c) { c.a.cache.k = resized(c.a.cache.k, 1, 0), c.a.cache.v = resized(c.a.cache.v, 1, 0); },
                {"k", "a page must have at least one key", at_least, 1, 0});
  const int64 most = giwa::attention_limits::length / 5;
  refused_after([&](call_t& c) { c.a.cache.pages.most = most + 1; },
                {"pages", "too many keys", bound::at_most, most, most + 1});
  refused_after([](call_t& c) { c.a.cache.pages.stride = giwa::max_int64 / 2; }, {"pages", "too large"});
  refused_after([](call_t& c) { c.a.packed.offsets = nullptr; }, {"k", "as many sequences as q", exactly, 1, 3},
                packed(0));  // q of rank 4 with a batch of 1
  const call_t rank_3 = packed();
  refused(rank_3,
          giwa::attention_cached<giwa::head_sizes<8, 4>>(giwa::host, rank_3.a.cache, without_batch(rank_3.a.q),
                                                         without_batch(rank_3.a.o)),
          {"q_offsets", "the pointer is null"});
  refused(rank_3,
          giwa::attention_cached_reference(giwa::host, rank_3.a.cache, without_batch(rank_3.a.q),
                                           without_batch(rank_3.a.o)),
          {"q_offsets", "the pointer is null"});
  refused_after([](call_t& c) { c.a.packed.count = -1; }, {"sequences", "is negative", at_least, 0, -1}, packed());
  refused_after([](call_t& c) { c.a.packed.most = -1; }, {"sequences", "is negative", at_least, 0, -1}, packed());
}

TEST_CASE("a page table without sequences needs no pages, but rows need the number of sequences") {
  call_t call = packed();
  call.a.cache.pages.most = call.a.cache.sequences = call.a.packed.count = 0;
  const expectation forgotten{"sequences", "count is 0", bound::at_least, 1, 0};
  refused(call, call.run(), forgotten);
  refused(call, call.run<giwa::few_queries>(), forgotten);
  refused(call,
          giwa::attention_cached_reference(giwa::host, call.a.cache, without_batch(call.a.q), without_batch(call.a.o),
                                           {.sequences = giwa_test::sequences_of(call.a.packed)}),
          forgotten);
  refused_after([](call_t& c) { c.a.packed.count = 0; }, forgotten, packed(0));
  call.a.q = resized(call.a.q, 1, 0), call.a.o = resized(call.a.o, 1, 0), call.options.lse = {};
  CHECK(call.run().ok());
  CHECK(call.written() == 0);
}

TEST_CASE("members of sequences that a call with a cache does not have") {
  static const int numbers[4] = {};
  struct spoiled {
    giwa::sequences of;
    expectation e;
  };
  const spoiled all[] = {
      {{.k_offsets = numbers}, {"k_offsets", "keys of a cache have no offsets"}},
      {{.k_lengths = numbers}, {"k_lengths", "the lengths of keys of a cache are kv_cache::lengths"}},
      {{.k_batch_index = numbers}, {"k_batch_index", "use a page table"}},
      {{.q_lengths = numbers}, {"q_lengths", "queries have offsets, not lengths"}},
      {{.count = -1}, {"sequences", "the number of sequences is negative", bound::at_least, 0, -1}},
      {{.max_q = -1}, {"sequences", "max_q is negative", bound::at_least, 0, -1}},
  };
  for (const spoiled& s : all) {
    refused_after([&](call_t& c) { c.options.sequences = s.of; }, s.e);
    const call_t call;
    refused(call, giwa::detail::check_sequences_of_cache(s.of, true, 3), s.e);
    std::vector<double> o(3 * 2 * 4 * 4, -1.0);
    auto options = call.options;
    options.sequences = s.of;
    refused(call,
            giwa::attention_cached_reference(giwa::host, call.a.cache, call.a.q,
                                             tensor_view<double, 4>(o.data(), call.a.o.extents()), giwa::full{},
                                             giwa::plain_score{}, options),
            s.e);
    CHECK(o == std::vector<double>(o.size(), -1.0));
  }
  refused_after([](call_t& c) { c.options.sequences.q_offsets = numbers; },
                {"q_offsets", "tensors of rank 4 take lengths"});
  refused_after([](call_t& c) { c.options.sequences.count = 4; },
                {"sequences", "the batch of q, or 0", bound::exactly, 3, 4});
  for (const int64 count : {0, 3}) {
    call_t call;
    call.options.sequences.count = count;
    CHECK(call.run().ok());
  }
}

TEST_CASE("a page table with a stride of 0 gives all sequences the same pages") {
  call_t call, each;
  const std::vector<int> lengths{11, 8, 7};
  std::vector<int> table;
  for (int b = 0; b < 3; ++b)
    for (int n = 0; n < 3; ++n) table.push_back(call.c.indices[static_cast<std::size_t>(n)]);
  call.a.cache.lengths = each.a.cache.lengths = lengths.data();
  call.a.cache.pages.stride = 0;
  each.a.cache.pages.indices = table.data();
  each.a.cache.pages.stride = 3;
  REQUIRE(call.run().ok());
  REQUIRE(each.run().ok());
  CHECK(call.written() > 0);
  CHECK(same_bits(call.c.o.elements<float>(), each.c.o.elements<float>()));
}

TEST_CASE("sizes that do not belong together, and views that are none") {
  const auto exactly = bound::exactly;
  refused_after([](call_t& c) { c.a.q = resized(c.a.q, 3, 7); }, {"q", "compiled for", exactly, 8, 7});
  refused_after([](call_t& c) { c.a.cache.v = resized(c.a.cache.v, 3, 3); }, {"v", "compiled for", exactly, 4, 3});
  refused_after([](call_t& c) { c.a.cache.k = resized(c.a.cache.k, 0, 1); },
                {"k", "k must have as many sequences as q", exactly, 3, 1}, contiguous());
  refused_after([](call_t& c) { c.a.cache.v = resized(c.a.cache.v, 1, 4); },
                {"v", "v must have as many rows as k", exactly, 5, 4});
  refused_after([](call_t& c) { c.a.cache.v = resized(c.a.cache.v, 2, 1); },
                {"v", "v must have as many heads as k", exactly, 2, 1});
  refused_after([](call_t& c) { c.a.cache.k = resized(c.a.cache.k, 3, 4); },
                {"k", "k must have the head size of q", exactly, 8, 4});
  refused_after([](call_t& c) { c.a.o = resized(c.a.o, 1, 1); }, {"o", "o must have as many rows as q", exactly, 2, 1});
  refused_after([](call_t& c) { c.a.q = resized(c.a.q, 2, 3), c.a.o = resized(c.a.o, 2, 3); },
                {"q", "must be a multiple of", bound::multiple_of, 2, 3});
  refused_after([](call_t& c) { c.a.cache.k = restrided(c.a.cache.k, 3, 2); }, {"k", "stride 1", exactly, 1, 2});
  refused_after([](call_t& c) { c.a.cache.v = moved(c.a.cache.v, nullptr); }, {"v", "the pointer must not be null"});
  refused_after([](call_t& c) { c.a.o = restrided(c.a.o, 1, 0); }, {"o", "must not be zero"});
  refused_after([](call_t& c) { c.options.scale = NAN; }, {"scale", "finite and at most 1e38"});
  refused_after([](call_t& c) { c.options.lse = resized(c.options.lse, 1, 3); },
                {"lse", "it must have as many heads as q", exactly, 4, 3});
  refused_after([](call_t& c) { c.options.sinks = resized(c.options.sinks, 0, 3); },
                {"sinks", "one sink for each head of q", exactly, 4, 3});
}

TEST_CASE("scales") {
  refused_after(
      [](call_t& c) {
        c.a.cache.scales.v = {c.prior_o.data(), {1, 1, 1}};
      },
      {"scales", "only a cache of 8-bit or 4-bit numbers"});
  constexpr const char* words[3] = {"the first size must be 1", "one for each row of k", "one for each head of k"};
  for (int d = 0; d < 3; ++d)
    for (const bool of_k : {true, false}) {
      call_of<giwa::e4m3> call;
      auto& scales = of_k ? call.a.cache.scales.k : call.a.cache.scales.v;
      const int64 size = scales.extent(d);
      scales = resized(scales, d, size - 1 == 1 ? size + 1 : size - 1);
      refused(call, call.run(), {"scales", words[d], bound::exactly, size, scales.extent(d)});
    }
  call_of<giwa::e4m3> call;
  call.a.cache.scales.k = moved(call.a.cache.scales.k, nullptr);
  refused(call, call.run(), {"scales", "must not be null"});
}

TEST_CASE("values that are columns of the keys") {
  call_t call;
  call.a.cache.v = {call.a.cache.k.data(), call.a.cache.v.extents(), call.a.cache.k.strides()};
  CHECK(call.run().ok());  // the first columns
  const auto v = call.a.cache.v;
  for (const int64 column : {1, 3, 4}) {  // of the last four
    call_t other;
    other.a.cache.v = {other.a.cache.k.data() + column, v.extents(), v.strides()};
    if (column < 4)
      refused(other, other.run(), {"v", "is not its first columns"});
    else
      CHECK(other.run().ok());  // apart from the columns that the first ones would be
  }
  call_t narrow;  // k has the first columns of v: not a cache of which v is the first columns
  narrow.a.cache.v = narrow.a.cache.k;
  narrow.a.cache.k = resized(narrow.a.cache.k, 3, 4);
  CHECK(giwa::detail::check_shared_values(narrow.a.cache).message ==
        std::string("v shares memory with k and is not its first columns"));
  narrow.a.cache.v = resized(narrow.a.cache.v, 3, 4);
  CHECK(giwa::detail::check_shared_values(narrow.a.cache).ok());
  // Keys and values in turns: each page has the rows of k, then those of v, with other strides.
  std::vector<float> pool(8 * 5 * 2 * 12);
  call_t page;
  page.a.cache.k = {pool.data(), {8, 5, 2, 8}, {120, 16, 8, 1}};
  page.a.cache.v = {pool.data() + 80, {8, 5, 2, 4}, {120, 8, 4, 1}};
  CHECK(page.run().ok());
  call_t row;  // and in each row
  row.a.cache.k = {pool.data(), {8, 5, 2, 8}, {120, 24, 12, 1}};
  row.a.cache.v = {pool.data() + 8, {8, 5, 2, 4}, {120, 24, 12, 1}};
  CHECK(row.run().ok());
}

TEST_CASE("above a head size of 512, values are columns of the keys") {
  cached_case_options options = call_t().c.options;
  options.head_size = 576, options.head_size_v = 512;
  for (const bool latent : {true, false}) {
    options.latent = latent;
    cached_case<float> c(options);
    const giwa::status s =
        cached_of<576, 512>(giwa::host, c.views(), giwa::full{}, giwa::plain_score{}, c.call_options());
    CHECK(s.ok() == latent);
    if (!latent) CHECK(s.message == std::string("above a head size of 512, v must be the first columns of k"));
  }
  // Without pages, values elsewhere are no other values.
  float keys[576]{}, values[512]{};
  const giwa::kv_cache<const float> none{.k = {keys, {0, 1, 1, 576}, {576, 576, 576, 1}},
                                         .v = {values, {0, 1, 1, 512}, {512, 512, 512, 1}}};
  CHECK(giwa::detail::values_are_first_columns(none));
}

TEST_CASE("memory that is written and read") {
  struct input {
    const char* argument;
    std::function<const void*(const call_of<giwa::e4m3>&)> address;
  };
  using call8 = call_of<giwa::e4m3>;
  const input inputs[] = {
      {"q", [](const call8& c) { return c.a.q.data(); }},
      {"k", [](const call8& c) { return c.a.cache.k.data(); }},
      {"v", [](const call8& c) { return c.a.cache.v.data(); }},
      {"q_offsets", [](const call8& c) { return c.a.packed.offsets; }},
      {"lengths", [](const call8& c) { return c.a.cache.lengths; }},
      {"pages", [](const call8& c) { return c.a.cache.pages.indices; }},
      {"scales", [](const call8& c) { return c.a.cache.scales.k.data(); }},
      {"scales", [](const call8& c) { return c.a.cache.scales.v.data(); }},
      {"sinks", [](const call8& c) { return c.options.sinks.data(); }},
  };
  // One row of 4 elements, so that what is moved onto an input does not reach another one.
  auto sizes = call8::sizes(5);
  sizes.packed = true;
  sizes.heads = sizes.kv_heads = 1;
  sizes.queries = {1};
  sizes.lengths = {7};
  const auto small = [](call8& c) {
    c.a.q = resized(c.a.q, 1, 1), c.a.o = resized(c.a.o, 1, 1);
    c.options.lse = resized(c.options.lse, 2, 1);
  };
  for (const input& i : inputs) {
    INFO(i.argument);
    call8 o(sizes), lse(sizes), workspace(sizes);
    for (call8* c : {&o, &lse, &workspace}) small(*c);
    o.a.o = moved(o.a.o, i.address(o));
    refused(o, o.run(), {i.argument, "must not overlap o"});
    lse.options.lse = moved(lse.options.lse, i.address(lse));
    refused(lse, lse.run(), {i.argument, "must not overlap lse"});
    const auto start = reinterpret_cast<std::uintptr_t>(i.address(workspace)) & ~std::uintptr_t{15};
    workspace.options.workspace = {reinterpret_cast<unsigned char*>(start), {16}};
    refused(workspace, workspace.run(), {i.argument, "must not overlap the workspace"});
  }
  sizes.lists = true;
  call8 lists(sizes), first(sizes);
  small(lists), small(first);
  lists.options.lse = moved(lists.options.lse, lists.a.cache.pages.offsets + 1);
  refused(lists, lists.run(), {"pages", "must not overlap lse"});
  first.options.lse = moved(first.options.lse, first.a.cache.pages.indices);
  refused(first, first.run(), {"pages", "must not overlap lse"});
  refused_after([](call_t& c) { c.options.lse = moved(c.options.lse, c.a.o.data()); }, {"lse", "lse overlaps o"});
}

TEST_CASE("workspaces") {
  for (const int64 size : {1, 16, 64}) {  // any size
    call_t call;
    call.options.workspace = {call.memory, {size}};
    CHECK(call.run().ok());
  }
  refused_after(
      [](call_t& c) {
        c.options.workspace = {nullptr, {16}};
      },
      {"workspace", "the pointer must not be null"});
  refused_after([](call_t& c) { c.options.workspace = {c.memory + 8, {16}}; }, {"workspace", "16-byte aligned"});
  refused_after(
      [](call_t& c) {
        c.options.workspace = {c.memory, {8}, {2}};
      },
      {"workspace", "stride 1", bound::exactly, 1, 2});
  const auto at = [](const void* p) {
    return tensor_view<unsigned char, 1>(
        reinterpret_cast<unsigned char*>(reinterpret_cast<std::uintptr_t>(p) & ~std::uintptr_t{15}), {32});
  };
  refused_after([&](call_t& c) { c.options.workspace = at(c.a.o.data()); }, {"workspace", "overlaps o"});
  refused_after([&](call_t& c) { c.options.workspace = at(c.options.lse.data()); }, {"workspace", "overlaps lse"});
}

TEST_CASE("priors") {
  const auto spoiled = [](const std::function<void(call_t&)>& spoil, const expectation& e) {
    refused_after(
        [&](call_t& c) {
          c.set_prior();
          spoil(c);
        },
        e);
  };
  const auto exactly = bound::exactly;
  spoiled([](call_t& c) { c.options.prior.lse = {}; }, {"prior", "an o without its lse"});
  spoiled([](call_t& c) { c.options.prior.o = {}; }, {"prior", "an lse without its o"});
  spoiled(
      [](call_t& c) {
        c.options.prior.o = tensor_view<const double, 4>(nullptr, {3, 2, 4, 4});
      },
      {"prior", "the element type of the o"});
  const auto o_of = [](call_t& c) { return c.options.prior.o.view<float>(); };
  const int64 sizes[4] = {3, 2, 4, 4};
  for (int d = 0; d < 4; ++d)
    spoiled([&](call_t& c) { c.options.prior.o = resized(o_of(c), d, 1); },
            {"prior", "the sizes of the o", exactly, sizes[d], 1});
  const int64 of_lse[3] = {3, 4, 2};
  for (int d = 0; d < 3; ++d)
    spoiled([&](call_t& c) { c.options.prior.lse = resized(c.options.prior.lse, d, 1); },
            {"prior", "its lse is (batch, heads, queries)", exactly, of_lse[d], 1});
  spoiled([&](call_t& c) { c.options.prior.o = restrided(o_of(c), 3, 2); },
          {"prior", "the last dimension must be contiguous", exactly, 1, 2});
  spoiled([&](call_t& c) { c.options.prior.o = moved(o_of(c), nullptr); }, {"prior", "must not be null"});
  spoiled([](call_t& c) { c.options.prior.lse = moved(c.options.prior.lse, nullptr); }, {"prior", "must not be null"});
  spoiled([&](call_t& c) { c.options.prior.o = moved(o_of(c), c.a.o.data() + 4); },
          {"prior", "overlaps o and is not the same view"});
  spoiled([](call_t& c) { c.options.prior.lse = moved(c.options.prior.lse, c.a.o.data()); }, {"prior", "overlaps o"});
  spoiled([](call_t& c) { c.options.prior.lse = moved(c.options.prior.lse, c.options.lse.data() + 1); },
          {"prior", "overlaps lse and is not the same view"});
  spoiled([&](call_t& c) { c.options.prior.o = moved(o_of(c), c.options.lse.data()); }, {"prior", "overlaps lse"});
  spoiled(
      [](call_t& c) {
        c.options.prior.lse = moved(c.options.prior.lse, c.memory);
        c.options.workspace = {c.memory, {64}};
      },
      {"prior", "overlaps the workspace"});
  spoiled(
      [&](call_t& c) {
        c.options.prior.o = moved(o_of(c), c.memory);
        c.options.workspace = {c.memory, {64}};
      },
      {"prior", "overlaps the workspace"});
  call_t in_place;
  in_place.options.prior = {in_place.a.o, in_place.options.lse};
  CHECK(in_place.run().ok());
}

TEST_CASE("few queries") {
  const auto many = [](int64 queries, bool is_packed) {
    auto sizes = call_t::sizes(5);
    sizes.queries = {queries, queries, queries};
    sizes.packed = is_packed;
    return sizes;
  };
  for (const bool is_packed : {false, true}) {
    CHECK(call_t(many(16, is_packed)).run<giwa::few_queries>().ok());  // 2 heads for each head of k
    const call_t call(many(17, is_packed));
    refused(call, call.run<giwa::few_queries>(), {"few_queries", "too many queries", bound::at_most, 32, 34});
    CHECK(call.run().ok());
  }
  call_t unknown = packed();
  unknown.a.packed.most = 0;
  refused(unknown, unknown.run<giwa::few_queries>(), {"max_q", "the most queries", bound::at_least, 1, 0});
  CHECK(unknown.run().ok());
  call_t empty = packed();  // without rows there is nothing to know
  empty.a.packed.most = 0;
  empty.a.q = resized(empty.a.q, 1, 0), empty.a.o = resized(empty.a.o, 1, 0);
  empty.options.lse = {};
  CHECK(empty.run<giwa::few_queries>().ok());
}

TEST_CASE("as many queries and heads as a tile of rows can number") {
  const int64 group = 1 << 20;
  for (const bool is_packed : {false, true}) {
    call_t call = is_packed ? packed() : call_t();  // whose memory is not touched
    const int64 queries = giwa::attention_limits::length / group + 1;
    const auto enlarge = [&](auto& v) { v = {v.data(), {v.extent(0), queries, 2 * group, v.extent(3)}, {0, 0, 0, 1}}; };
    enlarge(call.a.q), enlarge(call.a.o);
    refused(call, call.run(),
            {"q", "too many queries of a sequence times heads", bound::at_most, giwa::attention_limits::length,
             queries * group});
  }
}

TEST_CASE("masks, score modifiers and the diagonal") {
  const call_t call, flat = contiguous(), of_packed = packed();
  refused(call, call.run(giwa::causal{}), {"mask", "the diagonal must be chosen"});
  refused(of_packed, of_packed.run(giwa::causal{}), {"mask", "the diagonal must be chosen"});
  refused(flat, flat.run(giwa::causal{}), {"mask", "the diagonal must be chosen"});
  auto sizes = call_t::sizes(0);
  sizes.lengths = {};
  const call_t without_lengths(sizes);
  refused(without_lengths, without_lengths.run(giwa::causal{}), {"mask", "the diagonal must be chosen"});
  sizes.keys = 2;
  CHECK(call_t(sizes).run(giwa::causal{}).ok());  // as many keys as queries
  refused(call, call.run(giwa::causal::top_left & giwa::keys_back{3, giwa::alignment::bottom_right}),
          {"mask", "ask for different diagonals"});
  refused(call, call.run(giwa::sliding_window{-1, giwa::alignment::bottom_right}),
          {"sliding_window", "is negative", bound::at_least, 0, -1});
  const std::vector<float> values(3 * 4 * 2 * 15);
  const giwa::bias whole(tensor_view<const float, 4>(values.data(), {3, 4, 2, 15}));  // as many keys as the table gives
  CHECK(call.run(giwa::full{}, whole).ok());
  const call_t again, again_packed = packed();
  refused(again, again.run(giwa::full{}, giwa::bias(resized(whole.values, 3, 11))),
          {"bias", "that of (batch, heads, queries, keys)", bound::exactly, 15, 11});
  refused(again_packed, again_packed.run(giwa::full{}, whole), {"bias", "size 1", bound::exactly, 1, 2});
  CHECK(again_packed.run(giwa::full{}, giwa::bias(resized(whole.values, 2, 1))).ok());
  refused(again, again.run(giwa::causal{giwa::alignment::offset(giwa::max_int64)}),
          {"align", "out of range", bound::at_most, giwa::attention_limits::length - 2, 2147483647});
}

TEST_CASE("supports") {
  using giwa::attention_path;
  const giwa::cached_problem right{
      .sequences = 4, .keys = 100, .heads = 8, .kv_heads = 2, .head_size = 128, .head_size_v = 128, .page_size = 16};
  static_assert(
      giwa::supports(giwa::cached_problem{.heads = 1, .kv_heads = 1, .head_size = 1, .head_size_v = 1}, 90).value ==
      attention_path::sm90);
  CHECK(giwa::supports(right, 0).value == attention_path::simt);
  CHECK(giwa::supports(right, 75).value == attention_path::simt);
  CHECK(giwa::supports(right, 80).value == attention_path::sm80);
  CHECK(giwa::supports(right, 90).value == attention_path::sm90);
  CHECK(giwa::supports(right, 100).value == attention_path::sm80);
  // Where a block has 99 KB of shared memory, few head sizes have leaves that are small enough.
  for (const int capability : {86, 89, 120}) {
    giwa::cached_problem p = right;
    CHECK(giwa::supports(p, capability).value == attention_path::simt);
    p.head_size = 192;
    CHECK(giwa::supports(p, capability).value == attention_path::sm80);
    p.head_size = p.head_size_v = 320;
    CHECK(giwa::supports(p, capability).value == attention_path::sm80);
    p.head_size_v = 321;
    CHECK(giwa::supports(p, capability).value == attention_path::simt);
  }
  for (const int size : {1, 64, 65, 192, 256, 512}) {
    giwa::cached_problem p = right;
    p.head_size = p.head_size_v = size;
    CHECK(giwa::supports(p, 80).value == attention_path::sm80);
  }
  const auto refused_with = [&](const auto& spoil, int capability, const char* argument, bound relation, int64 expected,
                                int64 got) {
    giwa::cached_problem p = right;
    spoil(p);
    const status s = giwa::supports(p, capability).state;
    INFO(giwa::format_status(s).c_str() << " / " << argument);
    CHECK(s.argument == std::string(argument));
    CHECK((s.relation == relation && s.expected == expected && s.got == got));
  };
  using problem = giwa::cached_problem;
  const auto at_least = bound::at_least, at_most = bound::at_most;
  const int64 limit = giwa::attention_limits::length;
  refused_with([](problem&) {}, 70, "capability", at_least, 75, 70);
  refused_with([](problem& p) { p.queries = -1; }, 90, "q", at_least, 0, -1);
  refused_with([](problem& p) { p.keys = -1; }, 90, "k", at_least, 0, -1);
  refused_with([&](problem& p) { p.keys = limit + 1; }, 90, "k", at_most, limit, limit + 1);
  refused_with([](problem& p) { p.sequences = -1; }, 90, "q", at_least, 0, -1);
  refused_with([](problem& p) { p.rows = -1; }, 90, "q", at_least, 0, -1);
  refused_with([](problem& p) { p.head_size = 577; }, 90, "q", at_most, 576, 577);
  refused_with([](problem& p) { p.kv_heads = 0; }, 90, "k", at_least, 1, 0);
  refused_with([](problem& p) { p.cache_bytes = 4; }, 90, "k", bound::exactly, 2, 4);
  const auto too_many = [&](int64 queries, int64 rows, int64 group) {
    const int64 of_kv = giwa::detail::saturated_product(rows > 0 ? rows : queries, group);
    refused_with([&](problem& p) { p.queries = queries, p.rows = rows, p.heads = 2 * group; }, 90, "q", at_most, limit,
                 of_kv);
  };
  too_many(1 << 24, 0, 256);
  too_many(1, 1 << 24, 256);
  too_many(1, limit / 3 + 1, 3);
  too_many(1, giwa::max_int64, 2);
  for (const bool packed : {false, true}) {
    problem most = right;
    most.heads = 6;
    (packed ? most.rows : most.queries) = limit / 3;
    CHECK(giwa::supports(most, 90).ok());
  }
  refused_with([](problem& p) { p.page_size = -1; }, 90, "k", at_least, 0, -1);
  giwa::cached_problem bytes = right;
  bytes.cache_bytes = 1;
  for (const int size : {1, 64, 65, 128, 192, 256, 321, 512}) {
    bytes.head_size = bytes.head_size_v = size;
    for (const int capability : {80, 100}) CHECK(giwa::supports(bytes, capability).value == attention_path::sm80);
    if (size <= 64)  // whose leaves are small enough for 99 KB
      for (const int capability : {86, 89, 120}) CHECK(giwa::supports(bytes, capability).value == attention_path::sm80);
    CHECK(giwa::supports(bytes, 90).value == attention_path::sm90);
    CHECK(giwa::supports(bytes, 75).value == attention_path::simt);
  }
  bytes.element_bytes = 4;
  for (const int capability : {75, 80, 90, 100}) {
    const auto path = giwa::supports(bytes, capability);
    CHECK((path.state.ok() && path.value == attention_path::simt));
  }
}

TEST_CASE("scales differ in a sequence by its keys, and by its pages") {
  const float memory[64] = {};
  const auto differ = [&](const call_t& c, int64 first, int64 keys, int64 heads) {
    return c.a.differ_in_a_sequence(tensor_view<const float, 3>(memory, {first, keys, heads}));
  };
  const call_t paged, plain = contiguous();
  CHECK_FALSE(paged.a.differ_in_a_sequence({}));
  for (const int64 heads : {1, 2}) {
    CHECK_FALSE(differ(paged, 1, 1, heads));
    CHECK(differ(paged, 3, 1, heads));
    CHECK(differ(paged, 1, 5, heads));
    CHECK_FALSE(differ(plain, 3, 1, heads));
    CHECK(differ(plain, 1, 5, heads));
  }
}
