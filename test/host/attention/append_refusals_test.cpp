// SPDX-License-Identifier: MIT
// Calls of append_to_cache that are refused, by which rule; and those next to them that are not.
#include <giwa/host.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include "support/call_options.hpp"
#include "support/catch.hpp"

using giwa::int64;
using giwa::rotary_base;
using giwa::status;
using giwa::tensor_view;

namespace {

using view3 = tensor_view<const float, 3>;
using view4 = tensor_view<const float, 4>;
using written = tensor_view<float, 4>;

// A call that is right: 2 sequences, 3 new rows, 2 heads of 8, pages of 4 keys. Each test changes something.
struct append_call {
  std::vector<float> memory = std::vector<float>(6000, 1.0f);
  std::vector<int> numbers = std::vector<int>(100, 1);
  float* const x = memory.data();
  int* const n = numbers.data();
  view4 k_new{x, {2, 3, 2, 8}}, v_new{x + 100, {2, 3, 2, 8}};
  giwa::kv_cache<float> cache{.k = {x + 1000, {6, 4, 2, 8}},
                              .v = {x + 2000, {6, 4, 2, 8}},
                              .pages = {.indices = n, .stride = 3, .most = 3},
                              .lengths = n + 20,
                              .sequences = 2};
  giwa::append_options<float> options{.q = view4(x + 300, {2, 3, 4, 8}), .q_to = written(x + 500, {2, 3, 4, 8})};
  giwa::detail::packed_queries packed{n + 30, 2, 0};

  append_call() {
    numbers[20] = numbers[21] = 3;
    numbers[30] = 0;
    numbers[31] = 3;
    numbers[32] = 6;
  }
  append_call(const append_call&) = delete;

  template <class Rotary = rotary_base>
  status run(const Rotary& rotary = rotary_base(10000, {8})) const {
    return giwa::append_to_cache(giwa::host, cache, k_new, v_new, rotary, options);
  }
  view3 in_rows(const view4& v) const { return {v.data(), {v.extent(0) * v.extent(1), v.extent(2), v.extent(3)}}; }
  void pack() {
    options.q = in_rows(options.q.view());
    const auto to = options.q_to.view();
    options.q_to = tensor_view<float, 3>(to.data(), {6, 4, 8});
  }
  status run_packed() const {
    return giwa::append_to_cache(giwa::host, cache, in_rows(k_new), in_rows(v_new), rotary_base(10000, {8}),
                                 giwa_test::with(options, giwa_test::sequences_of(packed)));
  }
  status run_slots() const {
    return giwa::append_to_cache(giwa::host, cache, in_rows(k_new), in_rows(v_new), rotary_base(10000, {8}), options);
  }
};

// Changes a right call and checks the rule that it then breaks, and that nothing is written.
template <class Change, std::invocable<const append_call&> Run>
void refused(const Change& change, const Run& run, const std::string& argument, const std::string& words,
             int64 expected = 0, int64 got = 0) {
  append_call c;
  change(c);
  const std::vector<float> before = c.memory;
  const status s = run(c);
  INFO(giwa::format_status(s).c_str() << " / " << argument << ": " << words);
  CHECK(s.code == giwa::status_code::invalid_argument);
  CHECK((s.argument == argument && std::string(s.message).find(words) != std::string::npos));
  CHECK((s.expected == expected && s.got == got));
  CHECK(c.memory == before);
}
template <class Change>
void refused(const Change& change, const std::string& argument, const std::string& words, int64 expected = 0,
             int64 got = 0) {
  refused(
      change, [](const append_call& c) { return c.run(); }, argument, words, expected, got);
}
using call = append_call;

struct checked_rotary : giwa::rotary_layout {
  giwa::rotation operator()(int64, int) const { return {1, 0}; }
  status check() const { return status::invalid("mine", "a rule of mine"); }
};

}  // namespace

TEST_CASE("the call that the refusals change is right") {
  append_call c;
  CHECK(c.run().ok());
  CHECK(c.memory[1000 + 64 + 16] != 1.0f);
  c.pack();
  CHECK(c.run_packed().ok());
  c.options.slots = tensor_view<int, 1>(c.n, {6});
  CHECK(c.run_packed().ok());  // positions by the lengths
  c.options.positions = tensor_view<int, 1>(c.n, {6});
  CHECK(c.run_slots().ok());
  c.cache.pages = {};
  c.cache.sequences = 77;  // no longer used
  CHECK(c.run_slots().ok());
  c.options.positions = {};  // nor are positions, where nothing is rotated
  CHECK(giwa::append_to_cache(giwa::host, c.cache, c.in_rows(c.k_new), c.in_rows(c.v_new), giwa::no_rotary{}, c.options)
            .ok());
  CHECK_FALSE(c.run_slots().ok());
}

