// SPDX-License-Identifier: MIT
// Launches the pass that splits k and v of an fp32 call, and for some kernels q, into the workspace.
#ifndef GIWA_ATTENTION_SPLIT_FP16_LAUNCH_CUH
#define GIWA_ATTENTION_SPLIT_FP16_LAUNCH_CUH

#include <giwa/attention/choose/launch.cuh>
#include <giwa/attention/problem/params.hpp>
#include <giwa/attention/split_fp16/split_pass.cuh>
#include <giwa/grid/launch.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Returns the split tensors of a call, laid out in its workspace.
template <class O, class Mask, class Score>
split_tensors carve_split_tensors(const attention_params<fp32, O, Mask, Score>& call, int parts, int group_q,
                                  int group_k) {
  const auto& a = call.views;
  const attention_problem p = a.problem();
  workspace_layout workspace{reinterpret_cast<unsigned char*>(call.counter)};
  const auto rows_of = [](const auto& v) { return v.extent(0) * v.extent(1); };
  split_tensors in = split_tensors::lay_out(
      workspace, {p.batch, rows_of(a.q), rows_of(a.k), p.heads, p.kv_heads, p.head_size, p.head_size_v}, parts, group_q,
      group_k);
  const auto set_sizes = [&](split_tensor& t, const tensor_view<const float, 4>& from) {
    t.sequences = from.extent(0), t.length = from.extent(1), t.heads = static_cast<int>(from.extent(2));
    t.per_sequence = a.is_packed() ? 0 : ceil_div(t.length, int64{t.group});
    t.slots = a.is_packed() ? split_tensors::slots_of(t.length, p.batch, t.group) : t.sequences * t.per_sequence;
  };
  set_sizes(in.q, a.q), set_sizes(in.k, a.k), set_sizes(in.v, a.v);
  return in;
}

/// The prepared pass that splits k and v, and q if `SplitsQ`, and flags the heads that are left to the fallback kernel.
template <class Op, bool SplitsQ>
struct prepared_split_pass {
  typename Op::params params;
  int64 blocks;

  template <class Call>
  static prepared_split_pass of(const Call& call, const split_tensors& in) {
    const auto& a = call.views;
    const attention_problem problem = a.problem();
    prepared_split_pass pass{{.jobs = {{a.q, a.packed.q_offsets, a.packed.q_lengths, in.q, 1, 0},
                                       {a.k, a.packed.k_offsets, a.packed.k_lengths, in.k, call.heads_per_kv, 0},
                                       {a.v, a.packed.k_offsets, a.packed.k_lengths, in.v, call.heads_per_kv, 0}},
                              .batch = static_cast<int>(problem.batch),
                              .fallback = in.fallback,
                              .any_fallback = in.any_fallback,
                              .heads = problem.heads},
                             0};
    for (typename Op::job& j : pass.params.jobs) {
      const bool is_split = SplitsQ || &j != pass.params.jobs;
      j.blocks = is_split ? static_cast<uint32>(j.to.slots * j.to.heads) : 0;
      pass.blocks += j.blocks;
    }
    return pass;
  }

  status launch(cudaStream_t s) const {
    const auto flags = static_cast<std::size_t>(int64{params.batch} * params.heads + 1) * sizeof(int);
    if (const status state = consume(cudaMemsetAsync(params.fallback, 0, flags, s)); !state.ok()) return state;
    return enqueue_op(s, {.grid = blocks, .block = Op::max_threads}, Op{}, params);
  }
};

/// The pass, and the kernel that reads the split tensors.
template <class Kernel, class Op, bool SplitsQ>
struct prepared_split {
  prepared_split_pass<Op, SplitsQ> pass;
  prepared_kernel<Kernel> kernel;

  /// `arguments` are those of Kernel::make().
  template <class Call, class... Arguments>
  static status make(void* to, const split_tensors& in, const Call& call, const Arguments&... arguments) {
    auto* const made = ::new (to) prepared_split{prepared_split_pass<Op, SplitsQ>::of(call, in), {}};
    const status state = allow_op<Op>({.grid = 1, .block = Op::max_threads});
    return state.ok() ? made->kernel.template make<Kernel>(call, arguments...) : state;
  }
  status launch(cudaStream_t s) const {
    const status state = pass.launch(s);
    return state.ok() ? kernel.launch(s) : state;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
