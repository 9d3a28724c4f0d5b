// SPDX-License-Identifier: MIT
// ring_attention_backward on threads: against the reference, 1 to 8 ranks, uneven and empty slices, delays, frozen
// inputs, refusals.
#include "host/multi/ring_case.hpp"
#include "support/backward_case.hpp"
#include "support/call_options.hpp"
#include "support/catch.hpp"
#include "support/same_bits.hpp"

using namespace giwa_test;
using giwa::sequence_slices;
using giwa::slicing;
using giwa::status;

namespace {

/// The score modifier of a rank: one for all, or with memory of each rank for the gradients that it receives.
template <class Score>
auto score_of(const Score& score, int rank) {
  if constexpr (requires { score.of(rank); })
    return score.of(rank);
  else
    return score;
}

/// Writes the gradients of the case by a ring of ranks, with exactly the workspace that the call asks for. With
/// head_ranks, so many of them exchange heads: all, or those of a row of a mesh. The last rank's wait number failing_wait fails.
/// bytes_sent: adds what all ranks send.
template <int HeadSize, class T, class O, class G, class Mask, class Score>
std::string run_ring(backward_case<T, O, G>& c, const sequence_slices& slices, int ranks, const Mask& mask,
                     const Score& scores, uint64 delays = 0, int head_ranks = 0, int failing_wait = 0,
                     int64* bytes_sent = nullptr) {
  c.clear_outputs();
  const auto whole = c.views();
  std::vector<std::vector<float>> dsinks(static_cast<std::size_t>(ranks));
  std::vector<int64> sent(static_cast<std::size_t>(ranks));
  const int64 heads = c.of.options.heads;
  const std::string failure = on_ranks(ranks, delays, [&](late_communicator comm) {
    if (comm.rank() == ranks - 1) comm.failing_wait = failing_wait;
    comm.sent = &sent[static_cast<std::size_t>(comm.rank())];
    const auto score = score_of(scores, comm.rank());
    const giwa::token_slice slice = slices.of(comm.rank(), ranks);
    rank_rows<T> q(c.of.q.view(), slice), k(c.of.k.view(), slice), v(c.of.v.view(), slice);
    rank_rows<O> o(c.of.o.view(), slice), dout(c.dout.view(), slice);
    rank_rows<float> lse_rows(as_tensor(c.of.lse.view()), slice), dlse_rows(as_tensor(c.dlse.view()), slice);
    rank_rows<G> dq(c.dq.view(), slice), dk(c.dk.view(), slice), dv(c.dv.view(), slice);
    const auto as_lse = [&](const rank_rows<float>& rows) {  // (batch, rows, heads, 1) to (batch, heads, rows)
      const auto& x = rows.view;
      return giwa::tensor_view<const float, 3>(x.data(), {x.extent(0), x.extent(2), x.extent(1)},
                                               {x.stride(0), x.stride(2), x.stride(1)});
    };
    const int64 needed =
        head_ranks > 0 ? giwa::head_parallel_backward_workspace_bytes(whole.in.problem(), slices, comm.rank(), ranks,
                                                                      sizeof(O), sizeof(G), ranks / head_ranks, score)
                       : giwa::ring_backward_workspace_bytes(whole.in.problem(), slices, comm.rank(), ranks, score);
    exact_workspace workspace(needed);
    giwa::attention_backward_options options = c.call_options();
    options.lse = as_lse(lse_rows);
    if (c.has_dlse) options.dlse = as_lse(dlse_rows);
    std::vector<float>& own_dsinks = dsinks[static_cast<std::size_t>(comm.rank())];
    own_dsinks.assign(static_cast<std::size_t>(heads), c.accumulate ? 0.0f : NAN);
    if (c.accumulate && comm.rank() == 0)  // the ranks' sums are added
      for (int64 h = 0; h < heads; ++h) own_dsinks[static_cast<std::size_t>(h)] = c.dsinks.view()(h);
    if (c.of.options.sinks) options.dsinks = {own_dsinks.data(), {heads}};
    options.workspace = workspace.view();
    const auto wanted = [](bool wants, const rank_rows<G>& x) { return wants ? x.view : giwa::tensor_view<G, 4>{}; };
    const auto call = [&](const auto& function) {
      return function(q.view, k.view, v.view, o.view, dout.view, wanted(c.wants_q, dq), wanted(c.wants_k, dk),
                      wanted(c.wants_v, dv), mask, score, options);
    };
    status s = by_ring_or_heads(
        comm, head_ranks,
        [&](const auto& of) {
          return call(
              [&](const auto&... x) { return giwa::ring_attention_backward<HeadSize>(giwa::host, of, slices, x...); });
        },
        [&](const auto& of) {
          return call([&](const auto&... x) {
            return giwa::head_parallel_attention_backward<HeadSize>(giwa::host, of, slices, x...);
          });
        });
    if (s.ok()) s = workspace.check();
    if (c.wants_q) dq.gather(c.dq.view(), slice);
    if (c.wants_k) dk.gather(c.dk.view(), slice);
    if (c.wants_v) dv.gather(c.dv.view(), slice);
    return s;
  });
  if (bytes_sent != nullptr)
    for (const int64 n : sent) *bytes_sent += n;
  if (c.of.options.sinks)
    for (int64 h = 0; h < heads; ++h) {
      float sum = 0;
      for (const auto& x : dsinks) sum += x[static_cast<std::size_t>(h)];
      c.dsinks.view()(h) = sum;
    }
  return failure;
}

/// All numbers of ranks, both orders, even and uneven, against the reference.
template <class T, class G = T, class Mask, class Score>
std::string compare(const case_options& options, const Mask& mask, const Score& score, bool dlse = false,
                    bool accumulate = false) {
  backward_case<T, T, G> c(options);
  c.has_dlse = dlse, c.accumulate = accumulate;
  const backward_answers answers = answers_of(c, mask, score);
  return on_all_slices(options.seq_q, [&](const sequence_slices& slices, int ranks) {
    const std::string failure = run_ring<8>(c, slices, ranks, mask, score);
    return failure.empty() ? judge(c, answers) : failure;
  });
}

}  // namespace

