// SPDX-License-Identifier: MIT
// The functions of host_loops for one instruction set: cpu/product.hpp includes this file once for each, in separate namespaces.
#ifndef GIWA_ATTENTION_CPU_LOOPS_HPP
#define GIWA_ATTENTION_CPU_LOOPS_HPP

#if defined(GIWA_CPU_LOOPS)

#if defined(GIWA_CPU_TARGET)
#define GIWA_CPU_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define GIWA_CPU_FUNCTIONS(target_) \
  GIWA_CPU_PRAGMA(clang attribute push(__attribute__((target(target_))), apply_to = function))
#else
#define GIWA_CPU_FUNCTIONS(target_) GIWA_CPU_PRAGMA(GCC push_options) GIWA_CPU_PRAGMA(GCC target(target_))
#endif
GIWA_CPU_FUNCTIONS(GIWA_CPU_TARGET)
#endif

namespace giwa::inline GIWA_ABI::detail::GIWA_CPU_LOOPS {

inline constexpr int lanes = GIWA_CPU_LANES, vectors = lanes == 16 ? 4 : 2, rows = host_loops::rows,
                     sums = host_loops::sums;
using vector = typename host_vector<lanes>::type;
using vector_bits = typename host_vector<lanes>::bits;

/// Calls f(0), ..., f(Count - 1) with constants: g++ -O2 does not unroll loops, and registers cannot be indexed.
template <int... Numbers, class F>
inline __attribute__((always_inline)) void unrolled(stdlib::integer_sequence<int, Numbers...>, const F& f) {
  (f(stdlib::integral_constant<int, Numbers>{}), ...);
}
template <int Count, class F>
inline __attribute__((always_inline)) void unroll(const F& f) {
  unrolled(stdlib::make_integer_sequence<int, Count>{}, f);
}

/// Computes c = a panel or c += a panel: a is (Rows, depth) with strides a_row and a_step, panel (depth, Vectors * lanes), c
/// (Rows, Vectors * lanes).
/// The panel is contiguous and, like the rows of c, aligned to its vectors. Each element is one chain of additions in
/// the order of depth, so its bits do not depend on the number of rows.
template <host_sum Sum, int Rows, int Vectors>
void product(const float* a, int64 a_row, int64 a_step, const float* panel, int depth, float* c, int64 c_stride) {
  const auto at = [&](int i) -> vector& {
    return *reinterpret_cast<vector*>(c + i / Vectors * c_stride + i % Vectors * lanes);
  };
  vector sum[stdlib::size_t{Rows} * Vectors];
  // Zeros by memset: vector{} is an internal error of nvcc 13.0 under --expt-relaxed-constexpr.
  unroll<Rows * Vectors>([&](auto i) {
    if constexpr (Sum == host_sum::extend)
      sum[i] = at(i);
    else
      __builtin_memset(&sum[i], 0, sizeof(vector));
  });
  for (int k = 0; k < depth; ++k) {
    vector x[stdlib::size_t{Vectors}];
    unroll<Vectors>([&](auto v) { x[v] = *reinterpret_cast<const vector*>(panel + v * lanes); });
    unroll<Rows>([&](auto r) {
      const float y = a[r * a_row];
      unroll<Vectors>([&](auto v) { sum[r * Vectors + v] += y * x[v]; });
    });
    panel += Vectors * lanes;
    a += a_step;
  }
  unroll<Rows * Vectors>([&](auto i) {
    if constexpr (Sum == host_sum::add)
      at(i) += sum[i];
    else
      at(i) = sum[i];
  });
}

/// Any number of rows, and of registers in a row.
template <host_sum Sum, int Vectors>
void product_of(int wide, int count, const float* a, int64 a_row, int64 a_step, const float* panel, int depth, float* c,
                int64 c_stride) {
  if constexpr (Vectors > 1 && Sum != host_sum::store)  // which has whole panels
    if (wide < Vectors) return product_of<Sum, Vectors - 1>(wide, count, a, a_row, a_step, panel, depth, c, c_stride);
  if (count == 1) return product<Sum, 1, Vectors>(a, a_row, a_step, panel, depth, c, c_stride);
  for (int r = 0; r < count; r += rows)
    product<Sum, rows, Vectors>(a + r * a_row, a_row, a_step, panel, depth, c + r * c_stride, c_stride);
}
inline void any_product(host_sum sum, int wide, int count, const float* a, int64 a_row, int64 a_step,
                        const float* panel, int depth, float* c, int64 c_stride) {
  if (sum == host_sum::store)
    product_of<host_sum::store, vectors>(wide, count, a, a_row, a_step, panel, depth, c, c_stride);
  else if (sum == host_sum::add)
    product_of<host_sum::add, vectors>(wide, count, a, a_row, a_step, panel, depth, c, c_stride);
  else
    product_of<host_sum::extend, vectors>(wide, count, a, a_row, a_step, panel, depth, c, c_stride);
}

/// The vectors of one of the `sums` separate sums or maxima of a row, and of a row.
inline constexpr int parts = sums / lanes, row_vectors = host_loops::row / lanes;
inline vector& at(float* x, int i) { return *reinterpret_cast<vector*>(x + i * lanes); }
inline const vector& at(const float* x, int i) { return *reinterpret_cast<const vector*>(x + i * lanes); }

/// The method of exponential{}, without its conditional, which g++ 12 turns into a branch, and with the series as multiply-adds:
/// a quarter faster, within 1.2 units in the last place. The nearest integer comes from the bits of a sum. Scalars are
/// broadcast only in sums and products: other broadcasts of 64 bytes crash the front end of nvcc 13.0.
inline void exponentials(float* x, float reference, float* sum) {
  using format = binary_format<float>;
  vector total[stdlib::size_t{parts}];
  unroll<parts>([&](auto i) { __builtin_memset(&total[i], 0, sizeof(vector)); });
  unroll<row_vectors>([&](auto j) {
    const vector d = at(x, j) - reference;
    const vector_bits counts = (vector_bits)(d >= format::lowest),
                      is_nan = (vector_bits)(d != d);  // all ones where true
    const vector c = (vector)((vector_bits)d & counts);
    const vector shifted = c * log2_e<float> + 0x1.8p23f;  // its low bits hold the nearest integer
    const vector n = shifted - 0x1.8p23f;
    const vector r = (c - n * format::ln2_high) - n * format::ln2_low;
    constexpr auto inverse_factorial = [](int of) {
      double product = 1;
      for (int i = 2; i <= of; ++i) product *= i;
      return static_cast<float>(1 / product);
    };
    vector series = r * inverse_factorial(format::terms) + inverse_factorial(format::terms - 1);
    unroll<format::terms - 1>([&](auto k) {
      constexpr float next = inverse_factorial(format::terms - 2 - decltype(k)::value);
      series = series * r + next;
    });
    const vector_bits power = ((vector_bits)shifted << format::fraction) + (format::bias << format::fraction);
    const vector e = (vector)(((vector_bits)(series * (vector)power) & counts) | ((vector_bits)d & is_nan));
    at(x, j) = e;
    total[j % parts] += e;
  });
  unroll<parts>([&](auto i) { at(sum, i) += total[i]; });
}
inline float scale_and_max(float* x, float factor) {
  alignas(64) float most[sums];
  for (float& m : most) m = -infinity_of<float>;
  vector largest[stdlib::size_t{parts}];
  unroll<parts>([&](auto i) { largest[i] = at(most, i); });
  unroll<row_vectors>([&](auto j) {
    const vector scaled = at(x, j) * factor;
    at(x, j) = scaled;
    vector& m = largest[j % parts];
    const vector_bits larger = (vector_bits)(scaled > m);
    m = (vector)(((vector_bits)scaled & larger) | ((vector_bits)m & ~larger));
  });
  unroll<parts>([&](auto i) { at(most, i) = largest[i]; });
  for (int d = sums / 2; d > 0; d /= 2)
    for (int i = 0; i < d; ++i) most[i] = most[i + d] > most[i] ? most[i + d] : most[i];
  return most[0];
}
inline void scale(float* x, int count, float factor) {
  for (int i = 0; i < count / lanes; ++i) at(x, i) *= factor;
}
inline void scale_and_subtract(float* x, float factor, const float* minus) {
  unroll<row_vectors>([&](auto j) { at(x, j) = at(x, j) * factor - at(minus, j); });
}
inline void score_gradients(const float* p, const float* delta, float* dp) {
  unroll<row_vectors>([&](auto j) { at(dp, j) = at(p, j) * (at(dp, j) - at(delta, j)); });
}

/// The lower or the upper halves of two vectors, their elements in turn. nvcc does not expand a pack in this builtin, and
/// g++ before 12 and nvcc before 13 have another one.
#if defined(__clang__) || (__GNUC__ >= 12 && !(defined(__CUDACC__) && __CUDACC_VER_MAJOR__ < 13))
#define GIWA_CPU_SHUFFLE(a_, b_, ...) __builtin_shufflevector(a_, b_, __VA_ARGS__)
#else
#define GIWA_CPU_SHUFFLE(a_, b_, ...) __builtin_shuffle(a_, b_, vector_bits{__VA_ARGS__})
#endif
#if GIWA_CPU_LANES == 16
inline vector lower_in_turn(vector a, vector b) {
  return GIWA_CPU_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline vector upper_in_turn(vector a, vector b) {
  return GIWA_CPU_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif GIWA_CPU_LANES == 8
inline vector lower_in_turn(vector a, vector b) { return GIWA_CPU_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline vector upper_in_turn(vector a, vector b) { return GIWA_CPU_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
inline vector lower_in_turn(vector a, vector b) { return GIWA_CPU_SHUFFLE(a, b, 0, 4, 1, 5); }
inline vector upper_in_turn(vector a, vector b) { return GIWA_CPU_SHUFFLE(a, b, 2, 6, 3, 7); }
#endif
/// Squares of lanes x lanes: each step puts the elements of two rows in turn, and after log2(lanes) steps rows are columns.
inline void transpose(const float* const* from, float* panel, int count) {
  constexpr int columns = lanes * vectors, steps = lanes == 16 ? 4 : lanes == 8 ? 3 : 2;
  int i = 0;
  for (; i + lanes <= count; i += lanes) {
    vector x[stdlib::size_t{lanes}], y[stdlib::size_t{lanes}];
    unroll<lanes>([&](auto r) { __builtin_memcpy(&x[r], from[r] + i, sizeof(vector)); });
    unroll<steps>([&](auto) {
      unroll<lanes / 2>([&](auto r) {
        y[2 * r] = lower_in_turn(x[r], x[r + lanes / 2]);
        y[2 * r + 1] = upper_in_turn(x[r], x[r + lanes / 2]);
      });
      unroll<lanes>([&](auto r) { x[r] = y[r]; });
    });
    unroll<lanes>([&](auto r) { *reinterpret_cast<vector*>(panel + int64{i + r} * columns) = x[r]; });
  }
  for (; i < count; ++i)
    for (int r = 0; r < lanes; ++r) panel[i * columns + r] = from[r][i];
}

// Loops that compilers vectorise.
inline void narrow_fp16(const float* from, fp16* to, int count) {
  for (int i = 0; i < count; ++i) {
    const uint32 raw = __builtin_bit_cast(uint32, from[i]), magnitude = raw & 0x7fffffffu;
    const uint32 normal = ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10);
    // The unit of 0.5f in the last place is that of the subnormal numbers of fp16.
    const uint32 subnormal = __builtin_bit_cast(uint32, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u;
    const uint32 finite_half = magnitude < 0x38800000u ? subnormal : normal;
    const uint32 half = magnitude < 0x47800000u ? finite_half : 0x7c00u;  // from 65536 on infinity
    const uint32 sign = magnitude > 0x7f800000u ? 0 : raw >> 16 & 0x8000u;
    const auto bits = static_cast<stdlib::uint16_t>(magnitude > 0x7f800000u ? 0x7fffu : half | sign);
    __builtin_memcpy(static_cast<void*>(to + i), &bits, sizeof bits);
  }
}
inline void widen_fp32(const float* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = from[i];
}
inline void widen_bf16(const bf16* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = convert<float>{}(from[i]);
}
inline void widen_fp16(const fp16* from, float* to, int count) {
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

inline void put_row(const float* row, float* panels, int count, int j, int panel_rows) {
  constexpr int columns = lanes * vectors;
  for (int first = 0; first < count; first += columns) {
    const int wide = count - first < columns ? count - first : columns;
    float* const to = panels + int64{first} * panel_rows + int64{j} * wide;
    for (int i = 0; i < wide; i += lanes) __builtin_memcpy(to + i, row + first + i, sizeof(vector));
  }
}
inline bool finite(const float* x, int count) {
  uint32 largest = 0;
  for (int i = 0; i < count; ++i) {
    const uint32 magnitude = __builtin_bit_cast(uint32, x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest < 0x7f800000u;
}

inline constexpr host_loops loops{
    lanes,           vectors,    lanes* vectors, any_product, exponentials, scale_and_max, scale,   scale_and_subtract,
    score_gradients, widen_fp32, widen_fp16,     widen_bf16,  narrow_fp16,  transpose,     put_row, finite};

}  // namespace giwa::inline GIWA_ABI::detail::GIWA_CPU_LOOPS

#if defined(GIWA_CPU_TARGET)
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef GIWA_CPU_FUNCTIONS
#undef GIWA_CPU_PRAGMA
#undef GIWA_CPU_TARGET
#endif
#undef GIWA_CPU_SHUFFLE
#undef GIWA_CPU_LANES
#undef GIWA_CPU_LOOPS

#endif

#undef GIWA_ATTENTION_CPU_LOOPS_HPP  // for the next instruction set

#endif
