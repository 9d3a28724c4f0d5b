// SPDX-License-Identifier: MIT
// The softmax of rows as an op: one body for every owner of a row, every precision and every layout.
#ifndef GIWA_SOFTMAX_ROW_OP_CUH
#define GIWA_SOFTMAX_ROW_OP_CUH

#include <giwa/grid/op.hpp>
#include <giwa/softmax/problem.hpp>
#include <giwa/softmax/row_group.cuh>
#include <giwa/softmax/row_packet.hpp>
#include <giwa/softmax/row_plan.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// What the kernel is told; the same for all shapes of one pair of types.
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

/// out = e^(in - max) / sum over each row. What is read once stays in its owner's registers; of what is read twice the state
/// of the first reading is merged online.
template <class T, class U, class Shape, row_access Access>
struct row_softmax_op {
  using compute = softmax_compute<T, U>;
  using params = row_softmax_params<T, U>;
  static constexpr row_owner owner = Shape::owner;
  static constexpr int max_threads = Shape::max_threads;
  static constexpr bool narrow =
      Access != row_access::strided && sizeof(compute) == 4;  // fits in the registers foreseen
  static constexpr int min_blocks = narrow ? Shape::min_blocks : 1;
  static constexpr int count = packet_count<T, U>;                              // elements of a packet
  static constexpr int packets = Shape::elements / weight_of<compute> / count;  // of a thread
  static constexpr int lanes = Shape::lanes;                                    // neighbours in a warp that own a row
  static constexpr int slots = max_threads / 32 * Shape::max_blocks;            // warps that own a row
  static_assert(Shape::elements % (weight_of<compute> * count) == 0 && packets >= 1);
  using exp = device_exponential;
  using in_memory = row_memory<const T, count>;
  using out_memory = row_memory<U, count>;

  struct exchange {
    row_states<compute, slots> states;
    // The last packet of each warp, for the first lane of the next one; by turns.
    typename out_memory::words edge[2][Access == row_access::shifted ? max_threads / 32 : 1];
  };
  using shared_storage = stdlib::conditional_t<owner == row_owner::lanes, no_shared_storage, exchange>;

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
    int part = 0;  // the block's rank among those that own the row
    int first;  // the thread's first packet of the row; the next ones follow `lanes` apart, so that a warp's are together
    int tile;  // columns that the owner holds at once

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

    // The row's elements from column `begin` on, of which there are `columns` at most.
    GIWA_HOST_DEVICE in_memory source(int64 r, int64 begin, int64 columns) const {
      const T* const at = p.in + p.map(r).in + begin * p.in_stride;
      return in_memory::template at<Access>(at, clipped(columns - begin), p.in_stride);
    }
    GIWA_HOST_DEVICE out_memory target(int64 r, int64 begin, int64 columns) const {
      U* const at = p.out + p.map(r).out + begin * p.out_stride;
      return out_memory::template at<Access>(at, clipped(columns - begin), p.out_stride);
    }

    GIWA_HOST_DEVICE int column(int k) const { return (first + k * lanes) * count; }

    /// The thread's elements of a row or of a tile of it. Where the row has all that the warp wants, every load is on its way
    /// before the first is used; with the row's ends between them, the compiler waits for one after the other.
    GIWA_HOST_DEVICE void read(const in_memory& memory, elements& x) const {
      using words = typename in_memory::words;
      words raw[packets];
      if constexpr (Access == row_access::strided) {
        for (int k = 0; k < packets; ++k) raw[k] = memory.gather(column(k));
      } else {
        // Packets as they lie in memory, shifted also the one after the warp's; then each lane makes its own out of one and
        // the next, which the next lane has.
        constexpr int more = Access == row_access::shifted ? count : 0;
        const int begin = column(0) - memory.shift, end = column(packets - 1) - memory.shift + more;
        const int lane = block.lane() % lanes;
        const bool last = lane == lanes - 1;
        [[maybe_unused]] words after{};
        if (block.all(memory.fills(begin) && memory.fills(end))) {
          for (int k = 0; k < packets; ++k) raw[k] = memory.whole(begin + k * lanes * count);
          if (more > 0 && last) after = memory.whole(end);
        } else {
          for (int k = 0; k < packets; ++k) raw[k] = memory.boundary(begin + k * lanes * count);
          if (more > 0 && last) after = memory.boundary(end);
        }
        if constexpr (Access == row_access::shifted) shift_all(memory.shift, after, raw);
      }
      convert_all(raw, x);
    }

