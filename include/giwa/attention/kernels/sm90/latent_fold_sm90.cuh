// SPDX-License-Identifier: MIT
// The nodes of the fold of latent rows.
#ifndef GIWA_ATTENTION_KERNELS_SM90_LATENT_FOLD_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_LATENT_FOLD_SM90_CUH

#include <giwa/arch/registers.cuh>
#include <giwa/attention/kernels/sm90/latent_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The state of a node of the fold. m and l are in shared memory, once for a warp: in the registers of each thread, those of all
/// nodes would take 32 of them, and spill. Outputs has the thread's O.
template <class State, class Sums, class Outputs>
struct fold_node {
  using map = typename decltype(State::o)::map;
  static constexpr int rows = State::rows;
  Sums* sums;
  int lane;
  Outputs o;

  GIWA_DEVICE void reset() {
    State x;
    x.reset();
    write_sums(x.m, x.l);
    GIWA_UNROLL
    for (int i = 0; i < map::registers; ++i) o[i] = 0;
  }
  GIWA_DEVICE void merge(const State& later) {
    float of_earlier[rows], of_later[rows];
    merge_rows(later.m, later.l, of_earlier, of_later);
    merge_outputs<map>(o, of_earlier, later.o.value, of_later, o);
  }
  /// Merges m and l of later keys, and finds the factors of O.
  GIWA_DEVICE void merge_rows(const float (&later_m)[rows], const float (&later_l)[rows], float (&of_earlier)[rows],
                              float (&of_later)[rows]) {
    float m[rows], l[rows];
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) {
      const int row = map::row(lane, r);
      float factor[2];
      m[r] = merge_maxima<2>({sums->m[row], later_m[r]}, factor);
      of_earlier[r] = factor[0], of_later[r] = factor[1];
      l[r] = merge_sums(sums->l[row], of_earlier[r], later_l[r], of_later[r]);
    }
    write_sums(m, l);
  }
  GIWA_DEVICE operator State() const {
    State x;
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) x.m[r] = sums->m[map::row(lane, r)], x.l[r] = sums->l[map::row(lane, r)];
    GIWA_UNROLL
    for (int i = 0; i < map::registers; ++i) x.o.value[i] = o[i];
    return x;
  }

 private:
  GIWA_DEVICE void write_sums(const float (&m)[rows], const float (&l)[rows]) {
    __syncwarp();  // all lanes have read the previous ones
    if (neighbours_share_rows<map> ? lane % map::lanes == 0 : lane < 32 / map::lanes) {
      GIWA_UNROLL
      for (int r = 0; r < rows; ++r) sums->m[map::row(lane, r)] = m[r], sums->l[map::row(lane, r)] = l[r];
    }
    __syncwarp();
  }
};
/// A thread's column of (Count, Threads) in shared memory.
template <int Threads>
struct column_of_threads {
  float (*value)[Threads];
  int thread;
  GIWA_DEVICE float& operator[](int i) const { return value[i][thread]; }
};

/// A thread's numbers in registers, in shared memory (Count, Threads), or in local memory; the compiler must know where.
template <int Count, int Threads>
struct numbers_of_node {
  enum class place : int { registers, shared, local };
  place where = place::registers;
  float value[Count];
  float* memory = nullptr;
  GIWA_DEVICE void use_shared(float (*to)[Threads], int thread) { where = place::shared, memory = to[0] + thread; }
  /// The compiler must not know the address, or it would use registers.
  GIWA_DEVICE void use_local(float* to) {
    where = place::local, memory = to;
    arch::compute_here(memory);
  }
  GIWA_DEVICE float& operator[](int i) {
    return where == place::registers ? value[i] : memory[where == place::shared ? i * Threads : i];
  }
  GIWA_DEVICE float operator[](int i) const {
    return where == place::registers ? value[i] : memory[where == place::shared ? i * Threads : i];
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
