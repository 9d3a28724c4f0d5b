// SPDX-License-Identifier: MIT
// Laws of masks: what classify says of a tile is what the mask says of its scores; combinations; alignments; checks.
#include <giwa/attention/problem/checks.hpp>
#include <giwa/attention/problem/mask.hpp>
#include <giwa/attention/problem/mask_combinators.hpp>
#include <giwa/attention/problem/masks.hpp>
#include <giwa/attention/problem/options.hpp>

#include <climits>
#include <string>

#include "support/catch.hpp"

namespace {

using giwa::alignment;
using giwa::attention_coord;
using giwa::score_tile;
using giwa::tile_keep;
using namespace std::string_literals;

constexpr int queries = 5, keys = 6;

/// f(tile) for every tile of a 5 x 6 problem of two sequences and two heads, the diagonal anywhere.
template <class Function>
void for_each_tile(const Function& f) {
  for (int batch = 0; batch < 2; ++batch)
    for (int offset = -queries - 1; offset <= keys + 1; ++offset)
      for (int q = 0; q < queries; ++q)
        for (int last_q = q; last_q < queries; ++last_q)
          for (int k = 0; k < keys; ++k)
            for (int last_k = k; last_k < keys; ++last_k) f(score_tile{batch, batch, q, last_q, k, last_k, offset});
}

template <class Mask>
tile_keep by_scores(const Mask& mask, const score_tile& t) {
  int kept = 0, all = 0;
  for (int q = t.first_query; q <= t.last_query; ++q)
    for (int k = t.first_key; k <= t.last_key; ++k, ++all)
      kept += mask(attention_coord{t.batch, t.head, q, k, q + t.offset}) ? 1 : 0;
  return kept == 0 ? tile_keep::none : kept == all ? tile_keep::all : tile_keep::some;
}

/// No answer is wrong: `none` and `all` are true of every score.
template <class Mask>
bool sound(const Mask& mask) {
  bool right = true;
  for_each_tile([&](const score_tile& t) {
    const tile_keep said = giwa::detail::classify(mask, t);
    right = right && (said == tile_keep::some || said == by_scores(mask, t));
  });
  return right;
}
/// And no work is done in vain: `some` only where there are both.
template <class Mask>
bool exact(const Mask& mask) {
  bool right = true;
  for_each_tile([&](const score_tile& t) { right = right && giwa::detail::classify(mask, t) == by_scores(mask, t); });
  return right;
}

/// User-defined masks without classify().
struct odd_keys {
  bool operator()(attention_coord c) const { return c.key % 2 == 1; }
};

struct late_keys {
  int first;
  bool operator()(attention_coord c) const { return c.key >= first; }
};

const int counts[2] = {2, 4};
const int ascending_q[2 * queries] = {0, 0, 1, 1, 3, 0, 1, 1, 1, 1},
                          ascending_k[2 * keys] = {0, 1, 1, 1, 2, 3, 1, 1, 1, 1, 1, 1};
const int mixed_q[2 * queries] = {3, 0, 1, 0, 0, 1, 1, 2, 2, 1},
                      mixed_k[2 * keys] = {0, 3, 1, 0, 0, 1, 1, 2, 1, 2, 1, 2};

/// f(mask) for every simple mask.
template <class Function>
void for_each_mask(const Function& f) {
  f(giwa::full{});
  f(giwa::causal{});
  for (const int n : {0, 1, 2, 4, 9, INT_MAX}) {
    f(giwa::keys_back{n});
    f(giwa::keys_ahead{n});
    f(giwa::sliding_window{n});
    f(giwa::prefix{n});
  }
  f(giwa::prefix{0, counts});
  f(giwa::segment_ids{ascending_q, ascending_k, queries, keys, true});
  f(giwa::segment_ids{ascending_q, ascending_k, queries, keys, false});
  f(giwa::segment_ids{mixed_q, mixed_k, queries, keys, false});
  f(odd_keys{});
}

}  // namespace

TEST_CASE("classify agrees with the scores of every tile") {
  bool right = true;
  for_each_mask([&](const auto& mask) { right = right && sound(mask) && sound(giwa::complement(mask)); });
  CHECK(right);
}

