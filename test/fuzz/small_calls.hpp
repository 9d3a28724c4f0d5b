// SPDX-License-Identifier: MIT
// Random problems of append_to_cache, merge_attention, softmax and for_all from a seed, wherever they run.
#ifndef GIWA_TEST_FUZZ_SMALL_CALLS_HPP
#define GIWA_TEST_FUZZ_SMALL_CALLS_HPP

#include <giwa/softmax/problem.hpp>

#include <cstring>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "host/attention/append_cases.hpp"
#include "host/attention/merge_cases.hpp"
#include "host/softmax/reference.hpp"
#include "support/environment.hpp"
#include "support/random.hpp"

namespace giwa_test::fuzz {

class numbers {
 public:
  explicit numbers(uint64 seed) : random_(seed) {}
  bool one_in(int64 n) { return random_.below(n) == 0; }
  int64 between(int64 first, int64 last) { return first + random_.below(last - first + 1); }
  int64 of(std::initializer_list<int64> list) { return list.begin()[random_.below(static_cast<int64>(list.size()))]; }

 private:
  random_sequence random_;
};

inline append_case draw_append(uint64 seed, bool scaled) {
  numbers n(seed + 31);
  append_case c{};
  c.packed = n.one_in(2);
  const int64 sequences = n.between(1, draws_small ? 4 : n.one_in(6) ? 60 : 14), each = n.between(1, 7);
  for (int64 b = 0; b < sequences; ++b) c.rows.push_back(c.packed ? n.between(0, 7) : each);
  if (c.packed) c.rows[0] = each;  // at least one row
  c.kv_heads = n.between(1, n.one_in(4) ? 9 : 3);
  c.heads = n.one_in(4) ? 0 : n.between(1, 12);
  c.size = n.of({2, 8, 16, 24, 32, 33, 40, 64, 96, 128, 256, 576});
  c.size_v = n.one_in(2) ? c.size : n.of({1, 7, 8, 16, 32, 96, 128, 520});
  c.gap = n.one_in(3) ? n.of({1, 3, 5, 8, 16}) : 0;
  c.heads_first = n.one_in(3);
  c.kind = static_cast<cache_kind>(n.between(0, 2));
  c.page_size = n.of({1, 2, 3, 4, 5, 7, 8, 16, 64, 100});
  if (draws_small) c.page_size = std::min<int64>(c.page_size, 24), c.kv_heads = std::min<int64>(c.kv_heads, 2);
  c.hostile = n.one_in(3);
  c.rotary = static_cast<rotary_kind>(n.between(0, 3));
  if (c.rotary != rotary_kind::none) {
    const int64 size = 2 * n.between(1, c.size / 2);
    c.layout = {static_cast<int>(n.one_in(3) ? c.size / 2 * 2 : size), n.one_in(2), 0};
    if (c.rotary == rotary_kind::custom) c.layout.size = std::min(c.layout.size, 32);  // its angles are fp32 numbers
    c.layout.first = static_cast<int>(n.between(0, c.size - c.layout.size));
    c.positions = n.one_in(3);
  }
  c.slots = c.packed && n.one_in(3);
  c.wide = n.one_in(2);
  if (c.heads > 0 && n.one_in(4)) c.fused = true, c.size_v = c.size;
  if (scaled) c.scales = static_cast<int>(n.between(-1, 7));
  return c;
}
/// run(data, memory) makes the call on a copy of the case's memory, and returns an error or nothing.
template <class T, class Element, class Run>
std::string append_fault_of(uint64 seed, const Run& run) {
  append_data<T, Element> data(draw_append(seed, sizeof(Element) == 1), seed);
  data.in_place = data.in_place || (seed % 7 == 0 && data.c.heads > 0);
  append_memory<T, Element> memory = data.memory;
  std::string fault = run(data, memory);
  if (fault.empty()) fault = data.failure(memory);
  return fault;
}

/// run(before, data) as in merge_failures().
template <class T, class O, class Run>
std::string merge_fault_of(uint64 seed, const Run& run) {
  numbers n(seed + 57);
  merge_case c{};
  c.parts = n.between(1, n.one_in(5) ? 20 : 5), c.batch = n.between(1, 3),
  c.queries = n.between(1, draws_small ? 5 : 40);
  c.heads = n.between(1, 6), c.size = n.of({1, 2, 7, 8, 16, 33, 40, 64, 80, 100, 128, 192, 256, 512, 1100});
  c.gap = n.one_in(3) ? n.of({1, 3, 5, 8}) : 0, c.heads_first = n.one_in(2);
  if (std::is_same_v<T, O> && n.one_in(3)) c.in_place = static_cast<int>(n.between(0, c.parts - 1));
  const merge_data<T, O> before(c, seed);
  merge_data<T, O> data = before;
  const std::string fault = run(before, data);
  return fault.empty() ? "" : std::to_string(c.parts) + " parts of " + std::to_string(c.size) + ": " + fault;
}
/// Where a merge writes: o and lse, or in place of a part.
template <class O>
struct merge_target {
  O* o;
  float* lse;

