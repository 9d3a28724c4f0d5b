// SPDX-License-Identifier: MIT
// quantize on a stream: teams of threads have groups of rows, threads have rows of channels.
#ifndef GIWA_ATTENTION_QUANTIZE_QUANTIZE_CUH
#define GIWA_ATTENTION_QUANTIZE_QUANTIZE_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/call/quantize.hpp>
#include <giwa/attention/choose/pointers.hpp>
#include <giwa/device/environment.cuh>
#include <giwa/grid/for_all.cuh>
#include <giwa/grid/launch.cuh>
#include <giwa/grid/reduce.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Neighbouring lanes of a warp. All lanes of the warp call the members.
template <class Block, int Size>
struct lane_team {
  const Block& block;

  GIWA_HOST_DEVICE int rank() const { return block.lane() % Size; }
  GIWA_HOST_DEVICE static constexpr int size() { return Size; }
  GIWA_HOST_DEVICE float largest(float x) const {
    GIWA_UNROLL
    for (int mask = Size / 2; mask > 0; mask /= 2) x = larger_of(x, block.shuffle_xor(x, mask));
    return x;
  }
};
/// All threads of a block.
template <class Block>
struct block_team {
  const Block& block;
  block_partials<float>& shared;

  GIWA_HOST_DEVICE int rank() const { return block.rank(); }
  GIWA_HOST_DEVICE int size() const { return block.size(); }
  GIWA_HOST_DEVICE float largest(float x) const { return reduce_block(block, x, shared, larger{}); }
};

/// Groups of up to 8 runs for each of 8 lanes: rows of up to 512 elements of 16 bits. Neighbouring lanes have neighbouring runs.
template <class T, class Code, int Count>
struct quantize_rows_op {
  static constexpr int max_threads = 256, min_blocks = 4, team = 8, held = 4, most_runs = 2 * team * held;
  using params = row_groups<T, Code>;
  using shared_storage = no_shared_storage;

  static int64 blocks(const params& p) { return ceil_div(p.count(), int64{max_threads / team}); }

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    const int teams = block.size() / team;
    int64 of_warp = block.block_rank() * teams + block.warp() * (32 / team);  // the same in all lanes of a warp
    for (; of_warp < p.count(); of_warp += block.block_count() * teams)
      quantize_group<Count, held>(lane_team<Block, team>{block}, p, of_warp + block.lane() / team);
  }
};

/// Groups of more runs: a block for each.
template <class T, class Code, int Count>
struct quantize_blocks_op {
  static constexpr int max_threads = 256, min_blocks = 3, held = 8;
  using params = row_groups<T, Code>;
  using shared_storage = block_partials<float>;

  static int64 blocks(const params& p) { return p.count(); }

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    for (int64 group = block.block_rank(); group < p.count(); group += block.block_count())
      quantize_group<Count, held>(block_team<Block>{block, shared}, p, group);
  }
};

/// Sets the scales of channels to 0.
struct clear_channel_scales {
  tensor_view<float, 2> scales;
  GIWA_HOST_DEVICE void operator()(const index<2>& i) const { scales(i[0], i[1]) = 0; }
};

/// A pass over the rows: the first raises scales, the second writes codes. Neighbouring threads have neighbouring runs.
template <class T, class Code, int Count, bool WritesCodes>
struct quantize_channels_op {
  static constexpr int max_threads = 256, min_blocks = 3;
  struct params {
    head_channels<T, Code> call;
    fast_divisor runs;    // of all heads
    int64 chunk, chunks;  // rows that a thread has
  };
  using shared_storage = no_shared_storage;

  static params params_of(const head_channels<T, Code>& p) {
    constexpr int64 enough = 1 << 17, least = 16;  // threads, and rows of a thread
    const int64 runs = p.run_count(), rows = p.row_count(), chunks = ceil_div(enough, runs);
    const int64 wanted = ceil_div(rows, chunks), chunk = wanted < least ? least : round_up(wanted, int64{4});
    return {p, fast_divisor(runs), chunk, ceil_div(rows, chunk)};
  }
  static int64 blocks(const params& p) { return ceil_div(threads(p), int64{max_threads}); }
  GIWA_HOST_DEVICE static int64 threads(const params& p) { return p.runs.divisor() * p.chunks; }

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    for (const int64 i : grid_stride(block, threads(p))) {
      const int64 n = i / p.runs, first = n * p.chunk, rows = p.call.row_count();
      const channel_run<Count, T, Code> run(p.call, i - n * p.runs.divisor());
      const int64 end = first + p.chunk < rows ? first + p.chunk : rows;
      if constexpr (WritesCodes)
        run.write_codes(first, end);
      else
        raise_scales(block, run, first, end);
    }
  }

 private:
  /// Scales are positive, so their bits are in their order. Most chunks find a scale that is large enough.
  template <class Block, class Run>
  GIWA_HOST_DEVICE static void raise_scales(const Block& block, const Run& run, int64 first, int64 end) {
    float largest[stdlib::size_t{Count}] = {};
    run.find_largest(largest, first, end);
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) {
      const float scale = scale_of<Code>(largest[i]);
      if (scale > *static_cast<const volatile float*>(&run.scale(i)))
        block.atomic_max(reinterpret_cast<int&>(run.scale(i)), __builtin_bit_cast(int, scale));
    }
  }
};

inline namespace GIWA_ARCH_TAG {

template <class T>
struct stream_quantize {
  template <class Problem>
  static status run(cudaStream_t s, const Problem& p) {
    if (const status bad = check_pointers(p); !bad.ok()) return bad;
    constexpr int count = 16 / static_cast<int>(sizeof(T));
    if (!rows_are_aligned(p.x, 16) || !rows_are_aligned(p.codes, count)) return launch_runs<1>(s, p);
    Problem in_runs = p;
    in_runs.runs = fast_divisor(p.x.extent(3) / count);
    return launch_runs<count>(s, in_runs);
  }

 private:
  template <int Count, class Code>
  static status launch_runs(cudaStream_t s, const row_groups<T, Code>& p) {
    using rows = quantize_rows_op<T, Code, Count>;
    const int64 most = p.rows < p.x.extent(1) ? p.rows : p.x.extent(1);
    return most * p.runs.divisor() <= rows::most_runs ? launch_op<rows>(s, p)
                                                      : launch_op<quantize_blocks_op<T, Code, Count>>(s, p);
  }
  template <int Count, class Code>
  static status launch_runs(cudaStream_t s, const head_channels<T, Code>& p) {
    using first = quantize_channels_op<T, Code, Count, false>;
    using second = quantize_channels_op<T, Code, Count, true>;
    const index<2> sizes = p.scales.extents();
    if (const status c = for_all(s, extents{sizes[0], sizes[1]}, clear_channel_scales{p.scales}); !c.ok()) return c;
    const auto of = first::params_of(p);
    if (const status c = launch_op<first>(s, of); !c.ok()) return c;
    return launch_op<second>(s, {of.call, of.runs, of.chunk, of.chunks});
  }
  template <class Op>
  static status launch_op(cudaStream_t s, const typename Op::params& p) {
    constexpr int64 most = 1 << 20;  // blocks: the others are rounds of these
    const result<device_code> code = code_for_current_device();
    if (!code.ok()) return code.state;
    const int64 blocks = Op::blocks(p);
    return launch(s,
                  {.grid = blocks < most ? blocks : most, .block = Op::max_threads, .dependent = code.value.ptx >= 90},
                  Op{}, p);
  }
};

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI::detail

#endif
