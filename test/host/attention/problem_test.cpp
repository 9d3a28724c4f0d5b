// SPDX-License-Identifier: MIT
// Every refusal of attention_forward, with its argument, message and numbers; nothing is written then. Limits of supports().
#include "host/attention/check.hpp"

#include <functional>
#include <string>

namespace {

using namespace giwa_test;
using giwa::bound;
using giwa::status;
using giwa::status_code;
using view = tensor_view<const float, 4>;

/// A right call, to be spoiled: 2 sequences, 6 heads over 3, 5 queries, 7 keys, head sizes 8 and 4.
struct call_t {
  using views = giwa::detail::attention_views<float, float>;
  attention_case<float> c;
  views a;
  giwa::attention_options options;
  call_t() : c(sizes()), a(c.views()), options(c.call_options()) {}
  static case_options sizes() {
    case_options c;
    c.batch = 2;
    c.heads = 6;
    c.kv_heads = 3;
    c.seq_q = 5;
    c.seq_k = 7;
    c.head_size = 8;
    c.head_size_v = 4;
    c.sinks = true;
    return c;
  }
  template <class Mask = giwa::full, class Score = giwa::plain_score>
  status forward(const Mask& mask = {}, const Score& score = {}) const {
    return forward_of<8, 4>(giwa::host, a, mask, score, options);
  }
  int64 written() const { return c.o.written() + c.lse.written(); }
};

template <class T>
tensor_view<T, 4> resized(const tensor_view<T, 4>& v, int d, int64 size) {
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

struct expectation {
  const char* argument;
  const char* words;  // part of the message
  bound relation = bound::none;
  int64 expected = 0, got = 0;
};

void refused(const call_t& call, const status& s, const expectation& e) {
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
/// The same after `spoil(call)`, of the call without a mask.
void refused_after(const std::function<void(call_t&)>& spoil, const expectation& e) {
  call_t call;
  spoil(call);
  refused(call, call.forward(), e);
}

}  // namespace

TEST_CASE("the call that is spoiled below is right") {
  const call_t call;
  CHECK(call.forward().ok());
  CHECK(call.written() > 0);
}

TEST_CASE("sizes that do not belong together") {
  const auto exactly = bound::exactly;
  refused_after([](call_t& c) { c.a.q = resized(c.a.q, 3, 7); }, {"q", "compiled for", exactly, 8, 7});
  refused_after([](call_t& c) { c.a.v = resized(c.a.v, 3, 3); }, {"v", "compiled for", exactly, 4, 3});
  refused_after([](call_t& c) { c.a.k = resized(c.a.k, 0, 1); },
                {"k", "k must have as many sequences as q", exactly, 2, 1});
  refused_after([](call_t& c) { c.a.v = resized(c.a.v, 0, 1); },
                {"v", "v must have as many sequences as k", exactly, 2, 1});
  refused_after([](call_t& c) { c.a.o = resized(c.a.o, 0, 1); },
                {"o", "o must have as many sequences as q", exactly, 2, 1});
  refused_after([](call_t& c) { c.a.v = resized(c.a.v, 1, 6); }, {"v", "v must have as many rows as k", exactly, 7, 6});
  refused_after([](call_t& c) { c.a.o = resized(c.a.o, 1, 4); }, {"o", "o must have as many rows as q", exactly, 5, 4});
  refused_after([](call_t& c) { c.a.v = resized(c.a.v, 2, 1); },
                {"v", "v must have as many heads as k", exactly, 3, 1});
  refused_after([](call_t& c) { c.a.o = resized(c.a.o, 2, 3); },
                {"o", "o must have as many heads as q", exactly, 6, 3});
  refused_after([](call_t& c) { c.a.k = resized(c.a.k, 3, 4); },
                {"k", "k must have the head size of q", exactly, 8, 4});
  refused_after([](call_t& c) { c.a.o = resized(c.a.o, 3, 3); },
                {"o", "o must have the head size of v", exactly, 4, 3});
  refused_after([](call_t& c) { c.a.k = resized(c.a.k, 2, 0), c.a.v = resized(c.a.v, 2, 0); },
                {"k", "q has heads but k and v have none", bound::at_least, 1, 0});
  refused_after([](call_t& c) { c.a.q = resized(c.a.q, 2, 5), c.a.o = resized(c.a.o, 2, 5); },
                {"q", "must be a multiple of", bound::multiple_of, 3, 5});
}

TEST_CASE("views that are none") {
  refused_after([](call_t& c) { c.a.q = resized(c.a.q, 1, -1); },
                {"q", "sizes must not be negative", bound::at_least, 0, -1});
  refused_after([](call_t& c) { c.a.k = view(nullptr, c.a.k.extents()); }, {"k", "the pointer must not be null"});
  refused_after([](call_t& c) { c.a.v = restrided(c.a.v, 1, giwa::max_int64 / 2); },
                {"v", "the strides are too large"});
  refused_after([](call_t& c) { c.a.q = restrided(c.a.q, 3, 2); },
                {"q", "must be contiguous (stride 1)", bound::exactly, 1, 2});
  refused_after([](call_t& c) { c.a.v = restrided(c.a.v, 3, 0); },
                {"v", "must be contiguous (stride 1)", bound::exactly, 1, 0});
  refused_after([](call_t& c) { c.a.o = restrided(c.a.o, 3, -1); },
                {"o", "must be contiguous (stride 1)", bound::exactly, 1, -1});
  refused_after([](call_t& c) { c.a.o = restrided(c.a.o, 1, 0); }, {"o", "must not be zero"});
  constexpr int64 most = giwa::attention_limits::length;
  refused_after([](call_t& c) { c.a.k = resized(restrided(c.a.k, 1, 0), 1, most + 1); },
                {"k", "too many rows", bound::at_most, most, most + 1});
  const call_t call;
  CHECK(giwa::detail::check_rows(resized(restrided(call.a.k, 1, 0), 1, most), "k").ok());
  // A head size of 1 has no last stride, and no elements have none either.
  CHECK(giwa::detail::check_rows(resized(restrided(call.a.k, 3, 2), 3, 1), "k").ok());
  CHECK(giwa::detail::check_rows(resized(restrided(call.a.k, 3, 2), 1, 0), "k").ok());
  CHECK(giwa::detail::check_rows(resized(restrided(call.a.k, 3, 2), 3, 2), "k").got == 2);
}

TEST_CASE("options that do not fit") {
  refused_after([](call_t& c) { c.options.scale = NAN; }, {"scale", "finite and at most 1e38"});
  refused_after([](call_t& c) { c.options.scale = -HUGE_VALF; }, {"scale", "finite and at most 1e38"});
  for (const float sign : {1.f, -1.f}) {
    refused_after([&](call_t& c) { c.options.scale = sign * 1.0001e38f; }, {"scale", "finite and at most 1e38"});
    CHECK(giwa::detail::check_scale(sign * 1e38f).ok());
  }
  for (const auto& [sizes, words, expected, got] :
       {std::tuple<giwa::index<3>, const char*, int64, int64>{{1, 6, 5}, "its batch must be that of q", 2, 1},
        {{2, 5, 5}, "it must have as many heads as q", 6, 5},
        {{2, 6, 4}, "it must have as many queries as q", 5, 4}})
    refused_after(
        [&, &of = sizes](call_t& c) {
          c.options.lse = {c.options.lse.data(), of};
        },
        {"lse", words, bound::exactly, expected, got});
  refused_after([](call_t& c) { c.options.lse = {nullptr, {2, 6, 5}}; }, {"lse", "the pointer must not be null"});
  refused_after([](call_t& c) { c.options.lse = restrided(c.options.lse, 2, 0); }, {"lse", "must not be zero"});
  refused_after([](call_t& c) { c.options.lse = {c.a.o.data(), {2, 6, 5}}; }, {"lse", "lse overlaps o"});
  refused_after([](call_t& c) { c.options.lse = {c.c.q.view().data(), {2, 6, 5}}; }, {"lse", "lse overlaps q"});
  refused_after([](call_t& c) { c.options.lse = {c.c.k.view().data(), {2, 6, 5}}; }, {"lse", "lse overlaps k"});
  refused_after([](call_t& c) { c.options.lse = {c.c.v.view().data(), {2, 6, 5}}; }, {"lse", "lse overlaps v"});
  refused_after([](call_t& c) { c.options.sinks = {c.a.o.data() + 9, {6}}; }, {"sinks", "sinks overlaps o"});
  refused_after([](call_t& c) { c.options.sinks = {c.options.lse.data() + 9, {6}}; }, {"sinks", "sinks overlaps lse"});
  refused_after([](call_t& c) { c.options.sinks = {nullptr, {6}}; }, {"sinks", "the pointer must not be null"});
  refused_after(
      [](call_t& c) {
        c.options.sinks = {c.options.sinks.data(), {5}};
      },
      {"sinks", "one sink for each head of q", bound::exactly, 6, 5});
  refused_after(
      [](call_t& c) {
        c.options.sinks = {c.options.sinks.data(), {-1}};
      },
      {"sinks", "sizes must not be negative", bound::at_least, 0, -1});
}

TEST_CASE("an output that overlaps an input") {
  const auto at = [](const view& v, int64 offset) {
    return tensor_view<float, 4>(const_cast<float*>(v.data()) + offset, {2, 5, 6, 4});
  };
  refused_after([&](call_t& c) { c.a.o = at(c.a.q, 0); }, {"o", "o overlaps q"});
  refused_after([&](call_t& c) { c.a.o = at(c.a.k, 100); }, {"o", "o overlaps k"});
  refused_after([&](call_t& c) { c.a.o = at(c.a.v, 7); }, {"o", "o overlaps v"});
}

TEST_CASE("a workspace that cannot be one") {
  alignas(16) static unsigned char bytes[1 << 16];
  const auto with = [](unsigned char* data, int64 size, int64 stride = 1) {
    return [=](call_t& c) { c.options.workspace = {data, {size}, {stride}}; };
  };
  const call_t usual;
  const int64 needed = giwa::workspace_bytes(usual.a.problem());
  REQUIRE(needed > 4 * 4 * (2 * 5 * 6 * 4));  // the pieces of fp32
  REQUIRE(needed < int64{sizeof bytes});
  refused_after(with(bytes, needed - 1),
                {"workspace", "smaller than workspace_bytes()", bound::at_least, needed, needed - 1});
  for (const int shift : {1, 4}) refused_after(with(bytes + shift, needed), {"workspace", "must be 8-byte aligned"});
  refused_after(with(bytes + 8, needed), {"workspace", "must be 16-byte aligned"});
  refused_after(with(bytes, needed, 2), {"workspace", "must be contiguous", bound::exactly, 1, 2});
  refused_after(with(nullptr, needed), {"workspace", "the pointer must not be null"});
  const auto overlapping = [](const std::function<void(call_t&, float*)>& move) {  // other tensors may lie anywhere
    return [=](call_t& c) {
      move(c, reinterpret_cast<float*>(bytes + 64));
      c.options.workspace = {bytes, {sizeof bytes}};
    };
  };
  refused_after(overlapping([](call_t& c, float* to) {
                  c.a.o = {to, c.a.o.extents()};
                }),
                {"workspace", "the workspace overlaps o"});
  refused_after(overlapping([](call_t& c, float* to) {
                  c.options.lse = {to, c.options.lse.extents()};
                }),
                {"workspace", "the workspace overlaps lse"});
  for (const auto& [which, words] : {std::pair{&call_t::views::q, "the workspace overlaps q"},
                                     {&call_t::views::k, "the workspace overlaps k"},
                                     {&call_t::views::v, "the workspace overlaps v"}})
    refused_after(overlapping([&, member = which](call_t& c, float* to) {
                    c.a.*member = {to, (c.a.*member).extents()};
                  }),
                  {"workspace", words});
  refused_after(overlapping([](call_t& c, float* to) {
                  c.options.sinks = {to, {6}};
                }),
                {"sinks", "sinks overlaps the workspace"});
  call_t call;
  with(bytes, needed + 1)(call);
  CHECK(call.forward().ok());
}

TEST_CASE("an output is not written twice in one place") {
  float x[1] = {};
  const auto checked = [&](const giwa::index<4>& extents, const giwa::index<4>& strides) {
    return giwa::detail::check_written(tensor_view<float, 4>(x, extents, strides), "o");
  };
  CHECK(checked({1, 4, 1, 64}, {0, 1, 64, 1}).got == 1);  // rows one element apart
  CHECK(checked({1, 4, 1, 64}, {0, 1, 64, 1}).expected == 4);
  CHECK(checked({2, 4, 3, 8}, {96, 24, 7, 1}).code == giwa::status_code::invalid_argument);
  CHECK(checked({2, 4, 3, 8}, {0, 24, 8, 1}).code == giwa::status_code::invalid_argument);
  CHECK(checked({2, 4, 3, 8}, {96, 24, 8, 1}).ok());
  CHECK(checked({2, 4, 3, 8}, {-96, 8, -32, 1}).ok());  // in any order and direction
  CHECK(checked({1, 4, 1, 64}, {7, 64, -3, 1}).ok());   // a size of 1 has no stride
  CHECK(checked({0, 4, 3, 8}, {0, 0, 0, 0}).ok());
}

TEST_CASE("masks and scores that do not fit the problem") {
  const call_t call;
  refused(call, call.forward(giwa::causal{}), {"mask", "the diagonal must be chosen"});
  const float x[7] = {};
  refused(call, call.forward(giwa::full{}, giwa::alibi{x}), {"mask", "the diagonal must be chosen"});
  refused(call, call.forward(giwa::full{}, giwa::alibi{nullptr}), {"alibi", "null"});
  refused(call, call.forward(giwa::causal::top_left & giwa::sliding_window{2, giwa::alignment::bottom_right}),
          {"mask", "ask for different diagonals"});
  refused(call, call.forward(giwa::full{} | giwa::keys_back{-3, giwa::alignment::top_left}),
          {"keys_back", "negative", bound::at_least, 0, -3});
  refused(call, call.forward(giwa::full{}, giwa::softcap{0}), {"softcap", "must be from 1e-30 to 1e30"});
  refused(call, call.forward(giwa::full{}, giwa::bias{view(x, {1, 1, 7, 1})}),
          {"bias", "each size must be 1 or that of", bound::exactly, 5, 7});
  call_t other;
  other.options.align = giwa::alignment::top_left;
  refused(other, other.forward(giwa::causal::bottom_right), {"mask", "ask for different diagonals"});
  CHECK(other.forward(giwa::causal{}).ok());
  constexpr int64 length = giwa::attention_limits::length;
  refused(call, call.forward(giwa::causal{giwa::alignment::offset(length)}),
          {"align", "the diagonal of the last query is out of range", bound::at_most, length - 5, length});
  refused(call, call.forward(giwa::causal{giwa::alignment::offset(-length)}),
          {"align", "the diagonal of the first query is out of range", bound::at_least, 7 - length, -length});
  for (const int64 shift : {length - 5, 7 - length})
    CHECK(call.forward(giwa::causal{giwa::alignment::offset(shift)}).ok());
}

TEST_CASE("packed sequences that are none") {
  case_options sizes;
  sizes.q_lengths = {3, 2};
  sizes.k_lengths = {4, 1};
  sizes.head_size = sizes.head_size_v = 8;
  attention_case<float> c(sizes);
  const auto call = [&](const giwa::sequences& packed, const auto& mask) {
    return giwa::attention_forward<8>(giwa::host, without_batch(c.q.view()), without_batch(c.k.view()),
                                      without_batch(c.v.view()), without_batch(c.o.view()), mask,
                                      {.sequences = packed});
  };
  const int* q = c.q_offsets.data();
  const int* k = c.k_offsets.data();
  const auto expect = [&](const status& s, const std::string& argument, int64 got) {
    CHECK(s.code == status_code::invalid_argument);
    CHECK(s.argument == argument);
    CHECK(s.got == got);
    CHECK(c.o.written() == 0);
  };
  expect(call({q, k, -1, 3}, giwa::full{}), "sequences", -1);
  expect(call({q, k, 2, -3}, giwa::full{}), "sequences", -3);
  expect(call({nullptr, k, 2, 3}, giwa::full{}), "q_offsets", 0);
  expect(call({q, nullptr, 2, 3}, giwa::full{}), "k_offsets", 0);
  const int* in_o = reinterpret_cast<const int*>(without_batch(c.o.view()).data());
  expect(call({in_o, k, 2, 3}, giwa::full{}), "o", 0);
  expect(call({in_o - 2, k, 2, 3}, giwa::full{}), "o", 0);  // the third offset of two sequences
  expect(call({q, in_o + 4, 2, 3}, giwa::full{}), "o", 0);
  expect(call({q, k, 2, 3}, giwa::causal{}), "mask", 0);  // other offsets: lengths may differ
  const float x[4] = {};
  const status s = giwa::attention_forward<8>(giwa::host, without_batch(c.q.view()), without_batch(c.k.view()),
                                              without_batch(c.v.view()), without_batch(c.o.view()), giwa::full{},
                                              giwa::bias{view(x, {1, 1, 1, 4})}, {.sequences = {q, k, 2, 3}});
  CHECK(s.argument == std::string("bias"));
  expect(giwa::attention_forward<8>(giwa::host, without_batch(c.q.view()), without_batch(resized(c.k.view(), 1, 4)),
                                    without_batch(resized(c.v.view(), 1, 4)), without_batch(c.o.view()),
                                    {.sequences = {q, q, 2, 3}}),
         "k", 4);                                            // the offsets of q are those of other rows
  expect(call({q, k, 0, 3}, giwa::full{}), "sequences", 0);  // a forgotten count
  expect(call({.q_offsets = q, .k_offsets = k, .q_lengths = q}, giwa::full{}), "sequences", 0);
  CHECK(call({q, k, 2, 0}, giwa::full{}).ok());  // max_q decides no result
  CHECK(c.o.written() > 0);
}

TEST_CASE("a count of 0 is refused with rows of q or k, and taken without any") {
  const std::vector<float> x(2 * 3 * 8, 1.0f);
  std::vector<float> o(x.size()), lse(2 * 3), gradient(3 * x.size());
  const int offsets[] = {0, 3};
  const auto of = [](auto* at, int64 rows) {
    return tensor_view<std::remove_pointer_t<decltype(at)>, 3>(at, {rows, 2, 8});
  };
  for (const auto& [q_rows, k_rows] : {std::pair<int64, int64>{3, 3}, {3, 0}, {0, 3}, {0, 0}}) {
    const auto expect = [&, with_rows = q_rows + k_rows > 0](const status& s) {
      INFO(q_rows << " rows of q, " << k_rows << " of k: " << giwa::format_status(s).c_str());
      CHECK(s.ok() == !with_rows);
      if (!with_rows) return;
      CHECK((s.argument == std::string("sequences") && s.relation == bound::at_least && s.expected == 1 && s.got == 0));
      CHECK(std::string(s.message).find("count is 0") != std::string::npos);
    };
    const giwa::sequences forgotten{.q_offsets = offsets, .k_offsets = offsets + 1};
    const auto q = of(x.data(), q_rows), k = of(x.data(), k_rows);
    expect(giwa::attention_forward<8>(giwa::host, q, k, k, of(o.data(), q_rows), {.sequences = forgotten}));
    expect(giwa::attention_reference(giwa::host, q, k, k, of(o.data(), q_rows), {.sequences = forgotten}));
    const tensor_view<const float, 3> lses(lse.data(), {1, 2, q_rows});
    const auto dq = of(gradient.data(), q_rows), dk = of(gradient.data() + 48, k_rows),
               dv = of(gradient.data() + 96, k_rows);
    expect(giwa::attention_backward<8>(giwa::host, q, k, k, q, q, dq, dk, dv, {.lse = lses, .sequences = forgotten}));
    expect(giwa::attention_backward_reference(giwa::host, q, k, k, q, dq, dk, dv, {.sequences = forgotten}));
    for (const auto* written : {&o, &gradient}) CHECK(*written == std::vector<float>(written->size()));
  }
}

TEST_CASE("sequences of a batch that are none") {
  call_t call;
  const std::vector<int> lengths(2, 1);
  const auto with = [&](const giwa::sequences& s, const auto& mask) {
    return giwa::attention_forward<giwa::head_sizes<8, 4>>(giwa::host, call.a.q, call.a.k, call.a.v, call.a.o, mask,
                                                           {.sequences = s});
  };
  const int* n = lengths.data();
  refused(call, with({.q_offsets = n}, giwa::full{}), {"q_offsets", "tensors of rank 4 take lengths"});
  refused(call, with({.k_offsets = n}, giwa::full{}), {"k_offsets", "tensors of rank 4 take lengths"});
  refused(call, with({.count = 3}, giwa::full{}), {"sequences", "the batch of q, or 0", bound::exactly, 2, 3});
  refused(call, with({.q_lengths = n}, giwa::causal{}), {"mask", "the diagonal must be chosen"});
  const int* in_o = reinterpret_cast<const int*>(call.a.o.data());
  refused(call, with({.q_lengths = in_o}, giwa::full{}), {"o", "o overlaps q_lengths"});
  refused(call, with({.k_lengths = in_o}, giwa::full{}), {"o", "o overlaps k_lengths"});
  refused(call, with({.k_batch_index = in_o}, giwa::full{}), {"o", "o overlaps k_batch_index"});
  // The last length of a batch of 2 counts, and the number behind it does not.
  refused(call, with({.q_lengths = in_o - 1}, giwa::full{}), {"o", "o overlaps q_lengths"});
  CHECK(giwa::detail::may_share(giwa::detail::view_of(in_o - 2, 2), call.a.o) == false);
  call.a.k = resized(call.a.k, 0, 1);
  refused(call, with({.k_batch_index = n}, giwa::full{}),
          {"v", "v must have as many sequences as k", bound::exactly, 1, 2});
  call.a.v = resized(call.a.v, 0, 1);
  refused(call, with({.k_lengths = n}, giwa::full{}),
          {"k", "k must have as many sequences as q", bound::exactly, 2, 1});
  CHECK(with({.k_lengths = n, .k_batch_index = n}, giwa::full{}).ok());  // 1 is no index: there are no keys
}

TEST_CASE("a head size from a list") {
  attention_case<float> c(call_t::sizes());
  const auto q = c.q.view();
  const tensor_view<float, 4> o(c.o.view().data(), {2, 5, 6, 4}), k = c.k.view();
  const auto attend = [&](auto size) { return giwa::attention_forward<size>(giwa::host, q, k, c.v.view(), o); };
  const status s = giwa::choose_head_size<4, 16>(q.extent(3), attend);
  CHECK(s.argument == std::string("q"));
  CHECK(std::string(s.message).find("not in the list") != std::string::npos);
  std::vector<float> wide(2 * 5 * 6 * 8, NAN);
  const tensor_view<float, 4> wide_o(wide.data(), {2, 5, 6, 8});
  CHECK(giwa::choose_head_size<4, 8>(q.extent(3), [&](auto size) {
          return giwa::attention_forward<size>(giwa::host, q, k, k, wide_o);
        }).ok());
  CHECK(std::isfinite(wide.back()));
}

TEST_CASE("supports says what is out of range, and needs no GPU") {
  constexpr giwa::attention_problem fine{2, 100, 200, 8, 2, 128, 64};
  STATIC_REQUIRE(giwa::supports(fine, 0).ok());
  STATIC_REQUIRE(giwa::supports(fine, 75).ok());
  STATIC_REQUIRE(giwa::supports({}, 90).state.code == status_code::invalid_argument);  // no head size
  STATIC_REQUIRE(giwa::workspace_bytes(fine) == 8);
  const auto with = [&](int64 giwa::attention_problem::*member, int64 value) {
    giwa::attention_problem p = fine;
    p.*member = value;
    return giwa::supports(p, 0).state;
  };
  using giwa::attention_problem;
  const auto expect = [](const status& s, const std::string& argument, bound relation, int64 expected, int64 got) {
    CHECK((s.argument == argument && s.relation == relation && s.expected == expected && s.got == got));
  };
  expect(with(&attention_problem::head_size, 513), "q", bound::at_most, 512, 513);
  expect(with(&attention_problem::head_size, 0), "q", bound::at_least, 1, 0);
  expect(with(&attention_problem::head_size_v, 600), "v", bound::at_most, 512, 600);
  expect(with(&attention_problem::batch, -1), "q", bound::at_least, 0, -1);
  expect(with(&attention_problem::seq_q, int64{1} << 31), "q", bound::at_most, giwa::attention_limits::length,
         int64{1} << 31);
  expect(with(&attention_problem::seq_k, -2), "k", bound::at_least, -1, -2);
  expect(with(&attention_problem::heads, int64{1} << 31), "q", bound::at_most, (int64{1} << 31) - 1, int64{1} << 31);
  expect(with(&attention_problem::kv_heads, 0), "k", bound::at_least, 1, 0);
  expect(with(&attention_problem::rows_q, -5), "q", bound::at_least, 0, -5);
  expect(with(&attention_problem::rows_k, -1), "k", bound::at_least, 0, -1);
  expect(with(&attention_problem::element_bytes, 0), "q", bound::exactly, 1, 0);
  expect(with(&attention_problem::element_bytes, 3), "q", bound::exactly, 2, 3);
  expect(with(&attention_problem::element_bytes, 8), "q", bound::exactly, 4, 8);
  CHECK(with(&attention_problem::seq_q, -1).ok());
  CHECK(with(&attention_problem::batch, 0).ok());
  expect(with(&attention_problem::kv_heads, 3), "q", bound::multiple_of, 3, fine.heads);
  const status old = giwa::supports(fine, 70).state;
  CHECK(old.code == status_code::not_supported);
  expect(old, "capability", bound::at_least, 75, 70);
}

TEST_CASE("supports says which kernel answers, and what fp32 lacks without a workspace") {
  using giwa::attention_path;
  constexpr giwa::attention_problem of_16_bits{2, 100, 200, 8, 2, 128, 64};
  STATIC_REQUIRE(giwa::supports(of_16_bits, 0).value == attention_path::simt);
  STATIC_REQUIRE(giwa::supports(of_16_bits, 75).value == attention_path::simt);
  STATIC_REQUIRE(giwa::supports(of_16_bits, 80, 0).value == attention_path::sm80);
  STATIC_REQUIRE(giwa::supports(of_16_bits, 90, 0).value == attention_path::sm90);
  STATIC_REQUIRE(giwa::supports(of_16_bits, 100).value == attention_path::sm80);
  constexpr giwa::attention_problem single{2, 100, 200, 8, 2, 128, 64, 4};
  constexpr int64 bytes = giwa::workspace_bytes(single);
  // High and low pieces of all rows, whose head sizes are multiples of 64.
  STATIC_REQUIRE(bytes > 2 * 2 * (2 * 100 * 8 * 128 + 2 * 200 * 2 * (128 + 64)));
  STATIC_REQUIRE(bytes < 2 * 2 * (2 * 100 * 8 * 128 + 2 * 200 * 2 * (128 + 64)) * 11 / 10);
  STATIC_REQUIRE(giwa::supports(single, 90).value == attention_path::sm90);
  STATIC_REQUIRE(giwa::supports(single, 90, bytes - 1).value == attention_path::simt);
  STATIC_REQUIRE(giwa::supports(single, 80, bytes).value == attention_path::sm80);
  constexpr giwa::attention_problem packed{2, -1, -1, 8, 2, 128, 64, 4, 200, 400};
  STATIC_REQUIRE(giwa::workspace_bytes(packed) >= bytes);
  constexpr giwa::attention_problem wide{2, 100, 200, 8, 2, 320, 320, 4};
  STATIC_REQUIRE(giwa::workspace_bytes(wide) == 8);
  STATIC_REQUIRE(giwa::supports(wide, 90).value == attention_path::simt);
  STATIC_REQUIRE(giwa::workspace_bytes({2, -1, -1, 8, 2, 128, 64, 4, -5, 400}) == 8);  // no problems at all
  STATIC_REQUIRE(giwa::workspace_bytes({2, -1, -1, 8, 2, 128, 64, 4, 200, -1}) == 8);
  STATIC_REQUIRE(giwa::workspace_bytes({2, 100, 200, 8, 2, 128, 64, 1}) == 8);
  STATIC_REQUIRE(giwa::workspace_bytes({2, 100, 200, 8, 2, 128, 64, 8}) == 8);
  constexpr int64 most = int64{1} << 30;
  STATIC_REQUIRE(giwa::workspace_bytes({most, most, most, most, most, 256, 256, 4}) ==
                 giwa::max_int64);  // does not wrap
  // Sizes out of range are refused by the call, and overflow nowhere: a constant expression would not compile.
  STATIC_REQUIRE(giwa::workspace_bytes({giwa::max_int64, 100, 200, 8, 2, 128, 64, 4}) == 8);
  STATIC_REQUIRE(giwa::workspace_bytes({2, giwa::max_int64, 200, 8, 2, 128, 64, 4}) == 8);
  STATIC_REQUIRE(giwa::workspace_bytes({2, 100, 200, giwa::max_int64, 1, 128, 64, 4}) == 8);
  STATIC_REQUIRE(giwa::workspace_bytes({2, 100, 200, 8, 0, 128, 64, 4}) == 8);
  constexpr int64 many = (int64{1} << 31) - 1;
  STATIC_REQUIRE(giwa::workspace_bytes({many, -1, -1, many, many, 256, 256, 4, giwa::max_int64, giwa::max_int64}) ==
                 giwa::max_int64);
}

TEST_CASE("rows are aligned where the first element, all strides and the width are") {
  alignas(64) static float memory[64];
  const auto aligned = [&](int64 first, const giwa::index<3>& extents, const giwa::index<3>& strides) {
    return giwa::detail::rows_are_aligned(tensor_view<const float, 3>(memory + first, extents, strides), 16);
  };
  CHECK(aligned(0, {2, 3, 4}, {12, 4, 1}));
  CHECK(aligned(4, {2, 3, 8}, {24, 8, 1}));
  CHECK_FALSE(aligned(1, {2, 3, 4}, {12, 4, 1}));
  CHECK_FALSE(aligned(0, {2, 3, 3}, {12, 4, 1}));
  CHECK_FALSE(aligned(0, {2, 3, 4}, {12, 5, 1}));
  CHECK_FALSE(aligned(0, {2, 3, 4}, {13, 4, 1}));
  CHECK(aligned(0, {1, 3, 4}, {13, 4, 1}));  // the stride of a single element does not count
  CHECK(aligned(0, {2, 1, 4}, {12, 5, 1}));
}

TEST_CASE("the sizes of a batch and of packed sequences") {
  call_t c;
  const giwa::attention_problem batch = c.a.problem();
  CHECK((batch.batch == 2 && batch.seq_q == 5 && batch.seq_k == 7 && batch.rows_q == 0 && batch.rows_k == 0));
  CHECK((batch.heads == 6 && batch.kv_heads == 3 && batch.head_size == 8 && batch.head_size_v == 4));
  c.a.packed.count = 9;
  const giwa::attention_problem packed = c.a.problem(true);
  CHECK((packed.batch == 9 && packed.seq_q == -1 && packed.seq_k == -1 && packed.rows_q == 5 && packed.rows_k == 7));
}

TEST_CASE("sequences have as many queries as keys where both are known to be the same") {
  call_t c;
  CHECK_FALSE(c.a.lengths_agree());
  const auto q = c.a.q, k = c.a.k;
  for (const giwa::int64 n : {1, 2, 5}) {
    c.a.q = {q.data(), {2, n, 6, 8}}, c.a.k = {k.data(), {2, n, 3, 8}};
    CHECK(c.a.lengths_agree());
    c.a.k = {k.data(), {2, n + 1, 3, 8}};
    CHECK_FALSE(c.a.lengths_agree());
  }
  const int some[2] = {}, others[2] = {};
  c.a.k = {k.data(), {2, 5, 3, 8}};
  c.a.packed.q_lengths = some, c.a.packed.k_lengths = others;
  CHECK_FALSE(c.a.lengths_agree());
  c.a.packed.k_lengths = some;
  CHECK(c.a.lengths_agree());
}

TEST_CASE("an index outside of the batch of k gives no keys") {
  call_t call;
  const int none[] = {2, -1};
  call.a.packed.k_batch_index = none;
  call.options.sinks = {};
  REQUIRE(call.forward().ok());
  for (const float x : call.c.o.elements<float>()) CHECK(x == 0);
  for (const float x : call.c.lse.elements<float>()) CHECK(x == -giwa::detail::infinity_of<float>);
}

TEST_CASE("packed rows without a number of sequences are of no sequences that a call takes") {
  struct sizes_of_rows {
    giwa::int64 rows_q, rows_k;
    giwa::attention_problem problem(bool) const { return {.rows_q = rows_q, .rows_k = rows_k}; }
  };
  CHECK(giwa::detail::problem_of_sizes<3>(sizes_of_rows{5, 7}).batch == -1);
  CHECK(giwa::detail::problem_of_sizes<3>(sizes_of_rows{5, 0}).batch == -1);
  CHECK(giwa::detail::problem_of_sizes<3>(sizes_of_rows{0, 7}).batch == -1);
  CHECK(giwa::detail::problem_of_sizes<3>(sizes_of_rows{0, 0}).batch == 0);
  CHECK(giwa::detail::problem_of_sizes<4>(sizes_of_rows{5, 7}).batch == 0);
}

TEST_CASE("what a GPU of each compute capability has") {
  using giwa::detail::gpu_traits;
  struct row {
    int capability;
    bool mma, wgmma;
    int64 kib;
  };
  // CUDA C++ Programming Guide, "Technical specifications per compute capability": shared memory of a block.
  for (const row& r :
       {row{75, false, false, 64}, row{80, true, false, 163}, row{86, true, false, 99}, row{87, true, false, 163},
        row{89, true, false, 99}, row{90, true, true, 227}, row{100, true, false, 227}, row{103, true, false, 227},
        row{120, true, false, 99}, row{121, true, false, 99}}) {
    const gpu_traits t = gpu_traits::of(r.capability);
    CHECK((t.mma == r.mma && t.wgmma == r.wgmma && t.shared_bytes == r.kib << 10));
  }
}
