// SPDX-License-Identifier: MIT
// attention_forward of fp32 on tensor cores: the pass that splits the tensors into the workspace, and the candidates.
#ifndef GIWA_ATTENTION_CHOOSE_FORWARD_SPLIT_CUH
#define GIWA_ATTENTION_CHOOSE_FORWARD_SPLIT_CUH

#include <giwa/attention/choose/forward_sm90.cuh>
#include <giwa/attention/kernels/simt/forward_simt.cuh>
#include <giwa/attention/kernels/sm80/forward_sm80.cuh>
#include <giwa/attention/split_fp16/split_pass.cuh>

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
  static status make(void* to, const Call& call, const split_tensors& in) {
    const auto& a = call.views;
    const attention_problem problem = a.problem();
    auto* const pass = ::new (to)
        prepared_split_pass{{.jobs = {{a.q, a.packed.q_offsets, a.packed.q_lengths, in.q, 1, 0},
                                      {a.k, a.packed.k_offsets, a.packed.k_lengths, in.k, call.heads_per_kv, 0},
                                      {a.v, a.packed.k_offsets, a.packed.k_lengths, in.v, call.heads_per_kv, 0}},
                             .batch = static_cast<int>(problem.batch),
                             .fallback = in.fallback,
                             .any_fallback = in.any_fallback,
                             .heads = problem.heads},
                            0};
    for (typename Op::job& j : pass->params.jobs) {
      const bool is_split = SplitsQ || &j != pass->params.jobs;
      j.blocks = is_split ? static_cast<uint32>(j.to.slots * j.to.heads) : 0;
      pass->blocks += j.blocks;
    }
    return allow_op<Op>({.grid = 1, .block = Op::max_threads});
  }

  status launch(cudaStream_t s) const {
    const auto flags = static_cast<std::size_t>(int64{params.batch} * params.heads + 1) * sizeof(int);
    if (const status state = consume(cudaMemsetAsync(params.fallback, 0, flags, s)); !state.ok()) return state;
    return enqueue_op(s, {.grid = blocks, .block = Op::max_threads}, Op{}, params);
  }
};

/// fp32 on tensor cores: a pass that splits the tensors, a kernel that multiplies them, and the portable kernel for the heads that
/// split fp16 cannot represent.
template <class Pass, class Kernel, class Rest>
struct prepared_split {
  optional_kernel<Pass> pass;
  optional_kernel<Kernel> kernel;
  optional_kernel<Rest> rest;

  /// `arguments` are those of Kernel::make() after the memory.
  template <class Call, class... Arguments>
  static status make(void* to, const Call& call, const split_tensors& in, const attention_schedule& rest,
                     const Arguments&... arguments) {
    auto* const made = ::new (to) prepared_split;
    status state = made->pass.make(call, in);
    if (state.ok()) state = made->kernel.make(arguments...);
    return state.ok() ? made->rest.make(decltype(Rest::params){call, rest, in.fallback, in.any_fallback}) : state;
  }
  status launch(cudaStream_t s) const { return launch_all(s, pass, kernel, rest); }
  const auto& call() const { return rest.value().call(); }
};

/// What the candidates for fp32 share. `Parts` of a number are multiplied: 2, or 1 for tf32.
template <class O, int HeadSize, int HeadSizeV, class Mask, class Score, int Parts>
struct forward_split : candidate {
  using call_params = attention_params<fp32, O, Mask, Score>;
  using rest_op = simt_attention_op<fp32, O, HeadSize, HeadSizeV, Mask, Score>;
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // A group of the pass has the keys of a tile, or the queries.
  template <class Kernel, int Group, bool SplitsQ>
  using prepared_by =
      prepared_split<prepared_split_pass<split_op<Parts, widest, Group>, SplitsQ>, Kernel, prepared_tiles<rest_op>>;

  static status suits(const call_params& call) {
    // Within this range the exponents of split fp16, at least -54 each, and of the scale add up to a normal float.
    const float size = call.scale < 0 ? -call.scale : call.scale;
    const bool reached = size == 0 || (size >= 0x1p-18f && size <= 0x1p60f);
    // Exponents and fallback flags belong to one sequence, so no sequence may read the keys of another.
    const bool own_keys = call.views.packed.k_batch_index == nullptr;
    return call.counter != nullptr && reached && own_keys && call.views.k.extent(1) > 0 ? status{} : fits_another_tile;
  }
};

template <class O, int HeadSize, int HeadSizeV, class Policies, class Mask, class Score, int Parts, bool Compiled>
struct forward_split_sm80 : forward_split<O, HeadSize, HeadSizeV, Mask, Score, Parts> {
  using base = forward_split<O, HeadSize, HeadSizeV, Mask, Score, Parts>;
  using policy = typename Policies::type;
  using op = sm80_attention_op<fp32, O, policy, Mask, Score>;
  static constexpr int group = policy::block_n > policy::block_m ? policy::block_n : policy::block_m;
  using prepared = typename base::template prepared_by<prepared_tiles<op>, group, true>;
  static constexpr bool compiled = Compiled;

  static bool runs_on(const gpu_traits& gpu) { return gpu.mma && gpu.shared_bytes >= shared_bytes_of<op>; }
  static status make(void* to, const typename base::call_params& call, const gpu_traits&) {
    const split_tensors in = carve_split_tensors(call, Parts, policy::block_m, policy::block_n);
    const typename op::params params{call, schedule_of<op>(call, policy::slices), in};
    return prepared::make(to, call, in, schedule_of<typename base::rest_op>(call, 1), params);
  }
};

/// The Hopper kernel splits q itself.
template <class O, int HeadSize, int HeadSizeV, class Policies, class Mask, class Score, int Parts, bool Compiled>
struct forward_split_sm90 : forward_split<O, HeadSize, HeadSizeV, Mask, Score, Parts> {
  using base = forward_split<O, HeadSize, HeadSizeV, Mask, Score, Parts>;
  using policy = typename Policies::type;
  using op = sm90_attention_op<fp32, O, policy, Mask, Score>;
  using prepared = typename base::template prepared_by<prepared_sm90<op>, policy::block_n, false>;
  static constexpr bool compiled = Compiled;

  static split_tensors split(const typename base::call_params& call) {
    return carve_split_tensors(call, Parts, 64, policy::block_n);
  }
  static status suits(const typename base::call_params& call) {
    status s = base::suits(call);
    if (!s.ok()) return s;
    const split_tensors in = split(call);
    s = check_tensor_map(in.k.view(), "k");
    return s.ok() ? check_tensor_map(in.v.view(), "v") : s;
  }
  static result<gpu_traits> gpu() { return current_gpu(path_of<op>()); }
  static bool runs_on(const gpu_traits& gpu) { return gpu.wgmma; }
  static status make(void* to, const typename base::call_params& call, const gpu_traits& gpu) {
    const split_tensors in = split(call);
    return prepared::make(to, call, in, schedule_of<typename base::rest_op>(call, 1), call, gpu, in.q.view(),
                          in.k.view(), in.v.view(), in);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
