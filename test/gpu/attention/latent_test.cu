// SPDX-License-Identifier: MIT
// attention_cached on a GPU with head sizes 576 and 512, whose v is the first columns of k, against the reference. GIWA_TEST_DRAWS
// is how many problems are drawn, from GIWA_TEST_FIRST_DRAW on.
#include "gpu/attention/cached_bits.cuh"
#include "gpu/attention/late_copies.cuh"
#include "gpu/attention/latent_draw.cuh"

using namespace giwa_test;
using giwa::bf16;
using giwa::causal;
using giwa::fp16;

namespace {

constexpr int size = latent_size, size_v = latent_size_v;

std::string fault_of_draw(int number) {
  switch (number % 6) {
    case 0: return latent_fault_of<bf16>(number);
    case 1: return latent_fault_of<bf16>(number, causal::bottom_right);
    case 2: return latent_fault_of<bf16>(number, giwa::sliding_window{1 + number % 200, giwa::alignment::bottom_right});
    case 3: return latent_fault_of<fp16, fp16, float>(number, by_distance{}, own_score{});
    case 4: return latent_fault_of<bf16>(number, causal::bottom_right);
    default: return latent_fault_of<fp16>(number, causal::bottom_right);
  }
}

template <class T, class Mask>
std::string fault(cached_case<T>& c, const Mask& mask) {
  return cached_fault_on_gpu<size, size_v>(c, mask, giwa::plain_score{});
}

/// Lengths and pages that the kernel before the call writes late.
void check_late(const cached_case_options& options) {
  cached_case<bf16> c(options);
  cached_on_gpu<bf16, bf16, bf16> gpu(c);
  const giwa::stream s = new_stream();
  const auto run = [&] {
    giwa::throw_if_failed(cached_of<size, size_v>(s, gpu.views(), causal::bottom_right, giwa::plain_score{},
                                                  gpu.call_options(int64{8} << 20)));
  };
  gpu.clear_outputs();
  run();
  const std::vector<bf16> o = gpu.o.to_host();
  const gpu_array<int> lengths(c.options.lengths), pages(c.indices);
  for (const int before : {0, -5, 64, 65, 1500, 2147483647}) {
    const std::vector<int> other(c.options.lengths.size(), before);
    check_cuda(cudaMemcpy(gpu.lengths.data(), other.data(), gpu.lengths.bytes(), cudaMemcpyHostToDevice));
    gpu.indices.fill(0x7f);
    gpu.clear_outputs();
    check_cuda(cudaDeviceSynchronize());
    launch_late_copies(s, {{late(gpu.lengths, lengths), late(gpu.indices, pages)}});
    run();
    CHECK(same_bits(gpu.o.to_host(), o));
  }
}

/// A graph of a call, launched with other queries, keys, lengths and pages.
void check_graph(const cached_case_options& options, const std::vector<int>& other_lengths) {
  cached_case<bf16> first(options), second([&] {
    cached_case_options other = options;
    other.seed = 2;
    other.lengths = other_lengths;
    return other;
  }());
  cached_on_gpu<bf16, bf16, bf16> gpu(first), expected(second);
  const giwa::stream s = new_stream();
  const auto call = [&](const cached_on_gpu<bf16, bf16, bf16>& x) {
    giwa::throw_if_failed(cached_of<size, size_v>(s, x.views(), causal::bottom_right, giwa::plain_score{},
                                                  x.call_options(int64{8} << 20)));
  };
  check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  call(gpu);
  cudaGraph_t graph;
  check_cuda(cudaStreamEndCapture(s, &graph));
  cudaGraphExec_t launchable;
  check_cuda(cudaGraphInstantiate(&launchable, graph, 0));
  const auto replace = [](const auto& to, const auto& from) {
    REQUIRE(to.bytes() == from.bytes());
    check_cuda(cudaMemcpy(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice));
  };
  replace(gpu.q, expected.q), replace(gpu.k, expected.k);
  replace(gpu.lengths, expected.lengths), replace(gpu.indices, expected.indices);
  gpu.clear_outputs(), expected.clear_outputs();
  check_cuda(cudaDeviceSynchronize());
  check_cuda(cudaGraphLaunch(launchable, s));
  call(expected);
  CHECK(same_bits(gpu.o.to_host(), expected.o.to_host()));
  CHECK(same_bits(gpu.lse.to_host(), expected.lse.to_host()));
  check_cuda(cudaGraphExecDestroy(launchable));
  check_cuda(cudaGraphDestroy(graph));
}

}  // namespace

