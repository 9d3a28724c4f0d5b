// SPDX-License-Identifier: MIT
// quantize: rounds a tensor to 8 or 4 bits, with scales of rows, of blocks of rows, or of channels, which it finds.
#ifndef GIWA_ATTENTION_CALL_QUANTIZE_HPP
#define GIWA_ATTENTION_CALL_QUANTIZE_HPP

#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/problem/views.hpp>
#include <giwa/attention/quantize/channels.hpp>
#include <giwa/attention/quantize/groups.hpp>

namespace giwa::inline GIWA_ABI {

/// The options of quantize() with scales of rows.
struct quantize_options {
  int rows =
      1;  ///< rows of the tensor that share a scale, the last group of a sequence may have fewer; 0: all of a sequence
};

namespace detail {

/// Runs a call: `run(problem)` of row_groups or head_channels. Defined by <giwa/host.hpp>, and by <giwa/quantize.cuh>.
///@{
template <class T>
struct host_quantize;
inline namespace GIWA_ARCH_TAG {
template <class T>
struct stream_quantize;
}
///@}

/// The rules for x and its codes. `scales` is where the call writes those.
template <class T, class Code, int Rank>
status check_quantize(const tensor_view<const T, 4>& x, const tensor_view<Code, 4>& codes,
                      const tensor_view<float, Rank>& scales, const index<Rank>& sizes) {
  first_failure broken;
  if (broken(check_rows(x, "x")) || broken(check_rows(codes, "codes", codes_of<Code> == 1)) ||
      broken(scales.check("scales")))
    return broken.state;
  constexpr const char* messages[4] = {"codes must have the batch of x", "codes must have as many rows as x",
                                       "codes must have as many heads as x", "codes must have the head size of x"};
  if (x.extent(3) > attention_limits::length)
    return status::invalid("x", "the head size is out of range", bound::at_most, attention_limits::length, x.extent(3));
  for (int d = 0; d < 3; ++d)
    if (broken(check_same(codes, x, d, "codes", messages[d]))) return broken.state;
  if (broken(check_head_size(codes, x, "codes", messages[3]))) return broken.state;
  if (codes_of<Code> > 1 && !rows_are_aligned(x, codes_of<Code> * int64{sizeof(T)}))
    return status::invalid("x", "for pairs of integers rows must be aligned to two elements");
  for (int d = 0; d < Rank; ++d)
    if (scales.extent(d) != sizes[d])
      return status::invalid(
          "scales",
          Rank == 2 ? "scales of channels are (heads, head size)" : "scales of rows are (batch, groups of rows, heads)",
          bound::exactly, sizes[d], scales.extent(d));
  if (broken(check_written(codes, "codes")) || broken(check_written(scales, "scales")) ||
      broken(check_apart(x, codes, "codes", "codes overlaps x")) ||
      broken(check_apart(x, scales, "scales", "scales overlaps x")) ||
      broken(check_apart(codes, scales, "scales", "scales overlaps codes")))
    return broken.state;
  return {};
}

inline namespace GIWA_ARCH_TAG {

template <class T, class Code, int Rank>
constexpr void require_quantize() {
  static_assert(
      Rank == 3 || Rank == 4,
      "giwa::quantize: x and codes must have rank 4 (batch, rows, heads, head size) or 3 (packed rows, heads, "
      "head size).");
  static_assert(attention_element<stdlib::remove_const_t<T>>,
                "giwa::quantize: elements of x must be giwa::fp16, bf16 or fp32.");
  static_assert(scaled_element<Code>,
                "giwa::quantize: elements of codes must be giwa::e4m3, int8_code or int4_pair, and not const.");
}

/// Runs a call that check_quantize() accepts.
template <class T, class Where, class Problem>
status run_quantize(const Where& where, const Problem& p) {
  if (p.x.size() == 0) return {};
  if constexpr (stdlib::same_as<Where, host_t>) {
    static_assert(defined<host_quantize<T>>, "giwa::quantize(giwa::host, ...) needs #include <giwa/host.hpp>.");
    return host_quantize<T>::run(p);
  } else {
    static_assert(defined<stream_quantize<T>>,
                  "giwa::quantize on a stream needs #include <giwa/quantize.cuh>, in a file that nvcc compiles.");
    return stream_quantize<T>::run(static_cast<cudaStream_t>(where), p);
  }
}

}  // namespace GIWA_ARCH_TAG

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// Rounds x to 8 or 4 bits, with scales that it finds: `quantize(stream, k, k8, k_scales, {.rows = 64})`. An element of x is about its code
/// times its scale.
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - x: (batch, rows, heads, head size), or packed, (rows, heads, head size); fp16, bf16 or fp32
///   - codes: as x, e4m3 or int8_code, or int4_pair with half the head size; written
///   - scales: (batch, groups of rows, heads), fp32, written: scales of rows, as of attention_scales and, with {.rows = 1}, of
///     cache_scales. Packed rows have a batch of 1, and groups are of rows of the tensor
///   - options: rows of a scale (quantize_options)
///
/// A scale is the largest magnitude of its elements divided by the largest code, 448, 127 or 7, and at least 2^-126. NaN and
/// infinity do not count for it. x is multiplied by the scale's reciprocal in fp32 and rounded to nearest, ties to even; infinity becomes
/// the largest code, NaN stays NaN in e4m3 and is 0 in integers. Pairs of integers need rows of
/// x that are aligned to two elements.
///
/// Any strides, but the last of x and codes is 1; fastest are 16-byte aligned rows. Codes of 8 bits may be K-major instead: the stride of
/// their rows is 1, as of a v for attention_forward; fastest are other strides that are multiples of 4. An empty x writes nothing. On a stream of the
/// current device: asynchronous, one launch, or three for channels and large groups; allocates nothing, may be captured. With
/// giwa::host: done when it returns (`#include <giwa/host.hpp>`). The result is deterministic, and the same bits on host and device. Errors: sizes that do
/// not fit together, overlaps, memory that the GPU cannot use, those of launch(). Nothing is written then.
template <detail::attention_place Where, class T, class Code, int Rank>
status quantize(const Where& where, const tensor_view<T, Rank>& x, const tensor_view<Code, Rank>& codes,
                const tensor_view<float, 3>& scales, const quantize_options& options = {}) {
  using element = stdlib::remove_const_t<T>;
  detail::require_quantize<T, Code, Rank>();
  if (options.rows < 0)
    return status::invalid("rows", "the rows of a scale must be 0, for all of them, or more", bound::at_least, 0,
                           options.rows);
  const tensor_view<const element, 4> from = detail::in_four_dimensions(tensor_view<const element, Rank>(x));
  const tensor_view<Code, 4> to = detail::in_four_dimensions(codes);
  const int64 groups = options.rows == 0 ? 1 : ceil_div(from.extent(1), int64{options.rows});
  const index<3> sizes{from.extent(0), groups, from.extent(2)};
  if (const status s = detail::check_quantize(from, to, scales, sizes); !s.ok()) return s;
  if (from.size() == 0) return {};
  const int all = static_cast<int>(from.extent(1)), rows = options.rows == 0 || options.rows > all ? all : options.rows;
  return detail::run_quantize<element>(where, detail::row_groups<element, Code>{from,
                                                                                to,
                                                                                scales,
                                                                                rows,
                                                                                static_cast<int>(to.extent(3)),
                                                                                fast_divisor(from.extent(2)),
                                                                                fast_divisor(groups),
                                                                                rows,
                                                                                {}});
}

/// As above, with scales of channels, which all rows of all sequences share: `quantize(stream, v, v8, v_scales)`.
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - x: (batch, rows, heads, head size), or packed, (rows, heads, head size); fp16, bf16 or fp32
///   - codes: as x, e4m3 or int8_code, or int4_pair with half the head size; written
///   - scales: (heads, head size), fp32, written: v_channel of attention_scales
template <detail::attention_place Where, class T, class Code, int Rank>
status quantize(const Where& where, const tensor_view<T, Rank>& x, const tensor_view<Code, Rank>& codes,
                const tensor_view<float, 2>& scales) {
  using element = stdlib::remove_const_t<T>;
  detail::require_quantize<T, Code, Rank>();
  const tensor_view<const element, 4> from = detail::in_four_dimensions(tensor_view<const element, Rank>(x));
  const tensor_view<Code, 4> to = detail::in_four_dimensions(codes);
  if (const status s = detail::check_quantize(from, to, scales, {from.extent(2), from.extent(3)}); !s.ok()) return s;
  if (from.size() == 0) return {};
  return detail::run_quantize<element>(
      where, detail::head_channels<element, Code>{from, to, scales, fast_divisor(to.extent(3))});
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
