// SPDX-License-Identifier: MIT
// One thread of attention on the CPU: flash attention on tiles that stay in the cache.
#ifndef GIWA_ATTENTION_CPU_WORKER_HPP
#define GIWA_ATTENTION_CPU_WORKER_HPP

#include <giwa/attention/append/rotated_queries.hpp>
#include <giwa/attention/cpu/panels.hpp>
#include <giwa/attention/problem/part_of_keys.hpp>
#include <giwa/attention/sums/row_end.hpp>
#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// One thread of the CPU path: tiles of block_m queries of one head, in fp32 and in separate memory. A row of the
/// output is the same sequence of operations in every tile, so its bits do not depend on the other rows: keys are cut
/// at multiples of block_n, sums run over keys in order, and masked keys add exact zeros. A tile of keys is summed by
/// itself, and so are groups of group_keys keys: over 2^20 keys, chains of additions have 64, 32 and 512 links.
///
/// The loop of a tile: load q | for each visible tile of keys: load k, load v | for each strip of rows: q k^T, softmax,
/// p v | store.
template <class Params>
class host_attention_worker {
 public:
  using head = head_type<Params>;
  using head_rows = rows_type<Params>;

  // block_n = 128 is within 6 % (fp32, 8 heads of 1024 x 64, AVX-512, 2-core x86-64 VM, 2026-11-21).
  static constexpr int block_m = 264;    // most queries of a tile: packed keys and values serve so many rows
  static constexpr int block_n = 64;     // keys of a tile: a panel of them stays in the L1 cache together with
  static constexpr int strip_rows = 24;  // so many rows of scores

  static constexpr int group_keys = 2048;  // summed before they are added to the keys before them

  explicit host_attention_worker(const Params& p, const host_loops& loops = fastest_loops())
      : p_(p),
        loops_(loops),
        depth_(static_cast<int>(p.views.q.extent(3))),
        width_(static_cast<int>(p.views.o.extent(3))),
        row_(static_cast<int>(round_up(width_, int64{loops.lanes}))),
        arrays_({{&q_, int64{block_m} * depth_},
                 {&k_, int64{block_n} * depth_},
                 {&v_, int64{block_n} * row_},
                 {&o_, int64{block_m} * row_},
                 {&s_, strip_rows * block_n},
                 {&sum_, block_m * sums},
                 {&line_, round_up(depth_ + width_, 16)},
                 {&group_o_, int64{block_m} * row_},
                 {&lines_, (host_loops::most_lanes + 1) * int64{depth_}}}) {
    if (!has_memory()) return;
    for (int i = 0; i < depth_; ++i) lines_[i] = 0;
  }

  bool has_memory() const { return !arrays_.is_empty(); }

  /// Computes the rows of the queries [first, first + count) of a head, count <= block_m.
  void run(const head& h, int first, int count) {
    const head_rows rows = rows_of(h);
    load_q(h, rows, first, count);
    for (int r = 0; r < count; ++r) max_[r] = group_max_[r] = -infinity_of<float>, group_sum_[r] = 0;
    for (int i = 0; i < count * sums; ++i) sum_[i] = 0;
    const int skipped = first % 16;  // rows of factors_ that come before
    int group = 0;                   // of keys, of which there are more than one in long sequences only
    for (int key = 0; key < h.keys(); key += block_n) {
      const int keys = h.keys() - key < block_n ? h.keys() - key : block_n;
      const auto tile = [&](int row, int n) {
        return score_tile{h.batch, h.head, first + row, first + row + n - 1, key, key + keys - 1, h.offset};
      };
      const tile_keep whole = classify(p_.mask, tile(0, count));
      if (whole == tile_keep::none) continue;
      if (key / group_keys != group) {
        if (group == 0)
          for (int64 i = 0; i < int64{count} * row_; ++i) group_o_[i] = 0;
        close_group(count);
        group = key / group_keys;
      }
      load_k(rows, key, keys);
      const bool finite = load_v(rows, key, keys);
      put_weight_factors<false>(lone_thread{}, p_.score, h, first - skipped, key, 1.0f, factors_, skipped + count);
      for (int row = 0; row < count; row += strip_rows) {
        const int n = count - row < strip_rows ? count - row : strip_rows;
        const tile_keep keep = whole == tile_keep::all ? whole : classify(p_.mask, tile(row, n));
        if (keep == tile_keep::none) continue;
        multiply_qk(row, n);
        for (int r = 0; r < n; ++r) update_softmax(h, first + row + r, row + r, r, key, keys, keep);
        if constexpr (drops)  // store() scales the weights that are kept
          for (int i = 0; i < n * block_n; ++i) s_[i] *= factors_.data()[(skipped + row) * block_n + i];
        if (keep == tile_keep::all || finite)
          multiply_pv(row, n);
        else
          for (int r = 0; r < n; ++r) multiply_kept_pv(h, first + row + r, row + r, r, key, keys);
      }
    }
    if (group > 0) close_group(count);
    for (int r = 0; r < count; ++r) store(h, rows, first + r, r, group > 0);
  }

