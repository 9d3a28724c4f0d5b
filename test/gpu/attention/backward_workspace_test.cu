// SPDX-License-Identifier: MIT
// Gradients of calls with other lengths, one after the other in one workspace that nothing clears: those of the same calls in fresh
// workspaces. The kernel that lists the tiles of a call sleeps before it does, so a kernel that reads a list too early finds the tiles
// of another call.
#define GIWA_RANDOM_DELAYS 1
#include <giwa/attention_backward.cuh>

#include <algorithm>
#include <memory>
#include <random>

#include "gpu/attention/backward_gpu.cuh"
#include "gpu/attention/late_copies.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::bf16;
using giwa::fp16;

namespace {

void set_delay(unsigned nanoseconds) {
  check_cuda(cudaMemcpyToSymbol(giwa::arch::random_delay, &nanoseconds, sizeof nanoseconds));
}

/// How blocks add: deterministic, with split_heads, in any order.
enum class adding : int { in_order, split_heads, any_order };

/// A call, its answers, and its gradients in a fresh workspace.
template <class T, int HeadSize, class Mask>
struct call_case {
  backward_case<T> on_host;
  const backward_answers answers;
  backward_on_gpu<T, T, T> gpu;
  const Mask& mask;
  std::vector<T> dq, dk, dv;

  call_case(const case_options& options, const Mask& m)
      : on_host(options), answers(answers_of(on_host, m, giwa::plain_score{})), gpu(on_host), mask(m) {}

  void set(adding how) {
    on_host.any_order = how == adding::any_order, on_host.split_heads = how == adding::split_heads;
  }
  std::size_t workspace_bytes() { return gpu.workspace_bytes(on_host, giwa::plain_score{}); }
  void clear_outputs() {
    for (gpu_array<T>* x : {&gpu.dq, &gpu.dk, &gpu.dv}) x->fill(0xff);
  }
  giwa::status run(cudaStream_t s, const gpu_array<unsigned char>& workspace) const {
    auto options = gpu.call_options();
    options.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
    return backward_of<HeadSize, HeadSize>(s, gpu.views(), mask, giwa::plain_score{}, options);
  }
  void run_in_fresh_workspace(cudaStream_t s) {
    const gpu_array<unsigned char> workspace(workspace_bytes());
    clear_outputs();
    giwa::throw_if_failed(run(s, workspace));
    gpu.read_back();
    dq = on_host.dq.memory, dk = on_host.dk.memory, dv = on_host.dv.memory;
  }
  /// Empty, or what is wrong with the gradients on the GPU.
  std::string fault() {
    gpu.read_back();
    if (!same_bits(on_host.dk.memory, dk)) return "other bits of dk; " + on_host.of.options.text();
    if (!same_bits(on_host.dv.memory, dv)) return "other bits of dv; " + on_host.of.options.text();
    if (on_host.any_order) return judge(on_host, answers);
    return same_bits(on_host.dq.memory, dq) ? "" : "other bits of dq; " + on_host.of.options.text();
  }
};

/// Packed sequences, the same in another order, whose lists have the same addresses, and of fewer tiles; lengths of padded sequences; and
/// a call without a list, whose sums lie where others have lists.
std::vector<case_options> calls_of(int64 head_size) {
  case_options o;
  o.heads = 2, o.kv_heads = 1, o.head_size = o.head_size_v = head_size;
  std::vector<case_options> calls(5, o);
  calls[0].q_lengths = {130, 0, 200, 64, 1}, calls[0].k_lengths = {257, 200, 40, 0, 130};
  calls[1].q_lengths = {1, 64, 130, 200, 0}, calls[1].k_lengths = {130, 40, 200, 257, 0};
  calls[2].q_lengths = {1, 30, 0, 3}, calls[2].k_lengths = {70, 5, 9, 0};
  calls[3].batch = 3, calls[3].seq_q = 100, calls[3].seq_k = 150;
  calls[3].q_used = {20, 100, 70}, calls[3].k_used = {150, 0, 129};
  calls[4].batch = 1, calls[4].seq_q = 150, calls[4].seq_k = 200;
  for (std::size_t i = 0; i < calls.size(); ++i) calls[i].seed = 20 + i;
  return calls;
}

template <class T, int HeadSize, class Mask>
void test_one_workspace(const Mask& mask) {
  const giwa::stream s = new_stream();
  std::vector<std::unique_ptr<call_case<T, HeadSize, Mask>>> calls;
  for (const case_options& o : calls_of(HeadSize))
    calls.push_back(std::make_unique<call_case<T, HeadSize, Mask>>(o, mask));
  for (const adding how : {adding::in_order, adding::split_heads, adding::any_order}) {
    std::size_t bytes = 0;
    set_delay(0);
    for (const auto& call : calls) {
      call->set(how);
      bytes = std::max(bytes, call->workspace_bytes());
      call->run_in_fresh_workspace(s);
      CHECK(judge(call->on_host, call->answers) == "");
    }
    gpu_array<unsigned char> workspace(bytes);
    std::vector<std::size_t> order{0, 1, 2, 3, 4};
    std::mt19937 random(6);
    for (int i = 0; i < (small_mode() ? 3 : how == adding::any_order ? 6 : 12); ++i) {  // there each answer is judged
      constexpr int garbage[] = {0xff, 0x00, 0x01, 0x7f};
      set_delay(i % 3 == 2 ? 300 : 30000);
      workspace.fill(garbage[i % 4]);
      std::shuffle(order.begin(), order.end(), random);
      for (const auto& call : calls) call->clear_outputs();
      wait_for_device();
      launch_late_copies(s, {});  // meanwhile all calls are queued
      for (const std::size_t n : order) giwa::throw_if_failed(calls[n]->run(s, workspace));
      giwa::throw_if_failed(giwa::synchronize(s));
      CAPTURE(static_cast<int>(how), i);
      for (const auto& call : calls) REQUIRE(call->fault() == "");
    }
  }
  set_delay(0);
}

}  // namespace

TEST_CASE("calls with other lengths in one workspace") {
  test_one_workspace<fp16, 64>(giwa::causal::bottom_right);
#if !defined(GIWA_TEST_FEW_SIZES)
  test_one_workspace<fp16, 64>(giwa::full{});
  test_one_workspace<bf16, 128>(giwa::causal::bottom_right);
#endif
}
