// SPDX-License-Identifier: MIT
// attention_forward on the CPU in fp32 against the double reference: lengths, layouts, heads, masks, scores, packed sequences.
#include "host/attention/check.hpp"

namespace {

using namespace giwa_test;
using giwa::causal;
using giwa::keys_ahead;
using giwa::keys_back;

constexpr int64 lengths[] = {1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257};

}  // namespace

TEST_CASE("all pairs of lengths around the tile sizes") {
  faults f;
  for (const int64 q : lengths)
    for (const int64 k : lengths) {
      case_options c;
      c.seed = static_cast<uint64>(1000 * q + k);
      c.seq_q = q;
      c.seq_k = k;
      c.heads = 1 + (q + k) % 2;
      f.add(fault_of<float, 33>(c));
      f.add(fault_of<float, 33>(c, q % 2 == 0 ? causal::top_left : causal::bottom_right));
    }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("several tiles of queries, and enough work for threads") {
  faults f;
  case_options c;
  c.heads = 4;
  c.kv_heads = 2;
  c.seq_q = 800;
  c.seq_k = 333;
  f.add(fault_of<float, 8>(c));
  f.add(fault_of<float, 8>(c, causal::bottom_right));
  f.add(fault_of<float, 8>(c, keys_back{40, giwa::alignment::bottom_right} & causal{}));
  CHECK_NO_FAULTS(f);
}

TEST_CASE("every layout of every tensor, at every offset") {
  faults f;
  constexpr int kinds = static_cast<int>(case_layout::count);
  for (int i = 0; i < 4 * kinds; ++i) {
    case_options c;
    c.seed = static_cast<uint64>(i);
    c.batch = 1 + i % 3;
    c.heads = 3;
    c.kv_heads = 1 + 2 * (i % 2);
    c.seq_q = i % 5 == 0 ? 1 : 37;
    c.seq_k = i % 7 == 0 ? 1 : 70;
    c.layout[static_cast<std::size_t>(i / kinds)] = static_cast<case_layout>(i % kinds);
    c.layout[static_cast<std::size_t>((i / kinds + 1) % 4)] = static_cast<case_layout>((i + 2) % kinds);
    c.offset = i % 8;
    f.add(fault_of<float, 40>(c));
    f.add(fault_of<float, 1>(c));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("sinks may have any stride") {
  case_options o;
  o.heads = 4, o.seq_q = 7, o.seq_k = 9, o.head_size = o.head_size_v = 20, o.sinks = true;
  for (const int64 stride : {0, 1, 3, -2}) {
    attention_case<float> c(o);
    std::vector<float> sinks(16, NAN);
    const tensor_view<float, 1> view(sinks.data() + (stride < 0 ? 8 : 0), {4}, {stride});
    for (int64 h = 0; h < 4; ++h) view(h) = c.sinks.view()(stride == 0 ? 0 : h);
    for (int64 h = 0; h < 4; ++h) c.sinks.view()(h) = view(h);
    const attention_answers expected = answers_of(c, giwa::full{}, giwa::plain_score{});  // the reference, stride 1
    auto options = c.call_options();
    options.sinks = view;
    REQUIRE(forward_of<20, 20>(giwa::host, c.views(), giwa::full{}, giwa::plain_score{}, options).ok());
    CHECK(judge(c, expected).failure == "");
  }
}

TEST_CASE("any ratio of heads") {
  faults f;
  for (const int64 ratio : {1, 3, 4, 5, 7, 8, 12, 16})
    for (const int64 kv_heads : {1, 2, 3})
      for (const int64 queries : {1, 9}) {
        case_options c;
        c.seed = static_cast<uint64>(ratio);
        c.batch = 2;
        c.heads = ratio * kv_heads;
        c.kv_heads = kv_heads;
        c.seq_q = queries;  // with one query, the lse of every head must have its own place
        c.seq_k = 20;
        c.sinks = ratio % 2 == 0;
        f.add(fault_of<float, 8>(c));
      }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("windows of no, one, and more keys than there are, with unequal lengths") {
  faults f;
  for (const auto& [q, k] : {std::pair{70, 70}, {130, 50}, {50, 130}, {1, 200}, {200, 1}})
    for (const giwa::alignment align :
         {giwa::alignment(giwa::alignment::top_left), giwa::alignment(giwa::alignment::bottom_right),
          giwa::alignment::offset(17), giwa::alignment::offset(-60), giwa::alignment::offset(k + 5),
          giwa::alignment::offset(giwa::attention_limits::length - q)})
      for (const int n : {0, 1, 20, 1000, INT_MAX}) {
        case_options c;
        c.seq_q = q;
        c.seq_k = k;
        c.align = align;
        f.add(fault_of<float, 8>(c, giwa::sliding_window{n}));
        f.add(fault_of<float, 8>(c, keys_back{n} & keys_ahead{0}));
        f.add(fault_of<float, 8>(c, keys_back{n} & keys_ahead{n}));
        f.add(fault_of<float, 8>(c, !keys_back{n}));
      }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("prefixes, segments and combinations") {
  std::vector<int> ids(2 * 150), mixed(2 * 150);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int>(i % 150 / 37);
    mixed[i] = static_cast<int>(i * 7 % 5);
  }
  const int counts[2] = {0, 90};
  case_options c;
  c.batch = 2;
  c.seq_q = c.seq_k = 150;
  faults f;
  f.add(fault_of<float, 8>(c, giwa::segment_ids{ids.data(), ids.data(), 150, 150, true}));
  f.add(fault_of<float, 8>(c, giwa::segment_ids{ids.data(), ids.data(), 150, 150, true} & causal{}));
  f.add(fault_of<float, 8>(c, giwa::segment_ids{mixed.data(), mixed.data(), 150, 150}));
  f.add(fault_of<float, 8>(c, giwa::prefix{0, counts} | causal{}));
  f.add(fault_of<float, 8>(c, giwa::prefix{0, counts}));
  f.add(fault_of<float, 8>(c, !(giwa::prefix{100} | causal{})));
  CHECK_NO_FAULTS(f);
}

TEST_CASE("score modifiers come after the scale and before the mask") {
  std::vector<float> numbers(2 * 4 * 50 * 90), slopes(8);
  const giwa::philox random(5);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(normal_at(random, i));
  for (std::size_t i = 0; i < slopes.size(); ++i) slopes[i] = 0.01f * static_cast<float>(i + 1);
  case_options c;
  c.batch = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.seq_q = 50;
  c.seq_k = 90;
  c.align = giwa::alignment::bottom_right;
  c.scale = 0.7;
  using view = tensor_view<const float, 4>;
  const giwa::bias whole{view(numbers.data(), {2, 4, 50, 90})}, row{view(numbers.data(), {1, 1, 1, 90})},
      column{view(numbers.data(), {1, 4, 50, 1})};
  faults f;
  f.add(fault_of<float, 8>(c, causal{}, giwa::softcap{2}));
  f.add(fault_of<float, 8>(c, causal{}, giwa::alibi{slopes.data(), 4}));
  f.add(fault_of<float, 8>(c, giwa::full{}, whole));
  f.add(fault_of<float, 8>(c, causal{}, row));
  f.add(fault_of<float, 8>(c, giwa::sliding_window{30}, column));
  f.add(fault_of<float, 8>(c, giwa::full{}, giwa::then(giwa::softcap{1.5f}, whole)));
  f.add(fault_of<float, 8>(c, giwa::full{}, giwa::then(whole, giwa::softcap{1.5f})));
  CHECK_NO_FAULTS(f);
}

TEST_CASE("packed sequences, some of them empty") {
  faults f;
  const std::vector<int64> few{0, 1, 64, 0, 130, 7}, other{3, 0, 65, 0, 100, 64};
  for (int i = 0; i < 8; ++i) {
    case_options c;
    c.seed = static_cast<uint64>(i);
    c.q_lengths = i % 2 == 0 ? few : other;
    c.k_lengths = i / 2 % 2 == 0 ? few : other;
    c.heads = 4;
    c.kv_heads = i % 3 == 0 ? 4 : 2;
    c.sinks = i % 2 == 1;
    c.layout[0] = c.layout[3] = static_cast<case_layout>(i % 5);
    for (const giwa::alignment align :
         {giwa::alignment(i < 4 ? giwa::alignment::bottom_right : giwa::alignment::top_left),
          giwa::alignment::offset(11 * i - 40)}) {
      c.align = align;
      f.add(fault_of<float, 8>(c));
      f.add(fault_of<float, 8>(c, causal{}));
      f.add(fault_of<float, 8>(c, giwa::prefix{5} | giwa::sliding_window{9}));
    }
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("lengths apart from offsets, and keys by index") {
  faults f;
  for (int i = 0; i < 8; ++i) {
    case_options c;
    c.seed = static_cast<uint64>(i);
    c.heads = 4;
    c.kv_heads = 2;
    c.align = i < 4 ? giwa::alignment(giwa::alignment::bottom_right) : giwa::alignment::offset(20);
    if (i % 2 == 0) {
      c.q_lengths = {80, 3, 64, 9}, c.k_lengths = {140, 40, 10, 66};
    } else {
      c.batch = 4, c.seq_q = 200, c.seq_k = 140;
      c.layout[0] = c.layout[1] = static_cast<case_layout>(i % 5);
    }
    if (i % 4 < 3) c.q_used = {70, -5, 64, 1000}, c.k_used = {131, 7, 0, 200};
    if (i % 4 != 0) c.k_index = {3, 4, -1, 1}, c.k_batch = 4;  // 4 and -1 are none
    f.add(fault_of<float, 8>(c));
    f.add(fault_of<float, 8>(c, causal{}));
    f.add(fault_of<float, 8>(c, giwa::prefix{5} | giwa::sliding_window{90}));
  }
  CHECK_NO_FAULTS(f);
}

TEST_CASE("lengths and indices are those of the batch, by hand") {
  // Queries of 0 average the values 1 to 4 and 10 to 13.
  const std::vector<float> q(6, 0.0f), k(8, 1.0f), v{1, 2, 3, 4, 10, 11, 12, 13};
  const tensor_view<const float, 4> query(q.data(), {3, 2, 1, 1}), key(k.data(), {2, 4, 1, 1}),
      value(v.data(), {2, 4, 1, 1});
  const int lengths[3] = {2, 4, 1}, index[3] = {1, 0, 1}, rows[3] = {2, 1, 0};
  const auto attend = [&](const giwa::sequences& s, auto&& run) {
    std::vector<float> o(6, -1.0f);
    REQUIRE(run(s, tensor_view<float, 4>(o.data(), {3, 2, 1, 1})).ok());
    return o;
  };
  const auto forward = [&](const giwa::sequences& s, const tensor_view<float, 4>& o) {
    return giwa::attention_forward<1>(giwa::host, query, key, value, o, {.sequences = s});
  };
  const auto reference = [&](const giwa::sequences& s, const tensor_view<float, 4>& o) {
    return giwa::attention_reference(giwa::host, query, key, value, o, {.sequences = s});
  };
  using floats = std::vector<float>;
  const giwa::sequences all{.q_lengths = rows, .k_lengths = lengths, .k_batch_index = index};
  CHECK(attend(all, forward) == floats{10.5f, 10.5f, 2.5f, -1, -1, -1});
  CHECK(attend(all, reference) == floats{10.5f, 10.5f, 2.5f, -1, -1, -1});
  CHECK(attend({.k_batch_index = index}, forward) == floats{11.5f, 11.5f, 2.5f, 2.5f, 11.5f, 11.5f});
  const giwa::sequences counted{.count = 3, .k_lengths = lengths, .k_batch_index = index};
  CHECK(attend(counted, forward) == floats{10.5f, 10.5f, 2.5f, 2.5f, 10, 10});
}

TEST_CASE("packed offsets that decrease or exceed the tensor do not reach other sequences") {
  case_options c;
  c.q_lengths = {10, 20, 30};
  c.k_lengths = {30, 20, 10};
  c.head_size = c.head_size_v = 8;
  attention_case<float> a(c);
  a.q_offsets = {0, 40, 20, 1000};
  a.k_offsets = {-5, 20, 70, 30};
  CHECK(run<8>(a).empty());
  CHECK(a.o.written_outside() == 0);
  CHECK(a.lse.written_outside() == 0);
}
