// SPDX-License-Identifier: MIT
// Two warps that copy keys of many rows in pages: TMA, or cp.async.
#ifndef GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_COPIER_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_MANY_ROWS_COPIER_SM90_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/attention/kernels/sm90/forward_epilogue_sm90.cuh>
#include <giwa/attention/kernels/sm90/many_rows_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// A warp's half of each tile, in chunks of 16 bytes by cp.async.
template <class Types, class Block>
class copies_by_chunks {
 public:
  using params = typename Types::params;
  using tile_to_copy = typename Types::tile_to_copy;

  GIWA_DEVICE copies_by_chunks(const Block& block, const params& p, typename Types::shared_storage&, int part)
      : block_(block), p_(p), part_(part) {}

  GIWA_DEVICE void begin(const tile_to_copy& t) { next_ = look_up(t, t.tile); }
  GIWA_DEVICE void copy_k(const tile_to_copy& t, typename Types::k_tile& to, arch::mbarrier& full) {
    before_ = latest_, latest_ = next_;
    copy(t.tile, t.kv_head, latest_, p_.call.views.cache.k, to);
    full.arrive_after_copies();
  }
  GIWA_DEVICE void copy_v(int tile, int kv_head, bool is_latest, typename Types::v_tile& to, arch::mbarrier& full) {
    copy(tile, kv_head, is_latest ? latest_ : before_, p_.call.views.cache.v, to);
    full.arrive_after_copies();
  }
  /// Looks up the pages of the next tile: a load returns only after the copies that the warp began before it.
  GIWA_DEVICE void look_ahead(const tile_to_copy& t) { next_ = look_up(t, t.next); }

 private:
  using element = typename Types::element;
  static constexpr int run_columns = 8;
  static constexpr int half = Types::block_n / 2, lane_rows = ceil_div(half, 32);
  static_assert(half % 16 == 0);

  /// The pages of a lane's rows in a warp's half of a tile: rows lane and lane + 32. -1: zeros.
  struct page_numbers {
    int page[lane_rows];
  };
  /// Page numbers are not read past the last key.
  GIWA_DEVICE page_numbers look_up(const tile_to_copy& t, int tile) const {
    const int first_key = tile * Types::block_n;
    page_numbers numbers;
    GIWA_UNROLL
    for (int i = 0; i < lane_rows; ++i) {
      const int of_half = 32 * i + block_.lane(), row = half * part_ + of_half;
      numbers.page[i] = -1;
      if (of_half < half && row < t.keys - first_key)
        numbers.page[i] = t.pages[int64{first_key + row} / p_.call.page_size];
    }
    return numbers;
  }

