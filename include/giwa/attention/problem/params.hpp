// SPDX-License-Identifier: MIT
// The parameters of an attention kernel, and the view of one head of one sequence that follows from them.
#ifndef GIWA_ATTENTION_PROBLEM_PARAMS_HPP
#define GIWA_ATTENTION_PROBLEM_PARAMS_HPP

#include <giwa/attention/problem/checks.hpp>
#include <giwa/attention/problem/dropout.hpp>
#include <giwa/attention/problem/mask_combinators.hpp>
#include <giwa/attention/problem/masks.hpp>
#include <giwa/base/uninitialized.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Which rows of the tensors one head of one sequence has.
struct head_place {
  int batch, head;
  int offset;                          // diagonal - query
  int sequence;                        // index into the batch of q and o: 0 for packed ones
  int key_sequence;                    // index into the batch of k and v
  int kv_head;                         // index into the heads of k and v
  int first_query_row, first_key_row;  // rows of the tensors before this sequence's
  int query_count, key_count;

  GIWA_HOST_DEVICE int queries() const { return query_count; }
  GIWA_HOST_DEVICE int keys() const { return key_count; }
};

/// One head of one sequence. The views contain the rows of this sequence and no others.
template <class T, class O>
struct attention_head : head_place, with_scales<T, head_scales> {
  tensor_view<const T, 2> q, k, v;  // (length, head size)
  tensor_view<O, 2> o;              // (queries, head size of v)
  float* lse;                       // of the first query, or null
  int64 lse_stride;
};

/// The parameters of every attention kernel and of the CPU path, after the checks.
template <class T, class O, class Mask, class Score>
struct attention_params : with_scales<T, attention_scales> {
  attention_views<T, O> views;
  Mask mask;
  Score score;
  float scale;
  tensor_view<float, 3> lse;
  const float* sinks;  // (heads) or null
  int64 sink_stride;
  work_counter* counter;  // the workspace, or null
  bool bottom_right;      // the offset of the diagonal is keys - queries, else diagonal_offset
  int diagonal_offset;
  int heads_per_kv;  // heads of queries for each of keys
  bool ragged;       // rows of the tensors may belong to no sequence, or to another one

  GIWA_HOST_DEVICE head_place place_of(int batch, int head) const {
    const auto& a = views;
    const sequences& of = a.packed;
    int64 q_begin = 0, q_length = a.q.extent(1), k_begin = 0, k_length = a.k.extent(1);
    int64 sequence = batch, key_sequence = batch;
    if (ragged) {  // one question for plain tensors: the tile scheduler of the Hopper kernel has no time for more
      // Lengths, offsets and indices come from device memory, unchecked. Out of range they give no rows, never rows of
      // another tensor.
      const auto clamp = [](int64 x, int64 most) { return x < 0 ? 0 : x > most ? most : x; };
      bool has_keys = true;
      if (of.k_batch_index != nullptr) {
        key_sequence = of.k_batch_index[batch];
        has_keys = key_sequence >= 0 && key_sequence < (a.is_packed() ? of.count : a.k.extent(0));
        if (!has_keys) key_sequence = 0;
      }
      if (a.is_packed()) {
        const int64 q_end = clamp(of.q_offsets[batch + 1], q_length),
                    k_end = clamp(of.k_offsets[key_sequence + 1], k_length);
        q_begin = clamp(of.q_offsets[batch], q_end);
        k_begin = clamp(of.k_offsets[key_sequence], k_end);
        q_length = q_end - q_begin;
        k_length = k_end - k_begin;
        sequence = key_sequence = 0;
      }
      if (of.q_lengths != nullptr) q_length = clamp(of.q_lengths[batch], q_length);
      if (of.k_lengths != nullptr) k_length = clamp(of.k_lengths[batch], k_length);
      if (!has_keys) k_length = 0;
    }
    return {batch,
            head,
            bottom_right ? static_cast<int>(k_length - q_length) : diagonal_offset,
            static_cast<int>(sequence),
            static_cast<int>(key_sequence),
            heads_per_kv == 1 ? head : head / heads_per_kv,
            static_cast<int>(q_begin),
            static_cast<int>(k_begin),
            static_cast<int>(q_length),
            static_cast<int>(k_length)};
  }

