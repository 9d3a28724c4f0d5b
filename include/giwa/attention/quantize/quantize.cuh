// SPDX-License-Identifier: MIT
// quantize on a stream: teams of threads have groups of rows, threads have rows of channels.
#ifndef GIWA_ATTENTION_QUANTIZE_QUANTIZE_CUH
#define GIWA_ATTENTION_QUANTIZE_QUANTIZE_CUH

#include <giwa/arch/dependent_launch.cuh>
#include <giwa/attention/call/quantize.hpp>
#include <giwa/attention/quantize/k_major.cuh>
#include <giwa/device/pointer.hpp>
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

/// Groups of few runs: 4 lanes for each, of which neighbouring ones have neighbouring runs. fp16 to e4m3, 4 x 4096 rows of 16 heads of
/// 128: 46 us with 8 lanes, 34 with 4, because finding the places takes as long as rounding (H200, 2026-11-29).
template <class T, class Code, int Count, int Held>
struct quantize_rows_op {
  static constexpr int max_threads = 256, min_blocks = Held > 4 ? 3 : 4, team = 4, most_runs = team * Held;
  using params = row_groups<T, Code>;
  using shared_storage = no_shared_storage;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    const lane_team<Block, team> lanes{block};
    const run_position first(lanes, p.runs);
    const int teams = block.size() / team;
    const int64 count = p.count(), step = block.block_count() * teams;
    int64 of_warp = block.block_rank() * teams + block.warp() * (32 / team);  // the same in all lanes of a warp
    for (; of_warp < count; of_warp += step)
      quantize_chunk<Count, Held, quantize_pass::all>(lanes, p, of_warp + block.lane() / team, count, first,
                                                      store_scale{});
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
template <class T, class Code, int Count, int Held, quantize_pass Pass>
struct quantize_blocks_op {
  static constexpr int max_threads = 256, min_blocks = 3;
  using params = row_groups<T, Code>;
  using shared_storage = block_partials<float>;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    const block_team<Block> team{block, shared};
    const run_position first(team, p.runs);
    const int64 count = p.count();
    for (int64 chunk = block.block_rank(); chunk < count; chunk += block.block_count())
      if constexpr (Pass == quantize_pass::all)
        quantize_chunk<Count, Held, Pass>(team, p, chunk, count, first, store_scale{});
      else if constexpr (Pass == quantize_pass::raise_scale)
        quantize_chunk<Count, Held, Pass>(team, p, chunk, count, first, raise_scale<Block>{block});
      else  // backwards, because the L2 cache has what the pass before read last
        quantize_chunk<Count, Held, Pass>(team, p, count - 1 - chunk, count, first, store_scale{});
  }
};

/// Sets scales to 0, before kernels raise them.
template <int Rank>
struct clear_scales {
  tensor_view<float, Rank> scales;
  GIWA_HOST_DEVICE void operator()(const index<Rank>& i) const { scales[i] = 0; }
};

/// A pass over the rows: the first raises scales, the second writes codes. The warps of a block have every warps-th row of a chunk,
/// their lanes neighbouring runs. The second pass goes backwards, because the L2 cache has what the first one read last.
template <class T, class Code, int Count, bool WritesCodes>
struct quantize_channels_op {
  static constexpr int max_threads = 256, min_blocks = 4, warps = max_threads / 32, lanes = 32;
  struct params {
    head_channels<T, Code> call;
    fast_divisor tiles, chunks;  // tiles of 32 runs of all heads; chunks of a sequence
    int64 chunk;                 // rows of a block
  };
  struct shared_storage {
    float largest[warps][lanes * Count];
  };

