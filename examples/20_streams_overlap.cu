// SPDX-License-Identifier: MIT
// Copies that overlap with computation: chunks of an array on one, two and three streams, from pinned and ordinary memory.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/20_streams_overlap.cu -o 20_streams_overlap
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
// With -DGIWA_ENABLE_NVTX Nsight Systems shows each pass by its name (nsys profile ./20_streams_overlap).
//
// What it teaches: a GPU copies in, computes and copies out at the same time if the operations are in different streams
// and the host's memory is pinned. Each stream has its own buffers, which its chunks use one after the other, so no
// event is needed. No pass is faster than the slowest of its three steps alone. With ordinary memory each copy out
// blocks the host.
//
// Expected output, with the times of your machine:
//   268.4 MB in, 268.4 MB out, 32 chunks
//   copies in alone               4.93 ms, 54.5 GB/s
//   computation alone             4.22 ms
//   copies out alone              4.92 ms, 54.6 GB/s
//   1 stream                     13.91 ms
//   2 streams                     7.37 ms
//   3 streams                     5.80 ms, 0.85 of what the slowest step allows
//   3 streams, ordinary memory   48.39 ms
//   device: NVIDIA H200
//   check:  right
#include "support/place.cuh"

using giwa::int64, giwa::throw_if_failed, giwa::uint32;
using numbers = giwa::tensor_view<uint32, 1>;

// Marsaglia's xorshift, 200 times: work that the compiler cannot shorten and whose result is exact.
struct scramble {
  GIWA_HOST_DEVICE uint32 operator()(uint32 x) const {
    for (int step = 0; step < 200; ++step) {
      x ^= x << 13;
      x ^= x >> 17;
      x ^= x << 5;
    }
    return x;
  }
};

// A stream and its buffers, one chunk each.
struct lane {
  giwa::stream stream = throw_if_failed(giwa::stream::create());
  giwa::device_array<uint32> in, out;
  explicit lane(int64 chunk)
      : in(throw_if_failed(giwa::device_array<uint32>::allocate(stream, chunk))),
        out(throw_if_failed(giwa::like(stream, in))) {}
};

struct steps {
  bool in = true, work = true, out = true;
};

// All chunks, in turn on so many of the lanes; waits for the last.
void pass(const char* name, std::vector<lane>& lanes, std::size_t used, numbers in, numbers out, steps take = {}) {
  const giwa::named_range range(name);
  const int64 chunk = lanes[0].in.size();
  for (int64 first = 0, next = 0; first < in.size(); first += chunk, ++next) {
    lane& l = lanes[static_cast<std::size_t>(next) % used];
    if (take.in) throw_if_failed(giwa::copy(l.stream, numbers(in.data() + first, {chunk}), l.in));
    if (take.work) throw_if_failed(giwa::for_all(l.stream, giwa::elementwise{l.out, l.in}, scramble{}));
    if (take.out) throw_if_failed(giwa::copy(l.stream, l.out, numbers(out.data() + first, {chunk})));
  }
  for (const lane& l : lanes) throw_if_failed(giwa::synchronize(l.stream));
}

// Of one call; the median of 7, after one that does not count.
template <class Work>
double milliseconds(Work work) {
  double times[8];
  for (double& ms : times) {
    const auto start = std::chrono::steady_clock::now();
    work();
    ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  std::sort(times + 1, times + 8);
  return times[4];
}

bool all_right(numbers in, numbers out) {
  bool right = true;
  for (int64 i = 0; i < in.size(); i += 1009) right = right && out(i) == scramble{}(in(i));
  return right;
}

bool run(const example::on_gpu&) {
  const int64 n = int64{1} << 26, chunk = n / 32;
  auto in = throw_if_failed(giwa::pinned_array<uint32>::allocate(n)), out = throw_if_failed(giwa::like(giwa::host, in));
  for (int64 i = 0; i < n; ++i) in[i] = static_cast<uint32>(i) + 1;
  std::vector<uint32> ordinary_in(in.begin(), in.end()), ordinary_out(in.begin(), in.end());

  std::vector<lane> lanes;
  for (int i = 0; i < 3; ++i) lanes.emplace_back(chunk);
  const auto time = [&](const char* name, std::size_t used, steps take) {
    return milliseconds([&] { pass(name, lanes, used, in, out, take); });
  };
  const double megabytes = 4e-6 * static_cast<double>(n);
  std::printf("%.1f MB in, %.1f MB out, 32 chunks\n", megabytes, megabytes);
  const double in_ms = time("copies in", 1, {true, false, false}), work_ms = time("work", 1, {false, true, false}),
               out_ms = time("copies out", 1, {false, false, true}), slowest = std::max({in_ms, work_ms, out_ms});
  std::printf("copies in alone            %7.2f ms, %.1f GB/s\n", in_ms, megabytes / in_ms);
  std::printf("computation alone          %7.2f ms\n", work_ms);
  std::printf("copies out alone           %7.2f ms, %.1f GB/s\n", out_ms, megabytes / out_ms);

  bool right = true;
  for (std::size_t used = 1; used <= 3; ++used) {
    std::fill(out.begin(), out.end(), 0u);
    const double ms = time("pass", used, {});
    right = right && all_right(in, out);
    std::printf("%zu stream%-18s %7.2f ms", used, used == 1 ? "" : "s", ms);
    if (used == 3) std::printf(", %.2f of what the slowest step allows", slowest / ms);
    std::printf("\n");
  }
  const double ms = milliseconds([&] { pass("ordinary memory", lanes, 3, ordinary_in, ordinary_out); });
  std::printf("3 streams, ordinary memory %7.2f ms\n", ms);
  return right && all_right(ordinary_in, ordinary_out);
}

// The CPU works where the array is: there is nothing to copy, and nothing to hide.
bool run(const example::on_cpu& place) {
  std::vector<uint32> in(1 << 18), out(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32>(i) + 1;
  const auto work = [&] { return giwa::for_all(giwa::host, giwa::elementwise{out, in}, scramble{}); };
  std::printf("%zu numbers on the CPU: %.2f ms\n", in.size(), place.milliseconds(work));
  return all_right(in, out);
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
