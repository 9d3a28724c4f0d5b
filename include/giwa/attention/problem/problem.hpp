// SPDX-License-Identifier: MIT
// What an attention call is given: its options, the sizes of its problem, and the first rule that they break.
#ifndef GIWA_ATTENTION_PROBLEM_PROBLEM_HPP
#define GIWA_ATTENTION_PROBLEM_PROBLEM_HPP

#include <giwa/attention/problem/mask.hpp>
#include <giwa/attention/split_fp16/layout.hpp>
#include <giwa/attention/problem/score.hpp>
#include <giwa/numeric/overlap.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI {

/// What the scores are multiplied by: 1 / sqrt(head size) where nothing is said. Any finite number, 0 and negative ones too.
struct attention_scale {
  /// Whether a scale was given, and which.
  ///@{
  bool given = false;
  float value = 0;

  constexpr attention_scale() = default;
  template <class Number>
    requires(stdlib::is_arithmetic_v<Number>)
  GIWA_HOST_DEVICE constexpr attention_scale(Number scale) : given(true), value(static_cast<float>(scale)) {}
  ///@}
};

/// What most calls leave alone: `{.scale = 0.09f, .lse = lse}`.
struct attention_options {
  attention_scale scale{};  ///< 1 / sqrt(head size) where none is given
  /// (batch, heads, queries), or (1, heads, all queries) for packed sequences: the natural logarithm of the sum of e^score over
  /// the keys that count, -inf where there are none. Not written where it is empty.
  tensor_view<float, 3> lse{};
  /// (heads): a score without a key, which takes its share of the softmax and gives nothing. Counts in lse. (Xiao et al. 2023,
  /// "Efficient streaming language models with attention sinks".)
  tensor_view<const float, 1> sinks{};
  /// The diagonal of masks and score modifiers that leave theirs unset, and of the user's own.
  alignment align = alignment::unset;
  /// Scratch memory of workspace_bytes() bytes, aligned to 4, for fp32 to 16, for this call alone until it is done; or empty. With
  /// it blocks fetch their work where some has more than other (sm90 and a mask, or sequences), with the same bits, and fp32 is
  /// multiplied by tensor cores.
  tensor_view<unsigned char, 1> workspace{};
};

/// Sequences of many lengths one behind the other: sequence i has the rows [offsets[i], offsets[i + 1]) of the packed
/// tensors. The offsets lie where the kernel can read them and never fall; their values are read when it runs.
struct sequences {
  const int* q_offsets;  ///< (count + 1)
  const int* k_offsets;  ///< (count + 1)
  int64 count;           ///< of sequences
  int64 max_q;           ///< about the most queries of a sequence: decides how many blocks run, not what is right
};

/// The sizes of a problem, for supports() and workspace_bytes().
struct attention_problem {
  /// As the call has them.
  ///@{
  int64 batch = 0, seq_q = 0, seq_k = 0;  // lengths are -1 where only the device knows them
  int64 heads = 0, kv_heads = 0;
  int64 head_size = 0, head_size_v = 0;
  int64 element_bytes = 2;       ///< of q, k and v: 4 for fp32
  int64 rows_q = 0, rows_k = 0;  // of all sequences together, where lengths are -1
  ///@}
};

/// Limits of every path.
namespace attention_limits {
/// The most of each.
///@{
inline constexpr int64 head_size = 512;
inline constexpr int64 length = (int64{1} << 31) - 1 - 4096;  // a key's number, and a tile's end, are ints
inline constexpr int64 heads = (int64{1} << 31) - 1;
///@}
}  // namespace attention_limits

/// Which kernel answers.
enum class attention_path : int {
  simt,  // ordinary arithmetic in fp32: every GPU, and the host executor
  sm80,  // mma.sync and cp.async: capability 8.0 and newer
  sm90,  // wgmma and TMA, for layouts that TMA takes: capability 9.0, in a build for 90a
};

namespace detail {

template <class T>
concept attention_element = stdlib::same_as<T, fp16> || stdlib::same_as<T, bf16> || stdlib::same_as<T, fp32>;

template <class Queries, class Keys, class Values, class O>
GIWA_HOST_DEVICE constexpr void require_attention_types() {
  static_assert(stdlib::same_as<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Keys>> &&
                    stdlib::same_as<stdlib::remove_const_t<Queries>, stdlib::remove_const_t<Values>>,
                "giwa::attention_forward: q, k and v have one element type.");
  static_assert(attention_element<stdlib::remove_const_t<Queries>>,
                "giwa::attention_forward: elements of q, k and v are giwa::fp16, bf16 or fp32.");
  static_assert(!stdlib::is_const_v<O>, "giwa::attention_forward: o is written, and its elements are const.");
  static_assert(attention_element<O>, "giwa::attention_forward: elements of o are giwa::fp16, bf16 or fp32.");
}

template <int HeadSize, int HeadSizeV>
GIWA_HOST_DEVICE constexpr void require_head_sizes() {
  static_assert(HeadSize >= 1 && HeadSizeV >= 1 && HeadSize <= attention_limits::head_size &&
                    HeadSizeV <= attention_limits::head_size,
                "giwa::attention_forward: head sizes are 1 to 512.");
}

/// The views of a call with everything in four dimensions: (batch, length, heads, head size). Packed sequences have a batch
/// of 1 there, and sequences.count problems.
template <class T, class O>
struct attention_views {
  tensor_view<const T, 4> q, k, v;
  tensor_view<O, 4> o;
  sequences packed{nullptr, nullptr, 0, 0};

