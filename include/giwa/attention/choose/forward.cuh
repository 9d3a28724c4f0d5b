// SPDX-License-Identifier: MIT
// attention_forward on a stream: chooses the kernel and its tile.
#ifndef GIWA_ATTENTION_CHOOSE_FORWARD_CUH
#define GIWA_ATTENTION_CHOOSE_FORWARD_CUH

#include <giwa/attention/call/forward.hpp>
#include <giwa/attention/choose/forward_sm90.cuh>
#include <giwa/attention/kernels/simt/forward_simt.cuh>
#include <giwa/attention/kernels/sm80/forward_sm80.cuh>
#include <giwa/attention/split_fp16/launch.cuh>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// The prepared Hopper kernel where this file may contain it, else a kernel that it contains anyway.
template <bool Contained, class T, class O, class Policies, class Mask, class Score, class Else>
struct sm90_kernel_of {
  using op = sm90_attention_op<T, O, typename Policies::type, Mask, Score>;
  using type = prepared_sm90<op>;
};
template <class T, class O, class Policies, class Mask, class Score, class Else>
struct sm90_kernel_of<false, T, O, Policies, Mask, Score, Else> {
  using type = Else;
};

/// Whether calls with some numbers of keys have another tile, sm90_second_policy_of. Not for the masks and modifiers with which it
/// was not measured, because each kernel adds 1.5 s to the time to compile a call.
template <int HeadSize, int HeadSizeV, class Tile, class Mask, class Score>
inline constexpr bool has_second_tile = stdlib::same_as<Tile, automatic_tile> && is_plain_score<Score> &&
                                        !drops_weights<Score> && sm90_second_policy_of<HeadSize, HeadSizeV>::exists &&
                                        (mask_traits<Mask>::keeps_all || mask_traits<Mask>::is_causal);

/// A checked call of 16-bit tensors and its kernel: prepared once for the current GPU, launched any number of times.
template <class T, class O, int HeadSize, int HeadSizeV, class Tile, class Mask, class Score>
class prepared_attention {
 public:
  using call_type = attention_params<T, O, Mask, Score>;

  /// Chooses the kernel, or with `again` keeps that of the last time, and fills its parameters.
  status prepare(const call_type& call, bool again) {
    if (const status state = check_pointers(call); !state.ok()) return state;
    if (const status state = again ? status{} : choose(call); !state.ok()) return state;
    if constexpr (contains_sm90)
      if (path_ == attention_path::sm90) {
        const auto q = heads_first(call.views.q), k = heads_first(call.views.k), v = heads_first(call.views.v);
        const status addressable = check_tensor_maps(q, k, v);
        if (addressable.ok())
          return takes_second(call) ? kernel_.template make<typename second_sm90::type>(call, q, k, v)
                                    : kernel_.template make<typename sm90::type>(call, q, k, v);
        if (again) return addressable;
        path_ = attention_path::sm80;
      }
    if constexpr (runs_below_sm80)
      if (path_ == attention_path::simt) return kernel_.template make<simt>(call, 1);
    if constexpr (!stdlib::same_as<op, smaller_op> && shared_bytes_of<op> > least_shared_bytes) {
      static_assert(shared_bytes_of<smaller_op> <= least_shared_bytes);
      const result<bool> fits = has_shared_bytes(shared_bytes_of<op>);
      if (!fits.ok()) return fits.state;
      if (!fits.value) return kernel_.template make<prepared_tiles<smaller_op>>(call, choice::smaller::slices);
    }
    return kernel_.template make<prepared_tiles<op>>(call, choice::type::slices);
  }
  status launch(cudaStream_t s) const { return kernel_.launch(s); }
  /// Returns the prepared call, or null.
  const call_type* call() const {
    const call_type* prepared = nullptr;
    kernel_.visit([&](const auto& kernel) { prepared = &kernel.params.call; });
    return prepared;
  }

