// SPDX-License-Identifier: MIT
// The tiles of the Hopper kernels of attention, by precision and head size. Each number carries its measurement.
#ifndef GIWA_ATTENTION_TUNING_SM90_HPP
#define GIWA_ATTENTION_TUNING_SM90_HPP

#include <giwa/attention/problem/gradient.hpp>
#include <giwa/attention/split_fp16/layout.hpp>
#include <giwa/numeric/integer.hpp>
#include <giwa/tile/shape.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The tile of the wgmma kernel: consumer warpgroups of 64 queries each, block_n keys, and one producer warpgroup. Head
/// sizes are rounded up to what an instruction takes; in shared memory they take whole slabs of 64 columns. An element
/// has `Parts` parts (split_fp16/layout.hpp).
template <int BlockM, int BlockN, int HeadSize, int HeadSizeV, int Parts = 1, int Stages = 2, bool TakesTurns = true>
struct sm90_policy {
  static_assert(BlockM == 64 || BlockM == 128 || BlockM == 192,
                "giwa::attention_forward: on Hopper a tile has 64, 128 or 192 queries.");
  static_assert(BlockN % 16 == 0 && BlockN >= 16 && BlockN <= 256,
                "giwa::attention_forward: on Hopper a tile has a multiple of 16 keys, up to 256.");
  static constexpr int block_m = BlockM, block_n = BlockN, consumers = BlockM / 64, stages = Stages, parts = Parts;
  // With two parts, the products of a tile go to separate accumulators (partial O). Above 128 columns there are too few
  // registers for all of them, so the tile's products are computed in slices of 64 columns.
  static constexpr bool slices_output = Parts == 2 && HeadSizeV > 128;
  static constexpr int head_size = round_up(HeadSize, 16), head_size_v = round_up(HeadSizeV, slices_output ? 64 : 16);
  static constexpr int slice = slices_output ? 64 : head_size_v;
  static constexpr bool uses_pingpong = TakesTurns && !slices_output;  // 256, two parts: 154 TFLOP/s without, 131 with
  // A block takes all registers of a multiprocessor. The producer needs few, so a consumer thread gets 232, or 160 with
  // three consumers. A single consumer has enough without moving registers.
  static constexpr bool moves_registers = consumers > 1;
  static constexpr int producer_registers = consumers == 3 ? 32 : 40, consumer_registers = consumers == 3 ? 160 : 232;
  static constexpr int blocks = 1;  // that a multiprocessor runs at once, at least
  // Of the keys and values of a section (attention_schedule). 256, causal, 512 to 16384 tokens, 32 MB instead of 24: 1.02, 1.03,
  // 1.01, 1.04, 1.00, 1.00 (H200, 2026-11-29). Others, 36 MB: 0.95 to 1.00. 128, causal, 16 MB instead of 24, two runs: 1.004, 1.001 and
  // 1.015, 1.017 and 1.015, 1.005, 1.00, 1.00 (2026-11-30).
  static constexpr int section_bytes = (parts == 2                               ? 24
                                        : head_size_v > 240                      ? 32
                                        : head_size == 128 && head_size_v == 128 ? 16
                                                                                 : 24)
                                       << 20;
  // Whether calls with little work may leave the last consumer of work tiles without queries (is_narrow_faster).
  static constexpr bool narrows = consumers == 3 && parts == 1 && (HeadSize > 64 || HeadSizeV > 64);
  // Whether the softmax of a warpgroup overlaps its own O += P V, and not only the products of the others. Up to 128
  // columns the overlap costs speed. 256: 705 TFLOP/s, 678 without (H200, 2026-11-21, fp16, full, 4096 tokens).
  static constexpr bool overlaps = Parts == 1 && HeadSizeV > 128;
  // Of online_softmax, in fp16 and bf16. A thread has 32 to 44 weights of a row. Where all scores are equal each is 1, and their sum
  // must not exceed 2^slack. By a simulation of the rounding to fp16, 2^4 costs 1.4 % of accuracy at most, and 2^6 2.7 %.
  static constexpr int slack = 6;

  // Accumulators and operands of a thread: S, P, O and the partial O. Then the bytes of the tiles in shared memory.
  static constexpr int live_registers =
      block_n / 2 + parts * block_n / 4 + head_size_v / 2 + (parts == 1 ? 0 : slice / 2);
  static constexpr int bytes =
      2 * parts *
      (block_m * round_up(head_size, 64) + stages * block_n * (round_up(head_size, 64) + round_up(head_size_v, 64)));
  static constexpr int most_bytes = (227 << 10) - 3072;
  static constexpr int other_registers = parts == 2 ? 24 : consumers == 3 ? 28 : 32;
  static constexpr bool fits = live_registers <= consumer_registers - other_registers && bytes <= most_bytes;
  // Whether shared memory has room for a separate output tile, from which TMA stores it. Otherwise it is stored from
  // registers.
  static constexpr bool stages_output = bytes + 2 * block_m * head_size_v <= most_bytes - 1024;
};

