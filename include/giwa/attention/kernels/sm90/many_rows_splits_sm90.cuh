// SPDX-License-Identifier: MIT
// The splits of keys that a block sums one after the other, each from nothing, and merges.
#ifndef GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_SPLITS_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_SPLITS_SM90_CUH

#include <giwa/arch/wgmma.cuh>
#include <giwa/attention/sums/row_sums.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The rows of a thread over the splits before the current one, m in units of log2.
template <class QueryRows>
using earlier_splits = local_partial<typename QueryRows::output_registers::map>;

/// What a consumer does at the ends of splits. Scores of the first tile of a split are computed before O of the last one is
/// complete.
template <class QueryRows, class Block>
class sum_in_splits {
 public:
  using softmax_state = typename QueryRows::softmax_state;
  using map = typename QueryRows::output_registers::map;
  static constexpr int rows = softmax_state::rows;

  GIWA_DEVICE sum_in_splits(const Block& block, earlier_splits<QueryRows>& earlier, int split_keys, float scale_log2)
      : block_(block), earlier_(earlier), split_keys_(split_keys), scale_log2_(scale_log2) {}

  /// Before the scores of a tile.
  GIWA_DEVICE void see_tile(int first_key) {
    const auto key = static_cast<uint32>(first_key), keys = static_cast<uint32>(split_keys_);
    begins_ = end_ > 0 && key >= end_;
    if (end_ == 0 || begins_) end_ = (key / keys + 1) * keys;
  }
  /// Before the softmax of that tile. Where the softmax overlaps the product with the tile before, it has no branch: ptxas waits
  /// for products at branches. Elsewhere the branch is here, not after the softmax, where it would part the softmax
  /// from what ptxas mixes with it: 262 us instead of 238 for 1024 queries and 8192 keys, causal (H200, 2026-11-23).
  GIWA_DEVICE void begin_softmax(QueryRows& q) {
    if constexpr (QueryRows::policy::overlaps) {
      GIWA_UNROLL
      for (int r = 0; r < rows; ++r) {
        float &m = q.softmax.m[r], &l = q.softmax.l[r];
        m_[r] = m, l_[r] = l;
        m = begins_ ? -infinity_of<float> : m, l = begins_ ? 0.f : l;
      }
    } else if (begins_) {
      arch::wgmma_wait<0>();
      arch::fence_operand(q.o.value);
      take_sums(q);
      save(q);
      q.softmax.reset();
    }
  }
  /// After the product with the tile before.
  GIWA_DEVICE void take_output(QueryRows& q) {
    if constexpr (QueryRows::policy::overlaps)
      if (begins_) save(q);
  }
  /// Sets m, in units of log2, l and O to those of all splits.
  GIWA_DEVICE void finish(QueryRows& q, float (&m)[rows], float (&l)[rows]) {
    take_sums(q);
    complete();
    add_earlier(q);
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m[r] = m_[r], l[r] = l_[r];
  }

 private:
  GIWA_DEVICE void take_sums(const QueryRows& q) {
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r) m_[r] = q.softmax.m[r], l_[r] = q.softmax.l[r];
  }
  /// Merges the split whose m and l were taken into the earlier ones. O begins at 0 again.
  GIWA_DEVICE void save(QueryRows& q) {
    complete();
    add_earlier(q);
    earlier_.save(m_, l_, q.o.value);
    q.o.fill(0);
    has_earlier_ = true;
  }
  /// Makes m_ and l_ those of whole rows, as merge_maxima() takes them.
  GIWA_DEVICE void complete() {
    reduce_over_lanes<typename QueryRows::score_map>(block_, l_, plus{});
    GIWA_UNROLL
    for (int r = 0; r < rows; ++r)
      if (m_[r] != -infinity_of<float>) m_[r] = reference_of(m_[r], scale_log2_, 0);
  }
  GIWA_DEVICE void add_earlier(QueryRows& q) {
    if (has_earlier_) merge_rows<map>(earlier_, {m_, l_, q.o.value}, {m_, l_, q.o.value});
  }

  const Block& block_;
  earlier_splits<QueryRows>& earlier_;
  const int split_keys_;
  const float scale_log2_;
  uint32 end_ = 0;  // key after the current split; 0: none has begun
  bool begins_ = false, has_earlier_ = false;
  float m_[rows], l_[rows];  // of the last split
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
