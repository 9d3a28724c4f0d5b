// SPDX-License-Identifier: MIT
// ring_attention_forward: attention over a sequence whose tokens are divided among ranks; keys and values travel.
#ifndef GIWA_MULTI_RING_FORWARD_HPP
#define GIWA_MULTI_RING_FORWARD_HPP

#include <giwa/attention/call/forward.hpp>
#include <giwa/attention/call/merge.hpp>
#include <giwa/attention/problem/part_of_keys.hpp>
#include <giwa/multi/communicator.hpp>
#include <giwa/multi/ring_checks.hpp>
#include <giwa/multi/ring_exchange.hpp>
#include <giwa/multi/slice_tokens.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The parts of the workspace of a forward call.
struct ring_forward_workspace {
  ring_buffers travelling;
  float* o;             // (parts, batch, rows, heads, head size of v): the result so far, and that of one step
  float* lse;           // (parts, batch, heads, rows)
  unsigned char* call;  // workspace of attention_forward
  int64 call_bytes;

  /// Whether each step is merged with those before it by its kernel.
  GIWA_HOST_DEVICE static constexpr bool merges_in_kernel(const attention_problem& p) {
    return part_of_keys<plain_score>::suits(p.element_bytes, p.head_size, p.head_size_v);
  }
  GIWA_HOST_DEVICE static constexpr ring_forward_workspace take(workspace_layout& layout, attention_problem p,
                                                                const sequence_slices& slices, int rank, int ranks) {
    p.seq_q = slices.of(rank, ranks).count();
    p.seq_k = slices.most(ranks);
    const int64 parts = ranks > 1 && !merges_in_kernel(p) ? 2 : 1,
                rows = saturated_product(parts, saturated_product(saturated_product(p.batch, p.seq_q), p.heads));
    const ring_buffers travelling = ring_buffers::take(layout, p, ranks);
    float* const o = layout.take<float>(saturated_product(rows, p.head_size_v));
    float* const lse = layout.take<float>(rows);
    const int64 bytes = workspace_bytes(p);
    return {travelling, o, lse, layout.take<unsigned char>(bytes), bytes};
  }
};

/// Takes one thread of a GPU some microseconds, and no time on the host.
struct short_pause {
  static constexpr int cycles = 10000;
  GIWA_HOST_DEVICE void operator()(index<1>) const {
#if defined(__CUDA_ARCH__)
    for (const auto begin = clock64(); clock64() - begin < cycles;) {
    }
#endif
  }
};

