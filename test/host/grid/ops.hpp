// SPDX-License-Identifier: MIT
// Small ops with everything that a block offers; right on the host and on a GPU.
#ifndef GIWA_TEST_HOST_GRID_OPS_HPP
#define GIWA_TEST_HOST_GRID_OPS_HPP

#include <giwa/grid/grid_barrier.hpp>
#include <giwa/grid/op.hpp>
#include <giwa/numeric/index.hpp>

namespace giwa_test {

using giwa::int64;
using giwa::uint32;

struct op_limits {
  static constexpr int max_threads = 1024, min_blocks = 1;
};

/// out[block] = the sum of the block's part of in: a tree in shared memory; the block's size is a power of two.
struct block_sum_op : op_limits {
  struct params {
    const int* in;
    int* out;
    int64 n;
  };
  struct shared_storage {
    int partial[1024];
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    const int rank = block.rank();
    const int64 i = block.block_rank() * block.size() + rank;
    shared.partial[rank] = i < p.n ? p.in[i] : 0;
    block.sync();
    for (int half = block.size() / 2; half > 0; half /= 2) {
      if (rank < half) shared.partial[rank] += shared.partial[rank + half];
      block.sync();
    }
    if (rank == 0) p.out[block.block_rank()] = shared.partial[0];
  }
};

/// Inclusive prefix sum of each block: shuffles in the warp, then the warps' totals through shared memory.
struct block_scan_op : op_limits {
  struct params {
    const int64* in;
    int64* out;
  };
  struct shared_storage {
    int64 total[32];
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    const int64 i = block.block_rank() * block.size() + block.rank();
    int64 sum = warp_scan(block, p.in[i]);
    if (block.lane() == 31) shared.total[block.warp()] = sum;
    block.sync();
    if (block.warp() == 0) {
      const int warps = block.size() / 32;
      const int64 total = warp_scan(block, block.lane() < warps ? shared.total[block.lane()] : int64{0});
      block.sync_warp();
      shared.total[block.lane()] = total;
    }
    block.sync();
    if (block.warp() > 0) sum += shared.total[block.warp() - 1];
    p.out[i] = sum;
  }
  template <class Block>
  GIWA_HOST_DEVICE static int64 warp_scan(Block block, int64 sum) {
    for (int d = 1; d < 32; d *= 2) {
      const int64 below = block.shuffle_up(sum, d);
      if (block.lane() >= d) sum += below;
    }
    return sum;
  }
};

/// Shuffles of type T: out[kind][operand][lane], for every operand in [-40, 80). The value of lane i is Value(i).
template <class T>
struct shuffle_op : op_limits {
  static constexpr int first_operand = -40, operands = 120;
  struct params {
    T* out;           // (4, operands, 32)
    T* own_operands;  // (4, 32): each lane asks with an operand of its own, 7 * lane
  };
  using shared_storage = giwa::no_shared_storage;
  GIWA_HOST_DEVICE static T value_of(int lane) {
    T value{};
    auto* bytes = reinterpret_cast<unsigned char*>(&value);
    for (int i = 0; i < static_cast<int>(sizeof(T)); ++i) bytes[i] = static_cast<unsigned char>(lane + 32 * (i % 8));
    return value;
  }
  template <class Block>
  GIWA_HOST_DEVICE static T shuffle(Block block, int kind, T value, int operand) {
    return kind == 0   ? block.shuffle(value, operand)
           : kind == 1 ? block.shuffle_up(value, operand)
           : kind == 2 ? block.shuffle_down(value, operand)
                       : block.shuffle_xor(value, operand);
  }
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    const int lane = block.lane();
    for (int kind = 0; kind < 4; ++kind) {
      for (int i = 0; i < operands; ++i)
        p.out[(kind * operands + i) * 32 + lane] = shuffle(block, kind, value_of(lane), first_operand + i);
      p.own_operands[kind * 32 + lane] = shuffle(block, kind, value_of(lane), 7 * lane);
    }
  }
};

/// Votes: lane i of warp w votes bit i of pattern[w].
struct vote_op : op_limits {
  struct params {
    const uint32* pattern;
    uint32* ballot;  // (threads)
    int* any;        // (threads)
    int* all;        // (threads)
  };
  using shared_storage = giwa::no_shared_storage;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    const bool vote = (p.pattern[block.warp()] >> block.lane() & 1u) != 0;
    p.any[block.rank()] = block.any(vote) ? 1 : 0;
    p.all[block.rank()] = block.all(vote) ? 1 : 0;
    p.ballot[block.rank()] = block.ballot(vote);
  }
};

