// SPDX-License-Identifier: MIT
// Loads rows of 656 bytes into tiles of 16-bit numbers.
#ifndef GIWA_ATTENTION_KERNELS_SM80_ROWS_656_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_ROWS_656_SM80_CUH

#include <giwa/arch/convert_fp8.cuh>
#include <giwa/arch/copy_async.cuh>
#include <giwa/attention/kernels/sm80/few_rows_copies_sm80.cuh>
#include <giwa/attention/problem/rows_656.hpp>

namespace giwa::inline GIWA_ABI::detail {

// A warp copies the bytes of its rows by cp.async to where their numbers will be, and converts them there: loads through registers would
// need more of them than a loader has, and one load of a spilled register waits for all loads before it.

/// Starts the copies of `Count` rows, of which lane i knows row i, or null for zeros, to the rows from `first_row` on of a tile of 16-bit
/// numbers. 8 lanes have a row. 128 bytes of numbers lie in the first half of their columns, scales in those of the last numbers.
template <int Count, class Block, class Tile>
GIWA_DEVICE void start_rows_656(const Block& block, const rows_656* row_of_lane, int first_row, Tile& to) {
  using rows = rows_656;
  const int part = block.lane() % 8;
#pragma unroll 1
  for (int first = 0; first < Count; first += 4) {
    const int i = first + block.lane() / 8, row = first_row + i;
    const rows* const from = pointer_of_lane(block, row_of_lane, i);
    const int bytes = from == nullptr ? 0 : 16;
    const auto copy = [&](int column, int at) {
      arch::copy_async_and_fill(arch::shared_address(to.chunk(row, column)),
                                bytes == 0 ? to.data() : static_cast<const void*>(from + at), bytes);
    };
    GIWA_UNROLL
    for (int group = 0; group < rows::codes; group += rows::group) copy(group + 8 * part, group + 16 * part);
    copy(rows::codes + 8 * part, rows::rest_at + 16 * part);
    if (part == 0) copy(rows::codes - 64, rows::scales_at);
  }
}

/// Starts bulk copies of `Count` rows as they are, of which lane i knows row i, or null for zeros: one copy if they follow each other in
/// memory. `full` counts them, and a warp arrives once.
template <int Count, class Block, class Tile>
GIWA_DEVICE void copy_row_bytes(const Block& block, const rows_656* row_of_lane, int first_row, Tile& to,
                                arch::mbarrier& full, arch::l2_policy policy) {
  constexpr int bytes = rows_656::row_bytes;
  const int lane = block.lane();
  const bool is_zero = lane < Count && row_of_lane == nullptr;
  unsigned char* const to_lane = to.row(first_row + lane);
  if (is_zero) {
    GIWA_NO_UNROLL
    for (int i = 0; i < bytes; i += 16) *reinterpret_cast<uint4*>(to_lane + i) = uint4{0, 0, 0, 0};
    arch::fence_async_proxy();  // bulk copies will overwrite them
  }
  const uint32 rows = block.ballot(row_of_lane != nullptr);
  const rows_656* const first = pointer_of_lane(block, row_of_lane, 0);
  const int count = __popc(rows);
  const bool together =
      block.all(lane >= count || row_of_lane == first + bytes * lane) && count > 0 && first != nullptr;
  if (lane == 0) full.arrive_and_expect(bytes * count);
  block.sync_warp();
  if (together ? lane == 0 : row_of_lane != nullptr)
    arch::load_bytes(to_lane, row_of_lane, together ? bytes * count : bytes, full, policy);
}

/// Converts what start_rows_656() has copied, after the lanes have waited for their copies.
template <int Count, class Block, class Tile>
GIWA_DEVICE void convert_rows_656(const Block& block, int first_row, Tile& to) {
  using T = stdlib::remove_cvref_t<decltype(to(0, 0))>;
  using rows = rows_656;
  const int part = block.lane() % 8;
  const bool swaps = part >= 4;  // the halves of 16 numbers, so that the lanes of a row write to all banks
  block.sync_warp();
#pragma unroll 1
  for (int first = 0; first < Count; first += 4) {
    const int row = first_row + first + block.lane() / 8;
    const auto at = [&](int column) -> uint4& { return *reinterpret_cast<uint4*>(to.chunk(row, column)); };
    const uint4 scale_bits = at(rows::codes - 64);
    const uint32 scales[4] = {scale_bits.x, scale_bits.y, scale_bits.z, scale_bits.w};
    uint4 two[2];
    GIWA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = rows::group * i;
      if (i % 2 == 0) {
        two[0] = at(column + 8 * part), two[1] = at(column + rows::group + 8 * part);
        block.sync_warp();  // all have read what is overwritten
      }
      const uint4 codes = two[i % 2];
      const float scale = __uint_as_float(scales[i]);
      const uint32 fours[4] = {codes.x, codes.y, codes.z, codes.w};
      uint32 words[8];
      GIWA_UNROLL
      for (int w = 0; w < 8; w += 2) {
        uint32 pairs[2];
        arch::e4m3_to_fp16(fours[w / 2], pairs);
        GIWA_UNROLL
        for (int j = 0; j < 2; ++j) {
          packed_pair<fp16>::type exact;
          __builtin_memcpy(&exact, &pairs[j], 4);
          const auto pair = pack<T>(__low2float(exact) * scale, __high2float(exact) * scale);
          __builtin_memcpy(&words[w + j], &pair, 4);
        }
      }
      const auto half = [&](bool second) -> uint4 {
        return second ? uint4{words[4], words[5], words[6], words[7]} : uint4{words[0], words[1], words[2], words[3]};
      };
      at(column + 16 * part + (swaps ? 8 : 0)) = half(swaps);
      at(column + 16 * part + (swaps ? 0 : 8)) = half(!swaps);
    }
    if constexpr (!stdlib::same_as<T, bf16>) {
      uint4& rest = at(rows::codes + 8 * part);
      uint32 words[4] = {rest.x, rest.y, rest.z, rest.w};
      GIWA_UNROLL
      for (uint32& word : words) {
        const auto two = pack<T>(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
        __builtin_memcpy(&word, &two, 4);
      }
      rest = {words[0], words[1], words[2], words[3]};
    }
  }
}

/// The keys of a warp that are rows of a format. The copies of a tile are started before those of the tile before are converted, which
/// is then complete.
template <class Types, class Block>
struct format_copies {
  using copies = few_rows_copies<Types, Block>;
  using leaf_source = typename copies::leaf_source;
  int pending = -1;  // the stage with copies

