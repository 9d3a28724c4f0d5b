// SPDX-License-Identifier: MIT
// attention_forward on the CPU in every precision and for head sizes that are not multiples of a vector.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "host/attention/check.hpp"

namespace {

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

template <class T, int HeadSize, int HeadSizeV = HeadSize, class O = T>
void add_cases(faults& f) {
  for (int i = 0; i < 4; ++i) {
    case_options c;
    c.seed = static_cast<uint64>(i * 1000 + HeadSize);
    c.heads = 2;
    c.kv_heads = 1 + i % 2;
    c.seq_q = i == 0 ? 1 : 45;
    c.seq_k = i == 1 ? 64 : 97;
    c.layout[0] = c.layout[3] = static_cast<case_layout>((i + HeadSize) % 5);
    c.layout[1] = c.layout[2] = static_cast<case_layout>((2 * i + HeadSize) % 5);
    c.offset = (HeadSize + i) % 8;
    c.spread = i == 3 ? 3 : 1;
    c.align = giwa::alignment::bottom_right;
    f.add(fault_of<T, HeadSize, HeadSizeV, O>(c, giwa::causal{}));
  }
}

}  // namespace

TEST_CASE("fp32 in several head sizes") {
  faults f;
  add_cases<float, 1>(f);
  add_cases<float, 7>(f);
  add_cases<float, 33>(f);
  add_cases<float, 64>(f);
  add_cases<float, 128>(f);
  add_cases<float, 192, 128>(f);
  add_cases<float, 512>(f);
  CHECK_NO_FAULTS(f);
}

TEST_CASE("fp16 in several head sizes") {
  faults f;
  add_cases<fp16, 1, 72>(f);
  add_cases<fp16, 40>(f);
  add_cases<fp16, 80>(f);
  add_cases<fp16, 100>(f);
  add_cases<fp16, 256>(f);
  CHECK_NO_FAULTS(f);
}

TEST_CASE("bf16 in several head sizes") {
  faults f;
  add_cases<bf16, 8>(f);
  add_cases<bf16, 96>(f);
  add_cases<bf16, 160>(f);
  add_cases<bf16, 64, 256>(f);
  add_cases<bf16, 320>(f);
  CHECK_NO_FAULTS(f);
}

TEST_CASE("an output of another precision") {
  faults f;
  add_cases<fp16, 64, 64, float>(f);
  add_cases<bf16, 64, 33, fp16>(f);
  add_cases<float, 33, 64, bf16>(f);
  CHECK_NO_FAULTS(f);
}

namespace {

/// A program's tensor: a view and something more.
template <class T, int Rank>
struct named_tensor : giwa::tensor_view<T, Rank> {
  using giwa::tensor_view<T, Rank>::tensor_view;
  const char* name = "a name";
};

}  // namespace

TEST_CASE("types derived from a view") {
  constexpr int64 rows = 5, size = 8, count = rows * size;
  std::vector<float> in(3 * count), expected(count), out(count);
  const giwa::philox random(3);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = 2 * random.uniform<float>(i) - 1;
  using plain = giwa::tensor_view<const float, 4>;
  using derived = named_tensor<const float, 4>;
  const giwa::index<4> sizes{1, rows, 1, size};
  const giwa::tensor_view<float, 4> o(expected.data(), sizes);
  REQUIRE(giwa::attention_forward<size>(giwa::host, plain(in.data(), sizes), plain(in.data() + count, sizes),
                                        plain(in.data() + 2 * count, sizes), o, giwa::causal{})
              .ok());
  const derived q(in.data(), sizes), k(in.data() + count, sizes), v(in.data() + 2 * count, sizes);
  const named_tensor<float, 4> derived_o(out.data(), sizes);
  const auto right = [&](const giwa::status& s) {
    const bool same = s.ok() && out == expected;
    std::fill(out.begin(), out.end(), 77.0f);
    return same;
  };
  CHECK(right(giwa::attention_forward<size>(giwa::host, q, k, v, derived_o, giwa::causal{})));
  CHECK(right(giwa::attention_forward<size>(giwa::host, q, k, v, derived_o, giwa::causal{}, {.scale = {}})));
  CHECK(right(giwa::attention_forward<giwa::head_sizes<size>>(giwa::host, q, k, plain(v), derived_o, giwa::causal{})));

  const int offsets[2] = {0, rows};
  const giwa::index<3> packed{rows, 1, size};
  const named_tensor<const float, 3> q3(in.data(), packed), k3(in.data() + count, packed),
      v3(in.data() + 2 * count, packed);
  const named_tensor<float, 3> o3(out.data(), packed);
  CHECK(right(giwa::attention_forward<size>(giwa::host, q3, k3, v3, o3, giwa::causal{},
                                            {.sequences = {offsets, offsets, 1, rows}})));
}

