// SPDX-License-Identifier: MIT
// Times and bits of attention_forward in 36 cells (fp16, head sizes 64, 128 and 256), for run.py to compare two source
// trees. With GIWA_CELLS_BACKWARD of attention_backward, in fixed order and in any. GIWA_CELLS_SIZES is a list of other
// head sizes.
#include <giwa/attention.cuh>
#include <giwa/grid.cuh>
#if defined(GIWA_CELLS_BACKWARD)
#include <giwa/attention_backward.cuh>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if !defined(GIWA_CELLS_SIZES)
#define GIWA_CELLS_SIZES 64, 128, 256
#endif

using namespace giwa;

namespace {

constexpr int64 tokens = 16384, row_width = 2048;  // row_width: heads times head size

template <class T>
T* allocate(int64 count) {
  void* memory = nullptr;
  throw_if_failed(detail::consume(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(T))));
  return static_cast<T*>(memory);
}

struct normal_numbers {
  fp16* to;
  uint64 seed;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    uint64 x = static_cast<uint64>(i) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
    for (int round = 0; round < 2; ++round) x ^= x >> 32, x *= 0xD6E8FEB86659FD93u;
    float sum = -6;  // twelve uniform numbers are nearly normal
    for (int k = 0; k < 12; ++k)
      x = x * 6364136223846793005u + 1442695040888963407u, sum += static_cast<float>(x >> 40) * 0x1p-24f;
    to[i] = convert<fp16>{}(sum);
  }
};

struct buffers {
  fp16 *q = allocate<fp16>(tokens * row_width), *k = allocate<fp16>(tokens * row_width),
       *v = allocate<fp16>(tokens * row_width), *o = allocate<fp16>(tokens * row_width);
  float* lse = allocate<float>(tokens * row_width / 64);
  unsigned char* workspace = allocate<unsigned char>(256);
#if defined(GIWA_CELLS_BACKWARD)
  fp16 *dout = allocate<fp16>(tokens * row_width), *dq = allocate<fp16>(tokens * row_width),
       *dk = allocate<fp16>(tokens * row_width), *dv = allocate<fp16>(tokens * row_width);
#else
  fp16* dout = nullptr;
#endif
};

uint64 hash_of(const void* device, int64 bytes) {
  std::vector<uint32> words(static_cast<std::size_t>(bytes / 4));
  throw_if_failed(
      detail::consume(cudaMemcpy(words.data(), device, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost)));
  uint64 hash = 1469598103934665603u;
  for (const uint32 w : words) hash = (hash ^ w) * 1099511628211u;
  return hash;
}

/// The median time of a call, in milliseconds.
template <class Call>
double time_of(const Call& call) {
  for (int i = 0; i < 5; ++i) call();
  cudaEvent_t begin, end;
  throw_if_failed(detail::consume(cudaEventCreate(&begin)));
  throw_if_failed(detail::consume(cudaEventCreate(&end)));
  std::vector<float> times;
  for (int i = 0; i < 11; ++i) {
    throw_if_failed(detail::consume(cudaEventRecord(begin)));
    for (int j = 0; j < 4; ++j) call();
    throw_if_failed(detail::consume(cudaEventRecord(end)));
    throw_if_failed(detail::consume(cudaEventSynchronize(end)));
    float milliseconds = 0;
    throw_if_failed(detail::consume(cudaEventElapsedTime(&milliseconds, begin, end)));
    times.push_back(milliseconds / 4);
  }
  throw_if_failed(detail::consume(cudaEventDestroy(begin)));
  throw_if_failed(detail::consume(cudaEventDestroy(end)));
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

void print(const char* name, int head_size, int64 length, const char* more, double milliseconds, uint64 bits) {
  std::printf("%s_D%d_%lld%s %.5f %016llx\n", name, head_size, static_cast<long long>(length), more, milliseconds,
              static_cast<unsigned long long>(bits));
}

template <int HeadSize, class Mask>
void measure(const char* name, const Mask& mask, int64 longest, const buffers& b) {
  constexpr int64 heads = row_width / HeadSize, bytes = tokens * row_width * 2;
  for (int64 length = 512; length <= longest; length *= 2) {
    const int64 batch = tokens / length;
    const auto view = [&](fp16* p) { return tensor_view<fp16, 4>{p, {batch, length, heads, HeadSize}}; };
    attention_options options;
    options.lse = {b.lse, {batch, heads, length}};
    options.workspace = {b.workspace, {8}};
    const auto forward = [&] {
      throw_if_failed(attention_forward<HeadSize>(cudaStream_t{}, view(b.q), view(b.k), view(b.v), view(b.o), mask,
                                                  plain_score{}, options));
    };
#if defined(GIWA_CELLS_BACKWARD)
    forward();
    using namespace detail;
    const int64 workspace_bytes = backward_workspace_bytes(
        attention_problem{batch, length, length, heads, heads, HeadSize, HeadSize, 2}, 0, true);
    unsigned char* const workspace = allocate<unsigned char>(workspace_bytes);
    // Trees before options had it take lse as an argument.
    const auto differentiate = [&](auto given) {
      if constexpr (requires { given.lse; }) {
        given.lse = options.lse;
        return attention_backward<HeadSize>(cudaStream_t{}, view(b.q), view(b.k), view(b.v), view(b.o), view(b.dout),
                                            view(b.dq), view(b.dk), view(b.dv), mask, plain_score{}, given);
      } else {
        return attention_backward<HeadSize>(cudaStream_t{}, view(b.q), view(b.k), view(b.v), view(b.o), options.lse,
                                            view(b.dout), view(b.dq), view(b.dk), view(b.dv), mask, plain_score{},
                                            given);
      }
    };
    for (const bool any_order : {false, true}) {
      attention_backward_options of_backward;
      of_backward.workspace = {workspace, {workspace_bytes}};
      of_backward.any_order = any_order;
      const double milliseconds = time_of([&] { throw_if_failed(differentiate(of_backward)); });
      const uint64 of_keys = hash_of(b.dk, bytes) ^ 3 * hash_of(b.dv, bytes);  // dq has other bits in any order
      print(name, HeadSize, length, any_order ? "_any" : "", milliseconds,
            any_order ? of_keys : of_keys ^ 5 * hash_of(b.dq, bytes));
    }
    throw_if_failed(detail::consume(cudaFree(workspace)));
#else
    const double milliseconds = time_of(forward);
    print(name, HeadSize, length, "", milliseconds, hash_of(b.o, bytes) ^ hash_of(b.lse, tokens * heads * 4));
#endif
  }
}

template <int... HeadSizes>
void measure_all(int64 longest, const buffers& b) {
  (..., (measure<HeadSizes>("full", full{}, longest, b), measure<HeadSizes>("causal", causal{}, longest, b)));
}

}  // namespace

int main(int argc, char** argv) {
  const int64 given = argc > 1 ? std::atoll(argv[1]) : tokens, longest = given < tokens ? given : tokens;
  const buffers b;
  uint64 seed = 1;
  for (fp16* p : {b.q, b.k, b.v, b.dout})
    if (p != nullptr) throw_if_failed(for_all(cudaStream_t{}, tokens * row_width, normal_numbers{p, seed++}));
  measure_all<GIWA_CELLS_SIZES>(longest, b);
}
