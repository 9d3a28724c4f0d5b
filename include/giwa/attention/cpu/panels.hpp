// SPDX-License-Identifier: MIT
// Rows of a tensor as the operands of products on the CPU: as rows, and as panels of columns; and the row steps of a backward pass.
#ifndef GIWA_ATTENTION_CPU_PANELS_HPP
#define GIWA_ATTENTION_CPU_PANELS_HPP

#include <giwa/attention/cpu/product.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Loads the rows [first, first + count) to (rows, size), with zeros up to the rows that products of several rows read.
template <class Rows>
void host_load_rows(const Rows& rows, int size, int first, int count, float* to) {
  for (int r = 0; r < count; ++r) host_widen(rows[first + int64{r}], to + int64{r} * size, size);
  const int64 padded = round_up(count, int64{host_registers::rows});
  for (int64 i = int64{count} * size; i < padded * size; ++i) to[i] = 0;
}

/// Loads Count rows from `first` on twice: transposed into panels (size, columns), and, if `as_rows` is not null, into panels (rows,
/// columns) as wide as the row of `padded` elements. Rows from `count` on, and the padding, are zeros. Calls each(j) while row j is in
/// `line` (padded). Returns whether all of it is finite.
template <int Count, class Rows, class Each>
bool host_load_panels(const Rows& rows, int first, int count, int size, int padded, float* line, float* transposed,
                      float* as_rows, const Each& each) {
  constexpr int columns = host_registers::columns;
  bool finite = true;
  for (int j = 0; j < Count; ++j) {
    const bool inside = j < count;
    if (inside) {
      if (first + j + Count < rows.count()) host_prefetch(rows[first + j + Count], size);
      host_widen(rows[first + int64{j}], line, size);
      each(j);
    }
    for (int i = inside ? size : 0; i < padded; ++i) line[i] = 0;
    finite = host_finite(line, size) && finite;
    float* const to = transposed + int64{j / columns} * columns * size + j % columns;
    for (int i = 0; i < size; ++i) to[int64{i} * columns] = line[i];
    for (int begin = 0; as_rows != nullptr && begin < padded; begin += columns) {
      const int wide = padded - begin < columns ? padded - begin : columns;
      float* const row = as_rows + int64{begin} * Count + int64{j} * wide;
      for (int i = 0; i < wide; ++i) row[i] = line[begin + i];
    }
  }
  return finite;
}

/// to (rows, Count) = a (rows, size) times transposed panels of Count rows.
template <int Count>
void host_product_panels(const float* a, const float* panels, int size, int rows, float* to) {
  constexpr int columns = host_registers::columns;
  for (int first = 0; first < Count; first += columns)
    host_product_rows<host_sum::store, host_registers::vectors, host_registers::lanes>(
        rows, a, size, panels + int64{first} * size, size, to + first, Count);
}

/// Replaces x (Count) by x factor - minus.
template <int Count, int Lanes>
void host_scale_and_subtract(float* x, float factor, const float* minus) {
  using vector = typename host_vector<Lanes>::type;
  for (int j = 0; j < Count; j += Lanes) {
    vector& to = *reinterpret_cast<vector*>(x + j);
    to = to * factor - *reinterpret_cast<const vector*>(minus + j);
  }
}
/// Replaces dp (Count) by p (dp - delta).
template <int Count, int Lanes>
void host_score_gradients(const float* p, const float* delta, float* dp) {
  using vector = typename host_vector<Lanes>::type;
  for (int j = 0; j < Count; j += Lanes) {
    vector& to = *reinterpret_cast<vector*>(dp + j);
    to = *reinterpret_cast<const vector*>(p + j) * (to - *reinterpret_cast<const vector*>(delta + j));
  }
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
