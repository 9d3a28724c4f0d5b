// SPDX-License-Identifier: MIT
// Attention on a GPU gives the same bits again and again: in any company, on two streams, captured, with any grid.
#include <array>

#include "gpu/attention/plain_tensors.cuh"
#include "support/call_options.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::attention_forward;

namespace {

template <class T>
void fill_on(const gpu_array<T>& array, cudaStream_t s) {
  check_cuda(cudaMemsetAsync(array.data(), 0xff, array.bytes(), s));
}

template <class T, int HeadSize, class Mask>
giwa::status run(cudaStream_t s, const plain_tensors<T>& t, const Mask& mask,
                 const giwa::tensor_view<unsigned char, 1>& workspace = {}) {
  giwa::attention_options options;
  options.lse = t.lse_view();
  options.workspace = workspace;
  return attention_forward<HeadSize>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask, giwa::plain_score{},
                                     options);
}

template <class T, int HeadSize, class Mask>
int different_of(int times, const Mask& mask, int64 keys = 330) {
  const giwa::stream s = new_stream();
  const plain_tensors<T> t(2, 200, keys, 6, 2, HeadSize);
  giwa::throw_if_failed(run<T, HeadSize>(s, t, mask));
  const auto first = t.o.to_host();
  const auto first_lse = t.lse.to_host();
  int different = 0;
  for (int i = 0; i < times; ++i) {
    fill_on(t.o, s), fill_on(t.lse, s);
    giwa::throw_if_failed(run<T, HeadSize>(s, t, mask));
    different += same_bits(first, t.o.to_host()) && same_bits(first_lse, t.lse.to_host()) ? 0 : 1;
  }
  return different;
}

/// The sizes of a call of three sequences, and the masks that it has.
struct company {
  int64 queries = 150, keys = 900, heads = 6, kv_heads = 2;
  bool is_causal = false;  // to the last key; a row alone has the keys that it sees
};

// A row of `o` alone, a head alone, a sequence alone, against the whole call; the rest of the inputs becomes NaN before.
template <class T, int HeadSize>
int rows_that_differ(const company& c = {}) {
  const int64 keys = c.keys, last = c.queries - 1;
  const giwa::stream s = new_stream();
  const plain_tensors<T> t(3, c.queries, keys, c.heads, c.kv_heads, HeadSize);
  const giwa::causal causal = giwa::causal::bottom_right;
  giwa::throw_if_failed(c.is_causal ? run<T, HeadSize>(s, t, causal) : run<T, HeadSize>(s, t, giwa::full{}));
  const auto whole = t.o.to_host();
  const auto q = t.q.to_host(), k = t.k.to_host(), v = t.v.to_host();
  plain_tensors<T> alone(3, c.queries, keys, c.heads, c.kv_heads, HeadSize);
  const auto offset_of = [&](const auto& view, int64 b, int64 i, int64 h) {
    return static_cast<std::size_t>(b * view.stride(0) + i * view.stride(1) + h * view.stride(2));
  };
  int different = 0;
  for (const auto [b, h, first, rows] : std::vector<std::array<int64, 4>>{{0, 0, 0, 1},
                                                                          {1, c.heads - 1, last, 1},
                                                                          {2, 3, 63, 1},
                                                                          {1, 2, 64, 1},
                                                                          {0, 4, 130, 20},
                                                                          {2, 1, 7, 70},
                                                                          {1, 0, 0, c.queries}}) {
    alone.q.fill(0xff), alone.k.fill(0xff), alone.v.fill(0xff), alone.o.fill(0xff);
    const auto copy = [&](const gpu_array<T>& to, const std::vector<T>& from, std::size_t at) {
      check_cuda(cudaMemcpy(to.data() + at, from.data() + at, HeadSize * sizeof(T), cudaMemcpyHostToDevice));
    };
    for (int64 i = 0; i < rows; ++i) copy(alone.q, q, offset_of(t.q_view(), b, first + i, h));
    const int64 seen = c.is_causal ? keys - c.queries + first + rows : keys, kv_head = h * c.kv_heads / c.heads;
    for (int64 j = 0; j < seen; ++j) {
      copy(alone.k, k, offset_of(t.k_view(), b, j, kv_head));
      copy(alone.v, v, offset_of(t.v_view(), b, j, kv_head));
    }
    check_cuda(cudaDeviceSynchronize());
    const auto keys_of = [&](const view_4<const T>& view) { return part(view, b, 1, 0, seen, kv_head, 1); };
    const auto run_alone = [&](const auto& mask) {
      return attention_forward<HeadSize>(s, part(alone.q_view(), b, 1, first, rows, h, 1), keys_of(alone.k_view()),
                                         keys_of(alone.v_view()), part(alone.o_view(), b, 1, first, rows, h, 1), mask);
    };
    giwa::throw_if_failed(c.is_causal ? run_alone(causal) : run_alone(giwa::full{}));
    const auto o = alone.o.to_host();
    for (int64 i = 0; i < rows; ++i) {
      const std::size_t at = offset_of(t.o_view(), b, first + i, h);
      different += std::memcmp(&o[at], &whole[at], HeadSize * sizeof(T)) == 0 ? 0 : 1;
    }
  }
  return different;
}

