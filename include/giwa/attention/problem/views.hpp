// SPDX-License-Identifier: MIT
// The tensors of an attention call in four dimensions, packed or not, and the checks of their sizes.
#ifndef GIWA_ATTENTION_PROBLEM_VIEWS_HPP
#define GIWA_ATTENTION_PROBLEM_VIEWS_HPP

#include <giwa/attention/problem/options.hpp>
#include <giwa/attention/problem/problem.hpp>
#include <giwa/attention/problem/traits.hpp>
#include <giwa/numeric/overlap.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A tensor (batch, length, heads, head size) whose last stride is 1 unless the head size is. With `or_columns` the stride of the length
/// may be 1 instead.
template <class T>
GIWA_HOST_DEVICE constexpr status check_rows(const tensor_view<T, 4>& v, const char* argument,
                                             bool or_columns = false) {
  if (const status s = v.check(argument); !s.ok()) return s;
  if (v.extent(3) > 1 && v.size() > 0 && v.stride(3) != 1 && !(or_columns && v.stride(1) == 1))
    return status::invalid(argument, "the last dimension must be contiguous (stride 1)", bound::exactly, 1,
                           v.stride(3));
  if (v.extent(1) > attention_limits::length)
    return status::invalid(argument, "the tensor has too many rows", bound::at_most, attention_limits::length,
                           v.extent(1));
  return {};
}

/// Whether dimension `d` of `v` has the size that it has in `like`. `message` names both tensors.
template <class First, class Second, int Rank>
GIWA_HOST_DEVICE constexpr status check_same(const tensor_view<First, Rank>& v, const tensor_view<Second, Rank>& like,
                                             int d, const char* argument, const char* message) {
  if (v.extent(d) == like.extent(d)) return {};
  return status::invalid(argument, message, bound::exactly, like.extent(d), v.extent(d));
}

/// The numbers in a row: elements, pairs of integers of 4 bits, or those of a format.
template <class T>
GIWA_HOST_DEVICE constexpr int64 head_size_of(const tensor_view<T, 4>& v) {
  if constexpr (row_format<T>) return T::numbers_in(v.extent(3));
  return v.extent(3) * codes_of<stdlib::remove_const_t<T>>;
}
/// Whether rows of `v` have as many numbers as those of `like`.
template <class First, class Second>
GIWA_HOST_DEVICE constexpr status check_head_size(const tensor_view<First, 4>& v, const tensor_view<Second, 4>& like,
                                                  const char* argument, const char* message) {
  if (head_size_of(v) == head_size_of(like)) return {};
  return status::invalid(argument, message, bound::exactly, head_size_of(like), head_size_of(v));
}

/// Whether two views may share memory: exactly where sizes and strides are alike, else by the range of addresses.
template <class First, int RankOfA, class Second, int RankOfB>
GIWA_HOST_DEVICE bool may_share(const tensor_view<First, RankOfA>& a, const tensor_view<Second, RankOfB>& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const byte_range x = range_of(a), y = range_of(b);
  if (x.last <= y.first || y.last <= x.first) return false;
  if constexpr (RankOfA == RankOfB)
    if (a.extents() == b.extents()) return overlap(a, b);
  return true;
}
/// Fails where `a` and `b` may share memory. `message` names both.
template <class First, int RankOfA, class Second, int RankOfB>
GIWA_HOST_DEVICE status check_apart(const tensor_view<First, RankOfA>& a, const tensor_view<Second, RankOfB>& b,
                                    const char* argument, const char* message) {
  return may_share(a, b) ? status::invalid(argument, message) : status{};
}

/// Whether rows of a view begin at multiples of `bytes`, and are multiples of it.
template <class T, int Rank>
GIWA_HOST_DEVICE bool rows_are_aligned(const tensor_view<T, Rank>& v, int64 bytes) {
  const int64 element = sizeof(T);
  bool aligned =
      reinterpret_cast<uint64>(v.data()) % static_cast<uint64>(bytes) == 0 && v.extent(Rank - 1) * element % bytes == 0;
  for (int d = 0; d + 1 < Rank; ++d) aligned = aligned && (v.extent(d) == 1 || v.stride(d) * element % bytes == 0);
  return aligned;
}

/// Numbers that the device reads, one for each sequence or one more; null is none.
GIWA_HOST_DEVICE constexpr tensor_view<const int, 1> view_of(const int* numbers, int64 count) {
  return numbers == nullptr ? tensor_view<const int, 1>() : tensor_view<const int, 1>(numbers, {count});
}

