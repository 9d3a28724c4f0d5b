// SPDX-License-Identifier: MIT
// Masks from data on a GPU: maps of every source, attention and its gradients with them against the reference, and trees.
#include <giwa/attention_backward.cuh>
#include <giwa/block_map.cuh>
#include <giwa/cache.cuh>
#include <giwa/host.hpp>

#include <algorithm>
#include <limits>

#include "gpu/attention/block_maps.cuh"
#include "gpu/attention/plain_tensors.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::fp16;

namespace {

#if !defined(GIWA_TEST_FEW_SIZES)
/// A mask that knows tiles of kernels alone.
struct every_other_tile {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const { return c.key / 64 % 2 == 0; }
  GIWA_HOST_DEVICE giwa::tile_keep classify(const giwa::score_tile& t) const {
    if (t.first_key / 64 != t.last_key / 64) return giwa::tile_keep::some;
    return t.first_key / 64 % 2 == 0 ? giwa::tile_keep::all : giwa::tile_keep::none;
  }
};
#endif

/// The greatest distance; where one has NaN, the other must have it too.
float distance(const std::vector<fp16>& a, const std::vector<float>& b) {
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (const float x = giwa::convert<float>{}(a[i]); x == x || b[i] == b[i])
      most = std::max(most, distance_of(x, b[i]));
  return most;
}

/// Puts a NaN into a row of the first sequence and head.
void put_nan(const gpu_array<fp16>& array, int64 row, int64 heads, int64 size) {
  const fp16 nan = giwa::convert<fp16>{}(std::numeric_limits<float>::quiet_NaN());
  check_cuda(cudaMemcpy(array.data() + row * heads * size + 5, &nan, sizeof nan, cudaMemcpyHostToDevice));
  check_cuda(cudaDeviceSynchronize());
}

/// attention_forward and attention_backward with a map, against the reference with its states as a formula. Keys with NaN: only the
/// queries that see them, and what those see, have NaN.
template <int HeadSize, class Inner>
void compare(const block_problem& p, const Inner& inner, bool any_order, const std::vector<int64>& nan_keys = {}) {
  INFO(name_of(p) << ", head size " << HeadSize << (any_order ? ", any order" : ""));
  constexpr int64 batch = 2, heads = 4, kv_heads = 2;
  const int64 queries = p.queries, keys = p.keys;
  block_case c(p, 77);
  plain_tensors<fp16> t(batch, queries, keys, heads, kv_heads, HeadSize);
  gpu_array<fp16> dout(t.q.size()), dq(t.q.size()), dk(t.k.size()), dv(t.k.size());
  fill_normal(dout, 9);
  for (const int64 key : nan_keys) put_nan(key % 2 == 0 ? t.k : t.v, key, kv_heads, HeadSize);
  gpu_array<giwa::block_word> words(static_cast<std::size_t>(c.map.bytes()) / sizeof(giwa::block_word));
  giwa::throw_if_failed(make_block_map(giwa::host, c.lists(), c.map));
  check_cuda(cudaMemcpy(words.data(), c.map.words, static_cast<std::size_t>(c.map.bytes()), cudaMemcpyHostToDevice));
  check_cuda(cudaDeviceSynchronize());
  giwa::block_map there = c.map;
  there.words = words.data();
  const giwa::block_sparse mask{there, inner};
  const auto like = [&](auto* data, int64 length, int64 n) {
    return view_4<std::remove_pointer_t<decltype(data)>>(data, {batch, length, n, HeadSize});
  };
  const giwa::stream s = new_stream();
  giwa::attention_options forward{.lse = t.lse_view(), .align = giwa::alignment::bottom_right};
  giwa::throw_if_failed(giwa::attention_forward<HeadSize>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask,
                                                          giwa::plain_score{}, forward));
  giwa::attention_backward_options backward{
      .lse = t.lse_view(), .align = giwa::alignment::bottom_right, .any_order = any_order};
  const auto with = [&](const auto& call) {
    return call(t.q_view(), t.k_view(), t.v_view(), view_4<const fp16>(t.o_view()),
                like(static_cast<const fp16*>(dout.data()), queries, heads), like(dq.data(), queries, heads),
                like(dk.data(), keys, kv_heads), like(dv.data(), keys, kv_heads), mask, giwa::plain_score{}, backward);
  };
  const int64 bytes = with([](const auto&... arguments) { return giwa::workspace_bytes(arguments...); });
  gpu_array<unsigned char> workspace(static_cast<std::size_t>(bytes));
  workspace.fill(0xff);
  backward.workspace = {workspace.data(), {bytes}};
  const auto run = [&] {
    giwa::throw_if_failed(
        with([&](const auto&... arguments) { return giwa::attention_backward<HeadSize>(s, arguments...); }));
    giwa::throw_if_failed(giwa::synchronize(s));
  };
  run();