TEST_CASE("options are given once") {
  append_call c;
  c.options = {};
  c.options.positions = tensor_view<int, 1>(c.n, {6});
  const std::vector<float> before = c.memory;
  const auto state = [&](const giwa::append_options<float>& third, const giwa::append_options<float>& last) {
    return giwa::append_to_cache(giwa::host, c.cache, c.k_new, c.v_new, third, last);
  };
  const status twice = state(c.options, c.options);
  CHECK((twice.argument == std::string("options") && twice.expected == 1 && twice.got == 2));
  CHECK(c.memory == before);
  CHECK(state(c.options, {}).ok());
  CHECK(state({}, c.options).ok());
}

TEST_CASE("packed rows need the number of their sequences") {
  const auto packed = [](const append_call& c) { return c.run_packed(); };
  const auto forget = [](call& c) { c.pack(), c.packed.count = c.cache.sequences = 0; };
  refused(forget, packed, "sequences", "count is 0", 1, 0);
  append_call c;
  forget(c);
  c.options.positions = c.options.slots = tensor_view<int, 1>(c.n, {6});
  CHECK(c.run_packed().ok());  // the offsets are not read
  append_call empty;
  forget(empty);
  empty.k_new = {empty.x, {0, 3, 2, 8}}, empty.v_new = {empty.x + 100, {0, 3, 2, 8}}, empty.options = {};
  CHECK(empty.run_packed().ok());
}

TEST_CASE("sizes of new rows and of the cache that do not fit together") {
  refused([](call& c) { c.k_new = {c.x, {2, 3, 3, 8}}; }, "k_new", "as many heads as k of the cache", 2, 3);
  refused([](call& c) { c.k_new = {c.x, {2, 3, 2, 6}}; }, "k_new", "the head size of k of the cache", 8, 6);
  refused([](call& c) { c.k_new = {c.x, {2, 3, 2, 8}, {96, 32, 16, 2}}; }, "k_new", "contiguous (stride 1)", 1, 2);
  refused([](call& c) { c.k_new = {nullptr, {2, 3, 2, 8}}; }, "k_new", "null");
  refused(
      [](call& c) {
        c.k_new = {c.x, {2, 3, 2, 0}}, c.cache.k = {c.x, {6, 4, 2, 0}};
      },
      "k_new", "the head size is out of range", 1, 0);
  // The memory of these sizes is not touched.
  const int64 limit = giwa::attention_limits::length, large = limit + 1;
  const auto enlarge = [](auto& v, int d, int64 size) {
    auto extents = v.extents();
    extents[d] = size;
    v = {v.data(), extents, {0, 0, 0, 1}};
  };
  refused([&](call& c) { enlarge(c.k_new, 3, large), enlarge(c.cache.k, 3, large); }, "k_new",
          "the head size is out of range", limit, large);
  refused([&](call& c) { enlarge(c.v_new, 3, large), enlarge(c.cache.v, 3, large); }, "v_new",
          "the head size is out of range", limit, large);
  refused(
      [&](call& c) {
        enlarge(c.k_new, 2, large), enlarge(c.cache.k, 2, large), enlarge(c.v_new, 2, large);
        enlarge(c.cache.v, 2, large);
      },
      "k_new", "the number of heads is out of range", limit, large);
  refused(
      [&](call& c) {
        c.options.q = view4(c.x + 300, {2, 3, large, 8}, {0, 0, 0, 1});
        c.options.q_to = written(c.x + 500, {2, 3, large, 8}, {0, 0, 0, 1});
      },
      "q", "the number of heads is out of range", limit, large);
  for (const bool of_k : {true, false}) {  // elements that no head has, in v too
    refused(
        [&](call& c) {
          if (of_k)
            c.k_new = {c.x, {2, 3, 2, 8}, {48, 16, 8, -1}};
          else
            c.v_new = {c.x, {2, 3, 2, 8}, {48, 16, 8, 0}};
        },
        of_k ? "k_new" : "v_new", "contiguous (stride 1)", 1, of_k ? -1 : 0);
    refused(
        [&](call& c) {
          (of_k ? c.cache.k : c.cache.v) = {c.x + 1000, {6, 4, 2, 8}, {128, 32, 16, 2}};
        },
        of_k ? "k" : "v", "contiguous (stride 1)", 1, 2);
    refused([&](call& c) { (of_k ? c.cache.k : c.cache.v) = {nullptr, {6, 4, 2, 8}}; }, of_k ? "k" : "v", "null");
  }
  refused([](call& c) { c.v_new = {nullptr, {2, 3, 2, 8}}; }, "v_new", "null");
  refused(
      [](call& c) {
        c.v_new = {c.x + 100, {2, 3, 2, 0}}, c.cache.v = {c.x + 2000, {6, 4, 2, 0}};
      },
      "v_new", "the head size is out of range", 1, 0);
  refused([](call& c) { c.v_new = {c.x + 100, {1, 3, 2, 8}}; }, "v_new", "as many sequences as k_new", 2, 1);
  refused([](call& c) { c.v_new = {c.x + 100, {2, 2, 2, 8}}; }, "v_new", "as many rows as k_new", 3, 2);
  refused([](call& c) { c.v_new = {c.x + 100, {2, 3, 1, 8}}; }, "v_new", "as many heads as k_new", 2, 1);
  refused([](call& c) { c.v_new = {c.x + 100, {2, 3, 2, 7}}; }, "v_new", "the head size of v of the cache", 8, 7);
  refused([](call& c) { c.cache.v = {c.x + 2000, {5, 4, 2, 8}}; }, "v", "as many sequences or pages as k", 6, 5);
  refused([](call& c) { c.cache.v = {c.x + 2000, {6, 3, 2, 8}}; }, "v", "as many rows as k", 4, 3);
  refused([](call& c) { c.cache.v = {c.x + 2000, {6, 4, 1, 8}}; }, "v", "as many heads as k", 2, 1);
  refused([](call& c) { c.cache.k = {c.x + 1000, {6, 0, 2, 8}}; }, "k", "room for at least one key", 1, 0);
}

