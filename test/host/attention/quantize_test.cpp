// SPDX-License-Identifier: MIT
// quantize on the CPU: against double precision, in every layout; packed rows, empty tensors, and calls that are refused.
#include <giwa/host.hpp>

#include "host/attention/quantize_cases.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::e4m3;
using giwa::fp16;

namespace {

struct on_host {
  template <class T, class Code>
  std::string operator()(quantize_data<T, Code>& data) const {
    const giwa::status s = data.call(giwa::host, data.x.memory.data(), data.codes.memory.data(),
                                     data.scales.memory.data(), data.channel.memory.data());
    return s.ok() ? "" : giwa::format_status(s).c_str();
  }
};

struct refusals {
  std::vector<bf16> x = std::vector<bf16>(240);
  std::vector<e4m3> codes = std::vector<e4m3>(480);
  std::vector<float> scales = std::vector<float>(100);
  tensor_view<bf16, 4> in{x.data(), {2, 5, 3, 8}};
  tensor_view<e4m3, 4> out{codes.data(), {2, 5, 3, 8}};

  template <int Rank>
  std::string text(const giwa::index<Rank>& sizes, int rows = 1) {
    giwa::status s;
    if constexpr (Rank == 2)
      s = giwa::quantize(giwa::host, in, out, tensor_view<float, 2>(scales.data(), sizes));
    else
      s = giwa::quantize(giwa::host, in, out, tensor_view<float, 3>(scales.data(), sizes), {.rows = rows});
    return giwa::format_status(s).c_str();
  }
};

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("quantize finds scales and writes codes as double precision says") {
  CHECK(quantize_fault<fp16, e4m3>(on_host{}) == "");
  CHECK(quantize_fault<bf16, e4m3>(on_host{}) == "");
  CHECK(quantize_fault<float, e4m3>(on_host{}) == "");
  CHECK(quantize_fault<bf16, int8_code>(on_host{}) == "");
  CHECK(quantize_fault<float, int8_code>(on_host{}) == "");
  CHECK(quantize_fault<bf16, int4_pair>(on_host{}) == "");
}

TEST_CASE("packed rows have groups of the tensor's rows") {
  quantize_data<bf16, e4m3> data({.sizes = {1, 70, 3, 40}, .rows = 64});
  const auto x = data.x.view();
  const auto codes = data.codes.view();
  const giwa::status s =
      giwa::quantize(giwa::host, tensor_view<const bf16, 3>(x.data(), {70, 3, 40}, {x.stride(1), x.stride(2), 1}),
                     tensor_view<e4m3, 3>(codes.data(), {70, 3, 40}, {codes.stride(1), codes.stride(2), 1}),
                     data.scales.view(), {.rows = 64});
  REQUIRE(s.ok());
  CHECK(data.fault() == "");
}

TEST_CASE("attention of codes is close to that of the numbers") {
  const giwa::index<4> sizes{1, 150, 2, 64};
  const auto random = [&](int rows) {
    quantize_data<bf16, e4m3> d({.sizes = sizes, .rows = rows});
    REQUIRE(on_host{}(d) == "");
    return d;
  };
  quantize_data<bf16, e4m3> q = random(1), k = random(64), v = random(channels);
  std::vector<float> exact(150 * 2 * 64), rounded = exact;
  const tensor_view<float, 4> o(exact.data(), sizes), of_codes(rounded.data(), sizes);
  REQUIRE(giwa::attention_forward<64>(giwa::host, tensor_view<const bf16, 4>(q.x.view()),
                                      tensor_view<const bf16, 4>(k.x.view()), tensor_view<const bf16, 4>(v.x.view()), o,
                                      giwa::causal{}, {.scale = 0.001f})
              .ok());
  REQUIRE(
      giwa::attention_forward<64>(
          giwa::host, tensor_view<const e4m3, 4>(q.codes.view()), tensor_view<const e4m3, 4>(k.codes.view()),
          tensor_view<const e4m3, 4>(v.codes.view()), of_codes, giwa::causal{},
          {.scale = 0.001f,
           .scales =
               {.q = q.scales.view(), .k = k.scales.view(), .q_rows = 1, .k_rows = 64, .v_channel = v.channel.view()}})
          .ok());
  double error = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i)
    error += std::pow(static_cast<double>(exact[i]) - static_cast<double>(rounded[i]), 2),
        size += std::pow(static_cast<double>(exact[i]), 2);
  CAPTURE(error, size);
  CHECK(size > 100);
  CHECK(std::sqrt(error / size) < 0.06);
  CHECK(std::sqrt(error / size) > 0.001);
}

