// SPDX-License-Identifier: MIT
// The calls on the CPU: rows of heads on all cores, in fp32; also to a cache, merges of parts, appending, quantizing.
#ifndef GIWA_ATTENTION_CPU_CALLS_HPP
#define GIWA_ATTENTION_CPU_CALLS_HPP

#include <giwa/attention/append/append_with_scales.hpp>
#include <giwa/attention/call/append.hpp>
#include <giwa/attention/call/block_map.hpp>
#include <giwa/attention/call/cached.hpp>
#include <giwa/attention/call/forward.hpp>
#include <giwa/attention/call/merge.hpp>
#include <giwa/attention/call/quantize.hpp>
#include <giwa/attention/call/read_cache.hpp>
#include <giwa/attention/cpu/worker.hpp>
#include <giwa/attention/problem/cached_rows.hpp>
#include <giwa/attention/sums/merge_parts.hpp>
#include <giwa/grid/host_for_all.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// What the rows of a call are shared by.
struct host_rows_sizes {
  int64 sequences, heads;
  int64 longest;    // queries of a sequence, at most
  int64 mean_keys;  // of a sequence, about
  bool alike;       // all sequences have the same lengths
};

/// How many queries a tile has: a multiple of `strip`, `most` at most. Each tile packs the keys that it sees, which takes as
/// long as some of its rows; with smaller tiles the threads end together. If all tiles see all keys they take as long as each
/// other. Of the others one that takes twice the mean may come last, so threads wait for half of that on average.
///
/// Two threads, 8 heads, ms with tiles of 48, 96, 192 and 264 rows: 512 queries of size 64, full 2.45, 2.21, 2.07, 2.05, causal 1.62,
/// 1.41, 1.34, 1.36; 1024 of size 128, causal 9.14, 8.18, 7.89, 7.93 (AVX-512, 2026-11-26).
inline int64 host_tile_rows(int64 longest, int64 heads, int64 threads, bool all_keys, int64 strip, int64 most) {
  constexpr int64 packing = 10;  // in rows
  int64 best = strip, least = -1;
  for (int64 blocks = ceil_div(longest, most);; ++blocks) {
    const int64 rows = round_up(ceil_div(longest, blocks), strip), tiles = heads * ceil_div(longest, rows);
    const int64 rounds = ceil_div(tiles, threads) * threads * (rows + packing);
    const int64 rest = heads * longest + tiles * packing + (threads - 1) * (rows + packing);
    const int64 cost = all_keys ? rounds : rest;
    if (least < 0 || cost < least) best = rows, least = cost;
    if (rows == strip) return best;
  }
}

/// Computes all rows of a call whose arguments are checked.
template <class Params>
status run_host_rows(const Params& params, const host_rows_sizes& sizes) {
  using worker = host_attention_worker<Params>;
  const int64 longest = sizes.longest;
  if (longest == 0) return {};
  const int64 heads = sizes.sequences * sizes.heads;
  const int64 columns = params.views.q.extent(3) + params.views.o.extent(3);
  const int64 of_row = columns * (sizes.mean_keys + 1);  // multiplications
  const bool all_keys = sizes.alike && mask_traits<stdlib::remove_cvref_t<decltype(params.mask)>>::keeps_all;
  const int64 threads =
      host_workers(saturated_product(saturated_product(heads, longest), of_row) / multiplications_of_thread);
  const int64 queries = host_tile_rows(longest, heads, threads, all_keys, worker::strip_rows, worker::block_m);
  const int64 blocks = ceil_div(longest, queries), tasks = heads * blocks;
  const int64 products = (longest < queries ? longest : queries) * of_row;
  const auto run = [&](worker& w, int64 task) {
    const int64 first = task % blocks * queries, sequence = task / blocks;
    const auto h = head_of(params, static_cast<int>(sequence / sizes.heads), static_cast<int>(sequence % sizes.heads));
    const int64 left = h.queries() - first;
    if (left > 0) w.run(h, static_cast<int>(first), static_cast<int>(left < queries ? left : queries));
  };
  if (host_tasks(
          tasks, products, [&] { return worker(params); }, run))
    return {};
  return host_out_of_memory("out of host memory for the tiles of attention on the CPU (at most 2 MiB for each thread)");
}

