// SPDX-License-Identifier: MIT
// attention_cached on the CPU with lists of keys, against the double reference.
#include "host/attention/cached_check.hpp"
#include "support/selection_case.hpp"

namespace {

using namespace giwa_test;

template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T>
std::string selection_fault(const selection_options& options) {
  selection_case<T, Element, O> c(options, HeadSize, HeadSizeV);
  const auto a = c.keys.views();
  c.keys.clear_outputs();
  giwa::cached_options call = c.keys.call_options();
  giwa::status s = c.template run<HeadSize, HeadSizeV>(giwa::host, a, call, c.own());
  if (!s.ok()) return giwa::format_status(s).c_str() + ("; " + c.keys.options.text());
  const attention_answers answers = answers_of<float>(c.keys, giwa::full{}, giwa::plain_score{});
  const std::string failure = judge<float>(c.keys, answers).failure;
  if (!failure.empty()) return failure;
  // The reference takes the same call.
  auto o = new_buffer<double, 4>(c.keys.o.extents, case_layout::contiguous, 0, true);
  auto lse = new_buffer<float, 3>(c.keys.lse.extents, case_layout::contiguous, 0, true);
  call.lse = lse.view();
  giwa::detail::cached_views<T, Element, double> views{a.q, o.view(), a.cache, a.packed};
  s = c.with_call(views, call, c.own(),
                  [](const auto& cache, const auto& q, const auto& to, const auto& selection, const auto& all) {
                    return giwa::attention_cached_reference(giwa::host, cache, q, to, selection, all);
                  });
  if (!s.ok()) return giwa::format_status(s).c_str() + ("; reference, " + c.keys.options.text());
  const std::vector<double> got = o.template elements<double>();
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - answers.o[i]) <= 1e-12 * (1 + std::abs(answers.o[i])))) return "the references differ";
  return "";
}

selection_options selection_of(int i) {
  selection_options c;
  c.seed = static_cast<uint64>(i);
  c.sequences = 1 + i % 4, c.queries = 1 + i / 4 % 3;
  c.kv_heads = 1 + i % 2, c.heads = c.kv_heads * (1 + i % 5);
  c.most = 1 + i * 37 % 150;
  const int64 rows = c.sequences * c.queries * c.most + 2, shared = c.most + 2, pool = i % 2 == 1 ? shared : rows;
  for (const int64 page : {64, 7, 4, 3, 2})
    if (pool % page == 0 && i % 3 != 0) c.page_size = page;
  c.names = i / 2 % 2 == 0 ? giwa::key_numbers::pool_rows : giwa::key_numbers::sequence_keys;
  c.packed = i % 3 == 1;
  c.sinks = i % 5 == 2;
  c.lse = i % 7 != 3;
  c.counts = i % 4 != 3;
  c.strange = i % 6 == 5 ? 0 : i % 11 == 7 ? 1 : 3;
  return c;
}

}  // namespace

TEST_CASE("lists of keys, of the pool and of sequences, with numbers that name nothing") {
  faults f;
  for (int i = 0; i < 48; ++i) {
    f.add(selection_fault<float, 24, 8>(selection_of(i)));
    if (i % 4 == 0) f.add(selection_fault<giwa::bf16, 576, 512>(selection_of(i)));
    if (i % 4 == 1) f.add(selection_fault<giwa::bf16, 576, 512, giwa::rows_656>(selection_of(i)));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("selections that are refused") {
  static float x[2 * 8 * 16], q[2 * 3 * 16], before_o[4 + 2 * 3 * 16], lse[2 * 3];
  float* const o = before_o + 4;
  static int numbers[2 * 3 * 4], counts[6];
  const giwa::kv_cache<const float> cache{.k = {x, {2, 8, 1, 16}}, .v = {x, {2, 8, 1, 16}}};
  const auto refused = [&](const giwa::key_selection& selection, const std::string& argument, const std::string& words,
                           const giwa::cached_options& options = {}) {
    const giwa::status s =
        giwa::attention_cached<16>(giwa::host, cache, giwa::tensor_view<const float, 4>(q, {2, 3, 1, 16}),
                                   giwa::tensor_view<float, 4>(o, {2, 3, 1, 16}), selection, {}, options);
    INFO(giwa::format_status(s).c_str() << " / " << argument << ": " << words);
    CHECK((argument.empty() ? s.ok() : !s.ok() && s.argument == argument));
    CHECK((argument.empty() || std::string(s.message).find(words) != std::string::npos));
  };
  refused({numbers, 4, 4, counts}, "", "");
  refused({numbers, 0, 4}, "", "");
  refused({numbers, 4, 0}, "most", "at least one number");
  refused({nullptr, 4, 4}, "indices", "null");
  refused({numbers, giwa::int64{1} << 60, 4}, "indices", "the strides are too large");
  const auto as_numbers = [](float* p) { return reinterpret_cast<const int*>(p); };
  // Too long is said first: such a list would overlap o as well.
  refused({as_numbers(before_o), 0, giwa::attention_limits::length + 1}, "most", "too long");
  refused({as_numbers(o), 4, 4}, "indices", "must not overlap o");
  refused({numbers, 4, 4, as_numbers(o)}, "counts", "must not overlap o");
  giwa::cached_options with_lse{};
  with_lse.lse = {lse, {2, 1, 3}};
  refused({numbers, 4, 4, counts}, "", "", with_lse);
  refused({numbers, 4, 4, as_numbers(lse)}, "counts", "must not overlap lse", with_lse);
  refused({as_numbers(lse), 0, 4}, "indices", "must not overlap lse", with_lse);
  giwa::cached_options with_workspace{};
  with_workspace.workspace = {reinterpret_cast<unsigned char*>(numbers), {64}};
  refused({numbers, 4, 4}, "indices", "must not overlap the workspace", with_workspace);
  // A list for each of 2^32 queries: their number would not fit an int.
  const giwa::int64 many_queries = giwa::int64{1} << 16;
  const giwa::detail::cached_views<float, float, float> many{
      giwa::tensor_view<const float, 4>(q, {many_queries, many_queries, 1, 16}, {0, 0, 16, 1}), {}, cache, {}};
  const giwa::status s =
      giwa::detail::check_selection(many, giwa::detail::selection_mask{{numbers, 0, 4}}, giwa::cached_options{});
  INFO(giwa::format_status(s).c_str());
  CHECK((s.argument == std::string("q") && s.expected == giwa::attention_limits::length &&
         s.got == many_queries * many_queries));
}
