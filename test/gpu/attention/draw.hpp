// SPDX-License-Identifier: MIT
// A random attention problem: sizes, memory layouts, mask, score modifier and options, all from one seed.
#ifndef GIWA_TEST_GPU_ATTENTION_DRAW_HPP
#define GIWA_TEST_GPU_ATTENTION_DRAW_HPP

#include <giwa/attention/problem/coordinate.hpp>
#include <giwa/numeric/precision.hpp>

#include <algorithm>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/random.hpp"

namespace giwa_test::attention {

using giwa::bf16;
using giwa::fp16;

enum class element : int { of_fp32, of_fp16, of_bf16 };
template <class T>
inline constexpr element element_of = std::is_same_v<T, float>  ? element::of_fp32
                                      : std::is_same_v<T, fp16> ? element::of_fp16
                                                                : element::of_bf16;
inline int bytes_of(element e) { return e == element::of_fp32 ? 4 : 2; }

/// window is keys_back & keys_ahead, prefix is prefix | sliding_window, segments is segments & causal; scattered is a user's mask
/// that gives no hints and leaves some queries without any key.
enum class mask_kind : int { full, causal, window, prefix, segments, scattered };
/// capped_bias is a softcap, then a bias in fp32; bias has the elements of the inputs.
enum class score_kind : int { plain, softcap, alibi, bias, capped_bias };
enum class value_kind : int { even, normal, large, constant, tiny, sparse, outliers, poisoned, rows };

/// What is compiled in.
struct compiled_types {
  element input, output;
  int head_size, head_size_v;
  mask_kind mask;
  score_kind score;
};

/// How a tensor of four dimensions lies in a buffer of `size` elements.
struct placement {
  int64 extent[4], stride[4];
  int64 first;  // where (0, 0, 0, 0) is
  int64 size;
};

/// Rows of one sequence in the tensors.
struct sequence_rows {
  int64 q_begin, q_length, k_begin, k_length;
  int64 first_row;  // rows (a query of a head) before this sequence's, in the order (sequence, head, query)
  int64 k_stored;   // where its keys are in the batch of k
};

struct attention_draw {
  uint64 seed;
  compiled_types types;
  bool packed;
  bool shared_offsets;                               // packed: queries and keys have the very same offsets
  int64 batch, seq_q, seq_k, heads, kv_heads;        // packed: lengths of the tensors
  int64 max_q;                                       // packed: what the call is told
  int64 k_batch;                                     // the batch of k and v
  std::vector<int64> q_offsets, k_offsets;           // packed: what the call is told
  std::vector<int64> q_lengths, k_lengths, k_index;  // what the call is told, or empty
  bool shared_lengths;                               // queries and keys have the very same lengths
  std::vector<sequence_rows> sequences;
  placement q, k, v, o, lse, bias;
  bool has_lse, has_sinks, has_scale, has_workspace;
  float scale;
  giwa::alignment align;
  bool align_in_mask;
  int back, ahead, prefix_count, segment_length;
  bool prefix_per_sequence, ascending;
  float cap;
  value_kind values;

