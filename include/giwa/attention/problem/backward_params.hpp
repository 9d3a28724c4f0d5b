// SPDX-License-Identifier: MIT
// The tensors and the parameters of attention_backward, and the views of one head's rows that follow from them.
#ifndef GIWA_ATTENTION_PROBLEM_BACKWARD_PARAMS_HPP
#define GIWA_ATTENTION_PROBLEM_BACKWARD_PARAMS_HPP

#include <giwa/attention/problem/backward_options.hpp>
#include <giwa/attention/problem/params.hpp>
#include <giwa/attention/problem/score_gradient.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Whether a view is not there: neither a pointer nor elements.
template <class V, int Rank>
GIWA_HOST_DEVICE constexpr bool is_absent(const tensor_view<V, Rank>& v) {
  return !is_given(v);
}

/// The tensors of a call in four dimensions. T is the element type of q, k and v, O that of o and dout, G that of the
/// gradients. A gradient that is not computed is an empty view.
template <class T, class O, class G>
struct backward_views {
  attention_views<T, const O> in;   // q, k, v, o and the sequences
  tensor_view<const float, 3> lse;  // (batch, heads, rows of q); packed: (1, heads, all rows)
  tensor_view<const O, 4> dout;     // like o
  tensor_view<G, 4> dq, dk, dv;     // like q, k, v
};

/// The parameters of the kernels and of the CPU path, after the checks.
template <class T, class O, class G, class Mask, class Score>
struct backward_params {
  backward_views<T, O, G> views;
  attention_params<T, const O, Mask, Score> call;  // for heads, scale, mask, score modifier and sinks; its lse is empty
  tensor_view<const float, 3> dlse;                // or empty
  tensor_view<float, 1> dsinks;                    // or empty
  backward_workspace workspace;                    // on a stream
  bool accumulate, accumulates_keys;               // dk and dv have their own
  // The inputs as split fp16, or null pointers: the call does not run on tensor cores.
  stdlib::conditional_t<element_traits<T>::is_split, split_backward_tensors, nothing> split{};
  static constexpr bool adds_bias = tiled_bias<Score>::exists && tiled_bias<Score>::adds;
  stdlib::conditional_t<adds_bias, bias_order, nothing> order{};

  using head = attention_head<T, const O>;
  using call_type = attention_params<T, const O, Mask, Score>;
  static constexpr int parameters = gradient_of<Score>::parameters;

  /// The same for a kernel that writes dk and dv.
  GIWA_HOST_DEVICE backward_params of_keys() const {
    backward_params p = *this;
    p.accumulate = accumulates_keys;
    return p;
  }

  /// The rows of a head in a tensor with the rows of q.
  template <class V, class Head>
  GIWA_HOST_DEVICE tensor_view<V, 2> query_rows(const tensor_view<V, 4>& v, const Head& h) const {
    return rows(v, h.sequence, h.first_query_row, h.head, h.queries());
  }
  /// The first `count` rows of a head in a tensor with the rows of k.
  template <class V, class Head>
  GIWA_HOST_DEVICE tensor_view<V, 2> key_rows(const tensor_view<V, 4>& v, const Head& h, int64 count) const {
    return rows(v, h.key_sequence, h.first_key_row, h.kv_head, count);
  }
  /// The lse and the delta of row `row` of a tensor's sequence and head, from the sum of dout * o over it. The lse of a row
  /// without keys is infinity here, so that its P is 0. So is one below -2^24 if there is a score modifier: that is how
  /// a modifier masks a whole row by a finite number, as -1e9, and fp32 does not hold how many keys such an lse counts.
  GIWA_HOST_DEVICE row_terms terms_of(int64 sequence, int64 head_, int64 row, float sum) const {
    const auto at = [&](const tensor_view<const float, 3>& v) {
      return v.data()[sequence * v.stride(0) + head_ * v.stride(1) + row * v.stride(2)];
    };
    const float l = at(views.lse);
    const bool empty = l == -infinity_of<float> || (!is_plain_score<Score> && l < -0x1p24f);
    return {empty ? infinity_of<float> : l, is_absent(dlse) ? sum : sum - at(dlse)};
  }
  /// The terms of a row in the workspace.
  GIWA_HOST_DEVICE row_terms& terms_at(int64 sequence, int64 head_, int64 row) const {
    return workspace.terms[row_of(sequence, head_, row)];
  }
  /// The gradients of the parameters of the score modifier that a row has summed.
  GIWA_HOST_DEVICE float* parameter_sums_at(const head_place& h, int64 query) const {
    return workspace.parameter_sums + row_of(h.sequence, h.head, h.first_query_row + query) * parameters;
  }

