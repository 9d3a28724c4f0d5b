// SPDX-License-Identifier: MIT
// attention_forward after a kernel that lets it start and writes its inputs long after that; and the claims of work tiles, which nothing
// resets between such calls.
#include <algorithm>

#include "gpu/attention/late_copies.cuh"
#include "gpu/attention/plain_tensors.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::attention_forward;
using giwa::causal;

namespace {

/// A call with everything that it may read: tensors, offsets, sinks, lengths of the mask, slopes, the offset of dropout.
template <class T, int HeadSize, bool Packed>
struct late_call {
  static constexpr int64 batch = 3, length = 300, heads = 4, rows = batch * length;
  plain_tensors<T> t{Packed ? 1 : batch, Packed ? rows : length, Packed ? rows : length, heads, 2, HeadSize};
  gpu_array<int> offsets{std::vector<int>{0, 250, 260, 900}}, counts{std::vector<int>{40, 7, 280}};
  gpu_array<float> sinks{std::vector<float>{0.5f, -3.0f, 2.0f, 0.0f}},
      slopes{std::vector<float>{0.1f, 0.01f, 0.5f, 0.0f}};
  gpu_array<uint64> offset{std::vector<uint64>{12345}};
  gpu_array<unsigned char> workspace{workspace_size()};

  static std::size_t workspace_size() {
    constexpr int64 sequences = Packed ? 1 : batch, each = Packed ? rows : length;
    return static_cast<std::size_t>(
        giwa::workspace_bytes({sequences, each, each, heads, 2, HeadSize, HeadSize, int64{sizeof(T)}}));
  }
  template <class Mask, class Score>
  giwa::status run(cudaStream_t s, const Mask& mask, const Score& score) const {
    giwa::attention_options options;
    options.sinks = {sinks.data(), {heads}};
    options.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
    options.lse = t.lse_view();
    if constexpr (Packed) {
      const auto of_rows = [](const auto& v) {
        using view = view_3<typename std::remove_cvref_t<decltype(v)>::element_type>;
        return view{v.data(), {v.extent(1), v.extent(2), v.extent(3)}};
      };
      return attention_forward<HeadSize>(s, giwa::sequences{offsets.data(), offsets.data(), batch, 640},
                                         of_rows(t.q_view()), of_rows(t.k_view()), of_rows(t.v_view()),
                                         of_rows(t.o_view()), mask, score, options);
    } else {
      return attention_forward<HeadSize>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask, score, options);
    }
  }
};

/// Counts the calls with other bits, of those whose inputs are other ones until the kernel before them writes them: all inputs, or
/// one. `mask` and `score` make the mask and the score modifier of a call.
template <class T, int HeadSize, bool Packed = false, class MakeMask, class MakeScore>
int different(const MakeMask& mask, const MakeScore& score) {
  late_call<T, HeadSize, Packed> c;
  const giwa::stream s = new_stream();
  const auto run = [&] { giwa::throw_if_failed(c.run(s, mask(c), score(c))); };
  run();
  const auto o = c.t.o.to_host();
  const auto lse = c.t.lse.to_host();
  const auto copy_of = [](const auto& array) { return gpu_array(array.to_host()); };
  const auto q = copy_of(c.t.q), k = copy_of(c.t.k), v = copy_of(c.t.v);
  const auto sinks = copy_of(c.sinks), slopes = copy_of(c.slopes);
  const auto offsets = copy_of(c.offsets), counts = copy_of(c.counts);
  const auto offset = copy_of(c.offset);
  const std::vector<late_copy> all{late(c.t.q, q),         late(c.t.k, k),          late(c.t.v, v),
                                   late(c.sinks, sinks),   late(c.slopes, slopes),  late(c.offset, offset),
                                   late(c.counts, counts), late(c.offsets, offsets)};
  int different = 0;
  for (std::size_t only = 0; only <= all.size(); ++only) {
    late_copies copies{};
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (only != all.size() && only != i) continue;
      copies.of[i] = all[i];
      check_cuda(cudaMemset(all[i].to, i < 5 ? 0xff : 0, all[i].bytes));
    }
    c.t.o.fill(0xff), c.t.lse.fill(0xff);
    launch_late_copies(s, copies);
    run();
    different += same_bits(c.t.o.to_host(), o) && same_bits(c.t.lse.to_host(), lse) ? 0 : 1;
  }
  return different;
}

