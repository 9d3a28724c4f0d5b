// SPDX-License-Identifier: MIT
// What peers/measure.py calls on a GPU: latent attention of bf16 queries, head sizes 576 and 512, as C functions.
// GIWA_BENCH_ROWS is the cache's element, giwa::bf16 or giwa::rows_656; GIWA_BENCH_DIVISION how keys are divided.
#include <giwa/cache.cuh>

#include <cstdio>

#if !defined(GIWA_BENCH_ROWS)
#define GIWA_BENCH_ROWS giwa::bf16
#endif
#if !defined(GIWA_BENCH_DIVISION)
#define GIWA_BENCH_DIVISION giwa::division::by_sequence
#endif

namespace {

using giwa::bf16, giwa::tensor_view;
using element = GIWA_BENCH_ROWS;

struct problem {
  long long sequences, queries, heads, pages, page_size, pages_of_sequence;
  const void *q, *rows;
  void* o;

  tensor_view<const bf16, 4> queries_view() const {
    return {static_cast<const bf16*>(q), {sequences, queries, heads, 576}};
  }
  tensor_view<bf16, 4> output() const { return {static_cast<bf16*>(o), {sequences, queries, heads, 512}}; }
  giwa::kv_cache<const element> cache(const int* table, const int* lengths) const {
    const tensor_view<const element, 4> k(static_cast<const element*>(rows),
                                          {pages, page_size, 1, sizeof(element) == 1 ? 656 : 576});
    giwa::kv_cache<const element> c{.k = k,
                                    .pages = {.indices = table, .stride = pages_of_sequence, .most = pages_of_sequence},
                                    .lengths = lengths};
    if constexpr (sizeof(element) == 2) c.v = {k.data(), {pages, page_size, 1, 512}, k.strides()};
    if (table != nullptr) c.sequences = sequences;
    return c;
  }
};

}  // namespace

// q (sequences, queries, heads, 576), o (sequences, queries, heads, 512); rows (pages, page size, 576 numbers or 656 bytes). Either
// table (sequences, pages of a sequence) and lengths (sequences), or lists (sequences, queries, listed) of rows. Answers 0 for success.
extern "C" int giwa_attention_latent(const void* q, const void* rows, const int* table, const int* lengths,
                                     const int* lists, void* o, long long sequences, long long queries, long long heads,
                                     long long pages, long long page_size, long long pages_of_sequence,
                                     long long listed, unsigned char* workspace, long long workspace_bytes,
                                     cudaStream_t stream) {
  const problem p{sequences, queries, heads, pages, page_size, pages_of_sequence, q, rows, o};
  const giwa::cached_options options{
      .scale = 0.07f, .workspace = {workspace, {workspace_bytes}}, .division = GIWA_BENCH_DIVISION};
  const giwa::key_selection selection{.indices = lists, .stride = listed, .most = listed};
  const giwa::status s =
      lists != nullptr
          ? giwa::attention_cached<giwa::head_sizes<576, 512>>(stream, p.cache(nullptr, nullptr), p.queries_view(),
                                                               p.output(), selection, options)
          : giwa::attention_cached<giwa::head_sizes<576, 512>>(stream, p.cache(table, lengths), p.queries_view(),
                                                               p.output(), giwa::causal::bottom_right, options);
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<int>(s.code);
}

// The largest workspace that such a call uses, in bytes.
extern "C" long long giwa_latent_workspace_bytes(long long sequences, long long queries, long long heads,
                                                 long long pages, long long page_size, long long pages_of_sequence,
                                                 long long listed, int multiprocessors) {
  const problem p{sequences, queries, heads, pages, page_size, pages_of_sequence, nullptr, nullptr, nullptr};
  static constexpr int a_table = 0;  // which is not read
  const giwa::workspace_gpu gpu{.multiprocessors = multiprocessors};
  const giwa::cached_options options{.division = GIWA_BENCH_DIVISION};
  if (listed > 0)
    return giwa::workspace_bytes(p.cache(nullptr, nullptr), p.queries_view(), p.output(),
                                 giwa::key_selection{.most = listed}, {}, options, gpu);
  return giwa::workspace_bytes(p.cache(&a_table, nullptr), p.queries_view(), p.output(), options, {}, {}, gpu);
}
