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

}  // namespace

TEST_CASE("every two values of two choices meet") {
  const auto all = types_until<pairs_parts>();
  CHECK(all.size() <= 120);
  std::vector<std::set<int>> seen(5);
  for (const auto& t : all)
    for (std::size_t f = 0; f < 5; ++f) seen[f].insert(values_of(t)[f]);
  CHECK(seen[0].size() == 3);
  CHECK(seen[1].size() == 17);
  CHECK(seen[2].size() == 6);
  CHECK(seen[3].size() == 5);
  CHECK(seen[4].size() == 3);
  for (std::size_t f = 0; f < 5; ++f)
    for (std::size_t g = 0; g < f; ++g) {
      std::set<std::pair<int, int>> met;
      for (const auto& t : all) met.insert({values_of(t)[f], values_of(t)[g]});
      CAPTURE(f, g);
      CHECK(met.size() == seen[f].size() * seen[g].size());
    }
}

TEST_CASE("what is always compiled has every value") {
  const auto some = types_until<pairs_always>();
  CHECK(some.size() <= 48);
  std::vector<std::set<int>> seen(5);
  for (const auto& t : some)
    for (std::size_t f = 0; f < 5; ++f) seen[f].insert(values_of(t)[f]);
  CHECK(seen[0].size() == 3);
  CHECK(seen[1].size() == 17);
  CHECK(seen[2].size() == 6);
  CHECK(seen[3].size() == 5);
  CHECK(seen[4].size() == 3);
}
