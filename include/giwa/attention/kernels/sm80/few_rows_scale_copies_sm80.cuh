// SPDX-License-Identifier: MIT
// Copies of scales of keys.
#ifndef GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_SCALE_COPIES_SM80_CUH
#define GIWA_ATTENTION_KERNELS_SM80_FEW_ROWS_SCALE_COPIES_SM80_CUH

#include <giwa/attention/kernels/sm80/few_rows_copies_sm80.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// Scales of keys without data are 0.
template <class Types, class Block>
struct few_rows_scale_copies : few_rows_copies<Types, Block> {
  using copies = few_rows_copies<Types, Block>;
  using copies::lane_keys, copies::leaf_keys, copies::warp_keys;
  using typename copies::leaf_source, typename copies::params, typename copies::shared_storage;

  /// The scales of this warp's keys and values, of lane, lane + 32 and so on, which other copies bring.
  GIWA_DEVICE static void load_scales(const Block& block, int warp, const params& p, const leaf_source& source,
                                      shared_storage& s, uint32 turn, uint32 free) {
    const int stage = static_cast<int>(turn % copies::stages),
              slot = static_cast<int>(turn % decltype(shared_storage::scales)::slots);
    s.k.empty[stage].wait(free);
    const auto& scales = p.splits.call.views.cache.scales;
    const auto copy = [&](float(&to)[Types::heads][leaf_keys], const float* scale_data, const scale_strides& strides) {
      const float* const of_head = scale_data + Types::heads * source.head * strides.head;
      GIWA_UNROLL
      for (int i = 0; i < lane_keys; ++i) {
        const int of_warp = block.lane() + 32 * i;
        if (of_warp >= warp_keys) continue;
        const cache_row& key = source.key[i];
        const float* const from =
            key.element < 0 ? nullptr : of_head + (key.element * strides.element + key.row * strides.row);
        GIWA_UNROLL
        for (int h = 0; h < Types::heads; ++h)
          arch::copy_async_and_fill<4>(arch::shared_address(&to[h][warp * warp_keys + of_warp]),
                                       from == nullptr ? scale_data : from + h * strides.head, from == nullptr ? 0 : 4);
      }
    };
    if (p.k_scales) copy(s.scales.k[stage], scales.k.data(), p.k_strides);
    if (p.v_scales) copy(s.scales.v[slot], scales.v.data(), p.v_strides);
    if (p.copies == key_copies::elements) arch::copy_async_commit(), arch::copy_async_wait<0>();
  }

  /// Where neighbouring keys of a lane lie, lane_keys of them or what is left. Boxes of TMA have 16 rows or more, so one page has them.
  struct neighbours {
    int head, keys;
    const int* entry;  // of the page table, or null
    cache_row first;
  };
  GIWA_DEVICE static neighbours neighbours_of(const Block& block, int warp, const params& p,
                                              const few_rows_work_tile& work, int leaf_number) {
    const auto& call = p.splits.call;
    const cached_sequence& sequence = work.sequence;
    const int of_warp = block.lane() * lane_keys, key = leaf_number * leaf_keys + warp * warp_keys + of_warp;
    const int left = of_warp < warp_keys ? sequence.keys - key : 0;
    neighbours found{work.head, left < 0 ? 0 : left < lane_keys ? left : lane_keys, nullptr, {sequence.batch, key}};
    if (found.keys == 0 || !call.views.is_paged()) return found;
    const int n = static_cast<int>(int64{key} / call.page_size);
    found.first.row -= n * static_cast<int>(call.page_size.divisor());
    found.entry = call.views.cache.pages.indices + (sequence.first_entry + n);
    return found;
  }
  /// Their page, which check_page() takes: a load returns only after the copies of scales that the warp started before it.
  GIWA_DEVICE static int read_page(const neighbours& keys) { return keys.entry != nullptr ? *keys.entry : 0; }
  GIWA_DEVICE static void check_page(const params& p, neighbours& keys, int page) {
    if (keys.entry == nullptr) return;
    keys.first.element = valid_page(page, p.splits.call.views.cache.k.extent(0));
    if (keys.first.element < 0) keys.keys = 0;
  }

  /// Where the boxes lie that begin among this warp's keys. `left`: keys of the sequence from the leaf on.
  GIWA_DEVICE static leaf_source boxes_of(const Block& block, int warp, const params& p, const neighbours& keys,
                                          int left) {
    const int first = block.lane() * p.box_rows,
              lane = first / lane_keys & 31;  // of the box: its key, and the lane that has it
    const int of_warp = left - warp * warp_keys;
    const bool begins = first < warp_keys && first < of_warp && (warp * warp_keys & (p.box_rows - 1)) == 0;
    return {keys.head,
            __popc(block.ballot(begins)),
            {},
            {{block.shuffle(keys.first.element, lane), block.shuffle(keys.first.row, lane)}}};
  }

  GIWA_DEVICE static void load_scales(const Block& block, int warp, const params& p, const neighbours& keys,
                                      shared_storage& s, uint32 turn, uint32 free) {
    const int stage = static_cast<int>(turn % copies::stages),
              slot = static_cast<int>(turn % decltype(shared_storage::scales)::slots);
    s.k.empty[stage].wait(free);
    const int of_warp = block.lane() * lane_keys;
    const auto copy = [&](float(&to)[Types::heads][leaf_keys], const float* data, const scale_strides& strides) {
      const float* const from = data + (Types::heads * keys.head * strides.head + keys.first.element * strides.element +
                                        keys.first.row * strides.row);
      GIWA_UNROLL
      for (int i = 0; i < lane_keys; ++i) {
        GIWA_UNROLL
        for (int h = 0; h < Types::heads; ++h)
          if (of_warp < warp_keys)
            arch::copy_async_and_fill<4>(arch::shared_address(&to[h][warp * warp_keys + of_warp + i]),
                                         from + (i * strides.row + h * strides.head), i < keys.keys ? 4 : 0);
      }
    };
    const auto& scales = p.splits.call.views.cache.scales;
    if (p.k_scales) copy(s.scales.k[stage], scales.k.data(), p.k_strides);
    if (p.v_scales) copy(s.scales.v[slot], scales.v.data(), p.v_strides);
    s.k.full[stage].arrive_after_copies();
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