TEST_CASE("the masks of one edge leave no doubt") {
  CHECK(exact(giwa::full{}));
  CHECK(exact(giwa::causal{}));
  CHECK(exact(!giwa::causal{}));
  for (const int n : {0, 1, 3, 20, INT_MAX}) {
    CHECK(exact(giwa::keys_back{n}));
    CHECK(exact(giwa::keys_ahead{n}));
    CHECK(exact(giwa::prefix{n}));
  }
  CHECK(exact(giwa::prefix{0, counts}));
}

TEST_CASE("combinations of two keep what their parts say") {
  bool right = true, meaning = true;
  for_each_mask([&](const auto& a) {
    for_each_mask([&](const auto& b) {
      const auto not_both = !giwa::both(a, b);
      right = right && sound(giwa::both(a, b)) && sound(giwa::either(a, b)) && sound(not_both | b);
      for (int offset = -1; offset <= 1; ++offset)
        for (int q = 0; q < queries; ++q)
          for (int k = 0; k < keys; ++k) {
            const attention_coord c{1, 0, q, k, q + offset};
            meaning = meaning && giwa::both(a, b)(c) == (a(c) && b(c)) && giwa::either(a, b)(c) == (a(c) || b(c)) &&
                      giwa::complement(a)(c) == !a(c);
          }
    });
  });
  CHECK(right);
  CHECK(meaning);
}

TEST_CASE("user-defined masks combine by name, and by operators with giwa's") {
  const auto kept = [](const auto& mask) {
    std::string s;
    for (int k = 0; k < keys; ++k) s += mask(attention_coord{0, 0, 3, k, 3}) ? '1' : '0';
    return s;
  };
  const odd_keys a;
  const late_keys b{2};
  CHECK(kept(giwa::both(a, b)) == "000101");
  CHECK(kept(giwa::either(a, b)) == "011111");
  CHECK(kept(giwa::complement(a)) == "101010");
  CHECK(kept(giwa::complement(giwa::complement(a))) == "010101");
  CHECK(kept(a & giwa::causal{}) == "010100");
  CHECK(kept(giwa::both(a, b) | a) == "010101");  // what a function returns is a mask of giwa
  STATIC_REQUIRE(giwa::attention_mask<decltype(giwa::both(a, b))>);
}

namespace {

/// A window of the length that each head has, as a user writes it: it says nothing about heads.
struct window_of_head {
  GIWA_HOST_DEVICE static constexpr int length(int head) { return head < 2 ? 2 : head < 4 ? 100 : 0; }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const {
    return giwa::sliding_window{length(c.head)}(c);
  }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return giwa::sliding_window{length(t.head)}.classify(t);
  }
};
/// The same, but counts the tiles that it is asked about, and says that the head does not matter.
struct counted_window {
  static constexpr bool any_head = true;
  int* asked;
  bool operator()(attention_coord c) const { return giwa::sliding_window{2}(c); }
  tile_keep classify(const score_tile& t) const {
    ++*asked;
    return giwa::sliding_window{2}.classify(t);
  }
};

/// Whether the answer about several heads is true of the scores of all of them, and `some` only if one head's answer
/// is, or two differ.
template <class Mask>
bool right_for_heads(const Mask& mask) {
  bool right = true;
  for_each_tile([&](score_tile t) {
    for (t.head = 0; t.head < 3; ++t.head)
      for (int heads = 1; heads <= 3; ++heads) {
        const tile_keep said = giwa::detail::classify_heads(mask, t, heads);
        bool all = true, none = true;
        for (score_tile of_one = t; of_one.head < t.head + heads; ++of_one.head) {
          const tile_keep of_head = giwa::detail::classify(mask, of_one);
          all = all && of_head == tile_keep::all;
          none = none && of_head == tile_keep::none;
          right = right && (said == tile_keep::some || said == by_scores(mask, of_one));
        }
        right = right && said == (all ? tile_keep::all : none ? tile_keep::none : tile_keep::some);
      }
  });
  return right;
}

}  // namespace

