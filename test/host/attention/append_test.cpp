// SPDX-License-Identifier: MIT
// append_to_cache on the CPU: against double precision, with hostile lengths, pages and slots.
#include <giwa/host.hpp>

#include "host/attention/append_cases.hpp"
#include "host/attention/append_pairs.hpp"
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

TEST_CASE("rows are appended to an 8-bit cache with scales that the call finds") {
  CHECK(append_failures<float, e4m3>(found_scale_cases(), on_host{}) == "");
  CHECK(append_failures<bf16, e4m3>(found_scale_cases(), on_host{}) == "");
  CHECK(append_failures<fp16, int8_code>(found_scale_cases(), on_host{}) == "");
  CHECK(append_failures<bf16, int8_code>(transformed_cases(), on_host{}) == "");
  CHECK(append_failures<float, e4m3>(transformed_cases(), on_host{}) == "");
}

TEST_CASE("pairs of integers appended with scales that the call finds are those of quantize") {
  append_pairs<bf16> x;
  std::vector<float> of_k(x.k4.size(), NAN), of_v = of_k;
  CHECK(
      x.call_with_scales(giwa::host, x.k_new.data(), x.v_new.data(), of_k.data(), of_v.data(), x.k4.data(), x.v4.data())
          .ok());
  CHECK(x.fault_of_scales(x.k4, of_k) == "");
}

TEST_CASE("appended pairs of integers are those of 8 bits, limited to 7") {
  const auto append = [](auto x, const auto& rotary) {
    const auto to = [&](auto& k, auto& v) {
      return x.call(giwa::host, x.k_new.data(), x.v_new.data(), x.k_scales.data(), x.v_scales.data(), k.data(),
                    v.data(), rotary);
    };
    const giwa::status of_pairs = to(x.k4, x.v4), of_codes = to(x.k8, x.v8);
    return !of_pairs.ok() || !of_codes.ok() ? giwa::format_status(of_pairs).c_str() : x.fault();
  };
  CHECK(append(append_pairs<bf16>{}, giwa::no_rotary{}) == "");
  CHECK(append(append_pairs<float>{}, giwa::rotary_base(10000.0, {.size = 32})) == "");
  CHECK(append(append_pairs<bf16>{}, giwa::rotary_base(10000.0, {.size = 20, .interleaved = true, .first = 8})) == "");
  CHECK(append(append_pairs<bf16>{}, giwa::rotary_base(10000.0, {.size = 18, .first = 8})) != "");  // half is odd
}
