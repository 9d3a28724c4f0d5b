// SPDX-License-Identifier: MIT
// ring_attention_forward on threads: against the reference, 1 to 8 ranks, uneven and empty slices, delays, what is
// sent, refusals.
#include "host/multi/ring_case.hpp"

#include "support/catch.hpp"
#include "support/same_bits.hpp"

using namespace giwa_test;
using giwa::sequence_slices;
using giwa::slicing;
using giwa::status;

namespace {

/// Writes o and lse of the case by a ring of ranks, in parts, with exactly the workspace that the call asks for. With
/// head_ranks, so many of them exchange heads: all, or those of a row of a mesh.
template <int HeadSize, class T, class O, class Mask, class Score>
std::string run_ring(attention_case<T, O>& c, const sequence_slices& slices, int ranks, const Mask& mask,
                     const Score& score, uint64 delays = 0, int64* bytes_sent = nullptr, int head_ranks = 0) {
  c.clear_outputs();
  const giwa::tensor_view<O, 4> o = c.o.view();
  const giwa::tensor_view<float, 4> lse = as_tensor(c.lse.view());
  std::vector<int64> sent(static_cast<std::size_t>(ranks));
  const std::string failure = on_ranks(ranks, delays, [&](late_communicator comm) {
    comm.sent = &sent[static_cast<std::size_t>(comm.rank())];
    const giwa::token_slice slice = slices.of(comm.rank(), ranks);
    rank_rows<T> q(c.q.view(), slice), k(c.k.view(), slice), v(c.v.view(), slice);
    rank_rows<O> own_o(o, slice);
    std::vector<float> own_lse(static_cast<std::size_t>(c.options.batch * c.options.heads * slice.count()));
    const giwa::tensor_view<float, 3> lse_view(own_lse.data(), {c.options.batch, c.options.heads, slice.count()});
    const int64 needed = head_ranks > 0 ? giwa::head_parallel_workspace_bytes(c.views().problem(), slices, comm.rank(),
                                                                              ranks, sizeof(O), ranks / head_ranks)
                                        : giwa::ring_workspace_bytes(c.views().problem(), slices, comm.rank(), ranks);
    exact_workspace workspace(needed);
    giwa::attention_options options = c.call_options();
    options.lse = c.options.lse ? lse_view : giwa::tensor_view<float, 3>{};
    options.workspace = workspace.view();
    status s = by_ring_or_heads(
        comm, head_ranks,
        [&](const auto& of) {
          return giwa::ring_attention_forward<HeadSize>(giwa::host, of, slices, q.view, k.view, v.view, own_o.view,
                                                        mask, score, options);
        },
        [&](const auto& of) {
          return giwa::head_parallel_attention_forward<HeadSize>(giwa::host, of, slices, q.view, k.view, v.view,
                                                                 own_o.view, mask, score, options);
        });
    if (s.ok()) s = workspace.check();
    own_o.gather(o, slice);
    rank_rows<float> rows;
    rows.view = as_tensor(lse_view);
    if (c.options.lse) rows.gather(lse, slice);
    return s;
  });
  if (bytes_sent != nullptr)
    for (const int64 n : sent) *bytes_sent += n;
  return failure;
}

/// All numbers of ranks and both orders, even and uneven, against the reference.
template <class T, class O = T, class Mask, class Score>
std::string compare(const case_options& options, const Mask& mask, const Score& score) {
  attention_case<T, O> c(options);
  const attention_answers answers = answers_of(c, mask, score);
  return on_all_slices(options.seq_q, [&](const sequence_slices& slices, int ranks) {
    const std::string failure = run_ring<8>(c, slices, ranks, mask, score);
    return failure.empty() ? judge(c, answers).failure : failure;
  });
}

/// A mask that says nothing but what it keeps: positions in the whole sequence count.
struct every_third {
  bool operator()(giwa::attention_coord c) const { return (c.query + 2 * c.key) % 3 != 0 && c.key != 5; }
};

}  // namespace

