// SPDX-License-Identifier: MIT
// Attention over one sequence, forward and backward, on all GPUs of a machine through NCCL, compared with one of them.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -DWITH_NCCL -Iinclude -Itest -I$NCCL/include bench/ring_attention.cu -L$NCCL/lib -lnccl -o ring_attention
//   ./ring_attention check                       # small: against double precision, repeated with random delays, as a CUDA graph
//   ./ring_attention time 131072 16 [16 full 4]  # tokens, heads, kv heads, mask, calls: 1 GPU and all of them, in turn, by a ring, by heads
//                                                # and, of four GPUs or more, by a mesh of two ranks that exchange heads
//   ./ring_attention steps 131072 16 [16 full]   # of each rank of the ring: what its steps compute, and wait for
//   ./ring_attention link                        # messages between neighbours
//   ./ring_attention one 2 131072 16 [16 full]   # 2 ranks on one GPU, without NCCL: what a ring costs beyond the same work
//
// fp16, head size 128, a thread for each rank. Without -DWITH_NCCL only `one` is there.
#include <giwa/attention_backward.cuh>
#include <giwa/giwa.cuh>
#include <giwa/multi.hpp>
#if defined(WITH_NCCL)
#include <giwa/nccl.hpp>
#endif

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "support/stream_group.cuh"

using giwa::fp16, giwa::int64, giwa::throw_if_failed;
constexpr int head_size = 128;
using tensor = giwa::tensor_view<fp16, 4>;

#if defined(WITH_NCCL)
// A communicator that notes the times at which the exchanges of a call begin, and what waits for them.
class timed_communicator {
 public:
  explicit timed_communicator(const giwa::nccl_communicator& comm) : comm_(comm) {}
  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  template <class Body>
  giwa::status exchange(cudaStream_t where, const Body& body) const {
    note(where, 'e');
    return comm_.exchange(where, body);
  }
  giwa::status wait(cudaStream_t where) const {
    note(where, 'c');
    const giwa::status s = comm_.wait(where);
    note(where, 'w');
    return s;
  }
  void note(cudaStream_t where, char what) const {
    notes_.push_back({throw_if_failed(giwa::event::create()), what});
    throw_if_failed(notes_.back().at.record(where));
  }
  // What lies between two notes: c is computed, w is waited for, e is what a step does after its wait.
  std::string times() const {
    std::string all;
    for (std::size_t i = 1; i < notes_.size(); ++i) {
      char one[32];
      std::snprintf(one, sizeof one, " %c %.3f", notes_[i].what,
                    throw_if_failed(giwa::milliseconds_between(notes_[i - 1].at, notes_[i].at)));
      all += one;
    }
    return all;
  }

 private:
  struct noted {
    giwa::event at;
    char what;
  };
  const giwa::nccl_communicator& comm_;
  mutable std::vector<noted> notes_;
};
#endif