// What a CPU runs without compiler flags.
TEST_CASE("every fp16 number is widened exactly by the loops of each instruction set") {
  std::vector<fp16> all(65536);
  for (int bits = 0; bits < 65536; ++bits) {
    const auto raw = static_cast<std::uint16_t>(bits);
    std::memcpy(static_cast<void*>(&all[static_cast<std::size_t>(bits)]), &raw, sizeof raw);
  }
  const giwa::detail::runnable_loops loops;
  for (int l = 0; l < loops.count; ++l) {
    std::vector<float> wide(all.size());
    giwa::detail::host_widen(*loops.list[l], all.data(), wide.data(), 65536);
    bool same = true;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float right = giwa::convert<float>{}(all[i]);
      same = same && (std::isnan(right) ? std::isnan(wide[i]) : std::memcmp(&wide[i], &right, sizeof right) == 0);
    }
    CHECK(same);
  }
}

TEST_CASE("the loops of each instruction set round to fp16 as convert does") {
  std::vector<float> all;
  for (int bits = 0; bits < 65536; ++bits) {
    const auto raw = static_cast<std::uint16_t>(bits);
    fp16 x;
    std::memcpy(static_cast<void*>(&x), &raw, sizeof raw);
    const float f = giwa::convert<float>{}(x);
    std::uint32_t of_f;
    std::memcpy(&of_f, &f, sizeof f);
    // The number, its neighbours, and the middle to the next one with its neighbours.
    for (const std::uint32_t step : {0u, 1u, ~0u, 0x0fffu, 0x1000u, 0x1001u}) {
      const std::uint32_t near = of_f + step;
      float y;
      std::memcpy(&y, &near, sizeof y);
      all.push_back(y);
      if (std::abs(f) < 1e-4f) all.push_back(f + 0x1p-25f * static_cast<float>(step & 3));  // subnormal fp16
    }
  }
  const giwa::detail::runnable_loops loops;
  for (int l = 0; l < loops.count; ++l) {
    std::vector<fp16> narrow(all.size());
    loops.list[l]->narrow_fp16(all.data(), narrow.data(), static_cast<int>(all.size()));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const fp16 right = giwa::convert<fp16>{}(all[i]);
      wrong += std::memcmp(static_cast<const void*>(&right), static_cast<const void*>(&narrow[i]), sizeof right) != 0;
    }
    CHECK(wrong == 0u);
  }
}

TEST_CASE("the loops of each instruction set compute the same") {
  using namespace giwa::detail;
  constexpr int row = host_loops::row, rows = 13, even = 18, depth = 37;
  const runnable_loops loops;
  for (int l = 0; l < loops.count; ++l) {
    const host_loops& f = *loops.list[l];
    const giwa::philox random(7, static_cast<giwa::uint64>(l));
    alignas(64) float x[row], sum[host_loops::sums] = {}, expected[row];
    float largest = -infinity_of<float>;
    for (int i = 0; i < row; ++i) {
      x[i] = expected[i] = random.normal<float>(static_cast<giwa::uint64>(i)) * 30 * (i % 3 == 0 ? -1.0f : 1.0f);
      if (i == 5) x[i] = expected[i] = nan_of<float>;
      if (i == 6) x[i] = expected[i] = -infinity_of<float>;
      expected[i] *= -0.5f;
      if (i != 6 && expected[i] > largest) largest = expected[i];
    }
    expected[6] = x[6] = -infinity_of<float>;
    x[6] = infinity_of<float>;  // times a negative factor
    CHECK(f.scale_and_max(x, -0.5f) == largest);
    f.exponentials(x, largest, sum);
    float total = 0, right_total = 0;
    for (int i = 0; i < row; ++i) {
      const double right = std::exp(static_cast<double>(expected[i]) - static_cast<double>(largest));
      if (i == 5)
        CHECK(std::isnan(x[i]));
      else
        CHECK(std::abs(static_cast<double>(x[i]) - right) <= 1e-5 * right + 1e-37);
      if (i != 5) right_total += static_cast<float>(right);
    }
    for (int i = 0; i < host_loops::sums; ++i) total += i == 5 ? 0 : sum[i];
    for (int i = 5; i < row; i += host_loops::sums) right_total -= i == 5 ? 0 : x[i];
    CHECK(std::abs(total - right_total) <= 1e-4f * right_total);
    CHECK(std::isnan(sum[5]));

    // Products of whole and partial panels, of one row and of several, and the panels that put_row and transpose write.
    for (int wide = 1; wide <= f.vectors; ++wide)
      for (const int count : {1, rows})
        for (const host_sum how : {host_sum::store, host_sum::extend, host_sum::add}) {
          if (how == host_sum::store && wide != f.vectors) continue;
          const int width = wide * f.lanes;
          std::vector<float> memory(static_cast<std::size_t>(even * depth + depth * width + even * width + 64));
          float* const base = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) / 4 % 16;
          float *const c = base, *const panel = c + even * width, *const a = panel + depth * width;
          for (int i = 0; i < even * depth; ++i) a[i] = random.normal<float>(static_cast<giwa::uint64>(1000 + i));
          std::vector<float> b(static_cast<std::size_t>(width));
          for (int k = 0; k < depth; ++k) {
            for (int i = 0; i < width; ++i) b[static_cast<std::size_t>(i)] = static_cast<float>(k - i);
            f.put_row(b.data(), panel, width, k, depth);
          }
          for (int i = 0; i < even * width; ++i) c[i] = 2;
          f.product(how, wide, count, a, depth, 1, panel, depth, c, width);
          double worst = 0;
          for (int r = 0; r < count; ++r)
            for (int i = 0; i < width; ++i) {
              double right = how == host_sum::store ? 0 : 2;
              for (int k = 0; k < depth; ++k) right += static_cast<double>(a[r * depth + k]) * (k - i);
              worst = std::max(worst, std::abs(right - static_cast<double>(c[r * width + i])));
            }
          CHECK(worst < 2e-3);
        }
    // Two squares and a rest, to the last columns of a panel.
    const int count = 2 * f.lanes + 3, first = f.columns - f.lanes;
    std::vector<float> lines(static_cast<std::size_t>(f.lanes * count));
    for (std::size_t i = 0; i < lines.size(); ++i) lines[i] = static_cast<float>(i);
    const float* together[host_loops::most_lanes];
    for (int r = 0; r < f.lanes; ++r) together[r] = lines.data() + r * count;
    std::vector<float> memory(static_cast<std::size_t>(f.columns * count + 16), -1.0f);
    float* const panel = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) / 4 % 16;
    f.transpose(together, panel + first, count);
    int wrong = 0;
    for (int i = 0; i < count; ++i)
      for (int c = 0; c < f.columns; ++c)
        wrong += panel[i * f.columns + c] != (c < first ? -1.0f : static_cast<float>((c - first) * count + i));
    CHECK(wrong == 0);
    const float values[5] = {3, 4, 5, 6, 7};
    CHECK(f.finite(values, 5));
    const float odd[3] = {1, 2, infinity_of<float>};
    CHECK(f.finite(odd, 2));
    CHECK(!f.finite(odd, 3));
  }
}

