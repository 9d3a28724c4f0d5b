// SPDX-License-Identifier: MIT
// Keys and values on their way around a ring: where they are in each step, and what is sent and received.
#ifndef GIWA_MULTI_RING_EXCHANGE_HPP
#define GIWA_MULTI_RING_EXCHANGE_HPP

#include <giwa/attention/problem/problem.hpp>
#include <giwa/attention/problem/workspace.hpp>
#include <giwa/multi/communicator.hpp>
#include <giwa/multi/ring_plan.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The memory for slices that arrive: one is computed with while the next one arrives.
struct ring_buffers {
  unsigned char* k[2];  // (batch, rows, kv heads, head size), rows: those of the longest slice
  unsigned char* v[2];

  /// For a problem whose seq_k is the length of the longest slice.
  GIWA_HOST_DEVICE static constexpr ring_buffers take(workspace_layout& layout, const attention_problem& p, int ranks) {
    ring_buffers b{};
    const int64 rows = saturated_product(saturated_product(p.batch, p.seq_k), p.kv_heads);
    for (int i = 0; i < 2 && i + 1 < ranks; ++i) {
      b.k[i] = layout.take<unsigned char>(saturated_product(rows, saturated_product(p.head_size, p.element_bytes)));
      b.v[i] = layout.take<unsigned char>(saturated_product(rows, saturated_product(p.head_size_v, p.element_bytes)));
    }
    return b;
  }
};

/// Rows of lse, (batch, heads, rows); an empty view stays empty.
template <class T>
tensor_view<T, 3> rows_of_lse(const tensor_view<T, 3>& lse, const token_range& rows) {
  if (lse.data() == nullptr) return {};
  return {lse.data() + rows.first * lse.stride(2), {lse.extent(0), lse.extent(1), rows.count}, lse.strides()};
}

/// Sends, or receives, rows of a tensor whose sequences are contiguous. `call` is (address, bytes).
template <class T, class Call>
status for_sequences(const tensor_view<T, 4>& x, const token_range& rows, const Call& call) {
  const tensor_view<T, 4> part = rows.of(x);
  const int64 bytes = part.extent(1) * part.extent(2) * part.extent(3) * int64{sizeof(T)};
  status state;
  for (int64 b = 0; b < part.extent(0) && state.ok() && bytes > 0; ++b)
    state = call(part.data() + b * part.stride(0), bytes);
  return state;
}

/// The keys and values of one rank after another, as they pass a rank.
template <class T, class Comm, class Mask>
class key_value_ring {
 public:
  key_value_ring(const Comm& comm, const ring_plan<Mask>& plan, const ring_buffers& buffers,
                 const tensor_view<const T, 4>& k, const tensor_view<const T, 4>& v)
      : comm_(comm), plan_(plan), buffers_(buffers), k_(k), v_(v) {}

  /// The keys and values of step `step`.
  ///@{
  tensor_view<const T, 4> keys(int step) const { return step == 0 ? k_ : received(buffers_.k, k_, step); }
  tensor_view<const T, 4> values(int step) const { return step == 0 ? v_ : received(buffers_.v, v_, step); }
  ///@}

  /// Whether something of step `step` is sent on, or something of the next step arrives.
  bool exchanges(int step) const { return outgoing(step).count > 0 || incoming(step).count > 0; }
  /// Sends what this rank has in step `step` on.
  template <class Link>
  status send(int step, const Link& link) const {
    const auto call = [&](const T* x, int64 bytes) { return link.send(x, bytes, plan_.visitor(comm_.rank(), 1)); };
    if (outgoing(step).count == 0) return {};
    const status s = for_sequences(keys(step), outgoing(step), call);
    return s.ok() ? for_sequences(values(step), outgoing(step), call) : s;
  }
  /// Receives what this rank has in the next step.
  template <class Link>
  status receive(int step, const Link& link) const {
    const auto call = [&](T* x, int64 bytes) { return link.receive(x, bytes, plan_.owner(comm_.rank(), 1)); };
    if (incoming(step).count == 0) return {};
    const status s = for_sequences(received(buffers_.k, k_, step + 1), incoming(step), call);
    return s.ok() ? for_sequences(received(buffers_.v, v_, step + 1), incoming(step), call) : s;
  }

 private:
  token_range outgoing(int step) const {
    return step + 1 < plan_.ranks ? plan_.travelling(plan_.owner(comm_.rank(), step), step + 1) : token_range{};
  }
  token_range incoming(int step) const {
    return step + 1 < plan_.ranks ? plan_.travelling(plan_.owner(comm_.rank(), step + 1), step + 1) : token_range{};
  }
  tensor_view<T, 4> received(unsigned char* const (&buffers)[2], const tensor_view<const T, 4>& like, int step) const {
    const int64 rows = plan_.slices.of(plan_.owner(comm_.rank(), step), plan_.ranks).count();
    return {reinterpret_cast<T*>(buffers[(step - 1) % 2]), {like.extent(0), rows, like.extent(2), like.extent(3)}};
  }

  const Comm& comm_;
  const ring_plan<Mask>& plan_;
  const ring_buffers& buffers_;
  tensor_view<const T, 4> k_, v_;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
