// SPDX-License-Identifier: MIT
// One thread of attention_backward on the CPU: a tile of rows of q with its dq, a tile of keys with their dk and dv, or a whole
// head of k with all gradients.
#ifndef GIWA_ATTENTION_CPU_BACKWARD_WORKER_HPP
#define GIWA_ATTENTION_CPU_BACKWARD_WORKER_HPP

#include <giwa/attention/cpu/gradient_rows.hpp>
#include <giwa/attention/cpu/panels.hpp>
#include <giwa/attention/problem/params.hpp>
#include <giwa/attention/problem/score_gradient.hpp>
#include <giwa/attention/work/visible_tiles.hpp>
#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// One thread of the CPU path, in fp32 and in separate memory. The tile's rows are fixed, queries for dq and keys for
/// dk and dv, and tiles of the other axis pass by: with fixed rows a and b and moving rows x and y,
///   S = a x^T,  dP = b y^T,  P = e^(score(S) - lse),  dS = P (dP - delta) slope,  sum_x += dS x,  sum_y += P y,
/// where a, b, x, y are q, dout, k, v for dq = scale sum_x, and k, v, q, dout for dk = scale sum_x and dv = sum_y. S
/// and P are computed for both, so that a gradient is summed by one thread in a fixed order. Moving rows are cut at
/// multiples of block_columns of their sequence and a tile of them is summed by itself, so the bits of a row do not
/// depend on other rows or on the number of threads.
///
/// With all gradients (All), for a head of k at a time, S and P are computed once, five products of a pair of tiles instead of seven:
/// the fixed rows are keys in strips of block_columns, and dq += dS^T k over a strip. Its sums have the order of those above, so
/// all gradients have the same bits.
template <class Params, tile_axis Fixed, bool All = false>
class host_backward_worker {
 public:
  using head = typename Params::head;
  static constexpr bool rows_are_keys = Fixed == tile_axis::keys;
  static constexpr int block_columns = 64, block_rows = All ? 3 * block_columns : 96,
                       strip_rows = All ? block_columns : 24;
  static_assert(rows_are_keys || !All);

  /// With All, of a head `keys` and `queries` rows at most.
  explicit host_backward_worker(const Params& p, int64 keys = block_rows, int64 queries = 0,
                                const host_loops& loops = fastest_loops())
      : p_(p),
        loops_(loops),
        depth_(static_cast<int>(p.views.in.q.extent(3))),
        width_(static_cast<int>(p.views.in.v.extent(3))),
        row_x_(static_cast<int>(round_up(depth_, int64{loops.lanes}))),
        row_y_(static_cast<int>(round_up(width_, int64{loops.lanes}))),
        wants_x_(rows_are_keys ? !is_absent(p.views.dk) : !is_absent(p.views.dq)),
        wants_y_(rows_are_keys && !is_absent(p.views.dv)),
        wants_dp_(wants_x_ || (!rows_are_keys && gradients)),
        sum_rows_(keys + padding),
        dq_(loops, row_x_),
        arrays_({{&a_, int64{block_rows + padding} * depth_},
                 {&b_, int64{block_rows + padding} * width_},
                 {&x_columns_, int64{block_columns} * depth_},
                 {&y_columns_, int64{block_columns} * width_},
                 {&x_, int64{block_columns} * row_x_},
                 {&y_, wants_y_ ? int64{block_columns} * row_y_ : 0},
                 {&sum_x_, sum_rows_ * row_x_},
                 {&sum_y_, wants_y_ ? sum_rows_ * row_y_ : 0},
                 {&line_, host_loops::most_lanes * int64{row_x_ > row_y_ ? row_x_ : row_y_}},
                 {&other_line_, row_x_ > row_y_ ? row_x_ : row_y_},
                 {&dq_.sums, All ? (queries + padding) * row_x_ : 0},
                 {&dq_.keys, All ? int64{block_rows} * row_x_ : 0}}) {}

  bool has_memory() const { return !arrays_.is_empty(); }