  GIWA_HOST_DEVICE constexpr bool is_packed() const { return packed.q_offsets != nullptr; }
  GIWA_HOST_DEVICE constexpr attention_problem problem() const {
    return {is_packed() ? packed.count : q.extent(0),
            is_packed() ? -1 : q.extent(1),
            is_packed() ? -1 : k.extent(1),
            q.extent(2),
            k.extent(2),
            q.extent(3),
            v.extent(3),
            int64{sizeof(T)},
            is_packed() ? q.extent(1) : 0,
            is_packed() ? k.extent(1) : 0};
  }
};

template <class T>
GIWA_HOST_DEVICE constexpr tensor_view<T, 4> as_packed(const tensor_view<T, 3>& v) {
  return {v.data(), {1, v.extent(0), v.extent(1), v.extent(2)}, {0, v.stride(0), v.stride(1), v.stride(2)}};
}

/// Where the last dimension's stride is not 1, and the dimension has more than one element.
template <class T>
GIWA_HOST_DEVICE constexpr status check_rows(const tensor_view<T, 4>& v, const char* argument) {
  if (const status s = v.check(argument); !s.ok()) return s;
  if (v.extent(3) > 1 && v.size() > 0 && v.stride(3) != 1)
    return status::invalid(argument, "the elements of a head lie side by side: the last stride is 1", bound::exactly, 1,
                           v.stride(3));
  if (v.extent(1) > attention_limits::length)
    return status::invalid(argument, "a sequence is too long", bound::at_most, attention_limits::length, v.extent(1));
  return {};
}

GIWA_HOST_DEVICE constexpr status check_sequences(const sequences& p) {
  if (p.count < 0)
    return status::invalid("sequences", "the number of sequences is negative", bound::at_least, 0, p.count);
  if (p.max_q < 0) return status::invalid("sequences", "the longest sequence is negative", bound::at_least, 0, p.max_q);
  if (p.q_offsets == nullptr) return status::invalid("q_offsets", "the pointer is null");
  if (p.k_offsets == nullptr) return status::invalid("k_offsets", "the pointer is null");
  return {};
}

template <class First, class Second, int Rank>
GIWA_HOST_DEVICE constexpr status check_same(const tensor_view<First, Rank>& v, const tensor_view<Second, Rank>& like,
                                             int d, const char* argument, const char* message) {
  if (v.extent(d) == like.extent(d)) return {};
  return status::invalid(argument, message, bound::exactly, like.extent(d), v.extent(d));
}

/// Whether two views may share memory: exactly where sizes and strides are alike, else by the range they lie in.
template <class First, int RankOfA, class Second, int RankOfB>
GIWA_HOST_DEVICE bool may_share(const tensor_view<First, RankOfA>& a, const tensor_view<Second, RankOfB>& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const byte_range x = range_of(a), y = range_of(b);
  if (x.last <= y.first || y.last <= x.first) return false;
  if constexpr (RankOfA == RankOfB)
    if (a.extents() == b.extents()) return overlap(a, b);
  return true;
}

/// The first rule of sizes that a problem breaks, on a GPU of this compute capability.
GIWA_HOST_DEVICE constexpr status check_sizes(const attention_problem& p, int capability) {
  struct rule {
    int64 value, least, most;
    const char *argument, *message;
  };
  constexpr int64 any = (int64{1} << 31) - 1;
  const rule rules[] = {
      {p.head_size, 1, attention_limits::head_size, "q", "the head size is out of range"},
      {p.head_size_v, 1, attention_limits::head_size, "v", "the head size is out of range"},
      {p.batch, 0, any, "q", "the number of sequences is out of range"},
      {p.seq_q, -1, attention_limits::length, "q", "a length is out of range"},
      {p.seq_k, -1, attention_limits::length, "k", "a length is out of range"},
      {p.heads, 0, attention_limits::heads, "q", "the number of heads is out of range"},
      {p.kv_heads, 0, attention_limits::heads, "k", "the number of heads is out of range"},
      {p.rows_q, 0, max_int64, "q", "the number of rows of all sequences is negative"},
      {p.rows_k, 0, max_int64, "k", "the number of rows of all sequences is negative"},
  };
  for (const rule& r : rules) {
    if (r.value < r.least) return status::invalid(r.argument, r.message, bound::at_least, r.least, r.value);
    if (r.value > r.most) return status::invalid(r.argument, r.message, bound::at_most, r.most, r.value);
  }
  if (p.element_bytes != 2 && p.element_bytes != 4)
    return status::invalid("q", "an element has 2 or 4 bytes", bound::exactly, p.element_bytes < 4 ? 2 : 4,
                           p.element_bytes);
  if (p.heads > 0 && p.kv_heads == 0)
    return status::invalid("k", "there are queries' heads, but none of keys", bound::at_least, 1, 0);
  if (p.kv_heads > 0 && p.heads % p.kv_heads != 0)
    return status::invalid("k", "the heads of q are not a multiple of the heads of k and v");
  if (capability != 0 && capability < 75)
    return {status_code::not_supported,
            bound::at_least,
            0,
            "giwa needs compute capability 7.5 or newer",
            "capability",
            75,
            capability};
  return {};
}

}  // namespace detail

