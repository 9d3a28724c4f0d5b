// SPDX-License-Identifier: MIT
// What threads of attention on the CPU have in common: arrays of floats, rows as operands of products, sums of products.
#ifndef GIWA_ATTENTION_CPU_PANELS_HPP
#define GIWA_ATTENTION_CPU_PANELS_HPP

#include <giwa/attention/cpu/product.hpp>
#include <giwa/grid/host_loop.hpp>
#include <giwa/numeric/integer.hpp>

#include <atomic>
#include <memory>
#include <new>

namespace giwa::inline GIWA_ABI::detail {

/// Arrays of floats in one piece of memory, each at a multiple of 64 bytes.
class host_arrays {
 public:
  struct array {
    float** pointer;
    int64 count;
  };
  /// Sets the pointers. Without memory they stay as they are, and is_empty() is true.
  template <stdlib::size_t Count>
  explicit host_arrays(const array (&arrays)[Count]) {
    int64 total = 0;
    for (const array& a : arrays) total += round_up(a.count, 16);
    memory_.reset(static_cast<float*>(
        ::operator new(static_cast<stdlib::size_t>(total) * sizeof(float), std::align_val_t{64}, std::nothrow)));
    if (is_empty()) return;
    float* next = memory_.get();
    for (const array& a : arrays) *a.pointer = next, next += round_up(a.count, 16);
  }
  bool is_empty() const { return memory_ == nullptr; }

 private:
  struct aligned_delete {
    void operator()(float* p) const { ::operator delete(static_cast<void*>(p), std::align_val_t{64}); }
  };
  std::unique_ptr<float, aligned_delete> memory_;
};

inline constexpr int64 multiplications_of_thread = 4000000;  // that pay for it: 0.1 to 1 ms

/// Runs body(worker, task) for tasks of about `multiplications` each, on threads with the worker that make() returns. Returns false if
/// one had too little memory.
template <class Make, class Body>
bool host_tasks(int64 tasks, int64 multiplications, const Make& make, const Body& body) {
  using worker = decltype(make());
  // host_parallel cuts at multiples of 64, so that threads that write single elements share no cache line; here a task counts 64.
  constexpr int64 unit = 64;
  std::atomic<bool> no_memory{false};
  const auto run = [&](worker& w, int64 begin, int64 end) {
    if (!w.has_memory()) return no_memory.store(true, std::memory_order_relaxed);
    for (int64 task = begin / unit; task < end / unit; ++task) body(w, task);
  };
  host_parallel(tasks * unit, ceil_div(multiplications_of_thread, multiplications) * unit, make, run,
                small_stack_bytes<worker>);
  return !no_memory.load();
}
inline status host_out_of_memory(const char* message) {
  status s;
  s.code = status_code::out_of_memory;
  s.message = message;
  return s;
}

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

/// Copies rows of floats (count, size) to panels of Count rows, as wide as the row of `padded` elements. line (padded) is
/// overwritten.
template <int Count>
void host_put_rows(const host_loops& loops, const float* rows, int count, int size, int padded, float* line,
                   float* panels) {
  for (int r = 0; r < count; ++r) {
    for (int i = 0; i < padded; ++i) line[i] = i < size ? rows[int64{r} * size + i] : 0;
    loops.put_row(line, panels, padded, r, Count);
  }
}

/// to (rows, Count) = a (rows, size) times transposed panels of Count rows.
template <int Count>
void host_product_panels(const host_loops& loops, const float* a, const float* panels, int size, int rows, float* to,
                         int64 to_row = Count) {
  for (int first = 0; first < Count; first += loops.columns)
    loops.product(host_sum::store, loops.vectors, rows, a, size, 1, panels + int64{first} * size, size, to + first,
                  to_row);
}

/// Weights of products: of row r and step i at first[r * row + i * step].
struct host_weights {
  const float* first;
  int64 row, step;
};

/// Calls f(first column, columns) for the panels of rows of `padded` elements.
template <class F>
void host_for_panels(const host_loops& loops, int padded, const F& f) {
  for (int column = 0; column < padded; column += loops.columns)
    f(column, padded - column < loops.columns ? padded - column : loops.columns);
}

/// sums (count, padded) += weights (count, steps) times the first `steps` rows of panels (rows, columns). The products of a call
/// are summed separately. Rows of weights and sums up to a multiple of host_loops::rows are read and written too if count > 1.
inline void host_add_products(const host_loops& loops, int count, int steps, host_weights weights, const float* panels,
                              int rows, int padded, float* sums) {
  host_for_panels(loops, padded, [&](int column, int wide) {
    loops.product(host_sum::add, wide / loops.lanes, count, weights.first, weights.row, weights.step,
                  panels + int64{column} * rows, steps, sums + column, padded);
  });
}

/// The same for one row, step by step, for steps that are kept(step): where a row of the panels is infinite or NaN, a weight of
/// 0 does not remove it. line (padded) is overwritten.
template <class Kept>
void host_add_kept_products(const host_loops& loops, int steps, const Kept& kept, host_weights weights,
                            const float* panels, int rows, int padded, float* line, float* sums) {
  for (int i = 0; i < padded; ++i) line[i] = 0;
  for (int step = 0; step < steps; ++step) {
    if (!kept(step)) continue;
    host_for_panels(loops, padded, [&](int column, int wide) {
      loops.product(host_sum::extend, wide / loops.lanes, 1, weights.first + step * weights.step, 1, 1,
                    panels + int64{column} * rows + int64{step} * wide, 1, line + column, padded);
    });
  }
  for (int i = 0; i < padded; ++i) sums[i] += line[i];
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