  const auto q = t.q.to_host(), k = t.k.to_host(), v = t.v.to_host(), of_o = dout.to_host();
  std::vector<float> o(q.size()), right_q(q.size()), right_k(k.size()), right_v(k.size());
  const states_of_blocks<Inner> formula{c.map, c.states(), inner};
  const auto in = [&](const std::vector<fp16>& x, int64 length, int64 n) { return like(x.data(), length, n); };
  giwa::throw_if_failed(attention_reference(
      giwa::host, in(q, queries, heads), in(k, keys, kv_heads), in(v, keys, kv_heads), like(o.data(), queries, heads),
      formula, giwa::plain_score{}, giwa::attention_options{.align = giwa::alignment::bottom_right}));
  CHECK(distance(t.o.to_host(), o) < 4e-3f);
  giwa::throw_if_failed(attention_backward_reference(
      giwa::host, in(q, queries, heads), in(k, keys, kv_heads), in(v, keys, kv_heads), in(of_o, queries, heads),
      like(right_q.data(), queries, heads), like(right_k.data(), keys, kv_heads), like(right_v.data(), keys, kv_heads),
      formula, giwa::plain_score{}, giwa::attention_backward_options{.align = giwa::alignment::bottom_right}));
  const auto first_dq = dq.to_host(), first_dk = dk.to_host();
  const auto is_nan = [](float x) { return x != x; };
  if (!nan_keys.empty()) {
    REQUIRE(std::any_of(right_k.begin(), right_k.end(), is_nan));
    REQUIRE(!std::all_of(right_q.begin(), right_q.begin() + HeadSize * heads * queries, is_nan));
  }
  CHECK(distance(first_dq, right_q) < 2e-2f);
  CHECK(distance(first_dk, right_k) < 4e-2f);
  CHECK(distance(dv.to_host(), right_v) < 4e-2f);
  for (int i = 0; !any_order && i < 20; ++i) {
    run();
    REQUIRE(same_bits(dq.to_host(), first_dq));
    REQUIRE(same_bits(dk.to_host(), first_dk));
  }
  CHECK(no_error_left());
}

/// attention_forward with another tile or element, and attention_cached with as many queries, whose consumers skip tiles between those
/// that they see, against the reference.
template <int HeadSize, class T, class Tile, class Inner>
void compare_forward(const block_problem& p, const Inner& inner, float most, bool cached = false) {
  INFO(name_of(p) << ", head size " << HeadSize << (cached ? ", cached" : ""));
  constexpr int64 batch = 1, heads = 3;
  const int64 queries = p.queries, keys = p.keys;
  block_case c(p, 78);
  plain_tensors<T> t(batch, queries, keys, heads, heads, HeadSize);
  gpu_array<giwa::block_word> words(static_cast<std::size_t>(c.map.bytes()) / sizeof(giwa::block_word));
  giwa::throw_if_failed(make_block_map(giwa::host, c.lists(), c.map));
  check_cuda(cudaMemcpy(words.data(), c.map.words, static_cast<std::size_t>(c.map.bytes()), cudaMemcpyHostToDevice));
  check_cuda(cudaDeviceSynchronize());
  giwa::block_map there = c.map;
  there.words = words.data();
  const giwa::block_sparse mask{there, inner};
  const giwa::stream s = new_stream();
  giwa::attention_options options{.lse = t.lse_view(), .align = giwa::alignment::bottom_right};
  const int64 bytes = giwa::workspace_bytes(
      giwa::attention_problem{batch, queries, keys, heads, heads, HeadSize, HeadSize, int64{sizeof(T)}});
  gpu_array<unsigned char> workspace(static_cast<std::size_t>(bytes));
  options.workspace = {workspace.data(), {bytes}};
  if constexpr (!std::is_same_v<T, float> && std::is_same_v<Tile, giwa::automatic_tile>) {
    if (cached)
      giwa::throw_if_failed(giwa::attention_cached<HeadSize>(
          s, giwa::kv_cache<const T>{.k = t.k_view(), .v = t.v_view()}, t.q_view(), t.o_view(), mask,
          giwa::plain_score{}, giwa::cached_options{.align = giwa::alignment::bottom_right}));
  }
  if (!cached)
    giwa::throw_if_failed(giwa::attention_forward<HeadSize, giwa::fp32, Tile>(
        s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask, giwa::plain_score{}, options));
  giwa::throw_if_failed(giwa::synchronize(s));
  const auto q = t.q.to_host(), k = t.k.to_host(), v = t.v.to_host(), o = t.o.to_host();
  std::vector<float> right(q.size());
  const auto in = [&](const std::vector<T>& x, int64 length) {
    return view_4<const T>(x.data(), {batch, length, heads, HeadSize});
  };
  giwa::throw_if_failed(attention_reference(giwa::host, in(q, queries), in(k, keys), in(v, keys),
                                            view_4<float>(right.data(), {batch, queries, heads, HeadSize}),
                                            states_of_blocks<Inner>{c.map, c.states(), inner}, giwa::plain_score{},
                                            giwa::attention_options{.align = giwa::alignment::bottom_right}));
  float distance = 0;
  for (std::size_t i = 0; i < right.size(); ++i)
    distance = std::max(distance, distance_of(giwa::convert<float>{}(o[i]), right[i]));
  CHECK(distance < most);
  CHECK(no_error_left());
}

