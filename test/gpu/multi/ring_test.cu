// SPDX-License-Identifier: MIT
// Attention on several ranks, by a ring, head-parallel, and by a mesh of both: against the reference, with delays, and
// as a CUDA graph. The ranks are streams of one GPU, and, on a machine with several, GPUs connected by NCCL.
#include <giwa/attention.cuh>
#include <giwa/attention_backward.cuh>
#include <giwa/multi.hpp>

#include "support/attention.hpp"
#include "support/backward_case.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/rank_mesh.hpp"
#include "support/rank_rows.hpp"
#include "support/same_bits.hpp"
#include "support/stream_group.cuh"
#if defined(WITH_NCCL)
#include "support/nccl_group.cuh"
#endif

namespace {

using namespace giwa_test;
using giwa::causal;
using giwa::fp16;
using giwa::sequence_slices;
using giwa::slicing;
using giwa::throw_if_failed;

template <class = void>
__global__ void __launch_bounds__(32) be_late(int64 nanoseconds) {
  spin(nanoseconds);
}

/// The rows of a rank on the host and on the GPU.
template <class T>
struct rows_on_gpu {
  rank_rows<T> host;
  gpu_array<T> device;
  rows_on_gpu(const tensor_view<T, 4>& whole, const giwa::token_slice& slice)
      : host(whole, slice), device(host.memory) {}
  tensor_view<T, 4> view() const { return {device.data(), host.view.extents()}; }
  void gather(const tensor_view<T, 4>& whole, const giwa::token_slice& slice) {
    const std::vector<T> got = device.to_host();
    std::copy(got.begin(), got.end(), host.memory.begin());
    host.gather(whole, slice);
  }
};
/// (batch, rows, heads, 1) as (batch, heads, rows).
inline tensor_view<float, 3> as_lse(const tensor_view<float, 4>& x) {
  return {x.data(), {x.extent(0), x.extent(2), x.extent(1)}, {x.stride(0), x.stride(2), x.stride(1)}};
}

/// How many ranks exchange heads: none in a ring, all, or two in a mesh.
enum class by { ring, heads, mesh };

/// The tensors of one rank: forward, or forward and backward.
template <int HeadSize, by How, class T, class G, class Mask>
struct rank_on_gpu {
  backward_case<T, T, G>& c;
  sequence_slices slices;
  giwa::token_slice slice;
  Mask mask;
  giwa::stream stream = new_stream();
  rows_on_gpu<T> q, k, v, o, dout;
  rows_on_gpu<float> lse;
  rows_on_gpu<G> dq, dk, dv;
  gpu_array<unsigned char> forward_space, backward_space;

  rank_on_gpu(backward_case<T, T, G>& of, const sequence_slices& s, int rank, int ranks, const Mask& m)
      : c(of),
        slices(s),
        slice(s.of(rank, ranks)),
        mask(m),
        q(of.of.q.view(), slice),
        k(of.of.k.view(), slice),
        v(of.of.v.view(), slice),
        o(of.of.o.view(), slice),
        dout(of.dout.view(), slice),
        lse(as_tensor(of.of.lse.view()), slice),
        dq(of.dq.view(), slice),
        dk(of.dk.view(), slice),
        dv(of.dv.view(), slice),
        forward_space(static_cast<std::size_t>(forward_bytes(of.views().in.problem(), s, rank, ranks))),
        backward_space(static_cast<std::size_t>(backward_bytes(of.views().in.problem(), s, rank, ranks))) {}