TEST_CASE("sizes at, below and above their limits") {
  constexpr int64 most = giwa::attention_limits::length;
  const auto range = [](int64 size) { return giwa::detail::check_append_range(size, 1, "k_new", ""); };
  CHECK((range(1).ok() && range(most).ok()));
  CHECK((range(0).expected == 1 && range(0).got == 0 && range(most + 1).expected == most));
}

TEST_CASE("page tables, sequences and lengths that do not fit the call") {
  refused([](call& c) { c.cache.lengths = nullptr; }, "lengths", "needs the lengths");
  refused([](call& c) { c.cache.sequences = 3; }, "sequences", "as many sequences as k_new", 2, 3);
  refused([](call& c) { c.options.sequences.k_lengths = c.n; }, "k_lengths", "are kv_cache::lengths");
  refused([](call& c) { c.cache.pages = {}; }, "sequences", "the number must be 0", 0, 2);
  refused([](call& c) { c.cache.pages = {}, c.cache.sequences = 0; }, "k", "as many sequences as k_new", 2, 6);
  refused([](call& c) { c.cache.pages.most = -1; }, "pages", "negative", 0, -1);
  refused([](call& c) { c.cache.pages.most = 0; }, "pages", "needs `most`", 1, 0);
  refused([](call& c) { c.cache.pages.most = int64{1} << 40; }, "pages", "too many keys", 536869887, int64{1} << 40);
  const auto packed = [](const call& c) { return c.run_packed(); };
  const auto slots = [](const call& c) { return c.run_slots(); };
  refused([](call& c) { c.pack(), c.packed.offsets = nullptr; }, packed, "q_offsets", "offsets of their sequences");
  refused([](call& c) { c.pack(), c.packed.count = -1; }, packed, "sequences", "is negative", 0, -1);
  refused([](call& c) { c.pack(), c.packed.count = 1LL << 31; }, packed, "sequences", "out of range", 2147479551,
          1LL << 31);
  refused([](call& c) { c.pack(), c.packed.count = 3; }, packed, "sequences", "as many sequences", 3, 2);
  refused([](call& c) { c.pack(); }, slots, "q_offsets", "slots and, if k is rotated, positions");
  refused([](call& c) { c.pack(), c.options.slots = tensor_view<int, 1>(c.n, {6}); }, slots, "q_offsets", "slots and");
  refused([](call& c) { c.pack(), c.options.positions = tensor_view<int, 1>(c.n, {6}); }, slots, "q_offsets",
          "slots and");
  refused([](call& c) { c.options.slots = tensor_view<int, 1>(c.n, {5}); }, "slots", "one number for each row", 6, 5);
  refused([](call& c) { c.options.positions = tensor_view<const int64, 1>(); }, "positions", "one number for each row",
          6, 0);
  refused([](call& c) { c.options.slots = tensor_view<int, 1>(nullptr, {6}); }, "slots", "null");
}

TEST_CASE("queries and rotations that do not fit the call") {
  refused([](call& c) { c.options.q_to = {}; }, "q_to", "q needs q_to");
  refused([](call& c) { c.options.q = {}; }, "q", "without q");
  refused([](call& c) { c.options.q = view3(c.x + 300, {6, 4, 8}); }, "q", "the rank of k_new", 4, 3);
  refused(
      [](call& c) {
        c.options.q_to = tensor_view<float, 3>(c.x + 500, {6, 4, 8});
      },
      "q_to", "the rank of k_new", 4, 3);
  refused([](call& c) { c.options.q = view4(c.x + 300, {3, 3, 4, 8}); }, "q", "as many sequences as k_new", 2, 3);
  refused([](call& c) { c.options.q = view4(c.x + 300, {2, 2, 4, 8}); }, "q", "as many rows as k_new", 3, 2);
  refused([](call& c) { c.options.q = view4(c.x + 300, {2, 3, 4, 6}); }, "q", "the head size of k_new", 8, 6);
  for (int d = 0; d < 4; ++d)
    refused(
        [&](call& c) {
          giwa::index<4> sizes{2, 3, 4, 8};
          sizes[d] -= 1;
          c.options.q_to = written(c.x + 500, sizes);
        },
        "q_to", "the sizes of q", giwa::index<4>{2, 3, 4, 8}[d], giwa::index<4>{1, 2, 3, 7}[d]);
  for (const bool to : {false, true})
    refused(
        [&](call& c) {
          const giwa::index<4> strides{96, 32, 8, 2};
          if (to)
            c.options.q_to = written(c.x + 500, {2, 3, 4, 8}, strides);
          else
            c.options.q = view4(c.x + 300, {2, 3, 4, 8}, strides);
        },
        to ? "q_to" : "q", "contiguous (stride 1)", 1, 2);
  const auto rotate = [](const giwa::rotary_layout& layout) {
    return [=](const call& c) { return c.run(rotary_base(100, layout)); };
  };
  const auto nothing = [](call&) {};
  refused(nothing, rotate({7}), "rotary", "must be even", 2, 7);
  refused(nothing, rotate({-2}), "rotary", "is negative", 0, -2);
  refused(nothing, rotate({10}), "rotary", "past the head size", 8, 10);
  refused(nothing, rotate({4, false, 6}), "rotary", "past the head size", 8, 10);
  refused(nothing, rotate({4, false, -2}), "rotary", "is negative", 0, -2);
  refused(
      nothing, [](const call& c) { return c.run(rotary_base(0, {8})); }, "rotary", "theta must be");
  refused(
      nothing, [](const call& c) { return c.run(checked_rotary{{8}}); }, "mine", "a rule of mine");
}

