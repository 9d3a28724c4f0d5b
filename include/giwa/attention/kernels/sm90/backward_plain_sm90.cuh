// SPDX-License-Identifier: MIT
// Copies of tiles, for backward_loader_sm90.cuh.
#ifndef GIWA_ATTENTION_KERNELS_SM90_BACKWARD_PLAIN_SM90_CUH
#define GIWA_ATTENTION_KERNELS_SM90_BACKWARD_PLAIN_SM90_CUH

#include <giwa/arch/elect.cuh>
#include <giwa/attention/kernels/sm90/backward_types_sm90.cuh>

namespace giwa::inline GIWA_ABI::detail {

/// The rings of the loader, copies to them, and runs of tiles whose notes differ in their rows alone.
template <class Types, class Block>
class sm90_plain_loader {
 public:
  using params = typename Types::params;
  using shared_storage = typename Types::shared_storage;
  using work_item = typename Types::work_item;
  using tile_note = typename Types::tile_note;
  using action = typename Types::action;
  using head_type = typename Types::head_type;
  using tiles_list = typename Types::tiles_list;
  static constexpr int columns = Types::columns;
  static constexpr bool by_groups = mask_traits<typename Types::mask>::has_blocks;
  static constexpr int rows_of_lane = ceil_div(columns, 32);
  using terms_of_row = stdlib::conditional_t<Types::is_split, typename Types::split_row_terms, row_terms>;

 protected:
  GIWA_DEVICE sm90_plain_loader(const Block& of, const params& parameters, shared_storage& storage)
      : block(of), p(parameters), s(storage) {}

  /// Where dq is added and scores are not modified, notes of tiles that are kept as a whole differ in their rows alone, if the same
  /// tile of keys adds to their dq before this one. Such plain tiles take 119 instead of 217 instructions (128, full).
  static constexpr bool has_plain_tiles =
      Types::adds_dq && !by_groups && mask_traits<typename Types::mask>::any_range &&
      !score_steps<typename Types::mask, typename Types::score>::modified && !drops_weights<typename Types::score>;
  /// Loads the plain tiles of [first, end) that are next to `end`, the last one first. Returns the first of them, or `end`.
  GIWA_DEVICE int load_plain_tiles(const work_item& work, const head_type& h, const tiles_list& list, int first,
                                   int end) {
    const bool few = end - first < 8 && !mask_traits<typename Types::mask>::keeps_all;  // to find them takes longer
    if (few || work.careful != 0 || work.first + Types::block_m > h.keys()) return end;
    const int tile = work.first / Types::block_m, before = p.call.workspace.any_order && tile > 0 ? 0 : tile - 1;
    int from = list.all_from(first, end);
    if (before >= 0)
      from = tiles_list(p.call.call.mask, h, before * Types::block_m, Types::block_m, columns).all_from(from, end);
    if (from == end) return end;
    int row = h.first_query_row + (end - 1) * columns;
    const row_terms* at = &p.call.terms_at(h.sequence, h.head, row + block.lane());
    typename Types::dq_place to{p.call.dq_part_of(h, end - 1, columns), tile, before + 1};
#pragma unroll 1
    for (int n = end - 1; n >= from; --n) {
      row_terms terms[rows_of_lane];
      GIWA_UNROLL
      for (int i = 0; i < rows_of_lane; ++i)
        if (columns % 32 == 0 || block.lane() + 32 * i < columns) terms[i] = at[32 * i];
      s.x_empty[x.stage()].wait(x.phase() ^ 1);
      put_terms(terms);
      if (block.lane() == 0) {
        tile_note& note = s.notes[x.stage()];
        for (int c = 0; c < Types::groups; ++c) note.of[c] = action::all;
        note.begin = n * columns;
        s.dq_places[place.stage()] = to;
        s.place_full[place.stage()].arrive();
      }
      block.sync_warp();
      if (arch::elect_one()) {
        const giwa::index<4> origin{h.sequence, h.head, row, 0};
        s.x_full[x.stage()].arrive_and_expect(Types::x_tile::bytes);
        giwa::load(p.x, origin, s.x[x.stage()], s.x_full[x.stage()]);
        s.y_empty[y.stage()].wait(y.phase() ^ 1);
        s.y_full[y.stage()].arrive_and_expect(Types::y_tile::bytes);
        giwa::load(p.y, origin, s.y[y.stage()], s.y_full[y.stage()]);
      }
      block.sync_warp();
      place.advance(), x.advance(), y.advance();
      row -= columns, at -= columns, to.part -= dq_parts::of_tile(Types::head_size);
    }
    return from;
  }

