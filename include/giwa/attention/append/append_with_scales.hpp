// SPDX-License-Identifier: MIT
// The work of append_to_cache on heads of a new row whose scales it finds, after a mean and a Hadamard transform.
#ifndef GIWA_ATTENTION_APPEND_APPEND_WITH_SCALES_HPP
#define GIWA_ATTENTION_APPEND_APPEND_WITH_SCALES_HPP

#include <giwa/attention/append/append_rows.hpp>
#include <giwa/attention/quantize/codes.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Neighbouring lanes of a warp, a power of two. All lanes of the warp call the members.
template <class Block>
struct lanes_of_warp {
  const Block& block;
  int lanes;

  GIWA_HOST_DEVICE int rank() const { return block.lane() & (lanes - 1); }
  GIWA_HOST_DEVICE int size() const { return lanes; }
  GIWA_HOST_DEVICE float largest(float x) const {
    for (int mask = lanes / 2; mask > 0; mask /= 2) x = larger_of(x, exchange(x, mask));
    return x;
  }
  GIWA_HOST_DEVICE float exchange(float x, int mask) const { return block.shuffle_xor(x, mask); }
};

/// The Hadamard transform of a head, divided by the root of its size, of which each of the first `units` threads of a team has two runs in
/// x, and a team of one all in turn. All threads of the team call it, with the same number of units, a power of two; those of another
/// tensor keep their numbers. Sums are in the order of the bits of a column's number, so that teams of any size and runs of any length have
/// the same bits: runs are in both halves of the head, or, of one element, neighbours.
template <int Count, int Held, class Team>
GIWA_HOST_DEVICE void transform_head(const Team& team, int units, bool neighbours, bool transforms,
                                     float (&x)[stdlib::size_t{Held}][stdlib::size_t{2 * Count}]) {
  const auto combine = [&](float& a, float& b) {
    const float sum = a + b, difference = a - b;
    if (transforms) a = sum, b = difference;
  };
  const auto each = [&](const auto& f) {
    GIWA_UNROLL
    for (int n = 0; n < Held; ++n) {
      GIWA_UNROLL
      for (int i = 0; i < 2 * Count; ++i) f(n, i);
    }
  };
  const auto combine_runs = [&](int n, int i) {
    if (i < Count) combine(x[n][i], x[n][i + Count]);
  };
  neighbours = Count == 1 && neighbours;
  if (neighbours) each(combine_runs);
  GIWA_UNROLL
  for (int step = 1; step < Count; step *= 2)
    each([&](int n, int i) {
      if ((i & step) == 0) combine(x[n][i], x[n][i | step]);
    });
  for (int step = 1; step < team.size() && step < units; step *= 2)
    each([&](int n, int i) {
      const float other = team.exchange(x[n][i], step);
      if (transforms) x[n][i] = (team.rank() & step) != 0 ? other - x[n][i] : x[n][i] + other;
    });
  for (int step = 1; step < Held && step * team.size() < units; step *= 2)
    for (int n = 0; n < Held; ++n)
      for (int i = 0; i < 2 * Count && (n & step) == 0; ++i) combine(x[n][i], x[n | step][i]);
  float share = 1;
  for (int n = 2 * Count * units; n > 1; n /= 4) share *= n == 2 ? 0.70710678f : 0.5f;
  if (!neighbours) each(combine_runs);
  each([&](int n, int i) {
    if (transforms) x[n][i] *= share;
  });
}

/// A slice of a row: some heads of k, of v, or queries, by a team of threads. A thread holds `Held` units of a head in registers, and
/// reads further ones twice.
template <int Count, int Held, class Team, class Params>
class slice_with_scales {
 public:
  /// Slice `number` of `count` of all rows; a number past the slices is none, which has no units.
  GIWA_HOST_DEVICE slice_with_scales(const Team& team, const Params& p, int64 number, int64 count)
      : team_(team), p_(p), row_((number < count ? number : 0) / p.slices) {
    const int slice = static_cast<int>((number < count ? number : 0) - row_ * p.slices.divisor());
    const auto& v = p.views;
    of_k_ = slice < p.k_slices, of_q_ = slice >= p.k_slices + p.v_slices;
    first_ = (of_k_ ? slice : of_q_ ? slice - p.k_slices - p.v_slices : slice - p.k_slices) * p.heads_of_slice;
    from_ = of_k_ ? source::of(v.k, p.rotates()) : of_q_ ? source::of(v.q, p.rotates()) : source::of(v.v, false);
    units_ = number < count ? append_units<Count>(p.rotary, from_.rotates, from_.size) : 0;
    heads_ = from_.heads - first_ < p.heads_of_slice ? from_.heads - first_ : p.heads_of_slice;
    from_.data += batch() * from_.batch + row_of_batch() * from_.row + first_ * from_.head;
  }