TEST_CASE("memory that is written and shared") {
  const std::string k = "must not overlap k of the cache", v = "must not overlap v of the cache",
                    q = "must not overlap q_to";
  refused([](call& c) { c.k_new = {c.x + 1100, {2, 3, 2, 8}}; }, "k_new", k);
  refused([](call& c) { c.v_new = {c.x + 2000, {2, 3, 2, 8}}; }, "v_new", v);
  refused([](call& c) { c.k_new = {c.x + 450, {2, 3, 2, 8}}; }, "k_new", q);
  refused([](call& c) { c.cache.v = {c.x + 1200, {6, 4, 2, 8}}; }, "v", k);
  refused([](call& c) { c.cache.v = c.cache.k; }, "v", k);
  refused([](call& c) { c.options.q = view4(c.x + 1200, {2, 3, 4, 8}); }, "q", k);
  refused([](call& c) { c.options.q_to = written(c.x + 2300, {2, 3, 4, 8}); }, "q_to", v);
  refused([](call& c) { c.options.q_to = written(c.x + 301, {2, 3, 4, 8}); }, "q_to", "is not the same view");
  refused(
      [](call& c) {
        c.options.q_to = written(c.x + 500, {2, 3, 4, 8}, {96, 32, 0, 1});
      },
      "q_to", "must not be zero");
  refused(
      [](call& c) {
        c.cache.k = {c.x + 1000, {6, 4, 2, 8}, {32, 16, 8, 1}};
      },
      "k", "keep its elements apart", 64, 32);
  refused(
      [](call& c) {
        c.cache.v = {c.x + 2000, {6, 4, 2, 8}, {32, 16, 8, 1}};
      },
      "v", "keep its elements apart", 64, 32);
  const auto as_numbers = [](float* x) { return reinterpret_cast<int*>(x); };
  refused([&](call& c) { c.cache.lengths = as_numbers(c.x + 1010); }, "lengths", k);
  refused([&](call& c) { c.cache.pages.indices = as_numbers(c.x + 2010); }, "pages", v);
  refused([&](call& c) { c.cache.pages.offsets = as_numbers(c.x + 510); }, "pages", q);
  refused([&](call& c) { c.options.positions = tensor_view<int, 1>(as_numbers(c.x + 1010), {6}); }, "positions", k);
  refused([&](call& c) { c.options.slots = tensor_view<int, 1>(as_numbers(c.x + 1010), {6}); }, "slots", k);
  refused([&](call& c) { c.pack(), c.packed.offsets = as_numbers(c.x + 1010); },
          [](const call& c) { return c.run_packed(); }, "q_offsets", k);
  const auto by_table = [](const call& c) {
    const tensor_view<const float, 2> cos(c.x + 3000, {10, 4}), sin(c.x + 1000, {10, 4});
    return c.run(giwa::rotary_table(cos, sin));
  };
  refused([](call&) {}, by_table, "sin", k);
}

