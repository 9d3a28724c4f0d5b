// SPDX-License-Identifier: MIT
// Partials of many latent rows.
#ifndef GIWA_ATTENTION_SUMS_ROW_TILE_PARTIALS_CUH
#define GIWA_ATTENTION_SUMS_ROW_TILE_PARTIALS_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/arch/dependent_launch.cuh>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/attention/sums/divided_tile.cuh>
#include <giwa/attention/sums/merge_partials.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Where the columns of a partial lie: of each 16 columns a thread of the warpgroup that stores it has four, which are neighbours there. So
/// a row is stored 64 bytes at a time.
template <class Map>
struct partial_columns {
  static_assert(Map::column(1, 0) == 2 && Map::column(0, 1) == 1 && Map::column(0, 4) == 8 &&
                Map::slot(4) == Map::slot(0));
  /// The place of registers i, i + 1, i + 4 and i + 5 of a thread, i a multiple of 8, or of the other row.
  GIWA_HOST_DEVICE static constexpr int place(int thread, int i) { return Map::column(0, i) + thread % 4 * 4; }
};
/// The column at a place that is a multiple of 4; the next one follows it, and the other two are 8 columns later.
GIWA_HOST_DEVICE constexpr int column_of_partial(int place) { return place / 16 * 16 + place % 16 / 2; }

/// A divided work tile whose leaves are merged in order.
template <class Call>
class row_tile_partials : public divided_tile<row_tile_params<Call>> {
  using base = divided_tile<row_tile_params<Call>>;
  using base::begin_, base::column_, base::first_split_, base::p_, base::split_length_, base::work_;

 public:
  using base::base;
  GIWA_DEVICE packed_rows rows() const { return rows_of(p_, work_); }
  GIWA_DEVICE ordered_partials partials() const { return {begin_, work_.leaves.count(), first_split_, split_length_}; }
  GIWA_DEVICE const float* slot_of(const ordered_partials& all, int k) const {
    const ordered_partials::position at = all.position_of(k);
    return p_.slot_of(at.split, column_, k == 0, at.number);
  }
};

/// The second launch. The rows of a work tile are units of 128 columns, which are contiguous in a partial. Blocks share them equally: a block
/// copies its units of all partials to shared memory at once, as far as they fit, and meanwhile one thread for each row works out the factors
/// of its partials. Then each warp merges some units (32 x 128(1) x 4096: 75 us instead of 102 for both launches, H200, 2026-11-30).
template <class Call, int Columns>
struct merge_row_tiles_op {
  using tile_type = row_tile_partials<Call>;
  using params = row_tile_params<Call>;
  using output = stdlib::remove_cvref_t<decltype(*static_cast<Call*>(nullptr)->views.o.data())>;
  static constexpr int max_threads = 256, min_blocks = 1, warps = max_threads / 32;
  static constexpr int unit = 32 * merged_columns, units_of_row = Columns / unit;
  static constexpr int most = 128, groups = 8;  // units in shared memory; mbarriers, each for some units of a pass
  static constexpr int rows_of_tile = 64;
  static constexpr int most_rows = most / units_of_row / 2 + 2, most_sums = most / units_of_row + 2 * most;
  static_assert(Columns % unit == 0);
  struct shared_storage {
    split_search search;
    arch::mbarrier full[groups];
    const float* slot[most];
    ended_row<output> row[most_rows];
    float lse[rows_of_tile];
    float2 sums[most_rows];        // m and l of the partials before these
    float2 of_partial[most_sums];  // (partials, rows): m and l, then factors of the earlier ones and of the partial
    alignas(128) float o[most][unit];
  };

