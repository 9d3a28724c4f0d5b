// SPDX-License-Identifier: MIT
// Gradients of keys and values on their way around a ring, each slice's with its keys and values, and home at the end.
#ifndef GIWA_MULTI_GRADIENT_RING_HPP
#define GIWA_MULTI_GRADIENT_RING_HPP

#include <giwa/multi/ring_exchange.hpp>
#include <giwa/multi/slice_tokens.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Gradients of one slice of keys and values, fp32: (batch, rows, kv heads, head size).
struct slice_gradients {
  tensor_view<float, 4> k, v;
};

/// The memory for gradients: of this rank's slice, what it computes and what comes home, and of other slices, what is
/// computed, sent and received at the same time.
struct gradient_buffers {
  static constexpr int own = 0, home = 1, received = 2, computed = 3;  // `computed` or the one after it
  float* k[5];                                                         // for the rows of the longest slice
  float* v[5];

  GIWA_HOST_DEVICE static constexpr gradient_buffers take(workspace_layout& layout, const attention_problem& p,
                                                          int ranks) {
    gradient_buffers b{};
    const int64 rows = saturated_product(saturated_product(p.batch, p.seq_k), p.kv_heads);
    for (int i = 0; i < (ranks > 1 ? 5 : 1); ++i) {
      b.k[i] = layout.take<float>(saturated_product(rows, p.head_size));
      b.v[i] = layout.take<float>(saturated_product(rows, p.head_size_v));
    }
    return b;
  }
};

/// Which gradients a rank holds in each step. The gradients of a slice begin at the first rank that sees some of it, are
/// passed on until the last one, which sends them home.
template <class Mask>
struct gradient_plan {
  const ring_plan<Mask>& ring;

  /// The steps from the first visitor of a slice that sees some of it to the last one; empty if there is none.
  GIWA_HOST_DEVICE constexpr token_range steps(int of) const {
    token_range all{};
    for (int t = 1; t < ring.ranks; ++t)
      if (ring.keys_seen(ring.visitor(of, t), of).count > 0) all = hull(all, {t, 1});
    return all;
  }
  /// Whether the gradients of a slice are at its visitor in a step.
  GIWA_HOST_DEVICE constexpr bool has(int of, int step) const {
    const token_range s = steps(of);
    return step >= s.first && step < s.end();
  }
  /// The rows of a slice that have gradients from other ranks.
  GIWA_HOST_DEVICE constexpr token_range rows(int of) const { return ring.travelling(of, 1); }
};

/// The gradients that pass one rank: what it computes in a step, and what arrives meanwhile and is added.
template <class Where, class Comm, class Mask>
class gradient_ring {
 public:
  gradient_ring(const Where& where, const Comm& comm, const ring_plan<Mask>& plan, const gradient_buffers& buffers,
                const attention_problem& sizes, bool wants_k, bool wants_v)
      : where_(where),
        comm_(comm),
        plan_{plan},
        buffers_(buffers),
        sizes_(sizes),
        wants_k_(wants_k),
        wants_v_(wants_v) {}

  /// The gradients of the slice of step `step`, of this rank's slice, and those that came home.
  slice_gradients at(int step) const {
    return step == 0 ? in_buffer(gradient_buffers::own, comm_.rank())
                     : in_buffer(gradient_buffers::computed + step % 2, plan_.ring.owner(comm_.rank(), step));
  }
  slice_gradients own() const { return at(0); }
  slice_gradients home() const { return in_buffer(gradient_buffers::home, comm_.rank()); }
  /// The rows of this rank's slice that other ranks have gradients for.
  token_range rows_from_others() const { return plan_.rows(comm_.rank()); }

