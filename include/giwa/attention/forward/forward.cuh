// SPDX-License-Identifier: MIT
// attention_forward on a stream: which kernel, which tile, how many blocks.
#ifndef GIWA_ATTENTION_FORWARD_FORWARD_CUH
#define GIWA_ATTENTION_FORWARD_FORWARD_CUH

#include <giwa/attention/forward/forward.hpp>
#include <giwa/attention/forward/forward_simt.cuh>
#include <giwa/attention/forward/forward_sm80.cuh>
#include <giwa/attention/forward/forward_sm90.cuh>
#include <giwa/attention/split_fp16/split_pass.cuh>
#include <giwa/device/environment.cuh>
#include <giwa/device/pointer.hpp>
#include <giwa/grid/launch.cuh>
#include <giwa/tile/tile_map.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail::inline GIWA_ARCH_TAG {

/// Whether this file is compiled for an architecture from `first` to before `last`, times ten.
constexpr bool compiled_for(int first, int last) {
  constexpr int list[] = {
#if defined(__CUDA_ARCH_LIST__)
    __CUDA_ARCH_LIST__
#else
    0
#endif
  };
  for (const int a : list)
    if (first <= a && a < last) return true;
  return false;
}

/// A call's work as items of an op.
template <class Op, class T, class O, class Mask, class Score>
attention_grid grid_of(const attention_params<T, O, Mask, Score>& call, int slices, int cluster = 1) {
  // No sequence is longer than all of them, whatever the caller says.
  const int64 all = call.views.q.extent(1), said = call.views.packed.max_q, longest = said < all ? said : all;
  const attention_problem p = call.views.problem();
  const int bytes = static_cast<int>(p.head_size + p.head_size_v) * static_cast<int>(sizeof(T));
  return attention_grid::of(p, longest, Op::rows * cluster, slices, bytes);
}

/// Launches an op with a block for each item, in as many launches as a grid's limit asks for. `more` is what its params have
/// besides.
template <class Op, class Params, class... More>
status launch_attention(cudaStream_t s, const Params& call, int slices, const More&... more) {
  typename Op::params p{call, grid_of<Op>(call, slices), more...};
  for (; p.grid.first < p.grid.items; p.grid.first += launch_limits::grid_x) {
    const int64 left = p.grid.items - p.grid.first;
    const int64 grid = left < launch_limits::grid_x ? left : launch_limits::grid_x;
    if (const status state = launch(s, {.grid = grid, .block = Op::max_threads}, Op{}, p); !state.ok()) return state;
  }
  return {};
}

/// Whether this file may run where there are no asynchronous copies: then it holds the portable kernel for every type.
inline constexpr bool runs_below_sm80 = compiled_for(0, 800);

/// Whether this file may hold the kernel of Hopper; a build for 90 without the a has an empty one, which is never launched.
/// Newer GPUs do not run its instructions: a file for them alone has no such kernel, and a caller's tile is that of mma.sync.
inline constexpr bool has_sm90 = compiled_for(900, 1000);

/// Which kernel serves tensor cores in this program on the current GPU. The one of sm_90 leaves layouts that TMA cannot take,
/// and head sizes above 256, to the one of sm_80.
inline result<attention_path> path_here() {
  if constexpr (!runs_below_sm80 && !has_sm90) {
    return {attention_path::sm80, {}};
  } else {
    const result<device_code> code = code_for_current_device();
    if (code.value.architecture_specific) return {attention_path::sm90, code.state};
    return {code.value.ptx >= 80 ? attention_path::sm80 : attention_path::simt, code.state};
  }
}

/// A tensor as TMA's tiles are cut from it: (sequence, head, row, head size).
template <class T>
tensor_view<T, 4> heads_first(const tensor_view<T, 4>& v) {
  return {v.data(),
          {v.extent(0), v.extent(2), v.extent(1), v.extent(3)},
          {v.stride(0), v.stride(2), v.stride(1), v.stride(3)}};
}

/// How many blocks go through the work of all. A block that moves registers takes a multiprocessor's whole file, and nobody needs
/// to be asked how many fit, which takes microseconds.
template <class Op>
result<int64> persistent_blocks(int cluster) {
  if constexpr (Op::groups == 1) {
    return blocks_at_once<Op>(cluster);
  } else {
    const result<int> device = current_device();
    if (!device.ok()) return {0, device.state};
    const result<int64> processors = attribute(device.value, cudaDevAttrMultiProcessorCount);
    return {processors.value / cluster * cluster, processors.state};
  }
}