TEST_CASE("exponentials of each instruction set are within 1.2 units in the last place") {
  using namespace giwa::detail;
  constexpr int row = host_loops::row, rows = 2000;
  const runnable_loops loops;
  for (int l = 0; l < loops.count; ++l) {
    alignas(64) float x[row], sum[host_loops::sums] = {};
    double worst = 0;
    for (int r = 0; r < rows; ++r) {
      float d[row];
      for (int i = 0; i < row; ++i) d[i] = x[i] = -87.0f * static_cast<float>(r * row + i) / (rows * row);
      loops.list[l]->exponentials(x, 0, sum);
      for (int i = 0; i < row; ++i) {
        const double right = std::exp(static_cast<double>(d[i])), unit = std::ldexp(1.0, std::ilogb(right) - 23);
        worst = std::max(worst, std::abs(static_cast<double>(x[i]) - right) / unit);
      }
    }
    CHECK(worst < 1.2);
  }
}

TEST_CASE("tiles on the CPU have as many rows as fit, unless threads would be idle") {
  const auto rows = [](giwa::int64 longest, giwa::int64 threads, bool all_keys) {
    return giwa::detail::host_tile_rows(longest, 8, threads, all_keys, 24, 264);
  };
  CHECK((rows(1, 16, true) == 24 && rows(1, 1, false) == 24));
  CHECK((rows(512, 1, true) == 264 && rows(512, 1, false) == 264));
  CHECK(rows(512, 16, true) == 264);  // 16 tiles, one for each
  CHECK(rows(512, 16, false) == 48);  // late tiles of a causal mask take longer
  CHECK(rows(256, 16, true) == 144);  // two tiles of a head
  CHECK(rows(4096, 1, true) == 216);  // 4104 rows, where 16 tiles of 264 have 4224
  CHECK(rows(512, 64, true) == 72);
  for (const giwa::int64 longest : {1, 23, 25, 100, 1000, 100000})
    for (const giwa::int64 threads : {1, 3, 16, 200})
      for (const bool all_keys : {false, true}) {
        const giwa::int64 n = rows(longest, threads, all_keys);
        CHECK((n >= 24 && n <= 264 && n % 24 == 0));
      }
}

// A mask of 1 MiB by value, which the stacks of the call's threads must hold.
struct table_mask {
  static constexpr int size = 1 << 20;
  bool keeps[size];
  bool operator()(const giwa::attention_coord& at) const { return keeps[(at.query * 617 + at.key) % size]; }
};

TEST_CASE("a large mask on several threads") {
  static table_mask mask{};
  for (int i = 0; i < table_mask::size; ++i) mask.keeps[i] = i % 3 != 0;
  case_options c;
  c.heads = 8;
  c.seq_q = c.seq_k = 300;
  faults f;
  f.add(fault_of<float, 64>(c, mask));
  CHECK_NO_FAULTS(f);
}