TEST_CASE("a ring of ranks computes what the reference says") {
  using namespace giwa;
  CHECK((compare<float>(case_of(53, 1), full{}, plain_score{})) == "");
  case_options with_sinks = case_of(53, 2);
  with_sinks.sinks = true;
  CHECK((compare<fp16>(with_sinks, causal{}, plain_score{})) == "");
  case_options shifted = case_of(41, 3);
  shifted.align = alignment::offset(-7), shifted.scale = 0.5f;
  CHECK((compare<float>(shifted, causal{} & keys_back{9}, softcap{3})) == "");
  std::vector<int> ids(2 * 47);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i % 47 / 12);
  const std::vector<float> slopes{0.1f, 0.2f, 0.4f, 0.8f};
  CHECK((compare<float>(case_of(47, 4), segment_ids{ids.data(), ids.data(), 47, 47, true} & causal{},
                        alibi{slopes.data()})) == "");
  std::vector<float> biases(4 * 39 * 39);
  for (std::size_t i = 0; i < biases.size(); ++i) biases[i] = static_cast<float>(i % 17) * 0.1f;
  const bias scattered(tensor_view<float, 4>(biases.data(), {1, 4, 39, 39}));
  CHECK((compare<float>(case_of(39, 5), every_third{}, scattered)) == "");
}

TEST_CASE("head-parallel attention computes what the reference says") {
  using namespace giwa;
  case_options options = case_of(43, 12);
  options.heads = 12, options.kv_heads = 6, options.sinks = true;
  const std::vector<float> slopes{0.1f, 0.2f, 0.4f, 0.8f, 0.1f, 0.3f, 0.5f, 0.7f, 0.9f, 1.1f, 0.01f, 0.02f};
  attention_case<float> c(options);
  const alibi score{slopes.data()};
  const attention_answers answers = answers_of(c, causal{}, score);
  const int64 ends[] = {20, 20, 21, 43};
  for (const int ranks : {1, 2, 3, 6})
    for (const slicing order : {slicing::contiguous, slicing::zigzag}) {
      sequence_slices slices{.tokens = 43, .order = order};
      if (ranks == 2 && order == slicing::zigzag) slices.ends = {ends, {4}};
      const std::string failure = run_ring<8>(c, slices, ranks, causal{}, score, 0, nullptr, ranks);
      CHECK((failure.empty() ? judge(c, answers).failure : failure) == "");
    }
  CHECK(run_ring<8>(c, {.tokens = 43}, 4, causal{}, score, 0, nullptr, 4)
            .find("must be a multiple of the number of ranks") != std::string::npos);
}

TEST_CASE("a mesh of a ring and of heads computes what the reference says") {
  using namespace giwa;
  case_options options = case_of(43, 13);
  options.heads = 12, options.kv_heads = 6, options.sinks = true;
  const std::vector<float> slopes{0.1f, 0.2f, 0.4f, 0.8f, 0.1f, 0.3f, 0.5f, 0.7f, 0.9f, 1.1f, 0.01f, 0.02f};
  attention_case<float> c(options);
  const alibi score{slopes.data()};
  const attention_answers answers = answers_of(c, causal{}, score);
  const int64 ends[] = {20, 20, 21, 30, 30, 31, 36, 43};
  const int64 two_apart[] = {20, -1, 20, -1, 21, -1, 30, -1, 30, -1, 31, -1, 36, -1, 43};
  for (const auto& [ranks, heads] : {std::pair{2, 1}, {4, 2}, {6, 2}, {6, 3}, {8, 2}})
    for (const slicing order : {slicing::contiguous, slicing::zigzag}) {
      sequence_slices slices{.tokens = 43, .order = order};
      if (ranks == 4 && order == slicing::zigzag) slices.ends = {ends, {8}};
      if (ranks == 8 && order == slicing::contiguous) slices.ends = {two_apart, {8}, {2}};
      for (const uint64 delays : {0, 5}) {
        const std::string failure = run_ring<8>(c, slices, ranks, causal{}, score, delays, nullptr, heads);
        INFO(ranks << " ranks, " << heads << " of heads");
        CHECK((failure.empty() ? judge(c, answers).failure : failure) == "");
      }
    }
  CHECK(run_ring<8>(c, {.tokens = 43}, 8, causal{}, score, 0, nullptr, 4)
            .find("must be a multiple of the number of ranks") != std::string::npos);
  int64 sent = 0;
  CHECK(run_ring<8>(c, {.tokens = 43}, 4, causal{alignment::offset(2)}, score, 0, &sent, 2)
            .find("causal on a ring has the offset 0") != std::string::npos);
  CHECK(sent == 0);
}