  template <class Block>
  GIWA_DEVICE void operator()(Block plain_block, const params& p, shared_storage& s) const {
    const auto block = with_threads<max_threads>(plain_block);
    arch::launch_dependents();  // the next call, whose blocks wait for this launch
    const int share = static_cast<int>(block.block_index()[0]), split = static_cast<int>(block.block_index()[1]),
              shares = static_cast<int>(block.block_extents()[0]);
    if (block.rank() < groups) s.full[block.rank()].initialize(1);
    if (block.rank() == 0) arch::mbarriers_initialized();
    find_split_of_merge(block, p, split, s.search, s.of_partial);
    tile_type tile(p, static_cast<int>(block.block_index()[2]));
    // This launch begins while the splits are computed. One block that waits keeps it from ending before them.
    if (!tile.find(s.search.found)) {
      if (split == 0) arch::wait_for_previous_kernel();
      return;
    }
    tile.share_rows(split);
    const packed_rows rows = tile.rows();
    const int all = rows.rows * units_of_row;
    int each = ceil_div(all, tile.blocks * shares);
    // The prior's lse may be the one that is written: one block has all units of a row, and writes lse last.
    if (p.call.has_prior()) each = round_up(each, units_of_row);
    const int begin = (tile.rank * shares + share) * each, end = begin + each < all ? begin + each : all;
    if (begin >= end) return;
    const ordered_partials partials = tile.partials();
    const int batch = partials.count < most ? partials.count : most, at_once = most / batch;
    uint32 parity = 0;
    for (int first = begin; first < end; first += at_once) {
      const units_of_pass units{first, end - first < at_once ? end - first : at_once};
      float o[1][merged_columns] = {};  // after partials that do not fit, of which there is one unit then
      for (int done = 0; done < partials.count; done += batch, parity ^= 1) {
        const int count = partials.count - done < batch ? partials.count - done : batch;
        const bool is_last = done + count == partials.count;
        if (block.rank() < count) s.slot[block.rank()] = tile.slot_of(partials, done + block.rank());
        block.sync();  // what was copied before is merged, too
        // Another warp than those that have more to do.
        if (const int i = block.rank() - 32, row = units.first_row() + i; i >= 0 && i < units.rows())
          s.row[i].to = {p.call, tile.sequence(), rows.head(row), rows.query(row)};
        arch::wait_for_previous_kernel();
        copy(block, p, s, count, units);
        if (const int i = block.rank(); i < units.rows()) {
          float2 sums = make_float2(-infinity_of<float>, 0);
          if (done > 0) sums = s.sums[i];
          find_factors(s, count, units.rows(), i, sums);
          s.sums[i] = sums;
          s.row[i].end = s.row[i].to.finish(sums.x, sums.y);
          s.lse[units.first_row() + i] = s.row[i].end.lse;
        }
        block.sync();
        const int log2 = units.group_log2();
        for (int i = block.warp(); i < units.count;) {
          if (i + 3 * warps < units.count) {
            float four[4][merged_columns] = {};
            merge(block, s, units, log2, parity, count, i, true, four);
            i += 4 * warps;
          } else {
            if (done == 0) o[0][0] = o[0][1] = o[0][2] = o[0][3] = 0;
            merge(block, s, units, log2, parity, count, i, is_last, o);
            i += warps;
          }
        }
      }
    }
    if (p.call.lse.data() == nullptr) return;
    if (const int row = block.rank(); row < rows.rows && row * units_of_row >= begin && row * units_of_row < end) {
      const cached_sequence& q = tile.sequence();
      p.call.lse(q.q_batch, rows.head(row), q.first_query_row + rows.query(row)) = s.lse[row];
    }
  }

 private:
  /// What is in shared memory at once: units [first, first + count), in groups that have an mbarrier each.
  struct units_of_pass {
    int first, count;
    GIWA_DEVICE int first_row() const { return first / units_of_row; }
    GIWA_DEVICE int rows() const { return (first + count - 1) / units_of_row + 1 - first_row(); }
    GIWA_DEVICE int group_log2() const {
      int log2 = 0;
      GIWA_UNROLL
      for (int i = 1; groups << (i - 1) < most; ++i) log2 += (groups << (i - 1)) < count ? 1 : 0;
      return log2;
    }
  };

