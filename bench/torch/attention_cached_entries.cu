// SPDX-License-Identifier: MIT
// What attention_cached.py calls on a GPU: attention of fp16 queries to a cache, as C functions.
// GIWA_BENCH_CACHE is the cache's element, giwa::fp16 or giwa::e4m3 with a scale of 1.
#include <giwa/cache.cuh>

#include <cstdio>

#if !defined(GIWA_BENCH_CACHE)
#define GIWA_BENCH_CACHE giwa::fp16
#endif

namespace {

using giwa::fp16;
using cached = GIWA_BENCH_CACHE;

struct problem {
  long long sequences, queries, keys, heads, kv_heads, head_size, page_size;

  giwa::cached_problem sizes() const {
    return {.sequences = sequences,
            .queries = queries,
            .keys = keys,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_size = head_size,
            .head_size_v = head_size,
            .cache_bytes = sizeof(cached),
            .page_size = page_size};
  }
};

template <int HeadSize>
giwa::status attend(const problem& p, const void* q, const void* k, const void* v, const int* pages, const int* lengths,
                    void* o, unsigned char* workspace, long long workspace_bytes, cudaStream_t stream) {
  const bool paged = p.page_size > 0;
  const long long of_sequence = paged ? p.keys / p.page_size : 1;
  const giwa::index<4> of_cache{p.sequences * of_sequence, paged ? p.page_size : p.keys, p.kv_heads, HeadSize};
  const giwa::index<4> of_q{p.sequences, p.queries, p.heads, HeadSize};
  giwa::kv_cache<const cached> cache{.k = {static_cast<const cached*>(k), of_cache},
                                     .v = {static_cast<const cached*>(v), of_cache}};
  cache.lengths = lengths;
  if (paged) {
    cache.pages.indices = pages;
    cache.pages.stride = cache.pages.most = of_sequence;
    cache.sequences = p.sequences;
  }
  return giwa::attention_cached<HeadSize>(
      stream, cache, giwa::tensor_view<const fp16, 4>(static_cast<const fp16*>(q), of_q),
      giwa::tensor_view<fp16, 4>(static_cast<fp16*>(o), of_q), {.workspace = {workspace, {workspace_bytes}}});
}

}  // namespace

// q and o (sequences, queries, heads, head size) of fp16; k and v, of GIWA_BENCH_CACHE, (sequences, keys, kv heads, head size), or
// with a page size (sequences * keys / page size, page size, kv heads, head size) and pages (sequences, keys / page size), whose
// lengths (sequences) are then needed; else null. Answers 0 for success.
extern "C" int giwa_attention_cached(const void* q, const void* k, const void* v, const int* pages, const int* lengths,
                                     void* o, long long sequences, long long queries, long long keys, long long heads,
                                     long long kv_heads, long long head_size, long long page_size,
                                     unsigned char* workspace, long long workspace_bytes, cudaStream_t stream) {
  const problem p{sequences, queries, keys, heads, kv_heads, head_size, page_size};
  giwa::status s = giwa::status::invalid("q", "the head size is none of 64, 128 and 256");
  if (head_size == 64) s = attend<64>(p, q, k, v, pages, lengths, o, workspace, workspace_bytes, stream);
  if (head_size == 128) s = attend<128>(p, q, k, v, pages, lengths, o, workspace, workspace_bytes, stream);
  if (head_size == 256) s = attend<256>(p, q, k, v, pages, lengths, o, workspace, workspace_bytes, stream);
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<int>(s.code);
}

// The largest workspace that such a call uses, in bytes.
extern "C" long long giwa_cached_workspace_bytes(long long sequences, long long queries, long long keys,
                                                 long long heads, long long kv_heads, long long head_size,
                                                 long long page_size, int multiprocessors) {
  return giwa::workspace_bytes(problem{sequences, queries, keys, heads, kv_heads, head_size, page_size}.sizes(),
                               {.multiprocessors = multiprocessors});
}
