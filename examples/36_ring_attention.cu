// SPDX-License-Identifier: MIT
// One sequence on several GPUs: ring attention, forward and backward, with NCCL; without GPUs on threads of the CPU.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/36_ring_attention.cu -o 36_ring_attention
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude -DWITH_NCCL examples/36_ring_attention.cu -lnccl -o 36_ring_attention
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/from_rank_0.hpp, support/place.cuh.
// With NCCL, ./36_ring_attention uses all GPUs from one process, with a thread for each. One process for each GPU:
//   for r in 0 1; do ./36_ring_attention $r 2 /tmp/nccl_id & done; wait
// The ranks exchange NCCL's id through files with that name, in a folder that all of them see; what an earlier run left there
// does no harm. torchrun and mpirun work as well, with their ranks as arguments.
//
// What it teaches: sequence_slices says which tokens a rank has, and slice_tokens() copies them. Each rank calls
// ring_attention_forward() and ring_attention_backward() with its rows, a communicator and a workspace. The same function
// runs over nccl_communicator and over host_communicator, so it is tested without a GPU.
//
// Expected output without NCCL, with the time of your machine:
//   3 ranks on the CPU, 384 tokens, 4 heads of 64, 2 of k and v, causal, zigzag
//   rank 0: tokens 0 to 63 and 320 to 383, difference to one rank 5.4e-07, gradients 1.4e-06
//   rank 1: tokens 64 to 127 and 256 to 319, difference to one rank 4.2e-07, gradients 1.2e-06
//   rank 2: tokens 128 to 191 and 192 to 255, difference to one rank 3.9e-07, gradients 1.2e-06
//   forward and backward: 18.9 ms
//   check:  right
#include <giwa/attention_backward.cuh>
#include <giwa/multi.hpp>

#include "support/from_rank_0.hpp"
#include "support/place.cuh"

#if defined(WITH_NCCL)
#include <giwa/nccl.hpp>
#endif

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

using giwa::int64, giwa::throw_if_failed;
constexpr int64 heads = 4, kv_heads = 2, head_size = 64;

// A tensor (1, rows, heads, head size) where a rank runs.
template <class Place, class T>
struct tensor {
  decltype(std::declval<Place>().template make<T>(1)) memory;
  giwa::tensor_view<T, 4> view;

  tensor(const Place& on, int64 rows, int64 h)
      : memory(on.template make<T>(rows * h * head_size)), view(memory.data(), {1, rows, h, head_size}) {}
};

// What attention reads and writes.
template <class Place, class T>
struct tensors {
  tensor<Place, T> q, k, v, o, dout, dq, dk, dv;
  decltype(std::declval<Place>().template make<float>(1)) lse_memory;
  giwa::tensor_view<float, 3> lse;

  tensors(const Place& on, int64 rows)
      : q(on, rows, heads),
        k(on, rows, kv_heads),
        v(on, rows, kv_heads),
        o(on, rows, heads),
        dout(on, rows, heads),
        dq(on, rows, heads),
        dk(on, rows, kv_heads),
        dv(on, rows, kv_heads),
        lse_memory(on.template make<float>(rows * heads)),
        lse(lse_memory.data(), {1, heads, rows}) {}
};

struct report {
  giwa::token_slice slice;
  double forward = 0, backward = 0, milliseconds = 0;
};

// The largest difference between rows of this rank and what one rank computes for the whole sequence.
template <class Place, class T>
double difference(const Place& on, const giwa::token_slice& slice, const tensor<Place, T>& own,
                  const tensor<Place, T>& whole) {
  const tensor<Place, T> expected(on, slice.count(), whole.view.extent(2));
  throw_if_failed(giwa::slice_tokens(on.where(), slice, whole.view, expected.view));
  const std::vector<T> a = on.get(own.memory), b = on.get(expected.memory);
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(giwa::convert<double>{}(a[i]) - giwa::convert<double>{}(b[i]));
    largest = d <= largest ? largest : d;  // NaN stays
  }
  return largest;
}