TEST_CASE("a ring of ranks computes the gradients that the reference says") {
  using namespace giwa;
  case_options with_sinks = case_of(45, 2);
  with_sinks.sinks = true;
  CHECK(compare<float>(with_sinks, causal{}, plain_score{}, true) == "");
  CHECK(compare<float>(with_sinks, causal{}, plain_score{}, true, /*accumulate=*/true) == "");
  CHECK((compare<fp16, fp16>(case_of(41, 3), causal{} & keys_back{7}, softcap{5}) == ""));
  CHECK((compare<fp16, float>(case_of(38, 4), full{}, plain_score{}) == ""));
  CHECK(compare<float>(case_of(40, 5), scattered_mask{}, wavy_score{}) == "");
  const block_map_of map(40, 4, [](int64 q, int64 k) { return (q / 4 * 5 + k / 4 * 3) % 7 < 2; });
  CHECK(compare<float>(case_of(40, 6), block_sparse{map.map} & parts_of(map.map), softcap{5}) == "");
}

TEST_CASE("head-parallel ranks, and a mesh, compute the gradients that the reference says") {
  case_options options = case_of(43, 14);
  options.heads = 12, options.kv_heads = 6, options.sinks = true;
  const std::vector<float> slopes{0.1f, 0.2f, 0.4f, 0.8f, 0.1f, 0.3f, 0.5f, 0.7f, 0.9f, 1.1f, 0.01f, 0.02f};
  const int64 ends[] = {20, 20, 21, 30, 30, 31, 36, 43};
  for (const auto& [ranks, heads] : {std::pair{1, 1}, {3, 3}, {2, 1}, {4, 2}, {6, 3}, {8, 2}}) {
    backward_case<float> c(options);
    c.has_dlse = true;
    c.wants_q = ranks != 6, c.wants_k = ranks != 8;
    const giwa::alibi score{slopes.data()};
    const backward_answers answers = answers_of(c, giwa::causal{}, score);
    for (const slicing order : {slicing::contiguous, slicing::zigzag}) {
      sequence_slices slices{.tokens = 43, .order = order};
      if (slices.pieces(ranks) == 8) slices.ends = {ends, {8}};
      const std::string failure = run_ring<8>(c, slices, ranks, giwa::causal{}, score, ranks == 4 ? 3 : 0, heads);
      INFO(ranks << " ranks, " << heads << " of heads");
      CHECK((failure.empty() ? judge(c, answers) : failure) == "");
    }
    c.accumulate = true;
    const backward_answers added = answers_of(c, giwa::causal{}, score);
    const std::string failure = run_ring<8>(c, {.tokens = 43}, ranks, giwa::causal{}, score, 0, heads);
    CHECK((failure.empty() ? judge(c, added) : failure) == "");
  }
}

