// SPDX-License-Identifier: MIT
// Ops that reduce and scan, and what they must compute, for the host executor and a GPU.
#ifndef GIWA_TEST_HOST_GRID_REDUCE_CASES_HPP
#define GIWA_TEST_HOST_GRID_REDUCE_CASES_HPP

#include <giwa/grid/reduce.hpp>
#include <giwa/numeric/integer.hpp>
#include <giwa/numeric/philox.hpp>

#include <vector>

namespace giwa_test {

using giwa::int64;
using giwa::uint64;

/// x -> a x + b modulo 2^32: composition is associative, and its order matters.
struct affine {
  giwa::uint32 a, b;
  friend bool operator==(const affine&, const affine&) = default;
};
struct composed {
  GIWA_HOST_DEVICE affine operator()(affine first, affine second) const {
    return {first.a * second.a, first.b * second.a + second.b};
  }
};
GIWA_HOST_DEVICE inline affine affine_of(uint64 i) {
  const giwa::random_words r = giwa::philox{9}(i);
  return {r.word[0] | 1, r.word[1]};
}
GIWA_HOST_DEVICE inline float real_of(uint64 i) { return giwa::philox{9}.uniform<float>(i) - 0.5f; }

/// What a thread gets.
struct reduced {
  int64 of_warp, of_block, again;
  float largest, sum;
  affine in_warp, inclusive, total;
};

struct reduce_op {
  struct params {
    reduced* out;  // of each thread
  };
  struct shared_storage {
    giwa::block_partials<int64> integers;
    giwa::block_partials<float> reals;
    giwa::block_partials<affine> maps;
  };
  static constexpr int max_threads = 1024, min_blocks = 1;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int64 thread = block.block_rank() * block.size() + block.rank();
    const auto i = static_cast<uint64>(thread);
    reduced r{};
    r.of_warp = giwa::reduce_warp(block, thread);
    r.of_block = giwa::reduce_block(block, thread, s.integers);
    r.again = giwa::reduce_block(block, thread * thread, s.integers);  // without a barrier between the two
    r.largest = giwa::reduce_block(block, real_of(i), s.reals, giwa::larger{});
    r.sum = giwa::reduce_block(block, real_of(i), s.reals);
    r.in_warp = giwa::scan_warp(block, affine_of(i), composed{});
    const giwa::scan_result<affine> scanned = giwa::scan_block(block, affine_of(i), s.maps, composed{});
    r.inclusive = scanned.inclusive, r.total = scanned.total;
    p.out[thread] = r;
  }
};

/// The number of threads whose results are wrong, in blocks of `size` threads. The sums of reals must be near those in double
/// precision, and the same in all threads of a block.
inline int64 wrong_reductions(const std::vector<reduced>& out, int64 size) {
  int64 wrong = 0;
  const auto all = static_cast<int64>(out.size());
  for (int64 first = 0; first < all; first += size) {
    int64 sum = 0, squares = 0;
    float largest = -1;
    double exact = 0;
    affine total{1, 0};
    for (int64 i = first; i < first + size; ++i) {
      sum += i, squares += i * i;
      largest = real_of(static_cast<uint64>(i)) > largest ? real_of(static_cast<uint64>(i)) : largest;
      exact += static_cast<double>(real_of(static_cast<uint64>(i)));
      total = composed{}(total, affine_of(static_cast<uint64>(i)));
    }
    affine inclusive{1, 0}, in_warp{1, 0};
    for (int64 i = first; i < first + size; ++i) {
      const affine own = affine_of(static_cast<uint64>(i));
      inclusive = composed{}(inclusive, own);
      in_warp = (i - first) % 32 == 0 ? own : composed{}(in_warp, own);
      const int64 warp = i - (i - first) % 32;
      const reduced& r = out[static_cast<std::size_t>(i)];
      const double off = static_cast<double>(r.sum) - exact;
      const bool right = r.of_warp == 32 * warp + 31 * 16 && r.of_block == sum && r.again == squares &&
                         r.largest == largest && off < 1e-4 && off > -1e-4 &&
                         r.sum == out[static_cast<std::size_t>(first)].sum && r.in_warp == in_warp &&
                         r.inclusive == inclusive && r.total == total;
      wrong += right ? 0 : 1;
    }
  }
  return wrong;
}

}  // namespace giwa_test

#endif
