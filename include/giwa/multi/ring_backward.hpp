// SPDX-License-Identifier: MIT
// ring_attention_backward: the gradients of ring_attention_forward; those of keys and values travel with them.
#ifndef GIWA_MULTI_RING_BACKWARD_HPP
#define GIWA_MULTI_RING_BACKWARD_HPP

#include <giwa/attention/call/backward.hpp>
#include <giwa/multi/gradient_ring.hpp>
#include <giwa/multi/ring_checks.hpp>
#include <giwa/multi/row_groups.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// The parts of the workspace of a backward call.
struct ring_backward_workspace {
  ring_buffers travelling;
  gradient_buffers gradients;
  float* dq;            // (batch, rows, heads, head size)
  unsigned char* call;  // workspace of attention_backward
  int64 call_bytes;

  /// For a call with this score modifier; with the memory for the kernel of all gradients.
  template <class Score>
  GIWA_HOST_DEVICE static constexpr ring_backward_workspace take(workspace_layout& layout, attention_problem p,
                                                                 const sequence_slices& slices, int rank, int ranks) {
    p.seq_q = slices.of(rank, ranks).count();
    p.seq_k = slices.most(ranks);
    const ring_buffers travelling = ring_buffers::take(layout, p, ranks);
    const gradient_buffers gradients = gradient_buffers::take(layout, p, ranks);
    float* const dq = layout.take<float>(saturated_product(rows_of_heads(p), p.head_size));
    const int64 bytes = backward_bytes(p, gradient_of<Score>::parameters, !gradient_of<Score>::wanted);
    return {travelling, gradients, dq, layout.take<unsigned char>(bytes), bytes};
  }
};

/// to = own + others, converted, or added to it; `others` has the rows `rows` of the tensor.
template <class G, int Count>
struct store_gradients {
  tensor_view<G, 4> to;
  tensor_view<const float, 4> own, others;
  token_range rows;
  bool accumulate;
  GIWA_HOST_DEVICE void operator()(index<4> at) const {
    using sums = row_group<float, Count>;
    using results = row_group<G, Count>;
    sums sum = sums::load(own, at);
    if (at[1] >= rows.first && at[1] < rows.end()) sum.add(sums::load(others, at));
    if (accumulate) sum.add(results::load(to, at));
    results result;
    for (int i = 0; i < Count; ++i) result.element[i] = convert<G>{}(sum.element[i]);
    result.store(to, at);
  }
};

/// A slice_score that also receives gradients, as the modifier does: at the positions in the whole sequence.
template <class Score>
struct trained_slice_score : slice_score<Score> {};
template <class Score>
struct gradient_of<trained_slice_score<Score>> : gradient_of<Score> {
  using of_whole = gradient_of<Score>;
  using sliced = trained_slice_score<Score>;

  template <class Real>
  GIWA_HOST_DEVICE static void give(const sliced& f, Real dy, float z, attention_coord c, Real* sums) {
    of_whole::give(f.score, dy, z, f.whole(c), sums);
  }
  GIWA_HOST_DEVICE static constexpr gradient_sharing shared(const sliced& f) { return of_whole::shared(f.score); }
  GIWA_HOST_DEVICE static float& output(const sliced& f, int i, int head) { return of_whole::output(f.score, i, head); }
  template <class Visit>
  GIWA_HOST_DEVICE static constexpr void for_each_output(const sliced& f, const Visit& visit) {
    of_whole::for_each_output(f.score, visit);
  }
};