constexpr auto no_mask = [](const auto&) { return giwa::full{}; };
constexpr auto causal_mask = [](const auto&) { return causal{}; };
constexpr auto prefix_mask = [](const auto& c) { return giwa::prefix{0, c.counts.data()} | causal{}; };
constexpr auto plain = [](const auto&) { return giwa::plain_score{}; };
constexpr auto alibi = [](const auto& c) { return giwa::alibi{c.slopes.data()}; };
constexpr auto dropping = [](const auto& c) { return giwa::dropout(0.3f, 7, giwa::plain_score{}, c.offset.data()); };

/// Blocks claim work tiles as those of a kernel do; `times` says how often each number was claimed.
__global__ void __launch_bounds__(32) claim_all(giwa::detail::work_counter* counter, int count, unsigned char* times) {
  if (threadIdx.x != 0) return;
  for (int i = static_cast<int>(blockIdx.x); i < count;
       i = static_cast<int>(gridDim.x) + giwa::detail::work_claims::claim(*counter, count))
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

TEST_CASE("inputs that the kernel before the call writes late") {
  CHECK(different<fp16, 64>(no_mask, plain) == 0);
  CHECK(different<fp16, 64>(causal_mask, plain) == 0);
  CHECK(different<bf16, 128>(prefix_mask, alibi) == 0);
  CHECK(different<float, 64>(causal_mask, plain) == 0);
  CHECK(different<fp16, 64, true>(prefix_mask, alibi) == 0);
}

TEST_CASE("the offset of dropout that the kernel before the call writes late") {
  CHECK(different<fp16, 64>(no_mask, dropping) == 0);
  CHECK(different<bf16, 128>(causal_mask, dropping) == 0);
  CHECK(different<fp16, 64, true>(causal_mask, dropping) == 0);
}

TEST_CASE("each work tile is claimed once, whatever the workspace holds, and the next launch begins at 0") {
  constexpr uint64 mark = giwa::detail::work_claims::mark;
  const giwa::stream s = new_stream();
  const int blocks = static_cast<int>(device_attribute(cudaDevAttrMultiProcessorCount));
  std::vector<uint64> before{0, 1, ~uint64{0}, uint64{1} << 63, 0x7f807f807f807f80, 0xffc0'ffc0'ffc0'ffc0, mark};
  for (const int below : {1, 2, 7, blocks - 1, blocks, blocks + 1}) before.push_back(mark - static_cast<uint64>(below));
  before.push_back(mark + giwa::detail::work_claims::most + 1);
  for (const uint64 contents : before) {
    const gpu_array<uint64> word(std::vector<uint64>{contents});
    auto* const counter = reinterpret_cast<giwa::detail::work_counter*>(word.data());
    for (const int count : {blocks + 1, 2 * blocks, 5000, 20, 131072}) {
      const touch_counter times(count);
      const int grid = std::min(blocks, count - 1);
      for (int launch = 0; launch < 3; ++launch) claim_all<<<grid, 32, 0, s>>>(counter, count, times.data());
      CAPTURE(contents, count);
      REQUIRE(giwa::synchronize(s).ok());
      REQUIRE(times.wrong(3) == 0);
      REQUIRE(word.to_host()[0] == mark);
    }
  }
}

TEST_CASE("calls of many sizes and types with one workspace, which other data overwrites between them") {
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

TEST_CASE("more work tiles than one launch has") {
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  constexpr int64 sequences = (int64{1} << 20) + 3000;
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