// One rank.
template <class T, class Place, class Comm>
report run(const Place& on, const Comm& comm, int64 tokens) {
  const giwa::causal mask{};
  const giwa::plain_score score{};
  const giwa::sequence_slices slices{.tokens = tokens};
  report r{.slice = slices.of(comm.rank(), comm.size())};
  // To compare, each rank has the whole sequence too. A program has only the rows of its ranks.
  tensors<Place, T> whole(on, tokens), own(on, r.slice.count());
  giwa::uint64 seed = 0;
  for (auto member : {&tensors<Place, T>::q, &tensors<Place, T>::k, &tensors<Place, T>::v, &tensors<Place, T>::dout}) {
    tensor<Place, T>& all = whole.*member;
    throw_if_failed(giwa::for_all(on.where(), all.view.size(), example::fill<T>{all.memory.data(), ++seed}));
    throw_if_failed(giwa::slice_tokens(on.where(), r.slice, all.view, (own.*member).view));
  }

  const giwa::attention_problem sizes{.batch = 1,
                                      .seq_q = tokens,
                                      .seq_k = tokens,
                                      .heads = heads,
                                      .kv_heads = kv_heads,
                                      .head_size = head_size,
                                      .head_size_v = head_size,
                                      .element_bytes = sizeof(T)};
  const auto space = [&](int64 bytes) { return on.template make<unsigned char>(bytes); };
  auto forward_space = space(giwa::ring_workspace_bytes(sizes, slices, comm.rank(), comm.size()));
  auto backward_space = space(giwa::ring_backward_workspace_bytes(sizes, slices, comm.rank(), comm.size()));
  const auto view = [](auto& bytes) {
    return giwa::tensor_view<unsigned char, 1>(bytes.data(), {static_cast<int64>(bytes.size())});
  };
  const auto both = [&] {
    throw_if_failed(giwa::ring_attention_forward<head_size>(on.where(), comm, slices, own.q.view, own.k.view,
                                                            own.v.view, own.o.view, mask, score,
                                                            {.lse = own.lse, .workspace = view(forward_space)}));
    throw_if_failed(giwa::ring_attention_backward<head_size>(
        on.where(), comm, slices, own.q.view, own.k.view, own.v.view, own.o.view, own.dout.view, own.dq.view,
        own.dk.view, own.dv.view, mask, score, {.lse = own.lse, .workspace = view(backward_space)}));
    on.wait();
  };
  both();  // the first call loads kernels and connects the ranks
  const auto begin = std::chrono::steady_clock::now();
  both();
  r.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();

  auto one_space = space(giwa::workspace_bytes(whole.q.view, whole.k.view, whole.v.view, whole.o.view, whole.dout.view,
                                               whole.dq.view, whole.dk.view, whole.dv.view));
  throw_if_failed(giwa::attention_forward<head_size>(on.where(), whole.q.view, whole.k.view, whole.v.view, whole.o.view,
                                                     mask, score, {.lse = whole.lse}));
  throw_if_failed(giwa::attention_backward<head_size>(
      on.where(), whole.q.view, whole.k.view, whole.v.view, whole.o.view, whole.dout.view, whole.dq.view, whole.dk.view,
      whole.dv.view, mask, score, {.lse = whole.lse, .workspace = view(one_space)}));
  r.forward = difference(on, r.slice, own.o, whole.o);
  for (auto member : {&tensors<Place, T>::dq, &tensors<Place, T>::dk, &tensors<Place, T>::dv})
    r.backward = std::max(r.backward, difference(on, r.slice, own.*member, whole.*member));
  return r;
}

bool print(int rank, const report& r, double tolerance) {
  const auto& a = r.slice.ranges;
  const auto number = [](int64 n) { return static_cast<long long>(n); };
  std::printf("rank %d: tokens %lld to %lld and %lld to %lld, difference to one rank %.1e, gradients %.1e\n", rank,
              number(a[0].first), number(a[0].end() - 1), number(a[1].first), number(a[1].end() - 1), r.forward,
              r.backward);
  return r.forward <= tolerance && r.backward <= 4 * tolerance;
}

// work(rank) on a thread for each rank; what each reports.
template <class Work>
std::vector<report> on_threads(int ranks, const Work& work) {
  std::vector<report> all(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { all[static_cast<std::size_t>(r)] = work(r); });
  for (std::thread& t : threads) t.join();
  return all;
}

