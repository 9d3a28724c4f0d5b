// SPDX-License-Identifier: MIT
// A problem of attention_backward on a GPU: its memory there, and the call.
#ifndef GIWA_TEST_GPU_ATTENTION_BACKWARD_GPU_CUH
#define GIWA_TEST_GPU_ATTENTION_BACKWARD_GPU_CUH

#include <giwa/attention_backward.cuh>

#include "support/backward_case.hpp"
#include "support/gpu.cuh"
#include "support/same_bits.hpp"

namespace giwa_test::attention {

/// A case's memory on the GPU. The gradients begin as in the case, the workspace as NaN.
template <class T, class O, class G>
struct backward_on_gpu {
  backward_case<T, O, G>& on_host;
  gpu_array<T> q, k, v;
  gpu_array<O> o, dout;
  gpu_array<G> dq, dk, dv;
  gpu_array<float> lse, dlse, sinks, dsinks;
  gpu_array<int> q_offsets, k_offsets, q_used, k_used, k_index;
  gpu_array<unsigned char> workspace;

  template <class Score = giwa::plain_score>
  explicit backward_on_gpu(backward_case<T, O, G>& c, const Score& score = {})
      : on_host(c),
        q(c.of.q.memory),
        k(c.of.k.memory),
        v(c.of.v.memory),
        o(c.of.o.memory),
        dout(c.dout.memory),
        dq(c.dq.memory),
        dk(c.dk.memory),
        dv(c.dv.memory),
        lse(c.of.lse.memory),
        dlse(c.dlse.memory),
        sinks(c.of.sinks.memory),
        dsinks(c.dsinks.memory),
        q_offsets(c.of.q_offsets),
        k_offsets(c.of.k_offsets),
        q_used(c.of.options.q_used),
        k_used(c.of.options.k_used),
        k_index(c.of.options.k_index),
        workspace(std::vector<unsigned char>(workspace_bytes(c, score), 0xff)) {}

  template <class Score>
  static std::size_t workspace_bytes(backward_case<T, O, G>& c, const Score& score) {
    const giwa::attention_problem p = c.views().in.problem();
    return static_cast<std::size_t>(
        c.has_least_workspace ? giwa::detail::least_backward_workspace_bytes(p, score)
                              : giwa::detail::backward_workspace_bytes(p, score, 0, c.any_order, c.split_heads));
  }
  giwa::detail::backward_views<T, O, G> views() const {
    auto a = on_host.views();
    const auto move = [](const int*& p, const gpu_array<int>& to) { p = p == nullptr ? nullptr : to.data(); };
    a.in.q = on_host.of.q.at(q.data()), a.in.k = on_host.of.k.at(k.data()), a.in.v = on_host.of.v.at(v.data());
    a.in.o = on_host.of.o.at(o.data()), a.dout = on_host.dout.at(dout.data());
    a.lse = on_host.of.lse.at(lse.data());
    if (on_host.wants_q) a.dq = on_host.dq.at(dq.data());
    if (on_host.wants_k) a.dk = on_host.dk.at(dk.data());
    if (on_host.wants_v) a.dv = on_host.dv.at(dv.data());
    move(a.in.packed.q_offsets, q_offsets), move(a.in.packed.k_offsets, k_offsets);
    move(a.in.packed.q_lengths, q_used), move(a.in.packed.k_lengths, k_used);
    move(a.in.packed.k_batch_index, k_index);
    return a;
  }
  giwa::attention_backward_options call_options() const {
    auto a = on_host.call_options();
    if (on_host.has_dlse) a.dlse = on_host.dlse.at(dlse.data());
    if (on_host.of.options.sinks)
      a.sinks = on_host.of.sinks.at(sinks.data()), a.dsinks = on_host.dsinks.at(dsinks.data());
    a.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
    return a;
  }
  /// Copies the gradients into the case; waits for the GPU.
  void read_back() const {
    on_host.dq.memory = dq.to_host(), on_host.dk.memory = dk.to_host(), on_host.dv.memory = dv.to_host();
    on_host.dsinks.memory = dsinks.to_host();
  }
};

/// Runs a case on the GPU, whose inputs are ready, twice, which must give the same bits, also of dq if its order is fixed; empty,
/// or what went wrong.
template <int HeadSize, int HeadSizeV, class T, class O, class G, class Mask, class Score>
std::string run(backward_case<T, O, G>& c, const Mask& mask, const Score& score) {
  std::vector<G> dq, dk, dv;
  std::vector<float> dsinks;
  for (int round = 0; round < 2; ++round) {
    c.clear_outputs();
    const backward_on_gpu<T, O, G> gpu(c);
    const giwa::stream s = new_stream();
    const giwa::status state = backward_of<HeadSize, HeadSizeV>(s, gpu.views(), mask, score, gpu.call_options());
    if (!state.ok()) return giwa::format_status(state).c_str();
    giwa::throw_if_failed(giwa::synchronize(s));
    gpu.read_back();
    if (round == 1 && !((c.any_order || same_bits(dq, c.dq.memory)) && same_bits(dk, c.dk.memory) &&
                        same_bits(dv, c.dv.memory) && same_bits(dsinks, c.dsinks.memory)))
      return "other bits in the second call";
    dq = c.dq.memory, dk = c.dk.memory, dv = c.dv.memory, dsinks = c.dsinks.memory;
  }
  return "";
}

}  // namespace giwa_test::attention

#endif