  int64 rows() const { return sequences.empty() ? 0 : sequences.back().first_row + heads * sequences.back().q_length; }
  int64 scores() const {  // of a head of the longest sequence
    int64 most = 0;
    for (const auto& s : sequences) most = std::max(most, s.q_length * s.k_length);
    return most;
  }
  bool speaks_of_diagonal() const {
    return (types.mask != mask_kind::full && types.mask != mask_kind::scattered) || types.score == score_kind::alibi;
  }
  bool is_ragged() const { return !q_lengths.empty() || !k_lengths.empty() || !k_index.empty(); }
  /// diagonal - query of a sequence.
  int64 offset_of(const sequence_rows& s) const {
    return align.is_set() && !align.is_bottom_right() ? align.fixed_offset() : s.k_length - s.q_length;
  }
  std::string describe() const;
};

inline std::string attention_draw::describe() const {
  constexpr const char* elements[] = {"fp32", "fp16", "bf16"};
  constexpr const char* masks[] = {"full", "causal", "window", "prefix", "segments", "scattered"};
  constexpr const char* modifiers[] = {"plain", "softcap", "alibi", "bias", "capped_bias"};
  constexpr const char* kinds[] = {"even",   "normal",   "large",    "constant", "tiny",
                                   "sparse", "outliers", "poisoned", "rows"};
  const auto word = [](auto& list, auto which) { return list[static_cast<int>(which)]; };
  std::ostringstream s;
  s << "seed " << seed << ": " << word(elements, types.input) << "->" << word(elements, types.output) << " head size "
    << types.head_size << '/' << types.head_size_v << " mask " << word(masks, types.mask) << " score "
    << word(modifiers, types.score) << " batch " << batch << " heads " << heads << '/' << kv_heads << " queries "
    << seq_q << " keys " << seq_k << " align "
    << (!align.is_set()           ? "unset"
        : align.is_bottom_right() ? "bottom_right"
                                  : "offset " + std::to_string(align.fixed_offset()))
    << (align_in_mask ? " (in the mask)" : "") << " values " << word(kinds, values);
  if (has_scale) s << " scale " << scale;
  if (has_sinks) s << " sinks";
  if (has_workspace) s << " workspace";
  if (has_lse) s << " lse";
  if (types.mask == mask_kind::window || types.mask == mask_kind::prefix) s << " back " << back << " ahead " << ahead;
  if (types.mask == mask_kind::prefix) s << " prefix " << prefix_count << (prefix_per_sequence ? " each" : "");
  if (types.mask == mask_kind::segments) s << " segments of " << segment_length << (ascending ? " ascending" : "");
  if (types.score == score_kind::softcap || types.score == score_kind::capped_bias) s << " cap " << cap;
  for (const auto& [name, p] : {std::pair{"q", &q}, std::pair{"k", &k}, std::pair{"v", &v}, std::pair{"o", &o}})
    s << ' ' << name << " strides " << p->stride[0] << ',' << p->stride[1] << ',' << p->stride[2] << " from "
      << p->first % 8;
  if (packed) s << " packed, max_q " << max_q << ':';
  for (const auto& r : sequences)
    if (packed || is_ragged()) s << ' ' << r.q_length << 'x' << r.k_length;
  for (const auto& [name, list] :
       {std::pair{" q_lengths", &q_lengths}, std::pair{" k_lengths", &k_lengths}, std::pair{" k_index", &k_index}})
    for (std::size_t i = 0; i < list->size(); ++i) s << (i == 0 ? name : "") << ' ' << (*list)[i];
  return s.str();
}

/// Whether the kernel of Hopper takes a problem of 16-bit elements: TMA knows where rows of whole 16 bytes lie.
inline bool for_hopper(const attention_draw& d) {
  const auto takes = [](const placement& p) {
    bool right = p.first % 8 == 0;
    for (int i = 0; i < 3; ++i) right = right && (p.extent[i] == 1 || (p.stride[i] > 0 && p.stride[i] % 8 == 0));
    for (const int64 n : p.extent) right = right && n > 0;
    return right;
  };
  return d.types.input != element::of_fp32 && takes(d.q) && takes(d.k) && takes(d.v);
}

/// How large a problem may be, and what is not left to chance.
struct draw_limits {
  int64 work = int64{1} << 25;  // multiplications of both products
  int64 seq_q = -1, seq_k = -1, ratio = -1;
  bool plain_layout = false;  // contiguous, aligned
};

class drawing {
 public:
  explicit drawing(uint64 seed) : random_(seed) {}
  bool one_in(int64 n) { return random_.below(n) == 0; }
  int64 between(int64 first, int64 last) { return first + random_.below(last - first + 1); }
  template <class Value>
  Value of(std::initializer_list<Value> list) {
    return list.begin()[random_.below(static_cast<int64>(list.size()))];
  }

  /// A length with which kernels go wrong: about a tile's, or anything up to `most`.
  int64 length(int64 most) {
    const int64 edge = of<int64>({1, 2, 16, 32, 64, 96, 128, 160, 176, 192, 256, 320, 512, 1024}) + between(-1, 1);
    const int64 n = one_in(2) ? edge : between(1, most);
    return n < 1 ? 1 : n > most ? most : n;
  }

