// SPDX-License-Identifier: MIT
// Rows of a tensor as the operands of products on the CPU: as rows, and as panels of columns.
#ifndef GIWA_ATTENTION_CPU_PANELS_HPP
#define GIWA_ATTENTION_CPU_PANELS_HPP

#include <giwa/attention/cpu/product.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Loads the rows [first, first + count) to (rows, size), with zeros up to the rows that products of several rows read.
template <class Rows>
void host_load_rows(const host_loops& loops, const Rows& rows, int size, int first, int count, float* to) {
  for (int r = 0; r < count; ++r) host_widen(loops, rows[first + int64{r}], to + int64{r} * size, size);
  const int64 padded = round_up(count, int64{host_loops::rows});
  for (int64 i = int64{count} * size; i < padded * size; ++i) to[i] = 0;
}

/// Loads Count rows from `first` on twice: transposed into panels (size, columns), and, if `as_rows` is not null, into
/// panels (rows, columns) as wide as the row of `padded` elements. Rows from `count` on, and the padding, are zeros.
/// Calls each(j, line) for row j, which is in `line` (padded), one of `lines` (most_lanes). Returns whether all is finite.
template <int Count, class Rows, class Each>
bool host_load_panels(const host_loops& loops, const Rows& rows, int first, int count, int size, int padded,
                      float* lines, float* transposed, float* as_rows, const Each& each) {
  const int columns = loops.columns;
  bool finite = true;
  for (int begin = 0; begin < Count; begin += loops.lanes) {
    const float* together[host_loops::most_lanes];
    for (int r = 0; r < loops.lanes; ++r) {
      const int j = begin + r;
      float* const line = lines + int64{r} * padded;
      together[r] = line;
      const bool inside = j < count;
      if (inside) {
        if (first + j + Count < rows.count()) host_prefetch(rows[first + j + Count], size);
        host_widen(loops, rows[first + int64{j}], line, size);
        each(j, line);
      }
      for (int i = inside ? size : 0; i < padded; ++i) line[i] = 0;
      finite = loops.finite(line, size) && finite;
      if (as_rows != nullptr) loops.put_row(line, as_rows, padded, j, Count);
    }
    loops.transpose(together, transposed + int64{begin / columns} * columns * size + begin % columns, size);
  }
  return finite;
}

/// to (rows, Count) = a (rows, size) times transposed panels of Count rows.
template <int Count>
void host_product_panels(const host_loops& loops, const float* a, const float* panels, int size, int rows, float* to,
                         int64 to_row = Count) {
  for (int first = 0; first < Count; first += loops.columns)
    loops.product(host_sum::store, loops.vectors, rows, a, size, 1, panels + int64{first} * size, size, to + first,
                  to_row);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