inline namespace GIWA_ARCH_TAG {

/// One rank's part of a ring, backward.
template <int HeadSize, int HeadSizeV, class Where, class Comm, class T, class O, class G, class Mask, class Score>
struct ring_backward {
  const Where& where;
  const Comm& comm;
  const backward_views<T, O, G>& own;
  const ring_plan<Mask>& plan;
  const Score& score;
  const attention_backward_options& options;
  const ring_backward_workspace& workspace;

  /// In each step all gradients are computed in one call, while keys and values of the next step and the gradients of
  /// the ranks before arrive. These are added, and the sum is sent on in the next step, at the end home. Of this rank's
  /// own slice the later rows are computed last, while its gradients come home.
  status run() const {
    const key_value_ring<T, Comm, Mask> keys(comm, plan, workspace.travelling, own.in.k, own.in.v);
    const gradient_ring<Where, Comm, Mask> gradients(where, comm, plan, workspace.gradients, own.in.problem(),
                                                     wants_k(), wants_v());
    const bool travels = wants_k() || wants_v();
    for (int step = 0; step <= plan.ranks; ++step) {
      bool under_way = false;
      if (const status s = exchange(keys, gradients, step, travels, under_way); !s.ok()) return s;
      const bool home = step == plan.ranks;
      if (const status s =
              home ? compute_later_rows(gradients) : compute(gradients, step, keys.keys(step), keys.values(step));
          !s.ok())
        return s;
      if (under_way)
        if (const status s = comm.wait(where); !s.ok()) return s;
      if (!home && travels)
        if (const status s = gradients.add_arrived(step); !s.ok()) return s;
    }
    return store(gradients);
  }

 private:
  // A rank without rows has no elements either, but its views have heads: it passes on what others want.
  bool wants_k() const { return !is_absent(own.dk) || own.dk.extent(2) > 0; }
  bool wants_v() const { return !is_absent(own.dv) || own.dv.extent(2) > 0; }

  template <class KeyRing, class GradientRing>
  status exchange(const KeyRing& keys, const GradientRing& gradients, int step, bool travels, bool& under_way) const {
    under_way = keys.exchanges(step) || (travels && gradients.exchanges(step));
    if (!under_way) return {};
    return comm.exchange(where, [&](const auto& link) {
      status s = keys.send(step, link);
      if (s.ok() && travels) s = gradients.pass_on(step, link);
      if (s.ok()) s = keys.receive(step, link);
      if (s.ok() && travels) s = gradients.receive(step, link);
      return s;
    });
  }

  /// attention_backward of some rows and keys, which gives the score modifier its gradients too.
  status call(int step, const token_range& rows, const tensor_view<const T, 4>& k, const tensor_view<const T, 4>& v,
              const token_range& keys, const backward_views<T, O, float>& to, bool accumulate,
              bool stores_keys = false) const {
    backward_views<T, O, float> views = to;
    views.in = {rows.of(own.in.q), keys.of(k), keys.of(v), rows.of(own.in.o), {}};
    views.lse = rows_of_lse(own.lse, rows);
    views.dout = rows.of(own.dout);
    attention_backward_options rest{};
    rest.scale = options.scale;
    rest.dlse = rows_of_lse(options.dlse, rows);
    if (step == 0) rest.sinks = options.sinks, rest.dsinks = options.dsinks;
    rest.workspace = {workspace.call, {workspace.call_bytes}};
    rest.accumulate = accumulate;
    rest.any_order = options.any_order, rest.split_heads = options.split_heads;
    const auto at = plan.mask_of(comm.rank(), rows.first, plan.owner(comm.rank(), step), keys.first);
    const auto mask = plan.call_mask(at, step, rows, keys);
    const auto run = [&](const auto& of_slice) {
      return stores_keys
                 ? run_backward<HeadSize, HeadSizeV>(where, views, mask, of_slice, options_that_store_keys{rest})
                 : run_backward<HeadSize, HeadSizeV>(where, views, mask, of_slice, rest);
    };
    const slice_score<Score> sliced{score, at.queries, at.keys, at.offset};
    if constexpr (is_plain_score<Score>)
      return run(score);
    else if constexpr (gradient_of<Score>::wanted)
      return run(trained_slice_score<Score>{sliced});
    else
      return run(sliced);
  }

  struct part {
    token_range rows, keys;
  };
  /// The rows whose own slice is computed last: those of the second piece, or half of all. None if no gradients come home.
  token_range later_rows() const {
    const int64 all = own.in.q.extent(1), first = plan.slices.of(comm.rank(), plan.ranks).ranges[0].count;
    if (plan.travelling(comm.rank(), 1).count == 0 || !(wants_k() || wants_v()) || all < 2) return {all, 0};
    const int64 begin = first > 0 && first < all ? first : all / 2;
    return {begin, all - begin};
  }
  /// The rows that see something of the slice of a step, and what they see; of this rank's own slice all keys, and the
  /// rows before the later ones.
  part part_of(int step) const {
    const int rank = comm.rank(), of = plan.owner(rank, step);
    if (step == 0) return {{0, later_rows().first}, {0, own.in.k.extent(1)}};
    return {plan.queries_seeing(rank, of), plan.keys_seen(rank, of)};
  }

  tensor_view<float, 4> dq() const { return {workspace.dq, own.in.q.extents()}; }
  /// Whether some gradient of queries is wanted in a step: dq, or what follows from it.
  bool wants_q(int step) const {
    return !is_absent(own.dq) || gradient_of<Score>::wanted || (step == 0 && !is_absent(options.dsinks));
  }
  /// What this rank's own slice gives the later rows, added to what they have from others.
  template <class GradientRing>
  status compute_later_rows(const GradientRing& gradients) const {
    const token_range rows = later_rows(), keys{0, own.in.k.extent(1)};
    if (rows.count == 0) return {};
    backward_views<T, O, float> to{};
    if (wants_q(0)) to.dq = rows.of(dq());
    if (wants_k()) to.dk = gradients.own().k;
    if (wants_v()) to.dv = gradients.own().v;
    return call(0, rows, own.in.k, own.in.v, keys, to, /*accumulate=*/true);
  }
  /// The gradients of a step. Those of queries are added to those of the steps before, and those of another slice's keys are stored.
  template <class GradientRing>
  status compute(const GradientRing& gradients, int step, const tensor_view<const T, 4>& k,
                 const tensor_view<const T, 4>& v) const {
    const part p = part_of(step);
    const slice_gradients of_slice = gradients.at(step);
    const bool adds_to_others =
        options.accumulate && (!is_absent(options.dsinks) || gradient_of<Score>::parameters > 0);
    const bool adds = step > 0 || adds_to_others;
    status s;
    if (step > 0)
      s = gradients.begin(step, p.keys);
    else if (adds)
      static_cast<void>(((s = set_to_zero(where, dq()), s.ok())) &&
                        (!wants_k() || (s = set_to_zero(where, of_slice.k), s.ok())) &&
                        (!wants_v() || (s = set_to_zero(where, of_slice.v), s.ok())));
    else if (wants_q(0))
      s = set_to_zero(where, later_rows().of(dq()));
    if (!s.ok() || (p.keys.count == 0 && step > 0) || !(wants_q(step) || wants_k() || wants_v())) return s;
    backward_views<T, O, float> to{};
    if (wants_q(step)) to.dq = p.rows.of(dq());
    if (wants_k()) to.dk = p.keys.of(of_slice.k);
    if (wants_v()) to.dv = p.keys.of(of_slice.v);
    return call(step, p.rows, k, v, p.keys, to, adds, /*stores_keys=*/step > 0);
  }

  template <class GradientRing>
  status store(const GradientRing& gradients) const {
    const slice_gradients mine = gradients.own(), others = gradients.home();
    const token_range rows = gradients.rows_from_others();
    status s;
    if (!is_absent(own.dq)) s = store(own.dq, dq(), {}, {});
    if (s.ok() && wants_k()) s = store(own.dk, mine.k, others.k, rows);
    if (s.ok() && wants_v()) s = store(own.dv, mine.v, others.v, rows);
    return s;
  }
  status store(const tensor_view<G, 4>& to, const tensor_view<const float, 4>& mine,
               const tensor_view<const float, 4>& others, const token_range& rows) const {
    return for_row_groups<4>(
        where,
        [&]<int Size>(stdlib::integral_constant<int, Size>) {
          return store_gradients<G, Size>{to, mine, others, rows, options.accumulate};
        },
        to, mine, others);
  }
};

}  // namespace GIWA_ARCH_TAG

}  // namespace detail