  /// The first part of dq of tile n of a head's queries.
  template <class Head>
  GIWA_HOST_DEVICE int dq_part_of(const Head& h, int n) const {
    return dq_part_of(h, n, dq_parts::rows_of_tile(views.in.q.extent(3), views.in.v.extent(3)));
  }
  /// The same for tiles of `rows`, a constant where the caller knows it: no division then.
  template <class Head>
  GIWA_HOST_DEVICE int dq_part_of(const Head& h, int n, int rows) const {
    const auto& in = views.in;
    const int64 tile = in.packed.q_offsets != nullptr ? h.first_query_row / rows + h.batch + n
                                                      : h.sequence * ceil_div(in.q.extent(1), int64{rows}) + n;
    return static_cast<int>(dq_parts::of_tile(in.q.extent(3)) * (h.head * workspace.tiles + tile));
  }

  /// Where the sharers of tile n of a head's keys leave their sums, and where each warp counts them.
  struct place_of_sums {
    float* first;  // of the first sharer
    int* arrived;  // of the first warp
    int64 floats;  // of a warp
  };
  template <class Head>
  GIWA_HOST_DEVICE place_of_sums shared_sums_of(const Head& h, int n) const {
    using layout = shared_key_sums;
    const layout& of = workspace.of_keys;
    const auto& in = views.in;
    const int64 tile = in.is_packed() ? h.first_key_row / layout::rows_of_tile + h.batch + n
                                      : h.key_sequence * ceil_div(in.k.extent(1), int64{layout::rows_of_tile}) + n;
    const int64 first_warp = (h.kv_head * of.tiles + tile) * layout::warps;
    const int64 floats = layout::floats_of_warp(in.q.extent(3), in.v.extent(3));
    return {of.sums + first_warp * of.sharers * floats, of.arrived + first_warp, floats};
  }
  /// The same for the n-th tile of keys whose queries are divided.
  GIWA_HOST_DEVICE place_of_sums divided_sums_of(int n, int sharers) const {
    const int64 floats = shared_key_sums::floats_of_warp(views.in.q.extent(3), views.in.v.extent(3));
    const int64 first_warp = int64{n} * shared_key_sums::warps;
    return {workspace.of_keys.sums + first_warp * sharers * floats, workspace.of_keys.arrived + first_warp, floats};
  }

  /// A work tile computes rows of one head, or, one after the other, of all sequences and heads that share what the score
  /// modifier gives gradients to: from the tile's own to these, which are not included.
  struct end_of_sharing {
    int sequence, head;
  };
  GIWA_HOST_DEVICE end_of_sharing end_of(int sequence, int head_) const {
    const gradient_sharing shared = gradient_of<Score>::shared(call.score);
    return {shared.sequences ? static_cast<int>(views.in.sequence_count()) : sequence + 1,
            shared.heads ? static_cast<int>(views.in.q.extent(2)) : head_ + 1};
  }
  /// The number of sequences and of heads of q that have separate work tiles.
  ///@{
  GIWA_HOST_DEVICE int64 tiled_sequences() const {
    return gradient_of<Score>::shared(call.score).sequences && views.in.sequence_count() > 0
               ? 1
               : views.in.sequence_count();
  }
  GIWA_HOST_DEVICE int64 tiled_heads() const {
    return gradient_of<Score>::shared(call.score).heads ? 1 : views.in.q.extent(2);
  }
  ///@}

  /// The terms of a query of a head; those of a query that does not exist give P = 0.
  template <class Head>
  GIWA_HOST_DEVICE row_terms terms_of_query(const Head& h, int query) const {
    if (query >= h.queries()) return {infinity_of<float>, 0};
    return terms_at(h.sequence, h.head, h.first_query_row + query);
  }

