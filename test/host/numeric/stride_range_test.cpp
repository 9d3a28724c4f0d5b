// SPDX-License-Identifier: MIT
// Stride ranges: exactly first, first + stride, … below the end, also where the sum would overflow.
#include <giwa/grid/op.hpp>
#include <giwa/numeric/stride_range.hpp>

#include <vector>

#include "support/catch.hpp"

using giwa::int64;
using giwa::max_int64;
using giwa::stride_range;
using giwa::stride_range_nd;

namespace {

// The same numbers, without a sum that could overflow.
std::vector<int64> expected(int64 first, int64 end, int64 stride) {
  std::vector<int64> numbers;
  for (__int128 i = first; i < end; i += stride) numbers.push_back(static_cast<int64>(i));
  return numbers;
}

// At most `limit` numbers, so that a range that does not end fails instead of running on.
template <class Range>
auto collect(const Range& range, std::size_t limit = 100000) {
  std::vector<std::remove_cvref_t<decltype(*range.begin())>> numbers;
  for (const auto& i : range) {
    numbers.push_back(i);
    if (numbers.size() > limit) break;
  }
  return numbers;
}

// What an op knows of itself, for the stride functions of ops.
struct thread_of_a_grid {
  int rank_, size_;
  int64 block, blocks;
  int rank() const { return rank_; }
  int size() const { return size_; }
  int64 block_rank() const { return block; }
  int64 block_count() const { return blocks; }
};

constexpr int64 sum_of(stride_range range) {
  int64 sum = 0;
  for (const int64 i : range) sum += i;
  return sum;
}
static_assert(sum_of({1, 10, 4}) == 1 + 5 + 9);

}  // namespace

TEST_CASE("one dimension, all small ranges") {
  for (int64 first = 0; first < 14; ++first)
    for (int64 end = -3; end < 14; ++end)
      for (int64 stride = 1; stride < 16; ++stride) {
        CAPTURE(first, end, stride);
        REQUIRE(collect(stride_range(first, end, stride)) == expected(first, end, stride));
      }
}

TEST_CASE("one dimension, up to the largest end") {
  for (int64 back = 0; back < 40; ++back)
    for (int64 stride : {int64{1}, int64{7}, int64{32}, int64{1} << 40, (int64{1} << 62) - 1}) {
      const int64 first = max_int64 - back;
      CAPTURE(back, stride);
      REQUIRE(collect(stride_range(first, max_int64, stride)) == expected(first, max_int64, stride));
      const int64 far = (int64{1} << 62) - 1 - back;  // three or so steps for the whole range
      REQUIRE(collect(stride_range(back, max_int64, far)) == expected(back, max_int64, far));
    }
}

TEST_CASE("two and three dimensions are the product of their ranges, the last innermost") {
  for (int i = 0; i < 4 * 6 * 4; ++i)
    for (int j = 0; j < 4 * 6 * 4; ++j) {
      const int64 first0 = i / 24, end0 = i / 4 % 6, stride0 = i % 4 + 1;
      const int64 first1 = j / 24, end1 = j / 4 % 6, stride1 = j % 4 + 1;
      std::vector<giwa::index<2>> two;
      std::vector<giwa::index<3>> three;
      for (const int64 a : expected(first0, end0, stride0))
        for (const int64 b : expected(first1, end1, stride1)) {
          two.push_back({a, b});
          for (const int64 c : expected(first0, end1, stride1)) three.push_back({a, b, c});
        }
      CAPTURE(first0, end0, stride0, first1, end1, stride1);
      REQUIRE(collect(stride_range_nd<2>({first0, first1}, {end0, end1}, {stride0, stride1})) == two);
      REQUIRE(collect(stride_range_nd<3>({first0, first1, first0}, {end0, end1, end1}, {stride0, stride1, stride1})) ==
              three);
    }
}

TEST_CASE("two dimensions, up to the largest ends") {
  const int64 stride = (int64{1} << 62) - 1;
  for (int64 back = 0; back < 20; ++back)
    for (int64 other = 0; other < 20; ++other) {
      std::vector<giwa::index<2>> numbers;
      for (const int64 a : expected(max_int64 - back, max_int64, 3))
        for (const int64 b : expected(other, max_int64, stride)) numbers.push_back({a, b});
      REQUIRE(collect(stride_range_nd<2>({max_int64 - back, other}, {max_int64, max_int64}, {3, stride})) == numbers);
    }
}

TEST_CASE("the threads of a block, and those of a grid, share the elements out") {
  for (const int size : {1, 32, 96})
    for (const int64 blocks : {1, 3})
      for (int64 n = -1; n < 700; n = n < 100 ? n + 1 : n + 97) {
        std::vector<int> by_block(static_cast<std::size_t>(n < 0 ? 0 : n)), by_grid(by_block);
        for (int64 block = 0; block < blocks; ++block)
          for (int rank = 0; rank < size; ++rank) {
            const thread_of_a_grid thread{rank, size, block, blocks};
            for (const int64 i : giwa::block_stride(thread, n)) ++by_block.at(static_cast<std::size_t>(i));
            for (const int64 i : giwa::grid_stride(thread, n)) ++by_grid.at(static_cast<std::size_t>(i));
          }
        CAPTURE(size, blocks, n);
        REQUIRE(by_block == std::vector<int>(by_block.size(), static_cast<int>(blocks)));
        REQUIRE(by_grid == std::vector<int>(by_grid.size(), 1));
      }
}