  static int rings(int ranks) { return How == by::mesh ? ranks / 2 : 1; }
  static int64 forward_bytes(const giwa::attention_problem& p, const sequence_slices& s, int rank, int ranks) {
    return How != by::ring ? giwa::head_parallel_workspace_bytes(p, s, rank, ranks, sizeof(T), rings(ranks))
                           : giwa::ring_workspace_bytes(p, s, rank, ranks);
  }
  static int64 backward_bytes(const giwa::attention_problem& p, const sequence_slices& s, int rank, int ranks) {
    return How != by::ring
               ? giwa::head_parallel_backward_workspace_bytes(p, s, rank, ranks, sizeof(T), sizeof(G), rings(ranks))
               : giwa::ring_backward_workspace_bytes(p, s, rank, ranks);
  }
  template <class Comm>
  void forward(const Comm& comm) {
    giwa::attention_options options = c.of.call_options();
    options.lse = as_lse(lse.view());
    options.workspace = {forward_space.data(), {static_cast<int64>(forward_space.size())}};
    const auto call = [&](auto... arguments) {
      const auto by_heads = [&](const auto& of) {
        return giwa::head_parallel_attention_forward<HeadSize>(stream, of, slices, arguments...);
      };
      if constexpr (How == by::mesh)
        return on_mesh(comm, 2, by_heads);
      else if constexpr (How == by::heads)
        return by_heads(comm);
      else
        return giwa::ring_attention_forward<HeadSize>(stream, comm, slices, arguments...);
    };
    throw_if_failed(call(q.view(), k.view(), v.view(), o.view(), mask, giwa::plain_score{}, options));
  }
  template <class Comm>
  void backward(const Comm& comm) {
    giwa::attention_backward_options options = c.call_options();
    options.lse = as_lse(lse.view());
    options.workspace = {backward_space.data(), {static_cast<int64>(backward_space.size())}};
    const auto call = [&](auto... arguments) {
      const auto by_heads = [&](const auto& of) {
        return giwa::head_parallel_attention_backward<HeadSize>(stream, of, slices, arguments...);
      };
      if constexpr (How == by::mesh)
        return on_mesh(comm, 2, by_heads);
      else if constexpr (How == by::heads)
        return by_heads(comm);
      else
        return giwa::ring_attention_backward<HeadSize>(stream, comm, slices, arguments...);
    };
    throw_if_failed(call(q.view(), k.view(), v.view(), o.view(), dout.view(), dq.view(), dk.view(), dv.view(), mask,
                         giwa::plain_score{}, options));
  }
  void clear() {
    for (gpu_array<T>* x : {&o.device}) x->fill(0xff);
    for (gpu_array<G>* x : {&dq.device, &dk.device, &dv.device}) x->fill(0xff);
  }
};

/// All ranks of a case.
template <int HeadSize, by How, class T, class G, class Mask, class Group = stream_group>
struct ring_on_gpu {
  using communicator = typename Group::communicator;
  backward_case<T, T, G>& c;
  Group group;
  std::vector<std::unique_ptr<rank_on_gpu<HeadSize, How, T, G, Mask>>> ranks;

  ring_on_gpu(backward_case<T, T, G>& of, const sequence_slices& slices, int count, const Mask& mask)
      : c(of), group(count) {
    for (int r = 0; r < count; ++r) {
      group.use_device_of(r);
      ranks.push_back(std::make_unique<rank_on_gpu<HeadSize, How, T, G, Mask>>(of, slices, r, count, mask));
    }
    group.use_device_of(0);
  }
  auto& of(const communicator& comm) { return *ranks[static_cast<std::size_t>(comm.rank())]; }
  /// call(rank) with its GPU current.
  template <class Call>
  void for_each_rank(const Call& call) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      group.use_device_of(static_cast<int>(r));
      call(*ranks[r]);
    }
    group.use_device_of(0);
  }

  /// Forward, then backward. A seed makes every rank late by up to 0.3 ms, another time for each.
  void run(uint64 seed = 0) {
    group.on_each([&](const communicator& comm) {
      auto& own = of(comm);
      const auto late = [&](uint64 i) {
        const auto ns = giwa::philox(seed)(static_cast<uint64>(comm.rank()) * 2 + i).word[0] % 300000;
        if (seed != 0) be_late<><<<1, 32, 0, own.stream>>>(int64{ns});
      };
      late(0);
      own.forward(comm);
      late(1);
      own.backward(comm);
    });
    for_each_rank([](auto&) { check_cuda(cudaDeviceSynchronize()); });
  }
  void clear() {
    for_each_rank([](auto& r) { r.clear(); });
  }
  /// Writes all results into the case.
  void gather() {
    for_each_rank([&](auto& r) {
      r.o.gather(c.of.o.view(), r.slice);
      r.lse.gather(as_tensor(c.of.lse.view()), r.slice);
      r.dq.gather(c.dq.view(), r.slice), r.dk.gather(c.dk.view(), r.slice), r.dv.gather(c.dv.view(), r.slice);
    });
  }
};

case_options case_of(int64 tokens, int64 size) {
  case_options c;
  c.seed = static_cast<uint64>(tokens);
  c.batch = 2, c.heads = 4, c.kv_heads = 2;
  c.seq_q = c.seq_k = tokens;
  c.head_size = c.head_size_v = size;
  return c;
}

