// SPDX-License-Identifier: MIT
// Rotary embeddings, and the options of append_to_cache().
#ifndef GIWA_ATTENTION_APPEND_ROTARY_HPP
#define GIWA_ATTENTION_APPEND_ROTARY_HPP

#include <giwa/attention/problem/views.hpp>
#include <giwa/numeric/constants.hpp>
#include <giwa/numeric/integer.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/numeric/trigonometry.hpp>
#include <giwa/tile/element_run.hpp>

namespace giwa::inline GIWA_ABI {

/// A rotation of a pair: (x, y) becomes (x cos - y sin, y cos + x sin).
struct rotation {
  float cos;  ///< cosine of the angle
  float sin;  ///< sine of the angle
};

/// Which elements of a head are rotated, and which two make up a pair.
struct rotary_layout {
  int size = 0;  ///< number of rotated elements, even, at most the head size; the others are copied
  /// Pair i is (2 i, 2 i + 1), as in GPT-J; else (i, i + size / 2), as in GPT-NeoX and Llama's Hugging Face weights.
  bool interleaved = false;
  int first = 0;  ///< the first rotated element of a head: 512 for the 64 last of 576
};

/// A rotary embedding: a type derived from rotary_layout whose `r(position, pair)` returns the rotation of pair
/// 0 <= pair < size / 2 at any int64 position. Trivially copyable. Called once for each token, pair and few heads. giwa's
/// own are rotary_base, rotary_table and no_rotary; YaRN, NTK by parts and M-RoPE are a user's type of five lines, or a
/// rotary_table. A member `status check() const`, if there is one, is asked first.
template <class Rotary>
concept rotary_embedding =
    stdlib::derived_from<Rotary, rotary_layout> && requires(const Rotary& r, int64 position, int pair) {
      { r(position, pair) } -> stdlib::convertible_to<rotation>;
    };

/// No rotation.
struct no_rotary : rotary_layout {
  /// See rotary_embedding; never called.
  GIWA_HOST_DEVICE constexpr rotation operator()(int64, int) const { return {1, 0}; }
};

/// Rotates pair i at position n by n * scale * theta^(-2 i / size) radians. Cosine and sine are right to 3e-7 up to
/// position 10^7, because angles are computed as 64-bit fractions of a turn; frameworks that multiply fp32 numbers are
/// off by 1e-7 of the angle, 1 radian at 10^7. A rotary_table reproduces those. The same bits on host and device.
/// Source: Su et al. 2021, "RoFormer".
class rotary_base : public rotary_layout {
 public:
#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
  /// theta >= 1 is the base, 0 < scale < 6 multiplies positions: 1 / factor for linear interpolation. size <= 1024.
  rotary_base(double theta, const rotary_layout& layout, double scale = 1) : rotary_layout(layout) {
    valid_ = theta >= 1 && theta <= 1e300 && scale > 0 && scale < 6;
    if (!valid_ || size < 2) return;
    unit_ = fraction(scale * 0.15915494309189533577);  // 1 / (2 pi)
    for (int k = 0; k < powers; ++k) power_[k] = fraction(__builtin_pow(theta, -2.0 * (1 << k) / size));
  }
#endif

  /// See rotary_embedding.
  ///@{
  GIWA_HOST_DEVICE rotation operator()(int64 position, int pair) const { return rotation_of(position, turn_of(pair)); }
  GIWA_HOST_DEVICE constexpr status check() const {
    if (!valid_) return status::invalid("rotary", "theta must be at least 1 and finite, and scale between 0 and 6");
    if (size > 1 << (powers + 1))
      return status::invalid("rotary", "a rotary_base rotates at most so many elements", bound::at_most,
                             1 << (powers + 1), size);
    return {};
  }
  ///@}

  /// Calls use(i, rotation) for each of the 4 pairs from `pair` on, a multiple of 4: the same rotations with a third of the
  /// products.
  template <class Use>
  GIWA_HOST_DEVICE void of_four_pairs(int64 position, int pair, const Use& use) const {
    const uint64 turn = turn_of(pair, 2), second = multiply_high(turn, power_[1]);
    use(0, rotation_of(position, turn));
    use(1, rotation_of(position, multiply_high(turn, power_[0])));
    use(2, rotation_of(position, second));
    use(3, rotation_of(position, multiply_high(second, power_[0])));
  }

 private:
  static constexpr int powers = 9;

  // x in 2^-64, for 0 <= x.
  GIWA_HOST_DEVICE static uint64 fraction(double x) { return x < 1 ? static_cast<uint64>(x * 0x1p64) : ~uint64{0}; }

  static GIWA_HOST_DEVICE rotation rotation_of(int64 position, uint64 turn) {
    const uint64 fraction_of_turn = static_cast<uint64>(position) * turn;  // the fraction: whole turns wrap
    const uint64 quarter = (fraction_of_turn + (uint64{1} << 61)) >> 62;
    const auto rest =
        static_cast<int>(static_cast<int64>(fraction_of_turn - (quarter << 62)) >> 32);  // in 2^-32 of a turn
    const float angle = static_cast<float>(rest) * 0x1.921fb6p-30f;                      // 2 pi / 2^32
    return {detail::sine_of_reduced(angle, static_cast<unsigned>(quarter) + 1),
            detail::sine_of_reduced(angle, static_cast<unsigned>(quarter))};
  }

