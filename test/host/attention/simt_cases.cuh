// SPDX-License-Identifier: MIT
// The kernel of ordinary arithmetic on the host executor: how it is run there, and the masks and scores that it is run with.
#ifndef GIWA_TEST_HOST_ATTENTION_SIMT_CASES_CUH
#define GIWA_TEST_HOST_ATTENTION_SIMT_CASES_CUH

#include <giwa/attention/kernels/simt/forward_simt.cuh>
#include <giwa/attention/reference/reference.hpp>
#include <giwa/host_executor.cuh>

#include <algorithm>
#include <tuple>

#include "support/attention.hpp"

namespace giwa_test {

using giwa::attention_coord;
using giwa::bf16;
using giwa::fp16;

/// The kernel's blocks in the host executor, in launches of at most `blocks_at_once`.
template <int HeadSize, int HeadSizeV, class T, class O, class Mask, class Score>
giwa::status run_simt(const giwa::detail::attention_views<T, O>& views, const Mask& mask, const Score& score,
                      const giwa::attention_options& options, int64 blocks_at_once = 1 << 20) {
  using op = giwa::detail::simt_attention_op<T, O, HeadSize, HeadSizeV, Mask, Score>;
  if (const giwa::status s = giwa::detail::check_attention(views, mask, score, options, HeadSize, HeadSizeV); !s.ok())
    return s;
  if (views.o.size() == 0 || views.problem().batch == 0) return {};
  typename op::params p{giwa::detail::params_of(views, mask, score, options),
                        giwa::detail::attention_schedule::of(views.problem(), views.packed.max_q, op::block_m, 1, 256)};
  for (; p.schedule.first < p.schedule.work_tiles; p.schedule.first += blocks_at_once) {
    const int64 grid = std::min(p.schedule.work_tiles - p.schedule.first, blocks_at_once);
    if (const giwa::status s = giwa::launch(giwa::host, {.grid = grid, .block = op::max_threads}, op{}, p); !s.ok())
      return s;
  }
  return {};
}

/// A mask of a user's own, without hints: three keys of four, and another choice for each row and head.
struct scattered_mask {
  GIWA_HOST_DEVICE bool operator()(attention_coord c) const {
    return (c.query * 7 + c.key * 5 + c.head * 3 + c.batch + c.key / 9) % 4 != 0;
  }
};
/// A score modifier of a user's own, which uses all of a coordinate.
struct wavy_score {
  GIWA_HOST_DEVICE float operator()(float score, attention_coord c) const {
    const int step = (c.query + 2 * c.key + 3 * c.head + 5 * c.batch + c.diagonal) % 8;
    return score * 0.75f + 0.125f * static_cast<float>(step);
  }
};

/// What a mask or a score modifier reads.
struct side_inputs {
  std::vector<int> q_segments, k_segments, counts;
  std::vector<float> slopes, bias;
  case_options c;