/// Forward and backward with several numbers of ranks and slices: what is wrong first, or empty.
template <int HeadSize, by How, class T, class G, class Group = stream_group, class Mask>
std::string compare(int64 tokens, const Mask& mask, int most_ranks = 4) {
  const case_options options = case_of(tokens, HeadSize);
  attention_case<T> plain_case(options);
  const attention_answers forward = answers_of(plain_case, mask, giwa::plain_score{});
  backward_case<T, T, G> c(options);
  const backward_answers backward = answers_of(c, mask, giwa::plain_score{});
  const int64 uneven_ends[] = {tokens / 2, tokens / 2, tokens / 2 + 3, tokens};
  for (const int ranks : {1, 2, 3, 4}) {
    if (ranks > most_ranks || (How == by::heads && ranks > 2)) break;  // there are 2 kv heads
    if (How == by::mesh && ranks % 2 != 0) continue;
    for (const int how : {0, 1, 2}) {
      if (how == 2 && ranks % 2 != 0) continue;
      sequence_slices slices{.tokens = tokens, .order = how == 0 || ranks == 2 ? slicing::zigzag : slicing::contiguous};
      if (how == 2) slices.ends = {uneven_ends, {4}};  // four pieces: 2 ranks zigzag, or 4 ranks
      c.of.clear_outputs(), c.clear_outputs();
      ring_on_gpu<HeadSize, How, T, G, Mask, Group> ring(c, slices, ranks, mask);
      ring.run();
      ring.gather();
      std::string fault = judge(c.of, forward).failure;
      if (fault.empty()) fault = judge(c, backward);
      if (!fault.empty()) return fault + "; " + std::to_string(ranks) + " ranks, slices " + std::to_string(how);
    }
  }
  return "";
}

}  // namespace

TEST_CASE("a ring on streams computes what the reference says") {
  CHECK(compare<64, by::ring, fp16, fp16>(330, causal{}) == "");
#if !defined(GIWA_TEST_FEW_SIZES)
  std::vector<int> ids(2 * 290);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i % 290 / 90);
  // The reference reads them on the host, the kernels on the GPU.
  int* shared = nullptr;
  check_cuda(cudaMallocManaged(&shared, ids.size() * sizeof(int)));
  std::copy(ids.begin(), ids.end(), shared);
  CHECK(compare<64, by::ring, fp16, float>(290, giwa::segment_ids{shared, shared, 290, 290, true} & causal{}) == "");
  check_cuda(cudaFree(shared));
#endif
}

TEST_CASE("slices of more than 65536 keys, whose steps are in chunks, give what one call does") {
  if (small_mode()) return;
  constexpr int64 tokens = 140003, size = 64;
  const int ranks = 2;
  std::vector<fp16> numbers[3], o_one(tokens * size), o_ring(o_one.size());
  std::vector<float> lse_one(tokens), lse_ring(lse_one.size());
  for (std::size_t t = 0; t < 3; ++t)
    for (int64 i = 0; i < tokens * size; ++i)  // v says where in the sequence it is: a part that counts twice is seen
      numbers[t].push_back(giwa::convert<fp16>{}(0.5f * giwa::philox(t).normal<float>(static_cast<uint64>(i)) +
                                                 (t == 2 && i >= tokens * size / 2 ? 1.0f : 0.0f)));
  const auto whole = [](auto& x) { return tensor_view<fp16, 4>(x.data(), {1, tokens, 1, size}); };
  const auto whole_lse = [](auto& x) { return tensor_view<float, 4>(x.data(), {1, tokens, 1, 1}); };
  {
    const giwa::stream stream = new_stream();
    gpu_array<fp16> q(numbers[0]), k(numbers[1]), v(numbers[2]), o(o_one);
    gpu_array<float> lse(lse_one);
    throw_if_failed(giwa::attention_forward<size>(stream, whole(q), whole(k), whole(v), whole(o), causal{},
                                                  giwa::attention_options{.lse = {lse.data(), {1, 1, tokens}}}));
    throw_if_failed(giwa::synchronize(stream));
    o_one = o.to_host(), lse_one = lse.to_host();
  }
  const sequence_slices slices{.tokens = tokens};
  stream_group group(ranks);
  group.on_each([&](const stream_communicator& comm) {
    const giwa::token_slice slice = slices.of(comm.rank(), ranks);
    const giwa::stream stream = new_stream();
    const rows_on_gpu<fp16> q(whole(numbers[0]), slice), k(whole(numbers[1]), slice), v(whole(numbers[2]), slice);
    rows_on_gpu<fp16> o(whole(o_ring), slice);
    rows_on_gpu<float> lse(whole_lse(lse_ring), slice);
    const giwa::attention_problem problem{
        .batch = 1, .heads = 1, .kv_heads = 1, .head_size = size, .head_size_v = size};
    gpu_array<unsigned char> space(
        static_cast<std::size_t>(giwa::ring_workspace_bytes(problem, slices, comm.rank(), ranks)));
    throw_if_failed(giwa::ring_attention_forward<size>(
        stream, comm, slices, q.view(), k.view(), v.view(), o.view(), causal{}, giwa::plain_score{},
        {.lse = as_lse(lse.view()), .workspace = {space.data(), {static_cast<int64>(space.size())}}}));
    throw_if_failed(giwa::synchronize(stream));
    o.gather(whole(o_ring), slice), lse.gather(whole_lse(lse_ring), slice);
  });
  double off = 0, off_lse = 0;
  for (std::size_t i = 0; i < o_one.size(); ++i) {
    const double d = std::abs(static_cast<double>(giwa::convert<float>{}(o_one[i])) -
                              static_cast<double>(giwa::convert<float>{}(o_ring[i])));
    off = d <= off ? off : d;  // a NaN stays
  }
  for (std::size_t i = 0; i < lse_one.size(); ++i) {
    const double d = std::abs(static_cast<double>(lse_one[i]) - static_cast<double>(lse_ring[i]));
    off_lse = d <= off_lse ? off_lse : d;
  }
  CHECK(off < 3e-3);
  CHECK(off_lse < 1e-4);
}

