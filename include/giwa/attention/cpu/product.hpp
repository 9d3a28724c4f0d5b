// SPDX-License-Identifier: MIT
// The inner loops of attention on the CPU, as functions for each instruction set, and the choice of one when a call runs.
#ifndef GIWA_ATTENTION_CPU_PRODUCT_HPP
#define GIWA_ATTENTION_CPU_PRODUCT_HPP

#include <giwa/attention/problem/scales.hpp>
#include <giwa/base/std.hpp>
#include <giwa/numeric/fp8.hpp>
#include <giwa/numeric/int4_pair.hpp>
#include <giwa/numeric/int8_code.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/softmax/exponential.hpp>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace giwa::inline GIWA_ABI::detail {

/// A vector register of floats, or of their bits. It may alias the elements of an array.
template <int Lanes>
struct host_vector {
  typedef float type __attribute__((vector_size(Lanes * sizeof(float)), may_alias));
  typedef stdlib::int32_t bits __attribute__((vector_size(Lanes * sizeof(float)), may_alias));
};

/// What a product does with c: store it, continue the chain of additions in c with it, or sum it separately and add the sum to c.
enum class host_sum { store, extend, add };

/// The inner loops for one instruction set. Memory of floats is aligned to vectors, and counts of floats are multiples
/// of `lanes`, except in the last functions.
struct host_loops {
  static constexpr int rows = 6;   // of an accumulator tile: a product has so many at once
  static constexpr int row = 64;   // scores of a row of a tile
  static constexpr int sums = 16;  // separate maxima and sums of a row
  static constexpr int most_lanes = 16;
  int lanes;    // floats of a vector register
  int vectors;  // registers of a row of an accumulator tile
  int columns;  // lanes * vectors

  /// Computes c = a panel or c += a panel: a is (count, depth) with strides a_row and a_step, panel (depth, wide * lanes),
  /// c (count, wide * lanes), wide <= vectors. The panel is contiguous. Each element is one chain of additions in the order of depth, so its
  /// bits do not depend on the number of rows. Rows up to the next multiple of `rows` are also read and written, unless
  /// there is only one row.
  void (*product)(host_sum sum, int wide, int count, const float* a, int64 a_row, int64 a_step, const float* panel,
                  int depth, float* c, int64 c_stride);
  /// Replaces x (row) by e^(x - reference), x <= reference, and adds them to sum (sums), all of a row first.
  void (*exponentials)(float* x, float reference, float* sum);
  /// Multiplies x (row) by factor, and returns the largest number, or -inf if all are NaN.
  float (*scale_and_max)(float* x, float factor);
  /// Multiplies x by factor.
  void (*scale)(float* x, int count, float factor);
  /// Replaces x (row) by x factor - minus.
  void (*scale_and_subtract)(float* x, float factor, const float* minus);
  /// Replaces dp (row) by p (dp - delta).
  void (*score_gradients)(const float* p, const float* delta, float* dp);
  /// Converts a row of elements to float.
  ///@{
  void (*widen_fp32)(const float* from, float* to, int count);
  void (*widen_fp16)(const fp16* from, float* to, int count);
  void (*widen_bf16)(const bf16* from, float* to, int count);
  ///@}
  /// Rounds a row to fp16 as __float2half_rn does, which is a function call for each element on the CPU.
  void (*narrow_fp16)(const float* from, fp16* to, int count);
  /// Writes `lanes` rows to as many columns of a panel, which are aligned to a vector.
  void (*transpose)(const float* const* rows, float* panel, int count);
  /// Writes a row (count) as row j of panels (columns), the last of which may be narrower, each of `rows` rows.
  void (*put_row)(const float* row, float* panels, int count, int j, int rows);
  /// Returns whether all elements are finite.
  bool (*finite)(const float* x, int count);
};

