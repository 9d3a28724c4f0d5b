// SPDX-License-Identifier: MIT
// attention_forward on the CPU: flash attention in blocks that stay in the cache, shared among threads.
#ifndef GIWA_ATTENTION_CPU_FORWARD_HPP
#define GIWA_ATTENTION_CPU_FORWARD_HPP

#include <giwa/attention/forward/forward.hpp>
#include <giwa/attention/cpu/product.hpp>
#include <giwa/grid/host_loop.hpp>
#include <giwa/softmax/state.hpp>

#include <atomic>
#include <memory>
#include <new>

namespace giwa::inline GIWA_ABI::detail {

/// The work of one thread: blocks of queries of one head, in fp32 and in memory of its own. A row is the same sequence of
/// operations whatever block it is in: keys are cut at multiples of keys_at_once, sums run over keys in order, and what a mask
/// takes away leaves no trace.
template <class T, class O, class Mask, class Score>
class host_attention_worker {
 public:
  // 128 keys, or 384 queries, or both, are within 6 % of these (fp32, 8 heads of 1024 x 64, AVX-512, 2-core x86-64 VM,
  // 2026-11-21).
  static constexpr int most_queries = 192;  // of a block: packed keys and values serve so many rows
  static constexpr int keys_at_once = 64;   // a panel of them stays in the first cache, beside
  static constexpr int rows_at_once = 24;   // so many rows of scores

  explicit host_attention_worker(const attention_params<T, O, Mask, Score>& p)
      : p_(p),
        depth_(static_cast<int>(p.views.q.extent(3))),
        width_(static_cast<int>(p.views.v.extent(3))),
        row_(static_cast<int>(round_up(width_, int64{lanes}))) {
    const int64 floats[] = {int64{most_queries} * depth_, int64{keys_at_once} * depth_, int64{keys_at_once} * row_,
                            int64{most_queries} * row_,   rows_at_once * keys_at_once,  most_queries * sums,
                            round_up(depth_ + width_, 16)};
    int64 total = 0;
    for (const int64 n : floats) total += round_up(n, 16);
    memory_.reset(static_cast<float*>(
        ::operator new(static_cast<stdlib::size_t>(total) * sizeof(float), std::align_val_t{64}, std::nothrow)));
    if (!memory_) return;
    float* next = memory_.get();
    float** const parts[] = {&q_, &k_, &v_, &o_, &s_, &sum_, &line_};
    for (int i = 0; i < 7; ++i) {
      *parts[i] = next;
      next += round_up(floats[i], 16);
    }
  }

  bool has_memory() const { return memory_ != nullptr; }

  /// The rows of the queries [first, first + count), count <= most_queries.
  void run(const attention_head<T, O>& h, int first, int count) {
    load_queries(h, first, count);
    const float sink = p_.sinks == nullptr ? -infinity_of<float> : p_.sinks[h.head * p_.sink_stride];
    const auto of_sink = softmax_state<float>::of(sink);
    for (int r = 0; r < count; ++r) {
      max_[r] = of_sink.max;
      for (int i = 0; i < sums; ++i) sum_[r * sums + i] = i == 0 ? of_sink.sum : 0;
    }
    for (int key = 0; key < h.keys(); key += keys_at_once) {
      const int keys = h.keys() - key < keys_at_once ? h.keys() - key : keys_at_once;
      const auto tile = [&](int row, int rows) {
        return score_tile{h.batch, h.head, first + row, first + row + rows - 1, key, key + keys - 1, h.offset};
      };
      const tile_keep whole = classify(p_.mask, tile(0, count));
      if (whole == tile_keep::none) continue;
      load_keys(h, key, keys);
      const bool finite = load_values(h, key, keys);
      for (int row = 0; row < count; row += rows_at_once) {
        const int rows = count - row < rows_at_once ? count - row : rows_at_once;
        const tile_keep keep = whole == tile_keep::all ? whole : classify(p_.mask, tile(row, rows));
        if (keep == tile_keep::none) continue;
        score(row, rows);
        for (int r = 0; r < rows; ++r) weigh(h, first + row + r, row + r, r, key, keys, keep);
        if (keep == tile_keep::all || finite)
          add(row, rows);
        else
          for (int r = 0; r < rows; ++r) add_kept(h, first + row + r, row + r, r, key, keys);
      }
    }
    for (int r = 0; r < count; ++r) store(h, first + r, r);
  }

 private:
  static constexpr int lanes = host_registers::lanes, columns = host_registers::columns, sums = 16;
  static_assert(keys_at_once % columns == 0 && rows_at_once % host_registers::rows == 0 &&
                most_queries % rows_at_once == 0);

