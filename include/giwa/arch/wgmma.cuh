// SPDX-License-Identifier: MIT
// Tensor-core products of a Hopper warpgroup: (64, k) by (k, n), asynchronous, from shared memory or registers (wgmma).
#ifndef GIWA_ARCH_WGMMA_CUH
#define GIWA_ARCH_WGMMA_CUH

#include <giwa/arch/shared_address.cuh>
#include <giwa/numeric/fp8.hpp>
#include <giwa/numeric/precision.hpp>

namespace giwa::inline GIWA_ABI::arch {

// The four warps of a warpgroup call these together. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//   wgmma_fence()       before the first product, and after other code has written a register that a product uses
//   wgmma<n>::shared    products; those of one shape on one accumulator need no fence between them
//   wgmma_commit()      closes a group of products
//   wgmma_wait<n>()     until at most n groups are incomplete; do not access accumulators or registers of A before
//   fence_operand(r)    after each wait: tells the compiler that the registers r change at this point

/// Orders the registers that ordinary code has written before the products that follow.
GIWA_DEVICE inline void wgmma_fence() {
#if GIWA_ARCH_HAS_SM90A
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/// Closes a group of products.
GIWA_DEVICE inline void wgmma_commit() {
#if GIWA_ARCH_HAS_SM90A
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Waits until at most `Pending` groups are in flight.
template <int Pending>
GIWA_DEVICE void wgmma_wait() {
#if GIWA_ARCH_HAS_SM90A
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#endif
}
/// Waits until at most `Pending` groups are in flight and x is computed. With wgmma_wait() ptxas may move arithmetic that
/// should overlap the products behind the wait. Costs a comparison and an event for profilers if x is infinite, so x must not be
/// a number that ptxas knows to be finite. (A comparison with 0 is left out if x is a sum of exponentials.)
template <int Pending>
GIWA_DEVICE void wgmma_wait_after([[maybe_unused]] float x) {
#if GIWA_ARCH_HAS_SM90A
  asm volatile("{ .reg .pred p; setp.eq.f32 p, %0, 0f7F800000; @p pmevent 0; }" ::"f"(x) : "memory");
  wgmma_wait<Pending>();
#endif
}
/// Tells the compiler that registers of a product change at this point, so that it does not move accesses to them past
/// it. Call it after each wait. Generates no instruction.
///@{
template <int Count>
GIWA_DEVICE void fence_operand(float (&registers)[Count]) {
  GIWA_UNROLL
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int Count>
GIWA_DEVICE void fence_operand(uint32 (&registers)[Count]) {
  GIWA_UNROLL
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}
///@}
/// The same for a matrix descriptor, which each product of a loop over k uses after it was advanced: otherwise the
/// compiler computes all of them from the first one, and ptxas moves the words that do not change once more for each.
GIWA_DEVICE inline void fence_descriptor(uint64& descriptor) { asm volatile("" : "+l"(descriptor)); }
/// Makes the compiler forget where an index comes from: what follows from it is computed after this.
GIWA_DEVICE inline void fence_index(int& index) { asm volatile("" : "+r"(index)); }

/// The contiguous dimension of an operand in shared memory: k (K-major), or the rows of A and the columns of B
/// (MN-major).
enum class major : int { k = 0, mn = 1 };

/// Products d = a b, or d += a b if `accumulate` is not 0. d is (64, Columns) in fp32; k is 32 bytes of T.
///   shared      a and b are matrix descriptors
///   registers   a is in registers, b is a matrix descriptor
template <int Columns>
struct wgmma {
  static_assert(Columns % 16 == 0 && Columns >= 16 && Columns <= 256,
                "giwa: wgmma needs a multiple of 16 columns, from 16 to 256.");
};

// The operands of the accumulator, eight at a time.
#define GIWA_DETAIL_D8(i)                                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define GIWA_DETAIL_D16(i) GIWA_DETAIL_D8(i), GIWA_DETAIL_D8(i + 8)
#define GIWA_DETAIL_D24(i) GIWA_DETAIL_D16(i), GIWA_DETAIL_D8(i + 16)
#define GIWA_DETAIL_D32(i) GIWA_DETAIL_D16(i), GIWA_DETAIL_D16(i + 16)
#define GIWA_DETAIL_D40(i) GIWA_DETAIL_D32(i), GIWA_DETAIL_D8(i + 32)
#define GIWA_DETAIL_D48(i) GIWA_DETAIL_D32(i), GIWA_DETAIL_D16(i + 32)
#define GIWA_DETAIL_D56(i) GIWA_DETAIL_D32(i), GIWA_DETAIL_D24(i + 32)
#define GIWA_DETAIL_D64(i) GIWA_DETAIL_D32(i), GIWA_DETAIL_D32(i + 32)
#define GIWA_DETAIL_D72(i) GIWA_DETAIL_D64(i), GIWA_DETAIL_D8(i + 64)
#define GIWA_DETAIL_D80(i) GIWA_DETAIL_D64(i), GIWA_DETAIL_D16(i + 64)
#define GIWA_DETAIL_D88(i) GIWA_DETAIL_D64(i), GIWA_DETAIL_D24(i + 64)
#define GIWA_DETAIL_D96(i) GIWA_DETAIL_D64(i), GIWA_DETAIL_D32(i + 64)
#define GIWA_DETAIL_D104(i) GIWA_DETAIL_D64(i), GIWA_DETAIL_D40(i + 64)
#define GIWA_DETAIL_D112(i) GIWA_DETAIL_D64(i), GIWA_DETAIL_D48(i + 64)
#define GIWA_DETAIL_D120(i) GIWA_DETAIL_D64(i), GIWA_DETAIL_D56(i + 64)
#define GIWA_DETAIL_D128(i) GIWA_DETAIL_D64(i), GIWA_DETAIL_D64(i + 64)
// Their numbers in the instruction.
#define GIWA_DETAIL_P8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define GIWA_DETAIL_P16 GIWA_DETAIL_P8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define GIWA_DETAIL_P24 GIWA_DETAIL_P16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define GIWA_DETAIL_P32 GIWA_DETAIL_P24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define GIWA_DETAIL_P40 GIWA_DETAIL_P32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define GIWA_DETAIL_P48 GIWA_DETAIL_P40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define GIWA_DETAIL_P56 GIWA_DETAIL_P48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define GIWA_DETAIL_P64 GIWA_DETAIL_P56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define GIWA_DETAIL_P72 GIWA_DETAIL_P64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define GIWA_DETAIL_P80 GIWA_DETAIL_P72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define GIWA_DETAIL_P88 GIWA_DETAIL_P80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define GIWA_DETAIL_P96 GIWA_DETAIL_P88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define GIWA_DETAIL_P104 GIWA_DETAIL_P96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define GIWA_DETAIL_P112 GIWA_DETAIL_P104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define GIWA_DETAIL_P120 GIWA_DETAIL_P112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define GIWA_DETAIL_P128 GIWA_DETAIL_P120 ",%120,%121,%122,%123,%124,%125,%126,%127"

#if GIWA_ARCH_HAS_SM90A
// `a` to `g` are the numbers of the operands after the accumulator. Only 16-bit operands may be MN-major.
#define GIWA_DETAIL_WGMMA(columns, k, type, count, operands, accumulate, tail, ...)                            \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " accumulate                                                    \
               ", 0;"                                                                                          \
               " wgmma.mma_async.sync.aligned.m64n" #columns k ".f32." type "." type " {" GIWA_DETAIL_P##count \
               "}, " operands ", p, 1, 1" tail "; }"                                                           \
               : GIWA_DETAIL_D##count(0)                                                                       \
               : __VA_ARGS__)
#else
#define GIWA_DETAIL_WGMMA(...) __trap()
#endif
#define GIWA_DETAIL_WGMMA_OF(columns, count, a, b, c, d_, e, f, g)                                                  \
  template <>                                                                                                       \
  struct wgmma<columns> {                                                                                           \
    template <class T, major MajorA, major MajorB>                                                                  \
    GIWA_DEVICE static void shared(float (&d)[count], uint64 left, uint64 right, int accumulate) {                  \
      if constexpr (stdlib::is_same_v<T, fp16>)                                                                     \
        GIWA_DETAIL_WGMMA(columns, "k16", "f16", count, a ", " b, c, ", " d_ ", " e, "l"(left), "l"(right),         \
                          "r"(accumulate), "n"(static_cast<int>(MajorA)), "n"(static_cast<int>(MajorB)));           \
      else if constexpr (stdlib::is_same_v<T, bf16>)                                                                \
        GIWA_DETAIL_WGMMA(columns, "k16", "bf16", count, a ", " b, c, ", " d_ ", " e, "l"(left), "l"(right),        \
                          "r"(accumulate), "n"(static_cast<int>(MajorA)), "n"(static_cast<int>(MajorB)));           \
      else if constexpr (stdlib::is_same_v<T, e4m3>)                                                                \
        GIWA_DETAIL_WGMMA(columns, "k32", "e4m3", count, a ", " b, c, "", "l"(left), "l"(right), "r"(accumulate));  \
      else                                                                                                          \
        GIWA_DETAIL_WGMMA(columns, "k8", "tf32", count, a ", " b, c, "", "l"(left), "l"(right), "r"(accumulate));   \
    }                                                                                                               \
    template <class T, major MajorB>                                                                                \
    GIWA_DEVICE static void registers(float (&d)[count], const uint32 (&left)[4], uint64 right, int accumulate) {   \
      if constexpr (stdlib::is_same_v<T, fp16>)                                                                     \
        GIWA_DETAIL_WGMMA(columns, "k16", "f16", count, "{" a "," b "," c "," d_ "}, " e, f, ", " g, "r"(left[0]),  \
                          "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(accumulate),                    \
                          "n"(static_cast<int>(MajorB)));                                                           \
      else if constexpr (stdlib::is_same_v<T, bf16>)                                                                \
        GIWA_DETAIL_WGMMA(columns, "k16", "bf16", count, "{" a "," b "," c "," d_ "}, " e, f, ", " g, "r"(left[0]), \
                          "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(accumulate),                    \
                          "n"(static_cast<int>(MajorB)));                                                           \
      else if constexpr (stdlib::is_same_v<T, e4m3>)                                                                \
        GIWA_DETAIL_WGMMA(columns, "k32", "e4m3", count, "{" a "," b "," c "," d_ "}, " e, f, "", "r"(left[0]),     \
                          "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(accumulate));                   \
      else                                                                                                          \
        GIWA_DETAIL_WGMMA(columns, "k8", "tf32", count, "{" a "," b "," c "," d_ "}, " e, f, "", "r"(left[0]),      \
                          "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(accumulate));                   \
    }                                                                                                               \
  };
GIWA_DETAIL_WGMMA_OF(16, 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
GIWA_DETAIL_WGMMA_OF(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
GIWA_DETAIL_WGMMA_OF(48, 24, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
GIWA_DETAIL_WGMMA_OF(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
GIWA_DETAIL_WGMMA_OF(80, 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
GIWA_DETAIL_WGMMA_OF(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
GIWA_DETAIL_WGMMA_OF(112, 56, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
GIWA_DETAIL_WGMMA_OF(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
GIWA_DETAIL_WGMMA_OF(144, 72, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
GIWA_DETAIL_WGMMA_OF(160, 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
GIWA_DETAIL_WGMMA_OF(176, 88, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
GIWA_DETAIL_WGMMA_OF(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
GIWA_DETAIL_WGMMA_OF(208, 104, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
GIWA_DETAIL_WGMMA_OF(224, 112, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
GIWA_DETAIL_WGMMA_OF(240, 120, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
GIWA_DETAIL_WGMMA_OF(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
#undef GIWA_DETAIL_WGMMA
#undef GIWA_DETAIL_WGMMA_OF
#undef GIWA_DETAIL_D8
#undef GIWA_DETAIL_D16
#undef GIWA_DETAIL_D24
#undef GIWA_DETAIL_D32
#undef GIWA_DETAIL_D40
#undef GIWA_DETAIL_D48
#undef GIWA_DETAIL_D56
#undef GIWA_DETAIL_D64
#undef GIWA_DETAIL_D72
#undef GIWA_DETAIL_D80
#undef GIWA_DETAIL_D88
#undef GIWA_DETAIL_D96
#undef GIWA_DETAIL_D104
#undef GIWA_DETAIL_D112
#undef GIWA_DETAIL_D120
#undef GIWA_DETAIL_D128
#undef GIWA_DETAIL_P8
#undef GIWA_DETAIL_P16
#undef GIWA_DETAIL_P24
#undef GIWA_DETAIL_P32
#undef GIWA_DETAIL_P40
#undef GIWA_DETAIL_P48
#undef GIWA_DETAIL_P56
#undef GIWA_DETAIL_P64
#undef GIWA_DETAIL_P72
#undef GIWA_DETAIL_P80
#undef GIWA_DETAIL_P88
#undef GIWA_DETAIL_P96
#undef GIWA_DETAIL_P104
#undef GIWA_DETAIL_P112
#undef GIWA_DETAIL_P120
#undef GIWA_DETAIL_P128

}  // namespace giwa::inline GIWA_ABI::arch

#endif