/// Runs attention_forward on the CPU; the arguments are checked already.
template <int HeadSize, int HeadSizeV>
struct host_attention {
  template <class T, class O, class Mask, class Score>
  static status run(const attention_params<T, O, Mask, Score>& params) {
    const attention_problem sizes = params.views.problem();
    int64 longest = params.views.q.extent(1), keys = params.views.k.extent(1);
    if (params.views.is_packed()) {
      longest = 0;
      for (int64 i = 0; i < sizes.batch; ++i) {
        const int queries = params.at(static_cast<int>(i), 0).queries();
        longest = queries > longest ? queries : longest;
      }
      keys = ceil_div(keys, sizes.batch);
    }
    return run_host_rows(params, {sizes.batch, sizes.heads, longest, keys, !params.ragged});
  }
};

template <class Element>
void host_widen(const host_loops& loops, const cached_row<Element>& row, float* to, int count) {
  if (row.data == nullptr) {
    for (int i = 0; i < count; ++i) to[i] = 0;
    return;
  }
  if constexpr (row_format<Element>)
    for (int i = 0; i < count; ++i) to[i] = Element::number_at(row.data, i);
  else
    host_widen(loops, row.data, to, count);
  if constexpr (element_traits<Element>::has_scales)
    for (int i = 0; i < count; ++i) to[i] *= row.scale;
}
template <class Element>
void host_prefetch(const cached_row<Element>& row, int count) {
  if (row.data != nullptr) host_prefetch(row.data, count);
}

/// Runs attention_cached on the CPU; the arguments are checked already.
template <int HeadSize, int HeadSizeV>
struct host_cached {
  template <class T, class Element, class O, class Mask, class Score>
  static status run(const cached_params<T, Element, O, Mask, Score>& params) {
    const int64 sequences = params.views.sequence_count();
    int64 longest = 0, keys = 0;
    for (int64 i = 0; i < sequences; ++i) {
      const cached_sequence s = params.at(static_cast<int>(i));
      longest = s.queries > longest ? s.queries : longest;
      keys += s.keys;
    }
    return run_host_rows(params, {sequences, params.views.q.extent(2), longest, ceil_div(keys, sequences), false});
  }
};

/// The work on one row. lse is written last, because it may be that of a part.
template <class T, class O>
struct merge_row {
  merge_views<T, O> m;
  void operator()(index<3> at) const {
    const auto [batch, query, head] = at;
    const float* const lse = m.lse_of(batch, query, head);
    const softmax_state<float> all = m.state_of(lse);
    const T* const part = m.part_of(batch, query, head);
    O* const o = m.output_of(batch, query, head);
    for (int64 first = 0; first < m.o.extent(3); first += block) {
      const int64 left = m.o.extent(3) - first;
      float sum[block];
      const int count = left < block ? static_cast<int>(left) : block;
      merge_columns(all, m.parts(), part + first, m.parts_o.stride(0), lse, m.parts_lse.stride(0), sum, count);
      for (int c = 0; c < count; ++c) o[first + c] = convert<O>{}(sum[c]);
    }
    if (m.lse.data() != nullptr)
      m.lse.data()[batch * m.lse.stride(0) + head * m.lse.stride(1) + query * m.lse.stride(2)] = all.lse();
  }

 private:
  static constexpr int block = 512;  // no row of attention is longer, so that a weight is computed once
};

template <class T>
struct host_merge {
  template <class O>
  static status run(const merge_views<T, O>& m) {
    return for_all(host, extents{m.o.extent(0), m.o.extent(1), m.o.extent(2)}, merge_row<T, O>{m});
  }
};

/// A team of one thread, of the CPU.
struct one_thread {
  static constexpr int lanes = 1;
  GIWA_HOST_DEVICE static int lane() { return 0; }
  GIWA_HOST_DEVICE static uint32 any_bits(uint32 x) { return x; }
  GIWA_HOST_DEVICE static int sum(int x) { return x; }
  GIWA_HOST_DEVICE static int scan(int x) { return x; }
  GIWA_HOST_DEVICE static int last(int x) { return x; }
  GIWA_HOST_DEVICE static int from(int x, int) { return x; }
  template <class Rows, class Put>
  GIWA_HOST_DEVICE static void transpose(const Rows& rows, const Put& put) {
    block_bits columns[32]{};
    for (int i = 0; i < 32; ++i) {
      const block_bits row = rows(i);
      for (int k = 0; k < 32; ++k)
        columns[k].visible |= (row.visible >> k & 1) << i, columns[k].full |= (row.full >> k & 1) << i;
    }
    for (int k = 0; k < 32; ++k) put(k, columns[k]);
  }
  GIWA_HOST_DEVICE static void add(int* to, int n) {
    if (n == 0) return;
#if defined(__CUDA_ARCH__)
    ::atomicAdd(to, n);
#else
    __atomic_fetch_add(to, n, __ATOMIC_RELAXED);  // other threads have other rows
#endif
  }
};