  /// Sends the gradients of step - 1 on, and receives those of this step.
  template <class Link>
  status pass_on(int step, const Link& link) const {
    const int rank = comm_.rank(), before = plan_.ring.owner(rank, step - 1);
    status s;
    if (step > 1 && plan_.has(before, step - 1)) {
      const bool last = !plan_.has(before, step);
      const int to = last ? before : plan_.ring.visitor(rank, 1);
      s = each(at(step - 1), plan_.rows(before), [&](float* x, int64 bytes) { return link.send(x, bytes, to); });
    }
    return s;
  }
  template <class Link>
  status receive(int step, const Link& link) const {
    const int rank = comm_.rank();
    status s;
    if (arrives(step))
      s = each(arriving(step), plan_.rows(plan_.ring.owner(rank, step)),
               [&](float* x, int64 bytes) { return link.receive(x, bytes, plan_.ring.owner(rank, 1)); });
    if (s.ok() && comes_home(step))
      s = each(home(), rows_from_others(),
               [&](float* x, int64 bytes) { return link.receive(x, bytes, plan_.ring.visitor(rank, step - 1)); });
    return s;
  }
  /// Whether the exchange of this step has something of this rank.
  bool exchanges(int step) const {
    return arrives(step) || comes_home(step) ||
           (step > 1 && plan_.has(plan_.ring.owner(comm_.rank(), step - 1), step - 1));
  }
  /// Sets the gradients of a step to zero where nothing is computed: `computed` of the rows of its slice are stored.
  status begin(int step, const token_range& computed) const {
    const int of = plan_.ring.owner(comm_.rank(), step);
    const token_range all = plan_.rows(of);
    if (!plan_.has(of, step)) return {};
    if (computed.count == 0) return zero(step, all);
    const status s = zero(step, {all.first, computed.first - all.first});
    return s.ok() ? zero(step, {computed.end(), all.end() - computed.end()}) : s;
  }
  /// Adds what arrived in a step, of the ranks that the slice passed before.
  status add_arrived(int step) const {
    if (!arrives(step)) return {};
    const token_range rows = plan_.rows(plan_.ring.owner(comm_.rank(), step));
    return both([&](auto x) { return add_rows(where_, rows.of(at(step).*x), rows.of(arriving(step).*x)); });
  }
  /// Whether gradients of earlier ranks arrive in a step.
  bool arrives(int step) const {
    const int of = plan_.ring.owner(comm_.rank(), step);
    return step > 1 && step < plan_.ring.ranks && plan_.has(of, step - 1) && plan_.has(of, step);
  }

 private:
  status zero(int step, const token_range& rows) const {
    return rows.count > 0 ? both([&](auto x) { return set_to_zero(where_, rows.of(at(step).*x)); }) : status{};
  }
  bool comes_home(int step) const {
    const token_range s = plan_.steps(comm_.rank());
    return s.count > 0 && s.end() == step;
  }
  slice_gradients in_buffer(int i, int of) const {
    const int64 rows = plan_.ring.slices.of(of, plan_.ring.ranks).count();
    const auto view = [&](float* x, int64 size) {
      return tensor_view<float, 4>(x, {sizes_.batch, rows, sizes_.kv_heads, size});
    };
    return {view(buffers_.k[i], sizes_.head_size), view(buffers_.v[i], sizes_.head_size_v)};
  }
  slice_gradients arriving(int step) const {
    return in_buffer(gradient_buffers::received, plan_.ring.owner(comm_.rank(), step));
  }
  /// call(member of slice_gradients) for those that are wanted.
  template <class Call>
  status both(const Call& call) const {
    status s;
    if (wants_k_) s = call(&slice_gradients::k);
    if (wants_v_ && s.ok()) s = call(&slice_gradients::v);
    return s;
  }
  template <class Call>
  status each(const slice_gradients& g, const token_range& rows, const Call& call) const {
    return both([&](auto x) { return for_sequences(g.*x, rows, call); });
  }

  const Where& where_;
  const Comm& comm_;
  gradient_plan<Mask> plan_;
  const gradient_buffers& buffers_;
  attention_problem sizes_;
  bool wants_k_, wants_v_;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