  // The turns of a pair from one position to the next, in 2^-64: a product over the bits of its number from bit `bits` on,
  // the highest first, so that neighbouring pairs share most of it. Each factor adds an error of 2^-64.
  GIWA_HOST_DEVICE uint64 turn_of(int pair, int bits = 0) const {
    uint64 turn = unit_;
    GIWA_UNROLL
    for (int k = powers - 1; k >= 0; --k)
      if (k >= bits && (pair >> k & 1) != 0) turn = multiply_high(turn, power_[k]);
    return turn;
  }

  uint64 unit_ = 0;            // turns of pair 0
  uint64 power_[powers] = {};  // theta^(-2 2^k / size)
  bool valid_ = true;
};

/// Rotates by tables of cosines and sines, (positions, pairs) in device memory; T is fp16, bf16, fp32 or fp64, rounded to
/// fp32. A position outside the table gives NaN.
template <class T>
class rotary_table : public rotary_layout {
 public:
  /// `layout.size` may be left 0: it is twice the number of columns. vLLM's cos_sin_cache, (positions, size) with the
  /// cosines in front, is two views with its row stride.
  GIWA_HOST_DEVICE constexpr rotary_table(const tensor_view<const T, 2>& cos, const tensor_view<const T, 2>& sin,
                                          const rotary_layout& layout = {})
      : rotary_layout(layout), cos_(cos), sin_(sin) {
    if (size == 0 && cos.extent(1) < (1 << 29)) size = 2 * static_cast<int>(cos.extent(1));
  }

  /// See rotary_embedding.
  ///@{
  GIWA_HOST_DEVICE rotation operator()(int64 position, int pair) const {
    if (position < 0 || position >= cos_.extent(0)) return {detail::nan_of<float>, detail::nan_of<float>};
    return {convert<float>{}(cos_(position, pair)), convert<float>{}(sin_(position, pair))};
  }
  GIWA_HOST_DEVICE constexpr status check() const {
    if (const status s = cos_.check("cos"); !s.ok()) return s;
    if (const status s = sin_.check("sin"); !s.ok()) return s;
    if (cos_.extent(1) != size / 2)
      return status::invalid("cos", "cos is (positions, pairs): it must have half of the rotated elements as columns",
                             bound::exactly, size / 2, cos_.extent(1));
    for (int d = 0; d < 2; ++d)
      if (sin_.extent(d) != cos_.extent(d))
        return status::invalid("sin", "sin must have the sizes of cos", bound::exactly, cos_.extent(d), sin_.extent(d));
    return {};
  }
  ///@}
  /// Calls use(i, rotation) for each of the 4 pairs from `pair` on, a multiple of 4: the same rotations, from one load
  /// of each table whose rows are contiguous and aligned to 4 elements.
  template <class Use>
  GIWA_HOST_DEVICE void of_four_pairs(int64 position, int pair, const Use& use) const {
    if constexpr (sizeof(T) > 4) {
      GIWA_UNROLL
      for (int i = 0; i < 4; ++i) use(i, (*this)(position, pair + i));
    } else {
      using four = detail::element_run<T, 4>;
      const bool inside = position >= 0 && position < cos_.extent(0);
      const auto read = [&](const tensor_view<const T, 2>& table) {
        four values{};
        if (!inside) return values;
        if (table.stride(1) == 1 && detail::rows_are_aligned(table, sizeof(four)))
          return four::read(&table(position, pair));
        GIWA_UNROLL
        for (int i = 0; i < 4; ++i) values.set(i, table(position, pair + i));
        return values;
      };
      const four cos = read(cos_), sin = read(sin_);
      GIWA_UNROLL
      for (int i = 0; i < 4; ++i)
        use(i, inside ? rotation{convert<float>{}(cos.get(i)), convert<float>{}(sin.get(i))}
                      : rotation{detail::nan_of<float>, detail::nan_of<float>});
    }
  }
  /// The tables.
  ///@{
  GIWA_HOST_DEVICE constexpr const tensor_view<const T, 2>& cosines() const { return cos_; }
  GIWA_HOST_DEVICE constexpr const tensor_view<const T, 2>& sines() const { return sin_; }
  ///@}

 private:
  static_assert(floating_element<T>, "giwa::rotary_table: elements must be fp16, bf16, fp32 or fp64.");

