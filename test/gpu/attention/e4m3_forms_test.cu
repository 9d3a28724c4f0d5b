// SPDX-License-Identifier: MIT
// attention_forward of e4m3 by tensor cores in every form of a call: packed and padded sequences, dropout, score modifiers, masks,
// sinks, head sizes of v, and what is not aligned; each row against the reference.
#include <giwa/attention.cuh>

#include "host/attention/e4m3_cases.hpp"
#include "support/catch.hpp"
#include "support/gpu.cuh"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

/// Runs a case on a GPU, and returns its message where it is refused. Its o and lse are copied back.
template <int HeadSize, int HeadSizeV, class O, class Mask, class Score>
std::string run_on_gpu(attention_case<e4m3, O>& c, const Mask& mask, const Score& score) {
  const giwa::stream s = new_stream();
  c.clear_outputs();
  const gpu_array<e4m3> q(c.q.memory), k(c.k.memory), v(c.v.memory);
  const gpu_array<O> o(c.o.memory);
  const gpu_array<float> lse(c.lse.memory), sinks(c.sinks.memory);
  const gpu_array<int> q_offsets(c.q_offsets), k_offsets(c.k_offsets), q_used(c.options.q_used),
      k_used(c.options.k_used), k_index(c.options.k_index);
  giwa::detail::attention_views<e4m3, O> a = c.views();
  a.q = c.q.at(q.data()), a.k = c.k.at(k.data()), a.v = c.v.at(v.data()), a.o = c.o.at(o.data());
  if (c.packed()) a.packed.q_offsets = q_offsets.data(), a.packed.k_offsets = k_offsets.data();
  if (!c.options.q_used.empty()) a.packed.q_lengths = q_used.data();
  if (!c.options.k_used.empty()) a.packed.k_lengths = k_used.data();
  if (!c.options.k_index.empty()) a.packed.k_batch_index = k_index.data();
  giwa::attention_options options = c.call_options();
  options.lse = c.lse.at(lse.data());
  if (c.options.sinks) options.sinks = c.sinks.at(sinks.data());
  const giwa::status state = forward_of<HeadSize, HeadSizeV>(static_cast<cudaStream_t>(s), a, mask, score, options);
  if (!state.ok()) return giwa::format_status(state).c_str();
  giwa::throw_if_failed(giwa::synchronize(s));
  c.o.memory = o.to_host(), c.lse.memory = lse.to_host();
  return "";
}

// A weight is rounded to e4m3 by at most 2^-4 of itself, and the tensor cores' sums lose about 2^-6 of sum |p v| in 768 keys.
constexpr double of_sum = 0x1p-4 + 0x1p-6;
// The errors of weights are independent and for values of mean 0 add up as squares: 2.2 to 2.5 % of o were measured.
constexpr double relative_rms = 0.035;

/// What is wrong with o and lse, or nothing.
template <class O>
std::string fault_against(const attention_case<e4m3, O>& c, const attention_answers& a) {
  const auto o = c.o.template elements<double>();
  const auto lse = rows_of(c.lse.template elements<float>(), c.options);
  const auto width = static_cast<std::size_t>(c.options.head_size_v);
  const double of_output = std::is_same_v<O, bf16> ? 0x1p-8 : std::is_same_v<O, fp16> ? 0x1p-11 : 0;
  double squares = 0, answers = 0;
  std::ostringstream fault;
  for (std::size_t row = 0; row < a.lse.size() && fault.str().empty(); ++row) {
    const row_scale& scale = a.scales[row];
    for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
      const double right = a.o[i];
      if (std::isnan(right) != std::isnan(o[i])) {
        fault << "row " << row << ": " << o[i] << " instead of " << right;
        break;
      }
      if (std::isnan(right)) continue;
      const double distance = std::fabs(o[i] - right);
      if (!(distance <= of_sum * static_cast<double>(scale.sum) + of_output * std::fabs(right) + 1e-6)) {
        fault << "row " << row << ": " << o[i] << " instead of " << right << ", sum " << scale.sum;
        break;
      }
      squares += distance * distance, answers += right * right;
    }
    const double right = static_cast<double>(a.lse[row]), seen = static_cast<double>(lse[row]);
    const bool same = seen == right || (std::isnan(seen) && std::isnan(right));
    if (c.options.lse && !same && !(std::fabs(seen - right) <= 1e-3 + 0x1p-10 * static_cast<double>(scale.score)))
      fault << "lse of row " << row << ": " << seen << " instead of " << right;
  }
  if (fault.str().empty() && !(squares <= relative_rms * relative_rms * answers))
    fault << "relative RMS " << std::sqrt(squares / answers);
  if (c.o.written_outside() + c.lse.written_outside() != 0) fault << "bytes were written outside the output";
  if (!fault.str().empty()) fault << "; " << c.options.text();
  return fault.str();
}
/// `on_gpu` is `score` with pointers that a kernel reads.
template <int HeadSize, class O, int HeadSizeV = HeadSize, class Mask, class Score>
std::string fault_of(case_options options, const Mask& mask, const Score& score, const Score& on_gpu) {
  options.head_size = HeadSize, options.head_size_v = HeadSizeV;
  attention_case<e4m3, O> c(options);
  if (const std::string refused = run_on_gpu<HeadSize, HeadSizeV>(c, mask, on_gpu); !refused.empty()) return refused;
  return fault_against(c, answers_of(c, mask, score));
}
template <int HeadSize, class O, int HeadSizeV = HeadSize, class Mask, class Score = giwa::plain_score>
std::string fault_of(const case_options& options, const Mask& mask, const Score& score = {}) {
  return fault_of<HeadSize, O, HeadSizeV>(options, mask, score, score);
}

}  // namespace

