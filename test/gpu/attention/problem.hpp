// SPDX-License-Identifier: MIT
// A drawn problem in memory, on a GPU or on the host: filled, run, and checked row by row.
#ifndef GIWA_TEST_GPU_ATTENTION_PROBLEM_HPP
#define GIWA_TEST_GPU_ATTENTION_PROBLEM_HPP

#include <giwa/attention/call/forward.hpp>
#include <giwa/base/throw.hpp>

#include <algorithm>
#include <cstring>

#include "gpu/attention/verdict.hpp"

namespace giwa_test::attention {

/// Writes element i of a tensor, in row-major order, with a value that only its place in the buffer decides: where a stride is
/// zero, all who write there agree.
struct fill_tensor {
  void* buffer;
  element type;
  placement at;
  value_kind values;
  uint64 seed, stream;

  GIWA_HOST_DEVICE float value(int64 place) const {
    const giwa::random_words r = giwa::philox(seed, stream)(static_cast<uint64>(place));
    const auto uniform = [&](int i) { return static_cast<float>(r.word[i] >> 8) * 0x1p-24f - 0.5f; };
    const float normal = (uniform(0) + uniform(1) + uniform(2) + uniform(3)) * 1.7320508f;
    switch (values) {
      case value_kind::even: return uniform(0) * 3.4641016f;
      case value_kind::large: return normal * 8;
      case value_kind::constant: return 1;
      case value_kind::tiny: return normal * 0x1p-10f;
      case value_kind::sparse: return r.word[1] % 16 == 0 ? normal * 4 : 0;
      case value_kind::outliers: return r.word[1] % 64 == 0 ? normal * 20 : normal;
      default: return normal;
    }
  }
  GIWA_HOST_DEVICE giwa::uint32 row_bits(int64 row, uint64 streams) const {
    return giwa::philox(seed, stream + streams)(static_cast<uint64>(row)).word[0];
  }
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    int64 place = at.first, column = 0;
    for (int d = 3; d >= 0; --d) {
      const int64 x = i % at.extent[d];
      if (d == 3) column = x;
      i /= at.extent[d];
      if (at.extent[d] != 1) place += x * at.stride[d];
    }
    float v = value(place);
    if (values == value_kind::poisoned) {  // queries and keys with NaN, values with NaN or infinity, in whole rows
      const giwa::uint32 x = row_bits(place - column, 100) % 256;
      if (x < (stream == 0 ? 1u : 3u)) v = x == 0 && stream == 2 ? HUGE_VALF : HUGE_VALF - HUGE_VALF;
    }
    if (values == value_kind::rows && (stream == 1 || stream == 2)) {  // a power of two for each row of keys and values
      const int most = seed % 2 == 0 ? 6 : 12, power = static_cast<int>(row_bits(place - column, 200) % (2 * most + 1));
      v *= std::ldexp(1.0f, power - most);
    }
    switch (type) {
      case element::of_fp32: static_cast<float*>(buffer)[place] = v; break;
      case element::of_fp16: static_cast<fp16*>(buffer)[place] = giwa::convert<fp16>{}(v); break;
      case element::of_bf16: static_cast<bf16*>(buffer)[place] = giwa::convert<bf16>{}(v); break;
    }
  }
};

/// Makes NaN of element i of a tensor, in row-major order, whose row no sequence has.
struct poison_gaps {
  void* buffer;
  int element_bytes;
  placement at;
  const sequence_rows* sequences;
  int64 batch;
  bool packed, of_queries;

  /// Whether a row is in the tensor twice: then it may belong to a sequence all the same.
  bool shares_rows() const {
    for (int d = 0; d < 3; ++d)
      if (at.extent[d] > 1 && at.stride[d] == 0) return true;
    return false;
  }
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    int64 position[4], place = at.first;
    for (int d = 3; d >= 0; --d) {
      position[d] = i % at.extent[d];
      i /= at.extent[d];
      place += at.extent[d] == 1 ? 0 : position[d] * at.stride[d];
    }
    for (int64 b = 0; b < batch; ++b) {
      const sequence_rows& s = sequences[b];
      const int64 stored = packed ? 0 : of_queries ? b : s.k_stored;
      const int64 row = position[1] - (of_queries ? s.q_begin : s.k_begin);
      if (stored == position[0] && row >= 0 && row < (of_queries ? s.q_length : s.k_length)) return;
    }
    for (int j = 0; j < element_bytes; ++j) static_cast<unsigned char*>(buffer)[place * element_bytes + j] = 0xff;
  }
};

/// What a call of giwa is made from: pointers lead to where it runs.
struct call_arguments {
  const attention_draw* draw;
  const void *q, *k, *v, *bias;  // buffers
  void* o;
  float* lse;
  unsigned char* workspace;  // or null
  int64 workspace_bytes;
  const float *slopes, *sinks;
  const int *q_offsets, *k_offsets, *q_lengths, *k_lengths, *k_index;  // lengths and index may be null
  const int *q_segments, *k_segments, *prefix_counts;
  int64 segment_stride;
};

