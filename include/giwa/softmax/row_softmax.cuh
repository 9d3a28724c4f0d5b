// SPDX-License-Identifier: MIT
// softmax on a stream: checks the views, chooses the shape by the row's length, launches.
#ifndef GIWA_SOFTMAX_ROW_SOFTMAX_CUH
#define GIWA_SOFTMAX_ROW_SOFTMAX_CUH

#include <giwa/device/pointer.hpp>
#include <giwa/grid/launch.cuh>
#include <giwa/softmax/row_op.cuh>

namespace giwa::inline GIWA_ABI {

namespace detail::inline GIWA_ARCH_TAG {

/// Whether every row of the view begins on a packet boundary.
template <class T, int Rank>
bool packets_aligned(const tensor_view<T, Rank>& v, int count) {
  const auto bytes = static_cast<uint64>(count) * sizeof(T);
  bool aligned = reinterpret_cast<uint64>(v.data()) % bytes == 0;
  for (int d = 0; d < Rank - 1; ++d) aligned = aligned && (v.extent(d) == 1 || v.stride(d) % count == 0);
  return aligned;
}

template <class T, class U, int Rank>
row_access access_of(const tensor_view<const T, Rank>& in, const tensor_view<U, Rank>& out) {
  const bool strided = in.extent(Rank - 1) != 1 && (in.stride(Rank - 1) != 1 || out.stride(Rank - 1) != 1);
  if (strided) return row_access::strided;
  constexpr int count = packet_count<T, U>;
  return packets_aligned(in, count) && packets_aligned(out, count) ? row_access::aligned : row_access::shifted;
}

/// Whether kernels may use clusters: the GPU has them, and the code in this binary was compiled for an architecture
/// that has them.
inline result<bool> clusters_usable(const void* kernel) {
  cudaFuncAttributes f{};
  if (const status s = consume(cudaFuncGetAttributes(&f, kernel), "kernel"); !s.ok()) return {false, s};
  return {f.ptxVersion >= 90, {}};
}

template <class T, class U, class Shape, row_access Access>
status launch_rows(cudaStream_t s, row_softmax_params<T, U> p) {
  using op = row_softmax_op<T, U, Shape, Access>;
  const row_launch& l = p.launch;
  const int64 rows_of_block = Shape::owner == row_owner::lanes ? l.threads / Shape::lanes : 1;
  // A count beyond one grid's 2^31 - 1 blocks takes several launches.
  const int64 most_rows = launch_limits::grid_x / l.blocks * rows_of_block;
  while (p.first_row < p.map.rows) {
    const int64 left = p.map.rows - p.first_row;
    p.end_row = p.first_row + (left < most_rows ? left : most_rows);
    const int64 blocks = ceil_div(p.end_row - p.first_row, rows_of_block) * l.blocks;
    if (const status state = launch(s, {.grid = blocks, .block = l.threads, .cluster = l.blocks}, op{}, p); !state.ok())
      return state;
    p.first_row = p.end_row;
  }
  return {};
}

template <class T, class U, class Shape>
status launch_rows(cudaStream_t s, const row_softmax_params<T, U>& p, row_access access) {
  switch (access) {
    case row_access::aligned: return launch_rows<T, U, Shape, row_access::aligned>(s, p);
    case row_access::shifted: return launch_rows<T, U, Shape, row_access::shifted>(s, p);
    default: return launch_rows<T, U, Shape, row_access::strided>(s, p);
  }
}

}  // namespace detail::inline GIWA_ARCH_TAG

inline namespace GIWA_ARCH_TAG {

/// Computes the softmax over the last dimension: out[..., j] = e^(in[..., j] - m) / sum over k of e^(in[..., k] - m),
/// where m is the row's largest element.
///
/// Parameters:
///   - s: a stream of the current device
///   - in: 1 to 4 dimensions, in device memory. Any sizes, 0 and more than 2^31 elements included; any strides, also 0 and
///     negative. Fastest with a last stride of 1 and rows that begin on 16 bytes
///   - out: the same sizes; written. May be `in` itself, with the same strides and element size
///
/// Elements are fp16, bf16, fp32 or fp64, each view its own; computed in fp32, or in fp64 if either view is fp64.
///
/// A row of -inf gives 0. A NaN or +inf in a row makes the whole row NaN. docs/softmax.md has the error bound, which
/// holds for rows of any length. The bits of a row depend on its elements, their number and the types, and for rows of
/// more than 16384 elements on whether the GPU has clusters; not on the other rows, their number, strides, alignment or
/// the GPU's size.
///
/// Asynchronous on `s`. Allocates nothing; may be captured in a graph. Errors, as a
/// status with the argument, the limit and the value seen, before anything is launched: a null, misaligned or host
/// pointer, a negative size, sizes that differ, `out` overlapping itself, `out` overlapping `in` without being `in`;
/// and those of launch().
template <class T, class U, int Rank>
status softmax(cudaStream_t s, const tensor_view<T, Rank>& in, const tensor_view<U, Rank>& out) {
  detail::require_softmax<T, U, Rank>();
  using element = stdlib::remove_const_t<T>;
  if (const status state = detail::check_softmax(in, out); !state.ok()) return state;
  if (out.size() == 0) return {};
  if (const status state = check_device_pointer(in.data(), "in"); !state.ok()) return state;
  if (const status state = check_device_pointer(out.data(), "out"); !state.ok()) return state;

  detail::row_softmax_params<element, U> p{};
  p.in = in.data();
  p.out = out.data();
  p.in_stride = in.stride(Rank - 1);
  p.out_stride = out.stride(Rank - 1);
  p.columns = in.extent(Rank - 1);
  p.map = detail::row_map::of(in, out);
  const detail::row_access access = detail::access_of<element>(tensor_view<const element, Rank>(in), out);
  constexpr int weight = detail::weight_of<detail::softmax_compute<element, U>>;
  const int64 places = detail::saturating_product(p.columns, weight);
  bool clusters = false;
  if (detail::launch_of<detail::long_row_of_block>(places).threads == 0) {  // longer rows than that depend on the GPU
    using probe = detail::row_softmax_op<element, U, detail::any_row_of_cluster, detail::row_access::aligned>;
    const auto usable = detail::clusters_usable(reinterpret_cast<const void*>(&detail::entry<probe>));
    if (!usable.ok()) return usable.state;
    clusters = usable.value;
  }
  return detail::with_row_shape(places, clusters, [&](auto shape, const detail::row_launch& l) {
    p.launch = l;
    return detail::launch_rows<element, U, decltype(shape)>(s, p, access);
  });
}

}  // namespace GIWA_ARCH_TAG
}  // namespace giwa::inline GIWA_ABI

#endif