/// Atomics: a histogram of in[i] % 16 in shared memory that is added to memory, and one of each other kind.
struct atomics_op : op_limits {
  struct params {
    const int* in;
    int64 n;
    int* histogram;  // (16)
    float* sum;      // of in
    double* sum64;
    int* smallest;
    unsigned* largest;
    int* last;     // exchanged by every thread
    int* taken;    // compare_exchange(-1, rank + 1): one thread wins
    int* winners;  // how many won
  };
  struct shared_storage {
    int count[16];
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    if (block.rank() < 16) shared.count[block.rank()] = 0;
    block.sync();
    for (int64 i = block.block_rank() * block.size() + block.rank(); i < p.n; i += block.block_count() * block.size()) {
      const int x = p.in[i];
      block.atomic_add(shared.count[x % 16], 1);
      block.atomic_add(*p.sum, static_cast<float>(x));
      block.atomic_add(*p.sum64, static_cast<double>(x));
      block.atomic_min(*p.smallest, x);
      block.atomic_max(*p.largest, static_cast<unsigned>(x));
    }
    block.atomic_exchange(*p.last, block.rank());
    if (block.atomic_compare_exchange(*p.taken, -1, block.rank() + 1) == -1) block.atomic_add(*p.winners, 1);
    block.sync();
    if (block.rank() < 16) block.atomic_add(p.histogram[block.rank()], shared.count[block.rank()]);
  }
};

/// out(x, y) = in(y, x) through tiles of 32 x 32 in shared memory; blocks of 32 x 8 threads.
struct transpose_op : op_limits {
  struct params {
    const float* in;  // (rows, columns)
    float* out;       // (columns, rows)
    int rows, columns;
  };
  struct shared_storage {
    float tile[32][33];
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    const int tx = static_cast<int>(block.thread_index()[2]), ty = static_cast<int>(block.thread_index()[1]);
    const int row0 = 32 * static_cast<int>(block.block_index()[1]),
              column0 = 32 * static_cast<int>(block.block_index()[2]);
    for (int y = ty; y < 32; y += 8)
      if (row0 + y < p.rows && column0 + tx < p.columns)
        shared.tile[y][tx] = p.in[(row0 + y) * p.columns + column0 + tx];
    block.sync();
    for (int y = ty; y < 32; y += 8)
      if (row0 + tx < p.rows && column0 + y < p.columns) p.out[(column0 + y) * p.rows + row0 + tx] = shared.tile[tx][y];
  }
};

/// In each round every thread of the grid takes the number that the thread `step` after it had before the round, plus one. The
/// last thread is followed by the first.
struct ring_op : op_limits {
  struct params {
    int *now, *next;  // (threads of the grid)
    int rounds;
    int64 step;
    giwa::grid_barrier* barrier;
  };
  using shared_storage = giwa::no_shared_storage;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    const int64 n = block.block_count() * block.size(), i = block.block_rank() * block.size() + block.rank();
    int *now = p.now, *next = p.next;
    for (int round = 0; round < p.rounds; ++round) {
      next[i] = now[(i + p.step) % n] + 1;
      block.sync_grid(*p.barrier);
      int* const last = now;
      now = next;
      next = last;
    }
  }
};

/// Each thread writes what it knows of itself, at its rank in the grid.
struct who_op : op_limits {
  struct record {
    int rank, size, warp, lane;
    int64 block_rank, block_count;
    int64 thread_index[3], thread_extents[3], block_index[3], block_extents[3];
    int64 visits;
  };
  struct params {
    record* out;
  };
  using shared_storage = giwa::no_shared_storage;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    record& r = p.out[block.block_rank() * block.size() + block.rank()];
    r.rank = block.rank();
    r.size = block.size();
    r.warp = block.warp();
    r.lane = block.lane();
    r.block_rank = block.block_rank();
    r.block_count = block.block_count();
    for (int d = 0; d < 3; ++d) {
      r.thread_index[d] = block.thread_index()[d];
      r.thread_extents[d] = block.thread_extents()[d];
      r.block_index[d] = block.block_index()[d];
      r.block_extents[d] = block.block_extents()[d];
    }
    ++r.visits;
  }
};

}  // namespace giwa_test

#endif
