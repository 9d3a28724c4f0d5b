// SPDX-License-Identifier: MIT
// Checked builds: an index outside a view stops the program with a sentence, the file and line, and the condition.
#define GIWA_CHECKED 1
#include <giwa/numeric/extents.hpp>
#include <giwa/numeric/tensor_view.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "support/catch.hpp"

namespace {

// What a child process writes to its standard error while it runs f, or "finished" if f returns.
template <class F>
std::string last_words(F f) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // not Catch2's handler: the child must not report
    dup2(ends[1], 2);
    f();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int state = 0;
  REQUIRE(waitpid(child, &state, 0) == child);
  const bool aborted = WIFSIGNALED(state) && WTERMSIG(state) == SIGABRT;
  return aborted ? text : "finished";
}

volatile int outside = 2;

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a checked build stops at an index that is outside") {
  static float data[6];
  const giwa::tensor_view<float, 2> view(data, {2, 3});
  CHECK(last_words([&] { view(1, outside) = 1; }) == "finished");
  const std::string words = last_words([&] { view(outside, 0) = 1; });
  CAPTURE(words);
  CHECK(contains(words, "tensor_view.hpp:"));
  CHECK(contains(words, "the index is outside the view [0 <= i[d] && i[d] < extents_[d]]"));
  CHECK(contains(last_words([&] { view(0, outside - 3) = 1; }), "outside the view"));
  CHECK(contains(last_words([&] { data[0] = static_cast<float>(view.extents()[outside]); }), "no such dimension"));
  CHECK(contains(last_words([&] { data[0] = static_cast<float>(giwa::extents{2, 3}[outside]); }), "no such dimension"));
}

TEST_CASE("the check is an expression, and constant evaluation passes through it") {
  constexpr giwa::index<2> i{1, 2};
  static_assert(i[1] == 2);
  static_assert(giwa::linearize(giwa::extents{3, 4}, i) == 6);
  int evaluated = 0;
  GIWA_ASSERT(++evaluated == 1, "evaluated once");
  CHECK(evaluated == 1);
}