inline namespace GIWA_ARCH_TAG {

/// One rank's part of a ring, forward.
template <int HeadSize, int HeadSizeV, class Where, class Comm, class T, class O, class Mask, class Score>
struct ring_forward {
  const Where& where;
  const Comm& comm;
  const attention_views<T, O>& own;
  const ring_plan<Mask>& plan;
  const Score& score;
  const attention_options& options;
  const ring_forward_workspace& workspace;
  static constexpr bool in_kernel = part_of_keys<Score>::suits(sizeof(T), HeadSize, HeadSizeV);

  status run() const {
    const int rank = comm.rank(), last = plan.last_step(rank);
    const bool gaps = plan.later(rank, 0).has_gaps;
    const key_value_ring<T, Comm, Mask> ring(comm, plan, workspace.travelling, own.k, own.v);
    status state;
    for (int step = 0; step < plan.ranks && state.ok(); ++step) {
      const bool under_way = ring.exchanges(step);
      if (under_way)
        state = comm.exchange(where, [&](const auto& link) {
          const status s = ring.send(step, link);
          return s.ok() ? ring.receive(step, link) : s;
        });
      // The kernel that sends must begin before that of attention, which keeps all multiprocessors until the step is
      // computed. Both wait for the same work, and the larger one would begin first. 2 H100, 2026-11-25, causal, 16
      // heads of 128: 32768 tokens wait
      // 0.54 of 4.03 ms for messages without a pause, and 0.003 of 3.58 with it; 8192 tokens 0.15 of 0.49, 0.003 of 0.38.
      if (state.ok() && under_way) state = for_all(where, extents{1}, short_pause{});
      if (state.ok()) state = compute(step, last, gaps, under_way, ring.keys(step), ring.values(step));
      if (state.ok() && under_way) state = comm.wait(where);
    }
    return state;
  }

 private:
  /// Attention of the rows that see something of the slice of this step, and the merge with the steps before it: by the kernel
  /// where that can be, which writes complete rows to o. Apart it took 7 % of a forward pass of 32768 tokens and 2 % of one of
  /// 131072 (4 H200, 2026-11-27, 16 heads of 128).
  status compute(int step, int last, bool gaps, bool under_way, const tensor_view<const T, 4>& k,
                 const tensor_view<const T, 4>& v) const {
    const int rank = comm.rank(), of = plan.owner(rank, step);
    token_range keys{0, k.extent(1)}, rows{0, own.q.extent(1)};
    if (step > 0) {
      keys = plan.keys_seen(rank, of);
      rows = plan.queries_seeing(rank, of);
      if (keys.count == 0) return {};
    }
    const auto at = plan.mask_of(rank, rows.first, of, keys.first);
    const int part = step > 0 && !in_kernel ? 1 : 0;
    attention_options call{};
    call.scale = options.scale;
    if (step == 0) call.sinks = options.sinks;  // they belong to one part
    call.workspace = {workspace.call, {workspace.call_bytes}};
    call.lse = in_kernel ? rows_of_lse(options.lse, rows) : lse_part(part, rows);
    // Rows that see nothing later are complete. Where a range of rows may hold some, none is until the end.
    const token_range later = gaps ? rows : plan.later(rank, step).rows;
    const int64 open = later.first - rows.first, open_end = open + later.count;
    const auto attend = [&](const auto& mask) {
      const auto run = [&](const auto& o, const auto& modifier) {
        const attention_views<T, typename stdlib::remove_cvref_t<decltype(o)>::element_type> views{
            rows.of(own.q), keys.of(k), keys.of(v), o, {}};
        return run_attention<HeadSize, HeadSizeV, automatic_tile>(where, views, mask, modifier, call);
      };
      const auto of_part = [&](const auto& modifier) {
        using part_of_call = part_of_keys<stdlib::remove_cvref_t<decltype(modifier)>>;
        if constexpr (in_kernel)
          return run(rows.of(own.o), part_of_call{modifier, o_part(0, rows), lse_part(0, rows), step > 0,
                                                  static_cast<int>(open), static_cast<int>(open_end)});
        else
          return run(o_part(part, rows), modifier);
      };
      if constexpr (is_plain_score<Score>)
        return of_part(score);
      else
        return of_part(slice_score<Score>{score, at.queries, at.keys, at.offset});
    };
    // Where no multiprocessor is busy with messages, a step in which all is seen takes the kernel without a mask.
    status state;
    if constexpr (mask_traits<Mask>::keeps_all || mask_traits<Mask>::is_causal) {
      const bool sees_all = step > 0 || mask_traits<Mask>::keeps_all;
      state = sees_all && !under_way ? attend(full{}) : attend(plan.call_mask(at, step, rows, keys));
    } else {
      state = attend(plan.call_mask(at, step, rows, keys));
    }
    if (!state.ok()) return state;
    if constexpr (in_kernel) {
      return gaps && step == last ? merge(1, {0, own.q.extent(1)}, own.o, options.lse) : state;
    } else {
      if (step != last) return step == 0 ? state : merge(2, rows, o_part(0, rows), lse_part(0, rows));
      // The last step of this rank: its rows are merged into the result, the others are complete.
      const token_range before{0, rows.first}, after{rows.end(), own.q.extent(1) - rows.end()};
      state = merge(part + 1, rows, rows.of(own.o), rows_of_lse(options.lse, rows));
      if (state.ok() && before.count > 0) state = merge(1, before, before.of(own.o), rows_of_lse(options.lse, before));
      if (state.ok() && after.count > 0) state = merge(1, after, after.of(own.o), rows_of_lse(options.lse, after));
      return state;
    }
  }

  /// Merges the first `parts` parts of some rows.
  template <class Out>
  status merge(int parts, const token_range& rows, const tensor_view<Out, 4>& o,
               const tensor_view<float, 3>& lse) const {
    const tensor_view<float, 4> first_o = o_part(0, rows);
    const tensor_view<float, 3> first_lse = lse_part(0, rows);
    const index<4> e = first_o.extents(), d = first_o.strides();
    const index<3> f = first_lse.extents(), g = first_lse.strides();
    return merge_attention(where,
                           tensor_view<const float, 5>(first_o.data(), {parts, e[0], e[1], e[2], e[3]},
                                                       {own.q.extent(0) * d[0], d[0], d[1], d[2], d[3]}),
                           tensor_view<const float, 4>(first_lse.data(), {parts, f[0], f[1], f[2]},
                                                       {own.q.extent(0) * g[0], g[0], g[1], g[2]}),
                           o, lse);
  }

  tensor_view<float, 4> o_part(int part, const token_range& rows) const {
    const index<4> sizes{own.o.extent(0), own.o.extent(1), own.o.extent(2), own.o.extent(3)};
    const tensor_view<float, 4> first(workspace.o, sizes);
    return rows.of(tensor_view<float, 4>(workspace.o + part * first.size(), sizes));
  }
  tensor_view<float, 3> lse_part(int part, const token_range& rows) const {
    const index<3> sizes{own.o.extent(0), own.o.extent(2), own.o.extent(1)};
    const tensor_view<float, 3> first(workspace.lse, sizes);
    return rows_of_lse(tensor_view<float, 3>(workspace.lse + part * first.size(), sizes), rows);
  }
};

}  // namespace GIWA_ARCH_TAG

}  // namespace detail

