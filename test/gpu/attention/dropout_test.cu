// SPDX-License-Identifier: MIT
// Dropout on a GPU, forward and backward, in every kernel: against the reference, in replays of a graph, and in parts of a batch.
#include <giwa/attention.cuh>

#include <future>
#include <utility>

#include "gpu/attention/backward_gpu.cuh"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace {

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::bf16;
using giwa::causal;
using giwa::dropout;
using giwa::fp16;

/// The forward call of a case on the GPU, whose o and lse it writes; empty, or why it was refused.
template <int HeadSize, int HeadSizeV, class T, class Mask, class Score>
std::string run_forward_on_gpu(backward_case<T>& c, const Mask& mask, const Score& score) {
  c.of.clear_outputs();
  const backward_on_gpu<T, T, T> gpu(c);
  const auto in = gpu.views().in;
  const giwa::detail::attention_views<T, T> views{in.q, in.k, in.v, c.of.o.at(gpu.o.data()), in.packed};
  const gpu_array<unsigned char> workspace(static_cast<std::size_t>(giwa::workspace_bytes(in.problem())));
  giwa::attention_options options = c.of.call_options();
  options.lse = c.of.lse.at(gpu.lse.data());
  if (c.of.options.sinks) options.sinks = c.of.sinks.at(gpu.sinks.data());
  options.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
  const giwa::stream s = new_stream();
  const giwa::status state = forward_of<HeadSize, HeadSizeV>(s, views, mask, score, options);
  if (!state.ok()) return giwa::format_status(state).c_str();
  c.of.o.memory = gpu.o.to_host(), c.of.lse.memory = gpu.lse.to_host();
  return "";
}

/// Empty, or what is wrong in the forward or in the backward pass.
template <class T, int HeadSize, int HeadSizeV = HeadSize, class Mask, class Score>
std::string fault_of(case_options options, const Mask& mask, const Score& score) {
  options.head_size = HeadSize, options.head_size_v = HeadSizeV;
  backward_case<T> c(options);
  c.has_dlse = options.seed % 2 == 0, c.has_least_workspace = options.seed % 3 == 1;
  const attention_answers of_forward = answers_of(c.of, mask, score);
  std::string fault = run_forward_on_gpu<HeadSize, HeadSizeV>(c, mask, score);
  if (fault.empty()) fault = judge(c.of, of_forward).failure;
  if (!fault.empty()) return "forward: " + fault;
  const backward_answers of_backward = answers_of(c, mask, score);  // and the exact o and lse
  fault = run<HeadSize, HeadSizeV>(c, mask, score);
  if (fault.empty()) fault = judge(c, of_backward);
  return fault.empty() ? "" : "backward: " + fault + "; " + c.of.options.text();
}

/// Lengths, grouped heads, sinks, packed sequences, layouts that TMA addresses and others.
case_options problem(int number) {
  case_options c;
  c.seed = static_cast<uint64>(number);
  c.heads = 2, c.kv_heads = number % 2 == 0 ? 1 : 2;
  c.batch = 2, c.seq_q = 130 + 23 * number, c.seq_k = number == 2 ? 270 : 200;
  if (small_mode()) c.seq_q = 70, c.seq_k = 100, c.batch = 1;
  c.sinks = number % 2 == 1;
  c.align = giwa::alignment::bottom_right;
  if (number == 1) c.q_lengths = {100, 0, 65, 13}, c.k_lengths = {130, 20, 64, 100};
  if (number == 3)  // mma.sync where the type allows it
    for (case_layout& l : c.layout) l = case_layout::padded;
  return c;
}

/// The faults of cases, which are computed at the same time: the answers come from the CPU.
using faults_of_cases = std::vector<std::future<std::string>>;

template <class T, int HeadSize, int HeadSizeV = HeadSize, class Mask, class Score = giwa::plain_score>
void add_all(faults_of_cases& to, const Mask& mask, const Score& score = {}) {
  for (int i = 0; i<4; i += HeadSize> 128 ? 3 : 1)
    to.push_back(std::async(std::launch::async, [=] {
      return fault_of<T, HeadSize, HeadSizeV>(problem(i), mask, dropout(i == 2 ? 0.5f : 0.1f, 7, score));
    }));
}

}  // namespace

TEST_CASE("every kernel drops the weights of the reference, forward and backward") {
  faults_of_cases faults;
  add_all<fp16, 128>(faults, causal{});
  add_all<float, 33>(faults, causal{}, giwa::softcap{5});
#if !defined(GIWA_TEST_FEW_SIZES)  // where the program is only compiled
  add_all<bf16, 64>(faults, giwa::full{});
  add_all<fp16, 256>(faults, causal{});
  add_all<bf16, 192, 128>(faults, giwa::sliding_window{40} | giwa::prefix{9});
  add_all<bf16, 72, 8>(faults, giwa::full{});
  add_all<float, 128>(faults, giwa::full{});
  add_all<fp16, 512>(faults, causal{});
#endif
  for (std::future<std::string>& fault : faults) CHECK(fault.get() == "");
}