 private:
  static constexpr bool contains_sm90 = has_sm90 && HeadSize <= 256 && HeadSizeV <= 256;
  using choice = sm80_policy_of<HeadSize, HeadSizeV, stdlib::conditional_t<has_sm90, automatic_tile, Tile>>;
  using op = sm80_attention_op<T, O, typename choice::type, Mask, Score>;
  using smaller = sm80_attention_op<T, O, typename choice::smaller, Mask, Score>;
  using smaller_op = stdlib::conditional_t<stdlib::same_as<op, smaller>, op, small_block_op<smaller>>;
  using simt =
      stdlib::conditional_t<runs_below_sm80, prepared_tiles<simt_attention_op<T, O, HeadSize, HeadSizeV, Mask, Score>>,
                            prepared_tiles<op>>;
  using sm90_tile = stdlib::conditional_t<mask_traits<Mask>::keeps_all, sm90_policy_of<HeadSize, HeadSizeV, Tile>,
                                          sm90_masked_policy_of<HeadSize, HeadSizeV, Tile>>;
  using sm90 = sm90_kernel_of<contains_sm90, T, O, sm90_tile, Mask, Score, prepared_tiles<op>>;
  static constexpr bool has_second = contains_sm90 && has_second_tile<HeadSize, HeadSizeV, Tile, Mask, Score>;
  using second_sm90 = stdlib::conditional_t<
      has_second,
      sm90_kernel_of<has_second, T, O, sm90_second_policy_of<HeadSize, HeadSizeV>, Mask, Score, prepared_tiles<op>>,
      sm90>;

  /// Calls whose lengths only the device knows keep one tile: the bits of a sequence must not depend on how it is padded.
  static bool takes_second(const call_type& call) {
    return has_second && !call.views.is_packed() && call.views.packed.k_lengths == nullptr &&
           sm90_second_policy_of<HeadSize, HeadSizeV>::suits(call.views.k.extent(1));
  }
  status choose(const call_type& call) {
    result<attention_path> path;
    if constexpr (contains_sm90)
      path = takes_second(call) ? path_of<typename second_sm90::op>() : path_of<typename sm90::op>();
    else
      path = path_here();
    path_ = path.value;
    return path.state;
  }

  attention_path path_ = attention_path::simt;
  prepared_kernel<typename sm90::type, typename second_sm90::type, prepared_tiles<op>, prepared_tiles<smaller_op>, simt>
      kernel_;
};

/// A checked call of fp32 tensors: a kernel on tensor cores, and then the fallback kernel for the heads that split fp16
/// cannot represent. Without a workspace all heads run in the fallback kernel.
template <class O, int HeadSize, int HeadSizeV, class Tile, class Mask, class Score>
class prepared_attention<fp32, O, HeadSize, HeadSizeV, Tile, Mask, Score> {
 public:
  using call_type = attention_params<fp32, O, Mask, Score>;

  status prepare(const call_type& call, bool again) {
    if (const status state = check_pointers(call); !state.ok()) return state;
    split_tensors split;
    if constexpr (may_split)
      if (splits(call)) {
        if (!again) {
          result<attention_path> path;
          if constexpr (has_sm90)
            path = path_of<typename sm90::op>();
          else
            path = path_here();
          if (!path.ok()) return path.state;
          path_ = path.value;
        }
        const result<split_tensors> made = make_split(call);
        if (!made.ok()) return made.state;
        split = made.value;
      }
    return rest_.template make<prepared_tiles<rest_op>>(call, 1, split.fallback, split.any_fallback);
  }
  status launch(cudaStream_t s) const {
    const status state = split_.launch(s);
    return state.ok() ? rest_.launch(s) : state;
  }
  /// Returns the prepared call, or null.
  const call_type* call() const {
    const call_type* prepared = nullptr;
    rest_.visit([&](const auto& kernel) { prepared = &kernel.params.call; });
    return prepared;
  }

