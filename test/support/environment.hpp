// SPDX-License-Identifier: MIT
// What the environment asks of the tests.
#ifndef GIWA_TEST_SUPPORT_ENVIRONMENT_HPP
#define GIWA_TEST_SUPPORT_ENVIRONMENT_HPP

#include <cstdlib>
#include <string_view>

namespace giwa_test {

/// Whether a variable is set, to something other than nothing and 0.
inline bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

/// GIWA_TEST_SMALL=1 leaves out the cases that need much memory or time, for compute-sanitizer and for ThreadSanitizer.
inline bool small_mode() { return is_set("GIWA_TEST_SMALL"); }

/// Whether the random problems that this thread draws are about an eighth of the usual size: a fuzz program's --small.
inline thread_local bool draws_small = false;

/// The number in a variable, `otherwise` where it is not set.
inline int number_of(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace giwa_test

#endif
