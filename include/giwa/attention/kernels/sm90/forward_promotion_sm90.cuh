// SPDX-License-Identifier: MIT
// Sums of O in fp32 for e4m3 in the Hopper kernel.
#ifndef GIWA_ATTENTION_KERNELS_SM90_FORWARD_PROMOTION_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_FORWARD_PROMOTION_SM90_CUH

#include <giwa/attention/kernels/sm90/forward_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Tensor cores keep 13 bits after the largest exponent of what they add, and truncate: over n keys of one sign O loses about
/// n 2^-14 / 4 of itself. So a sum ends where the number of its keys / Policy::keys_of_sum changes, which depends on the keys' numbers
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
    for_each(c, [&](float4& sum, int i) {
      const float4 more = {o.value[i], o.value[i + 1], o.value[i + 2], o.value[i + 3]};
      sum = has_sums ? plus(sum, more) : more;
    });
    has_sums = true;
  }
  /// Multiplies the sums of each row by factor[row].
  template <class Consumer>
  GIWA_DEVICE void rescale(const Consumer& c, const float (&factor)[2]) const {
    if (!has_sums) return;
    for_each(c, [&](float4& sum, int) {
      sum = {sum.x * factor[0], sum.y * factor[0], sum.z * factor[1], sum.w * factor[1]};
    });
  }
  /// Adds the sums to O, after the last product.
  template <class Consumer, class Output>
  GIWA_DEVICE void finish(const Consumer& c, Output& o) const {
    if (!has_sums) return;
    for_each(c, [&](const float4& sum, int i) {
      o.value[i] += sum.x, o.value[i + 1] += sum.y, o.value[i + 2] += sum.z, o.value[i + 3] += sum.w;
    });
  }

 private:
  GIWA_DEVICE static float4 plus(const float4& a, const float4& b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }
  /// Calls f(four sums, register of the first one).
  template <class Consumer, class F>
  GIWA_DEVICE static void for_each(const Consumer& c, const F& f) {
    GIWA_UNROLL
    for (int i = 0; i < registers; i += 4) f(c.s.transposer.sums.of_thread[c.index][i / 4][c.thread], i);
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