namespace {

/// A bias and slopes that are trained, with memory of each rank for their gradients.
struct trained_scores {
  int64 tokens;
  std::vector<float> values, slopes{0.1f, 0.2f, 0.4f, 0.8f};
  std::vector<std::vector<float>> bias_gradients, slope_gradients;

  trained_scores(int64 n, int ranks, float begin)
      : tokens(n),
        values(static_cast<std::size_t>(4 * n * n)),
        bias_gradients(static_cast<std::size_t>(ranks), std::vector<float>(values.size())),
        slope_gradients(static_cast<std::size_t>(ranks), std::vector<float>(4, begin)) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 13) * 0.1f;
  }
  auto of(int rank) const {
    const auto at = [&](const auto& of_ranks) {
      return const_cast<float*>(of_ranks[static_cast<std::size_t>(rank)].data());
    };
    const giwa::index<4> sizes{1, 4, tokens, tokens};  // shared by the sequences
    return giwa::then{giwa::alibi_with_gradient(slopes.data(), tensor_view<float, 1>(at(slope_gradients), {4})),
                      giwa::bias_with_gradient(tensor_view<const float, 4>(values.data(), sizes),
                                               tensor_view<float, 4>(at(bias_gradients), sizes))};
  }
  /// The sum over the ranks.
  static std::vector<float> sum(const std::vector<std::vector<float>>& of_ranks) {
    std::vector<float> all(of_ranks[0].size());
    for (const auto& x : of_ranks)
      for (std::size_t i = 0; i < x.size(); ++i) all[i] += x[i];
    return all;
  }
  std::vector<float> gradients() const {
    std::vector<float> all = sum(bias_gradients);
    const std::vector<float> of_slopes = sum(slope_gradients);
    all.insert(all.end(), of_slopes.begin(), of_slopes.end());
    return all;
  }
};

float largest(const std::vector<float>& x) {
  float most = 0;
  for (const float value : x)
    if (!(std::abs(value) <= most) && !std::isnan(most)) most = std::abs(value);  // NaN stays
  return most;
}

}  // namespace

TEST_CASE("gradients by heads are refused where ranks do not divide the kv heads") {
  case_options options = case_of(12, 3);
  options.heads = 6, options.kv_heads = 3;
  backward_case<float> c(options);
  for (const auto& [ranks, heads] : {std::pair{2, 2}, {4, 2}})
    CHECK(run_ring<8>(c, {.tokens = 12}, ranks, giwa::full{}, giwa::plain_score{}, 0, heads)
              .find("must be a multiple of the number of ranks (a multiple of 2, got 3)") != std::string::npos);
  CHECK(run_ring<8>(c, {.tokens = 12}, 3, giwa::full{}, giwa::plain_score{}, 0, 3) == "");
}

TEST_CASE("gradients by heads, and on a mesh, are refused before anything is sent") {
  backward_case<float> c(case_of(24, 5));
  int64 sent = 0;
  const auto run = [&](int ranks, const auto& mask) {
    return run_ring<8>(c, {.tokens = 24}, ranks, mask, giwa::plain_score{}, 0, 2, 0, &sent);
  };
  const giwa::causal shifted{giwa::alignment::offset(2)};
  CHECK(run(2, giwa::keys_back{-1}).find("a window's number of keys is negative") != std::string::npos);
  CHECK(run(4, shifted).find("causal on a ring has the offset 0") != std::string::npos);
  CHECK(sent == 0);
  CHECK(run(2, shifted) == "");
  CHECK(sent > 0);
}

