// SPDX-License-Identifier: MIT
// A random problem of attention_backward from a number: sizes, layouts, lengths and options.
#ifndef GIWA_TEST_GPU_ATTENTION_BACKWARD_DRAW_HPP
#define GIWA_TEST_GPU_ATTENTION_BACKWARD_DRAW_HPP

#include <algorithm>

#include "support/backward_case.hpp"
#include "support/environment.hpp"
#include "support/random.hpp"

namespace giwa_test::attention {

/// Draws problems whose reference takes some milliseconds.
inline case_options draw_backward(int number, int64 head_size, int64 head_size_v) {
  const int64 head_sizes = head_size + head_size_v;
  random_sequence random(static_cast<giwa::uint64>(number) + 900000);
  const auto one_in = [&](int64 n) { return random.below(n) == 0; };
  const auto length = [&](int64 most) {
    constexpr int64 edges[] = {1, 2, 63, 64, 65, 127, 128, 129, 192, 256};
    const int64 n = one_in(2) ? edges[random.below(10)] : 1 + random.below(most);
    return std::min(n, most);
  };
  case_options c;
  c.seed = static_cast<giwa::uint64>(number);
  c.head_size = head_size, c.head_size_v = head_size_v;
  c.kv_heads = 1 + random.below(3);
  c.heads = c.kv_heads * (one_in(2) ? 1 : 1 + random.below(5));
  c.batch = 1 + random.below(3);
  const int64 longest = small_mode() ? 70 : 300;
  const int64 most = std::max<int64>(
      3, std::min<int64>(longest, (draws_small ? 250000 : 2000000) / (head_sizes * c.heads * c.batch) / 16));
  c.seq_q = length(most), c.seq_k = one_in(3) ? c.seq_q : length(most);
  if (one_in(40)) c.seq_q = 0;
  if (one_in(40)) c.seq_k = 0;
  const int64 sequences = one_in(3) ? 1 + random.below(4) : 0;
  for (int64 i = 0; i < sequences; ++i)
    c.q_lengths.push_back(one_in(4) ? 0 : length(most)), c.k_lengths.push_back(one_in(4) ? 0 : length(most));
  const int64 all = sequences == 0 ? c.batch : sequences;
  if (one_in(4))
    for (int64 i = 0; i < all; ++i) {
      c.q_used.push_back(static_cast<int>(random.below(most + 9)) - 3);
      c.k_used.push_back(static_cast<int>(random.below(most + 9)) - 3);
    }
  if (one_in(5)) {
    c.k_batch = sequences == 0 ? 1 + random.below(4) : sequences;
    for (int64 i = 0; i < all; ++i) c.k_index.push_back(static_cast<int>(random.below(c.k_batch + 2)) - 1);
  }
  for (case_layout& l : c.layout) l = static_cast<case_layout>(random.below(static_cast<int64>(case_layout::count)));
  c.offset = one_in(3) ? static_cast<int>(random.below(8)) : 0;
  c.spread = one_in(8) ? 3 : 1;
  c.sinks = one_in(3);
  if (one_in(5)) c.scale = one_in(2) ? 0.3f : -0.2f;
  c.align = one_in(4)   ? giwa::alignment::offset(random.below(100) - 50)
            : one_in(2) ? giwa::alignment(giwa::alignment::top_left)
                        : giwa::alignment(giwa::alignment::bottom_right);
  if (one_in(6)) {  // packed: many sequences, most of them short or without rows
    const int64 count = 1 + random.below(one_in(3) ? 3 : 90), rarely = 2 + random.below(4),
                longer = random.below(count);
    c.q_lengths.clear(), c.k_lengths.clear(), c.q_used.clear(), c.k_used.clear(), c.k_index.clear(), c.k_batch = 0;
    for (int64 i = 0; i < count; ++i) {
      const int64 least = one_in(rarely) ? 1 : 0, rows = i == longer ? most : least * 20;
      c.q_lengths.push_back(least + random.below(rows + 1)), c.k_lengths.push_back(least + random.below(rows + 1));
    }
    if (one_in(4))
      for (int64 i = 0; i < count; ++i)
        c.q_used.push_back(static_cast<int>(random.below(24)) - 3),
            c.k_used.push_back(static_cast<int>(random.below(most)) - 3);
  }
  return c;
}

/// Draws a problem for tiles of 80 queries: `least` queries or some more, of one or two heads, and few keys. Its answers take a core 1 to 2 s
/// with 2048 queries, and 6 to 8 s with 8192, which have one head.
inline case_options draw_long_backward(int number, int64 head_size, int64 least) {
  using giwa::detail::long_sequences;
  random_sequence random(static_cast<giwa::uint64>(number) + 1700000);
  case_options c = draw_backward(number, head_size, head_size);
  c.q_lengths.clear(), c.k_lengths.clear(), c.q_used.clear(), c.k_used.clear(), c.k_index.clear();
  c.k_batch = 0, c.batch = 1, c.kv_heads = 1, c.heads = least > 4096 ? 1 : 1 + random.below(2);
  do c.seq_q = least + random.below(200);
  while (!long_sequences::suits(c.seq_q, least));
  c.seq_k = long_sequences::keys + random.below(150);
  return c;
}

/// Which gradients a drawn problem asks for, and how.
template <class T, class O, class G>
void draw_backward_outputs(int number, backward_case<T, O, G>& c) {
  random_sequence random(static_cast<giwa::uint64>(number));
  c.has_dlse = random.below(2) == 0;
  c.accumulate = sizeof(G) == 4 && random.below(3) == 0;
  c.has_least_workspace = random.below(4) == 0, c.any_order = random.below(4) == 0;
  c.split_heads = random.below(2) == 0;
  c.wants_q = random.below(6) != 0, c.wants_k = random.below(6) != 0, c.wants_v = random.below(6) != 0;
}

}  // namespace giwa_test::attention

#endif
