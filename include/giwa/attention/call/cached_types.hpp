// SPDX-License-Identifier: MIT
// The types that select a variant of attention_cached, and an error sentence for each call that no overload accepts.
#ifndef GIWA_ATTENTION_CALL_CACHED_TYPES_HPP
#define GIWA_ATTENTION_CALL_CACHED_TYPES_HPP

#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/problem/cache.hpp>

namespace giwa::inline GIWA_ABI {

/// Any number of queries.
struct any_queries {};
/// At most 32 rows for each head of k, a row being one query of one head; a call with more is refused. Compiles only the
/// kernel for few queries. The bits are those of any_queries for sequences of up to 8 queries.
/// `attention_cached<128, few_queries>(…)`.
struct few_queries {};

namespace detail {

template <class T>
inline constexpr bool is_cache = false;
template <class T>
inline constexpr bool is_cache<kv_cache<T>> = true;

template <class Which>
concept query_count = stdlib::same_as<Which, any_queries> || stdlib::same_as<Which, few_queries>;

/// Fails to compile, with a sentence about the first error in arguments that no overload of attention_cached accepts.
template <bool HasHeadSize, class Where = void, class... Rest>
constexpr void explain_cached_call() {
  constexpr bool runs_somewhere = requires { requires attention_place<Where>; };
  constexpr bool has_cache = (is_cache<Rest> || ... || false);
  constexpr bool pointers = (is_data_pointer<Rest> || ... || false);
  constexpr bool packed = ((view_rank<Rest> == 3) || ... || false);
  constexpr bool has_queries = (stdlib::same_as<Rest, queries> || ... || false);
  static_assert(
      HasHeadSize,
      "giwa::attention_cached: the head size is a template argument: attention_cached<128>(stream, cache, q, o), or "
      "attention_cached<giwa::head_sizes<64, 128>>(...) for sizes known at run time.");
  static_assert(
      !HasHeadSize || runs_somewhere,
      "giwa::attention_cached: pass a stream or giwa::host as the first argument: cudaStream_t{} is the default "
      "stream, giwa::throw_if_failed(s) the stream of a result.");
  constexpr bool places = HasHeadSize && runs_somewhere;
  static_assert(!places || has_cache,
                "giwa::attention_cached: keys and values are a giwa::kv_cache, the second argument: "
                "giwa::kv_cache<const giwa::fp16> cache{.k = k, .v = v, .lengths = lengths}.");
  static_assert(!places || !has_cache || !pointers,
                "giwa::attention_cached: q and o must be views, not pointers: giwa::tensor_view<const giwa::fp16, 4> "
                "q(pointer, {batch, queries, heads, head_size}).");
  static_assert(!places || !has_cache || pointers || !packed || has_queries,
                "giwa::attention_cached: views of rank 3 are packed queries: pass giwa::queries after the cache, or "
                "views of rank "
                "4 (batch, queries, heads, head size).");
  constexpr bool explained = !places || !has_cache || pointers || (packed && !has_queries);
  constexpr bool other_options = (stdlib::same_as<Rest, attention_options> || ... || false);
  static_assert(explained || !other_options,
                "giwa::attention_cached: the options are giwa::cached_options, not giwa::attention_options.");
  constexpr bool tensors = views_of_rank<4, Rest...> == 2 || (has_queries && views_of_rank<3, Rest...> == 2);
  constexpr bool options = tensors && (stdlib::same_as<Rest, cached_options> || ... || false);
  static_assert(explained || other_options || !options,
                "giwa::attention_cached: options, in braces too, come after the mask and the score modifier: (stream, "
                "cache, q, o, giwa::full{}, giwa::plain_score{}, {.scale = 0.1f}).");
  static_assert(explained || other_options || options,
                "giwa::attention_cached: the arguments are (stream, cache, q, o, mask, score, options), with q and o "
                "giwa::tensor_view of rank 4, or (stream, cache, giwa::queries, q, o, ...) of rank 3; the last three "
                "are optional.");
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
