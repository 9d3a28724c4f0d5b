// SPDX-License-Identifier: MIT
// What an attention call needs and what would fit: against sums by hand, at every edge of what is free, and beyond 64 bits.
#include <giwa/attention/problem/memory_advice.hpp>

#include <cstdlib>
#include <string>

#include "support/catch.hpp"

using giwa::attention_advice;
using giwa::attention_bytes;
using giwa::attention_problem;
using giwa::int64;
using giwa::max_int64;
using giwa::status;

namespace {

constexpr int64 gib = int64{1} << 30;

// 8 sequences of 4096 queries and 8192 keys, 32 heads over 8, head sizes 128 and 64.
constexpr attention_problem some(int64 element_bytes) { return {8, 4096, 8192, 32, 8, 128, 64, element_bytes}; }

static_assert(giwa::bytes_of(some(2)).q == int64{8} * 4096 * 32 * 128 * 2);
static_assert(giwa::memory_advice(some(2), max_int64, max_int64).value.key_parts == 1);

attention_advice advise(const attention_problem& p, int64 free) {
  const auto r = giwa::memory_advice(p, free, 2 * gib);
  REQUIRE(r.ok());
  return r.value;
}

std::string text_of(const attention_advice& a) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const file = open_memstream(&text, &size);
  giwa::print(a, file);
  std::fclose(file);
  const std::string report(text, size);
  std::free(text);
  return report;
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the bytes of a call are those of its tensors") {
  for (const int64 element : {2, 4}) {
    const attention_bytes b = giwa::bytes_of(some(element), true);
    CHECK(b.q == 8 * 4096 * 32 * 128 * element);
    CHECK(b.k == 8 * 8192 * 8 * 128 * element);
    CHECK(b.v == 8 * 8192 * 8 * 64 * element);
    CHECK(b.o == 8 * 4096 * 32 * 64 * element);
    CHECK(b.lse == 8 * 4096 * 32 * 4);
    CHECK(b.workspace == giwa::workspace_bytes(some(element)));
    CHECK(b.all() == b.q + b.k + b.v + b.o + b.lse + b.workspace);
    CHECK(giwa::bytes_of(some(element)).lse == 0);
  }
  attention_problem packed = some(2);
  packed.seq_q = packed.seq_k = -1;
  packed.rows_q = 1000;
  packed.rows_k = 2000;
  CHECK(giwa::bytes_of(packed).q == 1000 * 32 * 128 * 2);
  CHECK(giwa::bytes_of(packed).v == 2000 * 8 * 64 * 2);
}

TEST_CASE("what would fit is what is said to fit, at every edge") {
  for (const int64 element : {2, 4}) {
    const attention_problem p = some(element);
    const int64 all = giwa::bytes_of(p).all();
    CHECK(advise(p, all).key_parts == 1);
    CHECK(advise(p, all).batch == p.batch);
    CHECK(advise(p, all - 1).key_parts != 1);
    CHECK(advise(p, all - 1).batch == p.batch - 1);

    for (const int64 batch : {0, 1, 3, 7}) {
      attention_problem part = p;
      part.batch = batch;
      const int64 enough = giwa::bytes_of(part).all();
      CHECK(advise(p, enough).batch == batch);
      if (batch > 0) CHECK(advise(p, enough - 1).batch == batch - 1);
    }
    for (const int64 parts : {2, 3, 7, 8192}) {
      const attention_bytes b = giwa::bytes_split_along_keys(p, parts);
      attention_problem one = p;
      one.seq_k = giwa::ceil_div(p.seq_k, parts);
      const attention_bytes of_one = giwa::bytes_of(one, true);
      CHECK(b.k == of_one.k);
      CHECK(b.v == of_one.v);
      CHECK(b.workspace == of_one.workspace);
      CHECK(b.q == of_one.q);
      CHECK(b.o == 2 * of_one.o);
      CHECK(b.lse == 2 * of_one.lse);
      if (b.all() < all) CHECK(advise(p, b.all()).key_parts == parts);
      CHECK(advise(p, b.all() - 1).key_parts != parts);
    }
    CHECK(advise(p, giwa::bytes_split_along_keys(p, p.seq_k).all() - 1).key_parts == 0);
    CHECK(advise(p, 0).key_parts == 0);
    CHECK(advise(p, 0).batch == 0);

    const attention_advice a = advise(p, 0);
    attention_problem less = p;
    less.batch = 4;
    CHECK(a.half_batch.all() == giwa::bytes_of(less).all());
    less = p;
    less.element_bytes = 2;
    CHECK(a.half_precision.all() == giwa::bytes_of(less).all());
    CHECK(a.half_keys.all() == giwa::bytes_split_along_keys(p, 2).all());
  }
  attention_problem odd = some(2);
  odd.batch = 5;
  CHECK(advise(odd, 0).half_batch.q == giwa::bytes_of(odd).q / 5 * 3);
}