  struct release {
    void operator()(float* p) const { ::operator delete(static_cast<void*>(p), std::align_val_t{64}); }
  };

  /// q_ (queries, depth), with zeros up to where products of several rows read.
  void load_queries(const attention_head<T, O>& h, int first, int count) {
    for (int r = 0; r < count; ++r)
      host_widen(h.q.data() + (first + int64{r}) * h.q.stride(0), q_ + int64{r} * depth_, depth_);
    const int64 padded = round_up(count, int64{host_registers::rows});
    for (int64 i = int64{count} * depth_; i < padded * depth_; ++i) q_[i] = 0;
    for (int64 i = 0; i < padded * row_; ++i) o_[i] = 0;
  }

  /// Has the rows of the next block fetched while this one is worked on: heads lie apart, and no hardware sees their stride.
  static void prefetch(const tensor_view<const T, 2>& rows, int row, int bytes) {
    if (row >= rows.extent(0)) return;
    const char* const from = reinterpret_cast<const char*>(rows.data() + row * rows.stride(0));
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
  }

  /// k_ (panels, depth, columns): transposed, with zeros behind the last key.
  void load_keys(const attention_head<T, O>& h, int key, int keys) {
    for (int j = 0; j < keys_at_once; ++j) {
      float* const to = k_ + int64{j / columns} * columns * depth_ + j % columns;
      if (j < keys) {
        prefetch(h.k, key + j + keys_at_once, depth_ * static_cast<int>(sizeof(T)));
        host_widen(h.k.data() + (key + int64{j}) * h.k.stride(0), line_, depth_);
        for (int i = 0; i < depth_; ++i) to[int64{i} * columns] = line_[i];
      } else {
        for (int i = 0; i < depth_; ++i) to[int64{i} * columns] = 0;
      }
    }
  }

  /// v_ (panels, keys, columns), the last panel as wide as the rest; with zeros. Whether all of it is finite.
  bool load_values(const attention_head<T, O>& h, int key, int keys) {
    bool finite = true;
    for (int j = 0; j < keys_at_once; ++j) {
      const int have = j < keys ? width_ : 0;
      if (have > 0) prefetch(h.v, key + j + keys_at_once, width_ * static_cast<int>(sizeof(T)));
      if (have > 0) host_widen(h.v.data() + (key + int64{j}) * h.v.stride(0), line_, width_);
      for (int i = have; i < row_; ++i) line_[i] = 0;
      finite = host_finite(line_, row_) && finite;
      for (int first = 0; first < row_; first += columns) {
        const int wide = row_ - first < columns ? row_ - first : columns;
        float* const to = v_ + int64{first} * keys_at_once + int64{j} * wide;
        for (int i = 0; i < wide; ++i) to[i] = line_[first + i];
      }
    }
    return finite;
  }

  /// s_ (rows, keys) = q k^T.
  void score(int row, int rows) {
    for (int first = 0; first < keys_at_once; first += columns)
      host_product_rows<false, host_registers::vectors, lanes>(
          rows, q_ + int64{row} * depth_, depth_, k_ + int64{first} * depth_, depth_, s_ + first, keys_at_once);
  }

  /// Makes a row of scores its weights, e^(score - max), and brings its state and its row of o_ to the new max.
  void weigh(const attention_head<T, O>& h, int query, int row, int r, int key, int keys, tile_keep keep) {
    float* const s = s_ + r * keys_at_once;
    const auto coord = [&](int j) { return attention_coord{h.batch, h.head, query, key + j, query + h.offset}; };
    constexpr bool plain = stdlib::same_as<Score, plain_score>;
    const bool touched = !plain || keep != tile_keep::all || keys < keys_at_once;
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
      for (int j = keys; j < keys_at_once; ++j) s[j] = -infinity_of<float>;
    }
    alignas(64) float most[sums];
    for (int i = 0; i < sums; ++i) most[i] = -infinity_of<float>;
    const float left = touched ? 1.0f : p_.scale;  // what s is still multiplied by
    for (int j = 0; j < keys_at_once; j += lanes) host_scale_and_max<lanes>(s + j, left, most + j % sums);

    softmax_state<float> state{max_[row], 0};
    for (int i = 0; i < sums; ++i) state.max = most[i] > state.max ? most[i] : state.max;
    float* const sum = sum_ + row * sums;
    if (state.max > max_[row]) {
      const float factor = exponential{}(max_[row] - state.max);
      float* const o = o_ + int64{row} * row_;
      for (int i = 0; i < row_; ++i) o[i] *= factor;
      for (int i = 0; i < sums; ++i) sum[i] *= factor;
      max_[row] = state.max;
    }
    const float reference = state.reference();
    for (int j = 0; j < keys_at_once; j += lanes) host_exponentials<lanes>(s + j, reference, sum + j % sums);
  }