// H200, 2026-11-21, fp16, 2048 / head size heads, full 4 x 4096 | causal 16 x 1024 tokens, in CUDA graphs
// (docs/results):
//   head size   queries x keys   stages   TFLOP/s
//   64          192 x 128        2        466 | 300
//   128         128 x 128        2        601 | 430
//   256         128 x 80         2        706 | 418    (the most keys that fit)
// Other tiles: docs/notes/forward_hopper.md.
template <int HeadSize, int HeadSizeV, class Tile>
struct sm90_policy_of {
  template <int BlockM, int BlockN>
  using tile = sm90_policy<BlockM, BlockN, HeadSize, HeadSizeV>;
  template <int BlockN>
  using or_fewer = stdlib::conditional_t<
      tile<128, BlockN>::fits, tile<128, BlockN>,
      stdlib::conditional_t<tile<128, BlockN - 16>::fits, tile<128, BlockN - 16>, tile<128, BlockN - 32>>>;
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest <= 64), tile<192, 128>,
      stdlib::conditional_t<(widest <= 128), tile<128, 128>,
      stdlib::conditional_t<(widest <= 192), or_fewer<128>, or_fewer<96>>>>;
  // clang-format on
};
template <int HeadSize, int HeadSizeV, int BlockM, int BlockN>
struct sm90_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>> {
  using type = sm90_policy<BlockM, BlockN, HeadSize, HeadSizeV>;
};

/// The tile of calls with a mask. Up to a head size of 64 the consumers of a tile end at different keys under a causal
/// mask, and each goes on by itself: four stages, no turns of the tensor cores. H200, 2026-11-24, fp16, causal,
/// together with the last section of attention_schedule: 512 to 4096 tokens 1.04 to 1.06 of two stages with turns, 16384 1.01.
/// Nor do plain causal calls of head size 256: 512 tokens 1.05, 1024 1.04, longer 1.00 (2026-11-29); full 0.997 to 1.007.
template <int HeadSize, int HeadSizeV, class Tile, bool IsPlainCausal>
struct sm90_masked_policy_of : sm90_policy_of<HeadSize, HeadSizeV, Tile> {};
template <int HeadSize, int HeadSizeV, class Tile, bool IsPlainCausal>
  requires(HeadSize <= 64 && HeadSizeV <= 64)
struct sm90_masked_policy_of<HeadSize, HeadSizeV, Tile, IsPlainCausal> {
  using type = sm90_policy<192, 128, HeadSize, HeadSizeV, 1, 4, false>;
};
template <int HeadSize, int HeadSizeV, class Tile, bool IsPlainCausal>
  requires(IsPlainCausal && HeadSize > 240 && HeadSize <= 256 && HeadSizeV > 240 && HeadSizeV <= 256)
struct sm90_masked_policy_of<HeadSize, HeadSizeV, Tile, IsPlainCausal> {
  using type = sm90_policy<128, 80, HeadSize, HeadSizeV, 1, 2, false>;
};
template <int HeadSize, int HeadSizeV, int BlockM, int BlockN, bool IsPlainCausal>
struct sm90_masked_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>, IsPlainCausal>
    : sm90_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>> {};

/// The tile of full and causal calls with such a number of keys. Speed in times that of the other tile (H200, fp16, full, causal):
///   head size   queries x keys   keys         speed
///   65 to 96    192 x 112        from 4096    64 heads 1.11, 1.10, 32 heads 1.02, 1.09, 8 heads 0.94, 0.90; 16384: 1.10, 1.14;
///                                             2048: 1.05, 1.04, 16 heads 0.92, 0.83 (2026-11-29)
///   128, full   128 x 176        from 8192    1.035; 16384: 1.04; 4096: 1.01 (2026-11-23); causal: 0.98, 16384: 0.985 to 1.00 (2026-11-29)
///   256         128 x 64         257 to 512   512: 1.01, 1.05; 1024: 0.96, 1.01 (2026-11-27)
template <int HeadSize, int HeadSizeV, bool IsCausal>
struct sm90_second_policy_of {
  static constexpr int columns = round_up(HeadSize, 16), columns_v = round_up(HeadSizeV, 16);
  static constexpr bool is_96 = columns > 64 && columns <= 96;
  static constexpr bool exists = columns == columns_v && (is_96 || (columns == 128 && !IsCausal) || columns == 256);
  using type = stdlib::conditional_t<
      is_96, sm90_policy<192, 112, HeadSize, HeadSizeV>,
      sm90_policy<128, columns == 128 ? 176 : 64, HeadSize, HeadSizeV, 1, 2, !(IsCausal && columns == 256)>>;