/// A custom mask that is causal by what it says.
struct said_causal {
  static constexpr bool ends_at_diagonal = true, keeps_to_diagonal = true;
  bool operator()(giwa::attention_coord c) const { return c.key <= c.diagonal; }
};

TEST_CASE("custom masks that say what they are, and a diagonal with an offset") {
  using namespace giwa;
  const auto check = [](const auto& mask, int offset) {
    case_options options = case_of(37, 5);
    if (offset != 0) options.align = alignment::offset(offset);
    attention_case<float> c(options);
    const attention_answers answers = answers_of(c, mask, plain_score{});
    for (const slicing order : {slicing::contiguous, slicing::zigzag}) {
      const std::string failure = run_ring<8>(c, {.tokens = 37, .order = order}, 3, mask, plain_score{});
      CHECK((failure.empty() ? judge(c, answers).failure : failure) == "");
    }
  };
  check(said_causal{}, 0);
  check(said_causal{} & full{}, 0);
  check(keys_ahead{0}, 2);
  check(keys_ahead{0}, -2);
  attention_case<float> c(case_of(37, 5));
  CHECK(run_ring<8>(c, {.tokens = 37}, 3, causal{alignment::offset(2)} & full{}, plain_score{}).find("keys_ahead{0}") !=
        std::string::npos);
}

/// Of each twelve queries the first four see the key of twelve tokens before, and the last four that of 24 tokens before. The host
/// knows it.
struct echoes {
  static constexpr bool any_range = true, any_head = true;
  static constexpr bool known_on_host() { return true; }
  static bool keeps(int query, int key) {
    const int of_twelve = query % 12;
    return key == query || (of_twelve < 4 && key == query - 12) || (of_twelve >= 8 && key == query - 24);
  }
  bool operator()(giwa::attention_coord c) const { return keeps(c.query, c.key); }
  giwa::tile_keep classify(const giwa::score_tile& t) const {
    for (int q = t.first_query; q <= t.last_query; ++q)
      for (int k = t.first_key; k <= t.last_key; ++k)
        if (keeps(q, k)) return giwa::tile_keep::some;
    return giwa::tile_keep::none;
  }
};

TEST_CASE("each step is merged with those before it: rows are complete after other steps, 16 bits and fp32") {
  using namespace giwa;
  CHECK((compare<fp16>(case_of(53, 21), full{}, plain_score{})) == "");
  CHECK((compare<bf16>(case_of(53, 22), causal{}, softcap{3})) == "");
  CHECK((compare<fp16, float>(case_of(48, 23), echoes{}, plain_score{})) == "");
  CHECK((compare<float>(case_of(48, 24), echoes{}, plain_score{})) == "");
  CHECK((compare<bf16>(case_of(41, 25), every_third{}, plain_score{})) == "");
  CHECK((compare<fp16>(case_of(41, 26), sliding_window{9}, plain_score{})) == "");
  case_options no_lse = case_of(48, 27);
  no_lse.lse = false, no_lse.sinks = true;
  CHECK((compare<fp16>(no_lse, echoes{}, plain_score{})) == "");
  const sequence_slices contiguous{.tokens = 48, .order = slicing::contiguous}, zigzag{.tokens = 48};
  const detail::ring_plan<echoes> plan{{}, contiguous, 4, 0};
  CHECK(plan.later(3, 0).has_gaps);
  CHECK(plan.later(3, 0).rows.count == 12);
  CHECK(!plan.later(3, 1).has_gaps);
  CHECK(plan.later(3, 1).rows.first == 8);
  CHECK(plan.later(3, 3).rows.count == 0);
  const detail::ring_plan<causal> of_causal{{}, zigzag, 4, 0};
  for (int rank = 0; rank < 4; ++rank) CHECK(!of_causal.later(rank, 0).has_gaps);
  CHECK(of_causal.later(0, 0).rows.first == 6);
  CHECK(of_causal.later(3, 0).rows.first == 0);
}

