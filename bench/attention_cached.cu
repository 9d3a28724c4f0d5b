// SPDX-License-Identifier: MIT
// attention_cached compared with a kernel that reads as many bytes, and in other forms of the same cache. Times of calls in
// a graph; the caches of a graph alternate and are together more than 400 MB, so no call finds its keys in the L2 cache.
// The comparison with cuDNN is bench/torch/attention_cached.py.
#include <giwa/attention.cuh>

#include "cached_calls.cuh"
#include "graph.hpp"

namespace {

using giwa::device_array, giwa::fp16, giwa::int64, giwa::tensor_view;
using contender = bench::contest::contender;
using bench::bytes_of_cache, bench::cached_shape, bench::cached_calls, bench::cache_pool, bench::cached_workspace;

/// Bytes that the calls of a contest read.
struct alternation {
  int64 bytes;
  /// How many caches alternate.
  int sets() const { return static_cast<int>(std::max<int64>(2, giwa::ceil_div(int64{400} << 20, bytes))); }
  /// Calls in a graph: 20, fewer if they read 8 GB; as many of each cache.
  int calls() const {
    const int64 enough = std::clamp<int64>((int64{8} << 30) / bytes, 1, 20);
    return sets() * static_cast<int>(giwa::ceil_div(enough, int64{sets()}));
  }
};

/// Reads two arrays of n times 16 bytes.
__global__ void __launch_bounds__(256) read_all(const uint4* a, const uint4* b, int64 n, unsigned* out) {
  const int64 step = int64{gridDim.x} * blockDim.x;
  unsigned sum = 0;
  for (int64 i = int64{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
    uint4 x[8] = {};
    GIWA_UNROLL
    for (int j = 0; j < 4; ++j)
      if (i + j * step < n) x[2 * j] = a[i + j * step], x[2 * j + 1] = b[i + j * step];
    GIWA_UNROLL
    for (const uint4& y : x) sum += (y.x ^ y.y) + (y.z ^ y.w);
  }
  if (sum == 1) *out = sum;  // so that the loads stay
}

/// Graphs of the contenders of one contest, and what they use.
struct graphs {
  alternation of;
  std::vector<std::shared_ptr<void>> kept;
  std::vector<std::unique_ptr<bench::graph>> all;

  template <class Call>
  void add(contender& c, const Call& call) {
    call(nullptr, 0);  // CUDA loads a kernel at its first launch, which must not be captured
    all.push_back(
        std::make_unique<bench::graph>(of.calls(), [&](cudaStream_t stream, int i) { call(stream, i % of.sets()); }));
    c.run = [g = all.back().get()](int) { g->launch(); };
  }
  template <class Element, int HeadSize, class Mask>
  void add(contender& c, const std::shared_ptr<cache_pool<Element, HeadSize>>& p, const cached_shape& s,
           const Mask& mask) {
    const auto call = std::make_shared<cached_calls<Element, HeadSize, Mask>>(p, s, mask);
    const auto run = [a = call.get()](cudaStream_t stream, int set) { (*a)(stream, set); };
    call->require_right(run);
    kept.push_back(call);
    add(c, run);
  }
  template <class Element, int HeadSize>
  void add_read(contender& c, const std::shared_ptr<cache_pool<Element, HeadSize>>& p) {
    const auto gpu = bench::require(giwa::properties_of(bench::require(giwa::current_device())));
    const auto out =
        std::make_shared<device_array<unsigned>>(bench::require(device_array<unsigned>::allocate(nullptr, 1)));
    kept.push_back(out);
    const int64 n = p->set_size() * int64{sizeof(Element)} / 16;
    add(c, [&](cudaStream_t stream, int set) {
      const auto part = [&](const device_array<Element>& x) {
        return reinterpret_cast<const uint4*>(x.data() + set * p->set_size());
      };
      bench::require(giwa::launch(stream, {.grid = 4 * gpu.multiprocessors, .block = 256}, read_all, part(p->k),
                                  part(p->v), n, out->data()));
    });
  }
};

/// A form of the cache and of the call, compared with another one, or with "read".
struct form {
  std::string name, peer;
  cached_shape s;
};

/// The contest of forms that all read the cache of the first, and see `window` keys if it is not 0.
template <class Element, int HeadSize, class Mask = giwa::full>
void add_contest(const std::string& name, const std::vector<form>& forms, const Mask& mask = {}) {
  const cached_shape& s = forms[0].s;
  const int64 bytes = bytes_of_cache<Element, HeadSize>(s);
  std::vector<contender> contenders;
  const bool reads = s.window == 0;
  if (reads) contenders.push_back({"read", "read"});
  for (const form& f : forms) contenders.push_back({f.name, f.peer});
  const alternation of{bytes};
  const std::string type = sizeof(Element) == 1 ? "e4m3" : "fp16";
  bench::contest::add(std::make_shared<bench::contest>(
      name + "/" + type + "/D" + std::to_string(HeadSize) + "/" + s.text(), contenders, 1, 1,
      static_cast<double>(bytes), bench::graph_seconds(of.calls()), [=](std::vector<contender>& c) {
        const auto g = std::make_shared<graphs>(of);
        const auto p = std::make_shared<cache_pool<Element, HeadSize>>(s.all_keys(), s.kv_heads, of.sets());
        if (reads) g->add_read(c[0], p);
        for (std::size_t i = 0; i < forms.size(); ++i) g->add(c[i + (reads ? 1 : 0)], p, forms[i].s, mask);
        return g;
      }));
}

/// The first keys of all sequences are the same: a plain call, which reads them once for each sequence, compared with a
/// call for them and one for the others.
void add_prefix(const cached_shape& s) {
  using keys_and_values = cache_pool<fp16, 128>;
  using plain_calls = cached_calls<fp16, 128, giwa::full>;
  const alternation of{s.all_keys() * s.kv_heads * 2 * 128 * 2};
  bench::contest::add(std::make_shared<bench::contest>(
      "prefix/fp16/D128/" + s.text() + "/" + std::to_string(s.shared) + "_shared",
      std::vector<contender>{{"giwa_plain", "giwa_plain"}, {"giwa_prefix", "giwa_plain"}}, 1, 1, 0.0,
      bench::graph_seconds(of.calls()), [=](std::vector<contender>& c) {
        const auto g = std::make_shared<graphs>(of);
        const auto p = std::make_shared<keys_and_values>(s.all_keys(), s.kv_heads, of.sets());
        g->add(c[0], p, s, giwa::full{});
        struct extra {
          plain_calls plain;
          device_array<float> lse;
          device_array<int> prefix_length, own_lengths;
          device_array<unsigned char> workspace;
        };
        const giwa::cached_problem one{.sequences = 1,
                                       .queries = s.sequences,
                                       .keys = s.shared,
                                       .heads = s.heads,
                                       .kv_heads = s.kv_heads,
                                       .head_size = 128,
                                       .head_size_v = 128,
                                       .page_size = s.page};
        giwa::cached_problem own = one;
        own.sequences = s.sequences, own.queries = 1, own.keys = s.keys - s.shared;
        const std::vector<int> prefix_length{static_cast<int>(s.shared)};
        const std::vector<int> own_lengths(static_cast<std::size_t>(s.sequences), static_cast<int>(own.keys));
        auto larger = cached_workspace(one), other = cached_workspace(own);
        if (other.size() > larger.size()) std::swap(larger, other);
        const auto e =
            std::make_shared<extra>(extra{plain_calls(p, s, giwa::full{}),
                                          bench::require(device_array<float>::allocate(nullptr, s.heads * s.sequences)),
                                          bench::require(giwa::to_device(nullptr, prefix_length)),
                                          bench::require(giwa::to_device(nullptr, own_lengths)), std::move(larger)});
        g->kept.push_back(e);
        const auto run = [s, e = e.get()](cudaStream_t stream, int set) {
          const tensor_view<unsigned char, 1> workspace(e->workspace.data(), {e->workspace.size()});
          const auto whole = e->plain.cache(set);
          auto prefix = whole, rest = whole;
          prefix.sequences = 1, prefix.lengths = e->prefix_length.data(), prefix.pages.most = s.shared / s.page;
          rest.lengths = e->own_lengths.data(), rest.pages.most -= s.shared / s.page;
          rest.pages.indices += s.shared / s.page;
          const giwa::index<4> as_one{1, s.sequences, s.heads, 128};
          const auto q = e->plain.q();
          const auto o = e->plain.o();
          bench::require(giwa::attention_cached<128>(
              stream, prefix, tensor_view<const fp16, 4>(q.data(), as_one), tensor_view<fp16, 4>(o.data(), as_one),
              {.lse = {e->lse.data(), {1, s.heads, s.sequences}}, .workspace = workspace}));
          const tensor_view<const float, 3> lse(e->lse.data(), {s.sequences, s.heads, 1}, {1, s.sequences, 1});
          bench::require(
              giwa::attention_cached<128>(stream, rest, q, o, {.workspace = workspace, .prior = {.o = o, .lse = lse}}));
        };
        e->plain.require_right(run);
        g->add(c[1], run);
        return g;
      }));
}

/// Many queries of one sequence, all of which see all keys, compared with attention_forward.
void add_chunk(const cached_shape& s) {
  using keys_and_values = cache_pool<fp16, 128>;
  using contiguous_calls = cached_calls<fp16, 128, giwa::full>;
  const double flops = 4.0 * static_cast<double>(s.queries * s.keys) * static_cast<double>(s.heads * 128);
  const alternation of{bytes_of_cache<fp16, 128>(s)};
  bench::contest::add(std::make_shared<bench::contest>(
      "chunk/fp16/D128/" + s.text() + "/" + std::to_string(s.queries) + "_queries",
      std::vector<contender>{{"giwa_forward", "giwa_forward"},
                             {"giwa_contiguous", "giwa_forward"},
                             {"giwa_page_16", "giwa_contiguous"},
                             {"giwa_page_64", "giwa_contiguous"}},
      1, 1, bench::work::of_flops(flops), bench::graph_seconds(of.calls()), [=](std::vector<contender>& c) {
        const auto g = std::make_shared<graphs>(of);
        const auto p = std::make_shared<keys_and_values>(s.all_keys(), s.kv_heads, of.sets());
        const auto contiguous = std::make_shared<contiguous_calls>(p, s, giwa::full{});
        auto counter = bench::require(device_array<unsigned char>::allocate(nullptr, giwa::workspace_bytes({})));
        const auto workspace = std::make_shared<device_array<unsigned char>>(std::move(counter));
        g->kept.push_back(contiguous);
        g->kept.push_back(workspace);
        const auto forward = [a = contiguous.get(), w = workspace.get()](cudaStream_t stream, int set) {
          const auto cache = a->cache(set);
          giwa::attention_options options;
          options.workspace = *w;
          bench::require(giwa::attention_forward<128>(stream, a->q(), cache.k, cache.v, a->o(), options));
        };
        contiguous->require_right(forward);
        g->add(c[0], forward);
        g->add(c[1], p, s, giwa::full{});
        cached_shape paged = s;
        paged.page = 16;
        g->add(c[2], p, paged, giwa::full{});
        paged.page = 64;
        g->add(c[3], p, paged, giwa::full{});
        return g;
      }));
}

void add_all() {
  const auto decode = [](const cached_shape& s) { return std::vector<form>{{"giwa", "read", s}}; };
  // Sequences, heads of q and of k, keys: the points of docs/notes/decode_hopper.md.
  for (const cached_shape& s :
       {cached_shape{1, 32, 8, 1024}, cached_shape{1, 32, 8, 8192}, cached_shape{1, 32, 8, 32768},
        cached_shape{1, 32, 8, 131072}, cached_shape{1, 64, 8, 32768}, cached_shape{4, 128, 8, 16384},
        cached_shape{8, 32, 32, 8192}, cached_shape{32, 32, 8, 8192}, cached_shape{32, 32, 8, 32768},
        cached_shape{128, 32, 8, 1024}, cached_shape{256, 32, 8, 512}})
    add_contest<fp16, 128>("decode", decode(s));
  const cached_shape usual{32, 32, 8, 8192};
  add_contest<fp16, 64>("decode", decode(usual));
  add_contest<fp16, 256>("decode", decode(usual));
  add_contest<giwa::e4m3, 128>("decode", decode({128, 32, 8, 8192}));
  add_contest<giwa::e4m3, 64>("decode", decode(usual));
  add_contest<giwa::e4m3, 256>("decode", decode(usual));

  std::vector<form> pages{{"giwa_contiguous", "read", usual}};
  for (const int64 page : {256, 64, 32, 16, 1}) {
    pages.push_back({"giwa_page_" + std::to_string(page), "giwa_contiguous", usual});
    pages.back().s.page = page;
  }
  add_contest<fp16, 128>("pages", pages);
  add_contest<giwa::e4m3, 128>("pages", {pages[0], pages[2]});  // of 64 keys

  const cached_shape ragged{32, 32, 8, 4096, 65536};
  std::vector<form> uneven{{"giwa_contiguous", "read", ragged}, {"giwa_page_64", "giwa_contiguous", ragged}};
  uneven.back().s.page = 64;
  add_contest<fp16, 128>("ragged", uneven);

  std::vector<form> queries;
  for (const int64 n : {1, 2, 4, 8, 16}) {
    queries.push_back({"giwa_" + std::to_string(n), n == 1 ? "read" : "giwa_1", usual});
    queries.back().s.queries = n;
  }
  add_contest<fp16, 128>("queries", queries);

  for (const int window : {1024, 4096}) {
    cached_shape all{32, 32, 8, 16384}, few{32, 32, 8, window};
    all.window = few.window = window;
    const std::string n = std::to_string(window);
    add_contest<fp16, 128>("window",
                           {{"giwa_window_" + n, "giwa_keys_" + n, all}, {"giwa_keys_" + n, "giwa_keys_" + n, few}},
                           giwa::sliding_window{window, giwa::alignment::bottom_right});
  }

  cached_shape prefix{64, 32, 8, 8192 + 256};
  prefix.page = 64, prefix.shared = 8192;
  add_prefix(prefix);
  for (const auto& [n, keys] : {std::pair<int64, int64>{64, 32768}, {1024, 8192}}) {
    cached_shape chunk{1, 32, 8, keys};
    chunk.queries = n;
    add_chunk(chunk);
  }
}

}  // namespace

int main(int argc, char** argv) { return bench::run(argc, argv, add_all); }
