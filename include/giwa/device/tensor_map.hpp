// SPDX-License-Identifier: MIT
// Tensor maps: descriptions of strided views for TMA, with a reason if TMA cannot address a view.
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
  else if constexpr (stdlib::same_as<T, unsigned char> || (floating_format<T> && sizeof(T) == 1))
    return CU_TENSOR_MAP_DATA_TYPE_UINT8;  // elements of 8 bits are converted after the copy
  else
    static_assert(always_false<T>, "giwa: a tensor map holds fp16, bf16, fp32, fp64, e4m3 or unsigned char.");
}

}  // namespace detail

/// Checks that TMA can load from a view that passes check(): last stride 1, address and other strides multiples of 16
/// bytes. Dimensions of size 1 may have any stride. `argument` names the view.
template <class T, int Rank>
status check_tensor_map(const tensor_view<T, Rank>& v, const char* argument) {
  // TMA takes sizes up to 2^32, but the coordinates of a copy are signed 32-bit integers.
  constexpr int64 size = sizeof(T), alignment = 16, largest_stride = int64{1} << 40, largest_extent = int64{1} << 31;
  if (reinterpret_cast<uint64>(v.data()) % alignment != 0)
    return status::invalid(argument, "TMA needs an address that is a multiple of 16 bytes");
  if (v.extent(Rank - 1) > 1 && v.stride(Rank - 1) != 1)
    return status::invalid(argument, "TMA needs a contiguous last dimension (stride 1)", bound::exactly, 1,
                           v.stride(Rank - 1));
  for (int d = 0; d < Rank; ++d) {
    if (v.extent(d) < 1)
      return status::invalid(argument, "TMA needs a view that is not empty", bound::at_least, 1, v.extent(d));
    if (v.extent(d) > largest_extent)
      return status::invalid(argument, "TMA needs sizes that its 32-bit coordinates reach", bound::at_most,
                             largest_extent, v.extent(d));
    if (d == Rank - 1 || v.extent(d) == 1) continue;
    if (v.stride(d) <= 0 || v.stride(d) >= largest_stride / size || v.stride(d) * size % alignment != 0)
      return status::invalid(argument, "TMA needs strides that are a multiple of 16 bytes, above 0 and below 2^40");
  }
  return {};
}

/// Checks that TMA can also store to the view. It writes whole chunks of 16 bytes, so the size of a row must be a
/// multiple of 16 bytes. Otherwise the last chunk would overwrite memory past the end of the row.
template <class T, int Rank>
status check_store_map(const tensor_view<T, Rank>& v, const char* argument) {
  static_assert(!stdlib::is_const_v<T>, "giwa: the elements of a view that is written must not be const.");
  constexpr int64 step = sizeof(T) < 16 ? 16 / sizeof(T) : 1;
  if (const int64 columns = v.extent(Rank - 1); columns % step != 0)
    return status::invalid(argument, "TMA stores need rows that are a multiple of 16 bytes, in elements",
                           bound::exactly, round_up(columns, step), columns);
  return check_tensor_map(v, argument);
}

/// The driver's function that encodes tensor maps. Callers that make several maps look it up once.
struct tensor_map_encoder {
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;  ///< null before find()

  /// Looks up the function in the driver. Errors: no driver; a driver without tensor maps.
  static result<tensor_map_encoder> find(const char* argument = "view") {
    result<void*> found = detail::driver_function("cuTensorMapEncodeTiled");
    if (found.ok() && found.value == nullptr)
      found.state = {
          status_code::not_supported, bound::none, 0, "this driver does not support tensor maps", argument, 0, 0};
    return {{reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found.value)}, found.state};
  }
};

/// How many bytes the L2 cache reads at once around a line that a copy misses. 256: a matrix product of 8192^3 was 5 %
/// faster than with 128 (H200, 2026-11-21). 128: for data that is read once; streaming reached 4460 GB/s, with 256 4110
/// (H200, 2026-11-22).
enum class l2_promotion : int { bytes_128, bytes_256 };

/// Makes the tensor map of a view for copies of boxes. Does not access the memory of the view. May be called while a graph
/// is captured.
///
/// Parameters:
///   - v: the view
///   - box: the elements of a box in each dimension, in the order of the view, each from 1 to 256. A row of the box is 16
///     bytes to the span of the swizzle
///   - pattern: how rows of a box are permuted in shared memory
///   - argument: the name of the view in a status
///   - by: the driver's function, which is looked up without it
///   - promotion: bytes that the L2 cache reads around a line
///
/// Errors: those of
/// check_tensor_map(); a box that the driver refuses; a driver without tensor maps.
template <class T, int Rank>
result<tensor_map> make_tensor_map(const tensor_view<T, Rank>& v, const giwa::index<Rank>& box, swizzle pattern,
                                   const char* argument = "view", tensor_map_encoder by = {},
                                   l2_promotion promotion = l2_promotion::bytes_256) {
  static_assert(Rank >= 1 && Rank <= 5, "giwa: a tensor map must have 1 to 5 dimensions.");
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

  // TMA counts dimensions from the innermost, which has no stride.
  constexpr stdlib::size_t rank{Rank};
  cuuint64_t sizes[rank], strides[rank];
  cuuint32_t boxes[rank], steps[rank];
  for (int i = 0; i < Rank; ++i) {
    const int d = Rank - 1 - i;
    sizes[i] = static_cast<cuuint64_t>(v.extent(d));
    // The stride of a dimension of size 1 is not used, but it must be valid.
    const int64 stride = v.extent(d) == 1 ? 16 : v.stride(d) * size;
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(stride);
    boxes[i] = static_cast<cuuint32_t>(box[d] < 0 || box[d] > 256 ? 0 : box[d]);  // 0: the driver refuses it
    steps[i] = 1;
  }
  const CUtensorMapSwizzle mode = pattern == swizzle::bytes_128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                  : pattern == swizzle::bytes_64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                  : pattern == swizzle::bytes_32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                 : CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMap map;
  const auto encode = [&] {
    return by.encode(
        &map, detail::tensor_map_type<stdlib::remove_const_t<T>>(), Rank,
        const_cast<stdlib::remove_const_t<T>*>(v.data()), sizes, strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        mode,
        promotion == l2_promotion::bytes_128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult code = encode();
  if (code == CUDA_ERROR_INVALID_CONTEXT || code == CUDA_ERROR_NOT_INITIALIZED) {
    // The first use of CUDA by this host thread, or by the process.
    r.state = detail::bind_context();
    if (!r.ok()) return r;
    code = encode();
  }
  static_assert(sizeof(map) == sizeof(r.value), "giwa: the tensor map of the driver must have 128 bytes.");
  if (code == CUDA_SUCCESS) __builtin_memcpy(&r.value, &map, sizeof(map));
  if (code != CUDA_SUCCESS)
    r.state = {status_code::invalid_argument,
               bound::none,
               static_cast<int>(code),
               "the driver refuses this tensor map: a box must have at most 256 elements in each dimension and rows "
               "within the span of the swizzle",
               argument,
               0,
               0};
  return r;
}

}  // namespace giwa::inline GIWA_ABI

#endif
