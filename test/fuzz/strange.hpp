// SPDX-License-Identifier: MIT
// Problems with a number that is not finite: where it is put, and what a result may be where the reference is not finite.
#ifndef GIWA_TEST_FUZZ_STRANGE_HPP
#define GIWA_TEST_FUZZ_STRANGE_HPP

#include <cmath>
#include <string>

#include "support/backward_case.hpp"
#include "support/cached_case.hpp"
#include "support/environment.hpp"
#include "support/random.hpp"

namespace giwa_test::fuzz {

/// Draws for the problem of a seed whether there is a strange number (in one of 8; in all with GIWA_FUZZ_STRANGE), and which.
class strange_drawer {
 public:
  explicit strange_drawer(uint64 seed)
      : random_(seed + 1700000), wanted_(random_.below(8) == 0 || is_set("GIWA_FUZZ_STRANGE")) {}

  bool wanted() const { return wanted_; }
  int64 below(int64 end) { return random_.below(end); }
  float nan_or_infinity() {
    constexpr float numbers[] = {NAN, NAN, HUGE_VALF, -HUGE_VALF};
    return numbers[random_.below(4)];
  }
  /// Writes a number to one element of a row, or to all of them.
  template <class T>
  void put(const tensor_view<T, 4>& to, int64 batch, int64 row, int64 head, float number) {
    const int64 columns = to.extent(3), only = below(2) == 0 ? below(columns) : -1;
    for (int64 i = 0; i < columns; ++i)
      if (only < 0 || i == only) to(batch, row, head, i) = giwa::convert<T>{}(number);
  }

 private:
  random_sequence random_;
  bool wanted_;
};

/// Puts NaN into a row of q or k, or NaN or infinity into one of v or dout. Empty where there is none, or where it is.
template <class T, class O, class G>
std::string put_strange(uint64 seed, backward_case<T, O, G>& c) {
  strange_drawer draw(seed);
  if (!draw.wanted()) return "";
  const auto put = [&](const char* name, auto& to, float number) -> std::string {
    const auto v = to.view();
    if (v.extent(0) * v.extent(1) * v.extent(2) == 0) return "";
    const int64 batch = draw.below(v.extent(0)), row = draw.below(v.extent(1)), head = draw.below(v.extent(2));
    draw.put(v, batch, row, head, number);
    return std::to_string(number) + " in " + name + '(' + std::to_string(batch) + ", " + std::to_string(row) + ", " +
           std::to_string(head) + "), ";
  };
  switch (draw.below(4)) {
    case 0: return put("q", c.of.q, NAN);
    case 1: return put("k", c.of.k, NAN);
    case 2: return put("v", c.of.v, draw.nan_or_infinity());
    default: return put("dout", c.dout, draw.nan_or_infinity());
  }
}

/// Puts NaN or infinity into a row of q, k or v, or into a scale of v; half of the keys are among the last ones, which not all rows see.
template <class T, class Element, class O>
std::string put_strange(uint64 seed, cached_case<T, Element, O>& c) {
  strange_drawer draw(seed);
  if (!draw.wanted()) return "";
  const float number = draw.nan_or_infinity();
  const std::string what = std::to_string(number) + " in ";
  const int64 which = draw.below(4);
  if (which == 0) {
    const auto q = c.q.view();
    if (q.extent(0) * q.extent(1) == 0) return "";
    draw.put(q, draw.below(q.extent(0)), draw.below(q.extent(1)), draw.below(q.extent(2)), number);
    return what + "q, ";
  }
  const auto b = static_cast<std::size_t>(draw.below(c.options.sequences()));
  if (c.keys[b] == 0) return "";
  const int64 last = std::min<int64>(c.keys[b], 8),
              key = draw.below(2) == 0 ? c.keys[b] - 1 - draw.below(last) : draw.below(c.keys[b]);
  const int64 size = c.options.paged() ? c.options.page_size : c.options.keys, row = key % size;
  const int64 at = c.element[b][static_cast<std::size_t>(key / size)], head = draw.below(c.options.kv_heads);
  if (at < 0) return "";
  const std::string where = " of key " + std::to_string(key) + " of sequence " + std::to_string(b) + ", ";
  // A scale of all keys of a sequence may be a factor of sums without a key.
  const int shape = c.options.v_scales;
  if (which == 1 && shape > 0 && ((shape & 2) != 0 || ((shape & 1) != 0 && c.options.paged()))) {
    c.v_scales.view()((shape & 1) != 0 ? at : 0, (shape & 2) != 0 ? row : 0, (shape & 4) != 0 ? head : 0) = number;
    return what + "the scale" + where;
  }
  draw.put((which == 2 ? c.k : c.v).view(), at, row, head, number);
  return what + (which == 2 ? "k" : "v") + where;
}

/// Where the reference is not finite, the result must not be finite either. Takes what is not finite out of both, so that the rest can be
/// compared: all of such a row with `rows`, else such elements. Empty, or what is wrong.
template <class T, int Rank>
std::string take_out_strange(const char* name, case_buffer<T, Rank>& got, std::vector<double>& reference,
                             std::vector<double>& plain, int64 width, bool rows) {
  std::vector<bool> out(reference.size(), false);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (std::isfinite(reference[i])) continue;
    const std::size_t row = i - i % static_cast<std::size_t>(width);
    for (std::size_t j = rows ? row : i; j < (rows ? row + static_cast<std::size_t>(width) : i + 1); ++j) out[j] = true;
  }
  std::string fault;
  std::size_t i = 0;
  got.for_each([&](std::size_t at) {
    const auto number = giwa::convert<double>{}(got.memory[at]);
    if (out[i]) {
      if (!std::isfinite(reference[i]) && std::isfinite(number) && fault.empty())
        fault = std::string(name) + ", element " + std::to_string(i) + ": " + std::to_string(number) + ", reference " +
                std::to_string(reference[i]);
      got.memory[at] = giwa::convert<T>{}(0.0), reference[i] = plain[i] = 0;
    }
    ++i;
  });
  return fault;
}

