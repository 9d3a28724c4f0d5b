// SPDX-License-Identifier: MIT
// attention_cached with rotated_queries on the CPU: the bits of a call with queries that append_to_cache rotated, and refusals.
#include <giwa/attention/reference/cached.hpp>
#include <giwa/tile/shared_tile.hpp>

#include <cmath>
#include <string>
#include <vector>

#include "host/attention/check.hpp"
#include "support/catch.hpp"
#include "support/rotated_case.hpp"
#include "support/same_bits.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::e4m3;
using giwa::fp16;

namespace {

cached_case_options case_of(int i) {
  constexpr int64 pages[] = {0, 1, 7, 64};
  cached_case_options c;
  c.seed = static_cast<uint64>(i);
  c.kv_heads = 1 + i % 2;
  c.heads = c.kv_heads * (1 + i % 3);
  c.packed = i % 2 == 1;
  c.queries = c.packed ? std::vector<int64>{1, 0, 9, 3} : std::vector<int64>{3, 3, 3, 3};
  c.page_size = pages[i % 4];
  c.keys = 150;
  c.most = c.page_size == 0 ? 0 : giwa::ceil_div(c.keys, c.page_size);
  c.lengths = {150, 2, 77, -5};
  for (case_layout& l : c.layout) l = static_cast<case_layout>(i++ % 3);
  c.offset = i % 3;
  return c;
}

template <int HeadSize, int HeadSizeV, class T, class Element, class O, class Mask, class Score>
giwa::status reference_of(cached_case<T, Element, O>& c, const Mask& mask, const Score& score) {
  const auto a = c.views();
  if (a.is_packed())
    return giwa::attention_cached_reference(giwa::host, a.cache, without_batch(a.q), without_batch(a.o), mask, score,
                                            giwa_test::with(c.call_options(), giwa_test::sequences_of(a.packed)));
  return giwa::attention_cached_reference(giwa::host, a.cache, a.q, a.o, mask, score, c.call_options());
}

/// Empty, or what differs: the call and the reference, with queries rotated by them and before them.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class Element = T, class O = T, class Mask = giwa::full,
          class Rotary = giwa::rotary_base, class Score = giwa::plain_score>
std::string fault_of(cached_case_options options, const Mask& mask, const Rotary& rotary, int kind,
                     const Score& score = {}) {
  options.head_size = HeadSize, options.head_size_v = HeadSizeV;
  cached_case<T, Element, O> plain(options), before(options);
  std::vector<int64> positions = positions_in_sequences(plain);
  if (kind != 0)
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] += static_cast<int64>(i * i % 7);
  const std::vector<int> narrow(positions.begin(), positions.end());
  const auto rows = static_cast<int64>(positions.size());
  const giwa::row_numbers numbers = kind == 0 ? giwa::row_numbers()
                                    : kind == 1
                                        ? tensor_view<const int, 1>(narrow.data(), {rows})
                                        : giwa::row_numbers(tensor_view<const int64, 1>(positions.data(), {rows}));
  const giwa::rotated_queries rotated(rotary, score, numbers);
  const std::string text = "; rotated " + std::to_string(rotary.size) + " from " + std::to_string(rotary.first) +
                           (rotary.interleaved ? ", interleaved; " : "; ") + options.text();
  const auto fault = [&](const giwa::status& s) { return giwa::format_status(s).c_str() + text; };
  if (const giwa::status s = rotate(before, rotary, positions); !s.ok()) return fault(s);
  const auto call = [&](auto& c, const auto& modifier) {
    return cached_of<HeadSize, HeadSizeV>(giwa::host, c.views(), mask, modifier, c.call_options());
  };
  if (const giwa::status s = call(plain, rotated); !s.ok()) return fault(s);
  if (const giwa::status s = call(before, score); !s.ok()) return fault(s);
  if (!same_bits(plain.o.memory, before.o.memory) || !same_bits(plain.lse.memory, before.lse.memory))
    return "the call differs" + text;
  if (const giwa::status s = reference_of<HeadSize, HeadSizeV>(plain, mask, rotated); !s.ok()) return fault(s);
  if (const giwa::status s = reference_of<HeadSize, HeadSizeV>(before, mask, score); !s.ok()) return fault(s);
  if (!same_bits(plain.o.memory, before.o.memory) || !same_bits(plain.lse.memory, before.lse.memory))
    return "the reference differs" + text;
  return "";
}

