// SPDX-License-Identifier: MIT
// from_dlpack: a view of a tensor of another framework, given as the struct of DLPack.
#ifndef GIWA_DEVICE_DLPACK_HPP
#define GIWA_DEVICE_DLPACK_HPP

#include <giwa/device/host.hpp>
#include <giwa/numeric/tensor_view.hpp>

struct __half;  // CUDA's, of cuda_fp16.h and cuda_bf16.h
struct __nv_bfloat16;

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Constants of DLPack: DLDeviceType, DLDataTypeCode, DLPACK_FLAG_BITMASK_READ_ONLY.
namespace dlpack {
inline constexpr int cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13;
inline constexpr int code_int = 0, code_uint = 1, code_float = 2, code_bfloat = 4, code_bool = 6;
inline constexpr int version = 1, read_only = 1;

/// Returns the DLDataTypeCode of an element type.
template <class T>
GIWA_HOST_DEVICE constexpr int code_of() {
  using value = stdlib::remove_cv_t<T>;
  if constexpr (stdlib::same_as<value, bool>)
    return code_bool;
  else if constexpr (stdlib::is_integral_v<value>)
    return stdlib::is_signed_v<value> ? code_int : code_uint;
  else if constexpr (stdlib::is_floating_point_v<value> || stdlib::same_as<value, ::__half>)
    return code_float;
  else {
    static_assert(stdlib::same_as<value, ::__nv_bfloat16>,
                  "giwa::from_dlpack: elements must be integers, bool, giwa::fp16, bf16, fp32 or fp64.");
    return code_bfloat;
  }
}

/// Whether the struct has the members of DLTensor.
template <class Struct>
concept tensor = requires(const Struct& t) {
  { t.data } -> stdlib::convertible_to<void*>;
  { t.device.device_id } -> stdlib::convertible_to<int64>;
  static_cast<int>(t.device.device_type);
  { t.ndim } -> stdlib::convertible_to<int64>;
  { t.dtype.code } -> stdlib::convertible_to<int64>;
  { t.dtype.bits } -> stdlib::convertible_to<int64>;
  { t.dtype.lanes } -> stdlib::convertible_to<int64>;
  { t.shape[0] } -> stdlib::convertible_to<int64>;
  { t.strides[0] } -> stdlib::convertible_to<int64>;
  { t.byte_offset } -> stdlib::convertible_to<uint64>;
};

/// Whether the struct has the members of DLManagedTensor, or of DLManagedTensorVersioned.
template <class Struct>
concept managed = requires(const Struct& t) { requires tensor<stdlib::remove_cvref_t<decltype(t.dl_tensor)>>; };
template <class Struct>
concept versioned = managed<Struct> && requires(const Struct& t) {
  { t.version.major } -> stdlib::convertible_to<int64>;
  { t.flags } -> stdlib::convertible_to<uint64>;
};

/// Makes the view. Checks all rules but those of the device.
template <class T, int Rank, tensor Struct>
GIWA_HOST_DEVICE result<tensor_view<T, Rank>> view_of(const Struct& t) {
  const auto wrong = [](const char* message, int64 expected, int64 got) {
    return result<tensor_view<T, Rank>>{{}, status::invalid("tensor", message, bound::exactly, expected, got)};
  };
  if (t.dtype.code != code_of<T>())
    return wrong("the kind of its elements (DLDataTypeCode) must be that of the view", code_of<T>(), t.dtype.code);
  if (t.dtype.bits != int64{8 * sizeof(T)})
    return wrong("the bits of its elements must be those of the view", int64{8 * sizeof(T)}, t.dtype.bits);
  if (t.dtype.lanes != 1) return wrong("its elements must have one lane", 1, t.dtype.lanes);
  if (t.ndim != Rank) return wrong("it must have as many dimensions as the view", Rank, t.ndim);
  const auto invalid = [](const char* message) {
    return result<tensor_view<T, Rank>>{{}, status::invalid("tensor", message)};
  };
  if (t.shape == nullptr) return invalid("its shape must not be null");

  const uint64 begin = reinterpret_cast<uint64>(t.data), offset = t.byte_offset;
  if (begin + offset < begin) return invalid("its byte_offset must stay in the address space");
  T* const data = t.data == nullptr ? nullptr : reinterpret_cast<T*>(begin + offset);
  if ((begin + offset) % alignof(T) != 0) return invalid("its elements must be aligned to their type");
  index<Rank> sizes{};
  for (int d = 0; d < Rank; ++d) sizes[d] = t.shape[d];
  tensor_view<T, Rank> view(data, sizes);
  if (t.strides != nullptr) {
    index<Rank> strides{};
    for (int d = 0; d < Rank; ++d) strides[d] = t.strides[d];
    view = {data, sizes, strides};
  }
  if (const status s = view.check("tensor"); !s.ok()) return {{}, s};
  return {view, {}};
}

/// The same for a struct that owns a tensor. Checks that a read-only tensor is viewed as const.
template <class T, int Rank, managed Struct>
GIWA_HOST_DEVICE result<tensor_view<T, Rank>> view_of(const Struct& owner) {
  if constexpr (versioned<Struct>) {
    if (!stdlib::is_const_v<T> && (owner.flags & read_only) != 0)
      return {{}, status::invalid("tensor", "it is read-only: take a view of const elements")};
  }
  return view_of<T, Rank>(owner.dl_tensor);
}

/// Checks that the struct has the layout of the supported major version.
template <class Struct>
GIWA_HOST_DEVICE constexpr status check_version(const Struct& t) {
  if constexpr (versioned<Struct>)
    if (t.version.major != version)
      return status::invalid("tensor", "its struct must be of this major version of DLPack", bound::exactly, version,
                             t.version.major);
  return {};
}

template <class Struct>
GIWA_HOST_DEVICE constexpr auto device_of(const Struct& t) {
  if constexpr (managed<Struct>)
    return t.dl_tensor.device;
  else
    return t.device;
}

}  // namespace dlpack

