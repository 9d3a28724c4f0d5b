// SPDX-License-Identifier: MIT
// merge_attention: attention over a set of keys from the attention over its parts.
#ifndef GIWA_ATTENTION_CALL_MERGE_HPP
#define GIWA_ATTENTION_CALL_MERGE_HPP

#include <giwa/attention/call/forward.hpp>
#include <giwa/softmax/state.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The tensors of a merge, all with a batch: packed ones have a batch of 1.
template <class T, class O>
struct merge_views {
  tensor_view<const T, 5> parts_o;        // (parts, batch, queries, heads, head size)
  tensor_view<const float, 4> parts_lse;  // (parts, batch, heads, queries)
  tensor_view<O, 4> o;                    // (batch, queries, heads, head size)
  tensor_view<float, 3> lse;              // (batch, heads, queries), or empty

  GIWA_HOST_DEVICE int64 parts() const { return parts_o.extent(0); }
  /// The lse of part 0 of a row; that of part i is i * parts_lse.stride(0) elements further.
  GIWA_HOST_DEVICE const float* lse_of(int64 batch, int64 query, int64 head) const {
    return parts_lse.data() + batch * parts_lse.stride(1) + head * parts_lse.stride(2) + query * parts_lse.stride(3);
  }
  GIWA_HOST_DEVICE const T* part_of(int64 batch, int64 query, int64 head) const {
    return parts_o.data() + batch * parts_o.stride(1) + query * parts_o.stride(2) + head * parts_o.stride(3);
  }
  GIWA_HOST_DEVICE O* output_of(int64 batch, int64 query, int64 head) const {
    return o.data() + batch * o.stride(0) + query * o.stride(1) + head * o.stride(2);
  }
  /// The state of all parts of a row, in their order.
  GIWA_HOST_DEVICE softmax_state<float> state_of(const float* lse_of_part) const {
    softmax_state<float> all;
    for (int64 i = 0; i < parts(); ++i)
      all = softmax_state<float>::merge(all, softmax_state<float>::of(lse_of_part[i * parts_lse.stride(0)]));
    return all;
  }
};

/// Whether `whole` is written in place of part `i` of `parts`, for an i in [0, count).
template <class T, class U, int Rank>
GIWA_HOST_DEVICE bool is_a_part(const tensor_view<T, Rank + 1>& parts, const tensor_view<U, Rank>& whole) {
  if constexpr (!stdlib::same_as<stdlib::remove_const_t<T>, U>) {
    return false;
  } else {
    for (int d = 0; d < Rank; ++d)
      if (whole.extent(d) != 1 && whole.stride(d) != parts.stride(d + 1)) return false;
    for (int64 i = 0; i < parts.extent(0); ++i)
      if (parts.data() + i * parts.stride(0) == whole.data()) return true;
    return false;
  }
}

/// An output of a merge is one of the parts, or shares no memory with them.
template <class T, class U, int Rank>
GIWA_HOST_DEVICE status check_in_place(const tensor_view<T, Rank + 1>& parts, const tensor_view<U, Rank>& whole,
                                       const char* argument, const char* message) {
  if (whole.size() == 0 || !may_share(parts, whole)) return {};
  return is_a_part<T, U, Rank>(parts, whole) && check_written(parts, argument).ok()
             ? status{}
             : status::invalid(argument, message);
}

/// The first rule that the tensors of a merge break.
template <class T, class O>
GIWA_HOST_DEVICE status check_merge(const merge_views<T, O>& m) {
  first_failure broken;
  if (broken(m.parts_o.check("parts_o")) || broken(m.parts_lse.check("parts_lse")) || broken(check_rows(m.o, "o")) ||
      broken(m.lse.check("lse")) || broken(check_written(m.o, "o")) || broken(check_written(m.lse, "lse")))
    return broken.state;
  if (m.parts() < 1)
    return status::invalid("parts_o", "there must be at least one part", bound::at_least, 1, m.parts());
  if (m.parts_o.extent(4) > 1 && m.parts_o.size() > 0 && m.parts_o.stride(4) != 1)
    return status::invalid("parts_o", "the last dimension must be contiguous (stride 1)", bound::exactly, 1,
                           m.parts_o.stride(4));
  constexpr const char* of_o[4] = {"o must have the batch of parts_o", "o must have as many queries as parts_o",
                                   "o must have as many heads as parts_o", "o must have the head size of parts_o"};
  for (int d = 0; d < 4; ++d)
    if (m.o.extent(d) != m.parts_o.extent(d + 1))
      return status::invalid("o", of_o[d], bound::exactly, m.parts_o.extent(d + 1), m.o.extent(d));
  constexpr const char* of_parts[4] = {
      "parts_lse is (parts, batch, heads, queries): it must have as many parts as parts_o",
      "parts_lse is (parts, batch, heads, queries): its batch must be that of o, 1 if packed",
      "parts_lse is (parts, batch, heads, queries): it must have as many heads as o",
      "parts_lse is (parts, batch, heads, queries): it must have as many queries as o"};
  const int64 sizes[4] = {m.parts(), m.o.extent(0), m.o.extent(2), m.o.extent(1)};
  for (int d = 0; d < 4; ++d)
    if (m.parts_lse.extent(d) != sizes[d])
      return status::invalid("parts_lse", of_parts[d], bound::exactly, sizes[d], m.parts_lse.extent(d));
  constexpr const char* of_lse[3] = {"lse is (batch, heads, queries): its batch must be that of o, 1 if packed",
                                     "lse is (batch, heads, queries): it must have as many heads as o",
                                     "lse is (batch, heads, queries): it must have as many queries as o"};
  if (is_given(m.lse))
    for (int d = 0; d < 3; ++d)
      if (m.lse.extent(d) != sizes[d + 1])
        return status::invalid("lse", of_lse[d], bound::exactly, sizes[d + 1], m.lse.extent(d));
  if (broken(check_in_place<const T, O, 4>(m.parts_o, m.o, "o", "o overlaps parts_o and is not one of the parts")) ||
      broken(check_in_place<const float, float, 3>(m.parts_lse, m.lse, "lse",
                                                   "lse overlaps parts_lse and is not one of the parts")) ||
      broken(check_apart(m.o, m.parts_lse, "o", "o overlaps parts_lse")) ||
      broken(check_apart(m.lse, m.parts_o, "lse", "lse overlaps parts_o")))
    return broken.state;
  return check_apart(m.lse, m.o, "lse", "lse overlaps o");
}