  template <class View>
  GIWA_DEVICE static const rows_656* row_of(const View& view, const leaf_source& source) {
    static_assert(copies::lane_keys == 1);
    const cache_row& key = source.key[0];
    return key.element < 0 ? nullptr : &view(key.element, key.row, source.head, 0);
  }
  /// Completes the tile before, and with `starts` begins another one: first what needs no wait. is_free() says whether a stage is free,
  /// wait() waits for that, arrive(stage) says that a stage is complete. Without `starts` before a wait for the warps that read tiles.
  template <class View, class Ring, class IsFree, class Wait, class Arrive>
  GIWA_DEVICE void load(const Block& block, int warp, const View& view, const leaf_source& source, Ring& ring,
                        bool starts, int stage, const IsFree& is_free, const Wait& wait, const Arrive& arrive) {
    constexpr int count = copies::warp_keys;
    const bool converts_first = !starts || !block.all(is_free());
    const rows_656* const row = starts ? row_of(view, source) : nullptr;
#pragma unroll 1
    for (int step = 0; step < 2; ++step) {
      if (pending >= 0 && (step == 1 || converts_first)) {
        if (step == 0)
          arch::copy_async_wait<0>();
        else
          arch::copy_async_wait<1>();
        convert_rows_656<count>(block, warp * count, ring.tile[pending]);
        arrive(pending);
        pending = -1;
      }
      if (step == 1 || !starts) continue;
      wait();
      start_rows_656<count>(block, row, warp * count, ring.tile[stage]);
      arch::copy_async_commit();
    }
    if (starts) pending = stage;
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
