// SPDX-License-Identifier: MIT
// Tensor maps: telling the copy engine of sm_90 about a strided view, with a reason where it cannot take it.
#ifndef GIWA_DEVICE_TENSOR_MAP_HPP
#define GIWA_DEVICE_TENSOR_MAP_HPP

#include <giwa/arch/swizzle.hpp>
#include <giwa/arch/tensor_map.hpp>
#include <giwa/device/properties.hpp>
#include <giwa/numeric/integer.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>

#include <cuda.h>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <class T>
constexpr CUtensorMapDataType tensor_map_type() {
  if constexpr (stdlib::same_as<T, fp16>)
    return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  else if constexpr (stdlib::same_as<T, bf16>)
    return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  else if constexpr (stdlib::same_as<T, fp32>)
    return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  else if constexpr (stdlib::same_as<T, fp64>)
    return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
  else
    static_assert(always_false<T>, "giwa: a tensor map holds fp16, bf16, fp32 or fp64.");
}

}  // namespace detail

/// Whether the copy engine can address this view: unit last stride, address and other strides multiples of 16 bytes.
/// Dimensions of size 1 may have any stride. The view itself is right (check()).
template <class T, int Rank>
status check_tensor_map(const tensor_view<T, Rank>& v, const char* argument) {
  // The engine knows sizes up to 2^32, but a copy's coordinates are signed and have 32 bits.
  constexpr int64 size = sizeof(T), alignment = 16, largest_stride = int64{1} << 40, largest_extent = int64{1} << 31;
  if (reinterpret_cast<uint64>(v.data()) % alignment != 0)
    return status::invalid(argument, "the copy engine takes addresses that are a multiple of 16 bytes");
  if (v.extent(Rank - 1) > 1 && v.stride(Rank - 1) != 1)
    return status::invalid(argument, "the copy engine takes rows whose elements lie side by side", bound::exactly, 1,
                           v.stride(Rank - 1));
  for (int d = 0; d < Rank; ++d) {
    if (v.extent(d) < 1)
      return status::invalid(argument, "the copy engine has nothing to copy of an empty view", bound::at_least, 1,
                             v.extent(d));
    if (v.extent(d) > largest_extent)
      return status::invalid(argument, "a size is larger than the copy engine's coordinates reach", bound::at_most,
                             largest_extent, v.extent(d));
    if (d == Rank - 1 || v.extent(d) == 1) continue;
    if (v.stride(d) <= 0 || v.stride(d) >= largest_stride / size || v.stride(d) * size % alignment != 0)
      return status::invalid(argument,
                             "the copy engine takes strides that are a multiple of 16 bytes, above 0 and below 2^40");
  }
  return {};
}

/// Whether it can also write to this view: it writes whole chunks of 16 bytes, so the rows must be a multiple of them. Of any
/// other row the last chunk would overwrite what lies behind it.
template <class T, int Rank>
status check_store_map(const tensor_view<T, Rank>& v, const char* argument) {
  static_assert(!stdlib::is_const_v<T>, "giwa: a view that is written to has elements that are not const.");
  constexpr int64 step = sizeof(T) < 16 ? 16 / sizeof(T) : 1;
  if (const int64 columns = v.extent(Rank - 1); columns % step != 0)
    return status::invalid(argument, "the copy engine writes 16 bytes at once, and these rows end inside them",
                           bound::exactly, round_up(columns, step), columns);
  return check_tensor_map(v, argument);
}

/// The driver's function that makes tensor maps: found once by who makes several.
struct tensor_map_encoder {
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;  ///< null before find()

  /// Asks the driver. Errors: it has no such function.
  static result<tensor_map_encoder> find(const char* argument = "view") {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    status s = detail::consume(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    if (s.ok() && (entry == nullptr || found != cudaDriverEntryPointSuccess))
      s = {status_code::not_supported, bound::none, 0, "this driver has no tensor maps", argument, 0, 0};
    return {{reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)}, s};
  }
};

/// The tensor map of a view, for copies of `box` elements a dimension (1 … 256 each, in the view's order; the last one
/// spans 16 bytes up to the swizzle's span), by an encoder that is found where none is given. Touches no memory of the view.
/// Errors: what check_tensor_map() finds, a driver without tensor maps.
template <class T, int Rank>
result<tensor_map> make_tensor_map(const tensor_view<T, Rank>& v, const giwa::index<Rank>& box, swizzle pattern,
                                   const char* argument = "view", tensor_map_encoder by = {}) {
  static_assert(Rank >= 1 && Rank <= 5, "giwa: a tensor map has 1 to 5 dimensions.");
  constexpr int64 size = sizeof(T);
  result<tensor_map> r;
  r.state = check_tensor_map(v, argument);
  if (!r.ok()) return r;

  if (by.encode == nullptr) {
    const result<tensor_map_encoder> found = tensor_map_encoder::find(argument);
    r.state = found.state;
    if (!r.ok()) return r;
    by = found.value;
  }

  // The engine counts dimensions from the innermost, and has no stride for that one.
  constexpr stdlib::size_t rank{Rank};
  cuuint64_t sizes[rank], strides[rank];
  cuuint32_t boxes[rank], steps[rank];
  for (int i = 0; i < Rank; ++i) {
    const int d = Rank - 1 - i;
    sizes[i] = static_cast<cuuint64_t>(v.extent(d));
    // A dimension of size 1 is never stepped along, but its stride must be valid.
    const int64 stride = v.extent(d) == 1 ? 16 : v.stride(d) * size;
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(stride);
    boxes[i] = static_cast<cuuint32_t>(box[d] < 0 || box[d] > 256 ? 0 : box[d]);  // which the driver refuses
    steps[i] = 1;
  }
  const CUtensorMapSwizzle mode = pattern == swizzle::bytes_128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                  : pattern == swizzle::bytes_64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                  : pattern == swizzle::bytes_32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                 : CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMap map;
  // 256 bytes at once into L2: a matrix product of 8192^3 was 5 % faster than with 128 (H200, 2026-11-21).
  const auto encode = [&] {
    return by.encode(&map, detail::tensor_map_type<stdlib::remove_const_t<T>>(), Rank,
                     const_cast<stdlib::remove_const_t<T>*>(v.data()), sizes, strides, boxes, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, mode, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult code = encode();
  if (code == CUDA_ERROR_INVALID_CONTEXT || code == CUDA_ERROR_NOT_INITIALIZED) {
    // The first use of CUDA by this host thread, or by the process.
    r.state = detail::bind_context();
    if (!r.ok()) return r;
    code = encode();
  }
  static_assert(sizeof(map) == sizeof(r.value), "giwa: the driver's tensor map has another size.");
  if (code == CUDA_SUCCESS) __builtin_memcpy(&r.value, &map, sizeof(map));
  if (code != CUDA_SUCCESS)
    r.state = {status_code::invalid_argument,
               bound::none,
               static_cast<int>(code),
               "the driver refuses this tensor map: is the box larger than 256, or wider than the swizzle's span?",
               argument,
               0,
               0};
  return r;
}

}  // namespace giwa::inline GIWA_ABI

#endif