/// judge() of gradients with rows whose reference is not finite. NaN in dout may reach all columns of dv.
template <class T, class O, class G>
std::string judge_strange(backward_case<T, O, G>& c, backward_answers a) {
  std::string fault;
  const auto take_out = [&](const char* name, auto& got, gradient_answers& of, int64 width, bool wanted) {
    if (fault.empty() && wanted) fault = take_out_strange(name, got, of.reference, of.plain, width, true);
  };
  take_out("dq", c.dq, a.dq, c.of.options.head_size, c.wants_q);
  take_out("dk", c.dk, a.dk, c.of.options.head_size, c.wants_k);
  take_out("dv", c.dv, a.dv, c.of.options.head_size_v, c.wants_v);
  // NaN in dout of a row without keys may reach dsinks: NaN times its o, which is 0, is NaN. The reference leaves such rows out.
  std::size_t i = 0;
  if (c.of.options.sinks)
    c.dsinks.for_each([&](std::size_t at) {
      if (std::isfinite(a.dsinks[i]) && !std::isfinite(a.plain_dsinks[i]))
        c.dsinks.memory[at] = 0, a.dsinks[i] = a.plain_dsinks[i] = 0;
      ++i;
    });
  if (fault.empty() && c.of.options.sinks)
    fault = take_out_strange("dsinks", c.dsinks, a.dsinks, a.plain_dsinks, 1, true);
  for (double& x : a.sink_units) x = std::isfinite(x) ? x : 0;
  return fault.empty() ? judge(c, a) : fault;
}

/// judge() of a cached call with elements whose reference is not finite. An infinity with a weight near 0 may give NaN.
template <class P, class T, class Element, class O>
std::string judge_strange(cached_case<T, Element, O>& c, attention_answers a) {
  const std::string fault = take_out_strange("o", c.o, a.o, a.plain, c.options.head_size_v, false);
  return fault.empty() ? judge<P>(c, a).failure : fault;
}

}  // namespace giwa_test::fuzz

#endif