TEST_CASE("head-parallel ranks on streams, and a mesh, compute what the reference says") {
  CHECK(compare<64, by::heads, fp16, fp16>(330, causal{}) == "");
  CHECK(compare<64, by::mesh, fp16, fp16>(330, causal{}) == "");
}

#if defined(WITH_NCCL)
TEST_CASE("a ring, head-parallel ranks and a mesh over NCCL compute what the reference says") {
  const int gpus = giwa::device_count();
  if (gpus < 2) {
    WARN("left out: this machine has one GPU");
    return;
  }
  CHECK(compare<64, by::ring, fp16, fp16, nccl_group>(330, causal{}, gpus) == "");
  CHECK(compare<64, by::heads, fp16, fp16, nccl_group>(330, causal{}, gpus) == "");
  CHECK(compare<64, by::mesh, fp16, fp16, nccl_group>(330, causal{}, gpus) == "");
}
#endif

TEST_CASE("the bits of a ring do not depend on delays, and a graph of all ranks has them too") {
  const int repeats = small_mode() ? 5 : number_of("GIWA_TEST_REPEATS", 100);
  backward_case<fp16> c(case_of(700, 64));
  c.of.clear_outputs(), c.clear_outputs();
  const sequence_slices slices{.tokens = 700};
  ring_on_gpu<64, by::ring, fp16, fp16, causal> ring(c, slices, 3, causal{});
  ring.run();
  ring.gather();
  const auto o = c.of.o.memory, dq = c.dq.memory, dk = c.dk.memory, dv = c.dv.memory;
  const auto differs = [&] {
    ring.gather();
    return !same_bits(o, c.of.o.memory) || !same_bits(dq, c.dq.memory) || !same_bits(dk, c.dk.memory) ||
           !same_bits(dv, c.dv.memory);
  };
  int differing = 0;
  for (int i = 1; i <= repeats; ++i) {
    ring.clear();
    ring.run(static_cast<uint64>(i));
    differing += differs();
  }
  CHECK(differing == 0);

  const giwa::stream origin = new_stream();
  const giwa::event begin = throw_if_failed(giwa::event::create(false));
  std::vector<giwa::event> ends;
  for (int r = 0; r < 3; ++r) ends.push_back(throw_if_failed(giwa::event::create(false)));
  ring.clear();
  const giwa::status captured = capture_and_replay(origin, 2, [&] {
    giwa::status s = begin.record(origin);
    ring.group.on_each([&](const stream_communicator& comm) {
      auto& own = ring.of(comm);
      throw_if_failed(begin.hold(own.stream));
      own.forward(comm);
      own.backward(comm);
      throw_if_failed(ends[static_cast<std::size_t>(comm.rank())].record(own.stream));
    });
    for (const giwa::event& e : ends)
      if (s.ok()) s = e.hold(origin);
    return s;
  });
  CHECK(captured.ok());
  CHECK(!differs());
}