  /// Computes dq of the queries [first, first + count) of a head, count <= block_rows; also what the modifier gives gradients to.
  void run_queries(const head& h, int first, int count) {
    load_fixed(p_.query_rows(p_.views.in.q, h), p_.query_rows(p_.views.dout, h), first, count);
    for (int r = 0; r < count; ++r) fixed_terms_[r] = terms(h, first + r, b_ + int64{r} * width_);
    clear_sums(sum_rows_);
    add_tiles(h, first, count, strided_rows(h.k), strided_rows(h.v));
    if (!wants_x_) return;
    const auto dq = p_.query_rows(p_.views.dq, h);
    for (int r = 0; r < count; ++r) store(dq, first + r, sum_x_ + int64{r} * row_x_, p_.call.scale);
  }

  /// Computes dk and dv of the keys [first, first + count) of key sequence n and a head of k, count <= block_rows.
  void run_keys(int n, int kv_head, int first, int count) {
    const int group = p_.call.heads_per_kv;
    clear_sums(sum_rows_);
    bool loaded = false;
    head any{};
    for (int b = p_.first_reader(n); b < p_.end_reader(n); ++b)
      for (int i = 0; p_.is_reader(b, n) && i < group; ++i) {
        const head h = p_.call.at(b, kv_head * group + i);
        const int rows = h.keys() - first < count ? h.keys() - first : count;
        if (rows <= 0) break;
        if (!loaded) {  // the keys of the longest reader: all of them start at the same row
          any = h;
          load_fixed(p_.key_rows(p_.views.in.k, h, first + count), p_.key_rows(p_.views.in.v, h, first + count), first,
                     count);
          loaded = true;
        }
        add_tiles(h, first, rows, strided_rows(h.q), strided_rows(p_.query_rows(p_.views.dout, h)));
      }
    if (!loaded) return;
    store_keys(any, first, count);
  }

  /// Computes dk and dv of a head of key sequence n, and dq of all that read it.
  void run_head(int n, int kv_head) {
    static_assert(All);
    const int group = p_.call.heads_per_kv;
    clear_sums(p_.keys_of(n) + int64{padding});
    int most = 0;
    head any{};
    for (int b = p_.first_reader(n); b < p_.end_reader(n); ++b)
      for (int i = 0; p_.is_reader(b, n) && i < group; ++i) {
        const head h = p_.call.at(b, kv_head * group + i);
        if (h.keys() > most) most = h.keys(), any = h;
        dq_.clear(h.queries() + int64{padding});
        for (int first = 0; first < h.keys(); first += block_rows) {
          const int rows = h.keys() - first < block_rows ? h.keys() - first : block_rows;
          load_keys(h, first, rows);
          add_tiles(h, first, rows, strided_rows(h.q), strided_rows(p_.query_rows(p_.views.dout, h)));
        }
        const auto dq = p_.query_rows(p_.views.dq, h);
        for (int r = 0; r < h.queries(); ++r) store(dq, r, dq_.row(r), p_.call.scale);
      }
    store_keys(any, 0, most);
  }

  /// The gradient of one head's sink.
  float sink_gradient(int head_of_q) { return host_sink_gradient(p_, loops_, head_of_q, line_, other_line_); }

 private:
  static constexpr int sums = host_loops::sums;
  static_assert(block_columns == host_loops::row && (All || strip_rows % host_loops::rows == 0) &&
                block_rows % strip_rows == 0);
  using modifier = decltype(stdlib::declval<const Params&>().call.score);
  using mask_type = decltype(stdlib::declval<const Params&>().call.mask);
  static constexpr bool plain = is_plain_score<modifier>, drops = drops_weights<modifier>,
                        gradients = gradient_of<modifier>::wanted;
  static constexpr tile_axis moving = rows_are_keys ? tile_axis::queries : tile_axis::keys;

  row_terms terms(const head& h, int query, const float* dout) {
    return host_row_terms(p_, loops_, h, query, dout, other_line_);
  }

  void clear_sums(int64 rows) {
    for (int64 i = 0; i < rows * row_x_; ++i) sum_x_[i] = 0;
    for (int64 i = 0; wants_y_ && i < rows * row_y_; ++i) sum_y_[i] = 0;
  }

  template <class First, class Second>
  void load_fixed(const First& a, const Second& b, int first, int count) {
    host_load_rows(loops_, strided_rows(a), depth_, first, count, a_);
    host_load_rows(loops_, strided_rows(b), width_, first, count, b_);
  }
  /// Loads a block of keys and values, and the keys for dq.
  void load_keys(const head& h, int first, int count) {
    load_fixed(h.k, h.v, first, count);
    for (int64 i = int64{count} * depth_; i < (count + int64{padding}) * depth_; ++i) a_[i] = 0;
    for (int64 i = int64{count} * width_; i < (count + int64{padding}) * width_; ++i) b_[i] = 0;
    dq_.put_keys(a_, count, depth_, line_);
  }