TEST_CASE("fewer tokens than ranks, one token and none") {
  for (const int64 tokens : {5, 1, 0}) {
    attention_case<float> c(case_of(tokens, 7));
    const giwa::causal mask{};
    const attention_answers answers = answers_of(c, mask, giwa::plain_score{});
    for (const slicing order : {slicing::contiguous, slicing::zigzag}) {
      const std::string failure = run_ring<8>(c, {.tokens = tokens, .order = order}, 8, mask, giwa::plain_score{});
      CHECK((failure.empty() ? judge(c, answers).failure : failure) == "");
    }
  }
}

TEST_CASE("the bits do not depend on delays or runs") {
  attention_case<giwa::fp16> c(case_of(61, 8));
  const giwa::causal mask{};
  const sequence_slices slices{.tokens = 61};
  REQUIRE(run_ring<8>(c, slices, 5, mask, giwa::plain_score{}) == "");
  const auto o = c.o.memory;
  const auto lse = c.lse.memory;
  int differing = 0;
  for (uint64 run = 1; run <= 12; ++run) {
    REQUIRE(run_ring<8>(c, slices, 5, mask, giwa::plain_score{}, run) == "");
    differing += !same_bits(o, c.o.memory) || !same_bits(lse, c.lse.memory);
  }
  CHECK(differing == 0);
}

TEST_CASE("slices are copied out of a sequence and back") {
  // Heads that are multiples of 16 bytes, and others; from a multiple of 16 bytes, and from another address; with gaps.
  for (const int64 head_size : {1, 3, 4, 5, 8, 11})
    for (const int shift : {0, 1})
      for (const int gap : {0, 1, 4}) {
        INFO(head_size << ' ' << shift << ' ' << gap);
        const giwa::index<4> sizes{2, 11, 3, head_size};
        const int64 row = 3 * (head_size + gap);
        const giwa::index<4> strides{11 * row, row, head_size + gap, 1};
        std::vector<double> memory(static_cast<std::size_t>(11 * row + 2)), copy(memory.size());  // 16-byte aligned
        float* const first = reinterpret_cast<float*>(memory.data()) + shift;
        float* const second = reinterpret_cast<float*>(copy.data()) + shift;
        for (int64 i = 0; i < 2 * 11 * row; ++i) first[i] = static_cast<float>(i), second[i] = -1;
        const giwa::tensor_view<float, 4> from(first, sizes, strides), to(second, sizes, strides);
        const sequence_slices slices{.tokens = 11};
        for (int r = 0; r < 3; ++r) {
          const giwa::token_slice slice = slices.of(r, 3);
          const rank_rows<float> expected(from, slice);
          std::vector<float> own(expected.memory.size());
          const giwa::tensor_view<float, 4> rows(own.data(), expected.view.extents());
          REQUIRE(giwa::slice_tokens(giwa::host, slice, from, rows).ok());
          CHECK(own == expected.memory);
          REQUIRE(giwa::gather_tokens(giwa::host, slice, rows, to).ok());
        }
        int64 wrong = 0;
        for (int64 i = 0; i < 2 * 11 * row; ++i) {
          const bool is_gap = i % (head_size + gap) >= head_size;
          wrong += second[i] != (is_gap ? -1.0f : first[i]);
        }
        CHECK(wrong == 0);
        CHECK(!giwa::slice_tokens(giwa::host, slices.of(0, 3), from, to).ok());
        CHECK(!giwa::slice_tokens(giwa::host, sequence_slices{.tokens = 22}.of(1, 2), from, to).ok());
      }
}

TEST_CASE("rows of any head size are copied, zeroed and added where all strides are multiples of 16 bytes") {
  for (int64 head_size = 1; head_size <= 12; ++head_size) {
    INFO(head_size);
    const giwa::index<4> sizes{2, 3, 2, head_size}, strides{72, 24, 12, 1};
    alignas(16) float memory[144], copy[144];
    for (int i = 0; i < 144; ++i) memory[i] = static_cast<float>(i + 1), copy[i] = -1;
    const giwa::tensor_view<float, 4> from(memory, sizes, strides), to(copy, sizes, strides);
    const auto wrong = [&](float factor) {
      int count = 0;
      for (int i = 0; i < 144; ++i) count += copy[i] != (i % 12 < head_size ? factor * memory[i] : -1);
      return count;
    };
    const giwa::tensor_view<const float, 4> read = from;
    REQUIRE(giwa::detail::copy_rows(giwa::host, read, to).ok());
    CHECK(wrong(1) == 0);
    REQUIRE(giwa::detail::add_rows(giwa::host, to, read).ok());
    CHECK(wrong(2) == 0);
    REQUIRE(giwa::detail::set_to_zero(giwa::host, to).ok());
    CHECK(wrong(0) == 0);
  }
}