    GIWA_HOST_DEVICE void shift_all(int shift, const typename in_memory::words& after,
                                    typename in_memory::words (&raw)[packets]) const {
      using words = typename in_memory::words;
      const int lane = block.lane() % lanes;
      const bool last = lane == lanes - 1;
      const int next_lane = block.lane() - lane + (lane + 1) % lanes;
      for (int k = 0; k < packets; ++k) {
        words next;
        for (int i = 0; i < words::count; ++i) {
          next.word[i] =
              block.shuffle(lane == 0 && k + 1 < packets ? raw[(k + 1) % packets].word[i] : raw[k].word[i], next_lane);
          if (k + 1 == packets && last) next.word[i] = after.word[i];
        }
        raw[k] = shift_packet<in_memory::granule, false>(raw[k], next, shift * in_memory::granule);
      }
    }

    /// One row. The last warps of a launch may have none, but take part in the shuffles.
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
      write(target(r, 0, columns), x, factor, 0);
    }

    GIWA_HOST_DEVICE void run_twice(int64 r, int64 columns) const {
      softmax_state<compute> mine;
      for (int64 begin = 0; begin < columns; begin += tile) {
        elements x;
        read(source(r, begin, columns), x);
        const softmax_state<compute> before = mine;
        mine.max = larger_of(mine.max, max_of(x));
        mine.sum = before.sum * exp{}(before.max - mine.reference()) + exponentials(x, mine.reference());
      }
      softmax_state<compute> own;
      own.max = lanes_max<lanes>(block, mine.max);
      own.sum = lanes_sum<lanes>(block, mine.sum * exp{}(mine.max - own.reference()));
      const softmax_state<compute> whole = merge(own);
      const compute factor = normalizer_of(whole), reference = whole.reference();
      // From the end, whose elements have been read last and may still be in the L2 cache.
      int turn = 0;
      for (int64 begin = (columns - 1) / tile * tile; begin >= 0 && columns > 0; begin -= tile, turn ^= 1) {
        elements x;
        // Not past the tile, which in place is written already.
        read(source(r, begin, columns - begin < tile ? columns : begin + tile), x);
        static_cast<void>(exponentials(x, reference));
        write(target(r, begin, columns), x, factor, turn);
      }
    }

    GIWA_HOST_DEVICE softmax_state<compute> merge(const softmax_state<compute>& own) const {
      if constexpr (owner == row_owner::cluster) await_others();
      if constexpr (owner == row_owner::lanes)
        return own;
      else
        return merge_warps<owner, slots, exp>(block, own, p.launch.blocks, part, shared.states);
    }

    GIWA_HOST_DEVICE void write(const out_memory& memory, const elements& x, compute factor,
                                [[maybe_unused]] int turn) const {
      typename out_memory::words own[packets];
      for (int k = 0; k < packets; ++k) own[k] = packed(x[k], factor);
      if constexpr (Access != row_access::shifted) {
        for (int k = 0; k < packets; ++k) memory.template store<Access>(column(k), own[k], own[k], true, true);
      } else {
        const int lane = block.lane() % lanes;
        bool follows = false,
             is_followed = false;  // another warp of the block has the packet before, or after, the warp's
        typename out_memory::words before_all{};
        if constexpr (owner != row_owner::lanes) {
          const int warp = block.warp();
          follows = warp > 0;
          is_followed = warp < block.size() / 32 - 1;
          if (lane == lanes - 1) shared.edge[turn][warp] = own[packets - 1];
          block.sync();
          if (lane == 0 && follows) before_all = shared.edge[turn][warp - 1];
        } else {
          block.sync_warp();  // in place, a lane's packet in memory holds elements that the lane before it has read
        }
        for (int k = 0; k < packets; ++k) {
          typename out_memory::words before;
          // The last lane gives its packet of the round before: what the first lane needs.
          for (int i = 0; i < before.count; ++i) {
            before.word[i] = block.shuffle(lane == lanes - 1 ? own[k > 0 ? k - 1 : 0].word[i] : own[k].word[i],
                                           block.lane() - lane + (lane + lanes - 1) % lanes);
            if (k == 0 && lane == 0) before.word[i] = before_all.word[i];
          }
          memory.template store<Access>(column(k), own[k], before, lane > 0 || k > 0 || follows,
                                        lane < lanes - 1 || k < packets - 1 || is_followed);
        }
      }
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

  /// Replaces each x by e^(x - reference) and adds them up.
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
