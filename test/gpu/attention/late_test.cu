// SPDX-License-Identifier: MIT
// attention_forward after a kernel that lets it start and writes its inputs long after that, or still reads its outputs: the same bits.
#include "gpu/attention/late_copies.cuh"
#include "gpu/attention/plain_tensors.cuh"
#include "support/call_options.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::attention_forward;
using giwa::causal;

namespace {

/// How the rows of sequences are placed.
enum class rows_of { tensors, packed, lengths };

/// A call with what it may read: tensors, offsets or lengths, sinks, numbers of a mask, slopes, the offset of dropout.
template <class T, int HeadSize, rows_of Rows, int64 Length = 300>
struct late_call {
  static constexpr bool is_packed = Rows == rows_of::packed;
  static constexpr int64 batch = 3, length = Length, heads = 4, rows = batch * length;
  plain_tensors<T> t{is_packed ? 1 : batch, is_packed ? rows : length, is_packed ? rows : length, heads, 2, HeadSize};
  gpu_array<int> offsets{std::vector<int>{0, 250, 260, 900}}, counts{std::vector<int>{40, 7, 280}},
      lengths{std::vector<int>{300, 211, 77}};
  gpu_array<float> sinks{std::vector<float>{0.5f, -3.0f, 2.0f, 0.0f}},
      slopes{std::vector<float>{0.1f, 0.01f, 0.5f, 0.0f}};
  gpu_array<uint64> offset{std::vector<uint64>{12345}};
  gpu_array<unsigned char> workspace{workspace_size()};

  static std::size_t workspace_size() {
    constexpr int64 sequences = is_packed ? 1 : batch, each = is_packed ? rows : length;
    return static_cast<std::size_t>(
        giwa::workspace_bytes({sequences, each, each, heads, 2, HeadSize, HeadSize, int64{sizeof(T)}}));
  }
  template <class Mask, class Score>
  giwa::status run(cudaStream_t s, const Mask& mask, const Score& score) const {
    giwa::attention_options options;
    options.sinks = {sinks.data(), {heads}};
    options.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
    options.lse = t.lse_view();
    if constexpr (is_packed) {
      const auto of_rows = [](const auto& v) {
        using view = view_3<typename std::remove_cvref_t<decltype(v)>::element_type>;
        return view{v.data(), {v.extent(1), v.extent(2), v.extent(3)}};
      };
      return attention_forward<HeadSize>(
          s, of_rows(t.q_view()), of_rows(t.k_view()), of_rows(t.v_view()), of_rows(t.o_view()), mask, score,
          giwa_test::with(options, giwa::sequences{offsets.data(), offsets.data(), batch, 640}));
    } else if constexpr (Rows == rows_of::lengths) {
      const giwa::sequences sequences{.q_lengths = lengths.data(), .k_lengths = lengths.data()};
      return attention_forward<HeadSize>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask, score,
                                         giwa_test::with(options, sequences));
    } else {
      return attention_forward<HeadSize>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask, score, options);
    }
  }
};

/// Counts the calls with other bits, of those whose inputs are other ones until the kernel before them writes them: all inputs, or
/// one. `mask` and `score` make the mask and the score modifier of a call.
template <class T, int HeadSize, rows_of Rows = rows_of::tensors, int64 Length = 300, class MakeMask, class MakeScore>
int different(const MakeMask& mask, const MakeScore& score) {
  late_call<T, HeadSize, Rows, Length> c;
  const giwa::stream s = new_stream();
  const auto run = [&] { giwa::throw_if_failed(c.run(s, mask(c), score(c))); };
  run();
  const auto o = c.t.o.to_host();
  const auto lse = c.t.lse.to_host();
  const auto copy_of = [](const auto& array) { return gpu_array(array.to_host()); };
  const auto q = copy_of(c.t.q), k = copy_of(c.t.k), v = copy_of(c.t.v);
  const auto sinks = copy_of(c.sinks), slopes = copy_of(c.slopes);
  const auto offsets = copy_of(c.offsets), counts = copy_of(c.counts), lengths = copy_of(c.lengths);
  const auto offset = copy_of(c.offset);
  const gpu_array<int>&places = Rows == rows_of::lengths ? c.lengths : c.offsets,
        &right_places = Rows == rows_of::lengths ? lengths : offsets;
  const std::vector<late_copy> all{
      late(c.t.q, q),         late(c.t.k, k),         late(c.t.v, v),         late(c.sinks, sinks),
      late(c.slopes, slopes), late(c.offset, offset), late(c.counts, counts), late(places, right_places)};
  int different = 0;
  for (std::size_t only = 0; only <= all.size(); ++only) {
    late_copies copies{};
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (only != all.size() && only != i) continue;
      copies.of[i] = all[i];
      check_cuda(cudaMemset(all[i].to, i < 5 ? 0xff : 0, all[i].bytes));
    }
    c.t.o.fill(0xff), c.t.lse.fill(0xff), c.workspace.fill(0xff);
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

}  // namespace

TEST_CASE("a kernel that reads too early would be seen") {
  if (kernels_start_early()) CHECK(early_reads_are_seen());
}

TEST_CASE("inputs that the kernel before the call writes late") {
  CHECK(different<fp16, 64>(no_mask, plain) == 0);
  CHECK(different<fp16, 64>(causal_mask, plain) == 0);
  CHECK(different<bf16, 128>(prefix_mask, alibi) == 0);
  CHECK(different<fp16, 256>(causal_mask, plain) == 0);
  CHECK(different<float, 64>(causal_mask, plain) == 0);
  CHECK(different<fp16, 64, rows_of::packed>(prefix_mask, alibi) == 0);
  CHECK(different<fp16, 64, rows_of::lengths>(causal_mask, plain) == 0);
  if (small_mode()) return;
  CHECK(different<fp16, 128, rows_of::tensors, 8300>(causal_mask, plain) == 0);
  CHECK(different<bf16, 96, rows_of::tensors, 4200>(no_mask, plain) == 0);
}

TEST_CASE("the offset of dropout that the kernel before the call writes late") {
  CHECK(different<fp16, 64>(no_mask, dropping) == 0);
  CHECK(different<bf16, 128>(causal_mask, dropping) == 0);
  CHECK(different<fp16, 64, rows_of::packed>(causal_mask, dropping) == 0);
}

TEST_CASE("outputs that the kernel before the call still reads") {
  const late_call<fp16, 64, rows_of::tensors> c;
  const giwa::stream s = new_stream();
  const gpu_array<fp16> o(c.t.o.size(), 0);
  const gpu_array<float> lse(c.t.lse.size(), 0);
  launch_late_copies(s, {{late(o, c.t.o), late(lse, c.t.lse)}});
  giwa::throw_if_failed(c.run(s, causal{}, giwa::plain_score{}));
  const std::vector<fp16> read = o.to_host();
  const std::vector<float> read_lse = lse.to_host();
  const gpu_array<fp16> before(o.size());
  const gpu_array<float> lse_before(lse.size());
  CHECK(same_bits(read, before.to_host()));
  CHECK(same_bits(read_lse, lse_before.to_host()));
}