namespace {

// Device memory of cudaMalloc, as most programs send and receive from.
template <class T>
class device_memory {
 public:
  device_memory() = default;
  explicit device_memory(int64 size) : size_(size) {
    throw_if_failed(giwa::to_status(cudaMalloc(&data_, static_cast<std::size_t>(size) * sizeof(T))));
  }
  device_memory(device_memory&& other) noexcept { swap(other); }
  device_memory& operator=(device_memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~device_memory() { cudaFree(data_); }
  T* data() const { return data_; }
  int64 size() const { return size_; }

 private:
  void swap(device_memory& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  T* data_ = nullptr;
  int64 size_ = 0;
};

// Normal numbers that depend on the position in the whole sequence.
struct fill {
  tensor to;  // (1, rows of this rank, heads, head size)
  giwa::token_slice slice;
  giwa::uint64 seed;
  GIWA_HOST_DEVICE void operator()(giwa::index<3> at) const {
    const int64 first = slice.ranges[0].count;
    const int64 token = at[0] < first ? slice.ranges[0].first + at[0] : slice.ranges[1].first + at[0] - first;
    const auto element = static_cast<giwa::uint64>((token * to.extent(2) + at[1]) * to.extent(3) + at[2]);
    to(0, at[0], at[1], at[2]) = giwa::convert<fp16>{}(giwa::philox(seed).normal<float>(element));
  }
};

struct problem {
  int64 tokens, heads, kv_heads;
  bool causal;
  giwa::slicing order = giwa::slicing::zigzag;
  int calls = 0;  // of one measurement; 0: by the number of tokens

  giwa::attention_problem sizes() const {
    return {.batch = 1, .heads = heads, .kv_heads = kv_heads, .head_size = head_size, .head_size_v = head_size};
  }
  double flops() const {
    const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens) * (causal ? 0.5 : 1.0);
    return 4.0 * pairs * head_size * static_cast<double>(heads);
  }
};

// How a rank divides the work with others: not at all, by a ring, head-parallel, or by a mesh of two ranks that exchange heads and
// rings of the others.
enum class by { itself, ring, heads, mesh };
constexpr int mesh_heads = 2;

// The tensors of one rank, or of one GPU that has the whole sequence.
struct rank_data {
  problem p;
  by how;
  giwa::sequence_slices slices;
  giwa::token_slice slice;
  int64 rows;
  giwa::stream stream = throw_if_failed(giwa::stream::create());
  device_memory<fp16> q, k, v, o, dout, dq, dk, dv;
  device_memory<float> lse;
  device_memory<unsigned char> forward_space, backward_space;

  rank_data(const problem& given, by divided, int rank, int ranks)
      : p(given),
        how(divided),
        slices{.tokens = given.tokens, .order = given.order},
        slice(slices.of(rank, ranks)),
        rows(slice.count()) {
    for (auto* x : {&q, &o, &dout, &dq}) *x = device_memory<fp16>(rows * p.heads * head_size);
    for (auto* x : {&k, &v, &dk, &dv}) *x = device_memory<fp16>(rows * p.kv_heads * head_size);
    lse = device_memory<float>(rows * p.heads);
    giwa::attention_problem sizes = p.sizes();
    sizes.seq_q = sizes.seq_k = rows;
    forward_space =
        device_memory<unsigned char>(how == by::itself ? giwa::workspace_bytes(sizes)
                                     : how == by::ring ? giwa::ring_workspace_bytes(sizes, slices, rank, ranks)
                                                       : giwa::head_parallel_workspace_bytes(
                                                             sizes, slices, rank, ranks, sizeof(fp16), rings(ranks)));
    backward_space = device_memory<unsigned char>(
        how == by::itself ? giwa::workspace_bytes(of(q), of(k), of(v), of(o), of(dout), of(dq), of(dk), of(dv))
        : how == by::ring ? giwa::ring_backward_workspace_bytes(sizes, slices, rank, ranks)
                          : giwa::head_parallel_backward_workspace_bytes(sizes, slices, rank, ranks, sizeof(fp16),
                                                                         sizeof(fp16), rings(ranks)));
    giwa::uint64 seed = 1;
    for (auto* x : {&q, &k, &v, &dout}) {
      const tensor to = of(*x);
      throw_if_failed(
          giwa::for_all(stream, giwa::extents{rows, to.extent(2), int64{head_size}}, fill{to, slice, seed++}));
    }
    throw_if_failed(giwa::synchronize(stream));
  }
  int rings(int ranks) const { return how == by::mesh ? ranks / mesh_heads : 1; }
  tensor of(const device_memory<fp16>& x) const {
    return {x.data(), {1, rows, rows == 0 ? 1 : x.size() / rows / head_size, head_size}};
  }
  giwa::tensor_view<float, 3> row_sums() const { return {lse.data(), {1, p.heads, rows}}; }