TEST_CASE("drawn problems of latent rows") {
  const int first = number_of("GIWA_TEST_FIRST_DRAW", 0), count = number_of("GIWA_TEST_DRAWS", small_mode() ? 12 : 48);
  int faults = 0;
  for (int i = first; i < first + count && faults < 5; ++i) {
    const std::string fault = fault_of_draw(i);
    CHECK(fault == "");
    faults += fault.empty() ? 0 : 1;
  }
}

TEST_CASE("NaN and infinity in latent rows that some queries see") {
  for (const float strange : {NAN, HUGE_VALF, -HUGE_VALF})
    for (const int column : {0, 511, 512, 575})  // of k alone from 512 on
      for (const int64 key : {63, 193, 199}) {   // of the sequence with 8 queries
        const int64 page = key == 63 ? 0 : 24, rows = page == 0 ? 600 : page;
        cached_case_options options = mixed_case(page, true);
        options.lengths[0] = options.lengths[4] = 200;
        cached_case<bf16> c(options);
        c.k.view()(c.element[4][static_cast<std::size_t>(key / rows)], key % rows, 0, column) =
            giwa::convert<bf16>{}(strange);
        c.share_values();
        CHECK(fault(c, causal::bottom_right) == "");
        if (key == 199) CHECK(fault(c, by_distance{}) == "");
        if (small_mode()) return;
      }
}

TEST_CASE("latent rows with infinite values whose weights are 0 or not") {
  cached_case_options options = mixed_case(16, true);
  options.spread = 4;
  cached_case<bf16> c(options);
  for (int64 key = 320; key < 384; ++key)
    c.k.view()(c.element[4][static_cast<std::size_t>(key / 16)], key % 16, key % 2, key * 8 % size_v) =
        giwa::convert<bf16>{}(key % 3 == 0 ? -HUGE_VALF : HUGE_VALF);
  c.share_values();
  CHECK(fault(c, causal::bottom_right) == "");
}

// So the largest score of a row, which is otherwise that of a first tile, rises often, in some rows of a warp and not in others.
TEST_CASE("latent rows whose scores grow from page to page") {
  for (const int64 page : {64, 16})
    for (const float growth : {1.5f, 40.f}) {
      cached_case<bf16> c(one_head_case({1500, 700, 64}, 70, 1, page));
      for (const auto& elements : c.element)
        for (std::size_t i = 0; i < elements.size(); ++i)
          for (int64 row = 0; row < page && elements[i] >= 0; ++row)
            for (int64 column = 0; column < size; ++column) {
              bf16& x = c.k.view()(elements[i], row, 0, column);
              x = giwa::convert<bf16>{}(giwa::convert<float>{}(x) * (1 + growth * static_cast<float>(i) / 10));
            }
      c.share_values();
      CAPTURE(page, growth);
      CHECK(fault(c, causal::bottom_right) == "");
      CHECK(fault(c, by_distance{}) == "");
    }
}

TEST_CASE("latent rows have the same bits alone, with any workspace, and in slices of heads") {
  for (const int64 page : {0, 7, 64})
    for (const bool packed : {false, true}) {
      cached_case_options few = mixed_case(page, packed);
      if (packed) few.queries = {1, 3, 0, 2, 3, 1};
      check_bits<bf16, bf16, size, size_v>(few);
      check_bits<bf16, bf16, size, size_v>(mixed_case(page, packed, 40), false);
      if (packed) check_bits<bf16, bf16, size, size_v>(mixed_case(page, packed), false);  // few and many rows
      if (small_mode() && packed) return;
    }
}

TEST_CASE("latent rows in tiles of one size have the same bits whatever the number of heads and queries") {
  for (const giwa::latent_tile tile : {giwa::latent_tile::rows_64, giwa::latent_tile::rows_16})
    for (const bool packed : {false, true}) {
      cached_case_options c = mixed_case(16, packed, 40);
      c.latent_tile = tile;
      check_bits<bf16, bf16, size, size_v>(c);
      if (small_mode()) return;
    }
}