TEST_CASE("packed sequences need what their rows together need") {
  for (const int64 element : {2, 4}) {
    // 3 sequences of 100 rows together: they cannot be equally long.
    const attention_problem p{3, -1, -1, 8, 4, 128, 64, element, 100, 100};
    const int64 all = giwa::bytes_of(p).all();
    CHECK(advise(p, all).batch == 3);
    CHECK(advise(p, all).key_parts == 1);
    CHECK(advise(p, all - 1).batch < 3);
    // A part of few rows, rounded up, is no larger than the whole.
    const attention_problem few{4, -1, -1, 8, 4, 128, 128, element, 5, 5};
    CHECK(advise(few, giwa::bytes_of(few).all()).batch == 4);

    const attention_bytes b = giwa::bytes_split_along_keys(p, 3);
    attention_problem part = p;
    part.rows_k = 34;
    const attention_bytes of_part = giwa::bytes_of(part, true);
    CHECK(b.k == 34 * 4 * 128 * element);
    CHECK(b.v == 34 * 4 * 64 * element);
    CHECK(b.q == 100 * 8 * 128 * element);
    CHECK(b.o == 2 * 100 * 8 * 64 * element);
    CHECK(b.lse == 2 * 100 * 8 * 4);
    CHECK(b.workspace == of_part.workspace);
  }
}

TEST_CASE("problems at the edge of what there is are advised on without overflow") {
  constexpr int64 longest = giwa::attention_limits::length;
  const attention_problem huge{int64{1} << 30, longest, longest, 1 << 20, 1 << 20, 512, 512, 4};
  const attention_advice a = advise(huge, 80 * gib);
  CHECK(a.whole.q == max_int64);
  CHECK(a.whole.all() == max_int64);
  CHECK(a.batch == 0);
  CHECK(a.key_parts == 0);
  CHECK(contains(text_of(a), "8.0 EiB"));

  attention_problem packed{1 << 20, -1, -1, 64, 64, 128, 128, 2, max_int64 / 2, max_int64 / 2};
  CHECK(advise(packed, 80 * gib).whole.all() == max_int64);
  packed.rows_q = packed.rows_k = 3 << 20;
  const int64 one = giwa::bytes_of({1, -1, -1, 64, 64, 128, 128, 2, 3, 3}).all();
  CHECK(advise(packed, one).batch == 1);
  CHECK(advise(packed, one).key_parts == 0);

  const attention_advice none = advise({0, 0, 0, 0, 0, 64, 64}, 80 * gib);
  CHECK(none.key_parts == 1);
  CHECK(none.whole.all() == none.whole.workspace);
}

TEST_CASE("sizes that no call takes are refused") {
  const auto refused = [](attention_problem p, int64 free) { return giwa::memory_advice(p, free, gib).state; };
  attention_problem p = some(2);
  p.head_size = 600;
  CHECK(refused(p, gib).argument == std::string("q"));
  p = some(2);
  p.kv_heads = 5;
  CHECK(refused(p, gib).argument == std::string("q"));
  CHECK(refused(some(2), -1).argument == std::string("free"));
}

TEST_CASE("advice in words says what is needed, what there is, and what would fit") {
  // 64 sequences of 16 queries over 184320 keys: k and v are 90 GiB each.
  const attention_problem p{64, 16, 184320, 32, 32, 128, 128, 2};
  const auto r = giwa::memory_advice(p, 100 * gib, 140 * gib);
  REQUIRE(r.ok());
  const std::string text = text_of(r.value);
  INFO(text);
  CHECK(contains(text,
                 "needs 180.0 GiB (q 8.0 MiB, k 90.0 GiB, v 90.0 GiB, o 8.0 MiB, workspace 8 bytes), 100.0 GiB free "
                 "of 140.0 GiB: does not fit\n"));
  CHECK(contains(text, "the batch halved: 90.0 GiB, fits; the largest batch that fits is 35\n"));
  CHECK(
      contains(text, "the keys halved, two calls that are merged: 90.0 GiB, fits; the fewest parts that fit are 2\n"));
  CHECK_FALSE(contains(text, "fp16"));  // it is in 16 bits

  attention_problem wide = p;
  wide.element_bytes = 4;
  const std::string of_fp32 = text_of(giwa::memory_advice(wide, 190 * gib, 200 * gib).value);
  INFO(of_fp32);
  CHECK(contains(of_fp32, "in fp16 or bf16: 180.0 GiB, fits\n"));
  CHECK(contains(of_fp32, "without tensor cores: 360.0 GiB, does not fit\n"));
  CHECK(contains(text_of(giwa::memory_advice(p, 200 * gib, 200 * gib).value), "200.0 GiB free of 200.0 GiB: fits\n"));

  giwa::memory_report m;  // what the pool holds and nobody uses is there as well
  m.free = 50 * gib;
  m.total = 140 * gib;
  m.pool_reserved = 60 * gib;
  m.pool_used = 10 * gib;
  CHECK(giwa::memory_advice(p, m).value.free == 100 * gib);
  CHECK(giwa::memory_advice(p, m).value.total == 140 * gib);
}

TEST_CASE("advice that is refused knows of no memory") {
  CHECK(giwa::attention_bytes{}.all() == 0);
  const giwa::result<giwa::attention_advice> refused = giwa::memory_advice(some(2), -1, gib);
  CHECK_FALSE(refused.ok());
  CHECK((refused.value.free == 0 && refused.value.total == 0));
}

TEST_CASE("one key has no halves, two have") {
  attention_problem p = some(2);
  p.seq_k = 1;
  CHECK(advise(p, gib).half_keys.all() == giwa::bytes_of(p).all());
  p.seq_k = 2;
  CHECK(advise(p, gib).half_keys.all() == giwa::bytes_split_along_keys(p, 2).all());
}
