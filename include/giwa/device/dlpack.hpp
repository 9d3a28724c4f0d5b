// SPDX-License-Identifier: MIT
// from_dlpack: a view of the tensor that another framework hands over as DLPack's struct.
#ifndef GIWA_DEVICE_DLPACK_HPP
#define GIWA_DEVICE_DLPACK_HPP

#include <giwa/device/host.hpp>
#include <giwa/numeric/tensor_view.hpp>

struct __half;  // CUDA's, of cuda_fp16.h and cuda_bf16.h
struct __nv_bfloat16;

namespace giwa::inline GIWA_ABI {

namespace detail {

/// DLPack's numbers (DLDeviceType, DLDataTypeCode, DLPACK_FLAG_BITMASK_READ_ONLY).
namespace dlpack {
inline constexpr int cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13;
inline constexpr int code_int = 0, code_uint = 1, code_float = 2, code_bfloat = 4, code_bool = 6;
inline constexpr int version = 1, read_only = 1;

/// The code of an element type.
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
                  "giwa::from_dlpack: elements are integers, bool, giwa::fp16, bf16, fp32 or fp64.");
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

/// Or those of DLManagedTensor, or DLManagedTensorVersioned.
template <class Struct>
concept managed = requires(const Struct& t) { requires tensor<stdlib::remove_cvref_t<decltype(t.dl_tensor)>>; };
template <class Struct>
concept versioned = managed<Struct> && requires(const Struct& t) {
  { t.version.major } -> stdlib::convertible_to<int64>;
  { t.flags } -> stdlib::convertible_to<uint64>;
};

/// The first of the rules that do not depend on the place.
template <class T, int Rank, tensor Struct>
GIWA_HOST_DEVICE result<tensor_view<T, Rank>> view_of(const Struct& t) {
  const auto wrong = [](const char* message, int64 expected, int64 got) {
    return result<tensor_view<T, Rank>>{{}, status::invalid("tensor", message, bound::exactly, expected, got)};
  };
  if (t.dtype.code != code_of<T>())
    return wrong("its elements are of another kind (DLDataTypeCode) than the view's", code_of<T>(), t.dtype.code);
  if (t.dtype.bits != int64{8 * sizeof(T)})
    return wrong("its elements have another number of bits than the view's", int64{8 * sizeof(T)}, t.dtype.bits);
  if (t.dtype.lanes != 1) return wrong("its elements are vectors (lanes)", 1, t.dtype.lanes);
  if (t.ndim != Rank) return wrong("it has another number of dimensions than the view", Rank, t.ndim);
  const auto invalid = [](const char* message) {
    return result<tensor_view<T, Rank>>{{}, status::invalid("tensor", message)};
  };
  if (t.shape == nullptr) return invalid("the pointer to its sizes is null");

  const uint64 begin = reinterpret_cast<uint64>(t.data), offset = t.byte_offset;
  if (begin + offset < begin) return invalid("its byte_offset leads out of the address space");
  T* const data = t.data == nullptr ? nullptr : reinterpret_cast<T*>(begin + offset);
  if ((begin + offset) % alignof(T) != 0) return invalid("its elements are not aligned");
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

/// The same of a struct that owns a tensor, if it may be used as T.
template <class T, int Rank, managed Struct>
GIWA_HOST_DEVICE result<tensor_view<T, Rank>> view_of(const Struct& owner) {
  if constexpr (versioned<Struct>) {
    if (!stdlib::is_const_v<T> && (owner.flags & read_only) != 0)
      return {{}, status::invalid("tensor", "it may only be read: take a view of const elements")};
  }
  return view_of<T, Rank>(owner.dl_tensor);
}

/// Whether the struct's other members are where this one has them.
template <class Struct>
GIWA_HOST_DEVICE constexpr status check_version(const Struct& t) {
  if constexpr (versioned<Struct>)
    if (t.version.major != version)
      return status::invalid("tensor", "its struct is of another major version of DLPack", bound::exactly, version,
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

/// `from_dlpack<const float, 2>(device, tensor)`: a view of the tensor for kernels on that GPU, a number as in CUDA and in
/// DLPack. `tensor` is a DLTensor, DLManagedTensor or DLManagedTensorVersioned, or any struct with their members: giwa has no
/// header of DLPack's. Nothing is copied or owned: the producer's deleter is yours to call, after the last use, and so is the
/// order of the streams. Strides that are null mean row-major order.
///
/// Errors, all of `tensor`: memory that this GPU does not own and that is neither pinned nor managed; another element type,
/// more than one lane, another number of dimensions; an offset or strides that leave the address space, elements off their
/// alignment; of a versioned struct, another major version, or a view that could write what may only be read.
template <class T, int Rank, detail::dlpack_tensor Tensor>
GIWA_HOST_DEVICE result<tensor_view<T, Rank>> from_dlpack(int device, const Tensor& tensor) {
  namespace dlpack = detail::dlpack;
  if (const status known = dlpack::check_version(tensor); !known.ok()) return {{}, known};
  const auto place = dlpack::device_of(tensor);
  const int type = static_cast<int>(place.device_type);
  if (type != dlpack::cuda && type != dlpack::cuda_host && type != dlpack::cuda_managed)
    return {{},
            status::invalid("tensor", "it lies in memory that is not CUDA's (DLDeviceType)", bound::exactly,
                            dlpack::cuda, type)};
  if (type == dlpack::cuda && place.device_id != device)
    return {{},
            status::invalid("tensor", "it lies in the memory of another GPU", bound::exactly, device, place.device_id)};
  return dlpack::view_of<T, Rank>(tensor);
}

/// `from_dlpack<const float, 2>(giwa::host, tensor)`: the same for the CPU: ordinary, pinned or managed memory.
template <class T, int Rank, detail::dlpack_tensor Tensor>
GIWA_HOST_DEVICE result<tensor_view<T, Rank>> from_dlpack(host_t, const Tensor& tensor) {
  namespace dlpack = detail::dlpack;
  if (const status known = dlpack::check_version(tensor); !known.ok()) return {{}, known};
  const int type = static_cast<int>(dlpack::device_of(tensor).device_type);
  if (type != dlpack::cpu && type != dlpack::cuda_host && type != dlpack::cuda_managed)
    return {{},
            status::invalid("tensor", "it lies in memory that is not the CPU's (DLDeviceType)", bound::exactly,
                            dlpack::cpu, type)};
  return dlpack::view_of<T, Rank>(tensor);
}

}  // namespace giwa::inline GIWA_ABI

#endif