TEST_CASE("each input is apart from each tensor that is written") {
  // With pages, slots of none and positions of none; packed; with slots and positions; with a table.
  enum which { plain, packed, slots, table };
  struct input {
    const char* argument;
    which kind;
    void (*move)(call&, float*);
  };
  static const auto as_int = [](float* x) { return reinterpret_cast<int*>(x); };
  const input inputs[] = {
      {"k_new", plain,
       [](call& c, float* x) {
         c.k_new = {x, c.k_new.extents()};
       }},
      {"v_new", plain,
       [](call& c, float* x) {
         c.v_new = {x, c.v_new.extents()};
       }},
      {"lengths", plain, [](call& c, float* x) { c.cache.lengths = as_int(x); }},
      {"pages", plain, [](call& c, float* x) { c.cache.pages.indices = as_int(x); }},
      {"pages", plain, [](call& c, float* x) { c.cache.pages.offsets = as_int(x - 2); }},  // the third of 2 sequences
      {"q_offsets", packed, [](call& c, float* x) { c.packed.offsets = as_int(x - 2); }},
      {"positions", slots, [](call& c, float* x) { c.options.positions = tensor_view<int, 1>(as_int(x), {6}); }},
      {"positions", slots,
       [](call& c, float* x) { c.options.positions = tensor_view<int64, 1>(reinterpret_cast<int64*>(x), {6}); }},
      {"slots", slots, [](call& c, float* x) { c.options.slots = tensor_view<int, 1>(as_int(x), {6}); }},
      {"slots", slots,
       [](call& c, float* x) { c.options.slots = tensor_view<int64, 1>(reinterpret_cast<int64*>(x), {6}); }},
      {"cos", table, nullptr},
      {"sin", table, nullptr},
  };
  const std::pair<const char*, int> outputs[] = {{"must not overlap k of the cache", 1000},
                                                 {"must not overlap v of the cache", 2000},
                                                 {"must not overlap q_to", 500}};
  for (const input& i : inputs)
    for (const auto& [message, to] : outputs)
      refused(
          [&, &at = to](call& c) {
            if (i.kind == packed || i.kind == slots) c.pack();
            if (i.kind == slots) {
              c.options.slots = tensor_view<int, 1>(c.n, {6});
              c.options.positions = tensor_view<int, 1>(c.n, {6});
            }
            if (i.move != nullptr) i.move(c, c.x + at);
          },
          [&, &at = to](const call& c) {
            if (i.kind == packed) return c.run_packed();
            if (i.kind == slots) return c.run_slots();
            if (i.kind == plain) return c.run();
            const bool cosines = i.argument == std::string("cos");
            const tensor_view<const float, 2> moved(c.x + at, {10, 4}), other(c.x + 3000, {10, 4});
            return c.run(giwa::rotary_table(cosines ? moved : other, cosines ? other : moved));
          },
          i.argument, message);
  // q, where it is another view than q_to; and q_to, over the cache.
  for (const auto& [message, to] : outputs) {
    refused(
        [&, &at = to](call& c) {
          c.options.q = view4(c.x + at + 1, {2, 3, 4, 8});
        },
        (to == 500) ? "q_to" : "q", (to == 500) ? "is not the same view" : message);
    if (!(to == 500))
      refused([&, &at = to](call& c) { c.options.q_to = written(c.x + at + 1, {2, 3, 4, 8}); }, "q_to", message);
  }
  // Scales belong to a cache of 8-bit elements.
  for (const bool of_k : {true, false})
    for (const bool over_k : {true, false}) {
      std::vector<giwa::e4m3> x(1000);
      std::vector<float> k_new(16);
      giwa::kv_cache<giwa::e4m3> cache{.k = {x.data(), {1, 5, 2, 8}}, .v = {x.data() + 400, {1, 5, 2, 8}}};
      (of_k ? cache.scales.k : cache.scales.v) =
          tensor_view<const float, 3>(reinterpret_cast<const float*>((over_k ? cache.k : cache.v).data()),
                                      {1, 1, 1});  // g++ 11 takes no braces here
      const view4 k(k_new.data(), {1, 1, 2, 8});
      const status s = giwa::append_to_cache(giwa::host, cache, k, k);
      CHECK((s.argument == std::string("scales") &&
             std::string(s.message).find(over_k ? "overlap k of" : "overlap v of") != std::string::npos));
    }
}

TEST_CASE("q, k and v may be parts of one tensor, and q rotated in place") {
  append_call c;
  const giwa::index<4> strides{3 * 64, 64, 8, 1};  // 4 heads of q, 2 of k, 2 of v
  c.k_new = {c.x + 32, {2, 3, 2, 8}, strides};
  c.v_new = {c.x + 48, {2, 3, 2, 8}, strides};
  const written q(c.x, {2, 3, 4, 8}, strides);
  c.options = {.q = q, .q_to = q};
  CHECK(c.run().ok());
  c.k_new = {c.x + 24, {2, 3, 2, 8}, strides};  // the last head of q is the first of k
  CHECK(std::string(c.run().message).find("must not overlap q_to") != std::string::npos);
}