TEST_CASE("a tile of several heads") {
  const window_of_head by_head;
  bool right = right_for_heads(by_head) && right_for_heads(giwa::complement(by_head)), known = true;
  for_each_mask([&](const auto& mask) {
    using type = std::remove_cvref_t<decltype(mask)>;
    known = known && giwa::mask_traits<type>::any_head == !std::is_same_v<type, odd_keys>;
    known = known && !giwa::mask_traits<decltype(giwa::either(mask, by_head))>::any_head;
    right = right && right_for_heads(mask) && right_for_heads(giwa::both(mask, by_head)) &&
            right_for_heads(giwa::either(by_head, mask));
  });
  CHECK(right);
  CHECK(known);
  STATIC_REQUIRE(giwa::mask_traits<decltype((!(giwa::causal{} & giwa::prefix{1})) | giwa::full{})>::any_head);
  STATIC_REQUIRE(!giwa::mask_traits<decltype(!(giwa::causal{} & window_of_head{}))>::any_head);
  constexpr score_tile tile{0, 1, 3, 3, 3, 3, 0};  // heads 1, 2 and 3 keep it, 4 does not
  STATIC_REQUIRE(giwa::detail::classify_heads(by_head, tile, 3) == tile_keep::all);
  STATIC_REQUIRE(giwa::detail::classify_heads(by_head, tile, 4) == tile_keep::some);

  int asked = 0;
  CHECK(giwa::detail::classify_heads(counted_window{&asked}, tile, 8) == tile_keep::all);
  CHECK(asked == 1);
}

/// Where a mask names each query's first and last key, those between them are the ones that it keeps.
template <class Mask>
bool between_first_and_last(const Mask& mask) {
  bool right = true;
  if constexpr (giwa::detail::one_range_mask<Mask>)
    for (int offset = -queries - 1; offset <= keys + 1; ++offset)
      for (int q = 0; q < queries; ++q)
        for (int k = 0; k < keys; ++k) {
          const attention_coord c{1, 0, q, k, q + offset};
          bool between = true;
          if constexpr (giwa::detail::has_first_key<Mask>) between = between && mask.first_key(c) <= k;
          if constexpr (giwa::detail::has_last_key<Mask>) between = between && k <= mask.last_key(c);
          right = right && between == mask(c);
        }
  return right;
}

TEST_CASE("a query's keys lie between its first and its last") {
  bool right = true;
  for_each_mask([&](const auto& a) {
    right = right && between_first_and_last(a);
    for_each_mask([&](const auto& b) { right = right && between_first_and_last(giwa::both(a, b)); });
  });
  CHECK(right);
  using window = decltype(giwa::keys_back{1} & giwa::keys_ahead{1});
  STATIC_REQUIRE((giwa::detail::has_first_key<window> && giwa::detail::has_last_key<window>));
  STATIC_REQUIRE(!giwa::detail::one_range_mask<decltype(giwa::causal{} | giwa::prefix{1})>);
  STATIC_REQUIRE(!giwa::detail::one_range_mask<decltype(giwa::causal{} & odd_keys{})>);
}

/// User-defined masks that say what they are: this one keeps the keys up to the diagonal, the next all keys.
struct said_causal {
  static constexpr bool ends_at_diagonal = true, keeps_to_diagonal = true;
  static constexpr bool known_on_host() { return true; }
  bool operator()(attention_coord c) const { return c.key <= c.diagonal; }
};
struct said_full {
  static constexpr bool keeps_all = true;
  bool operator()(attention_coord) const { return true; }
};

/// Whether the members of mask_traits that a mask says are true of its scores.
template <class Mask>
bool says_the_truth(const Mask& mask) {
  using traits = giwa::mask_traits<Mask>;
  bool right = true;
  for (int batch = 0; batch < 2; ++batch)
    for (int offset = -queries - 1; offset <= keys + 1; ++offset)
      for (int q = 0; q < queries; ++q)
        for (int k = 0; k < keys; ++k) {
          const attention_coord c{batch, batch, q, k, q + offset};
          if (traits::keeps_all) right = right && mask(c);
          if (traits::ends_at_diagonal && k > c.diagonal) right = right && !mask(c);
          if (traits::keeps_to_diagonal && k <= c.diagonal) right = right && mask(c);
        }
  return right;
}

