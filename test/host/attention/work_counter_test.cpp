// SPDX-License-Identifier: MIT
// The counter of work tiles: its counts, and that nothing else that memory may hold looks like one. Parts of a workspace: lines.
#include <giwa/attention/problem/workspace.hpp>

#include "support/catch.hpp"

#include <bit>
#include <vector>

using giwa::int64;
using giwa::uint64;
using namespace giwa::detail;

namespace {

constexpr int64 largest = static_cast<int64>(work_counter::largest_count);

constexpr uint64 state_of(int64 count) { return work_counter::state_of(static_cast<uint64>(count)); }

/// How many consecutive bytes contain all that differ in two words; 0 for equal words.
constexpr int differing_bytes(uint64 a, uint64 b) {
  const uint64 x = a ^ b;
  return x == 0 ? 0 : (63 - std::countl_zero(x)) / 8 - std::countr_zero(x) / 8 + 1;
}

}  // namespace

TEST_CASE("counts of work tiles") {
  STATIC_REQUIRE(work_counter::count_of(state_of(0)) == 0);
  STATIC_REQUIRE(work_counter::is_count(state_of(0)));
  STATIC_REQUIRE(work_counter::is_count(state_of(largest)));
  STATIC_REQUIRE(!work_counter::is_count(state_of(largest + 1)));
  STATIC_REQUIRE(!work_counter::is_count(state_of(-1)));
  STATIC_REQUIRE(work_counter::count_of(state_of(777'777)) == 777'777);
}

TEST_CASE("numbers are not counts") {
  for (const uint64 word :
       {uint64{0}, uint64{1}, ~uint64{0}, uint64{1} << 63, uint64{0x3c003c003c003c00}, uint64{0x3f803f803f803f80},
        uint64{0x3f8000003f800000}, uint64{0x3ff0000000000000}, uint64{0x7ff8000000000000}, uint64{0x7fc000007fc00000},
        uint64{0x7e007e007e007e00}, uint64{0xfe00fe00fe00fe00}})
    CHECK(!work_counter::is_count(word));
  for (uint64 byte = 0; byte < 256; ++byte) CHECK(!work_counter::is_count(byte * 0x0101010101010101));
}

// A launch leaves a count of 0. While the memory still holds other data, each block of the next launch adds once before it looks: so
// counts a little below 0 are tried too.
TEST_CASE("a count of 0 of which up to 5 consecutive bytes are overwritten is not another count") {
  constexpr int64 most_blocks = 4096;
  int64 alike = 0;
  for (int64 count = -most_blocks; count <= largest; ++count)
    if (count != 0 && differing_bytes(state_of(count), state_of(0)) <= 5) ++alike;
  CHECK(alike == 0);
}

TEST_CASE("a count of 0 of which one byte, or two, are overwritten") {
  int counts = 0;
  for (int at = 0; at < 8; ++at)
    for (uint64 byte = 0; byte < 256; ++byte) {
      const uint64 word = (state_of(0) & ~(uint64{0xff} << 8 * at)) | byte << 8 * at;
      counts += work_counter::is_count(word) ? 1 : 0;
    }
  for (int at = 0; at < 7; ++at)
    for (uint64 two = 0; two < 65536; ++two) {
      const uint64 word = (state_of(0) & ~(uint64{0xffff} << 8 * at)) | two << 8 * at;
      counts += work_counter::is_count(word) ? 1 : 0;
    }
  CHECK(counts == 8 + 7);  // what was there before
}

// Also where a launch did not end, and left another count than 0.
TEST_CASE("a count of which only its lower or its upper 5 bytes are overwritten is not another count") {
  std::vector<bool> low(std::size_t{1} << 24), high(std::size_t{1} << 24);
  int64 alike = 0;
  for (int64 count = 0; count <= largest; ++count) {
    const auto upper = static_cast<std::size_t>(state_of(count) >> 40),
               lower = static_cast<std::size_t>(state_of(count) & 0xffffff);
    alike += (high[upper] ? 1 : 0) + (low[lower] ? 1 : 0);
    high[upper] = low[lower] = true;
  }
  CHECK(alike == 0);
}

TEST_CASE("lines of a workspace begin at multiples of 128 bytes, wherever the memory begins, and stay inside") {
  workspace_layout counted;
  const auto take = [](workspace_layout& to) {
    struct parts {
      char* first;
      float* lines;
      int* next;
      float* more;
    };
    return parts{to.take<char>(5), to.take_lines<float>(100), to.take<int>(3), to.take_lines<float>(32)};
  };
  CHECK(take(counted).lines == nullptr);
  alignas(128) unsigned char memory[2048];
  for (int begin = 0; begin < 256; begin += 16) {
    workspace_layout at{memory + begin};
    const auto p = take(at);
    CAPTURE(begin);
    CHECK(at.bytes == counted.bytes);
    const auto address = [](const void* x) { return reinterpret_cast<std::uintptr_t>(x); };
    CHECK(address(p.lines) % 128 == 0);
    CHECK(address(p.more) % 128 == 0);
    CHECK(address(p.next) % 16 == 0);
    CHECK(address(p.lines) >= address(p.first) + 5);
    CHECK(address(p.next) >= address(p.lines + 100));
    CHECK(address(p.more) >= address(p.next + 3));
    CHECK(address(p.more + 32) <= address(memory + begin) + static_cast<std::uintptr_t>(counted.bytes));
  }
}

TEST_CASE("lines of a size that no number holds") {
  workspace_layout counted;
  static_cast<void>(counted.take<char>(40));
  static_cast<void>(counted.take_lines<float>(giwa::max_int64 / 2));
  CHECK(counted.bytes == giwa::max_int64);
  static_cast<void>(counted.take_lines<float>(1));
  CHECK(counted.bytes == giwa::max_int64);
  workspace_layout near;
  static_cast<void>(near.take_lines<char>(giwa::max_int64 - 50));
  CHECK(near.bytes == giwa::max_int64);
}
