// SPDX-License-Identifier: MIT
// What the kernels of attention ask about an element type and about a GPU: a struct for each type, a line for each GPU.
#ifndef GIWA_ATTENTION_PROBLEM_TRAITS_HPP
#define GIWA_ATTENTION_PROBLEM_TRAITS_HPP

#include <giwa/numeric/fp8.hpp>
#include <giwa/numeric/int4_pair.hpp>
#include <giwa/numeric/int8_code.hpp>
#include <giwa/numeric/integer.hpp>
#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The traits of an element type of q, k, v or of a cache. Not defined for other types.
///   - operand: the type that tensor cores multiply for it
///   - bytes: of an element
///   - on_tensor_cores: tensor cores multiply the elements as they are
///   - is_split: tensor cores multiply an element as two operands, hi and lo (split_fp16/)
///   - has_scales: a cache of these elements has scales, which are multiplied in fp32
///   - reads_v_as_it_lies: tensor cores read V as (keys, head size); otherwise it must lie as (head size, keys)
///   - codes: numbers in an element, 1 if it is not there
///   - bits, nonfinite: an element is NaN or infinity where all bits of `nonfinite` are set; without them none is
template <class T>
struct element_traits;

template <class T, unsigned short Nonfinite>
struct traits_of_16_bits {
  using operand = T;
  using bits = unsigned short;
  static constexpr bits nonfinite = Nonfinite;
  static constexpr int bytes = 2;
  static constexpr bool on_tensor_cores = true, is_split = false, has_scales = false, reads_v_as_it_lies = true;
};
template <>
struct element_traits<fp16> : traits_of_16_bits<fp16, 0x7c00> {};
template <>
struct element_traits<bf16> : traits_of_16_bits<bf16, 0x7f80> {};

template <>
struct element_traits<fp32> {
  using operand = fp16;
  using bits = uint32;
  static constexpr bits nonfinite = 0x7f800000u;
  static constexpr int bytes = 4;
  static constexpr bool on_tensor_cores = false, is_split = true, has_scales = false, reads_v_as_it_lies = true;
};

/// 8-bit operands of tensor cores must be contiguous along the keys: attention_forward transposes V on Hopper, and attention_cached
/// converts a cache's e4m3 to fp16.
template <>
struct element_traits<e4m3> {
  using operand = e4m3;
  using bits = unsigned char;
  static constexpr bits nonfinite = 0x7f;  // NaN: there is no infinity
  static constexpr int bytes = 1;
  static constexpr bool on_tensor_cores = false, is_split = false, has_scales = true, reads_v_as_it_lies = false;
};

/// Integers are elements of caches alone. attention_cached converts them to fp16.
template <>
struct element_traits<int8_code> {
  static constexpr int bytes = 1;
  static constexpr bool on_tensor_cores = false, is_split = false, has_scales = true, reads_v_as_it_lies = false;
};

template <>
struct element_traits<int4_pair> : element_traits<int8_code> {
  static constexpr int codes = 2;
};

/// Numbers in an element.
template <class T>
inline constexpr int codes_of = 1;
template <class T>
  requires(element_traits<T>::codes > 1)
inline constexpr int codes_of<T> = element_traits<T>::codes;
/// Elements that are the bytes of rows in a custom format: T::number_at(row, i) is a number of a row, T::numbers_in(n) counts those of
/// n bytes.
template <class T>
concept row_format = requires(const T* row) { T::number_at(row, 0); };
/// Of latent rows, which have k and v.
template <class T>
concept latent_format = row_format<T> && requires { T::row_bytes; };
/// Number i of a row, exactly.
template <class Wide, class T>
GIWA_HOST_DEVICE Wide number_of_row(const T* row, int64 i) {
  if constexpr (row_format<T>)
    return static_cast<Wide>(T::number_at(row, i));
  else if constexpr (codes_of<T> == 1)
    return convert<Wide>{}(row[i]);
  else
    return row[i / codes_of<T>][static_cast<int>(i % codes_of<T>)];
}

/// Whether elements of so many bytes are on_tensor_cores, or is_split: problems name their elements by the bytes.
///@{
GIWA_HOST_DEVICE constexpr bool are_on_tensor_cores(int64 bytes) { return bytes == element_traits<fp16>::bytes; }
GIWA_HOST_DEVICE constexpr bool are_split(int64 bytes) { return bytes == element_traits<fp32>::bytes; }
///@}

/// Whether T is an element type with scales.
template <class T>
inline constexpr bool takes_scales = false;
template <class T>
  requires(element_traits<T>::has_scales)
inline constexpr bool takes_scales<T> = true;

/// An element type of q, k and v of attention_forward.
template <class T>
concept attention_input = requires { typename element_traits<T>::operand; };
/// An element type of the inputs and outputs of every call of attention.
template <class T>
concept attention_element = attention_input<T> && floating_element<T>;

/// An element type of caches besides those of q.
template <class T>
concept scaled_element = requires { requires element_traits<T>::has_scales; };
/// Whether a number of the type may be NaN or infinity.
template <class T>
inline constexpr bool may_be_nonfinite = requires { element_traits<T>::nonfinite; };

/// The traits of a GPU. Those of the current one are current_gpu(); a compute capability says all but the multiprocessors.
struct gpu_traits {
  bool mma = false;           // mma.sync and cp.async: the kernels of kernels/sm80
  bool wgmma = false;         // wgmma and TMA: the kernels of kernels/sm90
  int64 shared_bytes = 0;     // the most that a block may have
  int64 multiprocessors = 0;  // 0: not known

  /// `capability` is 90 for 9.0. What a new GPU runs is a line here.
  GIWA_HOST_DEVICE static constexpr gpu_traits of(int capability) {
    constexpr int64 kib = 1 << 10;
    if (capability < 80) return {false, false, 64 * kib};
    if (capability == 80 || capability == 87) return {true, false, 163 * kib};
    if (capability < 90) return {true, false, 99 * kib};
    if (capability < 100) return {true, true, 227 * kib};
    if (capability < 120) return {true, false, 227 * kib};
    return {true, false, 99 * kib};
  }
};

/// The shared memory of a block on the GPUs of 8.0 and newer that have the least: 8.6, 8.9 and 12.x.
inline constexpr int64 least_shared_bytes = gpu_traits::of(120).shared_bytes;

}  // namespace giwa::inline GIWA_ABI::detail

#endif