  /// The number of sequences of keys, of which several sequences of queries may read the same one (k_batch_index).
  GIWA_HOST_DEVICE int64 key_sequences() const {
    return views.in.is_packed() ? views.in.packed.count : views.in.k.extent(0);
  }
  /// The sequences that may read key sequence n are [first_reader(n), end_reader(n)), as far as is_reader() says so.
  ///@{
  GIWA_HOST_DEVICE int first_reader(int n) const { return views.in.packed.k_batch_index == nullptr ? n : 0; }
  GIWA_HOST_DEVICE int end_reader(int n) const {
    return views.in.packed.k_batch_index == nullptr ? n + 1 : static_cast<int>(views.in.sequence_count());
  }
  GIWA_HOST_DEVICE bool is_reader(int sequence, int n) const {
    const int* const index = views.in.packed.k_batch_index;
    return index == nullptr || index[sequence] == n;
  }
  ///@}
  /// The rows of key sequence n that some sequence reads.
  GIWA_HOST_DEVICE int keys_of(int n) const {
    int most = 0;
    for (int b = first_reader(n); b < end_reader(n); ++b) {
      const int keys = is_reader(b, n) ? call.at(b, 0).keys() : 0;
      most = keys > most ? keys : most;
    }
    return most;
  }

 private:
  GIWA_HOST_DEVICE int64 row_of(int64 sequence, int64 head_, int64 row) const {
    return (sequence * views.in.q.extent(2) + head_) * views.in.q.extent(1) + row;
  }
  template <class V>
  GIWA_HOST_DEVICE static tensor_view<V, 2> rows(const tensor_view<V, 4>& v, int64 sequence, int64 first, int64 head_,
                                                 int64 count) {
    return {v.data() + (sequence * v.stride(0) + first * v.stride(1) + head_ * v.stride(2)),
            {count, v.extent(3)},
            {v.stride(1), v.extent(3) == 1 ? 1 : v.stride(3)}};
  }
};

/// What a mask keeps of a tile of keys that ends before row `end`, for one of several sequences that read these keys: rows
/// past this reader's keys are part of the tile for the others.
template <class Params, class Head>
GIWA_HOST_DEVICE tile_keep keep_of_reader(const Params& p, const Head& h, tile_keep keep, int end) {
  const bool shared = p.views.in.packed.k_batch_index != nullptr;
  return keep == tile_keep::all && shared && end > h.keys() ? tile_keep::some : keep;
}

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
template <class T, class O, class G, class Mask, class Score>
backward_params<T, O, G, Mask, Score> params_of(const backward_views<T, O, G>& a, const Mask& mask, const Score& score,
                                                const attention_backward_options& options) {
  attention_options forward;
  forward.scale = options.scale;
  forward.sinks = options.sinks;
  forward.align = options.align;
  workspace_layout layout{options.workspace.data()};
  const attention_problem problem = a.in.problem();
  const bool with_dq = options.workspace.size() >= backward_workspace_bytes(problem, score);
  backward_workspace workspace = backward_workspace::take(
      layout, problem, gradient_of<Score>::parameters,
      with_dq && sums_dq(problem, 0) && sums_dq_with<Score>(problem, 0),
      shares_keys(problem, 0) && options.workspace.size() >=
                                     backward_workspace_bytes(problem, score, 0, options.any_order, options.split_heads)
          ? sharing_of(options.any_order, options.split_heads)
          : key_sharing::none);
  workspace.any_order = options.any_order;
  backward_params<T, O, G, Mask, Score> p{a,
                                          params_of(a.in, mask, score, forward),
                                          options.dlse,
                                          options.dsinks,
                                          workspace,
                                          options.accumulate,
                                          options.accumulate,
                                          {},
                                          {}};
  if constexpr (decltype(p)::adds_bias)
    if (workspace.dq != nullptr) p.order = bias_order::take(layout, problem);
  if constexpr (element_traits<T>::is_split)
    if (with_dq && !gradient_of<Score>::wanted && has_split_kernels(problem.head_size, problem.head_size_v))
      p.split = split_backward_tensors::take(layout, problem);
  return p;
}

/// The options of a call that stores dk and dv, whatever it accumulates.
struct options_that_store_keys : attention_backward_options {};
template <class T, class O, class G, class Mask, class Score>
backward_params<T, O, G, Mask, Score> params_of(const backward_views<T, O, G>& a, const Mask& mask, const Score& score,
                                                const options_that_store_keys& options) {
  const attention_backward_options& rest = options;
  auto p = params_of(a, mask, score, rest);
  p.accumulates_keys = false;
  return p;
}
#endif

}  // namespace giwa::inline GIWA_ABI::detail

#endif
