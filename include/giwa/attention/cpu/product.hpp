// SPDX-License-Identifier: MIT
// Vector registers, small matrix products and exponentials on the CPU: the inner loops of attention on giwa::host.
#ifndef GIWA_ATTENTION_CPU_PRODUCT_HPP
#define GIWA_ATTENTION_CPU_PRODUCT_HPP

#include <giwa/base/std.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/softmax/exponential.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The vector registers of the CPU that the file is compiled for: `lanes` floats each, and an accumulator tile of `rows` times `vectors`
/// registers that leaves room for its operands. 6 x 4 of the 32 registers of AVX-512, 6 x 2 of the 16 of AVX2 and SSE.
struct host_registers {
#if defined(__AVX512F__)
  static constexpr int lanes = 16, vectors = 4;
#elif defined(__AVX__)
  static constexpr int lanes = 8, vectors = 2;
#else
  static constexpr int lanes = 4, vectors = 2;
#endif
  static constexpr int rows = 6, columns = lanes * vectors;
};

/// A vector register of floats, or of their bits. It may alias the elements of an array.
template <int Lanes>
struct host_vector {
  typedef float type __attribute__((vector_size(Lanes * sizeof(float)), may_alias));
  typedef stdlib::int32_t bits __attribute__((vector_size(Lanes * sizeof(float)), may_alias));
};

/// Calls f(0), ..., f(Count - 1) with constants: g++ -O2 does not unroll loops, and registers cannot be indexed.
template <int... Numbers, class F>
inline __attribute__((always_inline)) void host_unrolled(stdlib::integer_sequence<int, Numbers...>, const F& f) {
  (f(stdlib::integral_constant<int, Numbers>{}), ...);
}
template <int Count, class F>
inline __attribute__((always_inline)) void host_unroll(const F& f) {
  host_unrolled(stdlib::make_integer_sequence<int, Count>{}, f);
}

/// What a product does with c: store it, continue the chain of additions in c with it, or sum it separately and add the sum to c.
enum class host_sum { store, extend, add };

/// Computes c = a panel or c += a panel: a is (Rows, depth), panel (depth, Vectors * Lanes), c (Rows, Vectors * Lanes). The panel is
/// contiguous and, like the rows of c, aligned to its vectors. Each element is one chain of additions in the order of depth, so its bits
/// do not depend on the number of rows.
template <host_sum Sum, int Rows, int Vectors, int Lanes>
void host_product(const float* a, int64 a_stride, const float* panel, int depth, float* c, int64 c_stride) {
  using vector = typename host_vector<Lanes>::type;
  const auto at = [&](int i) -> vector& {
    return *reinterpret_cast<vector*>(c + i / Vectors * c_stride + i % Vectors * Lanes);
  };
  vector sum[stdlib::size_t{Rows} * Vectors];
  // Zeros by memset: vector{} is an internal error of nvcc 13.0 under --expt-relaxed-constexpr.
  host_unroll<Rows * Vectors>([&](auto i) {
    if constexpr (Sum == host_sum::extend)
      sum[i] = at(i);
    else
      __builtin_memset(&sum[i], 0, sizeof(vector));
  });
  for (int k = 0; k < depth; ++k) {
    vector x[stdlib::size_t{Vectors}];
    host_unroll<Vectors>([&](auto v) { x[v] = *reinterpret_cast<const vector*>(panel + v * Lanes); });
    host_unroll<Rows>([&](auto r) {
      const float y = a[r * a_stride];
      host_unroll<Vectors>([&](auto v) { sum[r * Vectors + v] += y * x[v]; });
    });
    panel += Vectors * Lanes;
    ++a;
  }
  host_unroll<Rows * Vectors>([&](auto i) {
    if constexpr (Sum == host_sum::add)
      at(i) += sum[i];
    else
      at(i) = sum[i];
  });
}

/// The same for any number of rows. Rows up to the next multiple of 6 are also read and written, unless there is only one row.
template <host_sum Sum, int Vectors, int Lanes>
void host_product_rows(int rows, const float* a, int64 a_stride, const float* panel, int depth, float* c,
                       int64 c_stride) {
  constexpr int step = host_registers::rows;
  if (rows == 1) return host_product<Sum, 1, Vectors, Lanes>(a, a_stride, panel, depth, c, c_stride);
  for (int r = 0; r < rows; r += step)
    host_product<Sum, step, Vectors, Lanes>(a + r * a_stride, a_stride, panel, depth, c + r * c_stride, c_stride);
}

