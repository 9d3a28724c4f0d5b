// SPDX-License-Identifier: MIT
// The problem of a row softmax: the rules for its views, and where each row begins.
#ifndef GIWA_SOFTMAX_PROBLEM_HPP
#define GIWA_SOFTMAX_PROBLEM_HPP

#include <giwa/numeric/fast_division.hpp>
#include <giwa/numeric/overlap.hpp>
#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The type that a row is computed in: double if either element type is double, else float.
template <class T, class U>
using softmax_compute =
    stdlib::conditional_t<stdlib::is_same_v<T, double> || stdlib::is_same_v<U, double>, double, float>;

template <class T, class U, int Rank>
GIWA_HOST_DEVICE constexpr void require_softmax() {
  static_assert(!stdlib::is_const_v<U>, "giwa::softmax: out is written, so its elements must not be const.");
  static_assert(floating_element<stdlib::remove_cv_t<T>> && floating_element<U>,
                "giwa::softmax: elements must be giwa::fp16, bf16, fp32 or fp64.");
  static_assert(Rank <= 4, "giwa::softmax: views must have at most 4 dimensions; merge or slice the others.");
}

/// Returns the first rule that the views break. The output may be the input itself. Any other overlap is refused, also
/// of the output's own elements.
template <class T, class U, int Rank>
GIWA_HOST_DEVICE status check_softmax(const tensor_view<T, Rank>& in, const tensor_view<U, Rank>& out) {
  if (const status s = in.check("in"); !s.ok()) return s;
  if (const status s = out.check("out"); !s.ok()) return s;
  if (const status s = check_written(out, "out"); !s.ok()) return s;
  if (const status s = out.check_extents(in.extents(), "out", "out must have the sizes of in in every dimension");
      !s.ok())
    return s;
  bool same = static_cast<const void*>(in.data()) == static_cast<const void*>(out.data()) && sizeof(T) == sizeof(U);
  for (int d = 0; d < Rank; ++d) same = same && (in.extent(d) == 1 || in.stride(d) == out.stride(d));
  if (!same && overlap(in, out)) return status::invalid("out", "out overlaps in but is not the same view");
  return {};
}

/// Where the rows of both views begin: all dimensions but the last, merged where the strides of both views allow it.
struct row_map {
  static constexpr int most = 3;
  int dimensions = 0;        // after merging; 0 and 1 need no division
  int64 rows = 1;            // in total
  int64 in_stride[most]{};   // in elements; the last of them runs fastest
  int64 out_stride[most]{};  // the same
  fast_divisor extent[most]{};

  template <class T, class U, int Rank>
  GIWA_HOST_DEVICE static row_map of(const tensor_view<T, Rank>& in, const tensor_view<U, Rank>& out) {
    row_map m;
    int64 sizes[most]{};
    for (int d = 0; d < Rank - 1; ++d) {
      const int64 n = in.extent(d);
      m.rows *= n;
      if (n == 1) continue;
      const int last = m.dimensions - 1;
      if (last >= 0 && m.in_stride[last] == wrapping_product(in.stride(d), n) &&
          m.out_stride[last] == wrapping_product(out.stride(d), n)) {
        sizes[last] *= n;
      } else {
        sizes[m.dimensions++] = n;
      }
      m.in_stride[m.dimensions - 1] = in.stride(d);
      m.out_stride[m.dimensions - 1] = out.stride(d);
    }
    for (int d = 1; d < m.dimensions; ++d) m.extent[d] = fast_divisor(sizes[d] > 0 ? sizes[d] : 1);
    return m;
  }

  struct offsets {
    int64 in, out;  // in elements
  };
  GIWA_HOST_DEVICE constexpr offsets operator()(int64 row) const {
    offsets at{0, 0};
    for (int d = most - 1; d > 0; --d) {
      if (d >= dimensions) continue;
      const int64 quotient = row / extent[d], i = row - quotient * extent[d].divisor();
      at.in += i * in_stride[d];
      at.out += i * out_stride[d];
      row = quotient;
    }
    at.in += row * in_stride[0];
    at.out += row * out_stride[0];
    return at;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#if !defined(GIWA_DOXYGEN) && !defined(__CUDACC_RTC__)  // calls that do not compile, and the reason
namespace giwa::inline GIWA_ABI {

template <class Where, class T, int Rank>
status softmax(const Where&, const tensor_view<T, Rank>&) {
  static_assert(detail::always_false<Where>,
                "giwa::softmax: the arguments are (stream, in, out), or (giwa::host, in, out), where out may be in.");
  return {};
}
template <class R, class T, class U, int Rank>
status softmax(const result<R>&, const tensor_view<T, Rank>&, const tensor_view<U, Rank>&) {
  static_assert(detail::always_false<R>,
                "giwa::softmax: the first argument is a result: giwa::throw_if_failed(s) is its stream.");
  return {};
}

}  // namespace giwa::inline GIWA_ABI
#endif

#endif
