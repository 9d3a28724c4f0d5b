// SPDX-License-Identifier: MIT
// The state (m, l, O) of a thread's rows over some keys, m in units of log2: merged in registers, or set aside.
#ifndef GIWA_ATTENTION_SUMS_ROW_SUMS_CUH
#define GIWA_ATTENTION_SUMS_ROW_SUMS_CUH

#include <giwa/softmax/online.cuh>

namespace giwa::inline GIWA_ABI::detail {

// States are merged with the larger m: each state's l and O are multiplied by its factor 2^(m - larger m), and added. A state of no
// keys has m = -inf, l = 0 and O = 0, and merges exactly. An l or an O that is NaN stays so.

/// The m of some states of a row together, which it returns, and their factors.
template <int Count>
GIWA_HOST_DEVICE float merge_maxima(const float (&m)[Count], float (&factor)[Count]) {
  float larger = m[0];
  GIWA_UNROLL
  for (int i = 1; i < Count; ++i) larger = larger_of(larger, m[i]);
  const float reference = larger == -infinity_of<float> ? 0.f : larger;
  GIWA_UNROLL
  for (int i = 0; i < Count; ++i) factor[i] = exp2_of(m[i] - reference);
  return larger;
}

/// Merges O of two states into `to`, which may be either of them. Registers belong to rows as Map says. AtOnce: so many are read before
/// one is written, as local memory is read at once (local_partial).
template <class Map, int AtOnce = 1, class Earlier, class To>
GIWA_HOST_DEVICE void merge_outputs(const Earlier& earlier, const float (&of_earlier)[Map::rows],
                                    const float (&later)[Map::registers], const float (&of_later)[Map::rows], To& to) {
  static_assert(Map::registers % AtOnce == 0);
  GIWA_UNROLL
  for (int first = 0; first < Map::registers; first += AtOnce) {
    float before[AtOnce];
    GIWA_UNROLL
    for (int i = 0; i < AtOnce; ++i) before[i] = earlier[first + i];
    GIWA_UNROLL
    for (int i = first; i < first + AtOnce; ++i) {
      const int r = Map::slot(i);
      to[i] = merge_sums(before[i - first], of_earlier[r], later[i], of_later[r]);
    }
  }
}

/// m, l and O in registers, by reference.
template <class Map, class Float = float>
struct rows_ref {
  Float (&m)[Map::rows], (&l)[Map::rows], (&o)[Map::registers];
};
/// Merges two states into `to`, which may be either of them. `earlier` and `to` may be a partial in local memory (local_partial).
template <class Map, int AtOnce = 1, class Earlier, class To = const rows_ref<Map>>
GIWA_HOST_DEVICE void merge_rows(const Earlier& earlier, const rows_ref<Map, const float>& later, To& to) {
  float of_earlier[Map::rows], of_later[Map::rows];
  GIWA_UNROLL
  for (int r = 0; r < Map::rows; ++r) {
    float factor[2];
    to.m[r] = merge_maxima<2>({earlier.m[r], later.m[r]}, factor);
    of_earlier[r] = factor[0], of_later[r] = factor[1];
    to.l[r] = merge_sums(earlier.l[r], of_earlier[r], later.l[r], of_later[r]);
  }
  merge_outputs<Map, AtOnce>(earlier.o, of_earlier, later.o, of_later, to.o);
}

/// The state in registers.
template <class Map>
struct row_sums {
  static constexpr int rows = Map::rows;
  float m[rows], l[rows];
  register_tile<float, Map> o;

  GIWA_HOST_DEVICE void reset() {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m[r] = -infinity_of<float>, l[r] = 0;
    o.fill(0);
  }
  /// Adds the state of later keys.
  GIWA_HOST_DEVICE void merge(const row_sums& later) {
    const rows_ref<Map> own{m, l, o.value};
    merge_rows<Map>(own, {later.m, later.l, later.o.value}, own);
  }
};

/// The map of some columns of one row, all in one thread.
template <int Columns>
struct columns_of_row {
  using shape = tile_shape<1, Columns>;
  static constexpr int rows = 1, registers = Columns;
  GIWA_HOST_DEVICE static constexpr int slot(int) { return 0; }
};

/// A partial in local memory while later keys are summed. It is volatile, so that it takes no registers.
/// Alignment: of O, which is loaded and stored so many bytes at once.
template <class Map, int Alignment = 4>
struct local_partial {
  static constexpr int rows = Map::rows, registers = Map::registers;
  volatile float m[rows], l[rows];
  alignas(Alignment) volatile float o[registers];

  GIWA_DEVICE void save(const float (&from_m)[rows], const float (&from_l)[rows], const float (&from_o)[registers]) {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m[r] = from_m[r], l[r] = from_l[r];
    GIWA_UNROLL
    for (int i = 0; i < registers; ++i) o[i] = from_o[i];
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