bool print(const std::vector<report>& all, double tolerance) {
  bool right = true;
  for (std::size_t r = 0; r < all.size(); ++r) right = print(static_cast<int>(r), all[r], tolerance) && right;
  std::printf("forward and backward: %.1f ms\n", all[0].milliseconds);
  return right;
}

#if defined(WITH_NCCL)
report run_gpu(int gpu, ncclComm_t comm, int64 tokens) {
  throw_if_failed(giwa::to_status(cudaSetDevice(gpu)));
  return run<giwa::fp16>(example::on_gpu{}, throw_if_failed(giwa::nccl_communicator::create(comm)), tokens);
}

// Lets the GPUs of one process access the memory that this one's pool gives: NCCL may read it from there.
void share_pool(int gpu, int gpus) {
  cudaMemPool_t pool{};
  throw_if_failed(giwa::to_status(cudaDeviceGetDefaultMemPool(&pool, gpu)));
  for (int other = 0; other < gpus; ++other) {
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = other;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    if (other != gpu && cudaMemPoolSetAccess(pool, &access, 1) != cudaSuccess)
      static_cast<void>(cudaGetLastError());  // without a direct link NCCL copies through the host
  }
}

// The id of the group, which rank 0 makes.
ncclUniqueId id_by_files(int rank, int ranks, const std::string& path) {
  const auto make = [] {
    ncclUniqueId id{};
    throw_if_failed(giwa::to_status(ncclGetUniqueId(&id)));
    return id;
  };
  if (const auto id = example::from_rank_0<ncclUniqueId>(rank, ranks, path, make)) return *id;
  std::fprintf(stderr, "rank %d: not all %d ranks came to %s within a minute\n", rank, ranks, path.c_str());
  std::exit(1);
}
#endif

int main(int count, char** arguments) try {
  bool right = false;
  const auto title = [](const std::string& where, int64 tokens) {
    std::printf("%s, %lld tokens, %lld heads of %lld, %lld of k and v, causal, zigzag\n", where.c_str(),
                static_cast<long long>(tokens), static_cast<long long>(heads), static_cast<long long>(head_size),
                static_cast<long long>(kv_heads));
  };
#if defined(WITH_NCCL)
  const int gpus = giwa::device_count();
  constexpr int64 tokens = 16384;
  if (count == 4) {
    const int rank = std::atoi(arguments[1]), ranks = std::atoi(arguments[2]);
    const int gpu = rank % (gpus > 0 ? gpus : 1);
    throw_if_failed(giwa::to_status(cudaSetDevice(gpu)));
    ncclComm_t comm = nullptr;
    throw_if_failed(giwa::to_status(ncclCommInitRank(&comm, ranks, id_by_files(rank, ranks, arguments[3]), rank)));
    if (rank == 0) title(std::to_string(ranks) + " processes", tokens);
    const report r = run_gpu(gpu, comm, tokens);
    right = print(rank, r, 4e-3);
    if (rank == 0) std::printf("forward and backward: %.1f ms\n", r.milliseconds);
    ncclCommDestroy(comm);
  } else if (gpus > 0) {
    std::vector<ncclComm_t> comms(static_cast<std::size_t>(gpus));
    throw_if_failed(giwa::to_status(ncclCommInitAll(comms.data(), gpus, nullptr)));
    for (int gpu = 0; gpu < gpus; ++gpu) share_pool(gpu, gpus);
    title(std::to_string(gpus) + " GPUs", tokens);
    right =
        print(on_threads(gpus, [&](int r) { return run_gpu(r, comms[static_cast<std::size_t>(r)], tokens); }), 4e-3);
    for (const ncclComm_t c : comms) ncclCommDestroy(c);
  } else
#endif
  {
    static_cast<void>(count), static_cast<void>(arguments);
    constexpr int ranks = 3;
    title(std::to_string(ranks) + " ranks on the CPU", 384);
    giwa::host_group group(ranks);
    right = print(on_threads(ranks, [&](int r) { return run<float>(example::on_cpu{}, group.communicator(r), 384); }),
                  1e-5);
  }
  std::printf("check:  %s\n", right ? "right" : "FAILED");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