#if !defined(GIWA_TEST_FEW_SIZES)
/// Gradients in fixed order of many tiles of keys, which wait for each other: the same bits in every run, and in a dq with gaps. With NaN of
/// a key, in the same elements.
void compare_runs(const block_problem& p, int64 nan_key = -1) {
  INFO(name_of(p));
  constexpr int64 size = 128;
  const int64 heads = p.heads;
  block_case c(p, 79);
  plain_tensors<fp16> t(p.batch, p.queries, p.keys, heads, heads, size);
  if (nan_key >= 0) put_nan(t.k, nan_key, heads, size);
  gpu_array<fp16> dout(t.q.size()), dq(t.q.size()), wide(t.q.size() * 2), dk(t.k.size()), dv(t.k.size());
  fill_normal(dout, 9);
  gpu_array<giwa::block_word> words(static_cast<std::size_t>(c.map.bytes()) / sizeof(giwa::block_word));
  giwa::throw_if_failed(on_gpu{}(c.lists(), c.map, words));
  giwa::block_map there = c.map;
  there.words = words.data();
  const giwa::block_sparse mask{there};
  const giwa::stream s = new_stream();
  giwa::throw_if_failed(giwa::attention_forward<size>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask,
                                                      giwa::plain_score{}, {.lse = t.lse_view()}));
  const auto like = [&](auto* data, int64 length) {
    return view_4<std::remove_pointer_t<decltype(data)>>(data, {p.batch, length, heads, size});
  };
  giwa::attention_backward_options options{.lse = t.lse_view()};
  gpu_array<unsigned char> workspace(static_cast<std::size_t>(giwa::detail::backward_workspace_bytes(
      {p.batch, p.queries, p.keys, heads, heads, size, size, int64{sizeof(fp16)}}, 0)));
  const auto run = [&](const view_4<fp16>& to) {
    for (auto* of : {&dq, &wide, &dk, &dv}) of->fill(0xff);
    workspace.fill(0xff);
    options.workspace = {workspace.data(), {static_cast<int64>(workspace.bytes())}};
    check_cuda(cudaDeviceSynchronize());
    giwa::throw_if_failed(giwa::attention_backward<size>(
        s, t.q_view(), t.k_view(), t.v_view(), view_4<const fp16>(t.o_view()),
        like(static_cast<const fp16*>(dout.data()), p.queries), to, like(dk.data(), p.keys), like(dv.data(), p.keys),
        mask, giwa::plain_score{}, options));
    giwa::throw_if_failed(giwa::synchronize(s));
  };
  const int64 row = 2 * heads * size;
  run({wide.data(), {p.batch, p.queries, heads, size}, {p.queries * row, row, size, 1}});
  const auto in_wide = wide.to_host(), right_k = dk.to_host(), right_v = dv.to_host();
  std::vector<fp16> right;
  for (std::size_t i = 0; i < in_wide.size(); ++i)
    if (static_cast<int64>(i) % row < heads * size) right.push_back(in_wide[i]);
  if (nan_key >= 0) {
    const auto is_nan = [](fp16 x) { return giwa::convert<float>{}(x) != giwa::convert<float>{}(x); };
    REQUIRE(std::any_of(right.begin(), right.end(), is_nan));
    REQUIRE(!std::all_of(right.begin(), right.end(), is_nan));
  }
  for (int i = 0; i < 10; ++i) {
    run(like(dq.data(), p.queries));
    REQUIRE(same_bits(dq.to_host(), right));
    REQUIRE(same_bits(dk.to_host(), right_k));
    REQUIRE(same_bits(dv.to_host(), right_v));
  }
  CHECK(no_error_left());
}
#endif

}  // namespace

