// SPDX-License-Identifier: MIT
// Attention of a batch on all GPUs of a machine, split by weights, from one host thread; without a GPU on the CPU.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/22_several_gpus.cu -o 22_several_gpus
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
// ./22_several_gpus gives all GPUs equal weights; with ./22_several_gpus 3 1 the first GPU gets three quarters of the batch.
//
// What it teaches: for_each_device() splits the batch, makes each GPU current, and gives it a stream. The function
// copies its part in, calls attention, and copies its part of the output back. With pinned memory none of this blocks,
// so the GPUs work at the same time. The function takes a stream or giwa::host, so it works without a GPU too. A row
// has the same bits on all GPUs of one kind and in every batch.
//
// Expected output on two H200, with the times of your machine:
//   8 x 4096 tokens, 16 heads of 64, causal, fp16; parts: 4 4
//   on all: 2.87 ms, on one: 5.62 ms, copies included
//   the bits of one GPU
//   error 7.6e-05 against double precision, at most 6.8e-04 allowed
//   device: NVIDIA H200
//   check:  right
#include "support/attention_check.cuh"

#include <cstdlib>
#include <cstring>
#include <numeric>

using giwa::batch_part, giwa::fp16, giwa::int64;
using tensor_4d = giwa::tensor_view<fp16, 4>;  // (batch, tokens, heads, head size)

// Attention of one part of a batch in host memory.
struct attend {
  tensor_4d q, k, v, o;

  // On the part's GPU, which is current. The arrays are freed in the order of the stream: after the last copy.
  giwa::status operator()(cudaStream_t stream, const batch_part& part) const {
    const auto dq = to_device(stream, part.of(q)), dk = to_device(stream, part.of(k)),
               dv = to_device(stream, part.of(v));
    auto out = like(stream, part.of(o));
    for (const giwa::status& s : {dq.state, dk.state, dv.state, out.state})
      if (!s.ok()) return s;
    const giwa::index<4> sizes = part.of(q).extents();
    const auto on_device = [&](const auto& array) {
      return giwa::tensor_view<const fp16, 4>(array.value.data(), sizes);
    };
    const giwa::status s = giwa::attention_forward<64>(stream, on_device(dq), on_device(dk), on_device(dv),
                                                       tensor_4d(out.value.data(), sizes), giwa::causal{});
    return s.ok() ? giwa::copy(stream, out.value, part.of(o)) : s;
  }
  // On the CPU, where the memory is.
  giwa::status operator()(giwa::host_t where, const batch_part& part) const {
    return giwa::attention_forward<64>(where, part.of(q), part.of(k), part.of(v), part.of(o), giwa::causal{});
  }
};

// The batch in the memory of `Array`: pinned where there are GPUs.
template <class Array, class Make>
bool run(const std::vector<int>& devices, const std::vector<int64>& weights, int64 batch, int64 tokens, Make make) {
  const giwa::index<4> sizes{batch, tokens, 16, 64};
  const int64 size = batch * tokens * 16 * 64;
  Array q = make(size), k = make(size), v = make(size), o = make(size);
  giwa::uint64 seed = 0;
  for (Array* x : {&q, &k, &v})
    throw_if_failed(giwa::for_all(giwa::host, size, example::fill<fp16>{x->data(), ++seed}));
  const auto view = [&](Array& x) { return tensor_4d(x.data(), sizes); };
  const attend work{view(q), view(k), view(v), view(o)};

  std::vector<int64> parts(weights.size());
  throw_if_failed(giwa::split_batch(batch, weights, parts));
  std::printf("%lld x %lld tokens, 16 heads of 64, causal, fp16; parts:", static_cast<long long>(batch),
              static_cast<long long>(tokens));
  for (const int64 part : parts) std::printf(" %lld", static_cast<long long>(part));
  std::printf("\n");

  // The fastest of three: the first call also fills the pools.
  const auto milliseconds = [&](const std::vector<int>& on, const std::vector<int64>& weighing) {
    double fastest = 1e30;
    for (int i = 0; i < 3; ++i) {
      const auto start = std::chrono::steady_clock::now();
      const giwa::device_status done = giwa::for_each_device(on, weighing, batch, work);
      if (!done.ok()) std::fprintf(stderr, "GPU %d: %s\n", done.device, giwa::format_status(done.state).c_str());
      throw_if_failed(done.state);
      fastest = std::min(fastest,
                         std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    return fastest;
  };
  const double all_ms = milliseconds(devices, weights);
  bool right = true;
  if (devices.empty()) {
    std::printf("on the CPU: %.1f ms\n", all_ms);
  } else {
    const std::vector<fp16> on_all(o.data(), o.data() + size);
    std::memset(static_cast<void*>(o.data()), 0xff, static_cast<std::size_t>(size) * sizeof(fp16));
    const double one_ms = milliseconds({devices[0]}, {1});
    right = std::memcmp(on_all.data(), o.data(), on_all.size() * sizeof(fp16)) == 0;
    std::printf("on all: %.2f ms, on one: %.2f ms, copies included\n", all_ms, one_ms);
    std::printf("%s\n", right ? "the bits of one GPU" : "OTHER BITS than one GPU's");
  }
  const example::comparison c =
      example::compare<fp16>(view(q), view(k), view(v), view(o), giwa::causal{}, giwa::plain_score{}, 2);
  std::printf("error %.1e against double precision, at most %.1e allowed\n", c.error, 2 * c.plain + c.ulp);
  return right && c.good();
}

int main(int count, char** arguments) try {
  const giwa::device_choice choice = giwa::choose_device();
  std::vector<int> devices(choice.on_gpu() ? static_cast<std::size_t>(giwa::device_count()) : 0);
  std::iota(devices.begin(), devices.end(), 0);
  // What one call has freed the next one finds in the pool.
  for (const int device : devices) throw_if_failed(giwa::keep_memory(device, int64{1} << 30));
  std::vector<int64> weights(devices.empty() ? 1 : devices.size(), 1);
  for (std::size_t i = 0; i < weights.size() && static_cast<int>(i) + 1 < count; ++i)
    weights[i] = std::atoll(arguments[i + 1]);
  const bool right =
      choice.on_gpu() ? run<giwa::pinned_array<fp16>>(
                            devices, weights, 8, 4096,
                            [](int64 n) { return throw_if_failed(giwa::pinned_array<fp16>::allocate(n)); })
                      : run<std::vector<fp16>>({}, weights, 2, 256,
                                               [](int64 n) { return std::vector<fp16>(static_cast<std::size_t>(n)); });
  giwa::print(choice);
  std::printf("check:  %s\n", right ? "right" : "FAILED");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
