// SPDX-License-Identifier: MIT
// The softmax of rows as an op: one body for every shape, precision and layout.
#ifndef GIWA_SOFTMAX_ROW_OP_CUH
#define GIWA_SOFTMAX_ROW_OP_CUH

#include <giwa/grid/op.hpp>
#include <giwa/softmax/grouped_sum.hpp>
#include <giwa/softmax/problem.hpp>
#include <giwa/softmax/row_group.cuh>
#include <giwa/softmax/row_packet.hpp>
#include <giwa/softmax/row_plan.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The parameters of the kernel, the same for all shapes of one pair of types.
template <class T, class U>
struct row_softmax_params {
  const T* in;
  U* out;
  int64 in_stride, out_stride;  // between elements of a row
  int64 columns;
  row_map map;
  int64 first_row, end_row;  // of this launch
  row_launch launch;
};

/// out = e^(in - max) / sum over each row. A resident row stays in the registers of its threads and is read once. A longer row is
/// read twice: the first time for its state, tile by tile, the second time for its results.
template <class T, class U, class Shape, row_access Access>
struct row_softmax_op {
  using compute = softmax_compute<T, U>;
  using params = row_softmax_params<T, U>;
  static constexpr row_owner owner = Shape::owner;
  static constexpr int max_threads = Shape::max_threads;
  static constexpr bool narrow =
      Access != row_access::strided && sizeof(compute) == 4;  // fits the registers of min_blocks blocks
  static constexpr int min_blocks = narrow ? Shape::min_blocks : 1;
  static constexpr int count = packet_count<T, U>;                              // elements of a packet
  static constexpr int packets = Shape::elements / weight_of<compute> / count;  // of a thread
  static constexpr int lanes = Shape::lanes;                          // neighbouring lanes of a warp that share a row
  static constexpr int slots = max_threads / 32 * Shape::max_blocks;  // warps that share a row
  static_assert(Shape::elements % (weight_of<compute> * count) == 0 && packets >= 1);
  using exp = device_exponential;
  using in_memory = row_memory<const T, count>;
  using out_memory = row_memory<U, count>;