/// The tensors of a call: (batch, length, heads, head size). With packed sequences the batch extent is 1, and the
/// problem has packed.count sequences.
template <class T, class O>
struct attention_views {
  tensor_view<const T, 4> q, k, v;
  tensor_view<O, 4> o;
  sequences packed{};

  GIWA_HOST_DEVICE constexpr bool is_packed() const { return packed.q_offsets != nullptr; }
  GIWA_HOST_DEVICE constexpr int64 sequence_count() const { return is_packed() ? packed.count : q.extent(0); }
  GIWA_HOST_DEVICE constexpr attention_problem problem() const { return problem(is_packed()); }
  /// The same without a look at the offsets, which may be missing where only sizes count.
  GIWA_HOST_DEVICE constexpr attention_problem problem(bool has_offsets) const {
    return {.batch = has_offsets ? packed.count : q.extent(0),
            .seq_q = has_offsets ? -1 : q.extent(1),
            .seq_k = has_offsets ? -1 : k.extent(1),
            .heads = q.extent(2),
            .kv_heads = k.extent(2),
            .head_size = q.extent(3),
            .head_size_v = v.extent(3),
            .element_bytes = int64{sizeof(T)},
            .rows_q = has_offsets ? q.extent(1) : 0,
            .rows_k = has_offsets ? k.extent(1) : 0};
  }
  /// Whether rows of a tensor may belong to no sequence, or to another one.
  GIWA_HOST_DEVICE constexpr bool is_ragged() const {
    return is_packed() || packed.q_lengths != nullptr || packed.k_lengths != nullptr || packed.k_batch_index != nullptr;
  }
  /// Whether every sequence is known to have as many queries as keys.
  GIWA_HOST_DEVICE constexpr bool lengths_agree() const {
    if (packed.q_lengths != packed.k_lengths) return false;
    return is_packed() ? packed.q_offsets == packed.k_offsets && packed.k_batch_index == nullptr
                       : q.extent(1) == k.extent(1);
  }
};

/// The sizes of a call whose pointers may be missing: tensors of rank 3 are packed. Without the number of sequences they are
/// none that a call takes.
template <int Rank, class Views>
GIWA_HOST_DEVICE constexpr attention_problem problem_of_sizes(const Views& v) {
  attention_problem p = v.problem(Rank == 3);
  if (Rank == 3 && p.batch == 0 && (p.rows_q > 0 || p.rows_k > 0)) p.batch = -1;
  return p;
}

/// The rules of `sequences` for packed tensors, and for tensors of rank 4 with `batch` sequences.
GIWA_HOST_DEVICE constexpr status check_packed(const sequences& p) {
  if (p.count < 0)
    return status::invalid("sequences", "the number of sequences is negative", bound::at_least, 0, p.count);
  if (p.max_q < 0) return status::invalid("sequences", "max_q is negative", bound::at_least, 0, p.max_q);
  if (p.q_offsets == nullptr)
    return status::invalid("q_offsets", "the pointer is null: tensors of rank 3 need the offsets of their sequences");
  if (p.k_offsets == nullptr)
    return status::invalid("k_offsets", "the pointer is null: tensors of rank 3 need the offsets of their sequences");
  return {};
}
GIWA_HOST_DEVICE constexpr status check_padded(const sequences& p, int64 batch) {
  if (p.q_offsets != nullptr)
    return status::invalid("q_offsets", "offsets are for packed tensors of rank 3; tensors of rank 4 take lengths");
  if (p.k_offsets != nullptr)
    return status::invalid("k_offsets", "offsets are for packed tensors of rank 3; tensors of rank 4 take lengths");
  if (p.count != 0 && p.count != batch)
    return status::invalid("sequences", "the number of sequences must be the batch of q, or 0", bound::exactly, batch,
                           p.count);
  return {};
}
template <class T, int Rank>
GIWA_HOST_DEVICE constexpr status check_sequences(const sequences& p, const tensor_view<T, Rank>& q) {
  static_assert(
      Rank == 3 || Rank == 4,
      "giwa: attention takes q, k, v and o of rank 3 (packed sequences: all rows, heads, head size) or rank 4 "
      "(batch, rows, heads, head size).");
  if constexpr (Rank == 3)
    return check_packed(p);
  else
    return check_padded(p, q.extent(0));
}
template <class T, int Rank>
GIWA_HOST_DEVICE constexpr tensor_view<T, 4> in_four_dimensions(const tensor_view<T, Rank>& v) {
  if constexpr (Rank == 3)
    return {v.data(), {1, v.extent(0), v.extent(1), v.extent(2)}, {0, v.stride(0), v.stride(1), v.stride(2)}};
  else
    return v;
}