  /// Any layout of these extents that giwa takes, or any that TMA takes of 16-bit elements too; of an output no two
  /// elements share a place.
  placement place(std::initializer_list<int64> extents, bool input, bool plain, bool last_is_dense = true,
                  bool for_tma = false) {
    placement p{};
    std::copy(extents.begin(), extents.end(), p.extent);
    int order[3] = {2, 1, 0};  // from the innermost
    if (!plain)
      for (int i = 2; i > 0; --i)
        if (one_in(2)) std::swap(order[i], order[random_.below(i + 1)]);
    int64 next = p.extent[3] < 1 ? 1 : p.extent[3];
    if (for_tma || (!plain && one_in(2))) next = giwa::round_up(next, 8);
    if (!plain && one_in(4)) next += for_tma ? 8 * between(1, 5) : between(1, 5);
    p.stride[3] = p.extent[3] == 1 && last_is_dense && !plain && one_in(3) ? 77 : 1;
    for (const int d : order) {
      p.stride[d] = next;
      next *= p.extent[d] < 1 ? 1 : p.extent[d];
      if (!plain && one_in(4)) next += of<int64>({8, 16, 64, for_tma ? 24 : 1, for_tma ? 40 : 3});
    }
    p.first = 64;  // elements of poison on both sides
    if (!plain && one_in(3)) p.first += for_tma ? 8 * between(0, 7) : between(0, 7);
    int64 reach = p.extent[3] - 1;
    for (int d = 0; d < 3; ++d) {
      if (plain || (for_tma && p.extent[d] != 1)) {
        reach += (p.extent[d] - 1) * p.stride[d];
      } else if (p.extent[d] == 1) {
        if (one_in(3)) p.stride[d] = between(-(int64{1} << 40), int64{1} << 40);
      } else if (input && one_in(12)) {
        p.stride[d] = 0;
      } else {
        reach += (p.extent[d] - 1) * p.stride[d];
        if (!one_in(12)) continue;
        p.first += (p.extent[d] - 1) * p.stride[d];
        p.stride[d] = -p.stride[d];
      }
    }
    p.size = 64 + 8 + (reach < 0 ? 0 : reach) + 1 + 64;
    return p;
  }

  attention_draw problem(uint64 seed, const compiled_types& types, const draw_limits& limits) {
    attention_draw d{};
    d.seed = seed;
    d.types = types;
    const bool fixed = limits.seq_q >= 0, plain = limits.plain_layout;
    lengths(d, limits);
    d.packed = !fixed && one_in(5);
    d.batch = one_in(2) ? 1 : between(1, 4);
    d.kv_heads = one_in(2) ? 1 : between(1, 3);
    d.heads = d.kv_heads * (limits.ratio > 0 ? limits.ratio : of<int64>({1, 1, 1, 2, 3, 4, 5, 7, 8}));
    if (!fixed && one_in(60)) (one_in(2) ? d.batch : one_in(2) ? d.seq_q : d.seq_k) = 0;
    const int64 size = types.head_size + types.head_size_v;
    const auto some = [](int64 n) { return n < 1 ? 1 : n; };  // what is empty has strides, too
    const auto too_much = [&] { return some(d.batch) * d.heads * some(d.seq_q) * some(d.seq_k) * size > limits.work; };
    if (too_much() && !fixed) d.batch = 1;
    if (too_much()) d.kv_heads = 1, d.heads = limits.ratio > 0 ? limits.ratio : 1;
    while (too_much() && !fixed) (d.seq_q > d.seq_k ? d.seq_q : d.seq_k) /= 2;

    rows(d);
    options(d);
    if (!fixed) later_options(d);
    const int64 stored = d.packed ? 1 : d.batch;
    const bool tma = !one_in(3);
    d.q = place({stored, d.seq_q, d.heads, types.head_size}, true, plain, true, tma);
    const int64 k_stored = d.packed ? 1 : d.k_batch;
    d.k = place({k_stored, d.seq_k, d.kv_heads, types.head_size}, true, plain, true, tma);
    d.v = place({k_stored, d.seq_k, d.kv_heads, types.head_size_v}, true, plain, true, tma);
    d.o = place({stored, d.seq_q, d.heads, types.head_size_v}, false, plain, true, tma && one_in(2));
    d.lse = place({stored, d.heads, d.seq_q, 1}, false, plain, false);
    const auto one_or = [&](int64 n) { return d.packed || one_in(2) ? 1 : n; };
    d.bias = place({one_or(d.batch), one_in(2) ? 1 : d.heads, one_or(d.seq_q), one_or(d.seq_k)}, true, plain, false);
    return d;
  }