TEST_CASE("a slice that is copied lies within the sequence, and has its sizes") {
  std::vector<float> memory(4000);
  using view = giwa::tensor_view<float, 4>;
  const view whole(memory.data(), {2, 11, 3, 4}), own(memory.data() + 1000, {2, 5, 3, 4});
  const auto slice = [&](int64 first, const view& from, const view& to) {
    const giwa::token_slice s{{{first, 3}, {first + 4, 2}}};
    const status out = giwa::slice_tokens(giwa::host, s, from, to), in = giwa::gather_tokens(giwa::host, s, to, from);
    CHECK((out.argument == std::string(in.argument) && out.expected == in.expected && out.got == in.got));
    return out;
  };
  CHECK(slice(5, whole, own).ok());  // the last tokens
  const status past = slice(6, whole, own);
  CHECK((past.argument == std::string("whole") && past.expected == 11 && past.got == 12));
  CHECK(slice(0, {nullptr, {2, 11, 3, 4}}, own).argument == std::string("whole"));
  CHECK(slice(0, whole, {nullptr, {2, 5, 3, 4}}).argument == std::string("own"));
  for (const auto& sizes : {giwa::index<4>{1, 5, 3, 4}, {2, 4, 3, 4}, {2, 6, 3, 4}, {2, 5, 2, 4}, {2, 5, 3, 3}})
    CHECK(slice(0, whole, {own.data(), sizes}).argument == std::string("own"));
}