TEST_CASE("k and v may be parts of one pool, with other head sizes, that attention_cached takes") {
  struct pool_layout {
    const char* name;
    giwa::index<4> k, v;  // strides
    int64 first_v;
    bool apart = true;
  };
  // 6 pages of 4 keys and 2 heads: 8 columns of k, 4 of v.
  const pool_layout layouts[] = {
      {"each page has k, then v", {96, 16, 8, 1}, {96, 8, 4, 1}, 64},
      {"each page has v, then k", {-96, 16, 8, 1}, {-96, 8, 4, 1}, -32},
      {"each page has k, then v, heads before keys", {96, 8, 32, 1}, {96, 4, 16, 1}, 64},
      {"each page has k, then v, in other orders", {96, 8, 32, 1}, {96, 8, 4, 1}, 64},
      {"each row has k, then v", {96, 24, 8, 1}, {96, 24, 4, 1}, 16},
      {"each row has k, then v, with gaps", {101, 25, 8, 1}, {101, 25, 4, 1}, 17},
      {"each head has k, then v", {96, 24, 12, 1}, {96, 24, 12, 1}, 8},
      {"v reaches into the next page", {96, 16, 8, 1}, {96, 8, 4, 1}, 65, false},
      {"v begins within k", {96, 16, 8, 1}, {96, 8, 4, 1}, 63, false},
      {"v reaches into the next row", {96, 24, 8, 1}, {96, 24, 4, 1}, 17, false},
      {"v reaches into the next head", {96, 24, 12, 1}, {96, 24, 12, 1}, 9, false},
      {"pages of other sizes", {96, 16, 8, 1}, {48, 8, 4, 1}, 64, false},
  };
  for (const pool_layout& l : layouts) {
    INFO(l.name);
    append_call c, apart;  // with v_new of 4 columns; in `apart` each has its own memory
    float* const pool = c.x + 1800;
    c.cache.k = {pool, {6, 4, 2, 8}, l.k};
    c.cache.v = {pool + l.first_v, {6, 4, 2, 4}, l.v};
    apart.cache.v = {apart.x + 2000, {6, 4, 2, 4}};
    for (append_call* call : {&c, &apart}) {
      call->v_new = {call->x + 100, {2, 3, 2, 4}};
      for (std::size_t i = 0; i < 300; ++i) call->memory[i] = static_cast<float>(i);
      call->numbers = std::vector<int>(100, 0);
      for (int i = 0; i < 6; ++i) call->numbers[static_cast<std::size_t>(i)] = 5 - i;
      call->numbers[20] = 6, call->numbers[21] = 12;
      call->cache.pages.indices = call->numbers.data(), call->cache.lengths = call->numbers.data() + 20;
    }
    const status s = c.run();
    INFO(giwa::format_status(s).c_str());
    CHECK(s.ok() == l.apart);
    if (!l.apart) {
      CHECK((s.argument == std::string("v") && std::string(s.message).find("must not overlap k") != std::string::npos));
      continue;
    }
    REQUIRE(apart.run().ok());
    int wrong = 0, of_v_new = 0;
    for (int64 page = 0; page < 6; ++page)
      for (int64 row = 0; row < 4; ++row)
        for (int64 head = 0; head < 2; ++head)
          for (int64 d = 0; d < 8; ++d) {
            wrong += c.cache.k(page, row, head, d) != apart.cache.k(page, row, head, d);
            if (d < 4) wrong += c.cache.v(page, row, head, d) != apart.cache.v(page, row, head, d);
            if (d < 4) of_v_new += c.cache.v(page, row, head, d) >= 100;
          }
    CHECK(wrong == 0);
    CHECK(of_v_new == 2 * 3 * 2 * 4);
    std::vector<float> o(2 * 4 * 4);
    CHECK(giwa::attention_cached<giwa::head_sizes<8, 4>>(giwa::host, c.cache, view4(c.x + 300, {2, 1, 4, 8}),
                                                         written(o.data(), {2, 1, 4, 4}))
              .ok());
  }
}

TEST_CASE("views that share an element are never taken for apart") {
  std::uint64_t state = 1;
  const auto below = [&](int64 n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64>((state >> 33) % static_cast<std::uint64_t>(n));
  };
  std::vector<float> memory(6000);
  int missed = 0, apart_and_near = 0;
  for (int n = 0; n < 20000; ++n) {
    tensor_view<float, 4> v[2];
    std::vector<bool> has[2]{std::vector<bool>(6000), std::vector<bool>(6000)};
    for (int i = 0; i < 2; ++i) {
      giwa::index<4> extents, strides{0, 0, 0, 1};
      for (int d = 0; d < 4; ++d) extents[d] = i == 0 || below(3) == 0 ? 1 + below(4) : v[0].extent(d);
      for (int d = 0; d < 3; ++d) strides[d] = i == 0 || below(4) == 0 ? below(d == 0 ? 80 : 25) - 5 : v[0].stride(d);
      v[i] = {memory.data() + 1000 + below(120), extents, strides};
      for (int64 a = 0; a < extents[0]; ++a)
        for (int64 b = 0; b < extents[1]; ++b)
          for (int64 c = 0; c < extents[2]; ++c)
            for (int64 d = 0; d < extents[3]; ++d)
              has[i][static_cast<std::size_t>(&v[i](a, b, c, d) - memory.data())] = true;
    }
    bool shares = false;
    for (std::size_t i = 0; i < 6000; ++i) shares = shares || (has[0][i] && has[1][i]);
    const bool claimed = giwa::detail::heads_share(v[0], v[1]);
    missed += shares && !claimed;
    apart_and_near += !claimed && giwa::detail::range_of(v[0]).first < giwa::detail::range_of(v[1]).last &&
                      giwa::detail::range_of(v[1]).first < giwa::detail::range_of(v[0]).last;
  }
  CHECK(missed == 0);
  CHECK(apart_and_near > 500);
}

