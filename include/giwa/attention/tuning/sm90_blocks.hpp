// SPDX-License-Identifier: MIT
// Tiles of the Hopper kernel of attention for masks of small blocks.
#ifndef GIWA_ATTENTION_TUNING_SM90_BLOCKS_HPP
#define GIWA_ATTENTION_TUNING_SM90_BLOCKS_HPP

#include <giwa/attention/tuning/sm90.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// One consumer, and two blocks on a multiprocessor: one computes its softmax under the products of the other, without ping-pong.
template <int HeadSize, int HeadSizeV>
struct sm90_two_blocks_policy : sm90_policy<64, 64, HeadSize, HeadSizeV, 1, 2, false> {
  static constexpr bool moves_registers = true;
  static constexpr int blocks = 2, producer_registers = 40, consumer_registers = 216;
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

}  // namespace giwa::inline GIWA_ABI::detail

#endif
