// SPDX-License-Identifier: MIT
// The layout of split fp16 in a workspace: widths, exponents of packed sequences, and no two tensors in the same bytes.
#include <giwa/attention/split_fp16/layout.hpp>

#include <set>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::fp16;
using giwa::int64;
using giwa::detail::split_rows;
using giwa::detail::split_tensor;
using giwa::detail::split_tensors;

TEST_CASE("widths of split rows") {
  static_assert(split_tensors::width_of(1, 1) == 8 && split_tensors::width_of(8, 1) == 8);
  static_assert(split_tensors::width_of(40, 1) == 40 && split_tensors::width_of(41, 1) == 48);
  static_assert(split_tensors::width_of(1, 2) == 128 && split_tensors::width_of(40, 2) == 128);
  static_assert(split_tensors::width_of(64, 2) == 128 && split_tensors::width_of(65, 2) == 256);
  CHECK(split_tensors::width_of(256, 2) == 512);
}

TEST_CASE("no two packed sequences share a slot, and all slots are among those of the tensor") {
  giwa_test::random_sequence random(61);
  for (int round = 0; round < 2000; ++round) {
    split_tensor t;
    t.group = 16 << random.below(3);
    const int batch = 1 + static_cast<int>(random.below(6));
    std::set<int64> slots;
    int row = 0, groups = 0;
    std::vector<int> first;
    for (int b = 0; b < batch; ++b) {
      const int rows = static_cast<int>(random.below(3) == 0 ? 0 : random.below(100));
      for (int n = 0; n * t.group < rows; ++n, ++groups) slots.insert(t.slot(row, b) + n);
      first.push_back(row), row += rows;
    }
    CHECK(slots.size() == static_cast<std::size_t>(groups));
    const int64 most = split_tensors::slots_of(row, batch, t.group);
    if (groups > 0) CHECK((*slots.begin() >= 0 && *slots.rbegin() < most));
    CHECK(t.slot(row, batch) < most);  // of the rows after the last sequence
    // Heads have the exponents of as many slots.
    std::vector<int> exponents(static_cast<std::size_t>(2 * most));
    for (std::size_t i = 0; i < exponents.size(); ++i) exponents[i] = static_cast<int>(i);
    t.exponents = exponents.data(), t.slots = most;
    CHECK(t.exponent(1, first[0], 0, 0) == most + t.slot(first[0], 0));
  }
  split_tensor padded;
  padded.per_sequence = 7, padded.group = 16;
  CHECK((padded.slot(0, 0) == 0 && padded.slot(0, 3) == 21));
}

TEST_CASE("rows of a split tensor have each their place") {
  std::vector<fp16> parts(2 * 3 * 5 * 4);
  split_tensor t;
  t.parts = parts.data(), t.sequences = 2, t.length = 5, t.heads = 3, t.width = 4;
  split_rows r;
  r.sequences = 2, r.heads = 3, r.length = 5;
  std::set<int64> rows;
  for (int64 b = 0; b < 2; ++b)
    for (int64 h = 0; h < 3; ++h)
      for (int64 n = 0; n < 5; ++n) {
        CHECK(rows.insert(r.row(b, h, n)).second);
        CHECK(t.row(b, h, n) == &t.view()(b, h, n, 0));
        CHECK(t.row(b, h, n) == parts.data() + r.row(b, h, n) * 4);
      }
  CHECK((*rows.begin() == 0 && *rows.rbegin() == 2 * 3 * 5 - 1));
}

namespace {

struct byte_span {
  const char* name;
  const void *begin, *end;
};
template <class T>
byte_span span_of(const char* name, const T* first, int64 count) {
  return {name, first, first + count};
}
/// Each after the one before; those without bytes are anywhere.
void check_apart(const std::vector<byte_span>& spans, const unsigned char* begin, int64 bytes) {
  const void* last = begin;
  for (const byte_span& s : spans) {
    if (s.begin == s.end) continue;
    INFO(s.name);
    CHECK((s.begin >= last && s.end <= begin + bytes));
    last = s.end;
  }
}

}  // namespace

TEST_CASE("all that a call splits is apart, and within the bytes that are counted") {
  giwa_test::random_sequence random(62);
  for (int round = 0; round < 300; ++round) {
    const giwa::detail::split_sizes p{1 + random.below(4),  random.below(80),    random.below(80),
                                      1 + random.below(6),  1 + random.below(3), 1 + random.below(130),
                                      1 + random.below(130)};
    const int parts = 1 + static_cast<int>(random.below(2));
    std::vector<double> memory(static_cast<std::size_t>(split_tensors::bytes(p) / 8 + 2));
    auto* const begin =
        reinterpret_cast<unsigned char*>((reinterpret_cast<giwa::uint64>(memory.data()) + 15) / 16 * 16);
    giwa::detail::workspace_layout layout{begin};
    const split_tensors t = split_tensors::lay_out(layout, p, parts, 16, 16);
    CHECK(layout.bytes <= split_tensors::bytes(p));
    CHECK(t.any_fallback == t.fallback + p.batch * p.heads);
    CHECK(t.q.lo == t.q.width / parts);
    if (parts == 2) CHECK((t.q.lo % 64 == 0 && t.k.lo % 64 == 0 && t.v.lo % 64 == 0));
    const auto exponents = [&](const char* name, const split_tensor& x, int64 rows, int64 heads) {
      return span_of(name, x.exponents, split_tensors::slots_of(rows, p.batch, 16) * heads);
    };
    const auto numbers = [&](const char* name, const split_tensor& x, int64 rows, int64 heads) {
      return span_of(name, x.parts, rows * heads * x.width);
    };
    check_apart({span_of("fallback", t.fallback, p.batch * p.heads), span_of("any_fallback", t.any_fallback, 1),
                 exponents("exponents of q", t.q, p.rows_q, p.heads), numbers("q", t.q, p.rows_q, p.heads),
                 exponents("exponents of k", t.k, p.rows_k, p.kv_heads), numbers("k", t.k, p.rows_k, p.kv_heads),
                 exponents("exponents of v", t.v, p.rows_k, p.kv_heads), numbers("v", t.v, p.rows_k, p.kv_heads),
                 span_of("columns of v", t.v.columns, p.batch * p.kv_heads * t.v.width)},
                begin + sizeof(giwa::detail::work_counter), layout.bytes - int64{sizeof(giwa::detail::work_counter)});
    CHECK(t.v.column_exponents(1, 1) == t.v.columns + (t.v.heads + 1) * t.v.width);
  }
}