TEST_CASE("scales that do not fit the cache") {
  std::vector<giwa::e4m3> x(1000);
  const std::vector<float> k_new(16), scales(100, 1.0f);
  giwa::kv_cache<giwa::e4m3> cache{.k = {x.data(), {1, 5, 2, 8}}, .v = {x.data() + 500, {1, 5, 2, 8}}};
  const tensor_view<const float, 4> k(k_new.data(), {1, 1, 2, 8});
  const auto append = [&](const giwa::index<3>& sizes) {
    cache.scales.v = {scales.data(), sizes};
    return giwa::append_to_cache(giwa::host, cache, k, k);
  };
  CHECK(append({1, 1, 1}).ok());
  CHECK(append({1, 5, 2}).ok());
  CHECK(std::string(append({1, 4, 1}).argument) == "scales");
  CHECK(std::string(append({1, 1, 3}).argument) == "scales");
  CHECK(std::string(append({2, 1, 1}).argument) == "scales");
  append_call c;
  c.cache.scales.k = {scales.data(), {1, 1, 1}};
  CHECK(std::string(c.run().message).find("8-bit") != std::string::npos);
}

TEST_CASE("a call without rows, or without v") {
  append_call c;
  const std::vector<float> before = c.memory;
  c.k_new = c.v_new = {nullptr, {2, 0, 2, 8}};
  c.options = {};
  CHECK(c.run().ok());
  CHECK(c.memory == before);
  append_call d;
  d.cache.v = {d.x + 1000, {6, 4, 2, 4}, d.cache.k.strides()};  // the first columns of k, which are left to it
  CHECK(giwa::append_to_cache(giwa::host, d.cache, d.k_new, {}, rotary_base(10000, {8}), d.options).ok());
  CHECK(d.memory[1000 + 64 + 16] != 1.0f);
}

TEST_CASE("queries are rotated whether their row is written to the cache or not") {
  // Sequence 0 has no room for its last row, sequence 1 has the length -1; then slots, two of them outside the cache.
  append_call c;
  c.numbers[20] = 13, c.numbers[21] = -1;
  const auto rotated = [&](int64 b, int64 row) {
    const auto q = c.options.q.view();
    const auto to = c.options.q_to.view();
    bool differs = false;
    for (int64 d = 0; d < 8; ++d) differs = differs || to(b, row, 3, d) != q(b, row, 3, d);
    return differs;
  };
  for (std::size_t i = 500; i < 500 + 192; ++i) c.memory[i] = 1.0f;
  REQUIRE(c.run().ok());
  for (int64 b = 0; b < 2; ++b)
    for (int64 row = 0; row < 3; ++row) CHECK(rotated(b, row));
  append_call slots;
  const std::vector<float> before = slots.memory;
  const std::vector<int> none{-1, -1, -1, 24, 24, 1000};  // of 6 pages of 4 keys
  slots.options.slots = tensor_view<const int, 1>(none.data(), {6});
  const std::vector<int> fifth(6, 5);
  slots.options.positions = tensor_view<const int, 1>(fifth.data(), {6});
  REQUIRE(slots.run().ok());
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool is_q = i >= 500 && i < 500 + 192;
    if (is_q != (slots.memory[i] != before[i])) {
      INFO(i);
      CHECK(is_q == (slots.memory[i] != before[i]));
    }
  }
}

TEST_CASE("offsets of any numbers end at a sequence that contains the row, or none") {
  append_call c;
  c.pack();
  for (const std::vector<int>& offsets :
       {std::vector<int>{5, 3, 0}, {-7, 100, -3}, {6, 6, 6}, {0, 0, 0}, {2147483647, 0, 2147483647}, {9, 9, 4}}) {
    for (std::size_t i = 0; i < 3; ++i) c.numbers[30 + i] = offsets[i];
    const std::vector<float> before = c.memory;
    CHECK(c.run_packed().ok());
    for (std::size_t i = 0; i < c.memory.size(); ++i)  // k, v and q_to: 384, 384 and 192 elements
      if (c.memory[i] != before[i])
        CHECK(((i >= 1000 && i < 1384) || (i >= 2000 && i < 2384) || (i >= 500 && i < 692)));
  }
}