  GIWA_HOST_DEVICE static constexpr bool suits(int64 keys) {
    return columns == 256 ? keys > 256 && keys <= 512 : keys >= (is_96 ? 4096 : 8192);
  }
};

/// Packed rows and keys of a tile. Keys: the most that fit into shared memory, but at least 32 in common with pages.
struct many_rows_tile {
  int rows, keys;
};
GIWA_HOST_DEVICE constexpr many_rows_tile many_rows_tile_of(int64 head_size, int64 head_size_v) {
  const int64 wider = head_size > head_size_v ? head_size : head_size_v;
  const int64 columns = round_up(head_size, 64) + round_up(head_size_v, 64);
  return {wider <= 64 ? 192 : 128, columns <= 256 ? 128 : columns <= 384 ? 96 : 64};
}
/// Whether there is a kernel for many rows of these head sizes.
GIWA_HOST_DEVICE constexpr bool has_many_rows(int64 head_size, int64 head_size_v) {
  return head_size <= 256 && head_size_v <= 256;
}

/// The tile for split fp16. H200, 2026-11-22, 2048 / head size heads, 4 x 4096 tokens, full | causal, the kernel
/// without the split pass:
///   head size   queries x keys   stages   TFLOP/s
///   64          192 x 64         2        206 | 187
///   128         128 x 64         2        235 | 221
///   192         128 x 64         1        193 | 202
///   256         128 x 48         1        177 | 170
/// Other tiles: docs/notes/forward_hopper.md.
template <int HeadSize, int HeadSizeV, class Tile>
struct sm90_split_policy_of {
  template <int BlockM, int BlockN, int Stages = 2>
  using tile = sm90_policy<BlockM, BlockN, HeadSize, HeadSizeV, 2, Stages>;
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // clang-format off
  using type =
      stdlib::conditional_t<(widest <= 64), tile<192, 64>,
      stdlib::conditional_t<(widest <= 128), tile<128, 64>,
      stdlib::conditional_t<(widest <= 192), tile<128, 64, 1>, tile<128, 48, 1>>>>;
  // clang-format on
};
template <int HeadSize, int HeadSizeV, int BlockM, int BlockN>
struct sm90_split_policy_of<HeadSize, HeadSizeV, tile_shape<BlockM, BlockN>> {
  using type = sm90_policy<BlockM, BlockN, HeadSize, HeadSizeV, 2>;
};

/// Shared memory of a Hopper kernel of attention_backward.
struct sm90_backward_shared {
  static constexpr int most = 227 << 10;
  static constexpr int reserved = 3072;  // by policies while they choose their stages
  static constexpr int rest = 1024;      // at most: notes, work items, barriers, and what aligns them
};