/// Bytes of workspace that a call can use: a counter of work, and where fp32 is multiplied by tensor cores (head sizes up to 256)
/// its pieces, as much as q, k and v themselves with head sizes rounded up to 64.
GIWA_HOST_DEVICE constexpr int64 workspace_bytes(const attention_problem& p) {
  if (p.element_bytes != 4 || p.head_size > 256 || p.head_size_v > 256) return sizeof(int);
  if (p.batch < 0 || p.heads < 0 || p.kv_heads < 0 || p.rows_q < 0 || p.rows_k < 0)
    return sizeof(int);  // no problem at all
  const auto rows = [&](int64 length, int64 packed) {
    return length < 0 ? packed : product_overflows(p.batch, length) ? max_int64 : p.batch * length;
  };
  return detail::attention_pieces::bytes(p.batch, rows(p.seq_q, p.rows_q), rows(p.seq_k, p.rows_k), p.heads, p.kv_heads,
                                         p.head_size, p.head_size_v);
}

/// Whether a problem's sizes are ones that attention_forward() takes, on a GPU of this compute capability (90 for 9.0; 0 for the
/// CPU) whose code the program holds, and which kernel answers at best with so many bytes of workspace: fp32 without
/// workspace_bytes() of them is not multiplied by tensor cores. Needs no GPU. Errors: the first rule that the sizes break.
GIWA_HOST_DEVICE constexpr result<attention_path> supports(const attention_problem& p, int capability,
                                                           int64 workspace = max_int64) {
  if (const status s = detail::check_sizes(p, capability); !s.ok()) return {attention_path::simt, s};
  const bool narrow = p.head_size <= 256 && p.head_size_v <= 256, in_pieces = p.element_bytes == 4;
  if (capability < 80 || (in_pieces && (!narrow || workspace < workspace_bytes(p)))) return {attention_path::simt, {}};
  return {capability == 90 && narrow ? attention_path::sm90 : attention_path::sm80, {}};
}

