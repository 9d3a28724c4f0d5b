// SPDX-License-Identifier: MIT
// The end of the rows of a part of the keys (part_of_keys) in a kernel: the merge with earlier parts, and where the rows go.
#ifndef GIWA_ATTENTION_SUMS_PART_ROWS_CUH
#define GIWA_ATTENTION_SUMS_PART_ROWS_CUH

#include <giwa/attention/nonfinite/nonfinite.cuh>
#include <giwa/attention/problem/part_of_keys.hpp>
#include <giwa/tile/register_copy.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The rows of one head of one sequence.
template <class T, class O, class Score>
class part_rows {
 public:
  GIWA_HOST_DEVICE part_rows(const part_of_keys<Score>& part, const attention_head<T, O>& head)
      : part_(part),
        head_(head),
        so_far_(part.row(head, 0), {head.queries(), part.o.extent(3)}, {part.o.stride(1), 1}) {}

  /// Reads the log-sum-exp of the parts so far for a thread's rows: -inf where there is none. All lanes of the warp call it,
  /// before one of them writes it.
  template <class Map, class Block>
  GIWA_HOST_DEVICE void read_lse(const Block& block, int thread, int first_query, float (&to)[Map::rows]) const {
    GIWA_UNROLL
    for (int r = 0; r < Map::rows; ++r) {
      const int query = first_query + Map::row(thread, r);
      to[r] = part_.follows && query < head_.queries() ? part_.lse_of(head_, query) : -infinity_of<float>;
    }
    block.sync_warp();
  }
  /// Adds the output of earlier parts, times a factor for each row, to that of this part. All lanes of the warp call it.
  template <class Map, class Block>
  GIWA_HOST_DEVICE void add_earlier(const Block& block, int thread, int first_query, const float (&factor)[Map::rows],
                                    register_tile<float, Map>& o) const {
    if (!part_.follows) return;
    constexpr int run = is_accumulator_map<Map> ? 2 : 1;
    constexpr int batch = Map::registers % 16 == 0 ? 16 : Map::registers % 8 == 0 ? 8 : run;  // elements read at once
    static_assert(Map::registers % batch == 0);
    const int width = static_cast<int>(so_far_.extent(1));
    // The memory of the parts so far is contiguous.
    const bool even = width % 2 == 0 && reinterpret_cast<uint64>(so_far_.data()) % sizeof(float2) == 0;
    GIWA_UNROLL
    for (int begin = 0; begin < Map::registers; begin += batch) {
      float earlier[batch];
      GIWA_UNROLL
      for (int i = 0; i < batch; i += run) {
        const int slot = Map::slot(begin + i), query = first_query + Map::row(thread, slot),
                  column = Map::column(thread, begin + i);
        const float* const from = so_far_.data() + (query * so_far_.stride(0) + column);
        const bool reads = query < head_.queries() && factor[slot] != 0;
        if constexpr (run == 2) {
          float2 two = make_float2(0, 0);
          if (even) {
            if (reads && column < width) two = *reinterpret_cast<const float2*>(from);
          } else {
            if (reads && column < width) two.x = from[0];
            if (reads && column + 1 < width) two.y = from[1];
          }
          earlier[i] = two.x, earlier[i + 1] = two.y;
        } else {
          earlier[i] = reads && column < width ? *from : 0;
        }
      }
      GIWA_UNROLL
      for (int i = 0; i < batch; ++i)
        o.value[begin + i] = fused_multiply_add(earlier[i], factor[Map::slot(begin + i)], o.value[begin + i]);
      block.sync_warp();  // otherwise ptxas reads all before it adds, and spills
    }
  }

  /// Whether later parts follow for one of these queries.
  GIWA_HOST_DEVICE bool has_open(int first_query, int count) const {
    return first_query < part_.end_open && first_query + count > part_.first_open;
  }
  /// visit(head, first, end) for the queries before those that later parts follow, for these, and for those after them, as far as
  /// they are among [first_query, first_query + count); o of the head is where they go.
  template <class Visit>
  GIWA_HOST_DEVICE void for_each_range(int first_query, int count, const Visit& visit) const {
    const auto within = [](int x, int first, int end) { return x < first ? first : x > end ? end : x; };
    const int last = first_query + count < head_.queries() ? first_query + count : head_.queries();
    const int begin = within(part_.first_open, first_query, last), end = within(part_.end_open, begin, last);
    if (first_query < begin) visit(head_, first_query, begin);
    if (begin < end)
      visit(attention_head<T, float>{head_, head_, head_.q, head_.k, head_.v, so_far_, nullptr, 0}, begin, end);
    if (end < last) visit(head_, end, last);
  }
  /// Writes rows [first_row, first_row + count) of a tile, whose first query is first_query, to where each of them goes.
  template <class Map>
  GIWA_HOST_DEVICE void store(int thread, const register_tile<float, Map>& o, int first_query, int first_row,
                              int count) const {
    for_each_range(first_query + first_row, count, [&](const auto& head, int first, int end) {
      const auto& to = head.o;
      const tensor_view rows(to.data() + first * to.stride(0), {end - first, to.extent(1)}, to.strides());
      giwa::store(thread, o, rows, {first_query - first, 0});
    });
  }
  /// The end of a warp's rows of a tile: adds the earlier parts. If `any_open` says that later ones follow for some of the rows of
  /// the threads that store together, it stores these rows, and returns true; of scrubbed tiles of v too (add_nonfinite).
  template <class Map, class Block, class Steps, class List, class Taken>
  GIWA_DEVICE bool finish(const Block& block, int thread, const float (&factor)[Map::rows],
                          register_tile<float, Map>& o, int first_query, int first_row, int count, bool any_open,
                          bool has_nonfinite, const Steps& steps, const List& list, const Taken& taken) const {
    add_earlier(block, thread, first_query, factor, o);
    if (!any_open) return false;
    store(thread, o, first_query, first_row, count);
    if (!has_nonfinite) return true;
    block.sync_warp();
    for_each_range(first_query + first_row, count, [&](const auto& head, int first, int end) {
      add_nonfinite(one_warp<Block>(block), steps, head, list, first, end - first, 0, Map::shape::columns, taken);
    });
    return true;
  }

 private:
  const part_of_keys<Score>& part_;
  const attention_head<T, O>& head_;
  tensor_view<float, 2> so_far_;
};
template <class T, class O, class Score>
part_rows(const part_of_keys<Score>&, const attention_head<T, O>&) -> part_rows<T, O, Score>;

}  // namespace giwa::inline GIWA_ABI::detail

#endif
