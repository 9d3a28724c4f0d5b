// SPDX-License-Identifier: MIT
// Statuses and results: their text, their exceptions, and how the errors of the CUDA runtime become statuses.
#include <giwa/base/arch.hpp>
#include <giwa/base/cuda_status.hpp>
#include <giwa/base/throw.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

using giwa::bound;
using giwa::format_status;
using giwa::int64;
using giwa::result;
using giwa::status;
using giwa::status_code;
using giwa::throw_if_failed;

// Two functions as a user writes them, and the same by the names that the linker has to see: with the version.
status returns_status() { return status::invalid("x", "as returned"); }
result<int> returns_result() { return {7, {}}; }
status status_by_symbol() __asm__("_Z14returns_statusB4" GIWA_DETAIL_STRING(GIWA_ABI) "v");
result<int> result_by_symbol() __asm__("_Z14returns_resultB4" GIWA_DETAIL_STRING(GIWA_ABI) "v");

namespace {

struct named_code {
  status_code code;
  const char* name;
};
const named_code codes[] = {
    {status_code::success, "success"},
    {status_code::invalid_argument, "invalid argument"},
    {status_code::not_supported, "not supported"},
    {status_code::out_of_memory, "out of memory"},
    {status_code::no_device, "no device"},
    {status_code::no_driver, "no driver"},
    {status_code::no_kernel_image, "no kernel image"},
    {status_code::cuda_error, "CUDA error"},
    {status_code::communication_error, "communication error"},
    {static_cast<status_code>(99), "unknown status code"},
};

struct named_bound {
  bound relation;
  const char* name;
};
const named_bound bounds[] = {{bound::none, ""},
                              {bound::exactly, "exactly"},
                              {bound::at_most, "at most"},
                              {bound::at_least, "at least"},
                              {bound::multiple_of, "a multiple of"}};

std::string expected_text(const named_code& code, const named_bound& relation, const status& s) {
  std::string text = std::string("giwa: ") + code.name;
  if (s.argument[0] != 0) text += std::string(" `") + s.argument + "`";
  if (s.message[0] != 0) text += std::string(": ") + s.message;
  if (relation.relation != bound::none)
    text +=
        std::string(" (") + relation.name + " " + std::to_string(s.expected) + ", got " + std::to_string(s.got) + ")";
  if (s.cuda_code != 0) text += " [cudaError " + std::to_string(s.cuda_code) + "]";
  return text;
}

static_assert(std::is_trivially_copyable_v<status>);
static_assert(status{}.ok() && status{}, "a status begins as success");
static_assert(!status::invalid("a", "b").ok());
static_assert(!std::is_convertible_v<status, bool>, "a status is no number");
static_assert(result<int>{7, {}}.ok() && result<int>{7, {}}.value == 7);

}  // namespace

TEST_CASE("the text of a status names all that is known") {
  for (const named_code& code : codes)
    for (const named_bound& relation : bounds)
      for (const char* argument : {"", "block"})
        for (const char* message : {"", "a block is too large"})
          for (const int cuda_code : {0, 1, 999})
            for (const int64 number : {int64{0}, int64{-1}, int64{1024}, giwa::max_int64, -giwa::max_int64 - 1}) {
              const status s{code.code, relation.relation, cuda_code, message, argument, number, ~number};
              REQUIRE(format_status(s).c_str() == expected_text(code, relation, s));
            }
  CHECK(giwa::name_of(static_cast<bound>(99)) == std::string());
}

TEST_CASE("a text that is too long is cut, and ends with a zero") {
  const std::size_t room = sizeof giwa::status_text::text - 1;
  for (std::size_t length = 0; length < 2 * room; ++length) {
    const std::string message(length, 'm');
    status s = status::invalid("argument", message.c_str(), bound::at_most, 1, 2);
    s.cuda_code = 3;
    const std::string expected = expected_text(codes[1], bounds[2], s);
    REQUIRE(format_status(s).c_str() == expected.substr(0, room));

    const status long_name = status::invalid(message.c_str(), "message");
    REQUIRE(format_status(long_name).c_str() == expected_text(codes[1], bounds[0], long_name).substr(0, room));
  }
}

TEST_CASE("an argument of a status is taken as text, not as a format") {
  CHECK(format_status(status::invalid("%s%n", "100 %d")).c_str() ==
        std::string("giwa: invalid argument `%s%n`: 100 %d"));
}