TEST_CASE("a score modifier on a ring, or on head-parallel ranks, receives its gradients") {
  constexpr int64 tokens = 29;
  backward_case<float> c(case_of(tokens, 9));
  trained_scores whole(tokens, 1, 0);
  const backward_answers answers = answers_of(c, giwa::causal{}, whole.of(0));
  c.clear_outputs();
  const auto views = c.views();
  REQUIRE((backward_of<8, 8>(giwa::host, views, giwa::causal{}, whole.of(0), c.call_options()).ok()));
  const std::vector<float> expected = whole.gradients();
  CHECK(largest(expected) > 1);
  for (const bool accumulate : {false, true})
    for (const auto& [ranks, heads] : {std::pair{1, 0}, {3, 0}, {4, 0}, {1, 1}, {2, 2}, {4, 2}})
      for (const slicing order : {slicing::contiguous, slicing::zigzag}) {
        INFO(ranks << " ranks, " << heads << " of heads, order " << static_cast<int>(order)
                   << (accumulate ? ", added" : ""));
        trained_scores scores(tokens, ranks, accumulate ? 0.5f : NAN);
        c.accumulate = accumulate, c.wants_q = ranks != 3;
        REQUIRE(run_ring<8>(c, {.tokens = tokens, .order = order}, ranks, giwa::causal{}, scores, 0, heads) == "");
        if (!accumulate && c.wants_q) CHECK(judge(c, answers) == "");
        std::vector<float> got = scores.gradients();
        for (std::size_t i = 0; i < 4 && accumulate; ++i) got[got.size() - 1 - i] -= 0.5f * static_cast<float>(ranks);
        for (std::size_t i = 0; i < got.size(); ++i) got[i] -= expected[i];
        CHECK(largest(got) < 1e-5f * largest(expected));  // NaN fails too
      }
  c.accumulate = false;
  const giwa::alibi_with_gradient wrong(whole.slopes.data(),
                                        tensor_view<float, 1>(whole.slope_gradients[0].data(), {3}));
  CHECK(run_ring<8>(c, {.tokens = tokens}, 2, giwa::causal{}, wrong)
            .find("the sizes must be (heads of q, parameters of the score modifier)") != std::string::npos);
}

TEST_CASE("frozen inputs are not computed") {
  for (int frozen = 0; frozen < 8; ++frozen) {
    backward_case<float> c(case_of(30, 6));
    c.wants_q = (frozen & 1) == 0, c.wants_k = (frozen & 2) == 0, c.wants_v = (frozen & 4) == 0;
    const giwa::causal mask{};
    const backward_answers answers = answers_of(c, mask, giwa::plain_score{});
    const std::string failure = run_ring<8>(c, {.tokens = 30}, 3, mask, giwa::plain_score{});
    CHECK((failure.empty() ? judge(c, answers) : failure) == "");
  }
}

TEST_CASE("a wait that fails ends the gradients of its rank") {
  backward_case<float> c(case_of(24, 21));
  const auto run = [&](int failing_wait) {
    return run_ring<8>(c, {.tokens = 24}, 3, giwa::causal{}, giwa::plain_score{}, 0, 0, failing_wait);
  };
  for (const int wait : {1, 2, 3}) CHECK(run(wait).find("a wait that fails") != std::string::npos);
  CHECK(run(0) == "");
}

TEST_CASE("the bits of gradients do not depend on delays or runs") {
  backward_case<float> c(case_of(61, 8));
  const giwa::causal mask{};
  static_cast<void>(answers_of(c, mask, giwa::plain_score{}));
  const sequence_slices slices{.tokens = 61};
  REQUIRE(run_ring<8>(c, slices, 5, mask, giwa::plain_score{}) == "");
  const auto dq = c.dq.memory, dk = c.dk.memory, dv = c.dv.memory;
  int differing = 0;
  for (uint64 run = 1; run <= 12; ++run) {
    REQUIRE(run_ring<8>(c, slices, 5, mask, giwa::plain_score{}, run) == "");
    differing += !same_bits(dq, c.dq.memory) || !same_bits(dk, c.dk.memory) || !same_bits(dv, c.dv.memory);
  }
  CHECK(differing == 0);
}