/// Converts a row of elements to float.
///@{
inline void host_widen(const host_loops& loops, const float* from, float* to, int count) {
  loops.widen_fp32(from, to, count);
}
inline void host_widen(const host_loops& loops, const fp16* from, float* to, int count) {
  loops.widen_fp16(from, to, count);
}
inline void host_widen(const host_loops& loops, const bf16* from, float* to, int count) {
  loops.widen_bf16(from, to, count);
}
// The same loop as that of fp16, for the instructions that the program is compiled for.
inline void host_widen(const host_loops&, const e4m3* from, float* to, int count) {
  for (int i = 0; i < count; ++i) {
    const uint32 raw = from[i].bits(), magnitude = raw & 0x7fu;
    // Exponent and fraction in their places; the product with 2^120, the difference of the biases, also scales subnormal numbers.
    const uint32 scaled = __builtin_bit_cast(uint32, __builtin_bit_cast(float, magnitude << 20) * 0x1p120f);
    const uint32 bits = magnitude == 0x7f ? 0x7fc00000u : scaled;
    to[i] = __builtin_bit_cast(float, bits | (raw & 0x80u) << 24);
  }
}
inline void host_widen(const host_loops&, const int8_code* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
inline void host_widen(const host_loops&, const int4_pair* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = from[i / 2][i % 2];
}
///@}

/// The same of a row with scales.
template <class T>
inline void host_widen(const host_loops& loops, const scaled_row<T>& row, float* to, int count) {
  if (row.step == 1)
    host_widen(loops, row.data, to, count);
  else
    for (int i = 0; i < count; ++i) to[i] = convert<float>{}(row.data[i * row.step]);
  if (row.channel.data == nullptr && row.mean.data == nullptr)
    for (int i = 0; i < count; ++i) to[i] *= row.scale;
  else
    for (int i = 0; i < count; ++i) to[i] = to[i] * (row.scale * row.channel.get(i, 1.f)) + row.mean.get(i, 0.f);
}

/// Prefetches a row of elements.
template <class T>
inline void host_prefetch(const T* row, int count) {
  const char* const from = reinterpret_cast<const char*>(row);
  for (int i = 0; i < count * static_cast<int>(sizeof(T)); i += 64) __builtin_prefetch(from + i, 0, 2);
}
template <class T>
inline void host_prefetch(const scaled_row<T>& row, int count) {
  if (row.step == 1) host_prefetch(row.data, count);
}

}  // namespace giwa::inline GIWA_ABI::detail

// cpu/loops.hpp once for each instruction set, so that a program needs no compiler flags; first for what the flags allow anyway.
// An accumulator tile leaves room for operands: 6 x 4 of the 32 registers of AVX-512, 6 x 2 of the 16 of AVX2 and SSE.
// Files of one program that are compiled with different flags keep separate functions.
#if defined(__AVX512F__)
#define GIWA_CPU_LOOPS cpu_flags_avx512
#define GIWA_CPU_LANES 16
#elif defined(__AVX__) && defined(__FMA__)
#define GIWA_CPU_LOOPS cpu_flags_fma
#define GIWA_CPU_LANES 8
#elif defined(__AVX__)
#define GIWA_CPU_LOOPS cpu_flags_avx
#define GIWA_CPU_LANES 8
#else
#define GIWA_CPU_LOOPS cpu_flags_none
#define GIWA_CPU_LANES 4
#endif
namespace giwa::inline GIWA_ABI::detail::GIWA_CPU_LOOPS {}
namespace giwa::inline GIWA_ABI::detail {
namespace cpu_of_flags = GIWA_CPU_LOOPS;
}
#include <giwa/attention/cpu/loops.hpp>

#if defined(__x86_64__) && !(defined(__AVX2__) && defined(__FMA__))
#define GIWA_CPU_LOOPS cpu_avx2
#define GIWA_CPU_LANES 8
#define GIWA_CPU_TARGET "avx2,fma,f16c"
#include <giwa/attention/cpu/loops.hpp>
#endif

#if defined(__x86_64__) && !defined(__AVX512F__)
#define GIWA_CPU_LOOPS cpu_avx512
#define GIWA_CPU_LANES 16
#define GIWA_CPU_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
#include <giwa/attention/cpu/loops.hpp>
#endif

namespace giwa::inline GIWA_ABI::detail {

/// The loops that this CPU runs, the fastest last.
struct runnable_loops {
  const host_loops* list[3] = {&cpu_of_flags::loops};
  int count = 1;

  runnable_loops() {
#if defined(__x86_64__)
    [[maybe_unused]] const bool avx2 = has_fp16() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if !(defined(__AVX2__) && defined(__FMA__))
    if (avx2) list[count++] = &cpu_avx2::loops;
#endif
#if !defined(__AVX512F__)
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      list[count++] = &cpu_avx512::loops;
#endif
#endif
  }

#if defined(__x86_64__)
 private:
  /// Whether the CPU converts fp16, which the functions for AVX2 may do. Clang 14 does not know the name for
  /// __builtin_cpu_supports.
  static bool has_fp16() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }
#endif
};
inline const host_loops& fastest_loops() {
  const runnable_loops all;
  return *all.list[all.count - 1];
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
