// SPDX-License-Identifier: MIT
// The memory that an attention call needs, and smaller calls that fit if it does not.
#ifndef GIWA_ATTENTION_PROBLEM_MEMORY_ADVICE_HPP
#define GIWA_ATTENTION_PROBLEM_MEMORY_ADVICE_HPP

#include <giwa/attention/problem/problem.hpp>
#include <giwa/base/assert.hpp>
#include <giwa/device/memory.hpp>

#include <cstdio>

namespace giwa::inline GIWA_ABI {

/// The bytes of the tensors of a call, each contiguous, with o of the element type of q, or of 16 bits where q is e4m3. A size that overflows is
/// max_int64.
struct attention_bytes {
  /// Of each tensor.
  ///@{
  int64 q = 0, k = 0, v = 0, o = 0;
  int64 lse = 0;        ///< 0 if the call does not ask for it
  int64 workspace = 0;  ///< workspace_bytes()

  constexpr int64 all() const {
    int64 sum = 0;
    for (const int64 x : {q, k, v, o, lse, workspace}) sum = detail::saturating_sum(sum, x);
    return sum;
  }
  ///@}
};

namespace detail {

/// The problem with a part of its batch. Packed sequences are assumed to be equally long.
constexpr attention_problem with_batch(attention_problem p, int64 batch) {
  if (batch == p.batch) return p;     // exact, even if the sequences are not equally long
  const auto rows = [&](int64 all) {  // a part has no more rows than the whole
    const int64 some = saturating_product(ceil_div(all, p.batch), batch);
    return some < all ? some : all;
  };
  if (p.seq_q < 0 && p.batch > 0) p.rows_q = rows(p.rows_q);
  if (p.seq_k < 0 && p.batch > 0) p.rows_k = rows(p.rows_k);
  p.batch = batch;
  return p;
}

}  // namespace detail

/// Returns the bytes of a call of attention_forward on such a problem. For packed sequences, those of all rows.
constexpr attention_bytes bytes_of(const attention_problem& p, bool with_lse = false) {
  const auto tensor = [&](int64 length, int64 packed, int64 heads, int64 size, int64 element) {
    const int64 rows = length < 0 ? packed : detail::saturating_product(p.batch, length);
    return detail::saturating_product(detail::saturating_product(detail::saturating_product(rows, heads), size),
                                      element);
  };
  const int64 output_bytes = p.element_bytes < 2 ? 2 : p.element_bytes;
  return {tensor(p.seq_q, p.rows_q, p.heads, p.head_size, p.element_bytes),
          tensor(p.seq_k, p.rows_k, p.kv_heads, p.head_size, p.element_bytes),
          tensor(p.seq_k, p.rows_k, p.kv_heads, p.head_size_v, p.element_bytes),
          tensor(p.seq_q, p.rows_q, p.heads, p.head_size_v, output_bytes),
          with_lse ? tensor(p.seq_q, p.rows_q, p.heads, 1, 4) : 0,
          workspace_bytes(p)};
}

/// Returns the bytes that are needed at once if the keys of each sequence are split into `parts`, which the GPU
/// processes one after the other: q; k, v and workspace of one part; and o and lse twice, for the parts so far and for
/// the one that merge_attention() adds.
constexpr attention_bytes bytes_split_along_keys(attention_problem p, int64 parts) {
  GIWA_ASSERT(parts >= 1, "there is at least one part");
  int64& keys = p.seq_k < 0 ? p.rows_k : p.seq_k;
  keys = ceil_div(keys, parts);
  attention_bytes b = bytes_of(p, true);
  b.o = detail::saturating_product(b.o, 2);
  b.lse = detail::saturating_product(b.lse, 2);
  return b;
}

/// The result of memory_advice(); sizes are in bytes.
struct attention_advice {
  attention_problem asked{};  ///< the problem
  /// Of the GPU.
  ///@{
  int64 free = 0, total = 0;
  ///@}
  attention_bytes whole{};  ///< as asked, without lse
  /// The same with 16-bit elements; as asked if they are that already.
  attention_bytes half_precision{};
  /// The larger half of the batch, and the larger half of the keys, see bytes_split_along_keys(). As asked for a batch
  /// of one or for one key.
  ///@{
  attention_bytes half_batch{}, half_keys{};
  ///@}
  int64 batch = 0;  ///< the largest batch that fits, 0 if none does
  int64 key_parts =
      0;  ///< the fewest parts of the keys that fit, 1 if no split is needed, 0 if none fits or sequences are packed