/// Returns the bytes of workspace that ring_attention_backward() needs: the memory for the slices of keys and values of two
/// other ranks, for the fp32 gradients of five slices (with one rank, one), dq in fp32, and that of attention_backward().
/// A last argument is the score modifier of the call, if it has one.
///
/// Parameters:
///   - p, slices, rank, ranks: as in ring_workspace_bytes()
template <score_modifier Score = plain_score>
GIWA_HOST_DEVICE constexpr int64 ring_backward_workspace_bytes(const attention_problem& p,
                                                               const sequence_slices& slices, int rank, int ranks,
                                                               const Score& = {}) {
  if (!slices.check(ranks).ok() || rank < 0 || rank >= ranks) return 0;
  detail::workspace_layout layout;
  detail::ring_backward_workspace::take<Score>(layout, p, slices, rank, ranks);
  return layout.bytes;
}

inline namespace GIWA_ARCH_TAG {

/// Computes the gradients of ring_attention_forward(): dq, dk and dv of this rank's rows from its rows of dout. Keys and
/// values travel as in the forward call, and the fp32 gradients of each slice travel behind them and come home at the end.
///
/// Parameters:
///   - where, comm, slices: as in ring_attention_forward()
///   - q, k, v, o, dout, mask, score: as in attention_backward(), for this rank's rows; o is what ring_attention_forward() wrote,
///     with the same slices
///   - dq, dk, dv: written. An empty view is not computed, on all ranks alike; a rank without rows passes a view of its sizes,
///     (batch, 0, kv heads, head size)
///   - options: lse is what ring_attention_forward() wrote; the workspace is required: ring_backward_workspace_bytes(), 16-byte
///     aligned. dsinks receives the sum over this rank's rows: add it up over the ranks
///
/// The gradients of a score modifier's parameters are summed over this rank's rows too; of bias_with_gradient a rank writes
/// the elements of its queries and the keys that they see.
///
/// Sums are in fp32, in the order of the ring, and rounded once, so the result has the same bits in each run with the same
/// slices, without options.any_order. Streams, capture and errors are as in ring_attention_forward().
///
/// Source: Liu, Zaharia and Abbeel 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context".
template <int HeadSize, int HeadSizeV = HeadSize, detail::attention_place Where, communicator<Where> Comm,
          class Queries, class Keys, class Values, class O, class DO, class DQ, class DK, class DV, class Mask = full,
          class Score = plain_score>
status ring_attention_backward(const Where& where, const Comm& comm, const sequence_slices& slices,
                               const tensor_view<Queries, 4>& q, const tensor_view<Keys, 4>& k,
                               const tensor_view<Values, 4>& v, const tensor_view<O, 4>& o,
                               const tensor_view<DO, 4>& dout, const tensor_view<DQ, 4>& dq,
                               const tensor_view<DK, 4>& dk, const tensor_view<DV, 4>& dv, const Mask& mask = {},
                               const Score& score = {}, const attention_backward_options& options = {}) {
  detail::require_mask_and_score<Mask, Score>();
  static_assert(!detail::drops_weights<Score>,
                "giwa::ring_attention_backward: dropout on several GPUs is not supported.");
  detail::require_head_sizes<HeadSize, HeadSizeV>();
  detail::require_parameter_slopes<Score>();
  const auto views = detail::views_of({}, q, k, v, o, options.lse, dout, dq, dk, dv);
  const int rank = comm.rank(), ranks = comm.size();
  const attention_problem sizes = views.in.problem();
  if (const status s =
          detail::check_ring_backward(views, slices, rank, ranks, mask, score, options, HeadSize, HeadSizeV,
                                      ring_backward_workspace_bytes(sizes, slices, rank, ranks, score));
      !s.ok())
    return s;
  detail::workspace_layout layout{options.workspace.data()};
  const auto workspace = detail::ring_backward_workspace::take<Score>(layout, sizes, slices, rank, ranks);
  const detail::ring_plan<Mask> plan{mask, slices, ranks,
                                     detail::diagonal_of(mask, score, options.align).fixed_offset()};
  using element = stdlib::remove_const_t<Queries>;
  using output = stdlib::remove_const_t<O>;
  using call = detail::ring_backward<HeadSize, HeadSizeV, Where, Comm, element, output, DQ, Mask, Score>;
  return call{where, comm, views, plan, score, options, workspace}.run();
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