 private:
  static constexpr bool may_split = !stdlib::same_as<Tile, fp32_exact> && HeadSize <= 256 && HeadSizeV <= 256;
  static constexpr int parts = stdlib::same_as<Tile, tf32> ? 1 : 2,
                       widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  using rest_op = simt_attention_op<fp32, O, HeadSize, HeadSizeV, Mask, Score>;
  using tile = stdlib::conditional_t<is_attention_tile<Tile>, Tile, automatic_tile>;
  using sm80_policies = stdlib::conditional_t<parts == 1, sm80_policy_of<HeadSize, HeadSizeV, automatic_tile>,
                                              sm80_split_policy_of<HeadSize, HeadSizeV>>;
  using sm90_policies = stdlib::conditional_t<parts == 1, sm90_policy_of<HeadSize, HeadSizeV, tile>,
                                              sm90_split_policy_of<HeadSize, HeadSizeV, tile>>;
  using sm80_policy = typename sm80_policies::type;
  using sm80_op = sm80_attention_op<fp32, O, sm80_policy, Mask, Score>;
  // A group of the pass has the keys of a tile, or the queries; the Hopper kernel splits q itself.
  template <class Op, class Policy, int Queries>
  using split_kernel =
      prepared_split<Op, split_op<parts, widest, (Policy::block_n > Queries ? Policy::block_n : Queries)>,
                     (Queries > 0)>;
  using sm80 = split_kernel<prepared_tiles<sm80_op>, sm80_policy, sm80_policy::block_m>;
  using sm90 = sm90_kernel_of<has_sm90, fp32, O, sm90_policies, Mask, Score, prepared_tiles<sm80_op>>;

  static bool splits(const call_type& call) {
    // Within this range the exponents of split fp16, at least -54 each, and of the scale add up to a normal float.
    const float size = call.scale < 0 ? -call.scale : call.scale;
    const bool reached = size == 0 || (size >= 0x1p-18f && size <= 0x1p60f);
    // Exponents and fallback flags belong to one sequence, so no sequence may read the keys of another.
    const bool own_keys = call.views.packed.k_batch_index == nullptr;
    return call.counter != nullptr && reached && own_keys && call.views.k.extent(1) > 0;
  }

  /// Returns the split tensors, whose flags say which heads are left to the fallback kernel. Without flags all heads
  /// are.
  result<split_tensors> make_split(const call_type& call) {
    if constexpr (has_sm90)
      if (path_ == attention_path::sm90) {
        using policy = typename sm90_policies::type;
        const split_tensors in = carve_split_tensors(call, parts, 64, policy::block_n);
        const auto q = in.q.view(), k = in.k.view(), v = in.v.view();
        if (!check_tensor_map(k, "k").ok() || !check_tensor_map(v, "v").ok()) return {};
        using kernel = split_kernel<typename sm90::type, policy, 0>;
        return {in, split_.template make<kernel>(in, call, q, k, v, in)};
      }
    if (path_ == attention_path::simt) return {};
    if constexpr (shared_bytes_of<sm80_op> > least_shared_bytes) {
      const result<bool> fits = has_shared_bytes(shared_bytes_of<sm80_op>);
      if (!fits.value) return {{}, fits.state};
    }
    const split_tensors in = carve_split_tensors(call, parts, sm80_policy::block_m, sm80_policy::block_n);
    return {in, split_.template make<sm80>(in, call, sm80_policy::slices, in)};
  }

  template <bool Contained, class Else>
  struct split_kernels {
    using type = prepared_kernel<split_kernel<typename sm90::type, typename sm90_policies::type, 0>, Else>;
  };
  template <class Else>
  struct split_kernels<false, Else> {
    using type = prepared_kernel<Else>;
  };
  template <bool MaySplit, class Else>
  struct kernels {
    using type = typename split_kernels<has_sm90, sm80>::type;
  };
  template <class Else>
  struct kernels<false, Else> {
    using type = prepared_kernel<Else>;
  };

  attention_path path_ = attention_path::simt;
  typename kernels<may_split, prepared_tiles<rest_op>>::type split_;
  prepared_kernel<prepared_tiles<rest_op>> rest_;
};

template <int HeadSize, int HeadSizeV, class Tile>
struct stream_attention {
  template <class T, class O, class Mask, class Score>
  static status run(cudaStream_t s, const attention_params<T, O, Mask, Score>& call) {
    prepared_attention<T, O, HeadSize, HeadSizeV, Tile, Mask, Score> prepared;
    const status state = prepared.prepare(call, false);
    return state.ok() ? prepared.launch(s) : state;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