  /// Whether so many bytes are free.
  constexpr bool fits(const attention_bytes& b) const { return b.all() <= free; }
};

/// Computes what a call needs, and which smaller calls fit. It is arithmetic only: no GPU is used. Lengths of packed
/// sequences are not known here: they are assumed to be equal, and a split along the keys is not considered. Errors: sizes
/// that attention_forward() does not take, a negative `free`.
/// Parameters:
///   - p: the sizes of the call
///   - free, total: bytes of the GPU's memory
constexpr result<attention_advice> memory_advice(const attention_problem& p, int64 free, int64 total) {
  result<attention_advice> r;
  r.state = detail::check_sizes(p, 0);
  if (r.ok() && free < 0) r.state = status::invalid("free", "sizes must not be negative", bound::at_least, 0, free);
  if (!r.ok()) return r;
  attention_advice& a = r.value;
  a.asked = p;
  a.free = free;
  a.total = total;
  a.whole = bytes_of(p);
  attention_problem narrow = p;
  if (p.element_bytes > 2) narrow.element_bytes = 2;
  a.half_precision = bytes_of(narrow);
  a.half_batch = bytes_of(detail::with_batch(p, ceil_div(p.batch, 2)));
  a.half_keys = p.seq_k > 1 ? bytes_split_along_keys(p, 2) : a.whole;
  // The largest number in [0, most] for which `does` holds, by bisection: it holds for all smaller ones too.
  const auto largest = [](int64 most, auto does) {
    int64 least = 0;
    while (least < most) {
      const int64 middle = least + (most - least + 1) / 2;
      if (does(middle))
        least = middle;
      else
        most = middle - 1;
    }
    return least;
  };
  a.batch = largest(p.batch, [&](int64 n) { return a.fits(bytes_of(detail::with_batch(p, n))); });
  if (a.fits(a.whole)) {
    a.key_parts = 1;
  } else if (p.seq_k > 1) {
    // One more than the largest number of parts that does not fit.
    const int64 too_few =
        largest(p.seq_k, [&](int64 parts) { return !a.fits(bytes_split_along_keys(p, parts < 2 ? 2 : parts)); });
    a.key_parts = too_few == p.seq_k ? 0 : too_few < 1 ? 2 : too_few + 1;
  }
  return r;
}

/// Computes the same for the memory of a GPU that memory_of() reports. What its pool has reserved and does not use
/// counts as free.
constexpr result<attention_advice> memory_advice(const attention_problem& p, const memory_report& m) {
  return memory_advice(p, m.free + (m.pool_reserved - m.pool_used), m.total);
}

/// Prints the advice: "attention needs 96.0 GiB (q 32.0 GiB, ...), 80.2 GiB free of 139.8 GiB: does not fit", and what
/// would fit.
inline void print(const attention_advice& a, std::FILE* to = stdout) {
  const auto text = [](int64 bytes) { return format_bytes(bytes); };
  const auto verdict = [&](const attention_bytes& b) { return a.fits(b) ? "fits" : "does not fit"; };
  const attention_bytes& w = a.whole;
  std::fprintf(to, "attention needs %s (q %s, k %s, v %s, o %s, workspace %s), %s free of %s: %s\n",
               text(w.all()).c_str(), text(w.q).c_str(), text(w.k).c_str(), text(w.v).c_str(), text(w.o).c_str(),
               text(w.workspace).c_str(), text(a.free).c_str(), text(a.total).c_str(), verdict(w));
  if (a.fits(w)) return;
  if (a.asked.element_bytes > 2) {
    attention_bytes exact = w;
    exact.workspace = 0;
    std::fprintf(to, "  without a workspace, and so without tensor cores: %s, %s\n", text(exact.all()).c_str(),
                 verdict(exact));
    std::fprintf(to, "  in fp16 or bf16: %s, %s\n", text(a.half_precision.all()).c_str(), verdict(a.half_precision));
  }
  if (a.asked.batch > 1)
    std::fprintf(to, "  the batch halved: %s, %s; the largest batch that fits is %lld\n",
                 text(a.half_batch.all()).c_str(), verdict(a.half_batch), static_cast<long long>(a.batch));
  if (a.asked.seq_k > 1) {
    std::fprintf(to, "  the keys halved, two calls that are merged: %s, %s; ", text(a.half_keys.all()).c_str(),
                 verdict(a.half_keys));
    if (a.key_parts > 0)
      std::fprintf(to, "the fewest parts that fit are %lld\n", static_cast<long long>(a.key_parts));
    else
      std::fprintf(to, "no number of parts fits\n");
    std::fprintf(to,
                 "    (calls with lse; lse = log sum exp(lse_i), o = sum exp(lse_i - lse) o_i; a mask must count the "
                 "keys before)\n");
  }
}

}  // namespace giwa::inline GIWA_ABI

#endif