TEST_CASE("consumers skip tiles between those that they see") {
  // Of GPUs of 8.6, 8.9 and 12.0 a block has too little shared memory for tiles of 128 x 128.
  const bool has_room = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) > 104 << 10;
  for (const float density : {0.04f, 0.2f, 0.6f}) {
    block_problem p{
        .heads = 3, .queries = 500, .keys = 2100, .block_queries = 64, .block_keys = 128, .density = density};
    if (has_room) compare_forward<128, fp16, giwa::tile_shape<128, 128>>(p, giwa::full{}, 4e-3f);
    compare_forward<128, fp16, giwa::automatic_tile>(p, giwa::full{}, 4e-3f);
    compare_forward<128, fp16, giwa::automatic_tile>(p, giwa::full{}, 4e-3f, true);
#if !defined(GIWA_TEST_FEW_SIZES)
    compare_forward<64, fp16, giwa::tile_shape<192, 64>>(p, giwa::causal::bottom_right, 4e-3f);
    compare_forward<256, giwa::bf16, giwa::automatic_tile>(p, giwa::full{}, 2e-2f);
    compare_forward<256, giwa::bf16, giwa::automatic_tile>(p, giwa::full{}, 2e-2f, true);
    compare_forward<64, float, giwa::automatic_tile>(p, giwa::full{}, 1e-5f);
    compare_forward<256, float, giwa::automatic_tile>(p, giwa::full{}, 1e-5f);
    // Not any range: the mask does not say where its last tile is.
    if (has_room) compare_forward<128, fp16, giwa::tile_shape<128, 128>>(p, every_other_tile{}, 4e-3f);
#endif
  }
}

TEST_CASE("maps of every source, made on the GPU") { CHECK(block_map_failures(on_gpu{}) == ""); }

TEST_CASE("attention and its gradients with a map, blocks of all sizes") {
  for (const bool any_order : {false, true}) {
    compare<64>({.batch = 2, .heads = 4, .queries = 300, .keys = 410, .block_queries = 16, .block_keys = 32},
                giwa::full{}, any_order);
#if !defined(GIWA_TEST_FEW_SIZES)  // where the program is only compiled
    compare<128>({.heads = 4, .queries = 700, .keys = 900, .block_queries = 128, .block_keys = 128}, giwa::full{},
                 any_order);
    compare<128>({.queries = 700, .keys = 900, .block_queries = 64, .block_keys = 64}, giwa::causal::bottom_right,
                 any_order);
    compare<64>({.queries = 700, .keys = 900, .block_queries = 128, .block_keys = 4, .by_keys = false},
                giwa::sliding_window{300, giwa::alignment::bottom_right}, any_order);
#endif
  }
}

TEST_CASE("few visible blocks, and rows and columns without any") {
  for (const float density : {0.f, 0.05f, 0.2f})
    for (const bool any_order : {false, true}) {
      block_problem p{.heads = 4,
                      .queries = 900,
                      .keys = 1300,
                      .block_queries = 64,
                      .block_keys = 64,
                      .density = density,
                      .empty_ends = true};
      compare<64>(p, giwa::full{}, any_order);
#if !defined(GIWA_TEST_FEW_SIZES)
      compare<128>(p, giwa::causal::bottom_right, any_order);
#endif
    }
}

TEST_CASE("gradients with a map, a consumer that sees nothing of a tile, and tiles of keys far apart") {
#if !defined(GIWA_TEST_FEW_SIZES)
  for (const bool any_order : {false, true}) {
    block_problem p{.heads = 4, .queries = 300, .keys = 9300, .block_queries = 64, .block_keys = 64, .density = 0.02f};
    compare<128>(p, giwa::causal::bottom_right, any_order);
    p.queries = 700, p.keys = 1100, p.density = 0.15f;
    compare<128>(p, giwa::causal::bottom_right, any_order, {130, 70, 421, 1000});
  }
#endif
}