/// The tile of a Hopper kernel of attention_backward: two consumer warpgroups with 64 rows of the gradient each, or with the
/// same 64, past which tiles of `columns` rows of the other side move. Head sizes are rounded up to what an instruction
/// takes; in shared memory they take whole slabs of 64 columns.
///
/// H200, 2026-11-23, fp16, 2048 / head size heads, full, 4 x 4096 | 1 x 16384 tokens, TFLOP/s of the kernel's own products,
/// three for dq, four for dk with dv:
///   head size   gradient       columns   TFLOP/s     others
///   64          dq             160       489 | 529   128: 425 | 449 (when the loader scheduled)
///   64          dk with dv     128       484 | 520   96: 476 | 514
///   128         dq             128       594 | 638
///   128         dk with dv     64        562 | 606   80: ptxas serializes the products (C7512)
///   256         dq             64        644 | 682
///   256         dk with dv     64        640 | 600, causal 563 | 582; a kernel each, five products counted as four: 446 | 484
template <gradient Of, int HeadSize, int HeadSizeV>
struct sm90_backward_policy {
  static constexpr bool rows_are_keys = Of != gradient::of_q;
  static constexpr bool sums_x = Of != gradient::of_v;
  static constexpr bool adds_dq = is_of_all(Of), is_long = Of == gradient::of_all_long;
  static constexpr bool sums_y = Of == gradient::of_v || Of == gradient::of_k_and_v || adds_dq;
  static constexpr int widest = HeadSize > HeadSizeV ? HeadSize : HeadSizeV;
  // Whether both consumers have the same 64 keys, and one sums dv, the other dk (sm90_wide_consumer): a consumer has registers
  // for sums of 256 columns.
  static constexpr bool by_gradient =
      sums_x && sums_y && !adds_dq && round_up(HeadSize, 16) + round_up(HeadSizeV, 16) > 256;
  // Whether work tiles may have 64 keys, which one consumer takes, with the same bits of finite inputs: where there are few. 128, causal, 1 x
  // 32(8) heads, 512 and 1024 tokens: 1.18 and 1.22 times as fast (H200, 2026-11-29).
  static constexpr bool narrows = Of == gradient::of_k_and_v && !by_gradient;
  static constexpr int consumers = 2, groups = by_gradient ? 1 : consumers, block_m = 64 * groups;
  static constexpr int columns = is_long                           ? dq_parts::long_rows
                                 : widest <= 64                    ? (rows_are_keys ? 128 : 160)
                                 : widest <= 128 && !rows_are_keys ? 128
                                                                   : 64;
  static_assert(!adds_dq || is_long || columns == dq_parts::rows_of_tile(HeadSize, HeadSizeV),
                "dq is summed by tiles of these queries");
  static_assert(!adds_dq || block_m == shared_key_rows, "dk and dv are shared by tiles of these keys");
  static constexpr int width_x = round_up(HeadSize, 64), width_y = round_up(HeadSizeV, 64);
  // Whether a consumer computes a tile in two halves of 64 queries, with its keys and values in registers
  // (sm90_halved_consumer).
  static constexpr bool by_halves = adds_dq && columns == 128;
  // Whether the consumers issue products alternately, so that one computes exponentials under the products of the other: a
  // consumer's last products of a tile together with its first of the next, or separately where dq is made too, whose way to
  // shared memory lies between them. Without and with it, 16384 tokens, full | causal, measured before the table above:
  //   64: dq 448 | 430 and 489 | 455, dk with dv 475 | 443 and 494 | 463
  //   128: dq 634 | 616 and 563 | 526, dk with dv 548 | 527 and 540 | 485
  // Of the kernel of all gradients with whole tiles, how many times as fast as two kernels the call is, full | causal, in
  // runs one after the other: 64 0.83 to 0.91 | 0.93 to 1.00 without, 1.09 | 1.09 together, 1.17 | 1.11 separately; 128
  // 1.05 | 1.11 without, 1.07 | 1.16 separately
  static constexpr bool takes_turns = (widest <= 64 || adds_dq) && !by_halves && !is_long;
  static constexpr int producer_registers = is_long ? 24 : 40, consumer_registers = is_long ? 240 : 232;
  // Whether the scheduler loads keys and values, or the loader after an item's first tile.
  static constexpr bool schedules_keys = adds_dq && !by_halves && !is_long;

  // dS of two tiles, and dq of one in fp32. A second one gains nothing; without it there is room at 128 for two more stages
  // of x, with which calls take 0.99 to 1.04 of the time (H100, 2026-11-27).
  static constexpr int stages_ds = adds_dq ? 2 : 0;
  static constexpr int stages_dq = 1;
  static constexpr int dq_floats = is_long ? dq_parts::long_floats : dq_parts::floats;
  static constexpr int dq_bytes = adds_dq ? stages_ds * 2 * block_m * columns + stages_dq * 4 * 2 * dq_floats : 0;
  // P of two tiles in fp32.
  static constexpr int stages_p = by_gradient ? 2 : 0, p_bytes = stages_p * 4 * block_m * columns;
  static constexpr int fixed_bytes = 2 * block_m * (width_x + (sums_x ? width_y : 0)) + dq_bytes + p_bytes;
  static constexpr int x_bytes = 2 * columns * width_x, y_bytes = 2 * columns * width_y;
  static constexpr int room =
      sm90_backward_shared::most - sm90_backward_shared::reserved - fixed_bytes;  // for stages of x and y
  // x is needed longer than y: for the first and for the last product. A fourth stage gains nothing.
  static constexpr int stages_x = 3 * (x_bytes + y_bytes) <= room && !adds_dq ? 3 : 2;
  static constexpr int stages_y = stages_x == 3 ? 3 : 2 * (x_bytes + y_bytes) <= room ? 2 : 1;
  static constexpr int left = room - stages_x * x_bytes - stages_y * y_bytes;
  static_assert(left >= 0);
  // lse and delta of a query, or one number of a key.
  static constexpr int terms_bytes = stages_x * columns * (rows_are_keys ? 8 : 4);
  static constexpr int bytes_without_output = fixed_bytes + stages_x * x_bytes + stages_y * y_bytes + terms_bytes;
  // Whether dq is stored by TMA from tiles in shared memory, and the terms of the fixed queries come from there. 128, dq, 4 x
  // 2048, 4 x 4096, 1 x 16384 tokens: 562, 594, 638 TFLOP/s, otherwise 524, 572, 612. dk and dv were 4 to 7 % slower so,
  // and both 13 % at 64, with more spills. There is no room for it with 128 columns of q and 64 of v, which have three stages.
  static constexpr int output_bytes = 2 * block_m * width_x + (by_halves ? 2 * block_m * width_y : 8 * block_m);
  static constexpr bool stages_output =
      !rows_are_keys && widest > 64 && HeadSize % 64 == 0 && HeadSizeV % 64 == 0 &&
      bytes_without_output + output_bytes + sm90_backward_shared::rest <= sm90_backward_shared::most;
  static constexpr int shared_bytes = round_up(
      bytes_without_output + (stages_output || by_halves ? output_bytes : 0) + sm90_backward_shared::rest, 1024);
  static_assert(shared_bytes <= sm90_backward_shared::most);
};

