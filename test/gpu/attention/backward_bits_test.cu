// SPDX-License-Identifier: MIT
// attention_backward in fixed order gives the same bits again and again: from a graph, with a poisoned workspace, on
// any number of multiprocessors, beside other kernels, alone or in a batch. GIWA_TEST_REPEATS is the number of calls
// for each case, of which GIWA_TEST_FIRST_DRAW chooses the inputs.
#include <giwa/attention_backward.cuh>

#include <cstdio>

#include "gpu/attention/block_maps.cuh"
#include "gpu/attention/plain_tensors.cuh"
#include "support/another_gpu.hpp"
#include "support/call_options.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

namespace {

/// Counts 4-byte words that differ.
struct count_different {
  const unsigned *a, *b;
  unsigned* count;
  GIWA_DEVICE void operator()(int64 i) const {
    if (a[i] != b[i]) atomicAdd(count, 1u);
  }
};

/// Keeps a multiprocessor, whose shared memory it takes, from a block of attention for a while.
template <class = void>
__global__ void occupy(int64 nanoseconds) {
  spin(nanoseconds + nanoseconds * (blockIdx.x % 7));
}

/// A kernel graph that is captured from calls on a stream.
class graph_of {
 public:
  template <class Calls>
  graph_of(cudaStream_t s, const Calls& calls) {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    calls();
    check_cuda(cudaStreamEndCapture(s, &graph));
    check_cuda(cudaGraphInstantiate(&ready_, graph, 0));
    check_cuda(cudaGraphDestroy(graph));
  }
  graph_of(graph_of&& other) noexcept : ready_(std::exchange(other.ready_, nullptr)) {}
  graph_of& operator=(graph_of&&) = delete;
  ~graph_of() {
    if (ready_ == nullptr) return;
    cudaDeviceSynchronize();  // a graph of dependent launches must not be destroyed while it runs (docs/conventions.md)
    cudaGraphExecDestroy(ready_);
  }
  void launch(cudaStream_t s) const { check_cuda(cudaGraphLaunch(ready_, s)); }

 private:
  cudaGraphExec_t ready_ = nullptr;
};

/// Sequences of some lengths, which lie one after the other; gradients and workspace on the GPU.
template <class T, int HeadSize>
struct sequences_case {
  static constexpr int64 heads = 6, kv_heads = 2;
  std::vector<int> q_begin{0}, k_begin{0};
  bool is_packed, split_heads;
  plain_tensors<T> t;
  gpu_array<T> dout, dq, dk, dv;
  gpu_array<int> q_offsets, k_offsets;
  gpu_array<unsigned char> workspace;

  sequences_case(const std::vector<int>& queries, const std::vector<int>& keys, bool packed, uint64 seed, bool split)
      : q_begin(starts(queries)),
        k_begin(starts(keys)),
        is_packed(packed),
        split_heads(split),
        t(1, q_begin.back(), k_begin.back(), heads, kv_heads, HeadSize),
        dout(t.q.size()),
        dq(t.q.size()),
        dk(t.k.size()),
        dv(t.v.size()),
        q_offsets(q_begin),
        k_offsets(k_begin),
        workspace(static_cast<std::size_t>(giwa::detail::backward_workspace_bytes(sizes(count()), 0, false, split))) {
    fill_normal(t.q, seed), fill_normal(t.k, seed + 1), fill_normal(t.v, seed + 2), fill_normal(dout, seed + 3);
  }
  static std::vector<int> starts(const std::vector<int>& lengths) {
    std::vector<int> at{0};
    for (const int n : lengths) at.push_back(at.back() + n);
    return at;
  }
  int64 count() const { return static_cast<int64>(q_begin.size()) - 1; }
  giwa::attention_problem sizes(int64 sequences) const {
    giwa::attention_problem p{
        sequences, -1, -1, heads, kv_heads, HeadSize, HeadSize, int64{sizeof(T)}, q_begin.back(), k_begin.back()};
    if (!is_packed) p.seq_q = q_begin[1], p.seq_k = k_begin[1];
    return p;
  }