  // Calls `what` with the mask.
  template <class What>
  void with_mask(const What& what) const {
    throw_if_failed(p.causal ? what(giwa::causal{}) : what(giwa::full{}));
  }
  giwa::attention_options forward_options() const {
    giwa::attention_options call{};
    call.lse = row_sums();
    call.workspace = {forward_space.data(), {forward_space.size()}};
    return call;
  }
  giwa::attention_backward_options backward_options() const {
    giwa::attention_backward_options call{};
    call.lse = row_sums();
    call.workspace = {backward_space.data(), {backward_space.size()}};
    return call;
  }

  void forward() const {
    with_mask([&](const auto& mask) {
      return giwa::attention_forward<head_size>(stream, of(q), of(k), of(v), of(o), mask, forward_options());
    });
  }
  void backward() const {
    with_mask([&](const auto& mask) {
      return giwa::attention_backward<head_size>(stream, of(q), of(k), of(v), of(o), of(dout), of(dq), of(dk), of(dv),
                                                 mask, backward_options());
    });
  }
  template <class Comm>
  void forward(const Comm& comm) const {
    with_mask([&](const auto& mask) {
      const auto call = [&](auto... arguments) {
        if constexpr (requires { comm.ring; })
          return giwa::head_parallel_attention_forward<head_size>(stream, comm, arguments...);
        else
          return how == by::ring ? giwa::ring_attention_forward<head_size>(stream, comm, arguments...)
                                 : giwa::head_parallel_attention_forward<head_size>(stream, comm, arguments...);
      };
      return call(slices, of(q), of(k), of(v), of(o), mask, giwa::plain_score{}, forward_options());
    });
  }
  template <class Comm>
  void backward(const Comm& comm) const {
    with_mask([&](const auto& mask) {
      const auto call = [&](auto... arguments) {
        if constexpr (requires { comm.ring; })
          return giwa::head_parallel_attention_backward<head_size>(stream, comm, arguments...);
        else
          return how == by::ring ? giwa::ring_attention_backward<head_size>(stream, comm, arguments...)
                                 : giwa::head_parallel_attention_backward<head_size>(stream, comm, arguments...);
      };
      return call(slices, of(q), of(k), of(v), of(o), of(dout), of(dq), of(dk), of(dv), mask, giwa::plain_score{},
                  backward_options());
    });
  }
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
double mean(const std::vector<double>& x) {
  double sum = 0;
  for (const double one : x) sum += one;
  return sum / static_cast<double>(x.size());
}
double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

std::string text(const problem& p) {
  char line[128];
  std::snprintf(line, sizeof line, "%7lld tokens, %lld heads, %lld of k and v, %s, %s",
                static_cast<long long>(p.tokens), static_cast<long long>(p.heads), static_cast<long long>(p.kv_heads),
                p.causal ? "causal" : "full", p.order == giwa::slicing::zigzag ? "zigzag" : "contiguous");
  return line;
}
void report(const problem& p, const char* pass, double factor, double one, double all, const char* what,
            double slowest = 0) {
  char more[64] = "";
  if (slowest > 0) std::snprintf(more, sizeof more, " (the slowest %.3f ms: %.3f)", slowest * 1e3, slowest / all);
  std::printf("%s, %-8s 1 GPU %9.3f ms (%3.0f TFLOP/s), %s %9.3f ms: %.3f%s\n", text(p).c_str(), pass, one * 1e3,
              factor * p.flops() / one * 1e-12, what, all * 1e3, one / all, more);
  std::fflush(stdout);
}
int calls_of(const problem& p) {
  if (p.calls > 0) return p.calls;
  return static_cast<int>(std::clamp<int64>(int64{4} * 131072 * 131072 / p.tokens / p.tokens, 4, 40));
}

// Ranks on one GPU: the time of all of them together is that of one GPU for the same work, plus what the ring costs.
void time_on_one(const problem& p, int ranks) {
  const rank_data whole(p, by::itself, 0, 1);
  giwa_test::stream_group group(ranks);
  std::vector<std::unique_ptr<rank_data>> own;
  for (int r = 0; r < ranks; ++r) own.push_back(std::make_unique<rank_data>(p, by::ring, r, ranks));
  std::vector<double> seconds[4];
  const auto timed = [&](int which, const auto& calls) {
    throw_if_failed(giwa::to_status(cudaDeviceSynchronize()));
    const auto begin = std::chrono::steady_clock::now();
    calls();
    throw_if_failed(giwa::to_status(cudaDeviceSynchronize()));
    seconds[which].push_back(seconds_since(begin) / calls_of(p));
  };
  for (int round = 0; round < 3; ++round) {
    const auto repeat = [&](const auto& call) {
      for (int i = 0; i < calls_of(p); ++i) call();
    };
    const auto on_ranks = [&](const auto& call) {
      group.on_each(
          [&](const auto& comm) { repeat([&] { call(*own[static_cast<std::size_t>(comm.rank())], comm); }); });
    };
    timed(0, [&] { repeat([&] { whole.forward(); }); });
    timed(1, [&] { on_ranks([](const rank_data& r, const auto& comm) { r.forward(comm); }); });
    timed(2, [&] { repeat([&] { whole.backward(); }); });
    timed(3, [&] { on_ranks([](const rank_data& r, const auto& comm) { r.backward(comm); }); });
    for (auto& s : seconds)
      if (round == 0) s.clear();  // the first round loads kernels
  }
  const std::string what = std::to_string(ranks) + " ranks on it";
  report(p, "forward", 1, median(seconds[0]), median(seconds[1]), what.c_str());
  report(p, "backward", 2.5, median(seconds[2]), median(seconds[3]), what.c_str());
}

#if defined(WITH_NCCL)
// Keeps one block busy for some microseconds: a rank that is late.
struct delay {
  GIWA_HOST_DEVICE void operator()(giwa::index<1> at) const {
#if defined(__CUDA_ARCH__)
    const long long begin = clock64(), cycles = 1500ll * at[0];
    while (clock64() - begin < cycles) {
    }
#else
    static_cast<void>(at);
#endif
  }
};

struct machine {
  int gpus = giwa::device_count();
  std::vector<ncclComm_t> comms = std::vector<ncclComm_t>(static_cast<std::size_t>(gpus));

