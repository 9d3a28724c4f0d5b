// SPDX-License-Identifier: MIT
// Trains one model on all GPUs of a machine: each has a part of the batch, and the sum of their gradients moves the weights.
//
//   nvcc -std=c++20 -O3 -arch=native -Iinclude examples/38_data_parallel.cu -o 38_data_parallel
//
// Run from the root of the repository. -arch=native is for the GPU of this machine; without a GPU use -arch=sm_80.
//
// What it teaches: data-parallel training, PyTorch's DataParallel and DistributedDataParallel. for_each_device() gives each
// GPU its part of the batch; each gets the same weights and returns the gradients of its rows, and the host adds them up.
// The loss is a mean over the batch, so the gradients of the parts, each divided by the size of the whole batch, add up to
// those of the whole batch. The example checks that at each step. With one GPU or none the batch has two parts all the same.
// Large models add gradients on the GPUs (giwa/nccl.hpp); sixteen numbers may go through the host.
//
// Expected output on a CPU:
//   step   loss        gradients of 2 parts, summed: off from those of the whole batch by at most
//      0   2.66e-01    2.7e-07
//     20   3.94e-03    1.1e-08
//     40   5.73e-05    1.4e-09
//     60   8.63e-07    1.7e-10
//   device: CPU
//   check:  right
#include <giwa/giwa.cuh>
#include <giwa/host.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

using giwa::batch_part, giwa::int64, giwa::throw_if_failed;

constexpr int64 batch = 1024, features = 16, steps = 60;
constexpr float rate = 0.3f;

// Gradient i of the rows of one part, for the loss (x . w - y)^2 / 2 averaged over the batch; element `features` is the
// loss. The inputs x are random numbers, others at each step, and y is what the true weights 1, 1/2, 1/3, ... make of them.
struct gradients {
  const float* w;  // (features)
  float* to;       // (features + 1)
  int64 step, first, count;

  GIWA_HOST_DEVICE void operator()(int64 i) const {
    const giwa::philox random{38, static_cast<giwa::uint64>(step)};
    const auto x = [&](int64 row, int64 j) {
      return 2 * random.uniform<float>(static_cast<giwa::uint64>(row * features + j)) - 1;
    };
    float sum = 0;
    for (int64 row = first; row < first + count; ++row) {
      float error = 0;
      for (int64 j = 0; j < features; ++j) error += x(row, j) * (w[j] - 1 / static_cast<float>(j + 1));
      sum += i < features ? error * x(row, i) : error * error / 2;
    }
    to[i] = sum / static_cast<float>(batch);
  }
};

// The work of one part: its gradients go to one row of `to`, which has a row for each part.
struct compute {
  giwa::tensor_view<const float, 1> w;  // (features), in host memory, as is `to`
  giwa::tensor_view<float, 2> to;       // (parts, features + 1)
  int64 step, part_number = 0;

  giwa::tensor_view<float, 1> next_row() { return {&to(part_number++, 0), {features + 1}}; }
  // On the part's GPU, which is current. Nothing here waits, so the GPUs work at the same time.
  giwa::status operator()(cudaStream_t stream, const batch_part& part) {
    const giwa::tensor_view<float, 1> row = next_row();
    const auto weights = to_device(stream, w);
    auto result = like(stream, row);
    if (!weights.ok()) return weights.state;
    if (!result.ok()) return result.state;
    const gradients all{weights.value.data(), result.value.data(), step, part.first, part.count};
    const giwa::status s = giwa::for_all(stream, features + 1, all);
    return s.ok() ? giwa::copy(stream, result.value, row) : s;
  }
  giwa::status operator()(giwa::host_t where, const batch_part& part) {
    return giwa::for_all(where, features + 1, gradients{w.data(), next_row().data(), step, part.first, part.count});
  }
};

// Trains on `devices`, or on the CPU if there is none, with memory of the kind that make(size) returns.
template <class Make>
bool train(const std::vector<int>& devices, const Make& make) {
  const int64 parts = devices.empty() ? 2 : static_cast<int64>(devices.size());
  auto w_memory = make(features), of_parts = make(parts * (features + 1));
  float* const w = w_memory.data();
  std::fill_n(w, features, 0.0f);
  std::vector<float> whole(features + 1), sum(features + 1);
  const std::vector<int64> equal(static_cast<std::size_t>(parts), 1);
  std::vector<int64> counts(equal.size());
  throw_if_failed(giwa::split_batch(batch, equal, counts));

  std::printf("step   loss        gradients of %d parts, summed: off from those of the whole batch by at most\n",
              static_cast<int>(parts));
  bool right = true;
  for (int64 step = 0; step <= steps; ++step) {
    compute work{{w, {features}}, {of_parts.data(), {parts, features + 1}}, step};
    if (devices.empty()) {
      for (int64 i = 0, first = 0; i < parts; first += counts[static_cast<std::size_t>(i++)])
        throw_if_failed(work(giwa::host, {-1, first, counts[static_cast<std::size_t>(i)]}));
    } else {
      throw_if_failed(giwa::for_each_device(devices, equal, batch, work).state);
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {  // what NCCL calls an all-reduce
      sum[i] = 0;
      for (int64 part = 0; part < parts; ++part) sum[i] += work.to(part, static_cast<int64>(i));
    }

    throw_if_failed(compute{work.w, {whole.data(), {1, features + 1}}, step}(giwa::host, {-1, 0, batch}));
    float off = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) off = std::max(off, std::abs(sum[i] - whole[i]));
    right = right && off <= 1e-5f * (1 + whole[features]);
    if (step % 20 == 0)
      std::printf("%4d   %.2e    %.1e\n", static_cast<int>(step), static_cast<double>(sum[features]),
                  static_cast<double>(off));
    for (int64 i = 0; i < features; ++i) w[i] -= rate * sum[static_cast<std::size_t>(i)];
  }
  return right && sum[features] < 1e-4f;
}

int main() try {
  const giwa::device_choice choice = giwa::choose_device();
  std::vector<int> devices;
  for (int i = 0; choice.on_gpu() && i < giwa::device_count(); ++i) devices.push_back(i);
  if (devices.size() == 1) devices.push_back(devices[0]);  // a GPU may be listed twice
  const bool right =
      choice.on_gpu() ? train(devices, [](int64 n) { return throw_if_failed(giwa::pinned_array<float>::allocate(n)); })
                      : train(devices, [](int64 n) { return std::vector<float>(static_cast<std::size_t>(n)); });
  giwa::print(choice);
  std::printf("check:  %s\n", right ? "right" : "FAILED");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
