// SPDX-License-Identifier: MIT
// The list of types that attention is tested with on a GPU is complete, and short enough to compile.
#include <giwa/host.hpp>

#include <set>
#include <utility>

#include "gpu/attention/pairs.hpp"
#include "support/catch.hpp"

using namespace giwa_test::attention;

namespace {

template <int... Parts>
std::vector<compiled_types> types_until(std::integer_sequence<int, Parts...>) {
  std::vector<compiled_types> all;
  (
      [&] {
        for (const auto& t : types_of(typename part_of_pairs<Parts>::instances{})) all.push_back(t);
      }(),
      ...);
  return all;
}
template <int Parts>
std::vector<compiled_types> types_until() {
  return types_until(std::make_integer_sequence<int, Parts>{});
}

std::vector<int> values_of(const compiled_types& t) {
  return {static_cast<int>(t.input), t.head_size * 1000 + t.head_size_v, static_cast<int>(t.mask),
          static_cast<int>(t.score), static_cast<int>(t.output)};
}

// The values of each choice: element, head size, mask, modifier, output.
std::vector<std::set<int>> values_in(const std::vector<compiled_types>& list) {
  std::vector<std::set<int>> seen(5);
  for (const auto& t : list)
    for (std::size_t f = 0; f < 5; ++f) seen[f].insert(values_of(t)[f]);
  return seen;
}
std::vector<std::size_t> counts_of(const std::vector<compiled_types>& list) {
  std::vector<std::size_t> counts;
  for (const std::set<int>& values : values_in(list)) counts.push_back(values.size());
  return counts;
}

}  // namespace

TEST_CASE("every two values of two choices meet") {
  const auto all = types_until<pairs_parts>();
  CHECK(all.size() <= 120);
  CHECK(counts_of(all) == std::vector<std::size_t>{3, 17, 6, 5, 3});
  const std::vector<std::set<int>> seen = values_in(all);
  for (std::size_t f = 0; f < 5; ++f)
    for (std::size_t g = 0; g < f; ++g) {
      std::set<std::pair<int, int>> met;
      for (const auto& t : all) met.insert({values_of(t)[f], values_of(t)[g]});
      CAPTURE(f, g);
      CHECK(met.size() == seen[f].size() * seen[g].size());
    }
}

TEST_CASE("what every test tree compiles has all values but some head sizes") {
  const auto some = types_until<pairs_always>();
  CHECK(some.size() <= 24);
  CHECK(counts_of(some) == std::vector<std::size_t>{3, 12, 6, 5, 3});
  CHECK(counts_of(types_of(few_pairs{})) == std::vector<std::size_t>{3, 5, 5, 5, 3});
}