/// The tables of a problem as one array of words, each beginning at a multiple of 64.
class tables {
 public:
  explicit tables(const attention_draw& d) : segment_stride_(std::max<int64>({d.seq_q, d.seq_k, 1})) {
    random_sequence random(d.seed + 1);
    const auto begin = [&] {
      words_.resize(giwa::round_up(words_.size(), std::size_t{64}), -1);
      return words_.size();
    };
    const auto put = [&](const std::vector<int64>& list) {
      const std::size_t first = begin();
      for (const int64 n : list) words_.push_back(static_cast<int>(n));
      return first;
    };
    q_offsets = put(d.q_offsets), k_offsets = put(d.k_offsets);
    q_lengths = put(d.q_lengths), k_lengths = put(d.k_lengths), k_index = put(d.k_index);
    prefix_counts = begin();
    for (int64 b = 0; b < d.batch; ++b) words_.push_back(static_cast<int>(random.below(d.prefix_count + 1)));
    const auto number = [&](float x) {
      int word;
      static_assert(sizeof word == sizeof x);
      std::memcpy(&word, &x, sizeof x);
      words_.push_back(word);
    };
    slopes = begin();
    for (int64 h = 0; h < d.heads; ++h)
      number(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(d.heads)));
    sinks = begin();
    for (int64 h = 0; h < d.heads; ++h) number(static_cast<float>(random.below(9)) - 4);
    sequences = begin();
    words_.resize(words_.size() + d.sequences.size() * sizeof(sequence_rows) / sizeof(int));
    if (!d.sequences.empty())
      std::memcpy(words_.data() + sequences, d.sequences.data(), d.sequences.size() * sizeof(sequence_rows));
    if (d.types.mask != mask_kind::segments) return;
    const auto segments = [&](bool of_queries) {
      const std::size_t first = begin();
      words_.resize(first + static_cast<std::size_t>(d.batch * segment_stride_), -1);
      for (std::size_t b = 0; b < d.sequences.size(); ++b) {
        const auto& s = d.sequences[b];
        const int64 length = of_queries ? s.q_length : s.k_length;
        const int64 shift = of_queries ? d.offset_of(s) : 0;
        for (int64 i = 0; i < length; ++i)
          words_[first + b * static_cast<std::size_t>(segment_stride_) + static_cast<std::size_t>(i)] =
              static_cast<int>(d.ascending ? (i + shift + 4096) / d.segment_length : random.below(3));
      }
      return first;
    };
    q_segments = segments(true);
    k_segments = segments(false);
  }
  const std::vector<int>& words() const { return words_; }
  int64 segment_stride() const { return segment_stride_; }

  std::size_t q_offsets = 0, k_offsets = 0, q_lengths = 0, k_lengths = 0, k_index = 0, prefix_counts = 0, slopes = 0,
              sinks = 0, sequences = 0, q_segments = 0, k_segments = 0;

 private:
  std::vector<int> words_;
  int64 segment_stride_;
};

/// How it went: what giwa answered, and what is wrong with it.
struct outcome {
  giwa::status state;
  std::string failure;
  bool ok() const { return failure.empty(); }
};