namespace {

using bits = std::pair<std::vector<fp16>, std::vector<fp16>>;  // o and dv

/// o and dv of a call.
template <class Score>
bits bits_of(backward_case<fp16>& c, const Score& score) {
  REQUIRE((run_forward_on_gpu<128, 128>(c, causal{}, score)) == "");
  REQUIRE((run<128, 128>(c, causal{}, score)) == "");
  return {c.of.o.elements<fp16>(), c.dv.elements<fp16>()};
}
bool same(const bits& a, const bits& b) { return same_bits(a.first, b.first) && same_bits(a.second, b.second); }

}  // namespace

TEST_CASE("the number in memory gives other bits in each replay, the probability 0 those without dropout") {
  case_options o = problem(0);
  o.head_size = o.head_size_v = 128;
  backward_case<fp16> c(o);
  const bits plain = bits_of(c, giwa::plain_score{}), none = bits_of(c, dropout(0, 7)),
             first = bits_of(c, dropout(0.1f, 7));
  CHECK(same(plain, none));
  CHECK(!same(plain, first));

  const gpu_array<uint64> number(std::vector<uint64>{0});
  const auto set = [&](uint64 n) { check_cuda(cudaMemcpy(number.data(), &n, sizeof n, cudaMemcpyHostToDevice)); };
  const dropout<> drop(0.1f, 7, {}, number.data());
  CHECK(same(bits_of(c, drop), first));
  set(1);
  const bits second = bits_of(c, drop);
  CHECK(!same(second, first));

  c.of.clear_outputs();
  const backward_on_gpu<fp16, fp16, fp16> gpu(c);
  const auto in = gpu.views().in;
  const giwa::stream s = new_stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  giwa::attention_options options = c.of.call_options();
  options.lse = c.of.lse.at(gpu.lse.data());
  const giwa::status forward =
      giwa::attention_forward<128>(s, in.q, in.k, in.v, c.of.o.at(gpu.o.data()), causal{}, drop, options);
  const giwa::status backward = backward_of<128, 128>(s, gpu.views(), causal{}, drop, gpu.call_options());
  check_cuda(cudaStreamEndCapture(s, &graph));
  REQUIRE((forward.ok() && backward.ok()));
  check_cuda(cudaGraphInstantiate(&ready, graph, 0));
  for (const uint64 n : {1, 0, 1}) {
    set(n);
    check_cuda(cudaGraphLaunch(ready, s));
    gpu.read_back();
    c.of.o.memory = gpu.o.to_host();
    CHECK(same({c.of.o.elements<fp16>(), c.dv.elements<fp16>()}, n == 0 ? first : second));
  }
  check_cuda(cudaGraphExecDestroy(ready));
  check_cuda(cudaGraphDestroy(graph));
}

TEST_CASE("a part of a batch and of the heads has the bits of the whole") {
  case_options o = problem(0);
  o.head_size = o.head_size_v = 128, o.batch = 3, o.heads = o.kv_heads = 4;
  backward_case<fp16> c(o);
  const std::vector<fp16> whole = bits_of(c, dropout(0.3f, 7)).first;
  const gpu_array<fp16> q(c.of.q.elements<fp16>()), k(c.of.k.elements<fp16>()), v(c.of.v.elements<fp16>()),
      to(whole.size());
  const auto part = [&](auto* data, int64 rows) {  // the last two sequences, and the last three heads
    return tensor_view(data + rows * 512 + 128, giwa::index<4>{2, rows, 3, 128},
                       giwa::index<4>{rows * 512, 512, 128, 1});
  };
  dropout<> d(0.3f, 7);
  d.first_batch = 1, d.first_head = 1;
  const giwa::stream s = new_stream();
  REQUIRE(giwa::attention_forward<128>(s, part(q.data(), o.seq_q), part(k.data(), o.seq_k), part(v.data(), o.seq_k),
                                       part(to.data(), o.seq_q), causal::bottom_right, d)
              .ok());
  const std::vector<fp16> got = to.to_host();
  int64 different = 0;
  for (int64 b = 1; b < 3; ++b)
    for (int64 i = 0; i < o.seq_q; ++i)
      for (int64 j = 128; j < 512; ++j) {
        const auto at = static_cast<std::size_t>((b * o.seq_q + i) * 512 + j);
        different += giwa::convert<float>{}(got[at]) != giwa::convert<float>{}(whole[at]);
      }
  CHECK(different == 0);
}
