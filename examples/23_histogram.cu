// SPDX-License-Identifier: MIT
// A histogram of bytes: atomics in global memory, compared with private counts in each block.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/23_histogram.cu -o 23_histogram
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: an op with shared storage whose threads process any number of bytes, 16 per load, and the cost of
// atomics. Atomics on one address are serialised, and those in global memory meet in the L2 cache from the whole GPU.
// With private counts in shared memory a block adds only 256 sums to global memory. Equal bytes in the lanes of a warp
// cost nothing there, because Hopper adds a warp's increments of one address at once. Different bytes cost more,
// because several of them fall into one of the 32 banks. With separate counts for each lane, each lane has its own
// bank, and the time does not depend on the data: 3570 and 3620 GB/s, compared with 2120 and 3780. Private counts help
// if each is incremented many times: with few bytes per block, most of the work is to clear and to add the counts. They
// must also fit into shared memory; counts by lane take 32 KB per block.
//
// In production use cub::DeviceHistogram, which has bins of any width and several channels. It is not measured here
// because its header alone takes longer to compile than this file.
//
// Expected output, with the times of your machine; on a CPU, where threads are simulated, there are fewer bytes:
//   268435461 bytes              random: ms      GB/s    equal: ms      GB/s
//   plain loop, CPU                 106.687      2.52      555.884     0.483
//   atomics in memory                69.080      3.89      196.537      1.37
//   counts by block                   0.127  2.12e+03        0.071  3.78e+03
//   counts by block and lane          0.075  3.57e+03        0.074  3.62e+03
//   device: NVIDIA H200
//   check:  right
#include "support/place.cuh"

#include <giwa/host_executor.cuh>

using giwa::int64, giwa::throw_if_failed;
using byte = unsigned char;

constexpr int bins = 256;

// Counts n bytes. Each count has `Copies` in a block's shared memory, which lanes take in turn; none means in memory.
template <int Copies>
struct count_bytes {
  struct params {
    const byte* bytes;  // (n), the first at a multiple of 16 bytes
    int64 n;
    unsigned* counts;  // (bins), to which the block adds
  };
  struct shared_storage {
    unsigned counts[bins][Copies > 0 ? Copies : 1];  // of 32 copies all of a lane's lie in one bank, and no other's
  };
  static constexpr int max_threads = 512, min_blocks = 4;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    if constexpr (Copies == 0) {
      for_my_bytes(block, p, [&](unsigned value) { block.atomic_add(p.counts[value], 1u); });
    } else {
      for (const int64 i : giwa::block_stride(block, bins * Copies)) s.counts[i / Copies][i % Copies] = 0;
      block.sync();
      const int mine = block.lane() % Copies;
      for_my_bytes(block, p, [&](unsigned value) { block.atomic_add(s.counts[value][mine], 1u); });
      block.sync();
      for (const int64 bin : giwa::block_stride(block, bins)) {
        unsigned sum = 0;
        for (int i = 0; i < Copies; ++i) sum += s.counts[bin][(bin + i) % Copies];  // lanes begin in different banks
        if (sum > 0) block.atomic_add(p.counts[bin], sum);
      }
    }
  }

 private:
  // add(value) for each byte that is this thread's.
  template <class Block, class Add>
  GIWA_HOST_DEVICE static void for_my_bytes(const Block& block, const params& p, const Add& add) {
    const auto* packets = reinterpret_cast<const uint4*>(p.bytes);
    for (const int64 i : giwa::grid_stride(block, p.n / 16)) {
      const uint4 packet = packets[i];
      for (const unsigned word : {packet.x, packet.y, packet.z, packet.w})
        for (int shift = 0; shift < 32; shift += 8) add(word >> shift & 0xff);
    }
    for (const int64 i : giwa::grid_stride(block, p.n % 16)) add(unsigned{p.bytes[p.n / 16 * 16 + i]});
  }
};

struct set_bytes {
  byte* to;
  bool random;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    to[i] = random ? static_cast<byte>(giwa::philox{2026}(static_cast<giwa::uint64>(i)).word[0]) : byte{77};
  }
};
struct set_zero {
  unsigned* counts;
  GIWA_HOST_DEVICE void operator()(int64 i) const { counts[i] = 0; }
};

template <class Place>
bool run(const Place& place) {
  const int64 n = (Place::is_gpu ? 1 << 28 : 1 << 20) + 5;  // a count has 32 bits
  auto random = place.template make<byte>(n), equal = place.template make<byte>(n);
  auto counts = place.template make<unsigned>(bins);
  throw_if_failed(giwa::for_all(place.where(), n, set_bytes{random.data(), true}));
  throw_if_failed(giwa::for_all(place.where(), n, set_bytes{equal.data(), false}));
  const std::vector<byte> on_host[2] = {place.get(random), place.get(equal)};
  std::vector<unsigned> expected[2];

  // One way of counting, of the two inputs in turn, by the clock of where it runs.
  bool right = true;
  const auto row = [&](const char* name, const auto& clock, const auto& count_input, const auto& answer) {
    std::printf("%-26s", name);
    for (const int input : {0, 1}) {
      const double ms = clock.milliseconds([&] { return count_input(input); });
      std::printf("   %10.3f %9.3g", ms, static_cast<double>(n) * 1e-6 / ms);
      right = right && answer() == expected[input];
    }
    std::printf("\n");
  };
  const auto row_of = [&](const char* name, auto op) {
    int64 blocks = 4;
    if constexpr (Place::is_gpu)
      blocks = throw_if_failed(giwa::blocks_at_once<decltype(op)>());  // each goes a long way
    const auto count_input = [&](int input) {
      const byte* bytes = input == 0 ? random.data() : equal.data();
      if (const giwa::status s = giwa::for_all(place.where(), bins, set_zero{counts.data()}); !s.ok()) return s;
      return giwa::launch(place.where(), {.grid = blocks, .block = op.max_threads}, op, {bytes, n, counts.data()});
    };
    row(name, place, count_input, [&] { return place.get(counts); });
  };
  std::vector<unsigned> by_loop;
  const auto loop = [&](int input) {
    by_loop.assign(bins, 0);
    for (const byte value : on_host[input]) ++by_loop[value];
    expected[input] = by_loop;
    return giwa::status{};
  };
  std::printf("%9lld bytes              random: ms      GB/s    equal: ms      GB/s\n", static_cast<long long>(n));
  row("plain loop, CPU", example::on_cpu{}, loop, [&] { return by_loop; });
  row_of("atomics in memory", count_bytes<0>{});
  row_of("counts by block", count_bytes<1>{});
  row_of("counts by block and lane", count_bytes<32>{});
  return right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