// Rows whose largest score grows from tile to tile. Of eight rows the first is calm, the second grows slowly, and the others are
// calm or grow fast.
template <class T, int HeadSize>
class growing_scores {
 public:
  growing_scores(int64 queries_, int64 keys_, bool others_grow) : queries(queries_), keys(keys_) {
    const auto number = [](const T& x) { return giwa::convert<float>{}(x); };
    std::vector<T> new_q = t_.q.to_host(), new_k = t_.k.to_host();
    for (std::size_t i = 0; i < new_q.size(); ++i) {
      const auto of_row = static_cast<float>(i / HeadSize % 8);
      const float factor = of_row == 0 ? 0.25f : of_row == 1 ? 1.5f : others_grow ? of_row : 0.25f;
      new_q[i] = giwa::convert<T>{}(number(new_q[i]) * factor);
    }
    for (std::size_t i = 0; i < new_k.size(); ++i)
      new_k[i] = giwa::convert<T>{}(number(new_k[i]) * (0.1f + static_cast<float>(i / HeadSize) /
                                                                   static_cast<float>(std::max<int64>(300, keys / 5))));
    check_cuda(cudaMemcpy(t_.q.data(), new_q.data(), new_q.size() * sizeof(T), cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy(t_.k.data(), new_k.data(), new_k.size() * sizeof(T), cudaMemcpyHostToDevice));
    check_cuda(cudaDeviceSynchronize());
    q = doubles(new_q), k = doubles(new_k), v = doubles(t_.v.to_host());
  }
  template <class Mask>
  void run(const Mask& mask) {
    const giwa::stream s = new_stream();
    giwa::throw_if_failed(run_attention(s, mask));
    giwa::throw_if_failed(giwa::synchronize(s));
    o = t_.o.to_host(), lse = t_.lse.to_host();
  }
  /// The largest differences from attention in double: of o relative to the largest value, and of lse.
  std::array<double, 2> errors(bool causal, int64 window) const {
    std::array<double, 2> worst{0, 0};
    double largest_v = 0;
    for (const double x : v) largest_v = std::max(largest_v, std::abs(x));
    for (int64 i = 0; i < queries; ++i) {
      const int64 end = causal ? keys - queries + i + 1 : keys;
      std::vector<double> scores(static_cast<std::size_t>(end)), sum(HeadSize, 0.0);
      const int64 first = std::max<int64>(0, end - window);
      double largest = -HUGE_VAL, total = 0;
      for (int64 j = first; j < end; ++j) {
        double x = 0;
        for (int64 c = 0; c < HeadSize; ++c) x += q[at(i, c)] * k[at(j, c)];
        x /= std::sqrt(static_cast<double>(HeadSize));
        scores[static_cast<std::size_t>(j)] = x, largest = std::max(largest, x);
      }
      for (int64 j = first; j < end; ++j) {
        const double weight = std::exp(scores[static_cast<std::size_t>(j)] - largest);
        total += weight;
        for (int64 c = 0; c < HeadSize; ++c) sum[static_cast<std::size_t>(c)] += weight * v[at(j, c)];
      }
      for (int64 c = 0; c < HeadSize; ++c) {
        const auto got = static_cast<double>(giwa::convert<float>{}(o[at(i, c)]));
        worst[0] = std::max(worst[0], std::abs(got - sum[static_cast<std::size_t>(c)] / total) / largest_v);
      }
      worst[1] = std::max(worst[1],
                          std::abs(static_cast<double>(lse[static_cast<std::size_t>(i)]) - largest - std::log(total)));
    }
    return worst;
  }
  /// Of the first two of eight rows.
  int rows_that_differ_from(const growing_scores& other) const {
    int different = 0;
    for (int64 i = 0; i < queries; i += i % 8 == 0 ? 1 : 7)
      different += std::memcmp(&o[at(i, 0)], &other.o[at(i, 0)], HeadSize * sizeof(T)) == 0 &&
                           lse[static_cast<std::size_t>(i)] == other.lse[static_cast<std::size_t>(i)]
                       ? 0
                       : 1;
    return different;
  }

 private:
  static std::size_t at(int64 row, int64 column) { return static_cast<std::size_t>(row * HeadSize + column); }
  static std::vector<double> doubles(const std::vector<T>& from) {
    std::vector<double> to;
    for (const T& x : from) to.push_back(static_cast<double>(giwa::convert<float>{}(x)));
    return to;
  }
  template <class Mask>
  giwa::status run_attention(cudaStream_t s, const Mask& mask) const {
    return ::run<T, HeadSize>(s, t_, mask);
  }

  int64 queries, keys;
  plain_tensors<T> t_{1, queries, keys, 1, 1, HeadSize};
  std::vector<double> q, k, v;
  std::vector<T> o;
  std::vector<float> lse;
};

template <class T, int HeadSize>
void check_growing_scores(double bound, int64 queries = 200, int64 keys = 1500) {
  growing_scores<T, HeadSize> calm(queries, keys, false), growing(queries, keys, true);
  const giwa::causal causal = giwa::causal::bottom_right;
  const auto check = [&](const auto& mask, bool is_causal, int64 window) {
    calm.run(mask), growing.run(mask);
    CAPTURE(HeadSize, queries, keys, is_causal, window);
    CHECK(growing.rows_that_differ_from(calm) == 0);
    for (const auto* x : {&calm, &growing}) {
      const auto [of_o, of_lse] = x->errors(is_causal, window);
      CAPTURE(of_o, of_lse);
      CHECK(of_o < bound);
      CHECK(of_lse < 1e-4);
    }
  };
  check(giwa::full{}, false, keys);
  check(causal, true, keys);
  check(giwa::sliding_window{700} & causal, true, 700);
}

// Packed sequences, fp16, head size 64, causal; all lengths are read from the device.
struct packed_problem {
  static constexpr int64 total = 400, heads = 3, count = 3;
  plain_tensors<fp16> t{1, total, total, heads, 1, 64};
  gpu_array<int> offsets{static_cast<std::size_t>(count + 1), 0};