  /// Adds the tiles of one head that the fixed rows [first, first + count) see, or are seen by.
  template <class Keys, class Values>
  void add_tiles(const head& h, int first, int count, const Keys& x, const Values& y) {
    const visible_tiles<mask_type, moving> tiles(p_.call.mask, h, first, count, block_columns);
    const int length = rows_are_keys ? h.queries() : h.keys(), skipped = first % 16;
    for (int n = tiles.next(0); n < tiles.count(); n = tiles.next(n + 1)) {
      const int begin = n * block_columns, here = length - begin < block_columns ? length - begin : block_columns;
      const tile_keep whole = tiles.keep(n);
      const bool finite_x = host_load_panels<block_columns>(loops_, x, begin, here, depth_, row_x_, line_, x_columns_,
                                                            wants_x_ ? x_ : nullptr, [](int, const float*) {});
      const bool finite_y = host_load_panels<block_columns>(loops_, y, begin, here, width_, row_y_, line_, y_columns_,
                                                            wants_y_ ? y_ : nullptr, [&](int j, const float* line) {
                                                              if constexpr (rows_are_keys) {
                                                                const row_terms t = terms(h, begin + j, line);
                                                                lse_[j] = t.lse, delta_[j] = t.delta;
                                                              }
                                                            });
      for (int j = here; j < block_columns; ++j) lse_[j] = infinity_of<float>, delta_[j] = 0;
      put_weight_factors<rows_are_keys>(lone_thread{}, p_.call.score, h, first - skipped, begin,
                                        kept_scale(p_.call.score), factors_, skipped + count);
      for (int row = 0; row < count; row += strip_rows) {
        const int rows = count - row < strip_rows ? count - row : strip_rows;
        const tile_keep keep = whole == tile_keep::all ? whole : tiles.keep(n, first + row, rows);
        if (keep == tile_keep::none) continue;
        host_product_panels<block_columns>(loops_, a_ + int64{row} * depth_, x_columns_, depth_, rows, s_,
                                           line_columns);
        if (wants_dp_)
          host_product_panels<block_columns>(loops_, b_ + int64{row} * width_, y_columns_, width_, rows, dp_,
                                             line_columns);
        if (wants_dp_) drop(dp_, skipped + row, rows);
        for (int r = 0; r < rows; ++r) turn_row(h, first, row + r, r, begin, here, keep);
        drop(s_, skipped + row, rows);
        const auto kept = [&](int r, int j) { return p_.call.mask(coord(h, first + row + r, begin + j)); };
        if constexpr (All) dq_.add(row, rows, begin, here, {dp_, 1, line_columns}, kept, line_);
        const auto add = [&](float* weights, const float* panels, int padded, float* sum, bool finite) {
          host_add_strip<block_columns>(loops_, rows, here, weights, line_columns, panels, padded, finite,
                                        keep == tile_keep::all, kept, line_,
                                        sum + int64{All ? first + row : row} * padded);
        };
        if (wants_x_) add(dp_, x_, row_x_, sum_x_, finite_x);
        if (wants_y_) add(s_, y_, row_y_, sum_y_, finite_y);
      }
    }
  }
  /// Multiplies rows of weights or of their gradients by the factors of dropout, from row `first_factor` of these on.
  void drop([[maybe_unused]] float* rows_of, [[maybe_unused]] int first_factor, [[maybe_unused]] int rows) {
    if constexpr (drops)
      for (int r = 0; r < rows; ++r)
        for (int j = 0; j < block_columns; ++j)
          rows_of[r * line_columns + j] *= factors_.data()[(first_factor + r) * block_columns + j];
  }

  static attention_coord coord(const head& h, int fixed, int moving_row) {
    const int query = rows_are_keys ? moving_row : fixed, key = rows_are_keys ? fixed : moving_row;
    return {h.batch, h.head, query, key, query + h.offset};
  }

