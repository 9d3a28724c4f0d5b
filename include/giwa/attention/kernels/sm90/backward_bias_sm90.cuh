// SPDX-License-Identifier: MIT
// A bias in the Hopper kernel of all gradients: how its tiles come, and where its gradient goes.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_BIAS_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_BIAS_SM90_CUH

#include <giwa/arch/elect.cuh>
#include <giwa/attention/kernels/sm90/backward_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// TMA loads a tile of the bias, (queries, keys) of each consumer, into the memory for dS of that tile. A thread reads it by ldmatrix
/// in the order of its scores, and writes dS to the same place. So a gradient in the type of q needs no other memory: TMA stores dS.
/// One in fp32 is stored or added from the registers of the consumers.
template <class Types>
struct sm90_bias {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using tile = typename Types::ds_tile;
  using place = typename Types::bias_place;

  GIWA_DEVICE static const auto& of(const params& p) { return Types::bias_type::of(p.call.call.score); }

  /// Starts the load of a tile. One thread, when the memory is free.
  GIWA_DEVICE static void load(const params& p, shared_storage& s, const place& at, int stage) {
    arch::mbarrier& full = s.bias.full[stage];
    const bool is_shared = of(p).values.values.extent(0) == 1;
    full.arrive_and_expect(Types::consumers * tile::bytes);
    for (int c = 0; c < Types::consumers; ++c)
      giwa::load(p.bias.values, origin(of(p).values.values, at, c), s.dq.ds[stage][c], full,
                 is_shared ? arch::l2_policy::normal : arch::l2_policy::evict_first);
  }
  /// Brings a tile into the L2 cache. One thread.
  GIWA_DEVICE static void prefetch(const params& p, const place& at) {
    for (int c = 0; c < Types::consumers; ++c)
      arch::prefetch_box(p.bias.values, box_coordinates<4>(origin(of(p).values.values, at, c), 0, element{}).at);
  }
  /// Stores dS of a consumer's keys as the gradient, without what is past the end, and waits until it has been read. One thread.
  GIWA_DEVICE static void store(const params& p, const place& at, int consumer, const tile& ds) {
    arch::store_box(p.bias.gradient, box_coordinates<4>(origin(of(p).gradient_, at, consumer), 0, element{}).at,
                    ds.data());
    arch::commit_stores();
    arch::wait_stores_read<0>();
  }

  /// The element of a gradient in fp32 that belongs to a score.
  template <class Bias>
  GIWA_DEVICE static float* element_of(const Bias& bias, int batch, int head, int query, int key) {
    const gradient_sharing all = bias.shared();
    return bias.gradient_.data() +
           ((all.sequences ? 0 : batch * bias.gradient_.stride(0)) + (all.heads ? 0 : head * bias.gradient_.stride(1)) +
            query * bias.gradient_.stride(2) + key);
  }
  /// Writes the gradient of an element, or adds it where sequences or heads share the element.
  template <class Bias>
  GIWA_DEVICE static void give(const Bias& bias, float* first, int queries, int keys, float gradient) {
    float* const to = first + queries * bias.gradient_.stride(2) + keys;
    if (bias.shared().sequences || bias.shared().heads)
      atomicAdd(to, gradient);
    else
      *to = gradient;
  }

 private:
  using element = typename Types::element;

  template <class View>
  GIWA_DEVICE static giwa::index<4> origin(const View& v, const place& at, int consumer) {
    return {v.extent(0) == 1 ? 0 : at.sequence, v.extent(1) == 1 ? 0 : at.head, at.query, at.key + 64 * consumer};
  }
};

/// Loads the bias of tiles, one after the other. A whole warp.
template <class Types>
struct sm90_bias_loader {
  using of = sm90_bias<Types>;

  template <class Block>
  GIWA_DEVICE void load(const Block& block, const typename of::params& p, typename of::shared_storage& s,
                        const typename of::place& at) {
    s.ds_empty[ds.stage()].wait(ds.phase() ^ 1);
    if (arch::elect_one()) of::load(p, s, at, ds.stage());
    block.sync_warp();
    ds.advance();
  }

 private:
  ring_cursor<Types::stages_ds> ds;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
