// SPDX-License-Identifier: MIT
// Sums of O in fp32 for e4m3 in the Hopper kernel, in shared or local memory.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_PROMOTION_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_PROMOTION_SM90_CUH

#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Tensor cores keep 13 bits after the largest exponent of what they add, and truncate: over n keys of one sign O loses about
/// n 2^-17 of itself. So a sum ends where the number of its keys / Policy::keys_of_sum changes, which depends on the keys' numbers
/// alone and not on which tiles a block skips. It is empty for kernels without such sums.
template <class Types>
struct promoted_output {
  static constexpr bool continues = true;
  GIWA_DEVICE void begin(int) const {}
  template <class Consumer, class Output>
  GIWA_DEVICE void promote_before(const Consumer&, int, const Output&) const {}
  template <class Consumer>
  GIWA_DEVICE void rescale(const Consumer&, const float (&)[2]) const {}
  template <class Consumer, class Output>
  GIWA_DEVICE void finish(const Consumer&, Output&) const {}
};

template <class Types>
  requires(Types::promotes)
struct promoted_output<Types> {
  static constexpr int keys = Types::policy::keys_of_sum, registers = Types::head_size_v / 2;
  static constexpr bool in_shared = Types::policy::sums_in_shared;
  static_assert(keys % Types::block_n == 0, "a tile belongs to one sum");
  bool continues = true;  // the next product is added to O
  bool has_sums = false;
  int number = 0;  // of the sum in O

  /// The tile of the first product begins at `first_key`.
  GIWA_DEVICE void begin(int first_key) { number = first_key / keys; }
  /// O is complete up to the tile before that of `first_key`: moves it to the sums if the tile belongs to the next one.
  template <class Consumer, class Output>
  GIWA_DEVICE void promote_before(const Consumer& c, int first_key, const Output& o) {
    const int next = first_key / keys;
    continues = !c.block.any(next != number);
    if (continues) return;
    number = next;
    GIWA_UNROLL
    for (int i = 0; i < registers; i += 4) {
      const float4 sum = has_sums ? get(c, i) : float4{0, 0, 0, 0};
      set(c, i, {sum.x + o.value[i], sum.y + o.value[i + 1], sum.z + o.value[i + 2], sum.w + o.value[i + 3]});
    }
    has_sums = true;
  }
  /// Multiplies the sums of each row by factor[row].
  template <class Consumer>
  GIWA_DEVICE void rescale(const Consumer& c, const float (&factor)[2]) {
    if (!has_sums) return;
    GIWA_UNROLL
    for (int i = 0; i < registers; i += 4) {
      const float4 sum = get(c, i);
      set(c, i, {sum.x * factor[0], sum.y * factor[0], sum.z * factor[1], sum.w * factor[1]});
    }
  }
  /// Adds the sums to O, after the last product.
  template <class Consumer, class Output>
  GIWA_DEVICE void finish(const Consumer& c, Output& o) const {
    if (!has_sums) return;
    GIWA_UNROLL
    for (int i = 0; i < registers; i += 4) {
      const float4 sum = get(c, i);
      o.value[i] += sum.x, o.value[i + 1] += sum.y, o.value[i + 2] += sum.z, o.value[i + 3] += sum.w;
    }
  }

 private:
  volatile float in_local[in_shared ? 1 : registers];  // volatile: otherwise ptxas holds them in registers

  /// Four sums of the thread, of two columns of its two rows.
  template <class Consumer>
  GIWA_DEVICE float4 get(const Consumer& c, int i) const {
    if constexpr (in_shared)
      return c.s.transposer.sums.of_thread[c.index][i / 4][c.thread];
    else
      return {in_local[i], in_local[i + 1], in_local[i + 2], in_local[i + 3]};
  }
  template <class Consumer>
  GIWA_DEVICE void set(const Consumer& c, int i, const float4& sum) {
    if constexpr (in_shared)
      c.s.transposer.sums.of_thread[c.index][i / 4][c.thread] = sum;
    else
      in_local[i] = sum.x, in_local[i + 1] = sum.y, in_local[i + 2] = sum.z, in_local[i + 3] = sum.w;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
