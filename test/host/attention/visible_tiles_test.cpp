// SPDX-License-Identifier: MIT
// Tiles of keys for a range of queries, and tiles of queries for a range of keys: none is missed, none is listed in vain, both
// lists agree, and have the same tiles backwards. And the order of work tiles.
#include <giwa/attention/work/visible_tiles.hpp>
#include <giwa/attention/work/work_tiles.hpp>

#include <vector>

#include "support/catch.hpp"

using namespace giwa::detail;
using giwa::tile_keep;

namespace {

head_place head_of(int queries, int keys, int offset) {
  head_place h{};
  h.query_count = queries, h.key_count = keys, h.offset = offset;
  return h;
}

/// A mask without a classify(): it is asked score by score.
struct every_third {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const { return (c.query + c.key) % 3 == 0; }
};

struct law {
  int missed = 0, in_vain = 0, wrong = 0, other_way = 0, other_axis = 0;
};

/// A list of tiles forwards, and whether it is the same backwards.
template <class List>
std::vector<bool> listed_tiles(law& broken, const List& list) {
  std::vector<bool> forwards(static_cast<std::size_t>(list.count())), backwards(forwards.size());
  for (int n = list.next(0); n < list.count(); n = list.next(n + 1)) forwards[static_cast<std::size_t>(n)] = true;
  for (int n = list.previous(list.count()); n >= 0; n = list.previous(n)) backwards[static_cast<std::size_t>(n)] = true;
  broken.other_way += forwards == backwards ? 0 : 1;
  return forwards;
}

/// A tile of keys lists a tile of queries if and only if that one lists it: where tiles of keys add to dq one after the
/// other, each waits for the one that is before it in the other list.
template <class Mask>
void check_axes(law& broken, const Mask& mask, int queries, int keys, int offset, int query_size, int key_size) {
  const auto head = head_of(queries, keys, offset);
  std::vector<std::vector<bool>> by_keys;
  for (int first = 0; first < keys; first += key_size)
    by_keys.push_back(
        listed_tiles(broken, visible_tiles<Mask, tile_axis::queries>(mask, head, first, key_size, query_size)));
  for (int first = 0; first < queries; first += query_size) {
    const auto listed =
        listed_tiles(broken, visible_tiles<Mask, tile_axis::keys>(mask, head, first, query_size, key_size));
    for (std::size_t n = 0; n < listed.size(); ++n)
      broken.other_axis += by_keys[n][static_cast<std::size_t>(first / query_size)] == listed[n] ? 0 : 1;
  }
}

/// Compares the list for the fixed rows [first, first + count) with every single score.
template <tile_axis Axis, class Mask>
void check_list(law& broken, const Mask& mask, int queries, int keys, int offset, int first, int count, int size,
                bool exact) {
  const auto head = head_of(queries, keys, offset);
  const visible_tiles<Mask, Axis> list(mask, head, first, count, size);
  constexpr bool by_keys = Axis == tile_axis::keys;
  const int length = by_keys ? keys : queries, fixed = by_keys ? queries : keys;
  std::vector<int> kept_in, inside_in;  // of each tile
  int next = list.next(0);
  for (int n = 0; n < list.count(); ++n) {
    int kept = 0, all = 0, inside = 0;
    for (int i = n * size; i < (n + 1) * size; ++i)
      for (int j = first; j < first + count && j < fixed; ++j) {
        const int query = by_keys ? j : i, key = by_keys ? i : j;
        ++all;
        inside += i < length ? 1 : 0;
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
    kept_in.push_back(kept), inside_in.push_back(inside);
  }
  // Runs of tiles, also past the last one: none and all hold for each tile of them.
  if (list.any_range)
    for (int n = 0; n < list.count(); ++n)
      for (const int run : {1, 2, 3, 0x7fffffff}) {
        const tile_keep keep = list.visible_by_mask(n, run, first, count);
        for (int i = n; i < list.count() && i - n < run; ++i) {
          const auto at = static_cast<std::size_t>(i);
          broken.wrong += keep == tile_keep::none && kept_in[at] > 0 ? 1 : 0;
          broken.wrong += keep == tile_keep::all && kept_in[at] < inside_in[at] ? 1 : 0;
        }
      }
  broken.wrong += list.visible_by_mask(list.count(), 1, first, count) == tile_keep::none ? 0 : 1;
  broken.wrong += list.visible_by_mask(0, 1, fixed, count) == tile_keep::none ? 0 : 1;
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
          check_axes(broken, mask, queries, keys, offset, size, 16);
        }
  return broken;
}

}  // namespace

TEST_CASE("lists of tiles along both axes") {
  const auto holds = [](const law& l) {
    CHECK(l.missed == 0);
    CHECK(l.in_vain == 0);
    CHECK(l.wrong == 0);
    CHECK(l.other_way == 0);
    CHECK(l.other_axis == 0);
  };
  holds(check(giwa::full{}, true));
  holds(check(giwa::causal{}, true));
  holds(check(giwa::keys_back{20} & giwa::causal{}, false));
  holds(check(giwa::sliding_window{5}, false));
  holds(check(giwa::prefix{10} | giwa::causal{}, false));
  holds(check(every_third{}, false));
}

TEST_CASE("a call without queries has one tile of each head, however long sequences may be") {
  const giwa::attention_problem none{.batch = 2, .seq_q = 0, .seq_k = 5, .heads = 3, .kv_heads = 3};
  CHECK(attention_schedule::of(none, 1000, 128, 1, 256).work_tiles == 6);
  const giwa::attention_problem packed{.batch = 2, .seq_q = -1, .seq_k = -1, .heads = 3, .kv_heads = 3};
  CHECK(attention_schedule::of(packed, 1000, 128, 1, 256).work_tiles == 48);
}

TEST_CASE("each work tile comes once, those of a head come in order, and no section is large") {
  int wrong = 0, large = 0;
  for (const giwa::int64 batch : {1, 3})
    for (const giwa::int64 heads : {1, 5, 24})
      for (const giwa::int64 rows : {1, 130, 1000})
        for (const int bytes : {8, 1 << 14, 1 << 22})
          for (const giwa::int64 least_heads : {1, 4, 5, 100}) {
            const giwa::int64 kv_heads = least_heads == 5 && heads % 3 == 0 ? heads / 3 : heads;
            const giwa::attention_problem p{
                .batch = batch, .seq_q = rows, .seq_k = rows, .heads = heads, .kv_heads = kv_heads};
            const attention_schedule schedule = bytes == 8
                                                    ? attention_schedule::of(p, rows, 128, 1, bytes, least_heads, 0)
                                                    : attention_schedule::of(p, rows, 128, 1, bytes, least_heads);
            std::vector<giwa::int64> next(static_cast<std::size_t>(batch * heads), schedule.query_tiles - 1);
            for (giwa::int64 i = 0; i < schedule.work_tiles; ++i) {
              const auto at = schedule.at(i);
              giwa::int64& expected = next[static_cast<std::size_t>(at.batch * heads + at.head)];
              wrong += at.tile == expected-- ? 0 : 1;
            }
            for (const giwa::int64 left : next) wrong += left == -1 ? 0 : 1;
            // Where no head fits the cache, sections have least_heads heads, and the last one at most twice as many.
            const giwa::int64 last = schedule.rows - schedule.last_section * schedule.section.divisor();
            if ((bytes == 1 << 22 && rows >= 130) || bytes == 8) large += last <= 2 * least_heads ? 0 : 1;
          }
  CHECK(wrong == 0);
  CHECK(large == 0);
}