  /// Gradients of the sequences from `first` on, or their o and lse, into their places.
  template <class Mask>
  void call(cudaStream_t s, int64 first, int64 n, const Mask& mask, bool forward) const {
    const int64 bytes = giwa::detail::backward_workspace_bytes(sizes(n), 0, false, split_heads);
    check_cuda(cudaMemsetAsync(workspace.data(), 0xff, workspace.bytes(), s));
    const giwa::attention_backward_options options{.workspace = {workspace.data(), {bytes}},
                                                   .split_heads = split_heads};
    if (is_packed) {
      const auto rows = [](auto* data, int64 count_, int64 h) {
        return giwa::tensor_view<std::remove_pointer_t<decltype(data)>, 3>(data, {count_, h, HeadSize});
      };
      const auto of_q = [&](auto* data) { return rows(data, q_begin.back(), heads); };
      const auto of_k = [&](auto* data) { return rows(data, k_begin.back(), kv_heads); };
      const giwa::tensor_view<float, 3> lse(t.lse.data(), {1, heads, q_begin.back()});
      const giwa::sequences at{q_offsets.data() + first, k_offsets.data() + first, n, q_begin.back()};
      const T *q = t.q.data(), *k = t.k.data(), *v = t.v.data(), *o = t.o.data(), *d = dout.data();
      if (forward)
        giwa::throw_if_failed(giwa::attention_forward<HeadSize>(s, of_q(q), of_k(k), of_k(v), of_q(t.o.data()), mask,
                                                                giwa::plain_score{}, {.lse = lse, .sequences = at}));
      else
        giwa::throw_if_failed(giwa::attention_backward<HeadSize>(
            s, of_q(q), of_k(k), of_k(v), of_q(o), of_q(d), of_q(dq.data()), of_k(dk.data()), of_k(dv.data()), mask,
            giwa::plain_score{}, giwa_test::with(giwa_test::with_lse(options, lse), at)));
      return;
    }
    const int64 queries = q_begin[1], keys = k_begin[1];
    const auto rows = [&](auto* data, int64 length, int64 h) {
      return view_4<std::remove_pointer_t<decltype(data)>>(data + first * length * h * HeadSize,
                                                           {n, length, h, HeadSize});
    };
    const auto of_q = [&](auto* data) { return rows(data, queries, heads); };
    const auto of_k = [&](auto* data) { return rows(data, keys, kv_heads); };
    const view_3<float> lse(t.lse.data() + first * heads * queries, {n, heads, queries});
    const T *q = t.q.data(), *k = t.k.data(), *v = t.v.data(), *o = t.o.data(), *d = dout.data();
    if (forward)
      giwa::throw_if_failed(giwa::attention_forward<HeadSize>(s, of_q(q), of_k(k), of_k(v), of_q(t.o.data()), mask,
                                                              giwa::plain_score{}, {.lse = lse}));
    else
      giwa::throw_if_failed(giwa::attention_backward<HeadSize>(s, of_q(q), of_k(k), of_k(v), of_q(o), of_q(d),
                                                               of_q(dq.data()), of_k(dk.data()), of_k(dv.data()), mask,
                                                               giwa::plain_score{}, giwa_test::with_lse(options, lse)));
  }
};

/// How many calls give gradients with other bits than the first one; -1 if that one wrote nothing, -2 if calls do not find the
/// multiprocessors that the test gives them.
template <class T, int HeadSize, class Mask>
int64 different_of(const std::vector<int>& queries, const std::vector<int>& keys, bool packed, const Mask& mask,
                   bool split_heads = false) {
  const giwa::stream s = new_stream(), other = new_stream();
  const int seed = number_of("GIWA_TEST_FIRST_DRAW", 0),
            repeats = number_of("GIWA_TEST_REPEATS", small_mode() ? 10 : 200);  // 10: each graph once
  const sequences_case<T, HeadSize> c(queries, keys, packed, static_cast<uint64>(seed) * 4 + 1, split_heads);
  const auto clear = [&] {
    for (const gpu_array<T>* x : {&c.dq, &c.dk, &c.dv}) check_cuda(cudaMemsetAsync(x->data(), 0xff, x->bytes(), s));
  };
  processors_of_test = 0;
  c.call(s, 0, c.count(), mask, true);
  clear();
  c.call(s, 0, c.count(), mask, false);
  const gpu_array<T> dq(c.dq.to_host()), dk(c.dk.to_host()), dv(c.dv.to_host());
  const gpu_array<unsigned> different(static_cast<std::size_t>(repeats), 0);
  const gpu_array<unsigned> untouched(1, 0);
  const auto compare = [&](const gpu_array<T>& a, const gpu_array<T>& b, unsigned* to) {
    const auto words = [](const gpu_array<T>& x) { return reinterpret_cast<const unsigned*>(x.data()); };
    giwa::throw_if_failed(giwa::for_all(s, static_cast<int64>(a.bytes() / 4), count_different{words(a), words(b), to}));
  };
  const gpu_array<T> unwritten(c.dq.size());
  compare(dq, unwritten, untouched.data());
  if (untouched.to_host()[0] < c.dq.bytes() / 8) return -1;

  // Odd ones: a call for each sequence. Blocks of one multiprocessor take all work tiles one after the other.
  std::vector<graph_of> graphs;
  for (const int processors : {0, 131, 17, 4, 1})
    for (const bool alone : {false, true}) {
      if (alone && split_heads) continue;  // the bits depend on the batch
      processors_of_test = processors;
      if (processors > 0 && device_attribute(cudaDevAttrMultiProcessorCount) != processors) return -2;
      graphs.emplace_back(s, [&] {
        clear();
        if (!alone) return c.call(s, 0, c.count(), mask, false);
        for (int64 i = c.count(); i-- > 0;) c.call(s, i, 1, mask, false);
      });
    }
  processors_of_test = 0;
  const int64 most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int shared = static_cast<int>(most < 200 << 10 ? most : 200 << 10);
  check_cuda(cudaFuncSetAttribute(occupy<>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  for (int i = 0; i < repeats; ++i) {
    if (i % 3 == 1)
      occupy<><<<1 + i * 29 % 131, 32, static_cast<std::size_t>(shared), other.get()>>>(5000 + i % 11 * 3000);
    graphs[static_cast<std::size_t>(i) % graphs.size()].launch(s);
    compare(c.dq, dq, different.data() + i), compare(c.dk, dk, different.data() + i);
    compare(c.dv, dv, different.data() + i);
  }
  check_cuda(cudaGetLastError());
  int64 found = 0;
  for (const unsigned words : different.to_host()) found += words == 0 ? 0 : 1;
  std::printf("%s head size %d %s %s%s: %d calls, %lld different\n", sizeof(T) == 4 ? "fp32" : "16 bits", HeadSize,
              packed ? "packed" : "dense", std::is_same_v<Mask, giwa::full> ? "full" : "masked",
              split_heads ? ", heads split" : "", repeats, static_cast<long long>(found));
  return found;
}

/// 70 sequences, most of them without rows or short, and some long ones at the end, in the middle and nowhere.
std::vector<int> many_lengths(int longest) {
  std::vector<int> lengths;
  for (int i = 0; i < 70; ++i)
    lengths.push_back(i % 31 == 20 ? longest : i % 3 == 0 ? i * 5 % 160 : i % 5 == 0 ? 3 : 0);
  lengths.push_back(longest / 2 + 7);
  return lengths;
}

/// Dense and packed, with more keys than a call by one kernel needs, tiles that end early and a sequence of one row.
template <class T, int HeadSize, class Mask>
void test_bits(const Mask& mask) {
  const int queries = small_mode() ? 150 : 300, keys = small_mode() ? 200 : 1100;
  CHECK((different_of<T, HeadSize>({queries, queries}, {keys, keys}, false, mask)) == 0);
  CHECK((different_of<T, HeadSize>({130, 1, 383, 64, 200}, {257, 40, 383, 1, 600}, true, mask)) == 0);
  CHECK((different_of<T, HeadSize>(many_lengths(queries), many_lengths(keys), true, mask)) == 0);
  if constexpr (sizeof(T) == 2 && HeadSize <= 128) {
    CHECK((different_of<T, HeadSize>({queries, queries}, {keys, keys}, false, mask, true)) == 0);
    CHECK((different_of<T, HeadSize>({130, 1, 383, 64, 200}, {257, 40, 383, 1, 600}, true, mask, true)) == 0);
  }
}

}  // namespace

TEST_CASE("gradients in fixed order have the same bits in every call") {
  test_bits<fp16, 64>(giwa::causal::bottom_right);
#if !defined(GIWA_TEST_FEW_SIZES)
  test_bits<fp16, 64>(giwa::full{});
  test_bits<fp16, 128>(giwa::causal::bottom_right);
  test_bits<fp16, 128>(giwa::full{});
  // By two kernels: on enough multiprocessors work tiles of 64 keys.
  CHECK((different_of<fp16, 128>({300, 300}, {700, 700}, false, giwa::causal::bottom_right)) == 0);
  if (!small_mode()) {  // tiles of 80 queries
    constexpr int full = giwa::detail::long_sequences::full + 30, causal = giwa::detail::long_sequences::causal + 30;
    CHECK((different_of<fp16, 128>({full, full}, {700, 700}, false, giwa::full{})) == 0);
    CHECK((different_of<fp16, 128>({causal, causal}, {700, 700}, false, giwa::causal::top_left)) == 0);
  }
  // Maps of blocks: one kernel, and two.
  for (const int size : {64, 128}) {
    block_case c({.queries = 1300, .keys = 1100, .block_queries = size, .block_keys = size, .density = 0.4f}, 5);
    gpu_array<giwa::block_word> words(static_cast<std::size_t>(c.map.bytes()) / sizeof(giwa::block_word));
    giwa::throw_if_failed(on_gpu{}(c.lists(), c.map, words));
    giwa::block_map map = c.map;
    map.words = words.data();
    CHECK((different_of<fp16, 128>({1300, 1300}, {1100, 1100}, false, giwa::block_sparse{map})) == 0);
  }
  test_bits<fp16, 256>(giwa::causal::bottom_right);
  test_bits<float, 128>(giwa::causal::bottom_right);
#endif
}
