// SPDX-License-Identifier: MIT
// Copies on the CPU and what they refuse, memory in words, and what pinned and device memory answer where there is no driver.
#include <giwa/device.hpp>

#include <array>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "support/catch.hpp"

using giwa::bound;
using giwa::int64;
using giwa::max_int64;
using giwa::status;
using giwa::status_code;
using giwa::tensor_view;

namespace {

bool names(const status& s, const char* argument, const char* part_of_message) {
  CAPTURE(s.argument, s.message);
  CHECK(s.argument == std::string(argument));
  CHECK(std::string(s.message).find(part_of_message) != std::string::npos);
  return s.code == status_code::invalid_argument;
}

std::string words(int64 bytes) { return giwa::format_bytes(bytes).c_str(); }

}  // namespace

TEST_CASE("copy on the CPU copies arrays, spans and contiguous views of any rank") {
  std::vector<int> from(24), to(24, -1);
  std::iota(from.begin(), from.end(), 1);
  REQUIRE(giwa::copy(giwa::host, from, to).ok());
  CHECK(to == from);

  std::array<int, 6> few{};
  REQUIRE(giwa::copy(giwa::host, tensor_view<const int, 3>(from.data() + 6, {1, 2, 3}), few).ok());
  CHECK(few == std::array<int, 6>{7, 8, 9, 10, 11, 12});
  REQUIRE(giwa::copy(giwa::host, few, tensor_view<int, 2>(to.data(), {2, 3})).ok());
  CHECK(to[0] == 7);
  CHECK(to[5] == 12);
  CHECK(to[6] == from[6]);
  REQUIRE(giwa::copy(giwa::host, std::span<const int>(from).first(0), std::span<int>()).ok());
}

TEST_CASE("copy names the argument that is wrong, on a stream and on the CPU") {
  std::vector<float> some(12), other(12);
  const tensor_view<float, 1> null(nullptr, {12}), negative(some.data(), {-1});
  const tensor_view<float, 2> apart(some.data(), {2, 3}, {4, 1});
  const auto check = [&](auto where) {
    CHECK(names(giwa::copy(where, null, other), "from", "null"));
    CHECK(names(giwa::copy(where, negative, other), "from", "negative"));
    CHECK(names(giwa::copy(where, apart, other), "from", "contiguous"));
    CHECK(names(giwa::copy(where, other, null), "to", "null"));
    CHECK(names(giwa::copy(where, other, apart), "to", "contiguous"));
    CHECK(names(giwa::copy(where, some, some), "to", "overlap"));
    CHECK(names(giwa::copy(where, std::span(some).first(8), std::span(some).last(8)), "to", "overlap"));
    const status s = giwa::copy(where, some, std::span(other).first(5));
    CHECK(names(s, "to", "as many elements"));
    CHECK(s.relation == bound::exactly);
    CHECK(s.expected == 12);
    CHECK(s.got == 5);
  };
  check(giwa::host);
  check(cudaStream_t{});
  CHECK(giwa::copy(giwa::host, std::span(some).first(6), std::span(some).last(6)).ok());
}

TEST_CASE("pinned arrays and arrays like others refuse sizes as device arrays do, and say where there is no driver") {
  using pinned = giwa::pinned_array<double>;
  const status negative = pinned::allocate(-1).state, huge = pinned::allocate(int64{1} << 60).state;
  CHECK(names(negative, "size", "negative"));
  CHECK(negative.got == -1);
  CHECK(names(huge, "size", "64 bits"));
  CHECK(huge.expected == max_int64 / 8);
  const giwa::result<pinned> none = pinned::allocate(0);
  CHECK(none.ok());
  CHECK(none.value.data() == nullptr);
  CHECK(none.value.begin() == none.value.end());
  CHECK(giwa::like(giwa::host, std::vector<int>()).ok());
  CHECK(giwa::like(cudaStream_t{}, std::vector<int>()).ok());

  static_assert(std::is_same_v<decltype(giwa::like(giwa::host, std::declval<tensor_view<const char, 3>>()).value),
                               giwa::pinned_array<char>>);
  static_assert(!std::is_copy_constructible_v<pinned> && std::is_nothrow_move_assignable_v<pinned>);
  static_assert(std::is_convertible_v<const pinned&, tensor_view<const double, 1>> &&
                std::is_convertible_v<pinned&, std::span<double>>);

  if (giwa::device_count() > 0) return;
  const std::vector<int> data(100);
  const status expected = giwa::current_device().state;  // no driver, or no GPU
  std::vector<int> target(100);
  const cudaStream_t s = nullptr;
  for (const status& state :
       {giwa::pinned_array<int>::allocate(100).state, giwa::like(giwa::host, data).state, giwa::like(s, data).state,
        giwa::copy(s, data, target), giwa::memory_of(0).state, giwa::trim(0), giwa::keep_memory(0, 1000)}) {
    CHECK(state.code == expected.code);
    CHECK(state.message == std::string(expected.message));
  }
  CHECK(names(giwa::keep_memory(0, -1), "bytes", "negative"));
}

TEST_CASE("bytes in words") {
  CHECK(words(0) == "0 bytes");
  CHECK(words(512) == "512 bytes");
  CHECK(words(1023) == "1023 bytes");
  CHECK(words(1024) == "1.0 KiB");
  CHECK(words(1536) == "1.5 KiB");
  CHECK(words((1 << 20) - 1) == "1.0 MiB");  // not 1024.0 KiB
  CHECK(words(int64{96} << 30) == "96.0 GiB");
  CHECK(words(max_int64) == "8.0 EiB");
  CHECK(words(-2048) == "-2.0 KiB");
}

TEST_CASE("out of memory in words has all numbers, and other failures are not dressed up as it") {
  giwa::memory_report m;
  m.device = 1;
  m.total = int64{140} << 30;
  m.free = int64{79} << 30;
  m.pool_reserved = int64{48} << 30;
  m.pool_used = int64{40} << 30;
  m.pool_reserved_most = int64{50} << 30;
  m.pool_used_most = int64{49} << 30;
  status s{status_code::out_of_memory, bound::at_most, 2, "", "size", int64{80} << 30, int64{160} << 30};
  CHECK(std::string(giwa::format_memory(s, m).c_str()) ==
        "giwa: out of memory `size`: 160.0 GiB asked for, 80.0 GiB free of 140.0 GiB; this process's pool holds 48.0 "
        "GiB, "
        "40.0 GiB of it in use");
  s.relation = bound::none;
  CHECK(std::string(giwa::format_memory(s, m).c_str()) == giwa::format_status(s).c_str());
  s = status::invalid("size", "sizes must not be negative", bound::at_most, 0, 1);
  CHECK(std::string(giwa::format_memory(s, m).c_str()) == giwa::format_status(s).c_str());

  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const file = open_memstream(&text, &size);
  giwa::print(m, file);
  std::fclose(file);
  const std::string report(text, size);
  std::free(text);
  CHECK(report ==
        "GPU 1: 79.0 GiB free of 140.0 GiB\n"
        "       this process's pool: 40.0 GiB in use, at most 49.0 GiB; 48.0 GiB reserved, at most 50.0 GiB\n");
}

TEST_CASE("kinds of memory have names") {
  CHECK(name_of(giwa::memory_kind::pageable) == std::string("pageable host memory"));
  CHECK(name_of(giwa::memory_kind::pinned) == std::string("pinned host memory"));
  CHECK(name_of(giwa::memory_kind::device) == std::string("device memory"));
  CHECK(name_of(giwa::memory_kind::managed) == std::string("managed memory"));
}