 private:
  using modifier = decltype(Params::score);
  static constexpr bool drops = drops_weights<modifier>;
  static constexpr int sums = host_loops::sums;
  static_assert(block_n == host_loops::row && strip_rows % host_loops::rows == 0 && block_m % strip_rows == 0);

  /// Loads q_ (queries, depth), with zeros up to the rows that products of several rows read, and clears o_.
  void load_q([[maybe_unused]] const head& h, const head_rows& rows, int first, int count) {
    for (int r = 0; r < count; ++r) {
      float* const to = q_ + int64{r} * depth_;
      if constexpr (rotates_queries<modifier>)
        load_rotated(rows.q[first + int64{r}], position_of_query(p_, h.sequence, first + r), to);
      else
        host_widen(loops_, rows.q[first + int64{r}], to, depth_);
    }
    const int64 padded = round_up(count, int64{host_loops::rows});
    for (int64 i = int64{count} * depth_; i < padded * depth_; ++i) q_[i] = 0;
    for (int64 i = 0; i < padded * row_; ++i) o_[i] = 0;
  }

  /// A row of q, rotated.
  template <class T>
  void load_rotated(const T* row, int64 position, float* to) const {
    constexpr int run = 16 / static_cast<int>(sizeof(T));
    const bool aligned = reinterpret_cast<uint64>(row) % 16 == 0;
    for (int column = 0; column < depth_; column += run) {
      alignas(16) T x[stdlib::size_t{run}];
      const int count = depth_ - column < run ? depth_ - column : run;
      read_rotated<run>(row, column, count, aligned, p_.score.rotary, position, x);
      for (int i = 0; i < count; ++i) to[column + i] = convert<float>{}(x[i]);
    }
  }

  /// Prefetches a row of the next tile while this one is computed: the hardware prefetcher does not see the stride between rows.
  template <class Rows>
  static void prefetch(const Rows& rows, int row, int count) {
    if (row < rows.count()) host_prefetch(rows[row], count);
  }

  /// Loads k_ (panels, depth, columns): transposed, with zeros past the last key.
  void load_k(const head_rows& rows, int key, int keys) {
    const int columns = loops_.columns;
    for (int begin = 0; begin < block_n; begin += loops_.lanes) {
      const float* together[host_loops::most_lanes];
      for (int r = 0; r < loops_.lanes; ++r) {
        const int j = begin + r;
        if (j < keys) prefetch(rows.k, key + j + block_n, depth_);
        together[r] = j < keys ? as_floats(rows.k[key + int64{j}], lines_ + int64{r + 1} * depth_, depth_) : lines_;
      }
      loops_.transpose(together, k_ + int64{begin / columns} * columns * depth_ + begin % columns, depth_);
    }
  }

  /// Loads v_ (panels, keys, columns), all panels equally wide, with zeros in the padding. Returns whether all of it is finite.
  bool load_v(const head_rows& rows, int key, int keys) {
    for (int j = 0; j < block_n; ++j) {
      const int have = j < keys ? width_ : 0;
      const float* row = line_;
      if (have > 0) {
        prefetch(rows.v, key + j + block_n, width_);
        row = as_floats(rows.v[key + int64{j}], line_, width_);
      }
      if (have < row_) {
        if (row != line_) loops_.widen_fp32(row, line_, have);
        for (int i = have; i < row_; ++i) line_[i] = 0;
        row = line_;
      }
      loops_.put_row(row, v_, row_, j, block_n);
    }
    return loops_.finite(v_, block_n * row_);
  }

  /// Returns a row as floats: where it is, or in `line`.
  template <class Row>
  const float* as_floats(const Row& row, float* line, int count) {
    if constexpr (stdlib::same_as<Row, const float*>) {
      return row;
    } else {
      host_widen(loops_, row, line, count);
      return line;
    }
  }

  /// s_ (rows, keys) = q k^T.
  void multiply_qk(int row, int rows) {
    for (int first = 0; first < block_n; first += loops_.columns)
      loops_.product(host_sum::store, loops_.vectors, rows, q_ + int64{row} * depth_, depth_, 1,
                     k_ + int64{first} * depth_, depth_, s_ + first, block_n);
  }

  /// Turns a row of scores into weights p = e^(score - max), and rescales the row's sum and its row of o_ to the new max.
  void update_softmax(const head& h, int query, int row, int r, int key, int keys, tile_keep keep) {
    float* const s = s_ + r * block_n;
    const auto coord = [&](int j) { return attention_coord{h.batch, h.head, query, key + j, query + h.offset}; };
    constexpr bool plain = is_plain_score<modifier>;
    const bool touched = !plain || keep != tile_keep::all || keys < block_n;
    if (touched) {
      for (int j = 0; j < keys; ++j) {
        const float x = s[j] * p_.scale;
        if constexpr (plain)
          s[j] = x;
        else
          s[j] = p_.score(x, coord(j));
      }
      if (keep != tile_keep::all)
        for (int j = 0; j < keys; ++j) s[j] = p_.mask(coord(j)) ? s[j] : -infinity_of<float>;
      for (int j = keys; j < block_n; ++j) s[j] = -infinity_of<float>;
    }
    const float left = touched ? 1.0f : p_.scale;  // the scale that s still lacks
    const float most = loops_.scale_and_max(s, left);

    const softmax_state<float> state{most > max_[row] ? most : max_[row], 0};
    float* const sum = sum_ + row * sums;
    if (state.max > max_[row]) {
      const float factor = exponential{}(max_[row] - state.max);
      loops_.scale(o_ + int64{row} * row_, row_, factor);
      for (int i = 0; i < sums; ++i) sum[i] *= factor;
      max_[row] = state.max;
    }
    loops_.exponentials(s, state.reference(), sum);
  }