  /// Appends the heads. All threads of the team call it. Two heads are read before the first is written, and the first of them before
  /// the place of the row is known.
  GIWA_HOST_DEVICE void run() {
    append_unit units[stdlib::size_t{Held}];
    runs even[stdlib::size_t{Held}]{}, odd[stdlib::size_t{Held}]{};
    const auto read_head = [&](int head, runs(&to)[stdlib::size_t{Held}]) {
      if (head < heads_) for_held([&](int n) { to[n] = read(head, units[n]); });
    };
    for_held([&](int n) { units[n] = unit_of(team_.rank() + n * team_.size()); });
    read_head(0, even), read_head(1, odd);
    find_place();
    unit_rotations<Count> rotations[stdlib::size_t{Held}]{};
    for_held([&](int n) {
      if (units[n].pair >= 0) rotations[n].fill(p_.rotary, place_.position, units[n]);
    });
    const auto append = [&](int head, runs(&held)[stdlib::size_t{Held}]) {
      const bool exists = head < heads_;
      numbers x[stdlib::size_t{Held}] = {};
      if (exists) for_held([&](int n) { change(head, units[n], held[n], rotations[n], x[n]); });
      read_head(head + 2, held);
      if (p_.views.hadamard)
        transform_head<Count, Held>(team_, units_of_k(), from_.rotates && p_.rotary.interleaved, of_k_ || of_q_, x);
      const float scale = find_scale(exists, head, x), reciprocal = scale_divisor::of(scale).reciprocal;
      if (!exists) return;
      for_held([&](int n) { write(head, units[n], x[n], reciprocal); });
      for_others(head, [&](const append_unit& unit, const numbers& y) { write(head, unit, y, reciprocal); });
      if (units_ > 0 && !of_q_ && team_.rank() == 0) scale_to_[head * scale_head_] = scale;
    };
    GIWA_NO_UNROLL
    for (int head = 0; head < p_.heads_of_slice; head += 2) {  // as many for all teams, which exchange numbers
      append(head, even);
      if (head + 1 < p_.heads_of_slice) append(head + 1, odd);
    }
  }

 private:
  using element = typename Params::element_type;
  using code = typename Params::code_type;
  using source = append_source<element>;
  using numbers = float[stdlib::size_t{2 * Count}];
  struct runs {
    element_run<element, Count> of_unit[2];
  };