template <class T>
struct host_merge;  // defined by <giwa/host.hpp>

inline namespace GIWA_ARCH_TAG {
template <class T>
struct stream_merge;  // defined by <giwa/attention.cuh>
}

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// Computes attention over a set of keys from the attention over disjoint parts of it: `merge_attention(stream,
/// parts_o, parts_lse, o, lse)`. With L = ln(sum of e^(lse_i)), o = sum of e^(lse_i - L) o_i and lse = L.
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - parts_o: (parts, batch, queries, heads, head size), or packed (parts, rows, heads, head size); o of
///     attention_forward() for each part of the keys. Parts in fp32 are not rounded twice
///   - parts_lse: (parts, batch, heads, queries), packed (parts, 1, heads, rows); its lse, natural logarithms
///   - o, lse: parts_o and parts_lse without the first dimension; written, an empty lse is not
///
/// Elements of parts_o and o are fp16, bf16 or fp32, and the two types may differ; sums are in fp32. Any strides, but the last of
/// parts_o and o is 1.
///
/// A part whose lse is -inf has no keys, and its o is not used. A row without keys in any part gives o = 0 and lse =
/// -inf. NaN in an lse makes its row NaN, and NaN in an o_i its element. An lse of +inf counts as NaN. Sinks belong to
/// one part only. Parts are added in their order: the result is deterministic, does not depend on the batch, and is
/// that of the one part that has keys, to the bit, where others have none.
///
/// In place: o may be one of the parts, the same view of the same elements, and so may lse. Other overlaps are refused.
/// On a stream of the current device: asynchronous, allocates nothing, may be captured. With giwa::host: done when it
/// returns, pointers are to host memory (`#include <giwa/host.hpp>`). Errors: sizes that do not fit together, no part,
/// overlaps, memory that the GPU cannot use, those of launch(). Nothing is written then. Source: Dao et al. 2022,
/// "FlashAttention", section 3.1; Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding".
template <detail::attention_place Where, class Parts, int PartsRank, class O, int Rank>
status merge_attention(const Where& where, const tensor_view<Parts, PartsRank>& parts_o,
                       const tensor_view<const float, 4>& parts_lse, const tensor_view<O, Rank>& o,
                       const tensor_view<float, 3>& lse = {}) {
  using element = stdlib::remove_const_t<Parts>;
  static_assert(
      (Rank == 3 || Rank == 4) && PartsRank == Rank + 1,
      "giwa::merge_attention: o must have rank 4 (batch, queries, heads, head size) or 3 (packed rows, heads, head "
      "size), and parts_o one dimension more, the parts.");
  static_assert(detail::attention_element<element> && detail::attention_element<stdlib::remove_const_t<O>>,
                "giwa::merge_attention: elements of parts_o and o must be giwa::fp16, bf16 or fp32.");
  static_assert(!stdlib::is_const_v<O>, "giwa::merge_attention: o is written, so its elements must not be const.");
  detail::merge_views<element, O> m{{}, parts_lse, detail::in_four_dimensions(o), lse};
  const auto& p = parts_o;
  if constexpr (Rank == 4)
    m.parts_o = p;
  else
    m.parts_o = {p.data(),
                 {p.extent(0), 1, p.extent(1), p.extent(2), p.extent(3)},
                 {p.stride(0), 0, p.stride(1), p.stride(2), p.stride(3)}};
  if (const status s = detail::check_merge(m); !s.ok()) return s;
  if (o.extent(Rank - 1) < 1)
    return status::invalid("o", "the head size must be at least 1", bound::at_least, 1, o.extent(Rank - 1));
  if (m.o.size() == 0) return {};
  if constexpr (stdlib::same_as<Where, host_t>) {
    static_assert(detail::defined<detail::host_merge<element>>,
                  "giwa::merge_attention(giwa::host, ...) needs #include <giwa/host.hpp>.");
    return detail::host_merge<element>::run(m);
  } else {
    static_assert(
        detail::defined<detail::stream_merge<element>>,
        "giwa::merge_attention on a stream needs #include <giwa/attention.cuh>, in a file that nvcc compiles.");
    return detail::stream_merge<element>::run(static_cast<cudaStream_t>(where), m);
  }
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