  /// Copies units of partials whose slots are listed: m and l are there when it returns, and O of a group of units when its mbarrier says so.
  template <class Block>
  GIWA_DEVICE static void copy(const Block& block, const params& p, shared_storage& s, int count, units_of_pass units) {
    const partial_slot slot{p.shape.rows, Columns};
    const int first_row = units.first_row(), rows = units.rows();
    for (int k = block.warp(); k < count; k += warps)
      for (int i = block.lane(); i < rows; i += 32)
        arch::copy_async<8>(arch::shared_address(&s.of_partial[k * rows + i]), s.slot[k] + slot.sums(first_row + i));
    arch::copy_async_commit();
    if (block.warp() == warps - 1) {
      const int log2 = units.group_log2();
      const auto floats_of = [&](int g) {
        const int left = units.count - (g << log2);
        return (left <= 0 ? 0 : left < 1 << log2 ? left : 1 << log2) * unit;
      };
      if (const int g = block.lane(); g < groups)
        s.full[g].arrive_and_expect(count * floats_of(g) * static_cast<int>(sizeof(float)));
      block.sync_warp();
      for (int g = 0; floats_of(g) > 0; ++g)
        for (int k = block.lane(); k < count; k += 32)
          arch::load_bytes(s.o[k * units.count + (g << log2)], s.slot[k] + (units.first + (g << log2)) * unit,
                           floats_of(g) * static_cast<int>(sizeof(float)), s.full[g]);
    }
    arch::copy_async_wait<0>();
    block.sync();
  }
  /// Merges unit i, and every `warps`-th after it, whose loads do not wait for each other. Writes them after the last partials.
  template <class Block, int Count>
  GIWA_DEVICE static void merge(const Block& block, shared_storage& s, units_of_pass units, int group_log2,
                                uint32 parity, int partials, int first, bool is_last,
                                float (&o)[Count][merged_columns]) {
    const int lane = merged_columns * block.lane();
    int row[Count];
    GIWA_UNROLL
    for (int j = 0; j < Count; ++j) {
      const int i = first + j * warps;
      row[j] = (units.first + i) / units_of_row - units.first_row();
      s.full[i >> group_log2].wait(parity);
    }
#pragma unroll 2
    for (int k = 0; k < partials; ++k) {
      GIWA_UNROLL
      for (int j = 0; j < Count; ++j) {
        const float4 x = *reinterpret_cast<const float4*>(&s.o[k * units.count + first + j * warps][lane]);
        const float2 factor = s.of_partial[k * units.rows() + row[j]];
        o[j][0] = merge_sums(o[j][0], factor.x, x.x, factor.y), o[j][1] = merge_sums(o[j][1], factor.x, x.y, factor.y);
        o[j][2] = merge_sums(o[j][2], factor.x, x.z, factor.y), o[j][3] = merge_sums(o[j][3], factor.x, x.w, factor.y);
      }
    }
    if (!is_last) return;
    GIWA_UNROLL
    for (int j = 0; j < Count; ++j) {
      const int column = column_of_partial((units.first + first + j * warps) % units_of_row * unit + lane);
      s.row[row[j]].template store<2>(column, {o[j][0], o[j][1]}, Columns);
      s.row[row[j]].template store<2>(column + 8, {o[j][2], o[j][3]}, Columns);
    }
  }
  /// Adds m and l of a row's partials to `sums` in order. In their place the factors remain.
  GIWA_DEVICE static void find_factors(shared_storage& s, int count, int rows, int row, float2& sums) {
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      float2& of_partial = s.of_partial[k * rows + row];
      const float2 ml = of_partial;
      float factor[2];
      sums.x = merge_maxima<2>({sums.x, ml.x}, factor);
      sums.y = merge_sums(sums.y, factor[0], ml.y, factor[1]);
      of_partial = make_float2(factor[0], factor[1]);
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