TEST_CASE("gradients in fixed order of many tiles of keys") {
#if !defined(GIWA_TEST_FEW_SIZES)
  for (const float density : {0.06f, 0.3f, 0.8f}) {
    block_problem p{
        .heads = 8, .queries = 4096, .keys = 4000, .block_queries = 128, .block_keys = 128, .density = density};
    compare_runs(p);
    p.block_queries = p.block_keys = 64, p.queries = 4000;
    compare_runs(p, 1234);
    p.batch = 4, p.heads = 2, p.queries = 5, p.block_queries = 1;
    compare_runs(p);
  }
#endif
}

TEST_CASE("maps with wide heads") {
#if !defined(GIWA_TEST_FEW_SIZES)
  for (const float density : {0.05f, 0.4f}) {
    block_problem p{
        .heads = 3, .queries = 300, .keys = 1500, .block_queries = 64, .block_keys = 64, .density = density};
    compare_forward<512, giwa::bf16, giwa::automatic_tile>(p, giwa::full{}, 2e-2f);
    compare_forward<320, fp16, giwa::automatic_tile>(p, giwa::causal::bottom_right, 4e-3f);
    p.heads = 1;
    compare<320>(p, giwa::causal::bottom_right, false);
  }
#endif
}

TEST_CASE("decoding with a list of blocks for each kv head: a page table, and views") {
  constexpr int64 batch = 3, kv_heads = 2, group = 4, size = 128, page = 64, pages = 40, most = 9;
  constexpr int64 of_page = page * kv_heads;  // rows of a page, of all heads
  plain_tensors<fp16> cache(1, 1, pages * page, kv_heads, kv_heads, size);
  plain_tensors<fp16> t(batch, 1, 1, kv_heads * group, kv_heads, size);
  // A sequence and kv head is a sequence of the call, and row r of the view begins at row r of the pages: page n of head h is row
  // n * of_page + h.
  const giwa::philox random(5);
  std::vector<int> table(static_cast<std::size_t>(batch * kv_heads * most)), lengths;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto sequence = static_cast<int64>(i) / most;
    table[i] = static_cast<int>(random(i).word[0] % pages * of_page + sequence % kv_heads);
    if (i % most == 0) lengths.push_back(static_cast<int>(page * (1 + sequence % most) - 7 * sequence));
  }
  const gpu_array<int> there(table), lengths_there(lengths);
  const giwa::index<4> extents{(pages - 1) * of_page + kv_heads, page, 1, size},
      strides{size, kv_heads * size, size, 1};
  const auto rows = [&](const gpu_array<fp16>& x) { return view_4<const fp16>(x.data(), extents, strides); };
  const giwa::kv_cache<const fp16> lists{.k = rows(cache.k),
                                         .v = rows(cache.v),
                                         .pages = {.indices = there.data(), .stride = most, .most = most},
                                         .lengths = lengths_there.data(),
                                         .sequences = batch * kv_heads};
  const giwa::stream s = new_stream();
  const auto of_heads = [&](auto* data) {
    return view_4<std::remove_pointer_t<decltype(data)>>(data, {batch * kv_heads, 1, group, size});
  };
  giwa::throw_if_failed(
      giwa::attention_cached<size>(s, lists, of_heads(static_cast<const fp16*>(t.q.data())), of_heads(t.o.data())));
  giwa::throw_if_failed(giwa::synchronize(s));
  const auto q = t.q.to_host(), k = cache.k.to_host(), v = cache.v.to_host(), o = t.o.to_host();
  for (int64 n = 0; n < batch * kv_heads; ++n) {
    const auto keys = static_cast<int64>(lengths[static_cast<std::size_t>(n)]);
    std::vector<fp16> list_k, list_v;
    for (int64 i = 0; i < keys; ++i) {
      const int64 row = table[static_cast<std::size_t>(n * most + i / page)] + i % page * kv_heads;
      list_k.insert(list_k.end(), k.begin() + row * size, k.begin() + (row + 1) * size);
      list_v.insert(list_v.end(), v.begin() + row * size, v.begin() + (row + 1) * size);
    }
    std::vector<float> right(group * size);
    const auto in = [&](const fp16* data, int64 length, int64 heads) {
      return view_4<const fp16>(data, {1, length, heads, size});
    };
    giwa::throw_if_failed(attention_reference(
        giwa::host, in(q.data() + n * group * size, 1, group), in(list_k.data(), keys, 1), in(list_v.data(), keys, 1),
        view_4<float>(right.data(), {1, 1, group, size}), giwa::full{}, giwa::plain_score{}));
    CHECK(distance({o.begin() + n * group * size, o.begin() + (n + 1) * group * size}, right) < 4e-3f);
  }
}