  template <class T>
  merge_target(const merge_data<T, O>& data, [[maybe_unused]] T* parts, [[maybe_unused]] float* parts_lse, O* o_,
               float* lse_)
      : o(o_), lse(lse_) {
    if constexpr (std::is_same_v<T, O>)
      if (data.c.in_place >= 0)
        o = parts + data.c.in_place * data.c.strides()[0], lse = parts_lse + data.c.in_place * data.c.rows();
  }
};

/// A matrix in a buffer whose other bytes are 0xff.
template <class T>
struct fuzz_matrix {
  int64 rows, columns, row_stride, column_stride, first;
  std::vector<T> memory;

  fuzz_matrix(numbers& n, int64 rows_, int64 columns_) : rows(rows_), columns(columns_) {
    const bool by_columns = n.one_in(5);
    const int64 gap = n.one_in(2) ? 0 : n.between(1, 20);
    row_stride = by_columns ? 1 : columns + gap, column_stride = by_columns ? rows + gap : 1;
    if (!by_columns && n.one_in(2)) row_stride = giwa::round_up(row_stride, int64{8});
    first = n.one_in(2) ? 16 : 16 + n.between(0, 9);
    const int64 reach = (rows - 1) * row_stride + (columns - 1) * column_stride;
    if (n.one_in(8)) first += (rows - 1) * row_stride, row_stride = -row_stride;
    memory.resize(static_cast<std::size_t>(16 + 9 + reach + 1 + 16));
    std::memset(static_cast<void*>(memory.data()), 0xff, memory.size() * sizeof(T));
  }
  T& at(int64 r, int64 c) { return memory[static_cast<std::size_t>(first + r * row_stride + c * column_stride)]; }
  giwa::tensor_view<T, 2> view(T* data) const { return {data + first, {rows, columns}, {row_stride, column_stride}}; }
};
/// run(in, out) calls softmax on both matrices.
template <class T, class U, class Run>
std::string softmax_fault_of(uint64 seed, const Run& run) {
  numbers n(seed + 101);
  constexpr int64 edges[] = {128, 256, 512, 1024, 2048, 8192, 16384};
  const bool is_long = n.one_in(draws_small ? 300 : 40);
  const int64 columns = is_long       ? n.between(16000, 140000)
                        : n.one_in(3) ? edges[n.between(0, 6)] + n.between(-1, 1)
                                      : n.between(1, n.one_in(4) ? 9000 : 300);
  const int64 rows = n.between(1, is_long ? 3 : columns > 3000 ? (draws_small ? 3 : 9) : draws_small ? 8 : 60);
  fuzz_matrix<T> in(n, rows, columns);
  fuzz_matrix<U> out(n, rows, columns);
  const auto kind = static_cast<int>(seed % 13);
  for (int64 r = 0; r < rows; ++r) {
    const std::vector<T> row = softmax_row<T>(columns, kind + static_cast<int>(r));
    for (int64 c = 0; c < columns; ++c) in.at(r, c) = row[static_cast<std::size_t>(c)];
  }
  const std::string about = std::to_string(rows) + " x " + std::to_string(columns);
  if (const std::string fault = run(in, out); !fault.empty()) return about + ": " + fault;
  for (int64 r = 0; r < rows; ++r) {
    const std::vector<double> wanted =
        softmax_reference(in_double(softmax_row<T>(columns, kind + static_cast<int>(r))));
    for (int64 c = 0; c < columns; ++c) {
      const double got = giwa::convert<double>{}(out.at(r, c)), want = wanted[static_cast<std::size_t>(c)];
      if (!softmax_agrees<T, U>(got, want))
        return about + ", (" + std::to_string(r) + ", " + std::to_string(c) + "): got " + std::to_string(got) +
               ", reference " + std::to_string(want);
      std::memset(static_cast<void*>(&out.at(r, c)), 0xff, sizeof(U));
    }
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(out.memory.data());
  for (std::size_t i = 0; i < out.memory.size() * sizeof(U); ++i)
    if (bytes[i] != 0xff) return about + ": bytes outside the output were written";
  return "";
}

/// Sizes of a problem of for_all: about 2^17 indices at most, of 1 to 3 dimensions.
struct for_all_sizes {
  int64 of[3];
  int rank;
  explicit for_all_sizes(uint64 seed) : of{1, 1, 1} {
    numbers n(seed + 211);
    rank = static_cast<int>(n.between(1, 3));
    for (int d = 0; d < rank; ++d) {
      const int64 most = rank == 1 ? 1 << 17 : rank == 2 ? 360 : 50;
      of[d] = n.one_in(30) ? 0 : n.one_in(3) ? n.of({1, 2, 3, 31, 32, 33}) : n.between(1, most);
    }
  }
  int64 count() const { return of[0] * of[1] * of[2]; }
  std::string text() const {
    return std::to_string(of[0]) + " x " + std::to_string(of[1]) + " x " + std::to_string(of[2]);
  }
};

/// The indices of a problem of for_all by their number in row-major order, which is what `touch` is told.
template <int Rank, class Touch>
struct touch_index {
  Touch touch;
  giwa::index<Rank> sizes;
  GIWA_HOST_DEVICE void operator()(const giwa::index<Rank>& i) const {
    int64 at = 0;
    for (int d = 0; d < Rank; ++d) at = at * sizes[d] + i[d];
    touch(at);
  }
};
template <class Where, class Touch>
giwa::status touch_all(const Where& where, const for_all_sizes& n, const Touch& touch) {
  const int64(&of)[3] = n.of;
  if (n.rank == 1) return giwa::for_all(where, of[0], touch);
  if (n.rank == 2)
    return giwa::for_all(where, giwa::extents{of[0], of[1]}, touch_index<2, Touch>{touch, {of[0], of[1]}});
  return giwa::for_all(where, giwa::extents{of[0], of[1], of[2]}, touch_index<3, Touch>{touch, {of[0], of[1], of[2]}});
}

inline std::string text_of(const giwa::status& s) { return s.ok() ? "" : giwa::format_status(s).c_str(); }

/// The calls, for a fuzz program that makes them as Place does: append(seed, data, memory), merge(seed, before, data),
/// softmax(seed, in, out) and for_all(seed, sizes) return what is wrong, or nothing.
template <class Place>
class small_fuzz {
  using fp16 = giwa::fp16;
  using bf16 = giwa::bf16;

  template <class T, class Element>
  static std::string append(uint64 seed) {
    return append_fault_of<T, Element>(seed,
                                       [&](auto& data, auto& memory) { return Place::append(seed, data, memory); });
  }
  template <class T, class O>
  static std::string merge(uint64 seed) {
    return merge_fault_of<T, O>(seed, [&](const auto& before, auto& data) { return Place::merge(seed, before, data); });
  }
  template <class T, class U>
  static std::string softmax(uint64 seed) {
    return softmax_fault_of<T, U>(seed, [&](auto& in, auto& out) { return Place::softmax(seed, in, out); });
  }
  template <std::string (*... Faults)(uint64)>
  static std::string one_of(uint64 seed) {
    constexpr std::string (*all[])(uint64) = {Faults...};
    return all[seed % sizeof...(Faults)](seed);
  }
  static std::string for_all(uint64 seed) {
    const for_all_sizes n(seed);
    const std::string fault = Place::for_all(seed, n);
    return fault.empty() ? "" : n.text() + ": " + fault;
  }

  fuzz_with calls_[4] = {
      {"append", one_of<append<fp16, fp16>, append<bf16, giwa::e4m3>, append<fp16, giwa::int8_code>,
                        append<float, float>, append<bf16, bf16>>},
      {"merge", one_of<merge<fp16, fp16>, merge<bf16, bf16>, merge<float, float>, merge<float, bf16>>},
      {"softmax", one_of<softmax<fp16, fp16>, softmax<bf16, bf16>, softmax<float, float>, softmax<fp16, float>,
                         softmax<float, bf16>>},
      {"for_all", for_all}};
};

}  // namespace giwa_test::fuzz

#endif