  void set(const std::vector<int>& values) const {
    check_cuda(cudaMemcpy(offsets.data(), values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice));
    check_cuda(cudaDeviceSynchronize());
  }
  template <class Mask = giwa::causal>
  giwa::status run(cudaStream_t s, const gpu_array<fp16>& o, int64 max_q, const Mask& mask = {}) const {
    const auto view = [](auto* data, int64 h) {
      return giwa::tensor_view<std::remove_pointer_t<decltype(data)>, 3>(data, {total, h, 64});
    };
    const fp16 *q = t.q.data(), *k = t.k.data(), *v = t.v.data();
    giwa::attention_options options;
    options.lse = {t.lse.data(), {1, heads, total}};
    return attention_forward<64>(
        s, view(q, heads), view(k, 1), view(v, 1), view(o.data(), heads), mask, giwa::plain_score{},
        giwa_test::with(options, giwa::sequences{offsets.data(), offsets.data(), count, max_q}));
  }
};

}  // namespace

// Where a row's largest score stays nearly the same, its tiles are computed without the maxima; other rows of its tile may need them.
TEST_CASE("a row has its bits next to rows whose largest score grows") {
  check_growing_scores<fp16, 64>(2e-3);
  check_growing_scores<fp16, 128>(2e-3);
  check_growing_scores<fp16, 256>(2e-3);
  check_growing_scores<bf16, 96>(1.6e-2);
  if (small_mode()) return;
  check_growing_scores<fp16, 128>(2e-3, 200, 8300);
  check_growing_scores<bf16, 96>(1.6e-2, 200, 4200);
  check_growing_scores<fp16, 80>(2e-3, 200, 4200);
}