  machine() { throw_if_failed(giwa::to_status(ncclCommInitAll(comms.data(), gpus, nullptr))); }
  ~machine() {
    for (const ncclComm_t c : comms) ncclCommDestroy(c);
  }
  // The communicators of one rank: of all ranks, and of its row and its column of a mesh.
  struct ranks {
    struct destroy {
      void operator()(ncclComm_t comm) const { ncclCommDestroy(comm); }
    };
    std::unique_ptr<std::remove_pointer_t<ncclComm_t>, destroy> split[2];
    giwa::nccl_communicator all, heads, ring;
  };
  // body(ranks) on a thread for each GPU, which is current there.
  template <class Body>
  void on_each(const Body& body, bool with_mesh = false) const {
    std::vector<std::thread> threads;
    for (int r = 0; r < gpus; ++r)
      threads.emplace_back([&, r] {
        throw_if_failed(giwa::to_status(cudaSetDevice(r)));
        const ncclComm_t all = comms[static_cast<std::size_t>(r)];
        ranks own;
        own.all = throw_if_failed(giwa::nccl_communicator::create(all));
        const int color[2] = {r / mesh_heads, r % mesh_heads};
        for (int i = 0; i < 2 && with_mesh; ++i) {
          ncclComm_t split = nullptr;
          throw_if_failed(giwa::to_status(ncclCommSplit(all, color[i], r, &split, nullptr)));
          own.split[i].reset(split);
          (i == 0 ? own.heads : own.ring) = throw_if_failed(giwa::nccl_communicator::create(split));
        }
        body(own);
      });
    for (std::thread& t : threads) t.join();
  }
  bool has_mesh() const { return gpus % mesh_heads == 0; }
};

// call(communicator), the one of a way.
template <class Call>
void with_communicator(const machine::ranks& of, by how, const Call& call) {
  if (how == by::mesh)
    call(giwa::mesh{of.heads, of.ring});
  else
    call(of.all);
}
const char* name_of(by how) { return how == by::ring ? "ring" : how == by::heads ? "by heads" : "mesh"; }

// All results, one after the other.
std::vector<fp16> results_of(const rank_data& r) {
  std::vector<fp16> all;
  for (const auto* x : {&r.o, &r.dq, &r.dk, &r.dv}) {
    std::vector<fp16> host(static_cast<std::size_t>(x->size()));
    throw_if_failed(giwa::copy(r.stream, r.of(*x), host));
    throw_if_failed(giwa::synchronize(r.stream));
    all.insert(all.end(), host.begin(), host.end());
  }
  return all;
}

// The largest difference to one GPU, and how often delays or a graph change a bit.
bool check(const machine& m, const problem& p, by how, int repeats) {
  throw_if_failed(giwa::to_status(cudaSetDevice(0)));
  const rank_data whole(p, by::itself, 0, 1);
  whole.forward(), whole.backward();
  const std::vector<fp16> one = results_of(whole);
  std::vector<double> off(static_cast<std::size_t>(m.gpus));
  std::vector<int> changed(off.size()), changed_in_graph(off.size());
  m.on_each(
      [&](const machine::ranks& comms) {
        const giwa::nccl_communicator& comm = comms.all;
        const auto r = static_cast<std::size_t>(comm.rank());
        const rank_data own(p, how, comm.rank(), comm.size());
        const auto run = [&] {
          with_communicator(comms, how, [&](const auto& of) { own.forward(of), own.backward(of); });
        };
        run();
        const std::vector<fp16> first = results_of(own);
        int64 at = 0, at_whole = 0;
        for (const int64 heads : {p.heads, p.heads, p.kv_heads, p.kv_heads}) {
          const int64 row = heads * head_size;
          for (int i = 0; i < 2; ++i)
            for (int64 e = 0; e < own.slice.ranges[i].count * row; ++e) {
              const double got =
                  giwa::convert<double>{}(first[static_cast<std::size_t>(at + own.slice.rows(i).first * row + e)]);
              const auto expected = static_cast<std::size_t>(at_whole + own.slice.ranges[i].first * row + e);
              const double d = std::abs(got - giwa::convert<double>{}(one[expected]));
              off[r] = d <= off[r] ? off[r] : d;  // NaN stays
            }
          at += own.rows * row, at_whole += p.tokens * row;
        }
        const auto differs = [&] {
          const std::vector<fp16> again = results_of(own);
          return std::memcmp(again.data(), first.data(), first.size() * sizeof(fp16)) != 0;
        };
        for (int i = 0; i < repeats; ++i) {
          const auto late =
              static_cast<int64>(giwa::philox(7)(static_cast<giwa::uint64>(i * m.gpus + comm.rank())).word[0] % 400);
          throw_if_failed(giwa::for_all(own.stream, giwa::extents{late + 1}, delay{}));
          run();
          changed[r] += differs();
        }
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t ready = nullptr;
        throw_if_failed(giwa::to_status(cudaStreamBeginCapture(own.stream, cudaStreamCaptureModeThreadLocal)));
        run();
        throw_if_failed(giwa::to_status(cudaStreamEndCapture(own.stream, &graph)));
        throw_if_failed(giwa::to_status(cudaGraphInstantiate(&ready, graph, 0)));
        for (int i = 0; i < 5; ++i) {
          throw_if_failed(giwa::to_status(
              cudaMemsetAsync(own.o.data(), 0xff, static_cast<std::size_t>(own.o.size()) * 2, own.stream)));
          throw_if_failed(giwa::to_status(cudaGraphLaunch(ready, own.stream)));
          changed_in_graph[r] += differs();
        }
        cudaGraphExecDestroy(ready);
        cudaGraphDestroy(graph);
      },
      how == by::mesh);
  double worst = 0;
  int changes = 0, graph_changes = 0;
  for (std::size_t r = 0; r < off.size(); ++r) {
    worst = off[r] <= worst ? worst : off[r];
    changes += changed[r], graph_changes += changed_in_graph[r];
  }
  const bool right = worst < 0.02 && changes + graph_changes == 0;
  std::printf("%s, %s: largest difference to one GPU %.1e, %d delayed runs: %d differ, in a graph %d: %s\n",
              text(p).c_str(), name_of(how), worst, repeats * m.gpus, changes, graph_changes,
              right ? "right" : "WRONG");
  std::fflush(stdout);
  return right;
}

// One GPU and all of them, by a ring and, if the ranks divide the kv heads, by heads and a mesh, in turn. Every GPU computes the whole
// sequence too, at the same time, because GPUs of a kind differ by some percent, and all must be as warm. The mean
// counts; that of the slowest GPU, for which the others wait in a ring, is printed too.
void time(const machine& m, const problem& p) {
  std::vector<by> ways = {by::itself, by::ring};
  if (p.kv_heads % m.gpus == 0) ways.push_back(by::heads);
  if (p.kv_heads % mesh_heads == 0 && m.has_mesh() && m.gpus > mesh_heads) ways.push_back(by::mesh);
  std::vector<double> seconds[2][4];  // of the pass, of the way
  std::vector<std::array<std::vector<double>, 2>> own_seconds(static_cast<std::size_t>(m.gpus));  // alone, of the pass
  std::mutex mutex;
  std::barrier sync(m.gpus);
  m.on_each(
      [&](const machine::ranks& comms) {
        const giwa::nccl_communicator& comm = comms.all;
        std::vector<std::unique_ptr<rank_data>> data;
        for (const by how : ways)
          data.push_back(std::make_unique<rank_data>(p, how, how == by::itself ? 0 : comm.rank(),
                                                     how == by::itself ? 1 : comm.size()));
        // The first round loads kernels and connects the ranks.
        for (int round = 0; round < 4; ++round)
          for (int pass = 0; pass < 2; ++pass)
            for (std::size_t way = 0; way < ways.size(); ++way) {
              const rank_data& own = *data[way];
              sync.arrive_and_wait();
              const auto begin = std::chrono::steady_clock::now();
              for (int i = 0; i < calls_of(p); ++i) {
                if (way == 0)
                  pass == 0 ? own.forward() : own.backward();
                else
                  with_communicator(comms, ways[way],
                                    [&](const auto& of) { pass == 0 ? own.forward(of) : own.backward(of); });
              }
              throw_if_failed(giwa::synchronize(own.stream));
              const double each = seconds_since(begin) / calls_of(p);
              const std::lock_guard lock(mutex);
              if (round > 0) seconds[pass][way].push_back(each);
              if (round > 0 && way == 0)
                own_seconds[static_cast<std::size_t>(comm.rank())][static_cast<std::size_t>(pass)].push_back(each);
            }
      },
      ways.back() == by::mesh);
  for (std::size_t way = 1; way < ways.size(); ++way)
    for (int pass = 0; pass < 2; ++pass) {
      double slowest = 0;
      for (const auto& of_gpu : own_seconds) slowest = std::max(slowest, mean(of_gpu[static_cast<std::size_t>(pass)]));
      report(p, pass == 0 ? "forward" : "backward", pass == 0 ? 1 : 2.5, mean(seconds[pass][0]),
             mean(seconds[pass][way]),
             (std::to_string(m.gpus) + " GPUs" +
              (way == 1                 ? ""
               : ways[way] == by::heads ? " by heads"
                                        : " by a mesh"))
                 .c_str(),
             slowest);
    }
}

// Milliseconds of what each rank's ring computes (c), waits for (w), and does between an exchange and the next (e).
void steps(const machine& m, const problem& p) {
  std::vector<std::string> lines(static_cast<std::size_t>(2 * m.gpus));
  std::barrier sync(m.gpus);
  m.on_each([&](const machine::ranks& comms) {
    const giwa::nccl_communicator& comm = comms.all;
    const rank_data own(p, by::ring, comm.rank(), comm.size());
    for (const bool backward : {false, true}) {
      sync.arrive_and_wait();
      for (int call = 0; call < 4; ++call) {  // without a pause, as in a program
        const timed_communicator timed(comm);
        backward ? own.backward(timed) : own.forward(timed);
        timed.note(own.stream, 'c');
        if (call < 3) continue;
        throw_if_failed(giwa::synchronize(own.stream));
        lines[static_cast<std::size_t>(2 * comm.rank() + backward)] = timed.times();
      }
    }
  });
  for (int r = 0; r < m.gpus; ++r)
    for (const int pass : {0, 1})
      std::printf("%s, %-8s rank %d, ms:%s\n", text(p).c_str(), pass == 0 ? "forward" : "backward", r,
                  lines[static_cast<std::size_t>(2 * r + pass)].c_str());
}

// The time of messages to the next rank and from the one before, which pass each other.
void link(const machine& m) {
  std::barrier sync(m.gpus);
  m.on_each([&](const machine::ranks& comms) {
    const giwa::nccl_communicator& comm = comms.all;
    const giwa::stream stream = throw_if_failed(giwa::stream::create());
    for (int64 bytes = 1 << 16; bytes <= int64{1} << 29; bytes *= 8) {
      const device_memory<unsigned char> from(bytes), to(bytes);
      const auto exchange = [&] {
        throw_if_failed(comm.exchange(stream, [&](const auto& l) {
          const giwa::status s = l.send(from.data(), bytes, (comm.rank() + 1) % comm.size());
          return s.ok() ? l.receive(to.data(), bytes, (comm.rank() + comm.size() - 1) % comm.size()) : s;
        }));
        throw_if_failed(comm.wait(stream));
      };
      exchange();
      sync.arrive_and_wait();
      const giwa::timing t = throw_if_failed(giwa::time_on(stream, [&] {
        exchange();
        return giwa::status{};
      }));
      if (comm.rank() == 0)
        std::printf("messages of %9lld bytes: %8.3f ms, %5.1f GB/s\n", static_cast<long long>(bytes), t.median,
                    static_cast<double>(bytes) / t.median * 1e-6);
      sync.arrive_and_wait();
    }
  });
}
#endif

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int begin = what == "one" ? 3 : 2;
  const auto number = [&](int i, int64 other) { return argc > i ? std::atoll(argv[i]) : other; };
  const int64 tokens = number(begin, 131072), heads = number(begin + 1, 16);
  const problem p{tokens,
                  heads,
                  number(begin + 2, heads),
                  argc <= begin + 3 || std::string(argv[begin + 3]) != "full",
                  giwa::slicing::zigzag,
                  static_cast<int>(number(begin + 4, 0))};
  if (what == "one") {
    time_on_one(p, static_cast<int>(number(2, 2)));
    return 0;
  }
#if defined(WITH_NCCL)
  if (what == "check") {
    const machine m;
    bool right = true;
    const int repeats = static_cast<int>(number(2, 100));
    for (const giwa::slicing order : {giwa::slicing::zigzag, giwa::slicing::contiguous}) {
      for (const by how : {by::ring, by::heads, by::mesh}) {
        if (how == by::mesh && !m.has_mesh()) continue;
        right = check(m, {3000, 2 * m.gpus, m.gpus, true, order}, how, repeats) && right;
        right = check(m, {2049, m.gpus, m.gpus, false, order}, how, repeats) && right;
      }
    }
    return right ? 0 : 1;
  }
  if (what == "time" || what == "steps") {
    what == "time" ? time(machine(), p) : steps(machine(), p);
    return 0;
  }
  if (what == "link") {
    link(machine());
    return 0;
  }
#endif
  std::puts(
      "ring_attention check [REPEATS] | time|steps TOKENS HEADS [KV_HEADS [full|causal [CALLS]]] | link | one RANKS "
      "TOKENS "
      "HEADS [KV_HEADS [full|causal [CALLS]]]");
  return what.empty() || what.starts_with("--") ? 0 : 2;  // --benchmark_list_tests asks the other programs here
}