  GIWA_HOST_DEVICE attention_head<T, O> at(int batch, int head) const { return at(place_of(batch, head)); }
  GIWA_HOST_DEVICE attention_head<T, O> at(const head_place& h) const {
    const auto slice = [](const auto& v, int64 n, int64 begin, int64 length, int64 head) {
      using view = tensor_view<typename stdlib::remove_cvref_t<decltype(v)>::element_type, 2>;
      return view{v.data() + (n * v.stride(0) + begin * v.stride(1) + head * v.stride(2)),
                  {length, v.extent(3)},
                  {v.stride(1), v.extent(3) == 1 ? 1 : v.stride(3)}};
    };
    float* const lse_row =
        lse.data() == nullptr
            ? nullptr
            : lse.data() + (h.sequence * lse.stride(0) + h.head * lse.stride(1) + h.first_query_row * lse.stride(2));
    return {h,
            scales_of_head(*this, h),
            slice(views.q, h.sequence, h.first_query_row, h.queries(), h.head),
            slice(views.k, h.key_sequence, h.first_key_row, h.keys(), h.kv_head),
            slice(views.v, h.key_sequence, h.first_key_row, h.keys(), h.kv_head),
            slice(views.o, h.sequence, h.first_query_row, h.queries(), h.head),
            lse_row,
            lse.stride(2)};
  }
};

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
template <class T, class O, class Mask, class Score>
attention_params<T, O, Mask, Score> params_of(const attention_views<T, O>& a, const Mask& mask, const Score& score,
                                              const attention_options& options) {
  const float scale = options.scale.of(a.q.extent(3));
  const alignment align = diagonal_of(mask, score, options.align);
  with_scales<T, attention_scales> scales;
  if constexpr (element_traits<T>::has_scales) scales.scales = options.scales;
  return {scales,
          a,
          mask,
          score,
          scale,
          options.lse,
          options.sinks.data(),
          options.sinks.stride(0),
          options.workspace.extent(0) == 0 ? nullptr : reinterpret_cast<work_counter*>(options.workspace.data()),
          align.is_bottom_right(),
          align.fixed_offset(),
          static_cast<int>(a.k.extent(2) == 0 ? 1 : a.q.extent(2) / a.k.extent(2)),
          a.is_ragged()};
}
#endif

/// The rows of a view (rows, head size) with a constant stride.
template <class T>
class strided_rows {
 public:
  GIWA_HOST_DEVICE explicit strided_rows(const tensor_view<T, 2>& view)
      : data_(view.data()), stride_(view.stride(0)), count_(view.extent(0)) {}

  /// The first element of row n, whose elements are contiguous; 0 <= n < count().
  GIWA_HOST_DEVICE T* operator[](int64 n) const { return data_ + n * stride_; }
  GIWA_HOST_DEVICE int64 count() const { return count_; }

 private:
  T* data_;
  int64 stride_, count_;
};

/// The rows of one head of one sequence. The CPU path and the reference take any type with these members: operator[] of
/// k and v gives what host_widen() and exact_element() read, and an lse of -inf is no prior.
template <class T, class O>
struct head_rows {
  strided_rows<const T> q, k, v;
  strided_rows<O> o;
  static constexpr bool has_prior = false;
  GIWA_HOST_DEVICE explicit head_rows(const attention_head<T, O>& h) : q(h.q), k(h.k), v(h.v), o(h.o) {}
};

template <class T, class O>
  requires(element_traits<T>::has_scales)
struct head_rows<T, O> {
  scaled_rows<T> q, k, v;
  strided_rows<O> o;
  static constexpr bool has_prior = false;
  GIWA_HOST_DEVICE explicit head_rows(const attention_head<T, O>& h)
      : q(h.q, h.scales.q), k(h.k, h.scales.k), v(h.v, h.scales.v, h.scales.channel, h.scales.mean), o(h.o) {}
};

/// The head that a call's parameters describe, and its rows. Parameters of other calls have other overloads.
///@{
template <class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE attention_head<T, O> head_of(const attention_params<T, O, Mask, Score>& p, int batch, int head) {
  return p.at(batch, head);
}
template <class T, class O>
GIWA_HOST_DEVICE head_rows<T, O> rows_of(const attention_head<T, O>& h) {
  return head_rows<T, O>(h);
}
template <class Params>
using head_type = decltype(head_of(stdlib::declval<const Params&>(), 0, 0));
template <class Params>
using rows_type = decltype(rows_of(stdlib::declval<const head_type<Params>&>()));
///@}

/// Element i of a row, exactly.
template <floating_format T>
GIWA_HOST_DEVICE double exact_element(const T* row, int64 i) {
  return convert<double>{}(row[i]);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