  static params params_of(const head_channels<T, Code>& p) {
    constexpr int64 enough = 1024, least = 4 * warps;  // blocks, and rows of a block
    const int64 rows = p.x.extent(1), tiles = ceil_div(p.run_count(), int64{lanes});
    const int64 wanted = round_up(ceil_div(rows, ceil_div(enough, p.x.extent(0) * tiles)), least);
    return {p, fast_divisor(tiles), fast_divisor(ceil_div(rows, wanted)), wanted};
  }
  GIWA_HOST_DEVICE static int64 blocks(const params& p) {
    return p.call.x.extent(0) * p.chunks.divisor() * p.tiles.divisor();
  }

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    arch::launch_dependents();
    arch::wait_for_previous_kernel();
    using run = channel_run<Count, T, Code>;
    const int used = block.size() / 32;
    const int64 all = blocks(p), runs = p.call.run_count(), rows = p.call.x.extent(1);
    for (int64 n = block.block_rank(); n < all; n += block.block_count()) {
      const int64 i = WritesCodes ? all - 1 - n : n, of_chunk = i / p.tiles, sequence = of_chunk / p.chunks;
      const int64 first = (of_chunk - sequence * p.chunks.divisor()) * p.chunk + block.warp();
      const int64 end = first - block.warp() + p.chunk < rows ? first - block.warp() + p.chunk : rows;
      const int64 first_run = (i - of_chunk * p.tiles.divisor()) * lanes, own = first_run + block.lane();
      if constexpr (WritesCodes) {
        if (own < runs) run(p.call, own, sequence).write_codes(first, end, used);
      } else {
        float largest[stdlib::size_t{Count}] = {};
        if (own < runs) run(p.call, own, sequence).find_largest(largest, first, end, used);
        block.sync();  // the threads have read what the previous round left
        GIWA_UNROLL
        for (int c = 0; c < Count; ++c) s.largest[block.warp()][block.lane() * Count + c] = largest[c];
        block.sync();
        for (int c = block.rank(); c < lanes * Count && first_run + c / Count < runs; c += block.size()) {
          float most = 0;
          for (int w = 0; w < used; ++w) most = larger_of(most, s.largest[w][c]);
          raise_scale<Block>{block}(scale_of<Code>(most),
                                    run(p.call, first_run + c / Count, sequence).scale(c % Count));
        }
      }
    }
  }
};

