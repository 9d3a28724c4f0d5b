// SPDX-License-Identifier: MIT
// The sizes of an attention_cached problem: their limits, and which kernel runs them.
#ifndef GIWA_ATTENTION_PROBLEM_CACHED_PROBLEM_HPP
#define GIWA_ATTENTION_PROBLEM_CACHED_PROBLEM_HPP

#include <giwa/attention/problem/cache.hpp>
#include <giwa/attention/problem/problem.hpp>
#include <giwa/attention/problem/workspace.hpp>
#include <giwa/attention/tuning/sm80.hpp>

namespace giwa::inline GIWA_ABI {

/// The sizes of a problem of attention_cached(), for supports().
struct cached_problem {
  int64 sequences = 0;              ///< number of sequences
  int64 queries = 1;                ///< of one sequence, at most
  int64 rows = 0;                   ///< queries of all sequences together, if they are packed; else 0
  int64 keys = 0;                   ///< of one sequence, at most: the capacity of the cache
  int64 heads = 0;                  ///< heads of q
  int64 kv_heads = 0;               ///< heads of k and v; divides heads
  int64 head_size = 0;              ///< of q and k
  int64 head_size_v = 0;            ///< of v and o
  int64 element_bytes = 2;          ///< of q: 4 for fp32
  int64 cache_bytes = 2;            ///< of an element of the cache: those of q, or 1
  int64 page_size = 0;              ///< keys of a page; 0 for a contiguous cache
  giwa::division division{};        ///< of cached_options
  giwa::latent_tile latent_tile{};  ///< of cached_options
};

namespace detail {

/// The first rule that the sizes break, on a GPU of this compute capability; 0 for the CPU.
GIWA_HOST_DEVICE constexpr status check_sizes(const cached_problem& p, int capability) {
  if (p.queries < 0) return status::invalid("q", "a length is out of range", bound::at_least, 0, p.queries);
  if (p.keys < 0) return status::invalid("k", "a length is out of range", bound::at_least, 0, p.keys);
  if (p.element_bytes == element_traits<e4m3>::bytes)
    return status::invalid("q", "an element must have 2 or 4 bytes", bound::exactly, 2, p.element_bytes);
  const attention_problem tensors{p.sequences, p.queries,     p.keys,          p.heads, p.kv_heads,
                                  p.head_size, p.head_size_v, p.element_bytes, p.rows};
  if (const status s = check_sizes(tensors, capability, attention_limits::cached_head_size); !s.ok()) return s;
  if (p.cache_bytes != 1 && p.cache_bytes != p.element_bytes)
    return status::invalid("k", "an element of the cache must have 1 byte or as many as one of q", bound::exactly,
                           p.element_bytes, p.cache_bytes);
  if (p.page_size < 0)
    return status::invalid("k", "the number of keys of a page is negative", bound::at_least, 0, p.page_size);
  // Packed rows have ints as numbers. One sequence may have all packed queries.
  const int64 rows = p.kv_heads == 0 ? 0 : saturated_product(p.rows > 0 ? p.rows : p.queries, p.heads / p.kv_heads);
  if (rows > attention_limits::length)
    return status::invalid("q", "too many queries of a sequence times heads of q for each head of k", bound::at_most,
                           attention_limits::length, rows);
  return {};
}

}  // namespace detail

/// Returns which kernel runs a problem of these sizes, or the first rule that the sizes break. `capability` is the
/// GPU's compute capability, 90 for 9.0, or 0 for the CPU; the program is taken to hold code for it. fp32 runs without
/// tensor cores, and so do most head sizes on 8.6, 8.9 and 12.x, whose blocks have 99 KB of shared memory (16 bits: not 192
/// with 128 for v, nor 257 to 320; 8 bits: not up to 64, and some others). Needs no GPU.
/// A template, so that a list in braces is an attention_problem.
template <stdlib::same_as<cached_problem> Problem>
GIWA_HOST_DEVICE constexpr result<attention_path> supports(const Problem& p, int capability) {
  if (const status s = detail::check_sizes(p, capability); !s.ok()) return {attention_path::simt, s};
  const detail::gpu_traits gpu = detail::gpu_traits::of(capability);
  const bool fits = detail::few_rows_bytes(p.head_size, p.head_size_v, 16, p.cache_bytes) <= gpu.shared_bytes;
  if (!gpu.mma || !detail::are_on_tensor_cores(p.element_bytes) || !fits) return {attention_path::simt, {}};
  return {gpu.wgmma ? attention_path::sm90 : attention_path::sm80, {}};
}

}  // namespace giwa::inline GIWA_ABI

#endif