TEST_CASE("what masks say of themselves is true, and so for combinations") {
  bool right = says_the_truth(said_causal{}) && says_the_truth(said_full{});
  for_each_mask([&](const auto& a) {
    right = right && says_the_truth(a) && says_the_truth(giwa::complement(a)) &&
            says_the_truth(giwa::both(a, said_causal{})) && says_the_truth(giwa::either(a, said_full{}));
    for_each_mask([&](const auto& b) {
      right = right && says_the_truth(giwa::both(a, b)) && says_the_truth(giwa::either(a, b));
    });
  });
  CHECK(right);
}

/// keeps_all, ends_at_diagonal, keeps_to_diagonal and is_causal, as bits from the left.
template <class Mask>
constexpr int said(const Mask&) {
  using traits = giwa::mask_traits<Mask>;
  return 8 * traits::keeps_all + 4 * traits::ends_at_diagonal + 2 * traits::keeps_to_diagonal + traits::is_causal;
}
constexpr int whole = 0b1010, exactly_causal = 0b0111, bounded = 0b0100, reaching = 0b0010, nothing_said = 0;

TEST_CASE("what a mask says decides what it is, and a mask that says nothing has the defaults") {
  STATIC_REQUIRE(said(giwa::full{}) == whole);
  STATIC_REQUIRE(said(giwa::causal{}) == exactly_causal);
  STATIC_REQUIRE(said(giwa::sliding_window{1}) == bounded);
  STATIC_REQUIRE(said(giwa::keys_ahead{1}) == reaching);
  STATIC_REQUIRE(said(giwa::keys_back{1}) == nothing_said);
  STATIC_REQUIRE(said(giwa::prefix{1}) == nothing_said);
  STATIC_REQUIRE(said(giwa::segment_ids{nullptr, nullptr}) == nothing_said);
  STATIC_REQUIRE(said(said_full{}) == whole);
  STATIC_REQUIRE(said(said_causal{}) == exactly_causal);
  STATIC_REQUIRE(said(odd_keys{}) == nothing_said);
  using plain = giwa::mask_traits<odd_keys>;
  STATIC_REQUIRE((plain::any_range && !plain::any_head && !plain::one_range));

  STATIC_REQUIRE(said(giwa::full{} & said_causal{}) == exactly_causal);
  STATIC_REQUIRE(said(giwa::causal{} & giwa::keys_ahead{3}) == exactly_causal);
  STATIC_REQUIRE(said(giwa::causal{} & giwa::keys_back{3}) == bounded);
  STATIC_REQUIRE(said(giwa::causal{} & odd_keys{}) == bounded);
  STATIC_REQUIRE(said(giwa::full{} & said_full{}) == whole);
  STATIC_REQUIRE(said(giwa::full{} & odd_keys{}) == nothing_said);
  STATIC_REQUIRE(said(giwa::full{} | odd_keys{}) == whole);
  STATIC_REQUIRE(said(giwa::prefix{1} | giwa::causal{}) == reaching);
  STATIC_REQUIRE(said(giwa::sliding_window{1} | giwa::causal{}) == exactly_causal);
  STATIC_REQUIRE(said(!giwa::causal{}) == nothing_said);

  // These masks need no classify().
  CHECK((exact(said_full{}) && exact(said_causal{}) && exact(said_causal{} & giwa::prefix{2})));
}

TEST_CASE("masks that the host may ask") {
  const auto known = [](const auto& mask) {
    return giwa::mask_traits<std::remove_cvref_t<decltype(mask)>>::known_on_host(mask);
  };
  CHECK((known(giwa::full{}) && known(giwa::causal{}) && known(giwa::keys_back{1}) && known(giwa::keys_ahead{1}) &&
         known(giwa::sliding_window{1}) && known(giwa::prefix{1}) && known(said_causal{})));
  CHECK(!known(giwa::prefix{0, counts}));
  CHECK(!known(giwa::segment_ids{ascending_q, ascending_k}));
  CHECK(!known(odd_keys{}));
  CHECK(known(giwa::causal{} & giwa::prefix{1}));
  CHECK(!known(giwa::causal{} & giwa::prefix{0, counts}));
  CHECK(!known(giwa::causal{} | odd_keys{}));
  CHECK((known(!giwa::causal{}) && !known(giwa::complement(odd_keys{}))));
}