template <class Struct>
concept dlpack_tensor = dlpack::tensor<Struct> || dlpack::managed<Struct>;

}  // namespace detail

/// Returns a view of a DLPack tensor for kernels on GPU number `device`: `from_dlpack<const float, 2>(device, tensor)`.
/// `tensor` is a DLTensor, DLManagedTensor or DLManagedTensorVersioned, or any struct with their members; giwa does not
/// include DLPack's header. Nothing is copied or owned: the caller calls the producer's deleter after the last use, and
/// orders the streams. Null strides mean row-major order. Touches no memory of the tensor.
///
/// Errors, all with the argument `tensor`: memory that is neither this GPU's nor pinned nor managed; another element
/// type, number of dimensions, or more than one lane; an offset or strides that leave the address space; misaligned
/// elements; of a versioned struct another major version, or a read-only tensor viewed without const.
template <class T, int Rank, detail::dlpack_tensor Tensor>
GIWA_HOST_DEVICE result<tensor_view<T, Rank>> from_dlpack(int device, const Tensor& tensor) {
  namespace dlpack = detail::dlpack;
  if (const status known = dlpack::check_version(tensor); !known.ok()) return {{}, known};
  const auto owner = dlpack::device_of(tensor);
  const int type = static_cast<int>(owner.device_type);
  if (type != dlpack::cuda && type != dlpack::cuda_host && type != dlpack::cuda_managed)
    return {
        {},
        status::invalid("tensor", "it must be in memory of CUDA (DLDeviceType)", bound::exactly, dlpack::cuda, type)};
  if (type == dlpack::cuda && owner.device_id != device)
    return {{},
            status::invalid("tensor", "it must be in the memory of this GPU", bound::exactly, device, owner.device_id)};
  return dlpack::view_of<T, Rank>(tensor);
}

/// Returns a view of a DLPack tensor for the CPU: `from_dlpack<const float, 2>(giwa::host, tensor)`. The tensor is in
/// pageable, pinned or managed memory. Errors: as above.
template <class T, int Rank, detail::dlpack_tensor Tensor>
GIWA_HOST_DEVICE result<tensor_view<T, Rank>> from_dlpack(host_t, const Tensor& tensor) {
  namespace dlpack = detail::dlpack;
  if (const status known = dlpack::check_version(tensor); !known.ok()) return {{}, known};
  const int type = static_cast<int>(dlpack::device_of(tensor).device_type);
  if (type != dlpack::cpu && type != dlpack::cuda_host && type != dlpack::cuda_managed)
    return {
        {},
        status::invalid("tensor", "it must be in memory of the CPU (DLDeviceType)", bound::exactly, dlpack::cpu, type)};
  return dlpack::view_of<T, Rank>(tensor);
}

}  // namespace giwa::inline GIWA_ABI

#endif