  /// Copies half of a tile, four rows and 64 columns at once. Each lane works out where its rows lie, and gets the addresses of
  /// others. Rows of pages that the cache does not have, and columns past the head size, become zeros.
  template <class View, class Tile>
  GIWA_DEVICE void copy(int tile, int kv_head, const page_numbers& pages, const View& view, Tile& to) const {
    constexpr int slab = tensor_box<Tile>::columns, slabs = Tile::columns / slab;
    const int first_row = half * part_, lane_row = block_.lane() / 8, column = block_.lane() % 8 * run_columns;
    const element* const head = view.data() + kv_head * view.stride(2);
    uint64 address[lane_rows];  // 0: zeros
    GIWA_UNROLL
    for (int i = 0; i < lane_rows; ++i) {
      const int64 key = tile * Types::block_n + (first_row + 32 * i + block_.lane());
      const int64 in_page = key - key / p_.call.page_size * p_.page_rows;
      const int number = pages.page[i];
      address[i] = 0;
      if (number >= 0 && number < view.extent(0))
        address[i] = reinterpret_cast<uint64>(head + (number * view.stride(0) + in_page * view.stride(1)));
    }
    const int left = static_cast<int>(view.extent(3)) - (slabs - 1) * slab - column;  // of the last slab
    const int last_bytes = left <= 0 ? 0 : left < run_columns ? left * static_cast<int>(sizeof(element)) : 16;
    const uint32 to_row = arch::shared_address(to.chunk(first_row + lane_row, column)),
                 to_row_4 = arch::shared_address(to.chunk(first_row + lane_row + 4, column));
    const auto copy_rows = [&](uint64 from, uint32 to_rows) {
      const int bytes = from == 0 ? 0 : 16, of_last = from == 0 ? 0 : last_bytes;
      from = from == 0 ? reinterpret_cast<uint64>(view.data()) : from + column * sizeof(element);
      GIWA_UNROLL
      for (int n = 0; n < slabs; ++n)
        arch::copy_async_and_fill(to_rows + n * tensor_box<Tile>::elements * static_cast<uint32>(sizeof(element)),
                                  reinterpret_cast<const void*>(from + n * slab * sizeof(element)),
                                  n < slabs - 1 ? bytes : of_last);
    };
    GIWA_UNROLL
    for (int i = 0; i < lane_rows; ++i) {
#pragma unroll 2
      for (int first = 0; first < (half - 32 * i < 32 ? half - 32 * i : 32); first += 8) {
        const uint64 from = block_.shuffle(address[i], first + lane_row),
                     from_4 = block_.shuffle(address[i], first + lane_row + 4);
        const auto before = static_cast<uint32>((32 * i + first) * slab * static_cast<int>(sizeof(element)));
        copy_rows(from, to_row + before);
        copy_rows(from_4, to_row_4 + before);
      }
    }
  }

  const Block& block_;
  const params& p_;
  const int part_;
  page_numbers before_{}, latest_{}, next_{};  // of the latest tiles of K
};

/// Boxes of pages by TMA. The boxes of a tile are dealt to the lanes of the two warps in turn, one to each with all its
/// slabs. In a cluster each of the two blocks copies half of the slabs to both.
template <class Types, class Block>
class copies_by_boxes {
 public:
  using params = typename Types::params;
  using tile_to_copy = typename Types::tile_to_copy;

  GIWA_DEVICE copies_by_boxes(const Block& block, const params& p, typename Types::shared_storage& s, int part)
      : block_(block),
        p_(p),
        s_(s),
        shares_(Types::multicasts && p.shape.cluster > 1),
        rank_(shares_ ? arch::cluster_rank() : 0),
        box_(2 * block.lane() + part),
        has_box_(box_ * p.box_rows < Types::block_n) {}

  GIWA_DEVICE void begin(const tile_to_copy& t) {
    arch::copy_async_wait<0>();
    look_up(t, t.tile);
  }
  GIWA_DEVICE void copy_k(const tile_to_copy& t, typename Types::k_tile& to, arch::mbarrier& full) {
    arch::copy_async_wait<0>();
    latest_ = following(latest_);
    start(p_.k, t.kv_head, latest_, to, full);
  }
  GIWA_DEVICE void copy_v(int, int kv_head, bool is_latest, typename Types::v_tile& to, arch::mbarrier& full) const {
    start(p_.v, kv_head, is_latest ? latest_ : following(following(latest_)), to, full);
  }
  /// Starts to look up the pages of the next tile.
  GIWA_DEVICE void look_ahead(const tile_to_copy& t) { look_up(t, t.next); }

 private:
  GIWA_DEVICE static int following(int number) { return number == 2 ? 0 : number + 1; }