 private:
  // Half of the problems have 2^14 scores a head and more.
  void lengths(attention_draw& d, const draw_limits& limits) {
    d.seq_q = limits.seq_q, d.seq_k = limits.seq_k;
    if (limits.seq_q >= 0) return;
    constexpr int64 many = 1 << 14;
    if (one_in(3)) {
      d.seq_q = length(200);
      d.seq_k = one_in(3) ? d.seq_q : length(200);
    } else if (one_in(12)) {
      d.seq_q = between(1, 4);
      d.seq_k = between(many / d.seq_q, many / d.seq_q + 3000);
    } else {
      do {
        d.seq_q = length(1100);
        d.seq_k = one_in(4) ? d.seq_q : length(1100);
      } while (d.seq_q * d.seq_k < many + many / 8);
    }
  }

  void rows(attention_draw& d) {
    d.max_q = d.seq_q;
    d.k_batch = d.batch;
    d.shared_offsets = d.packed && d.seq_q == d.seq_k && one_in(2);
    if (!d.packed) {
      for (int64 b = 0; b < d.batch; ++b) d.sequences.push_back({0, d.seq_q, 0, d.seq_k, b * d.heads * d.seq_q, b});
      return;
    }
    // The first sequence has the lengths drawn, the others any; rows that belong to none lie before and behind.
    int64 q_next = one_in(2) ? between(0, 9) : 0, k_next = one_in(2) ? between(0, 9) : 0, row = 0;
    if (d.shared_offsets) k_next = q_next;
    for (int64 b = 0; b < d.batch; ++b) {
      sequence_rows r{q_next, d.seq_q, k_next, d.seq_k, row, 0};
      if (b > 0) r.q_length = one_in(4) ? 0 : between(0, d.seq_q), r.k_length = one_in(4) ? 0 : between(0, d.seq_k);
      if (d.shared_offsets) r.k_length = r.q_length;
      q_next += r.q_length;
      k_next += r.k_length;
      row += d.heads * r.q_length;
      d.sequences.push_back(r);
    }
    d.max_q = one_in(4) ? between(0, d.seq_q) : one_in(4) ? d.seq_q + between(0, 1000) : d.seq_q;
    const int64 behind = between(0, 9);
    d.seq_q = q_next + behind;
    d.seq_k = d.shared_offsets ? d.seq_q : k_next + between(0, 9);
    if (d.batch == 0) d.seq_q = d.seq_k = 0;  // rows need a sequence
  }

  void options(attention_draw& d) {
    d.has_lse = !one_in(3);
    d.has_sinks = one_in(5);
    d.has_scale = one_in(3);
    d.scale = of<float>({0.125f, 0.09f, 1.0f / 3, 0.0f, -0.1f, 0.01f});
    const bool agree = d.packed ? d.shared_offsets : d.seq_q == d.seq_k;
    d.align = of({giwa::alignment::top_left, giwa::alignment::bottom_right, giwa::alignment::bottom_right});
    if ((agree || !d.speaks_of_diagonal()) && one_in(2)) d.align = giwa::alignment::unset;
    d.align_in_mask = one_in(2) && d.speaks_of_diagonal();
    const int64 keys = d.seq_k < 1 ? 1 : d.seq_k;
    d.back = static_cast<int>(one_in(6) ? 0 : one_in(6) ? 0x7fffffff : between(0, one_in(2) ? 300 : keys));
    d.ahead = static_cast<int>(one_in(3) ? 0 : one_in(6) ? 0x7fffffff : between(0, one_in(2) ? 200 : keys));
    d.prefix_count = static_cast<int>(one_in(6) ? 0 : between(0, one_in(2) ? 100 : keys + 5));
    d.prefix_per_sequence = one_in(2);
    d.segment_length = static_cast<int>(one_in(3) ? between(1, 20) : between(20, 400));
    d.ascending = !one_in(4);
    d.cap = of<float>({30.0f, 50.0f, 5.0f});
    d.values =
        of({value_kind::even, value_kind::normal, value_kind::normal, value_kind::normal, value_kind::large,
            value_kind::constant, value_kind::tiny, value_kind::sparse, value_kind::outliers, value_kind::poisoned});
    d.has_workspace = !one_in(4);
    if (d.types.input == element::of_fp32 && one_in(6)) d.values = value_kind::rows;
  }