TEST_CASE("only what later ranks see is sent") {
  constexpr int64 tokens = 64, row = 2 * 2 * 2 * 8 * 4;  // batch, k and v, kv heads, head size, bytes
  const auto sent = [&](const auto& mask, const auto& score, slicing order) {
    attention_case<float> c(case_of(tokens, 9));
    int64 bytes = 0;
    CHECK(run_ring<8>(c, {.tokens = tokens, .order = order}, 4, mask, score, 0, &bytes) == "");
    return bytes / row;
  };
  const giwa::plain_score plain{};
  CHECK(sent(giwa::full{}, plain, slicing::contiguous) == 3 * tokens);
  CHECK(sent(giwa::causal{}, plain, slicing::contiguous) == (3 + 2 + 1) * tokens / 4);  // no earlier rank sees a slice
  const auto window = giwa::causal{} & giwa::keys_back{3};
  CHECK(sent(window, giwa::softcap{3}, slicing::contiguous) == 3 * 3);  // three keys before each boundary
  // Later ranks see a rank's first piece, earlier ones both pieces; each sends what those after it on the ring see.
  CHECK(sent(giwa::causal{}, plain, slicing::zigzag) == 3 * tokens / 2 + 9 * tokens / 8);
  const std::vector<float> biases(tokens * tokens, 0.5f);
  const giwa::bias score(giwa::tensor_view<const float, 4>(biases.data(), {1, 1, tokens, tokens}));
  CHECK(sent(every_third{}, score, slicing::contiguous) == 3 * tokens);  // only the kernels know it
  // Rank 0 sees keys of rank 2, and rank 3 those of rank 1: two steps each.
  const giwa::visible_parts parts{0xcccc'3030'0c0c'3333ull, tokens / 8, tokens / 8};
  CHECK(sent(every_third{} & parts, score, slicing::contiguous) == tokens);
  // A map with these blocks of 8 x 8, of which each second has holes.
  const block_map_of map(tokens, 8, [&](int64 q, int64 k) {
    return (parts.bits >> (8 * (q / 8) + k / 8) & 1) != 0 && (q / 8 % 2 == 0 || (q + k) % 3 != 0);
  });
  const giwa::block_sparse sparse{map.map, every_third{}};
  CHECK(parts_of(map.map).bits == parts.bits);
  CHECK(sent(sparse, plain, slicing::contiguous) == 3 * tokens);  // the host does not read the words of a mask
  CHECK(sent(sparse & parts_of(map.map), plain, slicing::contiguous) == tokens);
  CHECK(compare<float>(case_of(tokens, 9), sparse & parts_of(map.map), plain) == "");
}

TEST_CASE("each rule of a call on a ring is asked") {
  alignas(16) static unsigned char memory[1 << 12];
  std::vector<float> x(3 * 1024), o(1024), lse(64);
  using views = giwa::detail::attention_views<float, float>;
  const auto in = [](const float* data) { return giwa::tensor_view<const float, 4>(data, {1, 4, 2, 8}); };
  const views good{in(x.data()), in(x.data() + 1024), in(x.data() + 2048), {o.data(), {1, 4, 2, 8}}};
  giwa::attention_options right{};
  right.lse = {lse.data(), {1, 2, 4}};
  right.workspace = {memory, {1024}};
  const giwa::sequence_slices eight{.tokens = 8};
  const auto check = [&](const views& a, const giwa::attention_options& options,
                         const giwa::sequence_slices& slices = {.tokens = 8}, int rank = 1, int ranks = 2,
                         bool sent = true) {
    return giwa::detail::check_ring(a, slices, rank, ranks, giwa::causal{}, giwa::plain_score{}, options, 8, 8, 1024,
                                    sent);
  };
  const auto expect = [](const status& s, const std::string& argument, const std::string& words, int64 expected = 0,
                         int64 got = 0) {
    INFO(giwa::format_status(s).c_str() << " / " << argument << ": " << words);
    CHECK((!s.ok() && s.argument == argument && std::string(s.message).find(words) != std::string::npos));
    CHECK((s.expected == expected && s.got == got));
  };
  CHECK(check(good, right).ok());
  CHECK(check(good, right, eight, 0).ok());
  expect(check(good, right, eight, 2), "communicator", "out of range", 1, 2);
  expect(check(good, right, eight, -1), "communicator", "out of range", 1, -1);
  expect(check(good, right, eight, 0, 0), "communicator", "at least one rank", 1, 0);
  expect(check(good, right, {.tokens = -1}), "slices", "out of range", 0, -1);
  constexpr int64 most = giwa::attention_limits::length;
  expect(check(good, right, {.tokens = most + 1}), "slices", "out of range", most, most + 1);
  CHECK(giwa::sequence_slices{.tokens = most}.check(2).ok());
  CHECK(giwa::sequence_slices{.tokens = 0}.check(1).ok());
  const int64 ends[] = {4, 7, 8, 8};
  expect(check(good, right, {.tokens = 9, .order = slicing::contiguous, .ends = {ends, {2}}}), "slices",
         "must end at the last token", 9, 7);
  expect(check(good, right, {.tokens = 8, .ends = {nullptr, {2}}}), "slices", "null");
  CHECK(giwa::sequence_slices{.tokens = 8, .order = slicing::zigzag, .ends = {ends, {4}}}.check(2).ok());
  expect(giwa::sequence_slices{.tokens = 8, .order = slicing::zigzag, .ends = {ends, {3}}}.check(2), "slices",
         "one end for each piece", 4, 3);
  CHECK(giwa::sequence_slices{.tokens = 7, .order = slicing::contiguous, .ends = {ends, {2}}}.check(2).ok());

  const auto with = [&](const auto& change) {
    views a = good;
    giwa::attention_options options = right;
    change(a, options);
    return check(a, options);
  };
  const int one[] = {4};
  expect(with([&](views&, auto& options) { options.sequences.k_lengths = one; }), "sequences", "different lengths");
  expect(with([](views& a, auto&) { a.q = {a.q.data(), {1, 3, 2, 8}}; }), "q", "this rank's slice", 4, 3);
  expect(with([](views& a, auto&) { a.k = {a.k.data(), {1, 5, 2, 8}}; }), "k", "this rank's slice", 4, 5);
  expect(with([](views& a, auto&) { a.k = {a.k.data(), {1, 4, 2, 8}, {68, 17, 8, 1}}; }), "k", "without gaps", 16, 17);
  expect(with([](views& a, auto&) { a.v = {a.v.data(), {1, 4, 2, 8}, {68, 17, 8, 1}}; }), "v", "without gaps", 16, 17);
  expect(with([](views& a, auto&) { a.v = {a.v.data(), {1, 4, 2, 8}, {80, 16, 9, 1}}; }), "v", "without gaps", 16, 16);
  expect(with([](views& a, auto&) { a.o = {a.o.data(), {1, 4, 1, 8}}; }), "o", "as many heads as q", 2, 1);
  expect(with([](views&, auto& options) { options.align = giwa::alignment::offset(1); }), "mask", "has the offset 0", 0,
         1);
  CHECK(with([](views&, auto& options) { options.align = giwa::alignment::offset(0); }).ok());
  views gaps = good;  // that are not sent
  gaps.k = {gaps.k.data(), {1, 4, 2, 8}, {68, 17, 8, 1}};
  CHECK(check(gaps, right, eight, 1, 2, false).ok());
  CHECK(check(gaps, right, {.tokens = 4}, 0, 1).ok());

  const auto space = [&](const giwa::tensor_view<unsigned char, 1>& w) {
    return with([&](views&, auto& options) { options.workspace = w; });
  };
  expect(space({memory, {1023}}), "workspace", "smaller than this call needs", 1024, 1023);
  expect(space({memory, {1024}, {2}}), "workspace", "contiguous", 1, 2);
  expect(space({memory + 8, {1024}}), "workspace", "16-byte aligned");
  expect(space({nullptr, {1024}}), "workspace", "null");
  const auto over = [](const auto* data) {
    return giwa::tensor_view<unsigned char, 1>(
        reinterpret_cast<unsigned char*>(reinterpret_cast<std::uintptr_t>(data) & ~std::uintptr_t{15}), {1024});
  };
  expect(space(over(good.q.data())), "workspace", "the workspace overlaps q");
  expect(space(over(good.k.data())), "workspace", "the workspace overlaps k");
  expect(space(over(good.v.data())), "workspace", "the workspace overlaps v");
  expect(space(over(good.o.data())), "workspace", "the workspace overlaps o");
  expect(with([&](views&, auto& options) {
           options.lse = {reinterpret_cast<float*>(memory), {1, 2, 4}};
         }),
         "workspace", "the workspace overlaps lse");
}

TEST_CASE("a ring refuses what does not fit, and a rank that gives up ends the others") {
  giwa::host_group alone(1);
  const auto comm = alone.communicator(0);
  std::vector<float> x(4 * 8), o(4 * 8);
  std::vector<unsigned char> memory(4096);
  const giwa::tensor_view<float, 4> q(x.data(), {1, 4, 1, 8}), out(o.data(), {1, 4, 1, 8});
  const auto message = [&](const sequence_slices& slices, int64 bytes) {
    giwa::attention_options options{};
    options.workspace = {memory.data(), {bytes}};
    return std::string(giwa::format_status(giwa::ring_attention_forward<8>(giwa::host, comm, slices, q, q, q, out,
                                                                           giwa::full{}, {}, options))
                           .c_str());
  };
  const int64 needed = giwa::ring_workspace_bytes(
      {.batch = 1, .heads = 1, .kv_heads = 1, .head_size = 8, .head_size_v = 8, .element_bytes = 4}, {.tokens = 4}, 0,
      1);
  CHECK(message({.tokens = 5}, 4096) ==
        "giwa: invalid argument `q`: q must have as many rows as this rank's slice (exactly 5, got 4)");
  CHECK(message({.tokens = 4}, needed - 1) ==
        "giwa: invalid argument `workspace`: the workspace is smaller than this call needs (at least " +
            std::to_string(needed) + ", got " + std::to_string(needed - 1) + ")");
  giwa::attention_options shifted{};
  shifted.workspace = {memory.data(), {4096}};
  CHECK(giwa::ring_attention_forward<8>(giwa::host, comm, {.tokens = 4}, q, q, q, out,
                                        giwa::causal{giwa::alignment::offset(2)}, {}, shifted)
            .got == 2);
  giwa::attention_options other_diagonal{};
  other_diagonal.align = giwa::alignment::bottom_right;
  CHECK(std::string(giwa::ring_attention_forward<8>(giwa::host, comm, {.tokens = 4}, q, q, q, out,
                                                    giwa::causal{giwa::alignment::top_left}, {}, other_diagonal)
                        .message)
            .find("ask for different diagonals") != std::string::npos);
  const int64 falling[] = {3, 2};
  CHECK(message({.tokens = 2, .ends = {falling, {2}}}, 4096) ==
        "giwa: invalid argument `slices`: the ends of the pieces must not decrease (at least 3, got 2)");
  CHECK(message({.tokens = 4, .ends = {falling, {1}}}, 4096).find("one end for each piece") != std::string::npos);

  // Rank 1 fails before it sends anything: the others return instead of waiting for it.
  attention_case<float> c(case_of(32, 10));
  const sequence_slices slices{.tokens = 32};
  std::vector<status> states(3);
  giwa::host_group group(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      const giwa::token_slice slice = slices.of(r, 3);
      rank_rows<float> rows(c.q.view(), slice), k(c.k.view(), slice), result(c.o.view(), slice);
      std::vector<double> space(1 << 14);
      giwa::attention_options options{};
      if (r != 1) options.workspace = {reinterpret_cast<unsigned char*>(space.data()), {1 << 17}};
      status& s = states[static_cast<std::size_t>(r)];
      s = giwa::ring_attention_forward<8>(giwa::host, group.communicator(r), slices, rows.view, k.view, k.view,
                                          result.view, giwa::causal{}, {}, options);
      if (!s.ok()) group.abort();
    });
  for (std::thread& t : threads) t.join();
  CHECK(states[0].code == giwa::status_code::communication_error);
  CHECK(states[1].code == giwa::status_code::invalid_argument);
  CHECK(states[2].code == giwa::status_code::communication_error);
}

