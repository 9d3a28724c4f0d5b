// SPDX-License-Identifier: MIT
// Calls of attention_forward in e4m3 on a GPU, and what is wrong with their results.
#ifndef GIWA_TEST_GPU_ATTENTION_E4M3_GPU_CUH
#define GIWA_TEST_GPU_ATTENTION_E4M3_GPU_CUH

#include <giwa/attention.cuh>

#include "gpu/attention/late_copies.cuh"
#include "host/attention/e4m3_cases.hpp"
#include "host/attention/e4m3_scales_cases.hpp"
#include "support/gpu.cuh"

namespace giwa_test {

using giwa::bf16;
using giwa::fp16;

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
inline constexpr double of_sum = 0x1p-4 + 0x1p-6;
// A tensor core's sums of products of 8 bits have 13 bits, where those of fp32 have 24.
inline constexpr double of_scores = 0x1p-13;
// The errors of weights are independent and for values of mean 0 add up as squares: 2.2 to 2.5 % of o were measured.
inline constexpr double relative_rms = 0.035;

/// What is wrong with o and lse, or nothing. `most_rms`: of the problem, relative to the answers.
template <class O>
std::string fault_against(const attention_case<e4m3, O>& c, const attention_answers& a,
                          double most_rms = relative_rms) {
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
    const double most =
        1e-3 + 0x1p-10 * static_cast<double>(scale.score) + of_scores * static_cast<double>(scale.moved_lse);
    if (c.options.lse && !same && !(std::fabs(seen - right) <= most))
      fault << "lse of row " << row << ": " << seen << " instead of " << right;
  }
  if (fault.str().empty() && !(squares <= most_rms * most_rms * answers))
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

using t8 = tensor_view<const e4m3, 4>;

/// What a call writes.
template <class O>
struct outputs {
  std::vector<O> o;
  std::vector<float> lse;
};
/// Runs a problem; a refusal is thrown. `is_late`: the kernel before the call writes all inputs after the call has begun.
template <int Size, class O, class Mask>
outputs<O> run_scaled(const scaled_problem& p, const Mask& mask, bool is_late = false) {
  const giwa::stream s = new_stream();
  const gpu_array<e4m3> q(p.q), k(p.k), v(p.v);
  const gpu_array<float> qs(p.q_scales), ks(p.k_scales), vs(p.v_scales), channel(p.v_channel), mean(p.v_mean),
      sinks(p.sinks);
  const gpu_array<e4m3> right_q(p.q), right_k(p.k), right_v(p.v);
  const gpu_array<float> right_qs(p.q_scales), right_ks(p.k_scales), right_vs(p.v_scales), right_channel(p.v_channel),
      right_mean(p.v_mean);
  const gpu_array<O> o(std::vector<O>(p.q.size(), giwa::convert<O>{}(NAN)));
  const gpu_array<float> lse(std::vector<float>(static_cast<std::size_t>(p.batch * p.heads * p.queries), NAN));
  const gpu_array<unsigned char> workspace(std::vector<unsigned char>(64));
  giwa::attention_options options;
  options.lse = {lse.data(), {p.batch, p.heads, p.queries}};
  options.align = giwa::alignment::bottom_right;
  options.workspace = {workspace.data(), {64}};
  options.scales = p.scales(qs.data(), ks.data(), vs.data(), channel.data(), mean.data());
  if (!p.sinks.empty()) options.sinks = {sinks.data(), {p.heads}};
  if (is_late) {
    const late_copies copies{{late(q, right_q), late(k, right_k), late(v, right_v), late(qs, right_qs),
                              late(ks, right_ks), late(vs, right_vs), late(channel, right_channel),
                              late(mean, right_mean)}};
    for (const late_copy& c : copies.of)
      if (c.bytes != 0) check_cuda(cudaMemset(c.to, 0xff, c.bytes));
    launch_late_copies(s, copies);
  }
  const giwa::status state = giwa::attention_forward<Size>(
      static_cast<cudaStream_t>(s), t8(q.data(), {p.batch, p.queries, p.heads, Size}),
      t8(k.data(), {p.batch, p.keys, p.kv_heads, Size}), t8(v.data(), {p.batch, p.keys, p.kv_heads, Size}),
      tensor_view<O, 4>(o.data(), {p.batch, p.queries, p.heads, Size}), mask, giwa::plain_score{}, options);
  giwa::throw_if_failed(state);
  giwa::throw_if_failed(giwa::synchronize(s));
  return {o.to_host(), lse.to_host()};
}

}  // namespace giwa_test

#endif