/// A call that is right: 2 sequences of 3 queries and 16 keys, 4 heads of 8 over 2. Each test changes something.
struct rotated_call {
  std::vector<float> memory = std::vector<float>(4000, 1.0f);
  std::vector<int> numbers = std::vector<int>(6, 1);
  float* const x = memory.data();
  tensor_view<const float, 4> q{x, {2, 3, 4, 8}};
  tensor_view<float, 4> o{x + 200, {2, 3, 4, 8}};
  giwa::kv_cache<const float> cache{.k = tensor_view<const float, 4>(x + 400, {2, 16, 2, 8}),
                                    .v = tensor_view<const float, 4>(x + 1000, {2, 16, 2, 8})};
  giwa::row_numbers positions = tensor_view<const int, 1>(numbers.data(), {6});

  template <class Rotary>
  giwa::status run(const Rotary& rotary, const giwa::cached_options& options = {}) const {
    return giwa::attention_cached<8>(giwa::host, cache, q, o, causal::bottom_right,
                                     giwa::rotated_queries(rotary, positions), options);
  }
};
bool says(const giwa::status& s, const std::string& argument, const std::string& words) {
  INFO(giwa::format_status(s).c_str());
  return s.argument == argument && std::string(s.message).find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("rotated queries have the bits of queries that are rotated before the call") {
  random_sequence random(3);
  for (int i = 0; i < (small_mode() ? 8 : 48); ++i) {
    const auto base = [&](int64 head_size) { return giwa::rotary_base(10000.0, drawn_layout(head_size, random)); };
    const cached_case_options c = case_of(i);
    CHECK(fault_of<fp16, 64>(c, causal::bottom_right, base(64), i % 3) == "");
    CHECK(fault_of<float, 33, 20>(c, by_distance{}, base(33), i % 3, own_score{}) == "");
    CHECK(fault_of<bf16, 48, 48, e4m3>(c, causal::bottom_right, base(48), i % 3) == "");
    turn_by_pair own;
    static_cast<giwa::rotary_layout&>(own) = drawn_layout(40, random);
    CHECK(fault_of<bf16, 40, 8, bf16, float>(c, giwa::full{}, own, i % 3, giwa::softcap(5)) == "");
  }
}

TEST_CASE("a table of cosines and sines, and latent rows of which the last columns are rotated") {
  std::vector<float> cos(200 * 32), sin(cos.size());
  for (std::size_t i = 0; i < cos.size(); ++i) {
    const double angle = 0.01 * static_cast<double>(i);
    cos[i] = static_cast<float>(std::cos(angle)), sin[i] = static_cast<float>(std::sin(angle));
  }
  const giwa::index<2> sizes{200, 32};
  const giwa::rotary_table table(tensor_view<const float, 2>(cos.data(), sizes),
                                 tensor_view<const float, 2>(sin.data(), sizes));
  for (int i = 0; i < 4; ++i) {
    CHECK(fault_of<fp16, 64>(case_of(i), causal::bottom_right, table, i % 3) == "");
    cached_case_options c = case_of(i);
    c.latent = true;
    CHECK(fault_of<bf16, 576, 512>(c, causal::bottom_right, giwa::rotary_base(10000.0, {.size = 64, .first = 512}),
                                   0) == "");
  }
}

TEST_CASE("scores of rotated queries depend on distances alone, in double precision") {
  // One key, whose value is its score: with rotated keys at every position, o of head size 2 is cos of the angle between them.
  constexpr int64 keys = 40;
  std::vector<float> k(keys * 2), v(keys * 2, 0), q{1, 0}, o(2), lse(1);
  const giwa::rotary_base rotary(10000.0, {.size = 2});
  for (int64 n = 0; n < keys; ++n)
    k[static_cast<std::size_t>(2 * n)] = static_cast<float>(std::cos(static_cast<double>(n))),
                                   k[static_cast<std::size_t>(2 * n + 1)] =
                                       static_cast<float>(std::sin(static_cast<double>(n)));
  for (const int length : {1, 2, 17, 40}) {
    const giwa::kv_cache<const float> cache{.k = tensor_view<const float, 4>(k.data(), {1, keys, 1, 2}),
                                            .v = tensor_view<const float, 4>(v.data(), {1, keys, 1, 2}),
                                            .lengths = &length};
    REQUIRE(giwa::attention_cached<2>(giwa::host, cache, tensor_view<const float, 4>(q.data(), {1, 1, 1, 2}),
                                      tensor_view<float, 4>(o.data(), {1, 1, 1, 2}), giwa::full{},
                                      giwa::rotated_queries(rotary), {.scale = 3, .lse = {lse.data(), {1, 1, 1}}})
                .ok());
    double sum = 0;
    for (int n = 0; n < length; ++n) sum += std::exp(3 * std::cos(static_cast<double>(length - 1 - n)));
    CHECK(std::abs(static_cast<double>(lse[0]) - std::log(sum)) < 2e-6);
  }
}

TEST_CASE("a tile of queries is rotated as its rows are") {
  using tile = giwa::shared_tile<fp16, giwa::tile_shape<64, 128>, giwa::swizzled<giwa::swizzle::bytes_128>>;
  constexpr int threads = 128;
  random_sequence random(5);
  for (int i = 0; i < 60; ++i) {
    // Half of 24 elements is no multiple of a chunk of 8.
    const giwa::rotary_layout drawn = drawn_layout(128, random);
    const giwa::rotary_base rotary(10000.0, i < 4 ? giwa::rotary_layout{24, i % 2 == 0, i / 2 * 8} : drawn);
    turn_by_pair own;
    static_cast<giwa::rotary_layout&>(own) = rotary;
    const int rows = static_cast<int>(random.below(65)), heads = 1 + static_cast<int>(random.below(9));
    const auto position_of = [&](int row) { return int64{row / heads} * 3 + 11; };
    const auto check = [&](const auto& r) {
      alignas(1024) static tile t;
      std::vector<fp16> before(64 * 128);
      for (int row = 0; row < 64; ++row)
        for (int column = 0; column < 128; ++column)
          t(row, column) = before[static_cast<std::size_t>(row * 128 + column)] =
              giwa::convert<fp16>{}(static_cast<float>(random.below(1000)) * 0.01f - 5);
      for (int thread = 0; thread < threads; ++thread)
        giwa::detail::rotate_tile<threads>(thread, t, rows, r, position_of);
      bool same = true;
      for (int row = 0; row < 64; ++row)
        for (int column = 0; column < 128; ++column) {
          const fp16* const from = before.data() + row * 128;
          const fp16 expected =
              row < rows ? giwa::detail::rotated_element(from, column, r, position_of(row)) : from[column];
          const fp16 found = t(row, column);
          same = same && std::memcmp(&expected, &found, sizeof found) == 0;
        }
      return same;
    };
    CHECK(check(rotary));
    CHECK(check(own));
  }
}

TEST_CASE("rows of a tile are loaded rotated, with zeros behind them") {
  using tile = giwa::shared_tile<fp16, giwa::tile_shape<16, 64>, giwa::swizzled<giwa::swizzle::bytes_128>>;
  constexpr int threads = 32, count = 3, heads = 4, group = 2, first_head = 2;
  struct tile_work {
    struct {
      int q_batch = 1, first_query_row = 1, queries = count, keys = 20;
    } sequence;
  };
  random_sequence random(6);
  for (int i = 0; i < 40; ++i) {
    const int width = i % 3 == 0 ? 64 : static_cast<int>(2 + random.below(63));
    const giwa::rotary_base rotary(10000.0, drawn_layout(width, random));
    std::vector<fp16> memory(static_cast<std::size_t>(2 * (count + 1) * heads * 64));
    for (fp16& x : memory) x = giwa::convert<fp16>{}(static_cast<float>(random.below(1000)) * 0.01f - 5);
    struct {
      struct {
        tensor_view<const fp16, 4> q;
      } views;
      giwa::rotated_queries<giwa::rotary_base> score;
    } const call{{{memory.data(), {2, count + 1, heads, width}, {(count + 1) * heads * 64, heads * 64, 64, 1}}},
                 giwa::rotated_queries(rotary)};
    const giwa::detail::packed_rows rows{.batch = 1,
                                         .first_head = first_head,
                                         .first_row = 0,
                                         .rows = count * group,
                                         .queries = count,
                                         .keys = 20,
                                         .offset = 17,
                                         .group = giwa::fast_divisor(group)};
    alignas(1024) static tile t;
    for (int thread = 0; thread < threads; ++thread)
      giwa::detail::load_rotated_rows<threads>(thread, call, tile_work{}, rows, 16, width % 8 == 0, t);
    bool same = true;
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 64; ++column) {
        const int query = row / group;
        const fp16 expected =
            row < rows.rows && column < width
                ? giwa::detail::rotated_element(&call.views.q(1, 1 + query, first_head + row % group, 0), column,
                                                rotary, 17 + query)
                : giwa::convert<fp16>{}(0.f);
        const fp16 found = t(row, column);
        same = same && std::memcmp(&expected, &found, sizeof found) == 0;
      }
    CHECK(same);
  }
}