  tensor_view<const T, 2> cos_, sin_;  // (positions, pairs)
};
#if !defined(GIWA_DOXYGEN)  // deduction guides
template <class T, class U>
rotary_table(const tensor_view<T, 2>&, const tensor_view<U, 2>&) -> rotary_table<stdlib::remove_const_t<T>>;
template <class T, class U>
rotary_table(const tensor_view<T, 2>&, const tensor_view<U, 2>&, const rotary_layout&)
    -> rotary_table<stdlib::remove_const_t<T>>;
#endif

/// A view of rank 4, (sequences, rows, heads, head size), or 3, (all rows, heads, head size), or no view.
template <class T>
class row_tensor {
 public:
  /// None.
  constexpr row_tensor() = default;
  /// A view of T, or if T is const of elements that are not.
  template <class U, int Rank>
    requires((Rank == 3 || Rank == 4) && stdlib::convertible_to<U (*)[], T (*)[]>)
  GIWA_HOST_DEVICE constexpr row_tensor(const tensor_view<U, Rank>& v)
      : view_(detail::in_four_dimensions(v)), rank_(Rank) {}

  /// Returns the rank of the view: 3 or 4, 0 for none.
  GIWA_HOST_DEVICE constexpr int rank() const { return rank_; }
  /// Returns the view with a first dimension, of size 1 for rank 3.
  GIWA_HOST_DEVICE constexpr const tensor_view<T, 4>& view() const { return view_; }

 private:
  tensor_view<T, 4> view_;
  int rank_ = 0;
};

/// A number for each new row, in device memory, as int or int64; or none. The rows are in the order of k_new: number
/// sequence * new rows + row, or that of the packed row.
class row_numbers {
 public:
  /// None.
  constexpr row_numbers() = default;
  /// Numbers of either type.
  ///@{
  GIWA_HOST_DEVICE constexpr row_numbers(const tensor_view<const int, 1>& numbers) : narrow_(numbers), given_(true) {}
  GIWA_HOST_DEVICE constexpr row_numbers(const tensor_view<int, 1>& numbers) : narrow_(numbers), given_(true) {}
  GIWA_HOST_DEVICE constexpr row_numbers(const tensor_view<const int64, 1>& numbers)
      : wide_(numbers), given_(true), is_wide_(true) {}
  GIWA_HOST_DEVICE constexpr row_numbers(const tensor_view<int64, 1>& numbers)
      : wide_(numbers), given_(true), is_wide_(true) {}
  ///@}

  /// Returns whether there are numbers.
  GIWA_HOST_DEVICE constexpr bool given() const { return given_; }
  /// Returns number i, which must be given.
  GIWA_HOST_DEVICE constexpr int64 operator[](int64 i) const {
    return is_wide_ ? wide_.data()[i * wide_.stride(0)] : narrow_.data()[i * narrow_.stride(0)];
  }
  /// The numbers, of which at most one view has elements.
  ///@{
  GIWA_HOST_DEVICE constexpr const tensor_view<const int, 1>& narrow() const { return narrow_; }
  GIWA_HOST_DEVICE constexpr const tensor_view<const int64, 1>& wide() const { return wide_; }
  ///@}

 private:
  tensor_view<const int, 1> narrow_;
  tensor_view<const int64, 1> wide_;
  bool given_ = false, is_wide_ = false;
};

/// The options of append_to_cache(): `{.q = q, .q_to = q}`. T is the element type of k_new.
template <class T>
struct append_options {
  /// Queries of the new rows, which are rotated as k is and written to q_to, whether their row is written to the cache or
  /// not: sizes of k_new, with any number of heads.
  row_tensor<const T> q{};
  row_tensor<T> q_to{};  ///< the sizes of q; may be the same view
  /// The position of each new row for the rotation. None: where the row is in its sequence. They do not decide where rows
  /// are written. A user's rotation may take any numbers for positions, such as those of rows.
  row_numbers positions{};
  /// Where each new row is written: number of the page (or of the sequence, in a cache without pages) times the size of
  /// dimension 1 of k, plus the row in it. None: where the row is in its sequence. Rows with negative slots, and slots
  /// past the end of the cache, are not written to the cache.
  row_numbers slots{};
  /// Which rows of packed k_new and v_new each sequence has: q_offsets and count; the other members stay unset. Required for
  /// tensors of rank 3, but with slots and, if k is rotated, positions.
  giwa::sequences sequences{};
  /// Of a cache of 8 or 4 bits, written: the scale of each new row and head, as quantize() finds it from the rotated numbers. Sizes are
  /// (sequences or pages, keys, kv heads), those of the cache. The scales of the cache are not read then, and may be these.
  ///@{
  tensor_view<float, 3> k_scales{};
  tensor_view<float, 3> v_scales{};
  ///@}
  /// With k_scales: subtracted from the rotated k, (kv heads, head size). Scores of a query change by one number, which the softmax does not
  /// see, but lse, sinks, a prior, a merge and score modifiers do.
  tensor_view<const float, 2> k_mean{};
  /// With k_scales: the rotated k, less k_mean, and q are multiplied by the Hadamard matrix over the root of the head size, which spreads
  /// outliers over all elements and leaves scores as they are if q is that of this call. The head size is a power of two from 16 to 512 (fp32: 256), all or none of it is
  /// rotated, and rows are aligned to 16 bytes.
  bool hadamard = false;
};

}  // namespace giwa::inline GIWA_ABI

#endif
