// SPDX-License-Identifier: MIT
// append_to_cache on the CPU: against double precision, with hostile lengths, pages and slots.
#include <giwa/host.hpp>

#include "host/attention/append_cases.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

struct on_host {
  template <class T, class Element>
  std::string operator()(const append_data<T, Element>& data, append_memory<T, Element>& memory) const {
    const giwa::status s = data.call(giwa::host, pointers_to(memory));
    return s.ok() ? "" : giwa::format_status(s).c_str();
  }
};

}  // namespace

TEST_CASE("rows are appended as double precision says, and nothing else is written") {
  CHECK(append_failures<float, float>(append_cases(), on_host{}) == "");
  CHECK(append_failures<fp16, fp16>(append_cases(), on_host{}) == "");
  CHECK(append_failures<bf16, bf16>(append_cases(), on_host{}) == "");
}

TEST_CASE("rows are appended to an 8-bit cache, divided by scales of every shape") {
  CHECK(append_failures<float, e4m3>(scale_cases(), on_host{}) == "");
  CHECK(append_failures<bf16, e4m3>(scale_cases(), on_host{}) == "");
  CHECK(append_failures<fp16, e4m3>(append_cases(), on_host{}) == "");
  CHECK(append_failures<bf16, int8_code>(scale_cases(), on_host{}) == "");
}