  // Staging for the stores of rows off packet boundaries: results on their way from the lane that computed them to the lane that
  // stores them. A batch of packets for each lane, and the packet before them.
  static constexpr int batch = packets < 4 ? packets : 4;
  static_assert(packets % batch == 0);
  struct line {
    typename out_memory::words before, own[batch * lanes];
    typename out_memory::words after;  // one word is read together with the last packet, and not used
  };
  struct lines {
    line of[max_threads / 32][32 / lanes];
  };
  // 16^4 tiles, up to 2^32 elements of a row of a cluster, keep the chains of additions at 16.
  using sums = grouped_sum<compute, device_exponential, 4>;
  struct exchange {
    row_states<compute, slots> states;
    typename out_memory::words edge[Access == row_access::shifted ? max_threads / 32 : 1];  // each warp's last packet
  };
  struct grouped_exchange : exchange {
    group_state<compute> groups[sums::levels_in_memory][max_threads];
  };
  using shared_storage =
      stdlib::conditional_t<owner != row_owner::lanes,
                            stdlib::conditional_t<Shape::resident, exchange, grouped_exchange>,
                            stdlib::conditional_t<Access == row_access::shifted, lines, no_shared_storage>>;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    if constexpr (owner == row_owner::cluster) announce(block, shared.states);
    const work<Block> w(block, p, shared);
    w.run(p.first_row + w.row);
  }

 private:
  using elements = compute[packets][count];

  /// One thread's part.
  template <class Block>
  struct work {
    const Block& block;
    const params& p;
    shared_storage& shared;
    int64 row;     // of the first row of this launch
    int part = 0;  // the block's rank among those that share the row
    int first;  // the thread's first packet of the row; the next ones follow at a distance of `lanes`, so a warp's packets are contiguous
    int tile;   // columns that the threads of the row hold at once

    GIWA_HOST_DEVICE work(const Block& block_, const params& p_, shared_storage& shared_)
        : block(block_), p(p_), shared(shared_) {
      if constexpr (owner == row_owner::lanes) {
        row = block.block_rank() * (block.size() / lanes) + block.rank() / lanes;
        first = block.rank() % lanes;
        tile = lanes * packets * count;
      } else {
        const int blocks = owner == row_owner::cluster ? p.launch.blocks : 1;
        row = owner == row_owner::cluster ? block.block_rank() >> p.launch.blocks_log2 : block.block_rank();
        part = static_cast<int>(block.block_rank() & (blocks - 1));
        first = (part * block.size() + block.warp() * lanes) * packets + block.lane();
        tile = blocks * block.size() * packets * count;
      }
    }

    // The thread's part of the elements [begin, columns) of a row.
    GIWA_HOST_DEVICE in_memory source(int64 r, int64 begin, int64 columns) const {
      const T* const at = p.in + p.map(r).in + begin * p.in_stride;
      return in_memory::template at<Access>(at, clipped(columns - begin), p.in_stride, first * count);
    }
    GIWA_HOST_DEVICE out_memory target(int64 r, int64 begin, int64 columns) const {
      U* const at = p.out + p.map(r).out + begin * p.out_stride;
      return out_memory::template at<Access>(at, clipped(columns - begin), p.out_stride, first * count);
    }

    // Distance from the thread's first packet to its packet k, in elements.
    GIWA_HOST_DEVICE static constexpr int offset_of(int k) { return k * lanes * count; }

    /// Reads the thread's elements of a row or of a tile of it. Where the row has all elements of the warp, every load
    /// is issued before the first is used. With tests for the row's end between them, the compiler would wait for one
    /// load after the other.
    GIWA_HOST_DEVICE void read(const in_memory& memory, elements& x) const {
      typename in_memory::words raw[packets];
      if constexpr (Access == row_access::strided) {
        for (int k = 0; k < packets; ++k) raw[k] = memory.template gather<Access>(offset_of(k));
      } else if constexpr (Access == row_access::aligned) {
        if (block.all(memory.fills(offset_of(packets - 1)))) {
          for (int k = 0; k < packets; ++k) raw[k] = memory.whole(offset_of(k));
        } else {
          for (int k = 0; k < packets; ++k)
            raw[k] =
                memory.fills(offset_of(k)) ? memory.whole(offset_of(k)) : memory.template gather<Access>(offset_of(k));
        }
      } else if (owner != row_owner::lanes && block.all(memory.inside(offset_of(packets - 1)))) {
        read_inside(memory, raw);
      } else if constexpr (sizeof(T) >= 4) {
        for (int k = 0; k < packets; ++k) raw[k] = memory.template gather<Access>(offset_of(k));
      } else {
        read_ends(memory, raw);
      }
      convert_all(raw, x);
    }

    /// Reads aligned packets of memory, including the one after the warp's. Each lane then assembles its own packet
    /// from one of them and the next, which the next lane holds. For the inner warps of a block: fp16 rows of 50257
    /// reach 0.66 of a copy's speed, and
    /// 0.52 with read_ends and write_staged.
    GIWA_HOST_DEVICE void read_inside(const in_memory& memory, typename in_memory::words (&raw)[packets]) const {
      const in_memory shifted = memory.from_boundary();
      for (int k = 0; k < packets; ++k) raw[k] = shifted.whole(offset_of(k));
      typename in_memory::words after{};
      if (block.lane() == 31) after = shifted.whole(offset_of(packets - 1) + count);
      const int lane = block.lane();
      for (int k = 0; k < packets; ++k) {
        const bool last = k + 1 == packets;
        typename in_memory::words next;
        for (int i = 0; i < next.count; ++i) {
          next.word[i] =
              block.shuffle(lane == 0 && !last ? raw[last ? k : k + 1].word[i] : raw[k].word[i], (lane + 1) % 32);
          if (last && lane == 31) next.word[i] = after.word[i];
        }
        raw[k] = shift_packet<in_memory::granule, false>(raw[k], next, memory.shift * in_memory::granule);
      }
    }

    /// Reads 16-bit rows that end within the warp. Each lane reads the words around its packets. Neighbouring lanes
    /// share words, which come from the L1 cache the second time. No lane waits for another.
    GIWA_HOST_DEVICE void read_ends(const in_memory& memory, typename in_memory::words (&raw)[packets]) const {
      typename in_memory::spanning around[packets]{};
      const word_place place = memory.place();
      if (place.odd) {
        for (int k = 0; k < packets; ++k)
          if (memory.spans(offset_of(k))) around[k] = memory.template around<true>(offset_of(k));
      } else {
        for (int k = 0; k < packets; ++k)
          if (memory.spans(offset_of(k))) around[k] = memory.template around<false>(offset_of(k));
      }
      int bits[packets];
      for (int k = 0; k < packets; ++k) {
        bits[k] = place.bits;
        if (!memory.spans(offset_of(k))) {
          const auto some = memory.template gather<Access>(offset_of(k));
          for (int i = 0; i < around[k].count; ++i) around[k].word[i] = i < some.count ? some.word[i] : 0;
          bits[k] = 0;
        }
      }
      for (int k = 0; k < packets; ++k) raw[k] = joined(around[k], bits[k]);
    }

    /// Computes one row. The last warps of a launch may have no row, but take part in the shuffles.
    GIWA_HOST_DEVICE void run(int64 r) const {
      const int64 columns = r < p.end_row ? p.columns : 0;
      if (r >= p.end_row) r = p.first_row;
      if constexpr (Shape::resident) {
        elements x;
        read(source(r, 0, columns), x);
        finish(r, columns, x);
      } else {
        run_twice(r, columns);
      }
    }

    GIWA_HOST_DEVICE void finish(int64 r, int64 columns, elements& x) const {
      softmax_state<compute> own;
      own.max = lanes_max<lanes>(block, max_of(x));
      own.sum = lanes_sum<lanes>(block, exponentials(x, own.reference()));
      const softmax_state<compute> whole = merge(own);
      compute factor = normalizer_of(whole);
      if constexpr (owner != row_owner::lanes) factor = device_product(factor, exp{}(own.max - whole.reference()));
      write(target(r, 0, columns), x, factor);
    }

    GIWA_HOST_DEVICE void run_twice(int64 r, int64 columns) const {
      sums sum(&shared.groups[0][block.rank()], max_threads);
      for (int64 begin = 0; begin < columns; begin += tile) {
        elements x;
        read(source(r, begin, columns), x);
        softmax_state<compute> next{larger_of(sum.max(), max_of(x)), 0};
        next.sum = exponentials(x, next.reference());
        sum.add(next);
      }
      const softmax_state<compute> mine = sum.total();
      softmax_state<compute> own;
      own.max = lanes_max<lanes>(block, mine.max);
      own.sum = lanes_sum<lanes>(block, mine.sum * exp{}(mine.max - own.reference()));
      const softmax_state<compute> whole = merge(own);
      const compute factor = normalizer_of(whole), reference = whole.reference();
      // From the end: the elements that were read last may still be in the L2 cache.
      for (int64 begin = (columns - 1) / tile * tile; begin >= 0 && columns > 0; begin -= tile) {
        elements x;
        // Not past the tile: in place, what follows is overwritten already.
        read(source(r, begin, columns - begin < tile ? columns : begin + tile), x);
        static_cast<void>(exponentials(x, reference));
        write(target(r, begin, columns), x, factor);
      }
    }

    GIWA_HOST_DEVICE softmax_state<compute> merge(const softmax_state<compute>& own) const {
      if constexpr (owner == row_owner::cluster) await_others();
      if constexpr (owner == row_owner::lanes)
        return own;
      else
        return merge_warps<owner, slots, exp>(block, own, p.launch.blocks, part, shared.states);
    }

    GIWA_HOST_DEVICE void write(const out_memory& memory, const elements& x, compute factor) const {
      typename out_memory::words own[packets];
      for (int k = 0; k < packets; ++k) own[k] = packed(x[k], factor);
      if constexpr (Access == row_access::aligned) {
        for (int k = 0; k < packets; ++k) memory.template store<Access>(offset_of(k), own[k], 0);
      } else if constexpr (Access == row_access::strided) {
        for (int k = 0; k < packets; ++k) memory.template scatter<Access>(offset_of(k), own[k], 0);
      } else if constexpr (owner == row_owner::lanes) {
        write_staged(memory, own);
      } else {
        write_shifted(memory, own);
      }
    }

    /// Each lane stores the aligned memory packet that begins before its own packet: the end of the previous packet,
    /// which another lane or warp holds, and the beginning of this lane's packet.
    GIWA_HOST_DEVICE void write_shifted(const out_memory& memory,
                                        const typename out_memory::words (&own)[packets]) const {
      const int warp = block.warp(), lane = block.lane();
      if (lane == 31) shared.edge[warp] = own[packets - 1];
      block.sync();
      const bool follows = warp > 0, is_followed = warp < block.size() / 32 - 1;  // by another warp of the block
      typename out_memory::words before_all{};
      if (lane == 0 && follows) before_all = shared.edge[warp - 1];
      for (int k = 0; k < packets; ++k) {
        typename out_memory::words before;
        for (int i = 0; i < before.count; ++i) {
          // The last lane passes its packet of the previous round to the first lane.
          before.word[i] =
              block.shuffle(lane == 31 && k > 0 ? own[k > 0 ? k - 1 : 0].word[i] : own[k].word[i], (lane + 31) % 32);
          if (k == 0 && lane == 0) before.word[i] = before_all.word[i];
        }
        const auto w = shift_packet<out_memory::granule, true>(before, own[k], memory.shift * out_memory::granule);
        memory.template store<Access>(offset_of(k), w, k > 0 || lane > 0 || follows ? 0 : memory.shift);
      }
      if (lane == 31 && !is_followed)
        memory.template scatter<Access>(offset_of(packets - 1), own[packets - 1], count - memory.shift);
      if constexpr (!Shape::resident) block.sync();  // before the next edges
    }

    /// The same through shared memory, for rows that share a warp: they may begin at different alignments. With
    /// read_ends, fp16 rows of 1001 reach 0.93 of a copy's speed.
    GIWA_HOST_DEVICE void write_staged(const out_memory& memory,
                                       const typename out_memory::words (&own)[packets]) const {
      const int lane = block.lane() % lanes;
      line& mine = shared.of[block.warp()][block.lane() / lanes];
      const bool last = lane == lanes - 1;
      for (int k = 0; k < packets; k += batch) {
        if (k > 0) block.sync_warp();  // all have read the packets before
        for (int i = 0; i < batch; ++i) mine.own[i * lanes + lane] = own[k + i];
        if (k > 0 && last) mine.before = own[k > 0 ? k - 1 : 0];
        block.sync_warp();  // in place, also: another lane has read what this one overwrites
        const int back = memory.shift * out_memory::granule;
        const word_place place = word_place::of(static_cast<uint64>(-back));  // lines begin on whole packets
        const char* const begin = reinterpret_cast<const char*>(&mine.own[lane]) - (back + 3) / 4 * 4;
        typename out_memory::words w[batch];
        if (place.odd)
          load_staged<true>(begin, place.bits, w);
        else
          load_staged<false>(begin, place.bits, w);
        for (int i = 0; i < batch; ++i)
          memory.template store<Access>(offset_of(k + i), w[i], k + i > 0 || lane > 0 ? 0 : memory.shift);
      }
      if (last)
        memory.template scatter<Access>(offset_of(packets - 1), mine.own[(batch - 1) * lanes + lane],
                                        count - memory.shift);
    }
    template <bool Odd>
    GIWA_HOST_DEVICE static void load_staged(const char* begin, int bits, typename out_memory::words (&w)[batch]) {
      constexpr int granule = out_memory::granule, bytes = out_memory::bytes;
      for (int i = 0; i < batch; ++i)
        w[i] = joined(load_spanning<Odd, granule, bytes>(begin + i * lanes * bytes), bits);
    }
  };

  GIWA_HOST_DEVICE static int clipped(int64 columns) { return static_cast<int>(columns < 1 << 30 ? columns : 1 << 30); }

  GIWA_HOST_DEVICE static compute normalizer_of(const softmax_state<compute>& whole) {
    return whole.sum == 0 ? compute(0) : device_reciprocal(whole.sum);
  }

  GIWA_HOST_DEVICE static void convert_all(const typename in_memory::words (&raw)[packets], elements& x) {
    for (int k = 0; k < packets; ++k) {
      packet_elements<T, count> e;
      __builtin_memcpy(&e, &raw[k], sizeof e);
      for (int i = 0; i < count; ++i) x[k][i] = convert<compute>{}(e.element[i]);
    }
  }

  GIWA_HOST_DEVICE static typename out_memory::words packed(const compute (&x)[count], compute factor) {
    typename out_memory::words raw;
    for (int i = 0; i < count; i += 2) {
      const compute low = device_product(x[i], factor), high = device_product(x[i + 1], factor);
      if constexpr (sizeof(U) == 2 && sizeof(compute) == 4) {
        const auto pair = pack<U>(low, high);
        __builtin_memcpy(&raw.word[i / 2], &pair, sizeof pair);
      } else {
        const packet_elements<U, 2> pair{convert<U>{}(low), convert<U>{}(high)};
        __builtin_memcpy(&raw.word[i * static_cast<int>(sizeof(U)) / 4], &pair, sizeof pair);
      }
    }
    return raw;
  }

  GIWA_HOST_DEVICE static compute max_of(const elements& x) {
    compute m = -infinity_of<compute>;
    for (int k = 0; k < packets; ++k)
      for (int i = 0; i < count; ++i) m = larger_of(m, x[k][i]);
    return m;
  }

  /// Replaces each x by e^(x - reference), and returns their sum.
  GIWA_HOST_DEVICE static compute exponentials(elements& x, compute reference) {
    compute sum = 0;
    for (int k = 0; k < packets; ++k)
      for (int i = 0; i < count; ++i) {
        x[k][i] = exp{}(x[k][i] - reference);
        sum += x[k][i];
      }
    return sum;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
