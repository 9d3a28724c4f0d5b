// SPDX-License-Identifier: MIT
// Reads and writes of up to 16 bytes in one memory access.
#ifndef GIWA_NUMERIC_VECTOR_ACCESS_HPP
#define GIWA_NUMERIC_VECTOR_ACCESS_HPP

#include <giwa/base/std.hpp>

#if !defined(__CUDACC_RTC__)  // NVRTC declares them itself
#include <vector_types.h>
#endif

namespace giwa::inline GIWA_ABI::detail {

/// The type that a GPU reads and writes so many bytes as, in one access. A structure of smaller members of the same
/// size may be accessed piece by piece.
template <int Bytes>
struct vector_word;
template <>
struct vector_word<1> {
  using type = unsigned char;
};
template <>
struct vector_word<2> {
  using type = unsigned short;
};
template <>
struct vector_word<4> {
  using type = uint32;
};
template <>
struct vector_word<8> {
  using type = ::uint2;
};
template <>
struct vector_word<16> {
  using type = ::uint4;
};
template <class Value>
using vector_word_of = typename vector_word<static_cast<int>(sizeof(Value))>::type;

/// Reads a Value of 1, 2, 4, 8 or 16 bytes in one access. `from` is aligned to its size.
template <class Value>
GIWA_HOST_DEVICE Value load_vector(const void* from) {
  Value value;
#if defined(__CUDA_ARCH__)
  const auto word = *static_cast<const vector_word_of<Value>*>(from);
  __builtin_memcpy(static_cast<void*>(&value), &word, sizeof value);
#else
  __builtin_memcpy(static_cast<void*>(&value), from, sizeof value);
#endif
  return value;
}

/// Writes a Value of 1, 2, 4, 8 or 16 bytes in one access. `to` is aligned to its size.
template <class Value>
GIWA_HOST_DEVICE void store_vector(void* to, const Value& value) {
#if defined(__CUDA_ARCH__)
  vector_word_of<Value> word;
  __builtin_memcpy(&word, static_cast<const void*>(&value), sizeof word);
  *static_cast<vector_word_of<Value>*>(to) = word;
#else
  __builtin_memcpy(to, static_cast<const void*>(&value), sizeof value);
#endif
}

/// The same to global memory, by one instruction (st.global.wb): the compiler may split an assignment.
template <class Value>
GIWA_HOST_DEVICE void store_vector_whole(void* to, const Value& value) {
#if defined(__CUDA_ARCH__)
  vector_word_of<Value> word;
  __builtin_memcpy(&word, static_cast<const void*>(&value), sizeof word);
  __stwb(static_cast<vector_word_of<Value>*>(to), word);
#else
  store_vector(to, value);
#endif
}

/// The same, marked as not read again soon (st.global.cs).
template <class Value>
GIWA_HOST_DEVICE void store_vector_streaming(void* to, const Value& value) {
#if defined(__CUDA_ARCH__)
  vector_word_of<Value> word;
  __builtin_memcpy(&word, static_cast<const void*>(&value), sizeof word);
  __stcs(static_cast<vector_word_of<Value>*>(to), word);
#else
  store_vector(to, value);
#endif
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