/// Makes the problem where `place` has its memory, calls giwa, and checks all that it wrote. `call(arguments)` returns giwa's
/// status; a problem is never invalid, so that anything but success is a failure. `spoil(arguments)` may spoil the result.
template <class Place, class Call, class Spoil>
outcome run_problem(Place& place, const attention_draw& d, const Call& call, const Spoil& spoil) {
  const element bias_type = d.types.score == score_kind::capped_bias ? element::of_fp32 : d.types.input;
  const bool has_bias = d.types.score == score_kind::bias || d.types.score == score_kind::capped_bias;
  const int bytes_of_element = giwa_test::attention::bytes_of(d.types.input);
  place.clear();
  const auto memory = [&](const placement& p, element e) {
    return place.take(p.size * giwa_test::attention::bytes_of(e));
  };
  void *const q = memory(d.q, d.types.input), *const k = memory(d.k, d.types.input),
              *const v = memory(d.v, d.types.input), *const bias = has_bias ? memory(d.bias, bias_type) : nullptr;
  void *const o = memory(d.o, d.types.output), *const lse = memory(d.lse, element::of_fp32);
  const tables t(d);
  int* const words = static_cast<int*>(place.take(static_cast<int64>(t.words().size() * sizeof(int))));
  giwa::attention_problem sizes{d.batch,    d.packed ? -1 : d.seq_q, d.packed ? -1 : d.seq_k, d.heads,
                                d.kv_heads, d.types.head_size,       d.types.head_size_v};
  sizes.element_bytes = giwa_test::attention::bytes_of(d.types.input);
  if (d.packed) sizes.rows_q = d.seq_q, sizes.rows_k = d.seq_k;
  const int64 workspace_bytes = d.has_workspace ? giwa::workspace_bytes(sizes) : 0;
  auto* const workspace = d.has_workspace ? static_cast<unsigned char*>(place.take(workspace_bytes)) : nullptr;
  if (d.has_workspace && workspace == nullptr) return {{}, d.describe() + ": the test has too little memory"};
  if (words == nullptr || lse == nullptr || o == nullptr || v == nullptr || k == nullptr || q == nullptr)
    return {{}, d.describe() + ": the test has too little memory"};
  place.poison();
  place.upload(words, t.words());
  const auto fill = [&](void* buffer, const placement& p, element e, value_kind values, uint64 stream) {
    int64 n = 1;
    for (const int64 x : p.extent) n *= x;
    place.for_all(n, fill_tensor{buffer, e, p, values, d.seed, stream});
  };
  fill(q, d.q, d.types.input, d.values, 0);
  fill(k, d.k, d.types.input, d.values, 1);
  fill(v, d.v, d.types.input, d.values, 2);
  if (d.is_ragged()) {
    const auto* const sequences = reinterpret_cast<const sequence_rows*>(words + t.sequences);
    const auto poison = [&](void* buffer, const placement& p, bool of_queries) {
      const poison_gaps f{buffer, bytes_of_element, p, sequences, d.batch, d.packed, of_queries};
      if (!f.shares_rows()) place.for_all(p.extent[0] * p.extent[1] * p.extent[2] * p.extent[3], f);
    };
    poison(q, d.q, true), poison(k, d.k, false), poison(v, d.v, false);
  }
  if (has_bias) fill(bias, d.bias, bias_type, value_kind::normal, 3);

  const bool segments = d.types.mask == mask_kind::segments, prefixes = d.types.mask == mask_kind::prefix;
  const auto numbers = [&](std::size_t at) { return reinterpret_cast<const float*>(words + at); };
  const call_arguments a{&d,
                         q,
                         k,
                         v,
                         bias,
                         o,
                         static_cast<float*>(lse),
                         workspace,
                         workspace_bytes,
                         numbers(t.slopes),
                         numbers(t.sinks),
                         words + t.q_offsets,
                         words + (d.shared_offsets ? t.q_offsets : t.k_offsets),
                         d.q_lengths.empty() ? nullptr : words + t.q_lengths,
                         d.k_lengths.empty() ? nullptr : words + (d.shared_lengths ? t.q_lengths : t.k_lengths),
                         d.k_index.empty() ? nullptr : words + t.k_index,
                         segments ? words + t.q_segments : nullptr,
                         segments ? words + t.k_segments : nullptr,
                         prefixes && d.prefix_per_sequence ? words + t.prefix_counts : nullptr,
                         t.segment_stride()};
  outcome result{call(a), ""};
  if (result.state.ok()) {
    spoil(a);
    const auto locate = [](void* buffer, const placement& p, element e) {
      located l{static_cast<char*>(buffer) + p.first * giwa_test::attention::bytes_of(e), {}};
      for (int i = 0; i < 4; ++i) l.stride[i] = p.extent[i] == 1 ? 0 : p.stride[i];
      return l;
    };
    located_problem p{};
    p.types = d.types;
    p.q = locate(q, d.q, d.types.input);
    p.k = locate(k, d.k, d.types.input);
    p.v = locate(v, d.v, d.types.input);
    p.o = locate(o, d.o, d.types.output);
    p.lse = locate(lse, d.lse, element::of_fp32);
    if (has_bias) p.bias = locate(bias, d.bias, bias_type);
    std::copy(d.bias.extent, d.bias.extent + 4, p.bias_extent);
    p.sequences = reinterpret_cast<const sequence_rows*>(words + t.sequences);
    p.slopes = a.slopes, p.sinks = a.sinks;
    p.q_segments = a.q_segments, p.k_segments = a.k_segments, p.prefix_counts = a.prefix_counts;
    p.segment_stride = a.segment_stride;
    p.batch = d.batch, p.heads = d.heads, p.kv_heads = d.kv_heads;
    p.packed = d.packed, p.has_lse = d.has_lse, p.has_sinks = d.has_sinks;
    p.bottom_right = !d.align.is_set() || d.align.is_bottom_right(), p.diagonal_offset = d.align.fixed_offset();
    p.scale = d.has_scale ? d.scale : 1 / std::sqrt(static_cast<float>(d.types.head_size));
    p.cap = d.cap, p.back = d.back, p.ahead = d.ahead, p.prefix_count = d.prefix_count;
    std::vector<row_finding> rows;
    result.failure = place.check(p, d.rows(), std::max<int64>(1, d.seq_k), rows);
    if (result.ok()) result.failure = judge(d, rows);
  } else {
    result.failure = std::string(giwa::format_status(result.state).c_str()) + "\n  " + d.describe();
  }
  // check_row() has put back what it read: whatever is left was written where nothing should be, or was not asked for.
  const int64 written =
      place.written(o, d.o.size * giwa_test::attention::bytes_of(d.types.output)) + place.written(lse, d.lse.size * 4);
  if (written != 0 && (result.ok() || !result.state.ok()))
    result.failure = std::to_string(written) + " bytes were written outside the output; " + d.describe();
  return result;
}
template <class Place, class Call>
outcome run_problem(Place& place, const attention_draw& d, const Call& call) {
  return run_problem(place, d, call, [](const call_arguments&) {});
}

}  // namespace giwa_test::attention

#endif
