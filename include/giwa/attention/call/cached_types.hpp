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
  static_assert(
      HasHeadSize,
      "giwa::attention_cached: the head size is a template argument: attention_cached<128>(stream, cache, q, o); "
      "giwa::choose_head_size<64, 128>(...) chooses one that is known at run time.");
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
  constexpr bool explained = !places || !has_cache || pointers;
  constexpr bool has_sequences = (stdlib::same_as<Rest, sequences> || ... || false);
  static_assert(
      explained || !has_sequences,
      "giwa::attention_cached: giwa::sequences is a member of the options: (stream, cache, q, o, {.sequences = "
      "sequences}).");
  constexpr bool other_options = (stdlib::same_as<Rest, attention_options> || ... || false);
  static_assert(explained || has_sequences || !other_options,
                "giwa::attention_cached: the options are giwa::cached_options, not giwa::attention_options.");
  static_assert(explained || has_sequences || other_options,
                "giwa::attention_cached: the arguments are (stream, cache, q, o, mask, score, options), with q and o "
                "giwa::tensor_view of one rank, 4 or 3, and the last three optional: options may come right after o.");
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