/// The same for any number of vectors in a row of the panel, at most host_registers::vectors.
template <host_sum Sum, int Lanes, int Vectors = host_registers::vectors>
void host_product_of(int vectors, int rows, const float* a, int64 a_stride, const float* panel, int depth, float* c,
                     int64 c_stride) {
  if constexpr (Vectors > 1)
    if (vectors < Vectors)
      return host_product_of<Sum, Lanes, Vectors - 1>(vectors, rows, a, a_stride, panel, depth, c, c_stride);
  host_product_rows<Sum, Vectors, Lanes>(rows, a, a_stride, panel, depth, c, c_stride);
}

/// Replaces x (Lanes) by e^(x - reference), x <= reference, and adds it to sum (Lanes). This is exponential{} without its conditional,
/// which g++ 12 turns into a branch; the nearest integer comes from the bits of a sum. Scalars are broadcast only in sums and products:
/// other broadcasts of 64 bytes crash the front end of nvcc 13.0.
template <int Lanes>
void host_exponentials(float* x, float reference, float* sum) {
  using format = binary_format<float>;
  using vector = typename host_vector<Lanes>::type;
  using bits = typename host_vector<Lanes>::bits;
  const vector d = *reinterpret_cast<const vector*>(x) - reference;
  const bits counts = (bits)(d >= format::lowest), is_nan = (bits)(d != d);  // all ones where true
  const vector c = (vector)((bits)d & counts);
  const vector shifted = c * log2_e<float> + 0x1.8p23f;  // its low bits hold the nearest integer
  const vector n = shifted - 0x1.8p23f;
  const vector r = (c - n * format::ln2_high) - n * format::ln2_low;
  vector series = r * (1.0f / static_cast<float>(format::terms)) + 1.0f;
  host_unroll<format::terms - 1>([&](auto k) {
    constexpr int term = format::terms - 1 - decltype(k)::value;
    series = series * r * (1.0f / static_cast<float>(term)) + 1.0f;
  });
  const bits power = ((bits)shifted << format::fraction) + (format::bias << format::fraction);
  const vector e = (vector)(((bits)(series * (vector)power) & counts) | ((bits)d & is_nan));
  *reinterpret_cast<vector*>(x) = e;
  *reinterpret_cast<vector*>(sum) += e;
}

/// Multiplies x (Lanes) by factor, and sets most to the larger of both where x is not NaN.
template <int Lanes>
void host_scale_and_max(float* x, float factor, float* most) {
  using vector = typename host_vector<Lanes>::type;
  using bits = typename host_vector<Lanes>::bits;
  const vector scaled = *reinterpret_cast<const vector*>(x) * factor;
  *reinterpret_cast<vector*>(x) = scaled;
  const vector m = *reinterpret_cast<const vector*>(most);
  const bits larger = (bits)(scaled > m);
  *reinterpret_cast<vector*>(most) = (vector)(((bits)scaled & larger) | ((bits)m & ~larger));
}

/// Converts a row of elements to float, in a loop that compilers vectorise.
inline void host_widen(const float* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = from[i];
}
inline void host_widen(const bf16* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = convert<float>{}(from[i]);
}
inline void host_widen(const fp16* from, float* to, int count) {
  for (int i = 0; i < count; ++i) {
    stdlib::uint16_t raw;
    __builtin_memcpy(&raw, from + i, sizeof raw);
    // Exponent and fraction in their places; the product with 2^112, the difference of the biases, also scales subnormal numbers.
    const uint32 magnitude = static_cast<uint32>(raw & 0x7fff) << 13;
    const uint32 scaled = __builtin_bit_cast(uint32, __builtin_bit_cast(float, magnitude) * 0x1p112f);
    const uint32 special = magnitude | 0x7f800000u;  // infinity and NaN
    const uint32 bits = magnitude >= 0x0f800000u ? special : scaled;
    to[i] = __builtin_bit_cast(float, bits | (static_cast<uint32>(raw & 0x8000) << 16));
  }
}

/// Prefetches a row of elements.
template <class T>
inline void host_prefetch(const T* row, int count) {
  const char* const from = reinterpret_cast<const char*>(row);
  for (int i = 0; i < count * static_cast<int>(sizeof(T)); i += 64) __builtin_prefetch(from + i, 0, 2);
}

/// Returns whether all elements are finite.
inline bool host_finite(const float* x, int count) {
  uint32 largest = 0;
  for (int i = 0; i < count; ++i) {
    const uint32 magnitude = __builtin_bit_cast(uint32, x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest < 0x7f800000u;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
