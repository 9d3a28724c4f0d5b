// SPDX-License-Identifier: MIT
// make_block_map on a stream: a warp for each task of its steps.
#ifndef GIWA_ATTENTION_BLOCKS_BLOCK_MAP_CUH
#define GIWA_ATTENTION_BLOCKS_BLOCK_MAP_CUH

#include <giwa/attention/call/block_map.hpp>
#include <giwa/device/pointer.hpp>
#include <giwa/grid/launch.cuh>
#include <giwa/grid/reduce.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A warp as the team of a source.
template <class Block>
struct warp_team {
  static constexpr int lanes = 32;
  const Block& block;

  struct either_bits {
    GIWA_HOST_DEVICE uint32 operator()(uint32 a, uint32 b) const { return a | b; }
  };
  GIWA_HOST_DEVICE int lane() const { return block.lane(); }
  GIWA_HOST_DEVICE uint32 any_bits(uint32 x) const { return reduce_warp(block, x, either_bits{}); }
  GIWA_HOST_DEVICE int sum(int x) const { return reduce_warp(block, x); }
  GIWA_HOST_DEVICE int scan(int x) const { return scan_warp(block, x); }
  GIWA_HOST_DEVICE int last(int x) const { return from(x, lanes - 1); }
  GIWA_HOST_DEVICE int from(int x, int lane) const { return block.shuffle(x, lane); }
  /// Calls put(i, bits i of rows(0) to rows(31)) for each i below 32.
  template <class Rows, class Put>
  GIWA_HOST_DEVICE void transpose(const Rows& rows, const Put& put) const {
    const block_bits own = rows(lane());
    block_bits mine{};
    for (int i = 0; i < lanes; ++i) {
      const uint32 visible = block.ballot((own.visible >> i & 1) != 0), full = block.ballot((own.full >> i & 1) != 0);
      if (i == lane()) mine = {visible, full};
    }
    put(lane(), mine);
  }
  GIWA_HOST_DEVICE void add(int* to, int n) const {
    if (lane() == 0 && n != 0) block.atomic_add(*to, n);
  }
};

template <class Source, class Step>
struct block_map_op {
  static constexpr int max_threads = 256, min_blocks = 3;
  static constexpr bool params_go_as_bytes = goes_as_bytes<Source>;
  using params = block_map_params<Source>;
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    constexpr int warps = max_threads / 32;
    const int64 tasks = Step::tasks(p), step = block.block_count() * warps;
    for (int64 task = block.block_rank() * warps + block.warp(); task < tasks; task += step)
      Step::run(warp_team<Block>{block}, p, task);
  }
  /// The blocks of a launch.
  static int64 blocks(const params& p) {
    constexpr int64 most = 1 << 16;  // the others are rounds of these
    const int64 all = ceil_div(Step::tasks(p), int64{max_threads / 32});
    return all < most ? all : most;
  }
};

/// Calls f(view, argument) for each view of a source.
///@{
template <class F>
void for_each_view(const block_lists& lists, const F& f) {
  f(lists.full.counts, "full.counts"), f(lists.full.indices, "full.indices");
  f(lists.partial.counts, "partial.counts"), f(lists.partial.indices, "partial.indices");
}
template <class F>
void for_each_view(const block_rows& rows, const F& f) {
  f(rows.offsets, "offsets"), f(rows.indices, "indices");
}
template <class Source, class F>
void for_each_view(const Source& source, const F& f) {
  if constexpr (requires { source.scores; })
    f(source.scores, "scores");
  else if constexpr (stdlib::same_as<Source, tensor_view<const bool, 4>>)
    f(source, "source");
}
///@}

inline namespace GIWA_ARCH_TAG {

template <class Source>
struct stream_block_map {
  static status run(cudaStream_t s, const block_map& map, const Source& source) {
    const auto for_each = [&](const auto& f) {
      for_each_view(source, f);
      f(map.words, "block_map"), f(map.errors, "errors");
    };
    if (const status state = check_each_pointer(for_each); !state.ok()) return state;
    const block_map_params<Source> p{map, source};
    if (const status state = launch_step<write_block_bits>(s, p); !state.ok()) return state;
    if (const status state = launch_step<write_block_columns>(s, p); !state.ok()) return state;
    return map.by_keys ? launch_step<write_column_counts>(s, p) : status{};
  }

 private:
  template <class Step>
  static status launch_step(cudaStream_t s, const block_map_params<Source>& p) {
    using op = block_map_op<Source, Step>;
    return launch(s, {.grid = op::blocks(p), .block = op::max_threads}, op{}, p);
  }
};

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI::detail

#endif
