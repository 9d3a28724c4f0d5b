// SPDX-License-Identifier: MIT
// The two warps of the kernel for many rows that copy keys in small pages, of which TMA would need too many boxes.
#ifndef GIWA_ATTENTION_CACHED_MANY_ROWS_COPIER_CUH
#define GIWA_ATTENTION_CACHED_MANY_ROWS_COPIER_CUH

#include <giwa/arch/copy_async.cuh>
#include <giwa/attention/cached/many_rows_types.cuh>
#include <giwa/attention/forward/nan_scrubber_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The loader waits for free stages as for TMA, and requests each tile here. These warps are the scrubbers too: a tile of V can be
/// scrubbed when they have copied it.
template <class Types>
struct many_rows_copier {
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using copy_request = typename Types::copy_request;
  using element = typename Types::element;
  static constexpr int most_requests = Types::most_requests, run_columns = 8;

  /// The loader's thread. The next tile of K is the first of an item or not, and the one after it is `next`.
  GIWA_DEVICE static void note(shared_storage& s, bool begins, int next) {
    s.requests.begins = begins, s.requests.next_tile = next;
  }
  /// Requests the copy of a tile.
  GIWA_DEVICE static void request(const params& p, shared_storage& s, const cached_sequence& sequence, int kv_head,
                                  int tile, bool is_latest, bool is_v, void* to, arch::mbarrier& full) {
    copy_request& what = s.requests.of[s.requests.count % most_requests];
    what.to = to, what.full = &full, what.pages = p.call.views.cache.pages.indices + sequence.first_entry;
    what.keys = sequence.keys, what.kv_head = kv_head, what.tile = tile, what.next_tile = s.requests.next_tile;
    what.is_v = is_v, what.is_latest = is_latest, what.begins = s.requests.begins;
    s.requests.made[s.requests.count++ % most_requests].arrive();
  }
  /// After the last request.
  GIWA_DEVICE static void finish(shared_storage& s) {
    s.requests.of[s.requests.count % most_requests].full = nullptr;
    s.requests.made[s.requests.count % most_requests].arrive();
  }

  /// A warp, `part` 0 or 1. A tile of V that must be scrubbed has landed when the copies of the next tile have begun.
  template <class Block>
  GIWA_DEVICE static void run(const Block& block, const params& p, shared_storage& s, int part) {
    auto values = s.v.consumer(block);
    page_numbers before{}, latest{}, next{};  // of the latest tiles of K
    bool was_v = false;
    const auto finish_v = [&] {
      const int stage = values.next();
      auto& tile = values.wait();
      auto& note = s.v_notes[stage];
      if (note.needs_scrub) sm90_nan_scrubber<Types>::scrub(block, s, part, stage, tile, note);
      values.release();
      was_v = false;
    };
    for (uint32 turn = 0;; ++turn) {
      // The next request may come only when the consumers have got the last V of the item before: an item without keys has none.
      arch::mbarrier& made = s.requests.made[turn % most_requests];
      while (block.any(!made.is_over(turn / most_requests & 1)))
        if (was_v) finish_v();
      const copy_request& what = s.requests.of[turn % most_requests];
      const auto& cache = p.call.views.cache;
      if (what.full != nullptr) {
        if (what.is_v) {
          copy(block, p, what, part, what.is_latest ? latest : before, cache.v,
               *static_cast<typename Types::v_tile*>(what.to));
        } else {
          before = latest, latest = next;
          if (what.begins) latest = look_up(block, p, what, part, what.tile);
          copy(block, p, what, part, latest, cache.k, *static_cast<typename Types::k_tile*>(what.to));
        }
        what.full->arrive_after_copies();
        // One tile ahead, because a load returns only after the copies that the warp began before it.
        if (!what.is_v) next = look_up(block, p, what, part, what.next_tile);
      }
      if (was_v) finish_v();
      if (what.full == nullptr) return;
      was_v = what.is_v;
    }
  }

 private:
  static constexpr int half = Types::block_n / 2, lane_rows = ceil_div(half, 32);
  static_assert(half % 16 == 0);

  /// The pages of a lane's rows in a warp's half of a tile: rows lane and lane + 32. -1: zeros.
  struct page_numbers {
    int of[lane_rows];
  };
  /// Page numbers are not read past the last key.
  template <class Block>
  GIWA_DEVICE static page_numbers look_up(const Block& block, const params& p, const copy_request& what, int part,
                                          int tile) {
    const int first_key = tile * Types::block_n;
    page_numbers to;
    GIWA_UNROLL
    for (int i = 0; i < lane_rows; ++i) {
      const int of_half = 32 * i + block.lane(), row = half * part + of_half;
      to.of[i] = -1;
      if (of_half < half && row < what.keys - first_key)
        to.of[i] = what.pages[int64{first_key + row} / p.call.page_size];
    }
    return to;
  }

  /// Copies half of a tile, four rows and 64 columns at once. Each lane works out where its rows lie, and gets the addresses of
  /// others. Rows of pages that the cache does not have, and columns past the head size, become zeros.
  template <class Block, class View, class Tile>
  GIWA_DEVICE static void copy(const Block& block, const params& p, const copy_request& what, int part,
                               const page_numbers& pages, const View& view, Tile& to) {
    constexpr int slab = tensor_box<Tile>::columns, slabs = Tile::columns / slab;
    const int first_row = half * part, lane_row = block.lane() / 8, column = block.lane() % 8 * run_columns;
    const element* const head = view.data() + what.kv_head * view.stride(2);
    uint64 own[lane_rows];  // addresses; 0: zeros
    GIWA_UNROLL
    for (int i = 0; i < lane_rows; ++i) {
      const int64 key = what.tile * Types::block_n + (first_row + 32 * i + block.lane());
      const int64 in_page = key - key / p.call.page_size * p.page_rows;
      const int number = pages.of[i];
      own[i] = 0;
      if (number >= 0 && number < view.extent(0))
        own[i] = reinterpret_cast<uint64>(head + (number * view.stride(0) + in_page * view.stride(1)));
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
        const uint64 from = block.shuffle(own[i], first + lane_row),
                     from_4 = block.shuffle(own[i], first + lane_row + 4);
        const auto before = static_cast<uint32>((32 * i + first) * slab * static_cast<int>(sizeof(element)));
        copy_rows(from, to_row + before);
        copy_rows(from_4, to_row_4 + before);
      }
    }
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