TEST_CASE("windows are counted as they say") {
  const auto kept = [](const auto& mask, int diagonal) {
    std::string s;
    for (int k = 0; k < 8; ++k) s += mask(attention_coord{0, 0, 3, k, diagonal}) ? '1' : '0';
    return s;
  };
  CHECK(kept(giwa::causal{}, 3) == "11110000");
  CHECK(kept(giwa::sliding_window{2}, 3) == "00110000");
  CHECK(kept(giwa::sliding_window{1}, 3) == "00010000");
  CHECK(kept(giwa::sliding_window{0}, 3) == "00000000");
  CHECK(kept(giwa::keys_back{2} & giwa::causal{}, 3) == "01110000");
  CHECK(kept(giwa::keys_back{0} & giwa::keys_ahead{0}, 3) == "00010000");
  CHECK(kept(giwa::keys_back{1} & giwa::keys_ahead{2}, 3) == "00111100");
  CHECK(kept(giwa::sliding_window{100}, 3) == kept(giwa::causal{}, 3));
  CHECK(kept(giwa::sliding_window{INT_MAX}, -1) == "00000000");  // the diagonal lies before the keys
  CHECK(kept(giwa::keys_ahead{2}, -1) == "11000000");
  CHECK(kept(giwa::sliding_window{3}, 9) == "00000001");  // and behind them
  CHECK(kept(giwa::prefix{5} | giwa::causal{}, 3) == "11111000");
  CHECK(kept(!giwa::causal{}, 3) == "00001111");
}

TEST_CASE("the farthest coordinates do not overflow") {
  constexpr int last = static_cast<int>(giwa::attention_limits::length) - 1;
  constexpr score_tile corner{0, 0, last, last, last, last, 0}, first{0, 0, 0, 0, 0, 0, -last};
  STATIC_REQUIRE(giwa::keys_ahead{INT_MAX}.classify(corner) == tile_keep::all);
  STATIC_REQUIRE(giwa::keys_back{INT_MAX}.classify(first) == tile_keep::all);
  STATIC_REQUIRE(giwa::keys_back{INT_MAX}(attention_coord{0, 0, 0, 0, -last}));
  STATIC_REQUIRE(giwa::sliding_window{INT_MAX}.classify(first) == tile_keep::none);
  STATIC_REQUIRE(giwa::sliding_window{INT_MAX}.classify(corner) == tile_keep::all);
}

TEST_CASE("an alignment is asked for, or not, and two may disagree") {
  using giwa::detail::request_of;
  CHECK_FALSE(request_of(giwa::full{}).needed);
  CHECK_FALSE(request_of(giwa::prefix{3} | odd_keys{}).needed);
  CHECK(request_of(giwa::causal{}).needed);
  CHECK(request_of(!giwa::causal::top_left).align == alignment::top_left);
  CHECK(request_of(giwa::prefix{3} | giwa::causal::bottom_right).align == alignment::bottom_right);
  CHECK(request_of(giwa::causal{} & giwa::sliding_window{3, alignment::top_left}).align == alignment::top_left);
  CHECK_FALSE(request_of(giwa::causal{} & giwa::sliding_window{3, alignment::top_left}).conflict);
  CHECK(request_of(giwa::causal::bottom_right & giwa::sliding_window{3, alignment::top_left}).conflict);
  CHECK(request_of(giwa::causal::bottom_right & (giwa::full{} | !giwa::causal::top_left)).conflict);

  const giwa::alibi straight{nullptr}, top{nullptr, 0, alignment::top_left};
  CHECK(request_of(straight).needed);
  CHECK(request_of(giwa::then(giwa::softcap{1}, top)).align == alignment::top_left);

  using giwa::detail::diagonal_of;
  const giwa::plain_score plain;
  CHECK(diagonal_of(giwa::full{}, plain, alignment::unset) == alignment::bottom_right);
  CHECK(diagonal_of(giwa::causal{}, plain, alignment::top_left) == alignment::top_left);
  CHECK(diagonal_of(giwa::full{}, top, alignment::unset) == alignment::top_left);
  CHECK(diagonal_of(giwa::causal{alignment::offset(-3)}, plain, alignment::unset).fixed_offset() == -3);

  const auto checked = [](const auto& mask, const auto& score, alignment given, bool agree) {
    return giwa::detail::check_alignment(mask, score, given, agree, 5, 7);
  };
  CHECK(checked(giwa::causal{}, plain, alignment::unset, true).ok());
  const auto missing = checked(giwa::causal{}, plain, alignment::unset, false);
  CHECK(missing.argument == "mask"s);
  CHECK(std::string(missing.message).find("alignment::top_left, alignment::bottom_right or alignment::offset(n)") !=
        std::string::npos);
  CHECK(checked(giwa::causal{}, plain, alignment::offset(2), false).ok());
  CHECK_FALSE(checked(giwa::full{}, straight, alignment::unset, false).ok());
  CHECK_FALSE(checked(giwa::causal::bottom_right, plain, alignment::top_left, true).ok());
  CHECK_FALSE(checked(giwa::causal::bottom_right, top, alignment::unset, true).ok());
  CHECK_FALSE(checked(giwa::causal{alignment::offset(2)}, plain, alignment::bottom_right, false).ok());
  CHECK_FALSE(checked(giwa::causal{alignment::offset(2)}, plain, alignment::offset(3), false).ok());
}

