// SPDX-License-Identifier: MIT
// Masks of blocks on a GPU for the fuzz program: a drawn map, made there of one of its sources, and attention_forward with it; in one of
// three problems attention_backward too.
#include <giwa/attention.cuh>
#include <giwa/block_map.cuh>

#include "fuzz/fuzz.hpp"
#include "fuzz/modes.cuh"
#include "gpu/attention/backward_draw.hpp"
#include "gpu/attention/backward_gpu.cuh"
#include "gpu/attention/block_maps.cuh"
#include "support/attention.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::attention;
using namespace giwa_test::fuzz;
using giwa::bf16;
using giwa::fp16;

/// Sizes of which the reference takes some milliseconds, and blocks about as large as tiles or much smaller.
template <int HeadSize, int HeadSizeV>
case_options draw_sizes(uint64 seed, bool is_small) {
  case_options c = draw_backward(static_cast<int>(seed), HeadSize, HeadSizeV);
  random_sequence random(seed ^ 0x626c6f636bull);
  if (c.packed() || is_small || random.below(4) == 0) return c;
  // Longer, for gaps of many tiles.
  c.batch = 1, c.q_used.clear(), c.k_used.clear(), c.k_index.clear(), c.k_batch = 0;
  c.kv_heads = 1, c.heads = 1 + random.below(2);
  const int64 work = draws_small ? 3 << 19 : 3 << 21;
  c.seq_q = 1 + random.below(400), c.seq_k = 1 + random.below(1 + work / (HeadSize + HeadSizeV) / c.seq_q);
  return c;
}

template <class T, int HeadSize, class Inner>
std::string fault_of(uint64 seed, const Inner& inner) {
  random_sequence random(seed + 77);
  const auto one_in = [&](int64 n) { return random.below(n) == 0; };
  const bool is_backward = HeadSize <= 256 && one_in(3);
  const case_options options = draw_sizes<HeadSize, HeadSize>(seed, is_backward);
  attention_case<T> c(options);

  const auto longest = [&](int64 length, const std::vector<int64>& of) {
    for (const int64 n : of) length = of.data() == &n ? n : std::max(length, n);
    return static_cast<int>(length);
  };
  const int block_sizes[] = {1, 4, 16, 32, 64, 64, 64, 128, 128, 256};
  const float densities[] = {0, 0.02f, 0.05f, 0.1f, 0.3f, 0.7f, 1};
  block_problem p{.batch = one_in(2) ? 1 : static_cast<int>(c.sequence_count()),
                  .heads = one_in(2) ? 1 : static_cast<int>(options.heads),
                  .queries = longest(options.seq_q, options.q_lengths),
                  .keys = longest(options.seq_k, options.k_lengths),
                  .block_queries = block_sizes[random.below(10)],
                  .block_keys = block_sizes[random.below(10)],
                  .by_keys = !one_in(4),
                  .density = densities[random.below(7)],
                  .empty_ends = one_in(4)};
  block_case blocks(p, seed);
  const std::string about = "; " + name_of(p) + ", density " + std::to_string(p.density) + "; " + options.text();

  // Lists have partial blocks; the others have the full ones alone.
  const int64 source = random.below(3);
  const on_gpu make;
  gpu_array<giwa::block_word> words(static_cast<std::size_t>(blocks.map.bytes()) / sizeof(giwa::block_word));
  const giwa::status made = source == 0   ? make(blocks.lists(), blocks.map, words)
                            : source == 1 ? make(blocks.rows(), blocks.map, words)
                                          : make(giwa::score_threshold{blocks.score_view(), 2}, blocks.map, words);
  if (!made.ok()) return giwa::format_status(made).c_str() + about;
  if (source > 0) blocks.keep_full_alone();
  if (const std::string bad = blocks.failure([&](int b, int h, int r, int k) { return blocks.at(b, h, r, k); });
      !bad.empty())
    return bad + about;
  giwa::block_map there = blocks.map;
  there.words = words.data();
  const giwa::block_sparse mask{there, inner};
  const states_of_blocks<Inner> formula{blocks.map, blocks.states(), inner};

  const attention_answers answers = answers_of(c, formula, giwa::plain_score{});
  const gpu_array<T> q(c.q.memory), k(c.k.memory), v(c.v.memory);
  gpu_array<T> o(c.o.memory);
  gpu_array<float> lse(c.lse.memory), sinks(c.sinks.memory);
  const gpu_array<int> q_offsets(c.q_offsets), k_offsets(c.k_offsets), q_used(c.options.q_used),
      k_used(c.options.k_used), k_index(c.options.k_index);
  auto views = c.views();
  const auto move = [](const int*& to, const gpu_array<int>& from) { to = to == nullptr ? nullptr : from.data(); };
  views.q = c.q.at(const_cast<T*>(q.data())), views.k = c.k.at(const_cast<T*>(k.data()));
  views.v = c.v.at(const_cast<T*>(v.data())), views.o = c.o.at(o.data());
  move(views.packed.q_offsets, q_offsets), move(views.packed.k_offsets, k_offsets);
  move(views.packed.q_lengths, q_used), move(views.packed.k_lengths, k_used), move(views.packed.k_batch_index, k_index);
  auto call = c.call_options();
  if (c.options.lse) call.lse = c.lse.at(lse.data());
  if (c.options.sinks) call.sinks = c.sinks.at(sinks.data());
  gpu_array<unsigned char> workspace(one_in(3) ? 0 : static_cast<std::size_t>(giwa::workspace_bytes(views.problem())));
  workspace.fill(0xff);
  if (workspace.bytes() > 0) call.workspace = {workspace.data(), {static_cast<int64>(workspace.bytes())}};
  const int few = processors_of(seed);
  {
    const with_processors found(few);
    const giwa::stream s = new_stream();
    const giwa::status state = forward_of<HeadSize, HeadSize>(s, views, mask, giwa::plain_score{}, call);
    if (!state.ok()) return giwa::format_status(state).c_str() + about;
    giwa::throw_if_failed(giwa::synchronize(s));
  }
  c.o.memory = o.to_host(), c.lse.memory = lse.to_host();
  if (const std::string bad = judge(c, answers).failure; !bad.empty()) return "forward: " + bad + about;

  if constexpr (HeadSize <= 256)
    if (is_backward) {
      backward_case<T, T, T> b(options);
      draw_backward_outputs(static_cast<int>(seed), b);
      const backward_answers right = answers_of(b, formula, giwa::plain_score{});
      const with_processors found(few);
      std::string bad = run<HeadSize, HeadSize>(b, mask, giwa::plain_score{});
      if (bad.empty()) bad = judge(b, right);
      if (!bad.empty()) return "backward: " + bad + about;
    }
  return "";
}

std::string blocks_fault(uint64 seed) {
  const uint64 which = seed % 8;
  if (which < 3) return fault_of<fp16, 64>(seed, giwa::full{});
  if (which < 7) return fault_of<bf16, 128>(seed, giwa::causal{});
  return fault_of<fp16, 320>(seed, giwa::full{});
}
const fuzz_with added("blocks", blocks_fault);

}  // namespace