/// Stands for the element type of fp32 tensors that are multiplied as split fp16 (split_rows): both parts of a number, or 1, the
/// hi part.
template <int Parts>
struct split_parts {};
template <class T>
inline constexpr int parts_of = 0;
template <int Parts>
inline constexpr int parts_of<split_parts<Parts>> = Parts;

/// The tile for fp32 as split fp16, up to a head size of 128: in shared memory a tile of 128 columns takes what one of 256 takes
/// in 16 bits. The sums of a tile are in separate registers, so one gradient is summed at a time above a sum of both head
/// sizes of 128.
///
/// H200, 2026-11-23, 2048 / head size heads, full, 8 x 2048 | 1 x 16384 tokens, TFLOP/s of the call, counted as 2.5 times the
/// forward pass, with and without turns of the tensor cores: 64: 123, 117 | 132, 123; 128: 121, 120 | 128, 125. Causal: 64: 100,
/// 95 | 130, 126; 128: 98, 97 | 117, 115.
template <gradient Of, int HeadSize, int HeadSizeV>
struct sm90_split_backward_policy {
  static constexpr bool rows_are_keys = Of != gradient::of_q;
  static constexpr bool sums_x = Of != gradient::of_v, sums_y = Of == gradient::of_v || Of == gradient::of_k_and_v;
  static constexpr bool adds_dq = false, by_gradient = false, by_halves = false, is_long = false,
                        schedules_keys = false, narrows = false;
  static constexpr int consumers = 2, groups = consumers, block_m = 64 * groups, columns = 64;
  static constexpr int width_x = round_up(HeadSize, 64) * split_rows::parts_per_number,
                       width_y = round_up(HeadSizeV, 64) * split_rows::parts_per_number;
  static constexpr bool takes_turns = true;
  static constexpr int producer_registers = 40, consumer_registers = 232;
  static constexpr int stages_ds = 0, stages_dq = 1;
  static constexpr int fixed_bytes = 2 * block_m * (width_x + (sums_x ? width_y : 0));
  static constexpr int x_bytes = 2 * columns * width_x, y_bytes = 2 * columns * width_y;
  static constexpr int room = sm90_backward_shared::most - sm90_backward_shared::reserved - fixed_bytes;
  static constexpr int stages_x = 3 * (x_bytes + y_bytes) <= room ? 3 : 2;
  static constexpr int stages_y = stages_x == 3 ? 3 : 2 * (x_bytes + y_bytes) <= room ? 2 : 1;
  static_assert(stages_x * x_bytes + stages_y * y_bytes <= room);
  static constexpr bool stages_output = false;
  static constexpr int terms_bytes = stages_x * columns * (rows_are_keys ? 16 : 8);
  static constexpr int gap_bytes = sums_x ? 0 : 1024;  // where a kernel without v has nothing between two aligned tiles
  static constexpr int shared_bytes = round_up(
      fixed_bytes + stages_x * x_bytes + stages_y * y_bytes + terms_bytes + gap_bytes + sm90_backward_shared::rest,
      1024);
  static_assert(shared_bytes <= sm90_backward_shared::most);
};

/// Whether one kernel sums dk and dv in split fp16.
GIWA_HOST_DEVICE constexpr bool split_backward_sums_both(int head_size, int head_size_v) {
  return round_up(head_size, 16) + round_up(head_size_v, 16) <= 128;
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