  /// Writes a lane's terms of the rows of the next stage.
  GIWA_DEVICE void put_terms(const terms_of_row (&terms)[rows_of_lane]) {
    auto& to = s.terms[x.stage()];
    GIWA_UNROLL
    for (int i = 0; i < rows_of_lane; ++i) {
      const int row = block.lane() + 32 * i;
      if (columns % 32 != 0 && row >= columns) continue;
      if constexpr (Types::is_split)
        Types::put(terms[i], row, to);
      else if constexpr (Types::rows_are_keys)
        to.lse[row] = terms[i].lse * log2_e<float>, to.delta[row] = terms[i].delta;
      else
        to.nan[row] = 0;
    }
  }

  // Where keys and values are in registers: whether copies of a tile begin before its notes, and those of keys and values with the
  // first tile. An item of few tiles begins when they have arrived. H200, 2026-11-30, 64, causal, 512 to 4096 tokens: 1.036, 1.029,
  // 1.005, 1.000 times as fast. Earlier without lse and delta, kernels of dk with dv were slower.
  static constexpr bool copies_first = Types::by_halves;
  GIWA_DEVICE auto origin_of_fixed(const work_item& work, int c) const {
    return Types::origin(work.head.get(), Types::rows_are_keys, work.first + 64 * c);
  }
  GIWA_DEVICE void copy_a(const work_item& work, int c) {
    giwa::load(p.a, origin_of_fixed(work, c), s.a[c], s.fixed_full[c]);
  }
  GIWA_DEVICE void copy_b(const work_item& work, int c) {
    s.fixed_full[c].arrive_and_expect(Types::a_tile::bytes + (Types::sums_x ? Types::b_tile::bytes : 0));
    if constexpr (Types::sums_x) giwa::load(p.b, origin_of_fixed(work, c), s.b[c], s.fixed_full[c]);
  }
  /// Request the copies of a tile, to the next stages.
  ///@{
  GIWA_DEVICE void copy_x(const giwa::index<4>& at, bool scrubs) {
    giwa::load(p.x, at, s.x[x.stage()], scrubs ? s.landed : s.x_full[x.stage()]);
  }
  GIWA_DEVICE void copy_y(const giwa::index<4>& at, bool scrubs) {
    giwa::load(p.y, at, s.y[y.stage()], scrubs ? s.landed : s.y_full[y.stage()]);
  }
  ///@}
  /// Where copies_first says so: requests the copies of a tile, of which the stage of x is free, and of values with an item's first; and
  /// those of keys, which are free when dq of the item before is complete. That needs no tile of this one.
  ///@{
  GIWA_DEVICE void copy_early(const work_item& work, const giwa::index<4>& at, bool scrubs) {
    if (arch::elect_one()) {
      copy_x(at, scrubs);
      s.y_empty[y.stage()].wait(y.phase() ^ 1);
      copy_y(at, scrubs);
      for (int c = 0; !has_fixed && c < Types::groups; ++c) {
        s.b_empty[c].wait((fixed_turn & 1) ^ 1);
        copy_b(work, c);
      }
    }
    block.sync_warp();
  }
  GIWA_DEVICE void copy_late(const work_item& work) {
    if (has_fixed) return;
    if (arch::elect_one())
      for (int c = 0; c < Types::groups; ++c) {
        s.a_empty[c].wait((fixed_turn & 1) ^ 1);
        copy_a(work, c);
      }
    block.sync_warp();
    ++fixed_turn, has_fixed = true;
  }
  ///@}
  /// terms_of_query(), at 64 without a branch for the four rows of a lane: 1.004 to 1.022 times as fast, 512 to 4096 tokens (H200, 2026-11-30).
  GIWA_DEVICE row_terms terms_of(const head_type& h, int row) const {
    if constexpr (!copies_first) return p.call.terms_of_query(h, row);
    const int last = h.queries() - 1;
    const row_terms terms = p.call.terms_at(h.sequence, h.head, h.first_query_row + (row < last ? row : last));
    return row > last ? row_terms{infinity_of<float>, 0} : terms;
  }

  const Block& block;
  const params& p;
  shared_storage& s;
  ring_cursor<Types::stages_x> x;
  ring_cursor<Types::stages_y> y;
  ring_cursor<Types::places> place;  // of a part of dq
  uint32 fixed_turn = 0;
  bool has_fixed = false;
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