TEST_CASE("a rank that receives a message of another size than was sent is told both") {
  giwa::host_group group(2);
  const auto sender = group.communicator(0), receiver = group.communicator(1);
  const float sent[4] = {1, 2, 3, 4};
  float got[4] = {};
  const auto size = giwa::int64{sizeof(float)};
  CHECK(sender.exchange(giwa::host, [&](auto link) { return link.send(sent, 3 * size, 1); }).ok());
  const status other = receiver.exchange(giwa::host, [&](auto link) { return link.receive(got, 4 * size, 0); });
  CHECK(other.code == giwa::status_code::communication_error);
  CHECK((other.expected == 4 * size && other.got == 3 * size));
  CHECK((got[0] == 0 && got[3] == 0));
  CHECK(sender.exchange(giwa::host, [&](auto link) { return link.send(sent, 4 * size, 1); }).ok());
  CHECK(receiver.exchange(giwa::host, [&](auto link) { return link.receive(got, 4 * size, 0); }).ok());
  CHECK((got[0] == 1 && got[3] == 4));
}

TEST_CASE("head-parallel attention refuses what does not fit before anything is sent") {
  giwa::host_group group(2);  // no other rank comes: a call that sends would wait for ever
  const auto comm = group.communicator(0);
  std::vector<float> x(4 * 2 * 8, 1.0f), o(4 * 2 * 8, 7.0f);
  alignas(16) static unsigned char memory[1 << 14];
  const giwa::tensor_view<const float, 4> q(x.data(), {1, 4, 2, 8});
  const auto state = [&](const sequence_slices& slices, int64 bytes) {
    giwa::attention_options options{};
    options.workspace = {memory, {bytes}};
    return giwa::head_parallel_attention_forward<8>(giwa::host, comm, slices, q, q, q,
                                                    giwa::tensor_view<float, 4>(o.data(), {1, 4, 2, 8}), giwa::full{},
                                                    giwa::plain_score{}, options);
  };
  const status small = state({.tokens = 8}, 16), rows = state({.tokens = 10}, 1 << 14);
  CHECK((small.argument == std::string("workspace") && small.got == 16 && small.expected > 16));
  CHECK((rows.argument == std::string("q") && rows.expected == 5 && rows.got == 4));
  CHECK(o == std::vector<float>(o.size(), 7.0f));
}
