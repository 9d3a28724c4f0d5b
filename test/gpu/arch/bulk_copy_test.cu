// SPDX-License-Identifier: MIT
// TMA beyond the single box: multicast in a cluster, plain bytes, and shared memory used again while stores are under way.
#include <algorithm>

#include <giwa/arch/cluster.cuh>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/device/tensor_map.hpp>
#include <giwa/tile/shared_tile.hpp>

#include "support/hopper.cuh"
#include "support/random.hpp"

using giwa::int64, giwa::swizzle;
using giwa_test::gpu_array, giwa_test::run_op;
namespace arch = giwa::arch;

namespace {

constexpr int slab_rows = 8, slab_columns = 32;  // 128 bytes of float
using slab = giwa::shared_tile<float, giwa::tile_shape<slab_rows, slab_columns>, giwa::swizzled<swizzle::bytes_128>>;

struct op_base {
  static constexpr int max_threads = 64, min_blocks = 1;
};

/// Each block of a cluster loads one slab for all of them; then the last block sends one more to those of odd rank only.
struct multicast_op : op_base {
  struct params {
    giwa::tensor_map map;  // (8 (blocks + 1), 32)
    float* out;            // (blocks, 9, 8, 32)
  };
  struct shared_storage {
    slab to[9];
    arch::mbarrier full, odd;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int rank = arch::cluster_rank(), blocks = arch::cluster_size();
    auto* const words = reinterpret_cast<int*>(s.to);
    for (int i = block.rank(); i < static_cast<int>(sizeof s.to / 4); i += block.size()) words[i] = -1;
    arch::fence_async_proxy();
    if (block.rank() == 0) {
      s.full.initialize(1);
      s.odd.initialize(1);
      arch::mbarriers_initialized();
    }
    arch::cluster_sync();
    if (block.rank() == 0) {
      s.full.arrive_and_expect(blocks * slab::bytes);
      if (rank % 2 == 1) s.odd.arrive_and_expect(slab::bytes);
      const int c[2] = {0, rank * slab_rows};
      arch::load_box_multicast(s.to[rank].data(), p.map, c, s.full, (1u << blocks) - 1);
      if (rank == blocks - 1) {
        const int last[2] = {0, blocks * slab_rows};
        arch::load_box_multicast(s.to[8].data(), p.map, last, s.odd, 0xaaaau & ((1u << blocks) - 1));
      }
    }
    s.full.wait(0);
    if (rank % 2 == 1) s.odd.wait(0);
    arch::cluster_sync();  // all copies have landed, everywhere
    float* const out = p.out + block.block_rank() * (9 * slab_rows * slab_columns);
    for (int i = block.rank(); i < 9 * slab_rows * slab_columns; i += block.size())
      out[i] = s.to[i / (slab_rows * slab_columns)](i / slab_columns % slab_rows, i % slab_columns);
  }
};

/// `bytes` from byte `from_first` of memory to byte `to_first` of 4096, over 0xff.
struct bytes_op : op_base {
  struct params {
    const unsigned char* from;
    int from_first, to_first, bytes;
    unsigned char* out;
  };
  struct shared_storage {
    alignas(16) unsigned char to[4096];
    arch::mbarrier full;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    for (int i = block.rank(); i < 4096; i += block.size()) s.to[i] = 0xff;
    arch::fence_async_proxy();
    if (block.rank() == 0) {
      s.full.initialize(1);
      arch::mbarriers_initialized();
    }
    block.sync();
    if (block.rank() == 0) {
      s.full.arrive_and_expect(p.bytes);
      arch::load_bytes(s.to + p.to_first, p.from + p.from_first, p.bytes, s.full);
    }
    s.full.wait(0);
    for (int i = block.rank(); i < 4096; i += block.size()) p.out[i] = s.to[i];
  }
};

/// Writes many slabs of numbers through two in shared memory, each used again as soon as its last store has read it.
struct stream_op : op_base {
  struct params {
    giwa::tensor_map map;  // (8 slabs, 32)
    int slabs;             // of each block
  };
  struct shared_storage {
    slab from[2];
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    const int first = static_cast<int>(block.block_rank()) * p.slabs;
    for (int n = 0; n < p.slabs; ++n) {
      slab& tile = s.from[n % 2];
      if (block.rank() == 0) arch::wait_stores_read<1>();
      block.sync();
      for (int i = block.rank(); i < slab_rows * slab_columns; i += block.size())
        tile(i / slab_columns, i % slab_columns) = static_cast<float>((first + n) * slab_rows * slab_columns + i);
      arch::fence_async_proxy();
      block.sync();
      if (block.rank() == 0) {
        const int c[2] = {0, (first + n) * slab_rows};
        arch::store_box(p.map, c, tile.data());
        arch::commit_stores();
      }
    }
    if (block.rank() == 0) arch::wait_stores<0>();
  }
};

std::vector<float> numbers(int count) {
  std::vector<float> v(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
  return v;
}
giwa::tensor_map slab_map(float* memory, int64 rows) {
  const giwa::tensor_view<float, 2> view{memory, {rows, slab_columns}};
  return giwa::throw_if_failed(giwa::make_tensor_map(view, {slab_rows, slab_columns}, swizzle::bytes_128));
}

}  // namespace

TEST_CASE("blocks of a cluster load for each other") {
  if (!giwa_test::has_tensor_copies()) return;
  constexpr int elements = slab_rows * slab_columns;
  for (const int blocks : {2, 4, 8}) {
    const gpu_array<float> in(numbers((blocks + 1) * elements)), out(static_cast<std::size_t>(8 * 9 * elements));
    run_op<multicast_op>({.grid = 8, .block = 64, .cluster = blocks},
                         {slab_map(in.data(), (blocks + 1) * slab_rows), out.data()});
    const std::vector<float> got = out.to_host();
    bool right = true;
    for (int block = 0; block < 8; ++block)
      for (int n = 0; n < 9; ++n)
        for (int i = 0; i < elements; ++i) {
          const float x = got[static_cast<std::size_t>((block * 9 + n) * elements + i)];
          if (n < blocks)
            right = right && x == static_cast<float>(n * elements + i);
          else if (n == 8 && block % blocks % 2 == 1)
            right = right && x == static_cast<float>(blocks * elements + i);
          else
            right = right && x != x;  // still what was there before
        }
    CAPTURE(blocks);
    CHECK(right);
  }
}

TEST_CASE("bytes are loaded, and no others") {
  if (!giwa_test::has_tensor_copies()) return;
  giwa_test::random_sequence random(5);
  std::vector<unsigned char> memory(8192);
  for (unsigned char& b : memory) b = static_cast<unsigned char>(random.below(255));  // never 0xff
  const gpu_array<unsigned char> from(memory), out(4096);
  bool right = true;
  for (int round = 0; round < (giwa_test::small_mode() ? 10 : 100); ++round) {
    const int bytes = 16 * static_cast<int>(1 + random.below(round % 2 == 0 ? 4 : 256));
    const int to_first = 16 * static_cast<int>(random.below((4096 - bytes) / 16 + 1));
    const int from_first = 16 * static_cast<int>(random.below((8192 - bytes) / 16 + 1));
    run_op<bytes_op>({.block = 64}, {from.data(), from_first, to_first, bytes, out.data()});
    std::vector<unsigned char> expected(4096, 0xff);
    std::copy_n(memory.begin() + from_first, bytes, expected.begin() + to_first);
    right = right && out.to_host() == expected;
  }
  CHECK(right);
}

TEST_CASE("shared memory is used again once a store has read it") {
  if (!giwa_test::has_tensor_copies()) return;
  const int blocks = giwa_test::small_mode() ? 4 : 200, slabs = giwa_test::small_mode() ? 16 : 200;
  const int rows = blocks * slabs * slab_rows;  // numbers below 2^24
  const gpu_array<float> out(static_cast<std::size_t>(rows) * slab_columns);
  run_op<stream_op>({.grid = blocks, .block = 64}, {slab_map(out.data(), rows), slabs});
  CHECK(out.to_host() == numbers(rows * slab_columns));
}
