// SPDX-License-Identifier: MIT
// The main function of every test program: Catch2's, and for a GPU test a look for a GPU before it.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <cstdio>

#include "environment.hpp"

namespace giwa_test {
/// Why this program cannot run here, or null. Linked into GPU tests only (require_gpu.cpp).
__attribute__((weak)) const char* reason_to_skip();
}  // namespace giwa_test

int main(int argc, char** argv) {
  const char* reason = giwa_test::reason_to_skip ? giwa_test::reason_to_skip() : nullptr;
  if (reason) {
    const bool fail = giwa_test::is_set("GIWA_REQUIRE_GPU");
    std::printf("%s: no GPU: %s\n", fail ? "failed, as GIWA_REQUIRE_GPU is set" : "skipped", reason);
    return fail ? 1 : 4;  // 4 is what CTest counts as skipped
  }
  return Catch::Session().run(argc, argv) == 0 ? 0 : 1;  // Catch2 2.13 returns a count of failures, which may be 4
}
