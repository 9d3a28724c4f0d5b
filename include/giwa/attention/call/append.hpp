// SPDX-License-Identifier: MIT
// append_to_cache: writes keys and values of new rows into a cache, rotated and rounded.
#ifndef GIWA_ATTENTION_CALL_APPEND_HPP
#define GIWA_ATTENTION_CALL_APPEND_HPP

#include <giwa/attention/append/append_checks.hpp>
#include <giwa/attention/append/append_rows.hpp>
#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/problem/last_arguments.hpp>
#include <giwa/numeric/fp8.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <class Rotary>
struct host_append;  // defined by <giwa/host.hpp>

inline namespace GIWA_ARCH_TAG {

template <class Rotary>
struct stream_append;  // defined by <giwa/cache.cuh>

template <class Where, class Element, class Keys, class Values, int Rank, class Rotary>
status append_rows(const Where& where, const kv_cache<Element>& cache, const tensor_view<Keys, Rank>& k_new,
                   const tensor_view<Values, Rank>& v_new, const Rotary& rotary,
                   const append_options<stdlib::remove_const_t<Keys>>& options) {
  using element = stdlib::remove_const_t<Keys>;
  static_assert(Rank == 3 || Rank == 4,
                "giwa::append_to_cache: k_new and v_new must have rank 4 (sequences, new rows, kv heads, head size) or "
                "3 (packed rows, kv heads, head size).");
  static_assert(attention_element<element> && stdlib::same_as<stdlib::remove_const_t<Values>, element>,
                "giwa::append_to_cache: elements of k_new and v_new must be of one type: giwa::fp16, bf16 or fp32.");
  static_assert(!stdlib::is_const_v<Element>,
                "giwa::append_to_cache: the cache is written, so its elements must not be const.");
  static_assert(
      stdlib::same_as<Element, element> || scaled_element<Element> || row_format<Element>,
      "giwa::append_to_cache: elements of the cache must be those of k_new, giwa::e4m3, int8_code, int4_pair, "
      "q8_0, q4_0 or rows_656.");
  static_assert(goes_as_bytes<Rotary>,
                "giwa::append_to_cache: the rotary embedding is copied to the device as bytes: make it trivially "
                "copyable.");
  static_assert(
      rotary_embedding<Rotary>,
      "giwa::append_to_cache: after v_new come a rotary embedding, such as giwa::rotary_base, and the options.");
  append_views<element, Element> a{in_four_dimensions(tensor_view<const element, Rank>(k_new)),
                                   in_four_dimensions(tensor_view<const element, Rank>(v_new)),
                                   options.q.view(),
                                   options.q_to.view(),
                                   cache,
                                   Rank == 3,
                                   packed_queries_of(options.sequences),
                                   options.positions,
                                   options.slots,
                                   options.k_scales,
                                   options.v_scales,
                                   options.k_mean,
                                   options.hadamard};
  if (a.finds_scales()) a.cache.scales = {};
  if (const status s = check_sequences_of_cache<Rank>(options.sequences, k_new.extent(0)); !s.ok()) return s;
  if (const status s = check_append(a, rotary, Rank, options.q.rank(), options.q_to.rank()); !s.ok()) return s;
  if (a.rows() == 0 || (a.k.extent(2) == 0 && a.q.extent(2) == 0)) return {};
  if constexpr (stdlib::same_as<Where, host_t>) {
    static_assert(defined<host_append<Rotary>>,
                  "giwa::append_to_cache(giwa::host, ...) needs #include <giwa/host.hpp>.");
    return host_append<Rotary>::run(a, rotary);
  } else {
    static_assert(defined<stream_append<Rotary>>,
                  "giwa::append_to_cache on a stream needs #include <giwa/cache.cuh>, in a file that nvcc compiles.");
    return stream_append<Rotary>::run(static_cast<cudaStream_t>(where), a, rotary);
  }
}

}  // namespace GIWA_ARCH_TAG

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// Writes keys and values of new rows into a cache, in one launch: `append_to_cache(stream, cache, k_new, v_new,
/// rotary_base(10000.0, {.size = 128}), {.q = q, .q_to = q})`. k is rotated by position, q as well where it is given.
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - cache: where the rows go, contiguous or in pages (kv_cache)
///   - k_new, v_new: (sequences, new rows, kv heads, head size), each sequence has as many; or packed, (all rows, kv heads,
///     head size), with `options.sequences`. An empty v_new leaves v of the cache as it is, for a cache in which v is part of k
///   - rotary: rotary_base, rotary_table or another rotary_embedding; or the options, for a call without a rotation
///   - options: sequences, slots, positions, and queries to rotate (append_options)
///
/// Elements are fp16, bf16 or fp32; those of the cache are the same, e4m3, int8_code, int4_pair (half the head
/// size), q8_0, q4_0 or rows_656. Any strides, but the last is 1; fastest are 16-byte aligned heads.
///
/// `cache.lengths` counts the new rows: row i of n new ones of sequence b is key lengths[b] - n + i, and that is its
/// position too. Lengths are read by the kernel and not written, so that a captured graph may be replayed with others.
/// Without lengths, the new rows are the last ones of a cache without pages. `options.slots` says instead where each
/// row is written, `options.positions` which position it has. With both (without a rotation with slots alone), the
/// lengths, the page table and the offsets are not read, and packed rows need none.
///
/// Not written to the cache are rows whose key is below 0 or past the capacity of the sequence, those whose page or
/// slot is outside the cache, and packed rows outside all sequences. Others are not affected. Queries are rotated and
/// written to q_to whether their row is written to the cache or not, but for packed rows outside all sequences: so a
/// row with a negative slot only has its query rotated. Two rows with one slot leave either there, or parts of both.
///
/// With `options.k_scales` and `options.v_scales` the call finds the scale of each new row and head: of e4m3 and integers the largest finite
/// magnitude, rotated and not rounded, divided by 448, 127 or 7, at least 2^-126. It writes them, and codes as quantize() does. `options.k_mean` and
/// `options.hadamard` change k, and q, before: numbers that fit few bits better.
///
/// Rotations are computed in fp32 and rounded once. Without a rotation, elements of the same type keep their bits. For
/// e4m3 and integers, x is divided by the scale of the key and head, rounded to nearest, ties to even, and limited to 448, 127
/// or 7; NaN stays NaN in e4m3, and is 0 in integers. Pairs of integers need rows aligned to two elements. Rows of rows_656 get their
/// scales here, each the largest finite magnitude of its 128 numbers / 448; there is no v_new. So do blocks of q8_0 and q4_0: the
/// largest finite magnitude / 127, and the number of that magnitude / -8, in fp16. The result is deterministic, and the same bits on host and device.
///
/// On a stream of the current device: asynchronous, allocates nothing, may be captured. With giwa::host: done when it
/// returns, pointers are to host memory (`#include <giwa/host.hpp>`). Errors: sizes that do not fit together, missing
/// lengths, offsets or slots, overlaps of what is written with anything but q with an equal q_to, memory that the GPU
/// cannot use, those of launch(). Nothing is written then.
template <detail::attention_place Where, class Element, class Keys, class Values = Keys, int Rank,
          class Rotary = append_options<stdlib::remove_const_t<Keys>>>
status append_to_cache(const Where& where, const kv_cache<Element>& cache, const tensor_view<Keys, Rank>& k_new,
                       const tensor_view<Values, Rank>& v_new, const Rotary& rotary = {},
                       const append_options<stdlib::remove_const_t<Keys>>& options = {}) {
  if constexpr (stdlib::same_as<Rotary, append_options<stdlib::remove_const_t<Keys>>>) {
    const detail::last_arguments last(full{}, rotary, options);
    if (const status s = last.check(); !s.ok()) return s;
    return detail::append_rows(where, cache, k_new, v_new, no_rotary{}, last.options());
  } else {
    return detail::append_rows(where, cache, k_new, v_new, rotary, options);
  }
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
