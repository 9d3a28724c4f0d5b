// SPDX-License-Identifier: MIT
// Tiles of keys for a range of queries, and tiles of queries for a range of keys: none is missed, none is listed in vain.
#include <giwa/attention/schedule/visible_tiles.hpp>

#include "support/catch.hpp"

using namespace giwa::detail;
using giwa::tile_keep;

namespace {

attention_head<float, float> head_of(int queries, int keys, int offset) {
  attention_head<float, float> h{};
  h.q = {nullptr, {queries, 8}, {8, 1}};
  h.k = {nullptr, {keys, 8}, {8, 1}};
  h.offset = offset;
  return h;
}

/// A mask without a classify(): it is asked score by score.
struct every_third {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const { return (c.query + c.key) % 3 == 0; }
};

struct law {
  int missed = 0, in_vain = 0, wrong = 0;
};

/// Compares the list for the fixed rows [first, first + count) with every single score.
template <tile_axis Axis, class Mask>
void check_list(law& broken, const Mask& mask, int queries, int keys, int offset, int first, int count, int size,
                bool exact) {
  const auto head = head_of(queries, keys, offset);
  const visible_tiles<Mask, Axis> list(mask, head, first, count, size);
  constexpr bool by_keys = Axis == tile_axis::keys;
  const int length = by_keys ? keys : queries, fixed = by_keys ? queries : keys;
  int next = list.next(0);
  for (int n = 0; n < list.count(); ++n) {
    int kept = 0, all = 0;
    for (int i = n * size; i < (n + 1) * size; ++i)
      for (int j = first; j < first + count && j < fixed; ++j) {
        const int query = by_keys ? j : i, key = by_keys ? i : j;
        ++all;
        kept += i < length && mask(giwa::attention_coord{0, 0, query, key, query + offset}) ? 1 : 0;
      }
    const bool listed = n == next;
    if (listed) next = list.next(n + 1);
    broken.missed += kept > 0 && !listed ? 1 : 0;
    broken.in_vain += exact && kept == 0 && listed ? 1 : 0;
    const tile_keep keep = list.keep(n);
    broken.wrong += (keep == tile_keep::all && kept != all) || (keep == tile_keep::none && kept != 0) ? 1 : 0;
    const tile_keep of_part = list.keep(n, first, count);
    broken.wrong += of_part == keep ? 0 : 1;
    broken.wrong += kept > 0 && !list.needs_from(n, first, count) ? 1 : 0;
  }
}

template <class Mask>
law check(const Mask& mask, bool exact) {
  law broken;
  for (const int queries : {1, 7, 64, 100})
    for (const int keys : {1, 33, 64, 129})
      for (const int offset : {-40, 0, 29, 200})
        for (const int size : {16, 48}) {
          for (int first = 0; first < queries; first += 16)
            check_list<tile_axis::keys>(broken, mask, queries, keys, offset, first, 16, size, exact);
          for (int first = 0; first < keys; first += 16)
            check_list<tile_axis::queries>(broken, mask, queries, keys, offset, first, 16, size, exact);
        }
  return broken;
}

}  // namespace

TEST_CASE("lists of tiles along both axes") {
  const auto holds = [](const law& l) {
    CHECK(l.missed == 0);
    CHECK(l.in_vain == 0);
    CHECK(l.wrong == 0);
  };
  holds(check(giwa::full{}, true));
  holds(check(giwa::causal{}, true));
  holds(check(giwa::keys_back{20} & giwa::causal{}, false));
  holds(check(giwa::sliding_window{5}, false));
  holds(check(giwa::prefix{10} | giwa::causal{}, false));
  holds(check(every_third{}, false));
}