  /// Starts a copy of the page number of the lane's box, for the tile of K after the latest. Only this lane reads it. The page
  /// table is not read past the last key.
  GIWA_DEVICE void look_up(const tile_to_copy& t, int tile) const {
    if (!has_box_) return;
    const int key = tile * Types::block_n + box_ * p_.box_rows, page = static_cast<int>(int64{key} / p_.call.page_size);
    auto& source = s_.sources[following(latest_)][box_];
    source.row = key - page * p_.page_rows;
    if (key < t.keys)
      arch::copy_async<4>(arch::shared_address(&source.page), t.pages + page);
    else
      source.page = -1;  // TMA fills zeros, as for a page that the cache does not have
    arch::copy_async_commit();
  }
  template <class Tile>
  GIWA_DEVICE void start(const tensor_map& map, int kv_head, int number, Tile& to, arch::mbarrier& full) const {
    using box = tensor_box<Tile>;
    constexpr int slabs = Tile::columns / box::columns;
    if (has_box_) {
      const auto source = s_.sources[number][box_];
      GIWA_UNROLL
      for (int i = 0; i < slabs; ++i) {
        const int slab = shares_ ? rank_ * (slabs / 2) + i : i;
        const int origin[4] = {slab * box::columns, source.row, kv_head, source.page};
        void* const box_data = to.data() + slab * box::elements + box_ * p_.box_rows * box::columns;
        if (!shares_)
          arch::load_box(box_data, map, origin, full, p_.policy());
        else if (i < slabs / 2)
          arch::load_box_multicast(box_data, map, origin, full, 3, p_.policy());
      }
    }
    block_.sync_warp();
  }

  const Block& block_;
  const params& p_;
  typename Types::shared_storage& s_;
  const bool shares_;
  const int rank_, box_;
  const bool has_box_;
  int latest_ = 0;  // where the sources of the latest tile of K are
};

/// Two warps that copy keys in pages, in place of the loader, which notes the tiles here before it waits for their
/// stages. These warps wait for them too. They are also the scrubbers: a tile of V can be scrubbed when they have copied it.
template <class Types>
struct many_rows_copier {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using tile_to_copy = typename Types::tile_to_copy;
  static constexpr int most_noted = Types::most_noted;

  /// The loader's thread.
  GIWA_DEVICE static void note(shared_storage& s, const tile_to_copy& t) {
    auto& list = s.tiles_to_copy;
    list.tile[list.count % most_noted] = t;
    list.made[list.count++ % most_noted].arrive();
  }
  /// After the last tile.
  GIWA_DEVICE static void finish(shared_storage& s) {
    auto& list = s.tiles_to_copy;
    list.tile[list.count % most_noted].tile = -1;
    list.made[list.count % most_noted].arrive();
  }

  /// A warp, `part` 0 or 1.
  template <template <class, class> class Copies, class Block>
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s, int part) {
    Copies<Types, Block> copies(block, p, s, part);
    auto keys = s.k.filler(block);
    auto values = s.v.filler(block);
    auto scrubber = s.v.consumer(block);
    uint32 fills = 0;  // of stages of V
    int tile_before = 0;
    int scrubs_before = 0;
    for (uint32 turn = 0;; ++turn) {
      const tile_to_copy& t = s.tiles_to_copy.tile[turn % most_noted];
      s.tiles_to_copy.made[turn % most_noted].wait(turn / most_noted & 1);
      if (t.tile < 0) return;
      if (t.begins) copies.begin(t);
      keys.put([&](auto& to, arch::mbarrier& full) { copies.copy_k(t, to, full); });
      copies.look_ahead(t);
      // V of the tile before, and of the last one of a work tile, as the loader does.
      for (int latest = t.begins; latest < 1 + t.last; ++latest, ++fills) {
        const int stage = static_cast<int>(fills % Types::stages);
        values.put([&](auto& to, arch::mbarrier& full) {
          copies.copy_v(latest ? t.tile : tile_before, t.kv_head, latest, to, full);
        });
        if (latest ? t.needs_scrub : scrubs_before) {
          s.v.wait(stage, fills / Types::stages);
          sm90_nan_scrubber<Types>::scrub(block, s, part, stage, s.v.stage(stage), s.v_notes[stage]);
        }
        scrubber.release(stage);
      }
      tile_before = t.tile, scrubs_before = t.needs_scrub;
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