  explicit side_inputs(const case_options& options) : c(options) {
    for (int64 b = 0; b < c.batch; ++b) {
      counts.push_back(static_cast<int>((b * 37 + 11) % (c.seq_k + 2)));
      for (int64 i = 0; i < c.seq_q; ++i) q_segments.push_back(static_cast<int>(i / 23 + b % 2));
      for (int64 i = 0; i < c.seq_k; ++i) k_segments.push_back(static_cast<int>(i / 29));
    }
    for (int64 h = 0; h < c.heads; ++h) slopes.push_back(0.5f / static_cast<float>(h + 1));
    for (int64 i = 0; i < c.heads * c.seq_q * c.seq_k; ++i) bias.push_back(static_cast<float>(i % 17) * 0.25f - 2);
  }
};

// What makes a mask, or a score modifier, for a case.
struct no_mask {
  static auto make(const side_inputs&) { return giwa::full{}; }
};
struct causal_mask {
  static auto make(const side_inputs&) { return giwa::causal{}; }
};
struct window_mask {
  static auto make(const side_inputs&) { return giwa::keys_back{40} & giwa::keys_ahead{3}; }
};
struct width_mask {
  static auto make(const side_inputs&) { return giwa::sliding_window{17}; }
};
struct prefix_mask {
  static auto make(const side_inputs& s) { return giwa::prefix{0, s.counts.data()} | giwa::causal{}; }
};
struct segment_mask {
  static auto make(const side_inputs& s) {
    return giwa::segment_ids{s.q_segments.data(), s.k_segments.data(), s.c.seq_q, s.c.seq_k, true};
  }
};
struct outside_mask {
  static auto make(const side_inputs&) { return !(giwa::keys_back{20} & giwa::keys_ahead{20}); }
};
struct user_mask {
  static auto make(const side_inputs&) { return scattered_mask{}; }
};
struct no_score {
  static auto make(const side_inputs&) { return giwa::plain_score{}; }
};
struct softcap_score {
  static auto make(const side_inputs&) { return giwa::softcap{1.5f}; }
};
struct alibi_score {
  static auto make(const side_inputs& s) { return giwa::alibi{s.slopes.data()}; }
};
struct bias_score {
  static auto make(const side_inputs& s) {
    return giwa::bias(giwa::tensor_view<const float, 4>(s.bias.data(), {1, s.c.heads, s.c.seq_q, s.c.seq_k}));
  }
};
struct capped_bias_score {
  static auto make(const side_inputs& s) { return giwa::then{giwa::softcap{2}, bias_score::make(s)}; }
};
struct user_score {
  static auto make(const side_inputs&) { return wavy_score{}; }
};

template <class T, class O, int HeadSize, int HeadSizeV, class Mask, class Score>
struct simt_types {
  using input = T;
  using output = O;
  using mask = Mask;
  using score = Score;
  static constexpr int head_size = HeadSize, head_size_v = HeadSizeV;
};

/// Every element, head size, mask and score modifier at least once, with others beside it.
using all_simt_types = std::tuple<simt_types<float, float, 64, 64, no_mask, no_score>,             //
                                  simt_types<fp16, fp16, 128, 128, causal_mask, no_score>,         //
                                  simt_types<bf16, bf16, 8, 8, width_mask, softcap_score>,         //
                                  simt_types<float, float, 33, 33, window_mask, alibi_score>,      //
                                  simt_types<fp16, float, 40, 40, prefix_mask, bias_score>,        //
                                  simt_types<bf16, bf16, 80, 80, segment_mask, no_score>,          //
                                  simt_types<float, fp16, 100, 100, outside_mask, no_score>,       //
                                  simt_types<bf16, bf16, 192, 128, user_mask, capped_bias_score>,  //
                                  simt_types<fp16, bf16, 64, 256, causal_mask, alibi_score>,       //
                                  simt_types<bf16, float, 320, 320, window_mask, no_score>,        //
                                  simt_types<float, float, 512, 512, causal_mask, user_score>,     //
                                  simt_types<float, bf16, 1, 1, user_mask, no_score>,              //
                                  simt_types<giwa::e4m3, fp16, 72, 72, causal_mask, no_score>>;

/// Case i of so many types: lengths around the edges of tiles, groups of heads, layouts, sinks, scales.
template <class Types>
case_options simt_case(int i) {
  struct sizes {
    int64 batch, heads, kv_heads, seq_q, seq_k;
  };
  constexpr sizes all[] = {{2, 3, 1, 63, 65},  {1, 8, 2, 64, 64}, {3, 1, 1, 1, 129}, {1, 4, 2, 130, 1},
                           {1, 1, 1, 129, 64}, {2, 7, 1, 5, 66},  {1, 2, 2, 65, 0},  {1, 1, 1, 70, 200},
                           {1, 8, 1, 2, 63},   {2, 2, 1, 128, 31}};
  constexpr int count = static_cast<int>(sizeof all / sizeof all[0]);
  const sizes& s = all[i % count];
  case_options c;
  c.seed = static_cast<uint64>(i + 1000 * Types::head_size);
  c.batch = s.batch, c.heads = s.heads, c.kv_heads = s.kv_heads, c.seq_q = s.seq_q, c.seq_k = s.seq_k;
  c.head_size = Types::head_size, c.head_size_v = Types::head_size_v;
  for (int t = 0; t < 4; ++t)
    c.layout[static_cast<std::size_t>(t)] =
        static_cast<case_layout>((i * (t + 1) + t + Types::head_size) % static_cast<int>(case_layout::count));
  c.offset = i % 3 * 3;
  c.lse = i % 5 != 3;
  c.sinks = i % 3 == 1;
  c.align = i % 2 == 0 ? giwa::alignment::bottom_right : giwa::alignment::top_left;
  if (i % 5 >= 3) c.align = giwa::alignment::offset(37 * (i % 4) - 50);
  constexpr float scales[] = {0, -0.3f, 0.01f, 1};
  if (i % 4 == 2) c.scale = giwa::attention_scale(scales[i / 4 % 4] * (Types::head_size > 100 ? 0.1f : 1.f));
  if (i % 4 == 3) c.spread = 2;
  return c;
}

}  // namespace giwa_test

#endif