TEST_CASE("rotations and positions that do not fit are refused") {
  const giwa::rotary_base right(10000.0, {.size = 8});
  CHECK(rotated_call().run(right).ok());
  CHECK(says(rotated_call().run(giwa::rotary_base(10000.0, {.size = 10})), "rotary", "past the head size of q"));
  CHECK(says(rotated_call().run(giwa::rotary_base(10000.0, {.size = 4, .first = 6})), "rotary", "past the head size"));
  CHECK(says(rotated_call().run(giwa::rotary_base(10000.0, {.size = 3})), "rotary", "must be even"));
  CHECK(says(rotated_call().run(giwa::rotary_base(0.5, {.size = 8})), "rotary", "theta"));
  const giwa::status negative = rotated_call().run(giwa::rotary_base(10000.0, {.size = -2}));
  CHECK((says(negative, "rotary", "is negative") && negative.expected == 0 && negative.got == -2));
  rotated_call c;
  c.positions = tensor_view<const int, 1>(c.numbers.data(), {5});
  CHECK(says(c.run(right), "positions", "each row of q"));
  c.positions = tensor_view<const int, 1>(nullptr, {6});
  CHECK(says(c.run(right), "positions", "null"));
  c.positions = tensor_view<const int64, 1>(nullptr, {6});
  CHECK(says(c.run(right), "positions", "null"));
  rotated_call table;
  table.positions = {};
  const tensor_view<const float, 2> inside(table.x + 200, {16, 4}), wrong(table.x + 2000, {16, 3}),
      fits(table.x + 2000, {16, 4});
  CHECK(table.run(giwa::rotary_table(fits, fits)).ok());
  CHECK(says(table.run(giwa::rotary_table(inside, fits)), "cos", "must not overlap o"));
  CHECK(says(table.run(giwa::rotary_table(fits, inside)), "sin", "must not overlap o"));
  CHECK(says(table.run(giwa::rotary_table(fits, wrong)), "sin", "sizes of cos"));
  const tensor_view<const float, 2> none(nullptr, {16, 4});
  CHECK(says(table.run(giwa::rotary_table(none, fits)), "cos", "null"));
  CHECK(says(table.run(giwa::rotary_table(fits, none)), "sin", "null"));
}