// With a mask the first tile of queries is the short one.
TEST_CASE("queries that are no whole number of tiles") {
  for (const int64 queries : {1, 63, 64, 65, 127, 129, 191, 192, 193, 256, 257, 449}) {
    check_growing_scores<fp16, 64>(2e-3, queries, 650);
    check_growing_scores<fp16, 128>(2e-3, queries, 650);
  }
}

TEST_CASE("a thousand times the same bits") {
  const int times = small_mode() ? 3 : 1000;
  CHECK(different_of<fp16, 64>(times, giwa::causal::bottom_right) == 0);
  CHECK(different_of<bf16, 128>(times, giwa::full{}) == 0);
  CHECK(different_of<float, 64>(times, giwa::causal::bottom_right) == 0);
  CHECK(different_of<fp16, 128>(times, giwa::causal::bottom_right, 8300) == 0);
  CHECK(different_of<fp16, 96>(times, giwa::causal::bottom_right, 4200) == 0);
  CHECK(different_of<bf16, 80>(times, giwa::full{}, 4200) == 0);
}

TEST_CASE("ten thousand times the same bits, with a workspace or without") {
  const giwa::stream s = new_stream();
  const plain_tensors<fp16> t(3, 700, 700, 16, 4, 128);  // more items than a GPU has multiprocessors
  const gpu_array<unsigned char> workspace(8, 0xff);
  const auto mask = giwa::causal{};
  giwa::throw_if_failed(run<fp16, 128>(s, t, mask));
  const auto first = t.o.to_host();
  const auto first_lse = t.lse.to_host();
  int different = 0;
  const int times = small_mode() ? 3 : 200, calls = small_mode() ? 2 : 50;
  for (int i = 0; i < times; ++i) {
    fill_on(t.o, s), fill_on(t.lse, s);
    for (int j = 0; j < calls; ++j)
      giwa::throw_if_failed(run<fp16, 128>(s, t, mask, {workspace.data(), {j % 5 == 0 ? 0 : 8}}));
    different += same_bits(first, t.o.to_host()) && same_bits(first_lse, t.lse.to_host()) ? 0 : 1;
  }
  CHECK(different == 0);
}

TEST_CASE("a row alone has the bits that it has in company") {
  CHECK(rows_that_differ<fp16, 64>() == 0);
  CHECK(rows_that_differ<bf16, 128>() == 0);
  CHECK(rows_that_differ<float, 64>() == 0);
}

// From 4096 keys on these head sizes have a tile of 192 queries on Hopper, of which calls with little work use 128: the whole calls
// here use 192, a head alone 128. Head size 128 has another tile from 8192 keys on.
TEST_CASE("a row alone has the bits that it has in company, among many keys") {
  if (small_mode()) return;
  constexpr company full{1100, 5300, 12, 4, false}, causal{1100, 5300, 12, 4, true}, longer{1100, 9400, 12, 4, true};
  CHECK(rows_that_differ<fp16, 96>(causal) == 0);
  CHECK(rows_that_differ<bf16, 80>(causal) == 0);
  CHECK(rows_that_differ<fp16, 80>(full) == 0);
  CHECK(rows_that_differ<bf16, 128>(longer) == 0);
}