namespace detail {

/// The diagonal's alignment of a call, or why there is none.
template <class Mask, class Score>
GIWA_HOST_DEVICE constexpr result<alignment> alignment_of(const Mask& mask, const Score& score, alignment given,
                                                          bool lengths_agree) {
  const alignment_wish own = wish_of(mask).both(wish_of(score)), all = own.both({false, false, given});
  if (all.conflict)
    return {{},
            status::invalid("mask",
                            "parts of the mask, the score modifier and the options align the diagonal differently")};
  if (own.needed && all.align == alignment::unset && !lengths_agree)
    return {{},
            status::invalid("mask",
                            "where there are not as many queries as keys, say which diagonal is meant: "
                            "alignment::top_left or alignment::bottom_right")};
  // The user's own functions are not asked what they need: they get what FlashAttention and PyTorch's decoding mean.
  return {all.align == alignment::unset ? alignment::bottom_right : all.align, {}};
}

/// The first rule that a call breaks, pointers aside. Everything here is known without touching memory.
template <class T, class O, class Mask, class Score>
GIWA_HOST_DEVICE status check_attention(const attention_views<T, O>& a, const Mask& mask, const Score& score,
                                        const attention_options& options, int64 head_size, int64 head_size_v) {
  const attention_problem p = a.problem();
  status s;
  const auto broken = [&](const status& next) {
    s = next;
    return !s.ok();
  };
  if (broken(check_rows(a.q, "q")) || broken(check_rows(a.k, "k")) || broken(check_rows(a.v, "v")) ||
      broken(check_rows(a.o, "o")))
    return s;
  if (a.q.extent(3) != head_size)
    return status::invalid("q", "the head size is not the one that this call was compiled for", bound::exactly,
                           head_size, a.q.extent(3));
  if (a.v.extent(3) != head_size_v)
    return status::invalid("v", "the head size is not the one that this call was compiled for", bound::exactly,
                           head_size_v, a.v.extent(3));
  if (broken(check_same(a.k, a.q, 0, "k", "k has another number of sequences than q")) ||
      broken(check_same(a.v, a.k, 0, "v", "v has another number of sequences than k")) ||
      broken(check_same(a.o, a.q, 0, "o", "o has another number of sequences than q")) ||
      broken(check_same(a.v, a.k, 1, "v", "v has another length than k")) ||
      broken(check_same(a.o, a.q, 1, "o", "o has another length than q")) ||
      broken(check_same(a.v, a.k, 2, "v", "v has another number of heads than k")) ||
      broken(check_same(a.o, a.q, 2, "o", "o has another number of heads than q")) ||
      broken(check_same(a.k, a.q, 3, "k", "k has another head size than q")) ||
      broken(check_same(a.o, a.v, 3, "o", "o has another head size than v")))
    return s;
  if (broken(check_sizes(p, 0)) || broken(check_written(a.o, "o"))) return s;
  if (constexpr float most = 1e38f;
      options.scale.given && !(options.scale.value >= -most && options.scale.value <= most))
    return status::invalid("scale", "the scale is no number, or beyond 1e38");

  const auto& lse = options.lse;
  if (lse.data() != nullptr || lse.size() != 0) {
    if (broken(lse.check("lse")) || broken(check_written(lse, "lse"))) return s;
    const int64 sizes[3] = {a.q.extent(0), p.heads, a.q.extent(1)};
    for (int d = 0; d < 3; ++d)
      if (lse.extent(d) != sizes[d])
        return status::invalid("lse", "a size is not that of (batch, heads, queries)", bound::exactly, sizes[d],
                               lse.extent(d));
    if (may_share(lse, a.o)) return status::invalid("lse", "lse and o overlap");
    if (may_share(a.q, lse) || may_share(a.k, lse) || may_share(a.v, lse))
      return status::invalid("lse", "lse overlaps an input");
  }
  if (const auto& w = options.workspace; w.extent(0) != 0) {
    if (broken(w.check("workspace"))) return s;
    if (w.size() < workspace_bytes(p))
      return status::invalid("workspace", "it is smaller than workspace_bytes() says", bound::at_least,
                             workspace_bytes(p), w.size());
    if (w.stride(0) != 1 || reinterpret_cast<uint64>(w.data()) % alignof(int) != 0)
      return status::invalid("workspace", "its bytes lie side by side, from a multiple of 4 on");
    if (p.element_bytes == 4 && reinterpret_cast<uint64>(w.data()) % attention_pieces::alignment != 0)
      return status::invalid("workspace", "for fp32 it begins at a multiple of 16");
    if (may_share(w, a.o) || may_share(w, lse) || may_share(a.q, w) || may_share(a.k, w) || may_share(a.v, w))
      return status::invalid("workspace", "it overlaps a tensor");
  }
  if (options.sinks.data() != nullptr || options.sinks.size() != 0) {
    if (broken(options.sinks.check("sinks"))) return s;
    if (may_share(options.sinks, a.o) || may_share(options.sinks, lse) || may_share(options.sinks, options.workspace))
      return status::invalid("sinks", "the sinks overlap an output or the workspace");
    if (options.sinks.extent(0) != p.heads)
      return status::invalid("sinks", "there is one sink for each head of q", bound::exactly, p.heads,
                             options.sinks.extent(0));
  }
  if (may_share(a.q, a.o) || may_share(a.k, a.o) || may_share(a.v, a.o))
    return status::invalid("o", "the output overlaps an input");
  if (a.is_packed()) {
    const auto written = [&](const int* offsets) {
      const tensor_view<const int, 1> v(offsets, {a.packed.count + 1});
      return may_share(v, a.o) || may_share(v, lse) || may_share(v, options.workspace);
    };
    if (written(a.packed.q_offsets)) return status::invalid("q_offsets", "the offsets overlap what the call writes");
    if (written(a.packed.k_offsets)) return status::invalid("k_offsets", "the offsets overlap what the call writes");
  }
  if (a.is_packed() && a.packed.q_offsets == a.packed.k_offsets && a.q.extent(1) != a.k.extent(1))
    return status::invalid("k", "with the same offsets k has as many rows as q", bound::exactly, a.q.extent(1),
                           a.k.extent(1));
  const attention_sizes sizes{p.batch, p.heads, p.seq_q, p.seq_k};
  if (broken(check_both(mask, score, sizes))) return s;
  const bool agree = a.is_packed() ? a.packed.q_offsets == a.packed.k_offsets : p.seq_q == p.seq_k;
  return alignment_of(mask, score, options.align, agree).state;
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