inline namespace GIWA_ARCH_TAG {

template <class T>
struct stream_quantize {
  template <class Problem>
  static status run(cudaStream_t s, const Problem& p) {
    if (const status bad = check_named_pointers({{p.x, "x"}, {p.codes, "codes"}, {p.scales, "scales"}}); !bad.ok())
      return bad;
    constexpr int count = 16 / static_cast<int>(sizeof(T));
    constexpr int codes = codes_of<stdlib::remove_reference_t<decltype(*p.codes.data())>>;
    if constexpr (codes == 1)
      if (p.codes.extent(3) > 1 && p.codes.stride(3) != 1) {
        if (!has_words(p.codes)) return launch_runs<1>(s, p);
        return rows_are_aligned(p.x, 16) ? launch_k_major<count>(s, p) : launch_k_major<1>(s, p);
      }
    return rows_are_aligned(p.x, 16) && rows_are_aligned(p.codes, count / codes) ? launch_runs<count>(s, p)
                                                                                 : launch_runs<codes>(s, p);
  }

 private:
  /// A block holds up to 8 runs a thread: of 128 threads if these are enough.
  static constexpr int most_held = 8, threads = 256;

  /// Whether four rows of K-major codes, from a multiple of four on, are an aligned word.
  template <class Code>
  static bool has_words(const tensor_view<Code, 4>& codes) {
    bool has = reinterpret_cast<uint64>(codes.data()) % 4 == 0;
    for (const int d : {0, 2, 3}) has = has && (codes.extent(d) == 1 || codes.stride(d) % 4 == 0);
    return has;
  }
  /// K-major codes: the first pass of large groups, and another second one.
  ///@{
  template <int Count, class Code>
  static status launch_k_major(cudaStream_t s, row_groups<T, Code> p) {
    p.runs = static_cast<int>(p.x.extent(3) / Count);
    if (const status c = launch_scales<Count>(s, p); !c.ok()) return c;
    return launch_words<quantize_k_major_op<row_groups<T, Code>, T, Code, Count>>(s, p);
  }
  template <int Count, class Code>
  static status launch_k_major(cudaStream_t s, head_channels<T, Code> p) {
    p.runs = fast_divisor(p.x.extent(3) / Count);
    if (const status c = launch_scales<Count>(s, p); !c.ok()) return c;
    return launch_words<quantize_k_major_op<head_channels<T, Code>, T, Code, Count>>(s, p);
  }
  template <class Op, class Problem>
  static status launch_words(cudaStream_t s, const Problem& p) {
    const auto params = Op::params_of(p);
    return launch_op<Op>(s, ceil_div(Op::tiles(params), int64{threads / 32}), threads, params);
  }
  ///@}

  template <int Count, class Code>
  static status launch_runs(cudaStream_t s, row_groups<T, Code> p) {
    p.runs = static_cast<int>(p.x.extent(3) / Count);
    const int64 runs = int64{p.rows} * p.runs;
    if (runs <= 4 * most_held) {
      if (runs <= 4 * 2) return launch_teams<quantize_rows_op<T, Code, Count, 2>>(s, p);
      if (runs <= 4 * 4) return launch_teams<quantize_rows_op<T, Code, Count, 4>>(s, p);
      return launch_teams<quantize_rows_op<T, Code, Count, most_held>>(s, p);
    }
    if (runs <= threads / 2 * 4) return launch_blocks<quantize_blocks_op<T, Code, Count, 4, quantize_pass::all>>(s, p);
    if (runs <= threads * most_held || p.rows == 1)
      return launch_blocks<quantize_blocks_op<T, Code, Count, most_held, quantize_pass::all>>(s, p);
    if (const status c = launch_scales<Count>(s, p); !c.ok()) return c;
    return launch_blocks<quantize_blocks_op<T, Code, Count, most_held, quantize_pass::write_codes>>(s, p);
  }
  /// Divides groups of rows into chunks, and finds their scales.
  template <int Count, class Code>
  static status launch_scales(cudaStream_t s, row_groups<T, Code>& p) {
    constexpr int held = threads * most_held / 2;
    const int chunk = p.runs > held ? 1 : held / p.runs;
    p.chunk_rows = chunk < p.rows ? chunk : p.rows;
    p.chunks = fast_divisor(ceil_div(p.rows, p.chunk_rows));
    const index<3> n = p.scales.extents();
    if (const status c = for_all(s, extents{n[0], n[1], n[2]}, clear_scales<3>{p.scales}); !c.ok()) return c;
    return launch_blocks<quantize_blocks_op<T, Code, Count, most_held, quantize_pass::raise_scale>>(s, p);
  }
  template <int Count, class Code>
  static status launch_runs(cudaStream_t s, head_channels<T, Code> p) {
    using second = quantize_channels_op<T, Code, Count, true>;
    p.runs = fast_divisor(p.x.extent(3) / Count);
    if (const status c = launch_scales<Count>(s, p); !c.ok()) return c;
    const auto of = second::params_of(p);
    return launch_op<second>(s, second::blocks(of), threads, of);
  }
  template <int Count, class Code>
  static status launch_scales(cudaStream_t s, const head_channels<T, Code>& p) {
    using first = quantize_channels_op<T, Code, Count, false>;
    const index<2> n = p.scales.extents();
    if (const status c = for_all(s, extents{n[0], n[1]}, clear_scales<2>{p.scales}); !c.ok()) return c;
    const auto of = first::params_of(p);
    return launch_op<first>(s, first::blocks(of), threads, of);
  }
  template <class Op>
  static status launch_teams(cudaStream_t s, const typename Op::params& p) {
    return launch_op<Op>(s, ceil_div(p.count(), int64{threads / Op::team}), threads, p);
  }
  template <class Op>
  static status launch_blocks(cudaStream_t s, const typename Op::params& p) {
    const int64 runs = int64{p.chunk_rows} * p.runs;
    return launch_op<Op>(s, p.count(), runs <= threads / 2 * most_held ? threads / 2 : threads, p);
  }
  template <class Op>
  static status launch_op(cudaStream_t s, int64 blocks, int block, const typename Op::params& p) {
    constexpr int64 most = 1 << 20;  // blocks: the others are rounds of these
    return launch(s, {.grid = blocks < most ? blocks : most, .block = block, .dependent = true}, Op{}, p);
  }
};

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI::detail

#endif