TEST_CASE("a tree of drafts in attention to a cache, as on the CPU") {
  constexpr int64 batch = 3, drafts = 17, keys = 1000, heads = 8, kv_heads = 2, size = 128;
  plain_tensors<fp16> t(batch, drafts, keys, heads, kv_heads, size);
  std::vector<giwa::uint64> bits(batch * drafts);
  for (std::size_t i = 0; i < bits.size(); ++i)
    bits[i] = (i * 0x9e3779b97f4a7c15u >> 40) | giwa::uint64{1} << i % drafts;
  const gpu_array<giwa::uint64> there(bits);
  const auto q = t.q.to_host(), k = t.k.to_host(), v = t.v.to_host();
  const auto of = [](const fp16* data, int64 length, int64 n) {
    return view_4<const fp16>(data, {batch, length, n, size});
  };
  std::vector<float> right(q.size());
  giwa::throw_if_failed(giwa::attention_cached<size>(
      giwa::host, giwa::kv_cache<const fp16>{.k = of(k.data(), keys, kv_heads), .v = of(v.data(), keys, kv_heads)},
      of(q.data(), drafts, heads), view_4<float>(right.data(), {batch, drafts, heads, size}),
      giwa::tree{.bits = bits.data(), .stride = drafts}));
  const giwa::stream s = new_stream();
  giwa::throw_if_failed(giwa::attention_cached<size>(s, giwa::kv_cache<const fp16>{.k = t.k_view(), .v = t.v_view()},
                                                     t.q_view(), t.o_view(),
                                                     giwa::tree{.bits = there.data(), .stride = drafts}));
  giwa::throw_if_failed(giwa::synchronize(s));
  CHECK(distance(t.o.to_host(), right) < 4e-3f);
}

TEST_CASE("a captured map is made of what its source holds when the graph runs") {
  block_case a({.heads = 2, .queries = 100, .keys = 400, .block_queries = 16, .block_keys = 32}, 1),
      b({.heads = 2, .queries = 100, .keys = 400, .block_queries = 16, .block_keys = 32}, 2);
  const auto scores = a.score_view();
  const auto n = static_cast<std::size_t>(scores.size());
  gpu_array<float> there(n);
  gpu_array<giwa::block_word> words(static_cast<std::size_t>(a.map.bytes()) / sizeof(giwa::block_word));
  giwa::block_map map = a.map;
  map.words = words.data();
  const giwa::score_threshold source{{there.data(), scores.extents()}, 2};
  const giwa::stream s = new_stream();
  check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  giwa::throw_if_failed(make_block_map(s, source, map));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaStreamEndCapture(s, &graph));
  check_cuda(cudaGraphInstantiate(&exec, graph, 0));
  for (block_case* c : {&a, &b}) {
    check_cuda(cudaMemcpy(there.data(), c->score_view().data(), n * sizeof(float), cudaMemcpyHostToDevice));
    check_cuda(cudaDeviceSynchronize());
    check_cuda(cudaGraphLaunch(exec, s));
    giwa::throw_if_failed(giwa::synchronize(s));
    const auto back = words.to_host();
    std::copy(back.begin(), back.end(), c->map.words);
    CHECK(c->failure([&](int i, int h, int r, int k) { return c->at(i, h, r, k) == 2 ? 2 : 0; }) == "");
  }
  check_cuda(cudaGraphExecDestroy(exec));
  check_cuda(cudaGraphDestroy(graph));
}

TEST_CASE("memory of the host is refused") {
  block_case c({.queries = 100, .keys = 400, .block_queries = 16, .block_keys = 32}, 1);
  const giwa::stream s = new_stream();
  const giwa::status of_words = make_block_map(s, giwa::full{}, c.map);
  CHECK(std::string(of_words.argument) == "block_map");
  gpu_array<giwa::block_word> words(static_cast<std::size_t>(c.map.bytes()) / sizeof(giwa::block_word));
  giwa::block_map map = c.map;
  map.words = words.data();
  CHECK(std::string(make_block_map(s, c.lists(), map).argument) == "full.counts");
  int errors = 0;
  map.errors = &errors;
  CHECK(std::string(make_block_map(s, giwa::full{}, map).argument) == "errors");
}
