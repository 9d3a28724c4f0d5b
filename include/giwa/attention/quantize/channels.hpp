// SPDX-License-Identifier: MIT
// Codes with scales of channels: a thread has neighbouring columns of some rows.
#ifndef GIWA_ATTENTION_QUANTIZE_CHANNELS_HPP
#define GIWA_ATTENTION_QUANTIZE_CHANNELS_HPP

#include <giwa/attention/quantize/codes.hpp>
#include <giwa/numeric/fast_division.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The tensors of a call, and how they are divided. A run is `Count` neighbouring columns of a head.
template <class T, class Code>
struct head_channels {
  tensor_view<const T, 4> x;     // (batch, rows, heads, head size)
  tensor_view<Code, 4> codes;    // as x
  tensor_view<float, 2> scales;  // (heads, head size)
  fast_divisor runs;             // of a head

  GIWA_HOST_DEVICE int64 run_count() const { return x.extent(2) * runs.divisor(); }
};

/// A run of columns of one head, in one sequence.
template <int Count, class T, class Code>
class channel_run {
 public:
  using run = element_run<T, Count>;

  GIWA_HOST_DEVICE channel_run(const head_channels<T, Code>& p, int64 number, int64 sequence)
      : p_(p), sequence_(sequence), head_(number / p.runs), column_((number - head_ * p.runs.divisor()) * Count) {}

  GIWA_HOST_DEVICE float& scale(int i) const { return p_.scales(head_, column_ + i); }

  /// Raises `largest` to the largest magnitudes of the columns in every step-th row of [first, end).
  GIWA_HOST_DEVICE void find_largest(float (&largest)[stdlib::size_t{Count}], int64 first, int64 end, int step) const {
    for_each_row(first, end, step, [&](const run& r, int64) {
      GIWA_UNROLL
      for (int i = 0; i < Count; ++i) largest[i] = larger_finite(largest[i], convert<float>{}(r.get(i)));
    });
  }

  /// Writes the codes of these rows.
  GIWA_HOST_DEVICE void write_codes(int64 first, int64 end, int step) const {
    Code* const to = &p_.codes(sequence_, 0, head_, column_ / codes_of<Code>);
    float reciprocal[stdlib::size_t{Count}];
    GIWA_UNROLL
    for (int i = 0; i < Count; ++i) reciprocal[i] = scale_divisor::of(scale(i)).reciprocal;
    for_each_row(first, end, step, [&](const run& r, int64 row) {
      float x[stdlib::size_t{Count}];
      GIWA_UNROLL
      for (int i = 0; i < Count; ++i) x[i] = convert<float>{}(r.get(i));
      round_run<Code, Count>(to + row * p_.codes.stride(1), x,
                             [&](int i, float y) { return fma_with_subnormals(y, reciprocal[i], -0.0f); });
    });
  }

 private:
  /// f(run, row). Several are read before the first is used.
  template <class F>
  GIWA_HOST_DEVICE void for_each_row(int64 first, int64 end, int step, const F& f) const {
    constexpr int at_once = 4;
    const T* const from = &p_.x(sequence_, 0, head_, column_);
    run r[stdlib::size_t{at_once}]{};
    for (; first < end; first += at_once * step) {
      GIWA_UNROLL
      for (int i = 0; i < at_once; ++i)
        if (first + i * step < end) r[i] = run::read(from + (first + i * step) * p_.x.stride(1));
      GIWA_UNROLL
      for (int i = 0; i < at_once; ++i)
        if (first + i * step < end) f(r[i], first + i * step);
    }
  }

  const head_channels<T, Code>& p_;
  int64 sequence_, head_, column_;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