TEST_CASE("throw_if_failed throws the status and its words, or gives the value") {
  CHECK_NOTHROW(throw_if_failed(status{}));
  const status bad = status::invalid("n", "a count must not be negative", bound::at_least, 0, -5);
  try {
    throw_if_failed(bad);
    FAIL("it did not throw");
  } catch (const std::exception& e) {
    CHECK(e.what() == std::string("giwa: invalid argument `n`: a count must not be negative (at least 0, got -5)"));
  }
  try {
    static_cast<void>(throw_if_failed(result<int>{7, bad}));
    FAIL("it did not throw");
  } catch (const giwa::status_error& e) {
    CHECK(e.state().code == status_code::invalid_argument);
    CHECK(e.state().got == -5);
    const giwa::status_error copy = e;  // as when an exception is caught by value or stored
    CHECK(copy.what() == std::string(e.what()));
    CHECK(copy.what() != e.what());
  }

  result<std::unique_ptr<int>> moved{std::make_unique<int>(42), {}};
  const std::unique_ptr<int> value = throw_if_failed(std::move(moved));
  CHECK(*value == 42);
  CHECK(moved.value == nullptr);
  result<std::vector<int>> none{};
  none.state = bad;
  CHECK_THROWS_AS(throw_if_failed(std::move(none)), giwa::status_error);
}

TEST_CASE("throw_if_failed of a named result refers to its value") {
  result<std::unique_ptr<int>> named{std::make_unique<int>(42), {}};
  std::unique_ptr<int>& value = throw_if_failed(named);
  CHECK(&value == &named.value);
  const result<int> constant{7, {}};
  const int& seven = throw_if_failed(constant);
  CHECK(&seven == &constant.value);
  static_assert(std::is_same_v<decltype(throw_if_failed(result<int>{})), int>);

  named.state = status::invalid("n", "a count must not be negative", bound::at_least, 0, -5);
  CHECK_THROWS_AS(throw_if_failed(named), giwa::status_error);
  const result<int> failed{7, named.state};
  CHECK_THROWS_AS(throw_if_failed(failed), giwa::status_error);
}

TEST_CASE("errors of the CUDA runtime become statuses") {
  struct row {
    cudaError_t error;
    status_code code;
  };
  const row rows[] = {
      {cudaErrorNoDevice, status_code::no_device},
      {cudaErrorInvalidDevice, status_code::no_device},
      {cudaErrorInsufficientDriver, status_code::no_driver},
      {cudaErrorStubLibrary, status_code::no_driver},
      {cudaErrorCompatNotSupportedOnDevice, status_code::no_driver},
      {cudaErrorSystemDriverMismatch, status_code::no_driver},
      {cudaErrorNoKernelImageForDevice, status_code::no_kernel_image},
      {cudaErrorInvalidDeviceFunction, status_code::no_kernel_image},
      {cudaErrorUnsupportedPtxVersion, status_code::no_kernel_image},
      {cudaErrorInvalidResourceHandle, status_code::invalid_argument},
      {cudaErrorMemoryAllocation, status_code::out_of_memory},
      {cudaErrorInvalidValue, status_code::invalid_argument},
      {cudaErrorIllegalAddress, status_code::cuda_error},
      {cudaErrorLaunchFailure, status_code::cuda_error},
      {cudaErrorStreamCaptureUnsupported, status_code::cuda_error},
  };
  for (const row& r : rows) {
    CAPTURE(cudaGetErrorName(r.error));
    const status s = giwa::to_status(r.error, "thing");
    CHECK(s.code == r.code);
    CHECK(s.cuda_code == static_cast<int>(r.error));
    CHECK(std::string(s.message).size() > 10);
    CHECK(s.relation == bound::none);
    // A missing or unfit driver is never the fault of an argument.
    CHECK(s.argument == std::string(r.code == status_code::no_driver ? "" : "thing"));
  }
  const status success = giwa::to_status(cudaSuccess, "thing");
  CHECK(success.ok());
  CHECK(success.argument == std::string());
  CHECK(success.cuda_code == 0);
  for (int error = 1; error < 1000; ++error) REQUIRE_FALSE(giwa::to_status(static_cast<cudaError_t>(error)).ok());
}

#define GIWA_TEST_TEXT_(...) #__VA_ARGS__
#define GIWA_TEST_TEXT(...) GIWA_TEST_TEXT_(__VA_ARGS__)

TEST_CASE("the tags that are part of every symbol") {
  CHECK(GIWA_TEST_TEXT(GIWA_ARCH_TAG) == std::string("archs_none"));
  CHECK(GIWA_TEST_TEXT(GIWA_DETAIL_TAG(800)) == std::string("archs_800"));
  CHECK(GIWA_TEST_TEXT(GIWA_DETAIL_TAG(800, 900)) == std::string("archs_800900"));
  CHECK(GIWA_TEST_TEXT(GIWA_DETAIL_TAG(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)) ==
        std::string("archs_12345678910111213141516"));
  CHECK(GIWA_ARCH_HAS_SM90A == 0);
  CHECK(GIWA_TEST_TEXT(GIWA_ABI) ==
        std::string("v").append(std::to_string(GIWA_VERSION_MAJOR)) + "_" + std::to_string(GIWA_VERSION_MINOR));
}

TEST_CASE("the version is part of the linker's name of a function that returns a status or a result") {
  CHECK(status_by_symbol().message == std::string("as returned"));
  CHECK(result_by_symbol().value == 7);
}