TEST_CASE("an offset of the diagonal is a number or follows from the lengths") {
  STATIC_REQUIRE(!alignment{}.is_set());
  STATIC_REQUIRE(alignment{} == alignment::unset);
  STATIC_REQUIRE(alignment::offset(0) == alignment::top_left);
  STATIC_REQUIRE(alignment::offset(1) != alignment::top_left);
  STATIC_REQUIRE(alignment::offset(1) != alignment::offset(2));
  STATIC_REQUIRE(alignment(alignment::bottom_right) != alignment::top_left);
  STATIC_REQUIRE(alignment(alignment::bottom_right).is_bottom_right());
  STATIC_REQUIRE(alignment::offset(-17).fixed_offset() == -17);
  STATIC_REQUIRE(alignment::offset(giwa::max_int64).fixed_offset() ==
                 INT_MAX);  // out of range, and refused by the call
  STATIC_REQUIRE(alignment::offset(-giwa::max_int64).fixed_offset() == -INT_MAX);

  constexpr giwa::int64 most = giwa::attention_limits::length;
  const auto checked = [](giwa::int64 n) {
    return giwa::detail::check_alignment(giwa::causal{}, giwa::plain_score{}, alignment::offset(n), false, 5, 7);
  };
  CHECK(checked(most - 5).ok());
  CHECK(checked(7 - most).ok());
  const giwa::status beyond = checked(most - 4), before = checked(6 - most);
  CHECK((beyond.argument == "align"s && beyond.relation == giwa::bound::at_most && beyond.expected == most - 5));
  CHECK(beyond.got == most - 4);
  CHECK((before.argument == "align"s && before.relation == giwa::bound::at_least && before.expected == 7 - most));
  CHECK_FALSE(checked(giwa::max_int64).ok());
  CHECK_FALSE(checked(-giwa::max_int64).ok());
}

TEST_CASE("a negative window is refused wherever it stands") {
  using giwa::detail::check_callable;
  const giwa::attention_sizes sizes{1, 1, 4, 4};
  const auto refused = [&](const auto& mask, const std::string& argument) {
    const giwa::status s = check_callable(mask, sizes);
    return s.code == giwa::status_code::invalid_argument && s.argument == argument &&
           s.relation == giwa::bound::at_least && s.expected == 0 && s.got == -2;
  };
  CHECK(refused(giwa::keys_back{-2}, "keys_back"));
  CHECK(refused(giwa::keys_ahead{-2}, "keys_ahead"));
  CHECK(refused(giwa::sliding_window{-2}, "sliding_window"));
  CHECK(refused(giwa::full{} & !giwa::sliding_window{-2}, "sliding_window"));
  CHECK(refused((giwa::causal{} | giwa::keys_back{-2}) & giwa::full{}, "keys_back"));
  CHECK(check_callable(giwa::causal{} & giwa::sliding_window{0}, sizes).ok());
}