TEST_CASE("tensors without elements write nothing") {
  for (const giwa::index<4>& n : {giwa::index<4>{0, 5, 3, 8}, {2, 0, 3, 8}, {2, 5, 0, 8}, {2, 5, 3, 0}})
    for (const int rows : {1, 0, channels}) {
      quantize_data<bf16, e4m3> data({.sizes = n, .rows = rows});
      CAPTURE(data.options.text());
      CHECK(on_host{}(data) == "");
      CHECK(data.codes.written() + data.scales.written() + data.channel.written() == 0);
    }
}

TEST_CASE("calls of quantize that are refused") {
  refusals r;
  CHECK(contains(r.text<3>({2, 5, 3}), "success"));
  CHECK(contains(r.text<3>({2, 5, 3}, -1), "the rows of a scale must be 0"));
  CHECK(contains(r.text<3>({2, 5, 3}, 2), "groups of rows"));
  CHECK(contains(r.text<3>({1, 5, 3}), "groups of rows"));
  CHECK(contains(r.text<3>({2, 1, 3}, 0), "success"));
  CHECK(contains(r.text<2>({3, 8}), "success"));
  CHECK(contains(r.text<2>({2, 8}), "(heads, head size)"));
  r.out = {r.codes.data(), {2, 5, 3, 7}};
  CHECK(contains(r.text<3>({2, 5, 3}), "codes must have the head size of x"));
  r.out = {r.codes.data(), {2, 5, 3, 8}, {0, 24, 8, 1}};
  CHECK(contains(r.text<3>({2, 5, 3}), "codes"));
  r.out = {reinterpret_cast<e4m3*>(r.x.data()), {2, 5, 3, 8}};
  CHECK(contains(r.text<3>({2, 5, 3}), "codes overlaps x"));
  r.out = {reinterpret_cast<e4m3*>(r.scales.data()), {2, 5, 3, 8}};
  CHECK(contains(r.text<3>({2, 5, 3}), "scales overlaps codes"));
  r.out = {r.codes.data(), {2, 5, 3, 8}, {240, 48, 16, 2}};
  CHECK(contains(r.text<3>({2, 5, 3}), "the last dimension must be contiguous"));
  const giwa::index<4> others[] = {{1, 5, 3, 8}, {2, 4, 3, 8}, {2, 5, 1, 8}};
  const char* const words[] = {"codes must have the batch of x", "codes must have as many rows as x",
                               "codes must have as many heads as x"};
  for (int d = 0; d < 3; ++d) {
    r.out = {r.codes.data(), others[d]};
    CHECK(contains(r.text<3>({2, 5, 3}), words[d]));
  }
  r.out = {r.codes.data(), {2, 5, 3, 8}};
  const auto with_scales = [&](const tensor_view<float, 3>& scales) {
    return std::string(giwa::format_status(giwa::quantize(giwa::host, r.in, r.out, scales)).c_str());
  };
  CHECK(contains(with_scales({nullptr, {2, 5, 3}}), "must not be null"));
  CHECK(contains(with_scales({r.scales.data(), {2, 5, 3}, {15, 0, 1}}), "must not be zero"));
  r.in = {nullptr, {2, 5, 3, 8}};
  CHECK(contains(r.text<3>({2, 5, 3}), "`x`: the pointer must not be null"));
  std::vector<int4_pair> pairs(2 * 5 * 3 * 4);
  const auto of_pairs = [&](giwa::int64 head) {
    return std::string(
        giwa::format_status(
            giwa::quantize(giwa::host, tensor_view<bf16, 4>(r.x.data(), {2, 2, 3, 8}, {6 * head, 3 * head, head, 1}),
                           tensor_view<int4_pair, 4>(pairs.data(), {2, 2, 3, 4}),
                           tensor_view<float, 3>(r.scales.data(), {2, 2, 3}), {.rows = 1}))
            .c_str());
  };
  CHECK(contains(of_pairs(10), "success"));
  CHECK(contains(of_pairs(9), "for pairs of integers rows must be aligned to two elements"));
  const giwa::index<4> wide{1, 1, 1, giwa::attention_limits::length + 1};
  r.in = {r.x.data(), wide}, r.out = {r.codes.data(), wide};
  CHECK(contains(r.text<3>({1, 1, 1}), "the head size is out of range"));
}