  /// o_ += p v, p being in s_. The products of one tile of keys are summed separately.
  void multiply_pv(int row, int rows) {
    host_add_products(loops_, rows, block_n, {s_, block_n, 1}, v_, block_n, row_, o_ + int64{row} * row_);
  }

  /// The same for one row, for the keys that its mask keeps, because values are infinite or NaN.
  void multiply_kept_pv(const head& h, int query, int row, int r, int key, int keys) {
    const auto kept = [&](int j) {
      return p_.mask(attention_coord{h.batch, h.head, query, key + j, query + h.offset});
    };
    host_add_kept_products(loops_, keys, kept, {s_ + r * block_n, block_n, 1}, v_, block_n, row_, line_,
                           o_ + int64{row} * row_);
  }

  /// Adds the sums of a group of tiles to those of the groups before it, and clears them. A row that saw no key of the
  /// group keeps its bits, because factor is then exactly 1.
  void close_group(int count) {
    for (int r = 0; r < count; ++r) {
      const softmax_state<float> now{max_[r], 0};
      const float factor = exponential{}(group_max_[r] - now.reference());
      float* const o = o_ + int64{r} * row_;
      float* const all = group_o_ + int64{r} * row_;
      for (int i = 0; i < row_; ++i) all[i] = all[i] * factor + o[i], o[i] = 0;
      group_sum_[r] = group_sum_[r] * factor + sum_of(r);
      for (int i = 0; i < sums; ++i) sum_[r * sums + i] = 0;
      group_max_[r] = max_[r];
    }
  }
  float sum_of(int row) const {
    float l = 0;
    for (int i = 0; i < sums; ++i) l += sum_[row * sums + i];
    return l;
  }

  /// Stores a row. grouped: its sums are those of the closed groups.
  void store(const head& h, const head_rows& rows, int query, int row, bool grouped) {
    const float l = grouped ? group_sum_[row] : sum_of(row);
    const float sink = p_.sinks == nullptr ? -infinity_of<float> : p_.sinks[h.head * p_.sink_stride];
    const auto& earlier = prior_rows(p_.score, h, rows);
    constexpr bool has_prior = stdlib::remove_cvref_t<decltype(earlier)>::has_prior;
    float prior_lse = -infinity_of<float>;
    if constexpr (has_prior) prior_lse = earlier.prior_lse(query);
    finished_softmax<float> end = finish_row<float>({max_[row], l}, sink, prior_lse);
    if constexpr (drops) end.factor *= kept_scale(p_.score);
    const float* const from = (grouped ? group_o_ : o_) + int64{row} * row_;
    auto* const to = rows.o[query];
    using element = stdlib::remove_cvref_t<decltype(*to)>;
    // + 0 turns a sum of -0 into +0. A masked key's 0 does the same where it is added, so the result does not depend on the mask.
    if constexpr (has_prior) {
      for (int i = 0; i < width_; ++i) line_[i] = 0;  // without keys its o may contain anything
      if (prior_lse != -infinity_of<float>) host_widen(loops_, earlier.prior_o[query], line_, width_);
      for (int i = 0; i < width_; ++i) line_[i] = from[i] * end.factor + (line_[i] * end.prior_factor + 0.0f);
      for (int i = 0; i < width_; ++i) to[i] = convert<element>{}(line_[i]);
      if constexpr (is_part<modifier>) earlier.put(query, line_, width_, end.lse);
    } else if constexpr (stdlib::same_as<element, fp16>) {
      for (int i = 0; i < width_; ++i) line_[i] = from[i] * end.factor + 0.0f;
      loops_.narrow_fp16(line_, to, width_);
    } else {
      for (int i = 0; i < width_; ++i) to[i] = convert<element>{}(from[i] * end.factor + 0.0f);
    }
    if (h.lse != nullptr) h.lse[query * h.lse_stride] = end.lse;
  }

  const Params p_;
  const host_loops& loops_;
  const int depth_, width_;
  const int row_;  // width_, rounded up to whole vectors
  float *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *o_ = nullptr, *s_ = nullptr, *line_ = nullptr, *sum_ = nullptr;
  float* group_o_ = nullptr;  // closed groups of keys, relative to group_max_, in sequences of more than one group
  float* lines_ = nullptr;    // one of zeros, and those that are transposed together
  const host_arrays arrays_;
  float max_[block_m];
  [[no_unique_address]] stdlib::conditional_t<drops, shared_tile<float, tile_shape<(block_m + 31) / 16 * 16, block_n>>,
                                              nothing>
      factors_;
  float group_max_[block_m], group_sum_[block_m];
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
