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

/// Groups of at most 64 runs: 8 lanes for each, of which neighbouring ones have neighbouring runs.
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
    const lane_team<Block, team> lanes{block};
    const run_position first(lanes, p.runs);
    const int teams = block.size() / team;
    int64 of_warp = block.block_rank() * teams + block.warp() * (32 / team);  // the same in all lanes of a warp
    for (; of_warp < p.count(); of_warp += block.block_count() * teams)
      quantize_chunk<Count, held, quantize_pass::all>(lanes, p, of_warp + block.lane() / team, first, store_scale{});
  }
};

/// Raises a scale that other blocks raise too. Scales are positive, so their bits are in their order.
template <class Block>
struct raise_scale {
  const Block& block;
  GIWA_HOST_DEVICE void operator()(float scale, float& to) const {
    if (scale > *static_cast<const volatile float*>(&to))  // most find a scale that is large enough
      block.atomic_max(reinterpret_cast<int&>(to), __builtin_bit_cast(int, scale));
  }
};

/// Groups of more runs: a block for each, or for each chunk of a group that registers do not hold.
template <class T, class Code, int Count, quantize_pass Pass>
struct quantize_blocks_op {
  static constexpr int max_threads = 256, min_blocks = 3, held = 8, most_runs = max_threads * held;
  using params = row_groups<T, Code>;
  using shared_storage = block_partials<float>;

  static int64 blocks(const params& p) { return p.count(); }

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    const block_team<Block> team{block, shared};
    const run_position first(team, p.runs);
    for (int64 chunk = block.block_rank(); chunk < p.count(); chunk += block.block_count())
      if constexpr (Pass == quantize_pass::all)
        quantize_chunk<Count, held, Pass>(team, p, chunk, first, store_scale{});
      else
        quantize_chunk<Count, held, Pass>(team, p, chunk, first, raise_scale<Block>{block});
  }
};

/// Sets scales to 0, before kernels raise them.
template <int Rank>
struct clear_scales {
  tensor_view<float, Rank> scales;
  GIWA_HOST_DEVICE void operator()(const index<Rank>& i) const { scales[i] = 0; }
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
      if constexpr (WritesCodes) {
        run.write_codes(first, end);
      } else {
        float largest[stdlib::size_t{Count}] = {};
        run.find_largest(largest, first, end);
        GIWA_UNROLL
        for (int c = 0; c < Count; ++c) raise_scale<Block>{block}(scale_of<Code>(largest[c]), run.scale(c));
      }
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
    return rows_are_aligned(p.x, 16) && rows_are_aligned(p.codes, count) ? launch_runs<count>(s, p)
                                                                         : launch_runs<1>(s, p);
  }

 private:
  template <int Count, class Code>
  static status launch_runs(cudaStream_t s, row_groups<T, Code> p) {
    using rows = quantize_rows_op<T, Code, Count>;
    using blocks = quantize_blocks_op<T, Code, Count, quantize_pass::all>;
    p.runs /= Count;
    const int64 runs = int64{p.rows} * p.runs;
    if (runs <= rows::most_runs) return launch_op<rows>(s, p);
    if (runs <= blocks::most_runs || p.rows == 1) return launch_op<blocks>(s, p);
    p.chunk_rows = p.runs > blocks::most_runs ? 1 : blocks::most_runs / p.runs;
    p.chunks = fast_divisor(ceil_div(p.rows, p.chunk_rows));
    const index<3> n = p.scales.extents();
    if (const status c = for_all(s, extents{n[0], n[1], n[2]}, clear_scales<3>{p.scales}); !c.ok()) return c;
    if (const status c = launch_op<quantize_blocks_op<T, Code, Count, quantize_pass::raise_scale>>(s, p); !c.ok())
      return c;
    return launch_op<quantize_blocks_op<T, Code, Count, quantize_pass::write_codes>>(s, p);
  }
  template <int Count, class Code>
  static status launch_runs(cudaStream_t s, head_channels<T, Code> p) {
    using first = quantize_channels_op<T, Code, Count, false>;
    using second = quantize_channels_op<T, Code, Count, true>;
    p.runs = fast_divisor(p.x.extent(3) / Count);
    const index<2> n = p.scales.extents();
    if (const status c = for_all(s, extents{n[0], n[1]}, clear_scales<2>{p.scales}); !c.ok()) return c;
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