TEST_CASE("a ring of gradients refuses what does not fit") {
  giwa::host_group alone(1);
  std::vector<float> x(32), lse(4), gradient(32), dk(32), dv(32);
  std::vector<unsigned char> memory(1 << 13);
  const giwa::tensor_view<float, 4> q(x.data(), {1, 4, 1, 8});
  const auto message = [&](int64 tokens, int64 bytes, bool accumulate) {
    giwa::attention_backward_options options{};
    options.workspace = {memory.data(), {bytes}};
    options.accumulate = accumulate;
    const auto view = [](std::vector<float>& v) { return giwa::tensor_view<float, 4>(v.data(), {1, 4, 1, 8}); };
    return std::string(
        giwa::format_status(giwa::ring_attention_backward<8>(
                                giwa::host, alone.communicator(0), {.tokens = tokens}, q, q, q, q, q, view(gradient),
                                view(dk), view(dv), giwa::full{}, {},
                                giwa_test::with_lse(options, giwa::tensor_view<float, 3>(lse.data(), {1, 1, 4}))))
            .c_str());
  };
  CHECK(message(4, 1 << 13, false).find("success") != std::string::npos);
  CHECK(message(4, 1 << 13, true).find("success") != std::string::npos);
  CHECK(message(3, 1 << 13, false).find("as many rows as this rank's slice (exactly 3, got 4)") != std::string::npos);
  CHECK(message(4, 100, false).find("the workspace is smaller than this call needs") != std::string::npos);
  const auto of_mask = [&](const auto& mask) {
    backward_case<float> c(case_of(24, 5));
    return run_ring<8>(c, {.tokens = 24}, 2, mask, giwa::plain_score{});
  };
  CHECK(of_mask(giwa::keys_back{-1}).find("a window's number of keys is negative") != std::string::npos);
}

TEST_CASE("a workspace of gradients on a ring is apart from what is read and written") {
  alignas(16) static float memory[8][256];
  const auto view = [](int i) { return giwa::tensor_view<float, 4>(memory[i], {1, 4, 1, 8}); };
  giwa::detail::backward_views<float, float, float> good{
      {view(0), view(1), view(2), view(3)}, {memory[7], {1, 1, 4}}, view(4), view(5), view(6), {}};
  std::vector<float> dv(32);
  good.dv = {dv.data(), {1, 4, 1, 8}};
  giwa::attention_backward_options options{};
  const auto check = [&](const auto& a, const void* at) {
    options.workspace = {static_cast<unsigned char*>(const_cast<void*>(at)), {64}};
    return giwa::detail::check_ring_backward(a, {.tokens = 4}, 0, 1, giwa::full{}, giwa::plain_score{}, options, 8, 8,
                                             64);
  };
  alignas(16) static unsigned char apart[64];
  CHECK(check(good, apart).ok());
  options.workspace = {apart + 8, {56}};
  CHECK(
      giwa::detail::check_ring_backward(good, {.tokens = 4}, 0, 1, giwa::full{}, giwa::plain_score{}, options, 8, 8, 56)
          .message == std::string("the workspace must be 16-byte aligned"));
  for (const float* shared : {memory[4], memory[5], memory[6]})
    CHECK(check(good, shared).message == std::string("the workspace overlaps dout or a gradient"));
  auto of_v = good;
  of_v.dk = {}, of_v.dv = view(6);
  CHECK(check(of_v, memory[6]).message == std::string("the workspace overlaps dout or a gradient"));
  CHECK(check(good, memory[7]).message == std::string("the workspace overlaps lse"));
  CHECK(check(good, memory[0]).message == std::string("the workspace overlaps q"));
  const int one[] = {4};
  options.sequences.q_lengths = one;
  CHECK(check(good, apart).argument == std::string("sequences"));
  options.sequences = {};
  good.dout = {memory[4], {1, 4, 1, 7}};
  CHECK(check(good, apart).argument == std::string("dout"));
}