  /// o_ += s_ v_.
  void add(int row, int rows) {
    for (int first = 0; first < row_; first += columns) {
      const int wide = row_ - first < columns ? row_ - first : columns;
      host_product_of<true, lanes>(wide / lanes, rows, s_, keys_at_once, v_ + int64{first} * keys_at_once, keys_at_once,
                                   o_ + int64{row} * row_ + first, row_);
    }
  }

  /// The same for one row and the keys that its mask keeps, one by one: where values of others are infinite or NaN, a weight of
  /// 0 does not remove them.
  void add_kept(const attention_head<T, O>& h, int query, int row, int r, int key, int keys) {
    for (int j = 0; j < keys; ++j) {
      if (!p_.mask(attention_coord{h.batch, h.head, query, key + j, query + h.offset})) continue;
      for (int first = 0; first < row_; first += columns) {
        const int wide = row_ - first < columns ? row_ - first : columns;
        host_product_of<true, lanes>(wide / lanes, 1, s_ + r * keys_at_once + j, keys_at_once,
                                     v_ + int64{first} * keys_at_once + int64{j} * wide, 1,
                                     o_ + int64{row} * row_ + first, row_);
      }
    }
  }

  void store(const attention_head<T, O>& h, int query, int row) {
    softmax_state<float> state{max_[row], 0};
    for (int i = 0; i < sums; ++i) state.sum += sum_[row * sums + i];
    const float factor = state.normalizer();
    const float* const from = o_ + int64{row} * row_;
    O* const to = h.o.data() + query * h.o.stride(0);
    // + 0: a sum that is -0 becomes +0, as it does where a masked key's 0 has been added to it.
    for (int i = 0; i < width_; ++i) to[i] = convert<O>{}(from[i] * factor + 0.0f);
    if (h.lse != nullptr) h.lse[query * h.lse_stride] = state.lse();
  }

  const attention_params<T, O, Mask, Score> p_;
  const int depth_, width_;
  const int row_;  // width_ up to whole vectors
  std::unique_ptr<float, release> memory_;
  float *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *o_ = nullptr, *s_ = nullptr, *line_ = nullptr, *sum_ = nullptr;
  float max_[most_queries];
};

/// See attention_forward. Arguments are checked already.
template <int HeadSize, int HeadSizeV>
struct host_attention {
  template <class T, class O, class Mask, class Score>
  static status run(const attention_params<T, O, Mask, Score>& params) {
    using worker = host_attention_worker<T, O, Mask, Score>;
    const attention_problem sizes = params.views.problem();
    int64 longest = params.views.q.extent(1), most_keys = params.views.k.extent(1);
    if (params.views.is_packed()) {
      longest = 0;
      for (int64 i = 0; i < sizes.batch; ++i) {
        const int queries = params.at(static_cast<int>(i), 0).queries();
        longest = queries > longest ? queries : longest;
      }
      most_keys = ceil_div(most_keys, sizes.batch);  // on average
    }
    if (longest == 0) return {};
    // Smaller blocks where there are few: a core without one waits.
    const int64 queries = longest >= 768 ? worker::most_queries : longest >= 96 ? 96 : 24;
    const int64 blocks = ceil_div(longest, queries), tasks = sizes.batch * sizes.heads * blocks;
    const int64 rows = longest < queries ? longest : queries;
    const int64 products = rows * (HeadSize + HeadSizeV) * (most_keys + 1);  // of a block

    // host_parallel cuts at multiples of 64, which keeps threads that write single elements apart; here a block is 64.
    constexpr int64 unit = 64;
    constexpr int64 enough = 4000000;  // products that pay for a thread: 0.1 to 1 ms
    std::atomic<bool> no_memory{false};
    host_parallel(tasks * unit, ceil_div(enough, products) * unit, [&](int64 begin, int64 end) {
      worker w(params);
      if (!w.has_memory()) return no_memory.store(true, std::memory_order_relaxed);
      for (int64 task = begin / unit; task < end / unit; ++task) {
        const int64 first = task % blocks * queries, sequence = task / blocks;
        const auto h = params.at(static_cast<int>(sequence / sizes.heads), static_cast<int>(sequence % sizes.heads));
        const int64 left = h.queries() - first;
        if (left > 0) w.run(h, static_cast<int>(first), static_cast<int>(left < queries ? left : queries));
      }
    });
    if (no_memory.load()) {
      status s;
      s.code = status_code::out_of_memory;
      s.message = "there is no memory for the blocks of attention on the CPU, at most 2 MiB a thread";
      return s;
    }
    return {};
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