/// Strides of each tensor, head sizes that the call is compiled for, and sizes that two tensors share. `same_batch`: the
/// batch of k is that of q.
template <class T, class Element, class O>
GIWA_HOST_DEVICE constexpr status check_tensors(const tensor_view<const T, 4>& q,
                                                const tensor_view<const Element, 4>& k,
                                                const tensor_view<const Element, 4>& v, const tensor_view<O, 4>& o,
                                                int64 head_size, int64 head_size_v, bool same_batch) {
  first_failure broken;
  if (broken(check_rows(q, "q")) || broken(check_rows(k, "k")) ||
      broken(check_rows(v, "v", element_traits<T>::has_scales)) || broken(check_rows(o, "o")))
    return broken.state;
  if (q.extent(3) != head_size)
    return status::invalid("q", "the head size is not the one that this call was compiled for", bound::exactly,
                           head_size, q.extent(3));
  if (head_size_of(v) != head_size_v)
    return status::invalid("v", "the head size is not the one that this call was compiled for", bound::exactly,
                           head_size_v, head_size_of(v));
  if ((same_batch && broken(check_same(k, q, 0, "k", "k must have as many sequences as q"))) ||
      broken(check_same(v, k, 0, "v", "v must have as many sequences as k")) ||
      broken(check_same(o, q, 0, "o", "o must have as many sequences as q")) ||
      broken(check_same(v, k, 1, "v", "v must have as many rows as k")) ||
      broken(check_same(o, q, 1, "o", "o must have as many rows as q")) ||
      broken(check_same(v, k, 2, "v", "v must have as many heads as k")) ||
      broken(check_same(o, q, 2, "o", "o must have as many heads as q")) ||
      broken(check_head_size(k, q, "k", "k must have the head size of q")))
    return broken.state;
  return check_head_size(o, v, "o", "o must have the head size of v");
}
/// The same for an attention_forward call, and the rules for its sizes.
template <class T, class O>
GIWA_HOST_DEVICE constexpr status check_shapes(const attention_views<T, O>& a, int64 head_size, int64 head_size_v) {
  if (const status s = check_tensors(a.q, a.k, a.v, a.o, head_size, head_size_v, a.packed.k_batch_index == nullptr);
      !s.ok())
    return s;
  if (a.is_packed() && a.packed.count == 0 && (a.q.extent(1) > 0 || a.k.extent(1) > 0))
    return status::invalid("sequences", "count is 0: with offsets, rows of q or k need the number of sequences",
                           bound::at_least, 1, 0);
  if (a.is_packed() && a.packed.q_offsets == a.packed.k_offsets && a.q.extent(1) != a.k.extent(1))
    return status::invalid("k", "with the offsets of q, k must have as many rows as q", bound::exactly, a.q.extent(1),
                           a.k.extent(1));
  return check_sizes(a.problem(), 0);
}

/// A tensor that the call writes shares no memory with an input of the call. `messages` are for q, k, v, q_offsets,
/// k_offsets, q_lengths, k_lengths, k_batch_index.
template <class T, class O, class Written, int Rank>
GIWA_HOST_DEVICE status check_apart_from_inputs(const attention_views<T, O>& a, const tensor_view<Written, Rank>& w,
                                                const char* argument, const char* const (&messages)[8]) {
  const char* shared = may_share(a.q, w) ? messages[0] : may_share(a.k, w) ? messages[1] : nullptr;
  if (shared == nullptr && may_share(a.v, w)) shared = messages[2];
  if (shared == nullptr && a.is_ragged()) {
    const sequences& p = a.packed;
    const int64 count = a.problem().batch;
    const int* const numbers[] = {p.q_offsets, p.k_offsets, p.q_lengths, p.k_lengths, p.k_batch_index};
    for (int i = 0; i < 5 && shared == nullptr; ++i)
      if (may_share(view_of(numbers[i], i < 2 ? count + 1 : count), w)) shared = messages[3 + i];
  }
  return shared == nullptr ? status{} : status::invalid(argument, shared);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
