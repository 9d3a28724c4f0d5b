// SPDX-License-Identifier: MIT
// split_batch against 128-bit arithmetic, of batches and of heads, and for_each_device without a GPU, or with GPUs that
// do not exist.
#include <giwa/device.hpp>
#include <giwa/host.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using giwa::batch_part;
using giwa::bound;
using giwa::int64;
using giwa::max_int64;
using giwa::status;
using giwa::status_code;

namespace {

__extension__ typedef unsigned __int128 wide;

std::vector<int64> split(int64 batch, const std::vector<int64>& weights) {
  std::vector<int64> parts(weights.size(), -1);
  REQUIRE(giwa::split_batch(batch, weights, parts).ok());
  return parts;
}

// By the words of the documentation: rounded down, and the largest remainders, of the earlier part first, get one more.
std::vector<int64> split_by_definition(int64 batch, const std::vector<int64>& weights) {
  const auto sum = static_cast<wide>(std::accumulate(weights.begin(), weights.end(), int64{0}));
  std::vector<int64> parts, order;
  std::vector<wide> rests;
  int64 left = batch;
  for (const int64 w : weights) {
    const wide product = static_cast<wide>(batch) * static_cast<wide>(w);
    order.push_back(static_cast<int64>(parts.size()));
    parts.push_back(static_cast<int64>(product / sum));
    rests.push_back(product % sum);
    left -= parts.back();
  }
  std::stable_sort(order.begin(), order.end(), [&](int64 a, int64 b) {
    return rests[static_cast<std::size_t>(a)] > rests[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = 0; i < static_cast<std::size_t>(left); ++i) ++parts[static_cast<std::size_t>(order[i])];
  return parts;
}

status error_of(int64 batch, const std::vector<int64>& weights, std::size_t parts) {
  std::vector<int64> out(parts);
  return giwa::split_batch(batch, weights, out);
}

constexpr int64 second_of_two(int64 batch, int64 first, int64 second) {
  const int64 weights[] = {first, second};
  int64 parts[2] = {};
  const status s = giwa::split_batch(batch, {weights, {2}}, {parts, {2}});
  return s.ok() ? parts[1] : -1;
}
static_assert(second_of_two(64, 1, 1) == 32 && second_of_two(10, 3, 1) == 2 && second_of_two(7, 1, 0) == 0);

}  // namespace

TEST_CASE("a batch is split in proportion, to the last item") {
  using parts = std::vector<int64>;
  CHECK(split(64, {1, 1}) == parts{32, 32});
  CHECK(split(65, {1, 1}) == parts{33, 32});
  CHECK(split(8, {3, 1}) == parts{6, 2});
  CHECK(split(10, {0, 1, 0, 3, 0}) == parts{0, 3, 0, 7, 0});  // 2.5 and 7.5: the earlier gets the one that is left
  CHECK(split(2, {1, 1, 1}) == parts{1, 1, 0});
  CHECK(split(0, {1, 2}) == parts{0, 0});
  CHECK(split(max_int64, {max_int64 - 1, 1}) == parts{max_int64 - 1, 1});
  CHECK(split(max_int64, {1, 1}) == parts{max_int64 / 2 + 1, max_int64 / 2});
  std::vector<int64> equal(3);
  REQUIRE(giwa::split_batch(8, {}, equal).ok());
  CHECK(equal == parts{3, 3, 2});

  int wrong = 0;
  for (int64 batch = 0; batch <= 40; ++batch)
    for (int64 code = 1; code < 5 * 5 * 5 * 5; ++code) {
      const parts weights{code % 5, code / 5 % 5, code / 25 % 5, code / 125};
      const parts got = split(batch, weights);
      wrong += got == split_by_definition(batch, weights) ? 0 : 1;
      wrong += std::accumulate(got.begin(), got.end(), int64{0}) == batch ? 0 : 1;
    }
  CHECK(wrong == 0);
  giwa_test::random_sequence random(35);
  for (int round = 0; round < 2000; ++round) {
    parts weights;
    for (int64 left = max_int64, i = 1 + random.below(6); i > 0; --i) {
      weights.push_back(std::min(left, random.any_magnitude()));
      left -= weights.back();
    }
    if (std::accumulate(weights.begin(), weights.end(), int64{0}) == 0) continue;
    const int64 batch = random.any_magnitude();
    const parts got = split(batch, weights);
    wrong += got == split_by_definition(batch, weights) ? 0 : 1;
    wrong += std::accumulate(got.begin(), got.end(), int64{0}) == batch ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("weights that split nothing are refused") {
  int64 none[2];
  CHECK(std::string(giwa::split_batch(10, {static_cast<const int64*>(nullptr), {2}}, {none, {2}}).argument) ==
        "weights");
  const auto is = [](const status& s, const char* argument, bound relation, int64 expected, int64 got) {
    return s.code == status_code::invalid_argument && s.argument == std::string(argument) && s.relation == relation &&
           s.expected == expected && s.got == got;
  };
  CHECK(is(error_of(-1, {1}, 1), "batch", bound::at_least, 0, -1));
  CHECK(is(error_of(1, {1, -2}, 2), "weights", bound::at_least, 0, -2));
  CHECK(is(error_of(1, {0, 0}, 2), "weights", bound::none, 0, 0));
  CHECK(is(error_of(1, {}, 0), "weights", bound::none, 0, 0));
  CHECK(is(error_of(1, {1, 1}, 3), "weights", bound::exactly, 3, 2));
  CHECK(is(error_of(1, {max_int64, 1}, 2), "weights", bound::at_most, 0, 1));
  CHECK(giwa::split_batch(1, {}, {nullptr, {2}}).argument == std::string("parts"));
}

TEST_CASE("a part of a tensor has the part's items, and the tensor's strides") {
  std::vector<int> memory(100);
  const giwa::tensor_view<int, 2> whole(memory.data(), {5, 3}, {20, 2});
  const giwa::tensor_view<int, 2> part = batch_part{0, 2, 3}.of(whole);
  CHECK(part.data() == memory.data() + 40);
  CHECK(part.extents() == giwa::index<2>{3, 3});
  CHECK(part.strides() == whole.strides());
  CHECK(batch_part{0, 5, 0}.of(whole).size() == 0);
}

TEST_CASE("kv heads are split as a batch, with the bits of one call") {
  constexpr int64 batch = 2, kv_heads = 3, group = 2, rows = 19, size = 8;
  // (batch, heads, rows, size)
  std::vector<float> q(batch * kv_heads * group * rows * size), k(q.size() / group), v(k.size()), o(q.size()), one(o);
  giwa_test::random_sequence random(5);
  for (std::vector<float>* x : {&q, &k, &v})
    for (float& value : *x) value = static_cast<float>(random.below(2001)) / 1000 - 1;
  const auto all_heads = [](std::vector<float>& x, int64 of_group) {
    const int64 heads = kv_heads * of_group;
    return giwa::tensor_view<float, 4>(x.data(), {batch, rows, heads, size},
                                       {heads * rows * size, size, rows * size, 1});
  };
  const auto as_batch = [](std::vector<float>& x, int64 of_group) {
    return giwa::tensor_view<float, 4>(x.data(), {batch * kv_heads, rows, of_group, size},
                                       {of_group * rows * size, size, rows * size, 1});
  };
  REQUIRE(giwa::attention_forward<size>(giwa::host, all_heads(q, group), all_heads(k, 1), all_heads(v, 1),
                                        all_heads(one, group), giwa::causal{})
              .ok());
  int64 first = 0;
  for (const int64 count : split(batch * kv_heads, {3, 0, 1, 2})) {
    const batch_part part{-1, first, count};
    REQUIRE(giwa::attention_forward<size>(giwa::host, part.of(as_batch(q, group)), part.of(as_batch(k, 1)),
                                          part.of(as_batch(v, 1)), part.of(as_batch(o, group)), giwa::causal{})
                .ok());
    first += count;
  }
  CHECK(first == batch * kv_heads);
  CHECK(o == one);
}

TEST_CASE("without a GPU the CPU gets the whole batch") {
  std::vector<batch_part> seen;
  const auto both = [&](auto where, const batch_part& part) -> status {
    if (std::is_same_v<decltype(where), giwa::host_t>) seen.push_back(part);
    return {};
  };
  const std::vector<int64> weights{0};
  for (const giwa::tensor_view<const int64, 1>& w : {giwa::tensor_view<const int64, 1>{}, {weights.data(), {1}}}) {
    seen.clear();
    REQUIRE(giwa::for_each_device({}, w, 12, both).ok());
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].device == -1);
    CHECK(seen[0].first == 0);
    CHECK(seen[0].count == 12);
  }
  CHECK(giwa::for_each_device({}, {}, 0, both).ok());
  CHECK(seen.size() == 1);  // nothing to do

  const auto fails = [](auto, const batch_part&) { return status::invalid("q", "failed"); };
  const giwa::device_status failed = giwa::for_each_device({}, {}, 12, fails);
  CHECK(failed.device == -1);
  CHECK(failed.state.argument == std::string("q"));

  const auto gpu_only = [](cudaStream_t, const batch_part&) { return status{}; };
  const giwa::device_status none = giwa::for_each_device({}, {}, 12, gpu_only);
  CHECK(none.state.code == status_code::no_device);
  CHECK(none.state.argument == std::string("devices"));
}

TEST_CASE("a GPU that does not exist, and weights that do not fit, are refused before anything is done") {
  bool called = false;
  const auto f = [&](cudaStream_t, const batch_part&) {
    called = true;
    return status{};
  };
  const std::vector<int> missing{12345};
  const std::vector<int64> two{1, 1}, none{0};
  const giwa::device_status s = giwa::for_each_device(missing, {}, 12, f);
  CHECK(s.device == 12345);
  CHECK(s.state.code == (giwa::device_count() == 0 ? giwa::properties_of(0).state.code : status_code::no_device));
  CHECK(giwa::for_each_device(missing, two, 12, f).state.argument == std::string("weights"));
  CHECK(giwa::for_each_device(missing, none, 12, f).state.argument == std::string("weights"));
  CHECK(giwa::for_each_device(missing, {}, -1, f).state.argument == std::string("batch"));
  CHECK(giwa::for_each_device({nullptr, {2}}, {}, 12, f).state.argument == std::string("devices"));
  CHECK_FALSE(called);
}
