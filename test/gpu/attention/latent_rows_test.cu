// SPDX-License-Identifier: MIT
// attention_cached on a GPU with rows of 656 bytes, against the reference, and against rows of 16 bits with the same numbers.
// GIWA_TEST_DRAWS is how many problems are drawn, from GIWA_TEST_FIRST_DRAW on.
#include "gpu/attention/latent_draw.cuh"
#include "support/append_rows.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;
using giwa::rows_656;

namespace {

constexpr int size = latent_size, size_v = latent_size_v;

std::string fault_of_draw(int number) {
  switch (number % 4) {
    case 0: return latent_fault_of<bf16, rows_656>(number);
    case 3: return latent_fault_of<fp16, rows_656, float>(number, by_distance{}, own_score{});
    default: return latent_fault_of<bf16, rows_656>(number, causal::bottom_right);
  }
}

/// The same problem with rows of bf16, which the kernel for many rows makes of rows of bytes.
cached_case<bf16> in_16_bits(cached_case<bf16, rows_656>& c) {
  cached_case<bf16> wide(c.options);
  const auto from = c.k.view();
  const auto to = wide.k.view();
  for (int64 i = 0; i < from.extent(0); ++i)
    for (int64 j = 0; j < from.extent(1); ++j)
      for (int64 h = 0; h < from.extent(2); ++h)
        for (int64 d = 0; d < size; ++d)
          to(i, j, h, d) = giwa::convert<bf16>{}(rows_656::number_at(&from(i, j, h, 0), d));
  wide.share_values();
  wide.q.memory = c.q.memory;
  return wide;
}
template <class Element>
std::vector<bf16> output_of(cached_case<bf16, Element>& c) {
  cached_on_gpu<bf16, Element, bf16> gpu(c);
  gpu.clear_outputs();
  const giwa::stream s = new_stream();
  giwa::throw_if_failed(cached_of<size, size_v>(s, gpu.views(), causal::bottom_right, giwa::plain_score{},
                                                gpu.call_options(int64{8} << 20)));
  gpu.read_back();
  return c.o.memory;
}
/// Equal, or both NaN.
bool same_numbers(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float x = giwa::convert<float>{}(a[i]), y = giwa::convert<float>{}(b[i]);
    if (x != y && !(x != x && y != y)) return false;
  }
  return a.size() == b.size();
}
void write(rows_656* at, const void* from, std::size_t bytes) { std::memcpy(static_cast<void*>(at), from, bytes); }

}  // namespace

TEST_CASE("drawn problems of rows of 656 bytes") {
  const int first = number_of("GIWA_TEST_FIRST_DRAW", 0), count = number_of("GIWA_TEST_DRAWS", small_mode() ? 8 : 40);
  int faults = 0;
  for (int i = first; i < first + count && faults < 5; ++i) {
    const std::string fault = fault_of_draw(i);
    CHECK(fault == "");
    faults += fault.empty() ? 0 : 1;
  }
}

TEST_CASE(
    "rows of 656 bytes of all codes, strange scales, NaN: the reference, and of many rows the bits of 16-bit numbers") {
  int major = 0;
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  for (const int group : {5, 40})
    for (const int kind : {0, 1, 2, 3}) {
      if (small_mode() && kind != 2) continue;
      if (kind == 2 && major != 9) continue;  // packed queries: kernels without tensor cores do not round the numbers
      const bool many = group == 40;
      cached_case_options options = mixed_case(kind == 1 ? 0 : 16, many && kind == 2, group);
      options.head_size = size, options.head_size_v = size_v;
      cached_case<bf16, rows_656> c(options);
      random_sequence random(static_cast<uint64>(kind + 10 * group));
      c.for_each_row([&](int64 at, int64 row, int64 head) {
        rows_656* const bytes = &c.k.view()(at, row, head, 0);
        for (int d = 0; d < 512; ++d) {
          bytes[d].byte = static_cast<unsigned char>(random.below(256));
          if (kind < 3 && (bytes[d].byte & 0x7f) == 0x7f) bytes[d].byte = 0x7e;
        }
        for (int i = 0; i < 4; ++i) {
          float scale = 0.001f * static_cast<float>(1 + random.below(5000));
          if (kind == 2) scale = random.below(3) == 0 ? 0.f : random.below(2) == 0 ? 0x1p-126f : -0.3f;
          if (kind == 3 && random.below(200) == 0) scale = random.below(2) == 0 ? 0x1p127f : NAN;
          if (kind == 1 && random.below(8) == 0) scale = random.below(2) == 0 ? 0x1p-30f : 0x1p20f;
          write(bytes + 512 + 4 * i, &scale, 4);
        }
      });
      c.share_values();
      CAPTURE(group);
      CAPTURE(kind);
      const std::vector<bf16> o = output_of(c);
      if (many) {
        cached_case<bf16> wide = in_16_bits(c);
        CHECK(same_numbers(o, output_of(wide)));
      } else {
        // Numbers are not rounded to bf16 there, but the plain implementation rounds them.
        attention_answers answers = answers_of<bf16>(c, causal::bottom_right, giwa::plain_score{});
        const attention_answers exact = answers_of<float>(c, causal::bottom_right, giwa::plain_score{});
        answers.o = exact.o, answers.lse = exact.lse;
        // A weight times its scale is rounded to 2^-39 of the largest weight times the largest scale, or to 11 bits. The judge allows
        // 2^-22 of a sum, so 2^-38 of the values.
        for (row_scale& s : answers.scales) s.sum += 0x1p-16f * s.values;
        CHECK(judge<bf16>(c, answers).failure == "");
      }
    }
}

TEST_CASE("rows of 656 bytes have the same bits alone, with any workspace, and in slices of heads") {
  for (const bool packed : {false, true}) {
    check_bits<bf16, rows_656, size, size_v>(mixed_case(16, packed, 40), false);
    check_bits<bf16, rows_656, size, size_v>(mixed_case(16, packed), !packed);
    if (small_mode()) return;
  }
}

TEST_CASE("few sequences of rows of 656 bytes have the same bits in splits of any length") {
  check_few_sequences<bf16, rows_656>();
}

TEST_CASE("rows of 656 bytes that are appended on a GPU have the bits of the CPU") {
  for (const bool interleaved : {false, true})
    for (const int offset : {0, 1}) {
      new_rows<bf16> rows(offset);
      const giwa::rotary_base rotary(10000.0, {.size = 64, .interleaved = interleaved, .first = 512});
      const std::vector<rows_656> before(rows.first_byte(), rows.first_byte() + 6 * 4 * 656);
      const gpu_array<rows_656> bytes(before);
      const gpu_array<bf16> values(rows.values);
      const gpu_array<int> table(rows.table), lengths(rows.lengths);
      const giwa::stream s = new_stream();
      const auto cache = new_rows<bf16>::cache_at(bytes.data(), table.data(), lengths.data());
      const tensor_view<bf16, 4> k(values.data() + offset, rows.k().extents());
      giwa::throw_if_failed(giwa::append_to_cache(s, cache, k, tensor_view<bf16, 4>(), rotary));
      const std::vector<rows_656> got = bytes.to_host();
      giwa::throw_if_failed(giwa::append_to_cache(giwa::host, rows.cache(), rows.k(), tensor_view<bf16, 4>(), rotary));
      CHECK(std::memcmp(got.data(), rows.first_byte(), got.size()) == 0);
      CHECK(rows.fault(rotary) == "");
    }
}