/// Whether the current GPU gives a block so much shared memory.
inline result<bool> has_shared_bytes(int64 bytes) {
  const result<int> device = current_device();
  if (!device.ok()) return {false, device.state};
  const result<int64> limit = attribute(device.value, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return {limit.ok() && limit.value >= bytes, limit.state};
}

/// Launches the op of sm_90 on tensors as TMA's tiles are cut from them; false without an error where TMA cannot take them.
template <class Op, class T, class O, class Mask, class Score, class Element>
result<bool> launch_sm90(cudaStream_t s, const attention_params<T, O, Mask, Score>& call,
                         const tensor_view<Element, 4>& q, const tensor_view<Element, 4>& k,
                         const tensor_view<Element, 4>& v, const typename Op::supply::pieces_or_nothing& pieces = {}) {
  if (!check_tensor_map(q, "q").ok() || !check_tensor_map(k, "k").ok() || !check_tensor_map(v, "v").ok())
    return {false, {}};
  const bool equal_items = stdlib::same_as<Mask, full> && !call.views.is_packed();
  const int cluster =
      Op::supply::shares_loads && equal_items && ceil_div(q.extent(2), int64{Op::rows}) % 2 == 0 ? 2 : 1;
  typename Op::params p{call, grid_of<Op>(call, 1, cluster), 0, cluster, nullptr, false, pieces, {}, {}, {}, {}};
  const result<tensor_map_encoder> encoder = tensor_map_encoder::find("q");
  if (!encoder.ok()) return {false, encoder.state};
  status state;
  const auto encode = [&]<class Tile>(tensor_map& to, const auto& view, const char* argument, Tile*) {
    const result<tensor_map> map = make_tile_map<Tile>(view, argument, encoder.value);
    to = map.value;
    state = map.state;
    return state.ok();
  };
  if (!encode(p.q, q, "q", static_cast<typename Op::supply::query_tile*>(nullptr)) ||
      !encode(p.k, k, "k", static_cast<typename Op::supply::key_tile*>(nullptr)) ||
      !encode(p.v, v, "v", static_cast<typename Op::supply::value_tile*>(nullptr)))
    return {false, state};
  if constexpr (Op::supply::stores_tiles) {
    const auto o = heads_first(call.views.o);
    p.store_by_map = check_store_map(o, "o").ok();
    if (p.store_by_map && !encode(p.o, o, "o", static_cast<typename Op::supply::output_tile*>(nullptr)))
      return {false, state};
  }
  const result<int64> at_once = persistent_blocks<Op>(cluster);
  if (!at_once.ok()) return {false, at_once.state};
  constexpr int64 most = int64{1} << 30;  // so that an item's number and what comes after it are ints
  for (; state.ok() && p.grid.first < p.grid.items; p.grid.first += most) {
    const int64 left = p.grid.items - p.grid.first;
    p.items = static_cast<int>(left < most ? left : most);
    int64 blocks = int64{p.items} * cluster;
    if (at_once.value < blocks && (equal_items || call.counter != nullptr)) {
      blocks = at_once.value;
      p.counter = equal_items ? nullptr : call.counter;
      if (p.counter != nullptr) state = consume(cudaMemsetAsync(p.counter, 0, sizeof(int), s));
      if (!state.ok()) break;
    }
    state = launch(s, {.grid = blocks, .block = Op::max_threads, .cluster = cluster}, Op{}, p);
  }
  return {true, state};
}

/// The pieces of a call in its workspace: `group_q` rows of q have an exponent, and `group_k` of k and v.
template <class O, class Mask, class Score>
attention_pieces lay_out_pieces(const attention_params<fp32, O, Mask, Score>& call, int pieces, int group_q,
                                int group_k) {
  const auto& a = call.views;
  const attention_problem problem = a.problem();
  unsigned char* at = reinterpret_cast<unsigned char*>(call.counter) + attention_pieces::first;
  const auto take = [&](int64 bytes) {
    unsigned char* const from = at;
    at += round_up(bytes, attention_pieces::alignment);
    return from;
  };
  attention_pieces in;
  in.apart = reinterpret_cast<int*>(take((problem.batch * problem.heads + 1) * int64{sizeof(int)}));
  in.any_apart = in.apart + problem.batch * problem.heads;
  const auto place = [&](piece_tensor& t, const tensor_view<const float, 4>& from, int group) {
    t.sequences = from.extent(0), t.length = from.extent(1), t.heads = static_cast<int>(from.extent(2));
    t.group = group;
    t.per_sequence = a.is_packed() ? 0 : ceil_div(t.length, int64{group});
    t.slots = a.is_packed() ? attention_pieces::slots_of(t.length, problem.batch, group) : t.sequences * t.per_sequence;
    t.width = attention_pieces::row_of(from.extent(3), pieces);
    t.low = t.width / pieces;
    t.exponents = reinterpret_cast<int*>(take(t.slots * t.heads * int64{sizeof(int)}));
    t.pieces = reinterpret_cast<fp16*>(take(t.sequences * t.length * t.heads * t.width * int64{sizeof(fp16)}));
  };
  place(in.q, a.q, group_q);
  place(in.k, a.k, group_k);
  place(in.v, a.v, group_k);
  in.v.columns = reinterpret_cast<int*>(take(problem.batch * problem.kv_heads * in.v.width * int64{sizeof(int)}));
  return in;
}

template <class Op, class O, class Mask, class Score>
status make_pieces(cudaStream_t s, const attention_params<fp32, O, Mask, Score>& call, const attention_pieces& in) {
  const auto& a = call.views;
  const attention_problem problem = a.problem();
  typename Op::params p{{{a.q, a.packed.q_offsets, in.q, 1, 0},
                         {a.k, a.packed.k_offsets, in.k, call.heads_per_kv, 0},
                         {a.v, a.packed.k_offsets, in.v, call.heads_per_kv, 0}},
                        static_cast<int>(problem.batch),
                        in.apart,
                        in.any_apart,
                        problem.heads};
  int64 blocks = 0;
  for (typename Op::job& j : p.jobs) {
    blocks += j.to.slots * j.to.heads;
    j.blocks = static_cast<uint32>(j.to.slots * j.to.heads);
  }
  const auto bytes = static_cast<std::size_t>(problem.batch * problem.heads + 1) * sizeof(int);
  if (const status state = consume(cudaMemsetAsync(in.apart, 0, bytes, s)); !state.ok()) return state;
  return launch(s, {.grid = blocks, .block = Op::max_threads}, Op{}, p);
}

/// Whether the kernel may use the pointers of a call; the failure names the argument.
template <class Params>
status check_pointers(const Params& call) {
  const auto& a = call.views;
  status s;
  const auto bad = [&](const auto& view, const char* argument) {
    if (view.size() > 0 && view.data() != nullptr) s = check_device_pointer(view.data(), argument);
    return !s.ok();
  };
  if (bad(a.q, "q") || bad(a.k, "k") || bad(a.v, "v") || bad(a.o, "o") || bad(call.lse, "lse")) return s;
  const auto bad_pointer = [&](const void* pointer, const char* argument) {
    if (pointer != nullptr) s = check_device_pointer(pointer, argument);
    return !s.ok();
  };
  static_cast<void>(bad_pointer(call.sinks, "sinks") || bad_pointer(call.counter, "workspace") ||
                    bad_pointer(a.packed.q_offsets, "q_offsets") || bad_pointer(a.packed.k_offsets, "k_offsets"));
  return s;
}

template <int HeadSize, int HeadSizeV, class Tile>
struct stream_attention {
  template <class T, class O, class Mask, class Score>
  static status run(cudaStream_t s, const attention_params<T, O, Mask, Score>& call) {
    if (const status state = check_pointers(call); !state.ok()) return state;
    if constexpr (stdlib::same_as<T, fp32>) {
      return run_fp32(s, call);
    } else {
      return run_16_bits(s, call);
    }
  }

 private:
  template <class T, class O, class Mask, class Score>
  static status run_16_bits(cudaStream_t s, const attention_params<T, O, Mask, Score>& call) {
    const result<attention_path> path = path_here();
    if (!path.ok()) return path.state;
    if constexpr (has_sm90 && HeadSize <= 256 && HeadSizeV <= 256)
      if (path.value == attention_path::sm90) {
        using policy = typename sm90_policy_of<HeadSize, HeadSizeV, Tile>::type;
        const result<bool> launched = launch_sm90<sm90_attention_op<T, O, policy, Mask, Score>>(
            s, call, heads_first(call.views.q), heads_first(call.views.k), heads_first(call.views.v));
        if (launched.value || !launched.ok()) return launched.state;
      }
    if constexpr (runs_below_sm80)
      if (path.value == attention_path::simt)
        return launch_attention<simt_attention_op<T, O, HeadSize, HeadSizeV, Mask, Score>>(s, call, 1);
    using choice = sm80_policy_of<HeadSize, HeadSizeV, stdlib::conditional_t<has_sm90, automatic_tile, Tile>>;
    using op = sm80_attention_op<T, O, typename choice::type, Mask, Score>;
    using smaller_op = sm80_attention_op<T, O, typename choice::smaller, Mask, Score>;
    if constexpr (!stdlib::same_as<op, smaller_op> && shared_bytes_of<op> > least_shared_bytes) {
      static_assert(shared_bytes_of<smaller_op> <= least_shared_bytes);
      const result<bool> fits = has_shared_bytes(shared_bytes_of<op>);
      if (!fits.ok()) return fits.state;
      if (!fits.value) return launch_attention<smaller_op>(s, call, choice::smaller::slices);
    }
    return launch_attention<op>(s, call, choice::type::slices);
  }

  /// On tensor cores, then without them what they did not reach; or without them.
  template <class O, class Mask, class Score>
  static status run_fp32(cudaStream_t s, const attention_params<fp32, O, Mask, Score>& call) {
    attention_pieces in;
    if constexpr (!stdlib::same_as<Tile, fp32_exact> && HeadSize <= 256 && HeadSizeV <= 256) {
      // Exponents of pieces, at least -54 each, and of the scale add up to what is a normal float.
      const float size = call.scale < 0 ? -call.scale : call.scale;
      const bool reached = size == 0 || (size >= 0x1p-18f && size <= 0x1p60f);
      if (call.counter != nullptr && reached && call.views.k.extent(1) > 0) {
        const result<attention_path> path = path_here();
        if (!path.ok()) return path.state;
        const result<attention_pieces> by_pieces = run_in_pieces(s, call, path.value);
        if (!by_pieces.ok()) return by_pieces.state;
        in = by_pieces.value;
      }
    }
    using op = simt_attention_op<fp32, O, HeadSize, HeadSizeV, Mask, Score>;
    return launch_attention<op>(s, call, 1, in.apart, in.any_apart);
  }

  /// What says which heads are left to others, or nothing where all are.
  template <class O, class Mask, class Score>
  static result<attention_pieces> run_in_pieces(cudaStream_t s, const attention_params<fp32, O, Mask, Score>& call,
                                                attention_path path) {
    constexpr int pieces = stdlib::same_as<Tile, tf32> ? 1 : 2, widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
    using tile = stdlib::conditional_t<is_attention_tile<Tile>, Tile, automatic_tile>;
    if constexpr (has_sm90)
      if (path == attention_path::sm90) {
        using policies = stdlib::conditional_t<pieces == 1, sm90_policy_of<HeadSize, HeadSizeV, tile>,
                                               sm90_pieces_policy_of<HeadSize, HeadSizeV, tile>>;
        using policy = typename policies::type;
        using op = sm90_attention_op<fp32, O, policy, Mask, Score>;
        const attention_pieces in = lay_out_pieces(call, pieces, 64, policy::columns);
        constexpr int group = policy::columns > 64 ? policy::columns : 64;
        if (const status state = make_pieces<piece_op<pieces, widest, group>>(s, call, in); !state.ok())
          return {{}, state};
        const result<bool> launched = launch_sm90<op>(s, call, in.q.view(), in.k.view(), in.v.view(), in);
        return {launched.value ? in : attention_pieces{}, launched.state};
      }
    if (path == attention_path::simt) return {};
    using choice = stdlib::conditional_t<pieces == 1, sm80_policy_of<HeadSize, HeadSizeV, automatic_tile>,
                                         sm80_pieces_policy_of<HeadSize, HeadSizeV>>;
    using policy = typename choice::type;
    using op = sm80_attention_op<fp32, O, policy, Mask, Score>;
    if constexpr (shared_bytes_of<op> > least_shared_bytes) {
      const result<bool> fits = has_shared_bytes(shared_bytes_of<op>);
      if (!fits.value) return {{}, fits.state};
    }
    const attention_pieces in = lay_out_pieces(call, pieces, policy::rows, policy::columns);
    constexpr int group = policy::columns > policy::rows ? policy::columns : policy::rows;
    if (const status state = make_pieces<piece_op<pieces, widest, group>>(s, call, in); !state.ok()) return {{}, state};
    return {in, launch_attention<op>(s, call, policy::slices, in)};
  }
};

}  // namespace detail::inline GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