/// Returns the bytes of workspace that ring_attention_forward() needs: the memory for the slices of keys and values of two
/// other ranks (of one, if there are two ranks), and o in fp32, twice for elements of fp32 and head sizes above 256.
///
/// Parameters:
///   - p: batch, heads, kv_heads, head_size, head_size_v and element_bytes count; the lengths are those of the slices
///   - slices: those of the call
///   - rank, ranks: this rank, and how many there are
GIWA_HOST_DEVICE constexpr int64 ring_workspace_bytes(const attention_problem& p, const sequence_slices& slices,
                                                      int rank, int ranks) {
  if (!slices.check(ranks).ok() || rank < 0 || rank >= ranks) return 0;
  detail::workspace_layout layout;
  detail::ring_forward_workspace::take(layout, p, slices, rank, ranks);
  return layout.bytes;
}

inline namespace GIWA_ARCH_TAG {

/// Computes attention over a sequence whose tokens are divided among ranks: `ring_attention_forward<128>(stream, comm,
/// {.tokens = n}, q, k, v, o, causal{}, {}, {.workspace = w})`. Every rank calls it with its own rows of q, k, v and o, and
/// gets the rows of o (and of lse) that attention_forward() over the whole sequence would give it. Keys and values travel
/// from rank to rank while the slice before them is computed; what no later rank sees does not travel. Only the heads of k
/// and v travel.
///
/// Template arguments: the head size of q and k and, if it differs, that of v and o.
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - comm: this rank's communicator (see `communicator`)
///   - slices: the number of tokens, and which of them each rank has; the same on all ranks
///   - q, o: (batch, tokens of this rank, heads, head size)
///   - k, v: (batch, tokens of this rank, kv heads, head size). With more than one rank the elements of each sequence must
///     be contiguous, because they are sent from where they are
///   - mask, score: for the whole sequence: queries and keys count from its first token. Any mask and any score modifier;
///     memory that they read is this rank's, with the sizes of the whole sequence. segment_ids with causal is the mask of
///     packed sequences, which may cross ranks. Rows that a mask hides are neither computed nor sent, if the mask is
///     known_on_host, any_range and any_head (attention_mask). One that reads memory is evaluated by the kernel alone, so keys
///     travel for it that no rank may see
///   - options: as in attention_forward(), for this rank's rows. The workspace is required: ring_workspace_bytes(), 16-byte
///     aligned
///
/// Partial results are in fp32 and are merged by the rule of merge_attention(), in the order of the ring, so the result has
/// the same bits in each run with the same slices. It differs from that of one GPU by rounding.
///
/// On a stream the call is asynchronous, allocates nothing, does not synchronise the host, and may be captured in a graph if
/// the communicator may. Errors: those of attention_forward() and of the communicator; slices that do not fit the tensors, a
/// workspace that is too small. A rank that returns an error of its arguments sends nothing, so that others wait for it:
/// abort the communicator.
///
/// Source: Liu, Zaharia and Abbeel 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context".
template <int HeadSize, int HeadSizeV = HeadSize, detail::attention_place Where, communicator<Where> Comm,
          class Queries, class Keys, class Values, class O, class Mask = full, class Score = plain_score>
status ring_attention_forward(const Where& where, const Comm& comm, const sequence_slices& slices,
                              const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                              const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o, const Mask& mask = {},
                              const Score& score = {}, const attention_options& options = {}) {
  detail::require_mask_and_score<Mask, Score>();
  static_assert(!detail::drops_weights<Score>,
                "giwa::ring_attention_forward: dropout on several GPUs is not supported.");
  static_assert(detail::attention_element<stdlib::remove_const_t<Queries>>,
                "giwa::ring_attention_forward: elements of q, k and v must be giwa::fp16, bf16 or fp32.");
  detail::require_head_sizes<HeadSize, HeadSizeV>();
  const auto views = detail::views_of(q, k, v, o, {});
  if (const status s =
          detail::check_ring(views, slices, comm.rank(), comm.size(), mask, score, options, HeadSize, HeadSizeV,
                             ring_workspace_bytes(views.problem(), slices, comm.rank(), comm.size()));
      !s.ok())
    return s;
  detail::workspace_layout layout{options.workspace.data()};
  const auto workspace =
      detail::ring_forward_workspace::take(layout, views.problem(), slices, comm.rank(), comm.size());
  const detail::ring_plan<Mask> plan{mask, slices, comm.size(),
                                     detail::diagonal_of(mask, score, options.align).fixed_offset()};
  using call =
      detail::ring_forward<HeadSize, HeadSizeV, Where, Comm, typename decltype(views.q)::value_type, O, Mask, Score>;
  return call{where, comm, views, plan, score, options, workspace}.run();
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