  /// Turns row r of s_ into P and row r of dp_ into dS.
  void turn_row(const head& h, int first, int row, int r, int begin, int here, tile_keep keep) {
    float* const s = s_ + r * line_columns;
    float* const dp = dp_ + r * line_columns;
    const auto at = [&](int j) { return coord(h, first + row, begin + j); };
    if constexpr (!rows_are_keys) {
      const row_terms t = fixed_terms_[row];
      for (int j = 0; j < block_columns; ++j) lse_[j] = t.lse, delta_[j] = t.delta;
    }
    alignas(64) float slope[block_columns], z[block_columns];
    float scale = p_.call.scale;
    if constexpr (!plain) {
      for (int j = 0; j < here; ++j) {
        z[j] = s[j] * scale;
        const dual<float> y = modified_score(p_.call.score, z[j], at(j));
        s[j] = y.value, slope[j] = y.slope;
      }
      for (int j = here; j < block_columns; ++j) slope[j] = 0;
      scale = 1.0f;
    }
    loops_.scale_and_subtract(s, scale, lse_);
    bool kept[block_columns];
    if (keep != tile_keep::all)
      for (int j = 0; j < block_columns; ++j) {
        kept[j] = j < here && p_.call.mask(at(j));
        if (!kept[j]) s[j] = -infinity_of<float>;
      }
    alignas(64) float unused[sums] = {};
    loops_.exponentials(s, 0.0f, unused);
    if (!wants_dp_) return;
    loops_.score_gradients(s, delta_, dp);
    if constexpr (!rows_are_keys && gradients)
      for (int j = 0; j < here; ++j)
        if (keep == tile_keep::all || kept[j])
          gradient_of<modifier>::give(p_.call.score, dp[j], z[j], at(j), p_.parameter_sums_at(h, first + row));
    if constexpr (!plain)
      for (int j = 0; j < block_columns; ++j) dp[j] *= slope[j];
    if (keep != tile_keep::all)
      for (int j = 0; j < block_columns; ++j) dp[j] = kept[j] ? dp[j] : 0.0f;
  }

  /// Stores dk and dv of the keys [first, first + count) of a head, whose sums begin with that of `first`.
  void store_keys(const head& h, int first, int count) const {
    for (int r = 0; r < count; ++r) {
      if (wants_x_)
        host_store_gradient(p_.key_rows(p_.views.dk, h, first + count), first + r, sum_x_ + int64{r} * row_x_,
                            p_.call.scale, p_.accumulates_keys);
      if (wants_y_)
        host_store_gradient(p_.key_rows(p_.views.dv, h, first + count), first + r, sum_y_ + int64{r} * row_y_, 1.0f,
                            p_.accumulates_keys);
    }
  }
  template <class V>
  void store(const tensor_view<V, 2>& to, int64 row, const float* sum, float factor) const {
    host_store_gradient(to, row, sum, factor, p_.accumulate);
  }

  const Params p_;
  const host_loops& loops_;
  const int depth_, width_, row_x_, row_y_;  // head sizes, and rounded up to whole vectors
  const bool wants_x_, wants_y_, wants_dp_;  // which sums are computed
  const int64 sum_rows_;
  float *a_ = nullptr, *b_ = nullptr;                  // fixed rows
  float *x_columns_ = nullptr, *y_columns_ = nullptr;  // moving rows, transposed
  float *x_ = nullptr, *y_ = nullptr;                  // moving rows
  float *sum_x_ = nullptr, *sum_y_ = nullptr, *line_ = nullptr, *other_line_ = nullptr;
  host_dq_sums<block_rows, strip_rows> dq_;  // with All: of a head
  const host_arrays arrays_;
  row_terms fixed_terms_[stdlib::size_t{rows_are_keys ? 1 : block_rows}];
  // A product writes rows up to a multiple of host_loops::rows, and one with dS^T reads so many columns, zeros past the block's.
  static constexpr int padding = host_loops::rows, line_columns = All ? block_columns + 16 : block_columns,
                       line_count = (strip_rows + padding - 1) / padding * padding;
  alignas(64) float s_[stdlib::size_t{line_count * line_columns}] = {};   // S, then P
  alignas(64) float dp_[stdlib::size_t{line_count * line_columns}] = {};  // dP, then dS
  alignas(64) float lse_[block_columns], delta_[block_columns];
  [[no_unique_address]] stdlib::conditional_t<drops, shared_tile<float, tile_shape<block_rows + 16, block_columns>>,
                                              nothing>
      factors_;  // of dropout
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
