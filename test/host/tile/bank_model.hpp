// SPDX-License-Identifier: MIT
// Shared memory as its banks see it: how many turns a warp's access takes, counted on the CPU.
#ifndef GIWA_TEST_HOST_TILE_BANK_MODEL_HPP
#define GIWA_TEST_HOST_TILE_BANK_MODEL_HPP

#include <algorithm>
#include <set>
#include <vector>

namespace giwa_test {

/// One access of a warp: a byte offset for each lane, each `width` bytes long. 32 banks of 4 bytes serve 128 bytes at a time,
/// so that accesses of 8 bytes go by half warps and those of 16, as ldmatrix's rows, by quarters. A bank gives one word a turn,
/// to as many lanes as ask for it. The answer is the most turns that any part takes: 1 means no conflict.
inline int turns(const std::vector<int>& offsets, int width) {
  const std::size_t together = static_cast<std::size_t>(width <= 4 ? 32 : 128 / width);
  std::size_t most = 0;
  for (std::size_t first = 0; first < offsets.size(); first += together) {
    std::vector<std::set<int>> words(32);
    for (std::size_t lane = first; lane < std::min(first + together, offsets.size()); ++lane)
      for (int word = offsets[lane] / 4; word <= (offsets[lane] + width - 1) / 4; ++word)
        words[static_cast<std::size_t>(word % 32)].insert(word);
    for (const std::set<int>& of_bank : words) most = std::max(most, of_bank.size());
  }
  return static_cast<int>(most);
}

}  // namespace giwa_test

#endif
