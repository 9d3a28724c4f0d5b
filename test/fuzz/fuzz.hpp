// SPDX-License-Identifier: MIT
// What a fuzz program tries: calls by name, each with a function from a seed to what is wrong.
#ifndef GIWA_TEST_FUZZ_FUZZ_HPP
#define GIWA_TEST_FUZZ_FUZZ_HPP

#include <giwa/numeric/integer.hpp>

#include <string>
#include <vector>

namespace giwa_test::fuzz {

using giwa::int64;
using giwa::uint64;

/// A call that problems are drawn for. `fault` draws and runs the problem of a seed: empty, or what is wrong. Several threads call it.
struct fuzzed_call {
  const char* name;
  std::string (*fault)(uint64 seed);
};
inline std::vector<fuzzed_call>& fuzzed_calls() {
  static std::vector<fuzzed_call> all;
  return all;
}
/// Adds a call to the program, from the file that defines it.
struct fuzz_with {
  fuzz_with(const char* name, std::string (*fault)(uint64)) { fuzzed_calls().push_back({name, fault}); }
};

}  // namespace giwa_test::fuzz

#endif
