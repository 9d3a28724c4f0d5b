// SPDX-License-Identifier: MIT
// The main function of every test program, Catch2's, with a look for a GPU before it; and catch.hpp by means of Catch2.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include "catch2.hpp"
// catch.hpp has macros of the same names.
#undef CHECK
#undef REQUIRE
#undef CHECK_FALSE
#undef REQUIRE_FALSE
#undef STATIC_REQUIRE
#undef STATIC_REQUIRE_FALSE
#undef SUCCEED
#undef FAIL
#undef CHECK_THROWS
#undef REQUIRE_THROWS
#undef CHECK_THROWS_AS
#undef REQUIRE_THROWS_AS
#undef CHECK_NOTHROW
#undef REQUIRE_NOTHROW
#undef INFO
#undef CAPTURE
#undef UNSCOPED_INFO
#undef WARN
#undef SECTION
#undef TEST_CASE
#undef TEMPLATE_TEST_CASE
#undef TEMPLATE_LIST_TEST_CASE
#include <cstdio>
#include <string>

#include "catch.hpp"
#include "environment.hpp"

namespace giwa_test {
/// Why this program cannot run here, or null. Linked into GPU tests only (require_gpu.cpp).
__attribute__((weak)) const char* reason_to_skip();

namespace {

Catch::SourceLineInfo line_of(const site& where) {
  return Catch::SourceLineInfo(where.file, static_cast<std::size_t>(where.line));
}

/// What an assertion was, with values.
class evaluated final : public Catch::ITransientExpression {
 public:
  evaluated(bool holds, const std::string* values) : Catch::ITransientExpression(false, holds), values_(values) {}
  void streamReconstructedExpression(std::ostream& out) const override {
    if (values_) out << *values_;
  }

 private:
  const std::string* values_;
};

void report(const site& where, bool holds, const std::string* values) {
  Catch::AssertionHandler handler(
      where.macro, line_of(where), where.expression,
      where.stops ? Catch::ResultDisposition::Normal : Catch::ResultDisposition::ContinueOnFailure);
  handler.handleExpr(evaluated(holds, values));
  handler.complete();
}

void print(const site& where, Catch::ResultWas::OfType kind, const std::string& text) {
  Catch::AssertionHandler handler(
      where.macro, line_of(where), Catch::StringRef(),
      where.stops ? Catch::ResultDisposition::Normal : Catch::ResultDisposition::ContinueOnFailure);
  handler.handleMessage(kind, std::string(text));
  handler.complete();
}

}  // namespace

void pass(const site& where) { report(where, true, nullptr); }
void fail(const site& where, const std::string& values) { report(where, false, &values); }

void stop(const site& where, const std::string& text) { print(where, Catch::ResultWas::ExplicitFailure, text); }
void warn(const site& where, const std::string& text) { print(where, Catch::ResultWas::Warning, text); }

void info_once(const site& where, const std::string& text) {
  Catch::getResultCapture().emplaceUnscopedMessage(
      Catch::MessageBuilder(where.macro, line_of(where), Catch::ResultWas::Info) << text);
}

scoped_info::scoped_info(const site& where, const std::string& text)
    : message_(new Catch::ScopedMessage(Catch::MessageBuilder(where.macro, line_of(where), Catch::ResultWas::Info)
                                        << text)) {}
scoped_info::~scoped_info() { delete static_cast<Catch::ScopedMessage*>(message_); }

section::section(const site& where, const char* name)
    : section_(new Catch::Section(Catch::SectionInfo(line_of(where), name))),
      entered_(static_cast<bool>(*static_cast<Catch::Section*>(section_))) {}
section::~section() { delete static_cast<Catch::Section*>(section_); }

registration::registration(void (*test)(), const char* file, int line, const char* name, const char* tags,
                           const std::string& type) {
  const std::string full = name + type;
  Catch::AutoReg(Catch::makeTestInvoker(test), Catch::SourceLineInfo(file, static_cast<std::size_t>(line)),
                 Catch::StringRef(), Catch::NameAndTags{full, tags});
}

std::string text_of_number(long long x) { return std::to_string(x); }
std::string text_of_number(unsigned long long x) { return std::to_string(x); }
std::string text_of_number(double x) {
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.10g", x);
  return digits;
}
std::string text_of_pointer(const volatile void* x) {
  char digits[40];
  std::snprintf(digits, sizeof digits, "%p", const_cast<const void*>(x));
  return digits;
}
std::string text_of_char(char x) {
  return x >= ' ' && x <= '~' ? std::string{'\'', x, '\''} : text_of_number(static_cast<long long>(x));
}

std::string text_of_capture(const char* names, std::initializer_list<std::string> values) {
  std::string all;
  const char* at = names;
  for (const std::string& value : values) {
    int depth = 0;
    const char* end = at;
    for (; *end != '\0' && (depth > 0 || *end != ','); ++end)
      depth += (*end == '(' || *end == '[' || *end == '{') - (*end == ')' || *end == ']' || *end == '}');
    all += (all.empty() ? "" : ", ") + std::string(at, end) + " := " + value;
    for (at = end; *at == ',' || *at == ' ';) ++at;
  }
  return all;
}

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