/// A step of make_block_map: a task by one thread.
template <class Step, class Params>
struct block_map_task {
  Params p;
  void operator()(int64 task) const { Step::run(one_thread{}, p, task); }
};
template <class Source>
struct host_block_map {
  static status run(const block_map& map, const Source& source) {
    const block_map_params<Source> p{map, source};
    if (const status s = step<write_block_bits>(p); !s.ok()) return s;
    if (const status s = step<write_block_columns>(p); !s.ok()) return s;
    return step<write_column_counts>(p);
  }

 private:
  template <class Step>
  static status step(const block_map_params<Source>& p) {
    return for_all(host, Step::tasks(p), block_map_task<Step, block_map_params<Source>>{p});
  }
};

/// The work on a unit of all heads of k, of v, or of q in a row.
template <int Count, class Params>
struct append_row_unit {
  Params p;
  void operator()(index<3> at) const {
    append_slice<Count>(p, at[0], static_cast<int>(at[1]), static_cast<int>(at[2]));
  }
};

/// The work on a slice of a row, whose scales the call finds.
template <int Count, class Params>
struct append_head_with_scale {
  Params p;
  void operator()(int64 head) const {
    append_with_scales<Count, 256 / Count>(team_of_one{}, p, head, p.rows * p.slices.divisor());
  }
};

template <class Rotary>
struct host_append {
  template <class T, class Element>
  static status run(const append_views<T, Element>& a, const Rotary& rotary) {
    const int64 most = a.k.extent(2) > a.q.extent(2) ? a.k.extent(2) : a.q.extent(2);
    constexpr int count = codes_of<Element>;
    if constexpr (scaled_element<Element>)
      if (a.finds_scales()) {
        const auto heads = append_params_of<count>(a, rotary, 1);
        return for_all(host, heads.rows * heads.slices.divisor(),
                       append_head_with_scale<count, decltype(heads)>{heads});
      }
    const auto p = append_params_of<count>(a, rotary, most);
    return for_all(host, extents{p.rows, p.slices.divisor(), p.units.divisor()},
                   append_row_unit<count, decltype(p)>{p});
  }
};

template <class T>
struct host_read_cache {
  template <class F, class Sizes>
  static status run(const F& f, const Sizes& sizes) {
    return for_all(host, sizes, f);
  }
};

/// A group of rows, or all rows of a channel, by one thread.
template <class T, class Code>
struct quantize_one {
  row_groups<T, Code> p;
  void operator()(int64 group) const {
    quantize_chunk<codes_of<Code>, 1, quantize_pass::all>(team_of_one{}, p, group, p.count(), {team_of_one{}, p.runs},
                                                          store_scale{});
  }
};
template <class T, class Code>
struct quantize_one_channel {
  head_channels<T, Code> p;
  void operator()(int64 channels) const {
    constexpr int count = codes_of<Code>;
    const auto run = [&](int64 sequence) { return channel_run<count, T, Code>(p, channels, sequence); };
    const int64 sequences = p.x.extent(0), rows = p.x.extent(1);
    float largest[stdlib::size_t{count}] = {};
    for (int64 b = 0; b < sequences; ++b) run(b).find_largest(largest, 0, rows, 1);
    for (int i = 0; i < count; ++i) run(0).scale(i) = scale_of<Code>(largest[i]);
    for (int64 b = 0; b < sequences; ++b) run(b).write_codes(0, rows, 1);
  }
};

template <class T>
struct host_quantize {
  template <class Code>
  static status run(const row_groups<T, Code>& p) {
    return for_all(host, p.count(), quantize_one<T, Code>{p});
  }
  template <class Code>
  static status run(const head_channels<T, Code>& p) {
    return for_all(host, p.run_count(), quantize_one_channel<T, Code>{p});
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