TEST_CASE("packed sequences of e4m3 by tensor cores") {
  case_options packed = e4m3_options(1, 1, 128);
  packed.q_lengths = {20, 0, 265, 1, 192, 63}, packed.k_lengths = {30, 5, 870, 0, 192, 100};
  packed.sinks = true;
  CHECK(fault_of<128, fp16>(packed, giwa::causal{}) == "");
  CHECK(fault_of<64, float>(packed, giwa::sliding_window{70}) == "");
  CHECK(fault_of<192, bf16>(packed, giwa::causal{}) == "");
}

TEST_CASE("padded sequences of e4m3 by tensor cores") {
  case_options padded = e4m3_options(270, 497, 128);
  padded.batch = 3, padded.k_used = {64, 497, 0};
  CHECK(fault_of<128, fp16>(padded, giwa::full{}) == "");
  padded.q_used = {270, 1, 100}, padded.k_used = {100, 333, 497}, padded.k_index = {1, 0, 1}, padded.k_batch = 2;
  CHECK(fault_of<256, float>(padded, giwa::causal{}) == "");
}

TEST_CASE("score modifiers of e4m3 by tensor cores") {
  const std::vector<float> slopes = {0.5f, 0.1f, 0.02f, 0.003f};
  const gpu_array<float> copy(slopes);
  const giwa::alibi on_host{slopes.data()}, on_gpu{copy.data()};
  const case_options options = e4m3_options(270, 900, 128);
  CHECK(fault_of<128, fp16>(options, giwa::causal{}, on_host, on_gpu) == "");
  CHECK(fault_of<64, float>(options, giwa::full{}, on_host, on_gpu) == "");
  CHECK(fault_of<128, bf16>(options, giwa::full{}, giwa::softcap{2}) == "");
  CHECK(fault_of<192, float>(options, giwa::causal{}, giwa::softcap{2}) == "");
}

TEST_CASE("masks of e4m3 by tensor cores") {
  case_options options = e4m3_options(300, 900, 96);
  options.sinks = true;
  CHECK(fault_of<96, fp16>(options, giwa::sliding_window{130} | giwa::prefix{40}) == "");
  options.spread = 2;  // scores of a standard deviation of 4
  CHECK(fault_of<192, float>(options, giwa::sliding_window{333}) == "");
  CHECK(fault_of<128, float, 64>(options, giwa::causal{}) == "");
  CHECK(fault_of<80, bf16, 256>(options, giwa::causal{}) == "");
}

TEST_CASE("dropout of e4m3 by tensor cores") {
  case_options options = e4m3_options(200, 500, 128);
  CHECK(fault_of<128, fp16>(options, giwa::causal{}, giwa::dropout(0.1f, 7)) == "");
  options.sinks = true;
  CHECK(fault_of<64, float>(options, giwa::full{}, giwa::dropout(0.5f, 7)) == "");
  CHECK(fault_of<256, bf16>(options, giwa::causal{}, giwa::dropout(0.3f, 7)) == "");
}

TEST_CASE("layouts of e4m3 that TMA addresses and others") {
  for (int i = 0; i < static_cast<int>(case_layout::count); ++i) {
    case_options options = e4m3_options(130, 333, 128);
    for (int t = 0; t < 4; ++t)
      options.layout[static_cast<std::size_t>(t)] =
          static_cast<case_layout>((i + t) % static_cast<int>(case_layout::count));
    if (i == 0)
      options.layout = {case_layout::heads_first, case_layout::heads_first, case_layout::heads_first,
                        case_layout::padded};
    options.offset = i == 3 ? 1 : 0;
    CHECK(fault_of<128, fp16>(options, giwa::causal{}) == "");
  }
}

TEST_CASE("numbers of e4m3 at the ends of their range by tensor cores") {
  for (int i = 1; i < static_cast<int>(e4m3_numbers::count); ++i) {
    case_options options = e4m3_options(130, 700, 128);
    attention_case<e4m3, float> c(options);
    change(c, static_cast<e4m3_numbers>(i));
    REQUIRE((run_on_gpu<128, 128>(c, giwa::causal{}, giwa::plain_score{})) == "");
    CHECK(fault_against(c, answers_of(c, giwa::causal{}, giwa::plain_score{})) == "");
  }
}