TEST_CASE("scales that the call finds, their mean and transform") {
  const auto run = [](const auto& change, int64 size) {
    append_call c;
    const auto elements = static_cast<std::size_t>(size);
    std::vector<giwa::int8_code> codes(2 * 6 * 4 * 2 * elements);
    const std::vector<float> x(2 * 3 * 2 * elements, 1.0f);
    std::vector<float> scales(2 * 6 * 4 * 2);
    giwa::kv_cache<giwa::int8_code> cache{.k = {codes.data(), {6, 4, 2, size}},
                                          .v = {codes.data() + codes.size() / 2, {6, 4, 2, size}},
                                          .pages = c.cache.pages,
                                          .lengths = c.cache.lengths,
                                          .sequences = 2};
    giwa::append_options<float> o;
    o.k_scales = {scales.data(), {6, 4, 2}}, o.v_scales = {scales.data() + 48, {6, 4, 2}};
    giwa::rotary_layout layout{.size = static_cast<int>(size)};
    change(o, layout, cache);
    return giwa::append_to_cache(giwa::host, cache, view4(x.data(), {2, 3, 2, size}), view4(x.data(), {2, 3, 2, size}),
                                 rotary_base(10000, layout), o);
  };
  const auto refused_with = [&](const auto& change, const std::string& argument, const std::string& words) {
    const status s = run(change, 16);
    INFO(giwa::format_status(s).c_str());
    CHECK((s.argument == argument && std::string(s.message).find(words) != std::string::npos));
  };
  std::vector<float> mean(32);
  using options = giwa::append_options<float>;
  using codes = giwa::kv_cache<giwa::int8_code>;
  refused_with([](options& o, auto&, codes&) { o.v_scales = {}; }, "v_scales", "if there is a v_new, of v");
  refused_with([](options& o, auto&, codes&) { o.k_scales = {}; }, "k_scales", "if there is a v_new, of v");
  refused_with(
      [](options& o, auto&, codes&) {
        o.k_scales = {o.k_scales.data(), {6, 1, 2}};
      },
      "k_scales", "must be (sequences or pages, keys, kv heads)");
  refused_with([](options& o, auto&, codes&) { o.v_scales = o.k_scales; }, "v_scales", "scales that the call finds");
  refused_with([&](options& o, auto&, codes&) { o.k_mean = {mean.data(), {2, 8}}; }, "k_mean", "(kv heads, head size)");
  refused_with(
      [&](options& o, auto&, codes&) {
        o.k_mean = {o.k_scales.data(), {2, 16}};
      },
      "k_mean", "scales that the call finds");
  refused_with([&](options& o, auto&, codes&) { o.k_mean = {nullptr, {2, 16}}; }, "k_mean", "null");
  refused_with([](options& o, giwa::rotary_layout& r, codes&) { o.hadamard = true, r.size = 8; }, "hadamard",
               "all or no elements");
  const auto transform = [](options& o, auto&, codes&) { o.hadamard = true; };
  for (const int64 size : {16, 64, 256}) CHECK(run(transform, size).ok());
  for (const int64 size : {8, 24, 96, 512}) {  // too small, no powers of two, too large for fp32
    const status s = run(transform, size);
    CHECK((s.argument == std::string("hadamard") && s.expected == 256 && s.got == size));
  }
  // Scales that share memory with what the call reads or writes: of the cache, and of queries.
  const auto in_cache = [](const auto& elements) {
    return tensor_view<float, 3>(reinterpret_cast<float*>(elements.data()), {6, 4, 2});
  };
  refused_with([&](options& o, auto&, codes& x) { o.k_scales = in_cache(x.k); }, "k", "scales that the call finds");
  refused_with([&](options& o, auto&, codes& x) { o.v_scales = in_cache(x.k); }, "k", "scales that the call finds");
  refused_with([&](options& o, auto&, codes& x) { o.v_scales = in_cache(x.v); }, "v", "scales that the call finds");
  std::vector<float> queries(2 * 3 * 4 * 16);
  for (const bool of_q : {true, false})
    refused_with(
        [&](options& o, auto&, codes&) {
          float* const shared = of_q ? o.v_scales.data() : o.k_scales.data();
          o.q = view4(of_q ? shared : queries.data(), {2, 3, 4, 16}, {0, 0, 0, 1});
          o.q_to = of_q ? written(queries.data(), {2, 3, 4, 16}) : written(shared, {2, 3, 4, 16}, {192, 64, 16, 1});
        },
        of_q ? "q" : "q_to", "scales that the call finds");
  // Pairs of integers.
  std::vector<giwa::int4_pair> pairs(2 * 6 * 4 * 2 * 8);
  const auto append_pairs = [&](int size, int64 head) {
    append_call c;
    const giwa::kv_cache<giwa::int4_pair> cache{.k = {pairs.data(), {6, 4, 2, 8}},
                                                .v = {pairs.data() + 384, {6, 4, 2, 8}},
                                                .pages = c.cache.pages,
                                                .lengths = c.cache.lengths,
                                                .sequences = 2};
    giwa::append_options<float> o;
    o.k_scales = {c.x + 4000, {6, 4, 2}}, o.v_scales = {c.x + 4100, {6, 4, 2}};
    const view4 rows(c.x, {2, 3, 2, 16}, {6 * head, 2 * head, head, 1});
    return giwa::append_to_cache(giwa::host, cache, rows, rows, rotary_base(10000, {size}), o);
  };
  CHECK(append_pairs(8, 16).ok());
  for (const status& s : {append_pairs(6, 16), append_pairs(8, 17)}) {
    INFO(giwa::format_status(s).c_str());
    CHECK(
        (s.argument == std::string("k_new") && std::string(s.message).find("pairs of integers") != std::string::npos));
  }
  append_call plain;
  plain.options.hadamard = true;
  CHECK(std::string(plain.run().message).find("only a cache of e4m3") != std::string::npos);
  append_call with_scales;
  with_scales.options.k_scales = with_scales.options.v_scales = {with_scales.x + 3000, {6, 4, 2}};
  CHECK(std::string(with_scales.run().argument) == "k_scales");
}