TEST_CASE("captured in a graph, whose lengths change between replays") {
  const giwa::stream s = new_stream();
  packed_problem p;
  const gpu_array<fp16> direct(p.t.o.size());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  p.set({0, 100, 250, 400});
  check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  const giwa::status state = p.run(s, p.t.o, 150);
  check_cuda(cudaStreamEndCapture(s, &graph));
  REQUIRE(state.ok());
  check_cuda(cudaGraphInstantiate(&replay, graph, 0));
  bool same = true;
  for (const std::vector<int>& offsets : std::vector<std::vector<int>>{
           {0, 100, 250, 400}, {0, 0, 400, 400}, {0, 390, 395, 400}, {0, 0, 0, 0}, {3, 70, 70, 399}, {0, 1, 2, 400}}) {
    p.set(offsets);
    p.t.o.fill(0xff), p.t.lse.fill(0xff);
    check_cuda(cudaGraphLaunch(replay, s));
    const auto replayed = p.t.o.to_host();
    const auto replayed_lse = p.t.lse.to_host();
    for (const int64 max_q : {int64{400}, int64{0}, int64{100000}}) {
      fill_on(direct, s), fill_on(p.t.lse, s);
      REQUIRE(p.run(s, direct, max_q).ok());
      same = same && same_bits(replayed, direct.to_host()) && same_bits(replayed_lse, p.t.lse.to_host());
    }
  }
  CHECK(same);
  check_cuda(cudaGraphExecDestroy(replay));
  check_cuda(cudaGraphDestroy(graph));
}

TEST_CASE("offsets that fall or point outside make no fault") {  // memcheck looks at what is read and written
  const giwa::stream s = new_stream();
  packed_problem p;
  constexpr int most = 0x7fffffff;
  for (const std::vector<int>& offsets : std::vector<std::vector<int>>{{400, 300, 200, 0},
                                                                       {0, 500, 600, 700},
                                                                       {-50, -20, 100, most},
                                                                       {most, most, most, most},
                                                                       {0, 200, 100, 400},
                                                                       {-most - 1, most, -most - 1, most}}) {
    p.set(offsets);
    CHECK(p.run(s, p.t.o, 150).ok());
    CHECK(giwa::synchronize(s).ok());
  }
}

TEST_CASE("a prefix of the least and of the largest int has the bits of no key and of all") {
  const giwa::stream s = new_stream();
  packed_problem p;
  p.set({0, 150, 300, 400});
  std::vector<fp16> o[2];
  for (const bool hostile : {false, true}) {
    const int counts[] = {hostile ? -0x7fffffff - 1 : 0, hostile ? 0x7fffffff : 150, hostile ? -0x7fffffff : -1};
    const gpu_array<int> on_gpu(std::vector<int>(counts, counts + 3));
    CHECK(p.run(s, p.t.o, 150, giwa::prefix{.counts = on_gpu.data()}).ok());
    CHECK(giwa::synchronize(s).ok());
    o[hostile] = p.t.o.to_host();
  }
  CHECK(same_bits(o[0], o[1]));
}

TEST_CASE("two streams at once") {
  const giwa::stream first = new_stream(), second = new_stream();
  plain_tensors<fp16> a(2, 200, 330, 6, 2, 64);
  plain_tensors<float> b(2, 200, 330, 6, 2, 64);
  giwa::throw_if_failed(run<fp16, 64>(first, a, giwa::causal::bottom_right));
  giwa::throw_if_failed(run<float, 64>(first, b, giwa::causal::bottom_right));
  const auto a_alone = a.o.to_host();
  const auto b_alone = b.o.to_host();
  a.o.fill(0xff), b.o.fill(0xff);
  for (int i = 0; i < 50; ++i) {
    giwa::throw_if_failed(run<fp16, 64>(first, a, giwa::causal::bottom_right));
    giwa::throw_if_failed(run<float, 64>(second, b, giwa::causal::bottom_right));
  }
  CHECK(same_bits(a_alone, a.o.to_host()));
  CHECK(same_bits(b_alone, b.o.to_host()));
}