TEST_CASE("latent rows have the same bits in pages and layouts of every kind") {
  std::vector<bf16> o;
  for (const int64 page : {0, 1, 16, 24, 64, 128, 1000})
    for (const case_layout layout : {case_layout::contiguous, case_layout::heads_first, case_layout::padded})
      for (const int offset : {0, 1}) {
        // Packed queries with few and with many rows.
        cached_case_options c = mixed_case(page, true);
        c.layout.fill(layout);
        c.offset = offset;
        bits<bf16, bf16, size, size_v> x(c);  // the numbers of the same seed
        const auto next = x.on_host.o.template elements<bf16>();
        CAPTURE(c.text());
        CHECK((o.empty() || same_bits(next, o)));
        o = next;
        if (small_mode() && offset == 0) break;
      }
}

TEST_CASE("rows past the end of a sequence of latent rows, in its last page and in shared memory, change no bit") {
  for (const int64 page : {0, 16, 64})
    for (const int group : {5, 40}) {
      cached_case_options c = mixed_case(page, false, group);
      c.queries.assign(c.queries.size(), 1);
      for (int& n : c.lengths) n -= n > 64 ? 1 : 0;
      bits<bf16, bf16, size, size_v> x(c);
      check_past_the_end(x);
      if (small_mode()) return;
    }
}

TEST_CASE("one long sequence of latent rows, of which every multiprocessor has a split") {
  for (const int length : {8192, 8300, 8301, 8302}) {
    cached_case_options c = mixed_case(64, false);
    c.heads = length > 8300 ? 100 : 4;  // two tiles of 64 rows
    if (length == 8302) c.division = giwa::division::by_batch;
    c.kv_heads = 1;
    c.queries = {1};
    c.keys = 8400;
    c.most = giwa::ceil_div(c.keys, int64{64});
    c.lengths = {length};
    cached_case<bf16> on_host(c);
    CHECK(fault(on_host, giwa::full{}) == "");
    if (small_mode()) return;
  }
}

TEST_CASE("few sequences of latent rows have the same bits in splits of any length") {
  check_few_sequences<bf16, bf16>();
  for (const int length : {9000, 4100})
    for (const bool sinks : {false, true}) {
      cached_case_options options = one_head_case({length, 333}, 4, 2, 64);
      options.sinks = sinks;
      cached_case<bf16> c(options);
      CHECK(fault(c, giwa::full{}) == "");
      if (small_mode()) return;
    }
}

TEST_CASE("parts of the keys of few sequences of latent rows in turn, whose priors are merged with many partials") {
  for (const std::vector<int64>& cuts : std::vector<std::vector<int64>>{{1300}, {64, 2900}})
    for (const bool in_place : {false, true}) {
      cached_case_options options = one_head_case({3000, 3000}, 3, 2, 0);
      options.keys = 3000;
      options.sinks = true;
      cached_case<bf16> c(options);
      const cached_on_gpu<bf16, bf16, bf16> gpu(c), other(c);
      const auto& second = in_place ? gpu : other;
      const giwa::stream s = new_stream();
      const auto run = [&](const auto& views, const giwa::cached_options& with) {
        return cached_of<size, size_v>(s, views, giwa::full{}, giwa::plain_score{}, with);
      };
      giwa::throw_if_failed(run_in_parts(gpu.views(), gpu.call_options(int64{4} << 20), second.views().o,
                                         second.call_options().lse, cuts, run));
      check_cuda(cudaStreamSynchronize(s));
      gpu.read_back();
      CHECK(judge<bf16>(c, answers_of<bf16>(c, giwa::full{}, giwa::plain_score{})).failure == "");
      if (small_mode()) return;
    }
}

TEST_CASE("lengths and pages of latent rows that the kernel before the call writes late") {
  for (const int group : {5, 40}) check_late(mixed_case(16, false, group));
  check_late(one_head_case({600, 130, 5, 4000}, 8, 2, 16));
  check_late(one_head_case({600, 130, 5, 4500}, 20, 2, 16));  // many rows
}

TEST_CASE("a graph of a call with latent rows reads the lengths and pages of its launch") {
  check_graph(mixed_case(16, false), {3, 600, 333, 64, 0, 65});
  check_graph(mixed_case(16, false, 40), {3, 4500, 333, 64, 0, 2050});
  check_graph(one_head_case({4500, 700}, 16, 1, 16), {333, 4500});
  check_graph(one_head_case({4500, 700}, 40, 1, 16), {333, 4500});
}