  GIWA_HOST_DEVICE append_unit unit_of(int n) const {
    return append_unit_of<Count>(p_.rotary, from_.rotates, from_.size, n);
  }
  GIWA_HOST_DEVICE int units_of_k() const {
    return append_units<Count>(p_.rotary, p_.rotates(), static_cast<int>(p_.views.k.extent(3)));
  }
  GIWA_HOST_DEVICE int64 batch() const { return row_ / p_.new_rows; }
  GIWA_HOST_DEVICE int64 row_of_batch() const { return row_ - batch() * p_.new_rows.divisor(); }
  /// Finds where the heads are written. A row that is not has no units from here on.
  GIWA_HOST_DEVICE void find_place() {
    place_ = p_.place_of(row_);
    if (!place_.known || (!of_q_ && place_.element < 0)) units_ = 0;
    if (units_ == 0) return;
    const auto& v = p_.views;
    if (of_q_) {
      to_ = &v.q_to(batch(), row_of_batch(), first_, 0), to_head_ = v.q_to.stride(2);
      return;
    }
    const auto& cache = of_k_ ? v.cache.k : v.cache.v;
    const auto& scales = of_k_ ? v.k_scales : v.v_scales;
    to_ = &cache(place_.element, place_.row, first_, 0), to_head_ = cache.stride(2);
    scale_to_ = &scales(place_.element, place_.row, first_), scale_head_ = scales.stride(2);
  }
  /// f(n) of the units in registers; f(unit, numbers) of the others.
  template <class F>
  GIWA_HOST_DEVICE void for_held(const F& f) const {
    GIWA_UNROLL
    for (int n = 0; n < Held; ++n)
      if (team_.rank() + n * team_.size() < units_) f(n);
  }
  template <class F>
  GIWA_HOST_DEVICE void for_others(int head, const F& f) const {
    for (int u = team_.rank() + Held * team_.size(); u < units_; u += team_.size()) {
      const append_unit unit = unit_of(u);
      unit_rotations<Count> rotations{};
      if (unit.pair >= 0) rotations.fill(p_.rotary, place_.position, unit);
      numbers x;
      change(head, unit, read(head, unit), rotations, x);
      f(unit, x);
    }
  }
  GIWA_HOST_DEVICE runs read(int head, const append_unit& unit) const {
    const element* const head_data = from_.data + head * from_.head;
    runs r{};
    r.of_unit[0] = r.of_unit[0].read(head_data + unit.first);
    if (unit.second >= 0) r.of_unit[1] = r.of_unit[1].read(head_data + unit.second);
    return r;
  }
  /// The numbers of a unit, rotated and less their mean.
  GIWA_HOST_DEVICE void change(int head, const append_unit& unit, const runs& r, const unit_rotations<Count>& rotations,
                               numbers& x) const {
    GIWA_UNROLL
    for (int i = 0; i < 2 * Count; ++i)
      x[i] = i >= Count && unit.second < 0 ? 0.f : convert<float>{}(r.of_unit[i / Count].get(i % Count));
    if (unit.pair >= 0) rotations.rotate(x, p_.rotary.interleaved);
    const auto& mean = p_.views.k_mean;
    if (!of_k_ || mean.data() == nullptr) return;
    GIWA_UNROLL
    for (int i = 0; i < 2 * Count; ++i)
      if (i < Count || unit.second >= 0)
        x[i] -= mean(first_ + head, i < Count ? unit.first + i : unit.second + i - Count);
  }
  GIWA_HOST_DEVICE float find_scale(bool exists, int head, const numbers (&x)[stdlib::size_t{Held}]) const {
    float largest = 0;  // finite
    const auto look_at = [&](const numbers& y) {
      float of_all = largest;  // infinities too, which few heads have
      GIWA_UNROLL
      for (int i = 0; i < 2 * Count; ++i) of_all = larger_of(of_all, arch::magnitude(y[i]));
      if (of_all < infinity_of<float>) {
        largest = of_all;
        return;
      }
      GIWA_UNROLL
      for (int i = 0; i < 2 * Count; ++i) largest = larger_finite(largest, y[i]);
    };
    GIWA_UNROLL
    for (int n = 0; n < Held; ++n) look_at(x[n]);
    if (exists) for_others(head, [&](const append_unit&, const numbers& y) { look_at(y); });
    return scale_of<code>(team_.largest(largest));
  }
  GIWA_HOST_DEVICE void write(int head, const append_unit& unit, const float* x, float reciprocal) const {
    const auto to = [&](auto* row, const auto& divide) {
      using target = stdlib::remove_reference_t<decltype(*row)>;
      round_run<target, Count>(row + unit.first / codes_of<target>, x, divide);
      if (unit.second >= 0) round_run<target, Count>(row + unit.second / codes_of<target>, x + Count, divide);
    };
    if (of_q_) return to(static_cast<element*>(to_) + head * to_head_, nothing{});
    to(static_cast<code*>(to_) + head * to_head_,
       [&](int, float y) { return fma_with_subnormals(y, reciprocal, -0.0f); });
  }

  const Team& team_;
  const Params& p_;
  const int64 row_;
  bool of_k_, of_q_;
  int first_, heads_, units_;  // heads: the first one, and how many; units of a head
  source from_;
  append_place place_{};
  void* to_ = nullptr;  // the first head
  float* scale_to_ = nullptr;
  int64 to_head_ = 0, scale_head_ = 0;  // strides
};

/// Appends slice `number` of `count` of all rows to a cache whose scales the call finds: the largest number of a head, rotated, gives its
/// scale. All threads of a team call it.
template <int Count, int Held, class Team, class Params>
GIWA_HOST_DEVICE void append_with_scales(const Team& team, const Params& p, int64 number, int64 count) {
  slice_with_scales<Count, Held, Team, Params>(team, p, number, count).run();
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
