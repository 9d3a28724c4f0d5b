// SPDX-License-Identifier: MIT
// The claims of work tiles on Hopper, which nothing resets before a call: each tile once, whatever the workspace holds.
#include <algorithm>

#include "gpu/attention/plain_tensors.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::attention_forward;
using giwa::causal;
using giwa::detail::work_claims;
using giwa::detail::work_counter;

namespace {

/// A number that is written to a part of a word.
struct small_value {
  uint64 word;
  std::size_t bytes;
  int at = 0;  // the first byte

  uint64 over(uint64 before) const {
    const uint64 mask = (bytes == 8 ? ~uint64{0} : (uint64{1} << 8 * bytes) - 1) << 8 * at;
    return (before & ~mask) | word << 8 * at;
  }
};
// A bool; 8 bits; 1 in fp16, bf16; NaN in fp16; 1 in fp32; small int32 and int64; a bool in the second half.
constexpr small_value small_values[] = {
    {1, 1},          {0, 1},
    {7, 1},          {255, 1},
    {0x3c00, 2},     {0x3f80, 2},
    {0xffff, 2},     {0x7e00, 2},
    {0x3f800000, 4}, {1, 4},
    {0, 4},          {132, 4},
    {1, 8},          {0x3ff0000000000000, 8},
    {1, 1, 4},       {1, 4, 4},
    {0xffff, 2, 6},  {0x3c003c00, 4, 2},
};

/// Blocks claim work tiles as those of a kernel do; `times` says how often each number was claimed.
__global__ void __launch_bounds__(32) claim_all(work_counter* counter, int count, unsigned char* times) {
  if (threadIdx.x != 0) return;
  for (int i = static_cast<int>(blockIdx.x); i < count;
       i = static_cast<int>(gridDim.x) + work_claims::claim(*counter, count))
    count_byte(times, i);
}

template <class T, class Mask>
giwa::status run_with(cudaStream_t s, const plain_tensors<T>& t, const Mask& mask,
                      const gpu_array<unsigned char>& workspace) {
  giwa::attention_options options;
  options.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
  return attention_forward<64>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask, giwa::plain_score{}, options);
}

}  // namespace

TEST_CASE("each work tile is claimed once, whatever the workspace holds, and the next launch begins at 0") {
  constexpr uint64 mark = work_counter::mark;
  const giwa::stream s = new_stream();
  const int blocks = static_cast<int>(device_attribute(cudaDevAttrMultiProcessorCount));
  std::vector<uint64> before{0, 1, ~uint64{0}, uint64{1} << 63, 0x7f807f807f807f80, 0xffc0'ffc0'ffc0'ffc0, mark};
  for (const int below : {1, 2, 7, blocks - 1, blocks, blocks + 1})
    before.push_back(work_counter::state_of(0 - static_cast<uint64>(below)));
  before.push_back(work_counter::state_of(work_counter::largest_count + 1));
  for (const small_value& value : small_values) before.push_back(value.over(mark));
  for (const uint64 contents : before) {
    for (const int count : {blocks + 1, 2 * blocks, 5000, 20, 1, 131072}) {
      const gpu_array<uint64> word(std::vector<uint64>{contents});
      auto* const counter = reinterpret_cast<work_counter*>(word.data());
      const touch_counter times(count);
      const int grid = std::min(blocks, count);
      for (int launch = 0; launch < 3; ++launch) claim_all<<<grid, 32, 0, s>>>(counter, count, times.data());
      CAPTURE(contents, count);
      REQUIRE(giwa::synchronize(s).ok());
      REQUIRE(times.wrong(3) == 0);
      REQUIRE(word.to_host()[0] == mark);
    }
  }
}

TEST_CASE("calls of two sizes with one workspace, which other data overwrites between them") {
  const giwa::stream s = new_stream();
  const plain_tensors<fp16> small(2, 300, 300, 40, 8, 64), large(3, 700, 700, 16, 4, 64);
  const gpu_array<unsigned char> workspace(8);
  const auto answers = [&](const plain_tensors<fp16>& t) {
    giwa::throw_if_failed(run_with(s, t, causal{}, gpu_array<unsigned char>(0)));
    return t.o.to_host();
  };
  const auto of_small = answers(small), of_large = answers(large);
  int different = 0;
  for (int i = 0; i < 200; ++i) {
    if (i % 3 == 0) check_cuda(cudaMemsetAsync(workspace.data(), i % 256, 8, s));
    const bool is_small = i % 7 < 3;
    const plain_tensors<fp16>& t = is_small ? small : large;
    check_cuda(cudaMemsetAsync(t.o.data(), 0xff, t.o.bytes(), s));
    giwa::throw_if_failed(run_with(s, t, causal{}, workspace));
    giwa::throw_if_failed(run_with(s, t, causal{}, workspace));
    different += same_bits(t.o.to_host(), is_small ? of_small : of_large) ? 0 : 1;
  }
  CHECK(different == 0);
}

// An allocator such as PyTorch's gives the 8 bytes of a finished call to the next small tensor, and then to a call again. The call must
// write every row, because the bits of a lost work tile are those of the memory.
TEST_CASE("calls with a workspace that held a small tensor between them") {
  const giwa::stream s = new_stream();
  // As many work tiles as the call in which rows were lost: 28 of each head. fp32 has its counter before the split tensors.
  const plain_tensors<fp16> t(1, 3579, 3579, 8, 4, 64);
  const plain_tensors<float> single(1, 700, 700, 16, 16, 64);
  const auto check = [&](const auto& of, int64 bytes) {
    const gpu_array<unsigned char> workspace(static_cast<std::size_t>(bytes));
    giwa::throw_if_failed(run_with(s, of, causal{}, workspace));
    const auto answer = of.o.to_host();
    for (const small_value& value : small_values)
      for (int repeat = 0; repeat < 3; ++repeat) {
        check_cuda(cudaMemcpyAsync(workspace.data() + value.at, &value.word, value.bytes, cudaMemcpyHostToDevice, s));
        check_cuda(cudaMemsetAsync(of.o.data(), 0xff, of.o.bytes(), s));
        giwa::throw_if_failed(run_with(s, of, causal{}, workspace));
        CAPTURE(value.word, value.bytes, value.at);
        REQUIRE(same_bits(of.o.to_host(), answer));
      }
  };
  check(t, 8);
  check(single, giwa::workspace_bytes(giwa::attention_problem{1, 700, 700, 16, 16, 64, 64, 4}));
}

TEST_CASE("more work tiles than one launch has") {
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  constexpr int64 sequences = (int64{1} << 20) + 50;  // the last launch has fewer than there are multiprocessors
  if (small_mode() || free < std::size_t{2} << 30) return;
  const giwa::stream s = new_stream();
  plain_tensors<fp16> t(sequences, 1, 1, 1, 1, 64);
  const gpu_array<unsigned char> workspace(8);
  const auto v = t.v.to_host();  // of one key
  const auto check = [&](const auto& mask) {
    for (int i = 0; i < 2; ++i) {
      t.o.fill(0xff);
      giwa::throw_if_failed(run_with(s, t, mask, workspace));
      CHECK(same_bits(t.o.to_host(), v));
    }
  };
  check(giwa::full{});
  check(causal{});
}
