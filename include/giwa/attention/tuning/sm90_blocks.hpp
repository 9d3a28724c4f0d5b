// SPDX-License-Identifier: MIT
// The tiles of the Hopper kernel of attention for masks of small blocks, and for head sizes above 256.
#ifndef GIWA_ATTENTION_TUNING_SM90_BLOCKS_HPP
#define GIWA_ATTENTION_TUNING_SM90_BLOCKS_HPP

#include <giwa/attention/tuning/sm90.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// One consumer, and two blocks on a multiprocessor: one computes its softmax under the products of the other, without ping-pong. The
/// consumer needs no more registers, and with 40 the loader spilled: lists of 64 random blocks of 64 x 64 in each row, 109 632 tokens,
/// 7 heads 323 to 408 TFLOP/s, 16 384 tokens 1.10 times as fast at densities from 0.05 to 0.5 (H200, 2026-11-29).
template <int HeadSize, int HeadSizeV>
struct sm90_two_blocks_policy : sm90_policy<64, 64, HeadSize, HeadSizeV, 1, 2, false> {
  static constexpr bool moves_registers = true;
  static constexpr int blocks = 2, producer_registers = 72, consumer_registers = 184;
  static_assert(sm90_two_blocks_policy::bytes + 2 * 64 * sm90_two_blocks_policy::head_size_v + 4096 <= 113 << 10,
                "two blocks fit into the shared memory of a multiprocessor");
};

/// The tile of a mask of blocks (mask_traits::has_blocks) whose blocks have fewer than 128 queries: the consumers of a larger tile
/// would need different tiles of keys.
template <int HeadSize, int HeadSizeV>
struct sm90_blocks_policy_of {
  static constexpr bool exists = HeadSize <= 128 && HeadSizeV <= 128;
  using type = sm90_two_blocks_policy<HeadSize, HeadSizeV>;

  GIWA_HOST_DEVICE static constexpr bool suits(int queries_of_block) { return queries_of_block < 128; }
};

/// The tile of head sizes 257 to 512. A launch computes some columns of O, as many as a thread has registers for, with all of S. As
/// many keys as fit in two stages; no turns of the tensor cores.
///
/// H200, 2026-11-29, bf16, 512, 4 heads, full 4 x 4096, 1 x 16384 | causal 4 x 4096, 1 x 16384 tokens, TFLOP/s: 427, 439 | 411, 443;
/// with turns 415, 424 | 397, 424; 64 keys in one stage 356, 356 | 353, 357; mma.sync 144, 140 | 140, 146.
template <int HeadSize, int HeadSizeV>
struct sm90_wide_policy_of {
  static constexpr int launches = ceil_div(HeadSizeV, 256);
  static constexpr int columns = launches == 1 ? HeadSizeV : round_up(ceil_div(HeadSizeV, launches), 16);
  template <int BlockN>
  using tile = sm90_policy<128, BlockN, HeadSize, columns, 1, 2, false>;
  static constexpr int of_shared = (tile<16>::most_bytes - 2 * 128 * round_up(HeadSize, 64)) /
                                   (4 * (round_up(HeadSize, 64) + round_up(columns, 64)));
  static constexpr int of_registers = (tile<16>::consumer_registers - tile<16>::other_registers - columns / 2) * 4 / 3;
  static constexpr int keys = (of_shared < of_registers ? of_shared : of_registers) / 16 * 16;
  using type = tile<(keys < 128 ? keys : 128)>;
  static_assert(type::fits);
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