  // Options that came later, from numbers of their own: the rest of a seed's problem stays what it was.
  void later_options(attention_draw& d) {
    drawing other(d.seed ^ 0x5deece66dull);
    if (d.speaks_of_diagonal() && other.one_in(5))
      d.align = giwa::alignment::offset(other.between(-d.seq_q - 70, d.seq_k + 70));
    for (const auto& s : d.sequences) d.q_offsets.push_back(s.q_begin), d.k_offsets.push_back(s.k_begin);
    const auto end = [](int64 begin, int64 length) { return begin + length; };
    d.q_offsets.push_back(d.sequences.empty() ? 0 : end(d.sequences.back().q_begin, d.sequences.back().q_length));
    d.k_offsets.push_back(d.sequences.empty() ? 0 : end(d.sequences.back().k_begin, d.sequences.back().k_length));
    if (d.batch > 0 && other.one_in(4)) other.ragged(d);
  }

  // Lengths of their own, some of them out of range, and keys that other sequences may read too.
  void ragged(attention_draw& d) {
    const bool agree = d.packed ? d.shared_offsets : d.seq_q == d.seq_k;
    const auto said = [&](int64 most) {
      return one_in(8) ? most + between(0, 5) : one_in(16) ? -3 : between(one_in(4) ? 0 : most - most / 8, most);
    };
    const auto used = [](int64 length, int64 most) { return length < 0 ? 0 : length > most ? most : length; };
    const std::vector<sequence_rows> rows = d.sequences;
    if (one_in(3)) {
      if (!d.packed) d.k_batch = between(1, d.batch + 2);
      for (sequence_rows& s : d.sequences) {
        const int64 n = one_in(10) ? (one_in(2) ? -1 : d.k_batch) : between(0, d.k_batch - 1);
        const bool exists = n >= 0 && n < d.k_batch;
        const auto& of = rows[static_cast<std::size_t>(exists && d.packed ? n : 0)];
        d.k_index.push_back(n);
        s.k_stored = d.packed || !exists ? 0 : n;
        s.k_begin = of.k_begin;
        s.k_length = exists ? (d.packed ? of.k_length : d.seq_k) : 0;
      }
    }
    d.shared_lengths = agree && d.k_index.empty() && one_in(3);
    if (d.shared_lengths || one_in(2))
      for (sequence_rows& s : d.sequences) {
        d.q_lengths.push_back(said(s.q_length));
        s.q_length = used(d.q_lengths.back(), s.q_length);
      }
    if (d.shared_lengths) d.k_lengths = d.q_lengths;
    if (!d.shared_lengths && !one_in(4))
      for (const sequence_rows& s : d.sequences) d.k_lengths.push_back(said(s.k_length));
    if (!d.k_lengths.empty())
      for (std::size_t b = 0; b < d.sequences.size(); ++b)
        d.sequences[b].k_length = used(d.k_lengths[b], d.sequences[b].k_length);
    int64 row = 0;
    for (sequence_rows& s : d.sequences) s.first_row = row, row += d.heads * s.q_length;
    if (!d.align.is_set() && d.speaks_of_diagonal() && !(agree && d.shared_lengths))
      d.align = giwa::alignment::bottom_right;
  }

  random_sequence random_;
};

/// The problem of a seed: the same on every machine.
inline attention_draw draw_problem(uint64 seed, const compiled_types& types, const draw_limits& limits = {}) {
  return drawing(seed).problem(seed, types, limits);
}

}  // namespace giwa_test::attention

#endif
