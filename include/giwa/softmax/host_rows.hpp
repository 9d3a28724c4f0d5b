// SPDX-License-Identifier: MIT
// The loops of softmax(giwa::host, ...): rows in pieces that stay in the cache, written for the compiler to vectorise.
#ifndef GIWA_SOFTMAX_HOST_ROWS_HPP
#define GIWA_SOFTMAX_HOST_ROWS_HPP

#include <giwa/grid/host_loop.hpp>
#include <giwa/softmax/grouped_sum.hpp>
#include <giwa/softmax/host_softmax.hpp>
#include <giwa/softmax/state.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A piece of a row, converted to the type that it is computed in. `lanes` separate sums and maxima are combined at the
/// end: a compiler can then use vector instructions, and every compiler adds in the same order.
template <class Compute>
class row_piece {
 public:
  static constexpr int capacity = 1024, lanes = 16;

  template <class T>
  void load(const T* from, int64 stride, int count) {
    if (stride == 1) {
      for (int i = 0; i < count; ++i) x_[i] = convert<Compute>{}(from[i]);
    } else {
      for (int i = 0; i < count; ++i) x_[i] = convert<Compute>{}(from[i * stride]);
    }
    padded_ = round_up(count, lanes);
    for (int i = count; i < padded_; ++i) x_[i] = -infinity_of<Compute>;
  }

  /// Replaces each x by e^(x - max), max being the largest of `so_far` and of the piece, and returns max and their sum.
  softmax_state<Compute> reduce(Compute so_far) {
    Compute m[lanes];
    for (int j = 0; j < lanes; ++j) m[j] = -infinity_of<Compute>;
    for (int i = 0; i < padded_; i += lanes)
      for (int j = 0; j < lanes; ++j) m[j] = x_[i + j] > m[j] ? x_[i + j] : m[j];
    softmax_state<Compute> s{so_far, 0};
    for (int j = 0; j < lanes; ++j) s.max = m[j] > s.max ? m[j] : s.max;
    s.sum = exponentials(s.reference());
    return s;
  }

  /// Replaces each x by e^(x - reference), and returns their sum. Eight elements of a lane are summed up by themselves: a chain
  /// of all 64 would lose 8 units in the last place where elements are equal.
  Compute exponentials(Compute reference) {
    Compute sum[lanes] = {};
    for (int begin = 0; begin < padded_; begin += 8 * lanes) {
      const int end = begin + 8 * lanes < padded_ ? begin + 8 * lanes : padded_;
      Compute part[lanes] = {};
      for (int i = begin; i < end; i += lanes)
        for (int j = 0; j < lanes; ++j) {
          x_[i + j] = exponential{}(x_[i + j] - reference);
          part[j] += x_[i + j];
        }
      for (int j = 0; j < lanes; ++j) sum[j] += part[j];
    }
    for (int d = lanes / 2; d > 0; d /= 2)
      for (int j = 0; j < d; ++j) sum[j] += sum[j + d];
    return sum[0];
  }

  template <class U>
  void store(U* to, int64 stride, int count, Compute factor) const {
    if (stride == 1) {
      for (int i = 0; i < count; ++i) to[i] = convert<U>{}(x_[i] * factor);
    } else {
      for (int i = 0; i < count; ++i) to[i * stride] = convert<U>{}(x_[i] * factor);
    }
  }

 private:
  Compute x_[capacity];
  int padded_ = 0;
};

/// Runs softmax(giwa::host, ...); the arguments are checked already.
template <class T, class U>
struct host_rows {
  using compute = softmax_compute<T, U>;

  static void run(const T* in, int64 in_stride, U* out, int64 out_stride, int64 columns, const row_map& map) {
    // Elements that pay for starting a thread; an element takes 1 to 4 ns.
    constexpr int64 grain = host_grain / 4;
    // host_parallel cuts at multiples of 64, so that threads that write single elements share no cache line; a row
    // counts 64 here.
    constexpr int64 unit = 64;
    host_parallel(map.rows * unit, ceil_div(grain, columns) * unit, [&](int64 begin, int64 end) {
      for (int64 row = begin / unit; row < end / unit; ++row) {
        const row_map::offsets at = map(row);
        run_row(in + at.in, in_stride, out + at.out, out_stride, columns);
      }
    });
  }

 private:
  using piece = row_piece<compute>;

  static int count_at(int64 begin, int64 columns) {
    return static_cast<int>(columns - begin < piece::capacity ? columns - begin : piece::capacity);
  }

  static void run_row(const T* in, int64 in_stride, U* out, int64 out_stride, int64 columns) {
    piece p;
    using sums = grouped_sum<compute, exponential, 6>;
    group_state<compute> groups[sums::levels_in_memory];
    sums sum(groups, 1);
    for (int64 begin = 0; begin < columns; begin += piece::capacity) {
      p.load(in + begin * in_stride, in_stride, count_at(begin, columns));
      sum.add(p.reduce(sum.max()));
    }
    const softmax_state<compute> state = sum.total();
    const compute factor = state.normalizer();
    if (columns <= piece::capacity) return p.store(out, out_stride, count_at(0, columns), factor);
    for (int64 begin = 0; begin < columns; begin += piece::capacity) {
      p.load(in + begin * in_stride, in_stride, count_at(begin, columns));
      static_cast<void>(p.exponentials(state.reference()));
      p.store(out + begin * out_stride, out_stride, count_at(begin, columns), factor);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
